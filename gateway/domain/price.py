"""Prices in integers, and the one function from price and usage to cost.

Amounts are nano-USD. A price of one dollar per million tokens is 1,000 nano-USD a token; prices are kept per
million tokens so that a tenth of a cent per million is still an integer.
"""

import re
from collections.abc import Iterable
from decimal import ROUND_CEILING, Decimal
from fnmatch import fnmatchcase, translate
from functools import lru_cache

import attrs

from gateway.domain.usage import Usage

NANOS_PER_USD = 1_000_000_000
_PER_MILLION = 1_000_000
ONE_PPM = 1_000_000
"""A multiplier of one, in parts per million."""
_PER_MILLION_PPM = _PER_MILLION * ONE_PPM

_MOST_REMEMBERED = 4_096


@attrs.frozen
class Tier:
    """What tokens cost, in nano-USD per million, in a request whose prompt has more than ``above_tokens``.

    It holds for every token of the request, not only for those above: so bill OpenAI, Anthropic, Google and xAI.
    """

    above_tokens: int
    input_nanos_per_million: int = 0
    cached_input_nanos_per_million: int | None = None
    output_nanos_per_million: int = 0
    cache_write_nanos_per_million: int | None = None
    cache_write_long_nanos_per_million: int | None = None


def _order_tiers(tiers: Iterable[Tier]) -> tuple[Tier, ...]:
    """The highest first, so that the first one passed is the one that holds."""
    return tuple(sorted(tiers, key=lambda tier: -tier.above_tokens))


@attrs.frozen
class Price:
    """What a model, or every model a glob matches, costs: in nano-USD per million tokens, per image and per second.

    ``character_nanos_per_million`` is for text that is spoken. ``sizes`` are globs of the sizes of videos whose second
    has a price of its own, and that price; the first one that matches counts.

    ``cached_input_nanos_per_million`` and ``cache_write_nanos_per_million`` None: as input;
    ``cache_write_long_nanos_per_million`` (to keep it for an hour) None: as any cache write. ``provider`` None: whoever
    serves the model.
    """

    model: str
    input_nanos_per_million: int = 0
    cached_input_nanos_per_million: int | None = None
    output_nanos_per_million: int = 0
    image_nanos: int = 0
    second_nanos: int = 0
    character_nanos_per_million: int = 0
    cache_write_nanos_per_million: int | None = None
    cache_write_long_nanos_per_million: int | None = None
    provider: str | None = None
    tiers: tuple[Tier, ...] = attrs.field(default=(), converter=_order_tiers)
    sizes: tuple[tuple[str, int], ...] = ()

    def find_tier(self, prompt_tokens: int) -> Tier | None:
        """The tier of a prompt of that many tokens, cached ones included; None where the price itself holds."""
        return next((tier for tier in self.tiers if prompt_tokens > tier.above_tokens), None)

    def find_second_nanos(self, size: str) -> int:
        """What a second costs of a video of that size (``1280x720``), or of sound."""
        return next((nanos for glob, nanos in self.sizes if fnmatchcase(size, glob)), self.second_nanos)


def nanos(usd: Decimal) -> int:
    """Dollars -> nano-USD, rounded up so that no amount is lost."""
    return int((usd * NANOS_PER_USD).to_integral_value(rounding=ROUND_CEILING))


def usd(amount_nanos: int) -> str:
    """Nano-USD -> dollars as a plain decimal string, without trailing zeros: ``0.000125``."""
    whole, rest = divmod(abs(amount_nanos), NANOS_PER_USD)
    sign = "-" if amount_nanos < 0 else ""
    return f"{sign}{whole}.{rest:09}".rstrip("0") if rest else f"{sign}{whole}"


