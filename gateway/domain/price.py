"""Prices as integers, and the one function from price and usage to cost.

Amounts are nano-USD. One dollar per million tokens is 1,000 nano-USD a token; prices are kept per million tokens so
that a tenth of a cent per million is still an integer.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from fnmatch import fnmatchcase, translate
from functools import cached_property, lru_cache, reduce
from typing import Literal, NamedTuple

import attrs

from gateway.domain.model_name import is_glob, normalize_name, split_release
from gateway.domain.usage import RareUnits, Usage
from gateway.frozen import frozen

NANOS_PER_USD = 1_000_000_000
_PER_MILLION = 1_000_000
ONE_PPM = 1_000_000
"""A multiplier of one, in parts per million."""
_PER_MILLION_PPM = _PER_MILLION * ONE_PPM

_MOST_REMEMBERED = 4_096
_MIXED = Usage(2_000, 2_000, images=1, duration_ms=1_000, characters=1_000, rare=RareUnits(1_000, 0, 1_000, searches=1))


Unit = Literal["token", "image", "second", "character", "search", "call"]


@frozen
class Tier:
    """The price of tokens, in nano-USD per million, of a request whose prompt has more than ``above_tokens``.

    It applies to every token of the request, not only to those above: so do OpenAI, Anthropic, Google and xAI.
    """

    above_tokens: int
    input_nanos_per_million: int = 0
    cached_input_nanos_per_million: int | None = None
    output_nanos_per_million: int = 0
    cache_write_nanos_per_million: int | None = None
    cache_write_long_nanos_per_million: int | None = None


def _order_tiers(tiers: Iterable[Tier]) -> tuple[Tier, ...]:
    """Sort them highest first, so that the first one exceeded applies."""
    return tuple(sorted(tiers, key=lambda tier: -tier.above_tokens))


class _Rates(NamedTuple):
    """The rates of a modality in a price, in nano-USD per million tokens. None: as text."""

    fresh: int | None
    cached: int | None
    output: int | None


@frozen
class _Modality:
    """A kind of tokens beside text: the fields of its counts in ``RareUnits`` and those of its rates in ``Price``."""

    name: str
    kept: bool = True

    def find_rates(self, price: "Price") -> _Rates:
        fresh = getattr(price, f"{self.name}_input_nanos_per_million")
        cached = getattr(price, f"cached_{self.name}_input_nanos_per_million") if self.kept else None
        return _Rates(fresh, cached, getattr(price, f"{self.name}_output_nanos_per_million"))

    def find_counts(self, rare: RareUnits) -> tuple[int, int, int]:
        """Return the tokens of the prompt, those of them that were cached, and the tokens of the completion."""
        cached = getattr(rare, f"cached_{self.name}") if self.kept else 0
        return getattr(rare, f"{self.name}_input"), cached, getattr(rare, f"{self.name}_output")


_MODALITIES = (_Modality("audio"), _Modality("image"), _Modality("video", kept=False))


@frozen
class Price:
    """The price of a model or a glob of models: in nano-USD per million tokens, per image and per second.

    Attributes:
        character_nanos_per_million: of text that is spoken.
        sizes: globs of video sizes with their own price per second; the first match applies.
        cached_input_nanos_per_million: None: as input.
        cache_write_nanos_per_million: None: as input.
        cache_write_long_nanos_per_million: to keep it for an hour; None: as any cache write.
        provider: None: every provider.
        audio_input_nanos_per_million: of the prompt's tokens that are audio; None: as other input.
        cached_audio_input_nanos_per_million: of those that were read from a cache; None: as audio, or as other cached
            input if audio has no price of its own.
        audio_output_nanos_per_million: of the answer's tokens that are audio; None: as other output.
        image_input_nanos_per_million: and the other rates of images and video: as those of audio.
        reasoning_nanos_per_million: of reasoning that is reported beside the completion.
        citation_nanos_per_million: of the tokens of quoted pages that are not in the prompt.
        search_nanos: of a search of the web by the provider, or of a rerank; ``file_search_nanos`` of one of files.
        call_nanos: of a request to the provider, whatever its length.
        tiers_served: by which factor, in parts per million, tokens cost more or less that a service tier has served.
        built_in: it is of the built-in list, so a provider's own figure of a cost goes first.
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
    audio_input_nanos_per_million: int | None = None
    cached_audio_input_nanos_per_million: int | None = None
    audio_output_nanos_per_million: int | None = None
    image_input_nanos_per_million: int | None = None
    cached_image_input_nanos_per_million: int | None = None
    image_output_nanos_per_million: int | None = None
    video_input_nanos_per_million: int | None = None
    video_output_nanos_per_million: int | None = None
    reasoning_nanos_per_million: int = 0
    citation_nanos_per_million: int = 0
    search_nanos: int = 0
    file_search_nanos: int = 0
    call_nanos: int = 0
    tiers_served: tuple[tuple[str, int], ...] = ()
    built_in: bool = attrs.field(default=False, eq=False, repr=False)
    modal: bool = attrs.field(init=False, eq=False, repr=False)
    """Whether tokens of audio, images or video have a rate of their own."""

    @modal.default
    def _find_modal(self) -> bool:
        return any(rate is not None for modality in _MODALITIES for rate in modality.find_rates(self))

    @property
    def units(self) -> frozenset[Unit]:
        """The units that it has a price for; none if the model costs nothing on purpose."""
        rates: tuple[tuple[Unit, int], ...] = (
            ("token", self.input_nanos_per_million or self.output_nanos_per_million),
            ("token", any(tier.input_nanos_per_million or tier.output_nanos_per_million for tier in self.tiers)),
            ("token", max(rate or 0 for modality in _MODALITIES for rate in modality.find_rates(self))),
            ("image", self.image_nanos),
            ("second", self.second_nanos or any(nanos for _, nanos in self.sizes)),
            ("character", self.character_nanos_per_million),
            ("search", self.search_nanos or self.file_search_nanos),
            ("call", self.call_nanos),
        )
        return frozenset(unit for unit, amount in rates if amount)

    def find_tier(self, prompt_tokens: int) -> Tier | None:
        """Return the tier of a prompt of that many tokens, cached ones included. None if no tier applies."""
        return next((tier for tier in self.tiers if prompt_tokens > tier.above_tokens), None)

    def find_factor(self, tier: str) -> int:
        """Return the factor of tokens that a service tier has served, in parts per million; of ``fast+us`` of both."""
        served = tier.split("+")
        return reduce(multiply_ppm, (ppm for name, ppm in self.tiers_served if name in served), ONE_PPM)

    def find_second_nanos(self, size: str) -> int:
        """Return the price of a second of audio, or of video of that size (``1280x720``)."""
        return next((nanos for glob, nanos in self.sizes if fnmatchcase(size, glob)), self.second_nanos)


def nanos(usd: Decimal) -> int:
    """Convert USD to nano-USD, rounded up so that no amount is lost."""
    return int((usd * NANOS_PER_USD).to_integral_value(rounding=ROUND_CEILING))


def is_share(number: float) -> bool:
    """Return whether it is a multiplier above 0 and up to 1 that parts per million express exactly."""
    return 0 < number <= 1 and Decimal(str(number)) * ONE_PPM % 1 == 0


def multiply_ppm(one: int, other: int) -> int:
    """Return the product of two multipliers in parts per million, rounded up."""
    return -(-one * other // ONE_PPM)


def usd(amount_nanos: int) -> str:
    """Format nano-USD as USD: a plain decimal without trailing zeros, ``0.000125``."""
    whole, rest = divmod(abs(amount_nanos), NANOS_PER_USD)
    sign = "-" if amount_nanos < 0 else ""
    return f"{sign}{whole}.{rest:09}".rstrip("0") if rest else f"{sign}{whole}"


def cost_nanos(price: Price | None, usage: Usage, multiplier_ppm: int = ONE_PPM) -> int:
    """Return the cost of ``usage`` in nano-USD, rounded up once at the end. Without a price it is 0."""
    if price is None:
        return 0
    rates: Price | Tier = (price.find_tier(usage.prompt_tokens) if price.tiers else None) or price
    if usage.cached_tokens or usage.written_tokens:
        per_million = _prompt_nanos(rates, usage)
    else:
        per_million = usage.prompt_tokens * rates.input_nanos_per_million
    per_million += usage.completion_tokens * rates.output_nanos_per_million
    if (rare := usage.rare) is not None:
        if price.modal:
            per_million += _modal_nanos(price, rates, usage, rare)
        if rare.tier and price.tiers_served:
            per_million = multiply_ppm(per_million, price.find_factor(rare.tier))
        per_million += _counted_nanos(price, rare)
    if usage.images or usage.characters or usage.duration_ms:
        per_million += _made_nanos(price, usage)
    if price.call_nanos and usage.used:
        per_million += price.call_nanos * (_PER_MILLION if rare is None else _PER_MILLION * rare.calls)
    return -(-per_million * multiplier_ppm // _PER_MILLION_PPM)


def _counted_nanos(price: Price, rare: RareUnits) -> int:
    """Return the cost of what is counted beside a request's tokens, times a million."""
    return (
        (rare.searches * price.search_nanos + rare.file_searches * price.file_search_nanos) * _PER_MILLION
        + rare.reasoning * price.reasoning_nanos_per_million
        + rare.citations * price.citation_nanos_per_million
    )


def _made_nanos(price: Price, usage: Usage) -> int:
    """Return the cost of everything except tokens, times a million."""
    return (
        usage.images * price.image_nanos * _PER_MILLION
        + usage.characters * price.character_nanos_per_million
        + usage.duration_ms * price.find_second_nanos(usage.size) * (_PER_MILLION // 1_000)
    )


class PromptParts(NamedTuple):
    """The tokens of a prompt: each counts once, whatever parts the provider reports."""

    fresh: int
    cached: int
    written: int
    written_long: int


def split_prompt(usage: Usage) -> PromptParts:
    """Return the parts of a prompt that have prices of their own."""
    cached = min(usage.cached_tokens, usage.prompt_tokens)
    written = min(usage.written_tokens, usage.prompt_tokens - cached)
    kept_long = min(usage.written_long_tokens, written)
    return PromptParts(usage.prompt_tokens - cached - written, cached, written - kept_long, kept_long)


def _prompt_nanos(rates: Price | Tier, usage: Usage) -> int:
    """Return a prompt's cost times a million."""
    rate = rates.input_nanos_per_million
    fresh, cached, written, kept_long = split_prompt(usage)
    per_million = fresh * rate + cached * _or(rates.cached_input_nanos_per_million, rate)
    if written or kept_long:
        write_rate = _or(rates.cache_write_nanos_per_million, rate)
        per_million += written * write_rate + kept_long * _or(rates.cache_write_long_nanos_per_million, write_rate)
    return per_million


class OwnRates(NamedTuple):
    """What tokens of a modality cost, in nano-USD per million."""

    fresh: int
    cached: int
    output: int


class Share(NamedTuple):
    """The tokens of a modality in the prompt and in the completion, and their rates."""

    name: str
    fresh: int
    cached: int
    output: int
    rates: OwnRates


def list_shares(price: Price, rates: Price | Tier, usage: Usage, rare: RareUnits) -> Iterator[Share]:
    """Yield the tokens of audio, images and video.

    The cached and written tokens of the prompt are counted as text, except those that are reported as cached otherwise.
    """
    rate, made = rates.input_nanos_per_million, usage.completion_tokens
    fresh, read, _, _ = split_prompt(usage)
    for modality in _MODALITIES:
        prompt, cached, completion = modality.find_counts(rare)
        own = modality.find_rates(price)
        cached = min(cached, read)
        new, answered = max(0, min(prompt - cached, fresh)), min(completion, made)
        own_rate = _or(own.fresh, rate)
        kept = _or(rates.cached_input_nanos_per_million, rate) if own.fresh is None else own_rate
        output = _or(own.output, rates.output_nanos_per_million)
        yield Share(modality.name, new, cached, answered, OwnRates(own_rate, _or(own.cached, kept), output))
        read, fresh, made = read - cached, fresh - new, made - answered


def _modal_nanos(price: Price, rates: Price | Tier, usage: Usage, rare: RareUnits) -> int:
    """Return what tokens of audio, images and video cost more than as many of text, times a million; it may be < 0."""
    rate, made_rate = rates.input_nanos_per_million, rates.output_nanos_per_million
    text_cached = _or(rates.cached_input_nanos_per_million, rate)
    return sum(
        share.fresh * (share.rates.fresh - rate)
        + share.cached * (share.rates.cached - text_cached)
        + share.output * (share.rates.output - made_rate)
        for share in list_shares(price, rates, usage, rare)
    )


def _or(rate: int | None, other: int) -> int:
    return other if rate is None else rate


PriceKey = tuple[str, str | None]
"""A model, or a glob of models, and the provider; None: every provider."""
_Matcher = Callable[[str], object]


class PriceLayer:
    """One list of prices.

    Args:
        prices: by key. A price is read when a model needs it, so a long list may parse its prices then.
        free: the providers (None: every one) of prices by which something costs nothing.
    """

    def __init__(self, prices: Mapping[PriceKey, Price], free: Iterable[str | None]) -> None:
        self.prices = prices
        self.free = frozenset(free)

    @classmethod
    def of(cls, prices: Iterable[Price]) -> "PriceLayer":
        """Return a layer of ``prices``; a later one replaces an earlier one of the same model and provider."""
        latest = {(price.model, price.provider): price for price in prices}
        return cls(latest, (price.provider for price in latest.values() if not price.units))

    def __len__(self) -> int:
        return len(self.prices)

    def find(self, model: str, provider: str | None) -> Price | None:
        """As ``PriceList.find``, in this list alone."""
        if not is_glob(model):
            exact = self.prices.get((model, provider)) or self.prices.get((model, None))
            if exact is not None:
                return exact
        normalized = normalize_name(model)
        spelled, released = self._spellings
        for keys, name in (spelled, normalized), (released, split_release(normalized)[0]):
            same = keys.get((name, provider)) or keys.get((name, None))
            if same is not None:
                return self.prices[same[0]] if len(same) == 1 else max(map(self.prices.__getitem__, same), key=_rank)
        return self._match(model, normalized, provider) or self._match(model, normalized, None)

    def _match(self, model: str, normalized: str, provider: str | None) -> Price | None:
        for whose, glob, spelled, key in self._globs:
            if whose == provider and (glob(model) or spelled(normalized)):
                return self.prices[key]
        return None

    @cached_property
    def _spellings(self) -> tuple[Mapping[PriceKey, list[PriceKey]], Mapping[PriceKey, list[PriceKey]]]:
        """The keys of models by normalized name, and by that name without its date."""
        spelled: dict[PriceKey, list[PriceKey]] = {}
        released: dict[PriceKey, list[PriceKey]] = {}
        for key in self.prices:
            model, provider = key
            if not is_glob(model):
                name = normalize_name(model)
                spelled.setdefault((name, provider), []).append(key)
                released.setdefault((split_release(name)[0], provider), []).append(key)
        return spelled, released

    @cached_property
    def _globs(self) -> Sequence[tuple[str | None, _Matcher, _Matcher, PriceKey]]:
        # Sorted and compiled once: a model without a price is compared with all of them.
        globs = sorted((key for key in self.prices if is_glob(key[0])), key=lambda key: -len(key[0]))
        return [(key[1], _compile(key[0]), _compile(normalize_name(key[0])), key) for key in globs]


class PriceList:
    """Prices by model and provider.

    ``layers``: lists of prices by precedence: any match in an earlier list hides the later lists. A ``PriceList``
    stands for its layers. Within a list, a later price replaces an earlier one of the same model and provider.
    """

    def __init__(self, *layers: "Iterable[Price] | PriceLayer | PriceList") -> None:
        self.layers: tuple[PriceLayer, ...] = ()
        for prices in layers:
            if isinstance(prices, PriceList):
                self.layers += prices.layers
            else:
                self.layers += (prices if isinstance(prices, PriceLayer) else PriceLayer.of(prices),)
        # Every request looks up a price, of few models, and a list has hundreds of globs.
        self._remembered = lru_cache(_MOST_REMEMBERED)(self._search)

    def __len__(self) -> int:
        return sum(map(len, self.layers))

    def find(self, model: str, provider: str | None = None) -> Price | None:
        """Return the price of ``model`` at ``provider``. None if no list has one.

        An exact name precedes another spelling of it (``model_name.py``), that a glob, a longer glob a shorter one, and
        among equals the provider's price one for every provider. ``provider`` None finds only the latter.

        A spelling without a date means the name without a date, else the latest. Of spellings of one name with
        different prices the highest counts: which of them another one means is unknown.
        """
        return self._remembered(model, provider)

    def list_prices(self) -> list[Price]:
        """Return every price, by the precedence of their lists."""
        return [price for layer in self.layers for price in layer.prices.values()]

    def list_models(self) -> Iterator[str]:
        """Yield the models and globs of all prices."""
        return (model for layer in self.layers for model, _ in layer.prices)

    def is_free_at(self, providers: frozenset[str]) -> bool:
        """Return whether something may cost nothing at one of ``providers``."""
        return any(None in layer.free or not layer.free.isdisjoint(providers) for layer in self.layers)

    def _search(self, model: str, provider: str | None) -> Price | None:
        found = (layer.find(model, provider) for layer in self.layers)
        return next((price for price in found if price is not None), None)


def _compile(glob: str) -> _Matcher:
    """Return what tells whether a name matches."""
    prefix = glob[:-1]
    if glob.endswith("*") and not is_glob(prefix):  # most are: a pattern takes 50 us to compile
        return lambda name: name.startswith(prefix)
    return re.compile(translate(glob)).match


def _rank(price: Price) -> tuple[str, int]:
    return split_release(normalize_name(price.model))[1], cost_nanos(price, _MIXED)