def cost_nanos(price: Price | None, usage: Usage, multiplier_ppm: int = ONE_PPM) -> int:
    """What ``usage`` costs at ``price``, in nano-USD, rounded up once at the end. No price: 0."""
    if price is None:
        return 0
    rates: Price | Tier = (price.find_tier(usage.prompt_tokens) if price.tiers else None) or price
    if usage.cached_tokens or usage.written_tokens:
        per_million = _prompt_nanos(rates, usage)
    else:
        per_million = usage.prompt_tokens * rates.input_nanos_per_million
    per_million += usage.completion_tokens * rates.output_nanos_per_million
    if usage.images or usage.characters or usage.duration_ms:
        per_million += _made_nanos(price, usage)
    return -(-per_million * multiplier_ppm // _PER_MILLION_PPM)


def _made_nanos(price: Price, usage: Usage) -> int:
    """The cost of what is no token, times a million."""
    return (
        usage.images * price.image_nanos * _PER_MILLION
        + usage.characters * price.character_nanos_per_million
        + usage.duration_ms * price.find_second_nanos(usage.size) * (_PER_MILLION // 1_000)
    )


def _prompt_nanos(rates: Price | Tier, usage: Usage) -> int:
    """A cached prompt's cost times a million; each of its tokens counts once, whatever its parts are said to be."""
    rate = rates.input_nanos_per_million
    cached = min(usage.cached_tokens, usage.prompt_tokens)
    if not usage.written_tokens:
        return (usage.prompt_tokens - cached) * rate + cached * _or(rates.cached_input_nanos_per_million, rate)
    written = min(usage.written_tokens, usage.prompt_tokens - cached)
    kept_long = min(usage.written_long_tokens, written)
    write_rate = _or(rates.cache_write_nanos_per_million, rate)
    return (
        (usage.prompt_tokens - cached - written) * rate
        + cached * _or(rates.cached_input_nanos_per_million, rate)
        + (written - kept_long) * write_rate
        + kept_long * _or(rates.cache_write_long_nanos_per_million, write_rate)
    )


def _or(rate: int | None, other: int) -> int:
    return other if rate is None else rate


class PriceList:
    """Prices by model and provider.

    Args:
        layers: lists of prices, asked one after the other: what an earlier one has, however general, is not asked of
            a later one. A ``PriceList`` stands for its own.
            Within a list a price replaces those before it of the same model and provider.
    """

    def __init__(self, *layers: "Iterable[Price] | PriceList") -> None:
        self.layers: tuple[_Layer, ...] = ()
        for prices in layers:
            self.layers += prices.layers if isinstance(prices, PriceList) else (_Layer(prices),)
        # The same few models are asked for with every request, and a list is hundreds of globs long.
        self._remembered = lru_cache(_MOST_REMEMBERED)(self._search)

    def __len__(self) -> int:
        return sum(map(len, self.layers))

    def find(self, model: str, provider: str | None = None) -> Price | None:
        """The price of ``model`` at ``provider``, or None where no list has one.

        An exact name before a glob and a longer glob before a shorter one; among equals the price of the provider
        before the price of whoever serves the model. ``provider`` None asks only for the latter.
        """
        return self._remembered(model, provider)

    def list_prices(self) -> list[Price]:
        """Every price, of the list that is asked first before those of others."""
        return [price for layer in self.layers for price in layer.prices]

    def _search(self, model: str, provider: str | None) -> Price | None:
        found = (layer.find(model, provider) for layer in self.layers)
        return next((price for price in found if price is not None), None)


class _Layer:
    """One list of prices."""

    def __init__(self, prices: Iterable[Price]) -> None:
        latest = {(price.model, price.provider): price for price in prices}
        self.prices = tuple(latest.values())
        self._exact = {key: price for key, price in latest.items() if not _is_glob(price.model)}
        globs = sorted((key for key in latest if _is_glob(key[0])), key=lambda key: -len(key[0]))
        # Read here and not when first asked: a model nobody has a price for is held against every one of them.
        self._globs = [(key[1], re.compile(translate(key[0])), latest[key]) for key in globs]

    def __len__(self) -> int:
        return len(self._exact) + len(self._globs)

    def find(self, model: str, provider: str | None) -> Price | None:
        return (
            self._exact.get((model, provider))
            or self._exact.get((model, None))
            or self._match(model, provider)
            or self._match(model, None)
        )

    def _match(self, model: str, provider: str | None) -> Price | None:
        ours = ((glob, price) for whose, glob, price in self._globs if whose == provider)
        return next((price for glob, price in ours if glob.match(model)), None)


def _is_glob(name: str) -> bool:
    return any(mark in name for mark in "*?[")
