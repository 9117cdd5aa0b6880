"""Integer prices: the cost of a usage (``compute_cost_nanos``), and the search for a model's price (``PriceList``).

Amounts are nano-USD. Prices are kept per million tokens, so a tenth of a cent per million is still an integer. One
dollar per million tokens is 1,000 nano-USD per token.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from fnmatch import fnmatchcase, translate
from functools import cached_property, lru_cache, reduce
from typing import Literal, NamedTuple

import attrs

from gateway.domain.model_name import is_glob, normalize_name, split_release
from gateway.domain.usage import Usage, UsageDetails
from gateway.frozen import frozen

NANOS_PER_USD = 1_000_000_000
_PER_MILLION = 1_000_000
ONE_PPM = 1_000_000
"""A multiplier of one, in parts per million."""
_PER_MILLION_PPM = _PER_MILLION * ONE_PPM

_MAX_CACHED_LOOKUPS = 4_096
_SAMPLE_USAGE = Usage(
    2_000, 2_000, images=1, duration_ms=1_000, characters=1_000, details=UsageDetails(1_000, 0, 1_000, searches=1)
)


Unit = Literal["token", "image", "second", "character", "search", "call"]


@frozen
class Tier:
    """Token prices, in nano-USD per million, for a request whose prompt has more than ``above_tokens`` tokens.

    They apply to every token of the request, not only to those above the threshold, as at OpenAI, Anthropic, Google
    and xAI.
    """

    above_tokens: int
    input_nanos_per_million: int = 0
    cached_input_nanos_per_million: int | None = None
    output_nanos_per_million: int = 0
    cache_write_nanos_per_million: int | None = None
    cache_write_long_nanos_per_million: int | None = None


def _order_tiers(tiers: Iterable[Tier]) -> tuple[Tier, ...]:
    """Sort tiers by threshold, highest first: the first threshold exceeded applies."""
    return tuple(sorted(tiers, key=lambda tier: -tier.above_tokens))


class _ModalRates(NamedTuple):
    """A price's rates for one modality, in nano-USD per million tokens. None: the text rate applies."""

    fresh: int | None
    cached: int | None
    output: int | None


@frozen
class _Modality:
    """A non-text token modality. With ``has_cached``, it has a rate and a count of cached tokens."""

    name: str
    has_cached: bool = True

    def find_rates(self, price: "Price") -> _ModalRates:
        fresh_price = getattr(price, f"{self.name}_input_nanos_per_million")
        cached_price = getattr(price, f"cached_{self.name}_input_nanos_per_million") if self.has_cached else None
        return _ModalRates(fresh_price, cached_price, getattr(price, f"{self.name}_output_nanos_per_million"))

    def find_counts(self, details: UsageDetails) -> tuple[int, int, int]:
        """Return this modality's prompt tokens, the cached part of them, and its completion tokens."""
        cached_count = getattr(details, f"cached_{self.name}") if self.has_cached else 0
        return getattr(details, f"{self.name}_input"), cached_count, getattr(details, f"{self.name}_output")


_MODALITIES = (_Modality("audio"), _Modality("image"), _Modality("video", has_cached=False))


@frozen
class Price:
    """The price of a model, or of every model that matches a glob, in nano-USD.

    Attributes:
        sizes: globs of video sizes, each with its own price per second; the first match applies.
        cached_input_nanos_per_million: for tokens read from a cache; None: the input rate.
        cache_write_nanos_per_million: for tokens written to a cache; None: the input rate.
        cache_write_long_nanos_per_million: for tokens cached for an hour; None: the rate of other cache writes.
        provider: the provider that the price is limited to; None: every provider.
        audio_input_nanos_per_million: for audio tokens in the prompt; None: the input rate.
        cached_audio_input_nanos_per_million: for audio tokens read from a cache; None: the audio input rate, or the
            cached input rate if audio input has no rate of its own.
        image_input_nanos_per_million: this and the other image and video rates work like those of audio.
        reasoning_nanos_per_million: for reasoning tokens reported separately from the completion.
        citation_nanos_per_million: for tokens of quoted pages that are not part of the prompt.
        search_nanos: per web search by the provider, or per search unit of a rerank.
        tiers_served: service tiers, each with a factor for token costs in parts per million.
        built_in: whether the price is from the built-in list, so that a cost reported by the provider takes precedence.
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
    """Whether audio, image or video tokens have a rate of their own."""

    @modal.default
    def _find_modal(self) -> bool:
        return any(rate is not None for modality in _MODALITIES for rate in modality.find_rates(self))

    @property
    def units(self) -> frozenset[Unit]:
        """The units with a price above 0. Empty if the model is deliberately free."""
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
        """Return the tier for a prompt of ``prompt_tokens``, cached tokens included; None if no tier applies."""
        return next((tier for tier in self.tiers if prompt_tokens > tier.above_tokens), None)

    def find_factor(self, tier: str) -> int:
        """Return a service tier's factor for token costs, in parts per million. ``fast+us`` multiplies both factors."""
        served_tiers = tier.split("+")
        return reduce(multiply_ppm, (ppm for name, ppm in self.tiers_served if name in served_tiers), ONE_PPM)

    def find_second_nanos(self, size: str) -> int:
        """Return the price per second of audio, or of video of that ``size`` (``1280x720``)."""
        return next((nanos for glob, nanos in self.sizes if fnmatchcase(size, glob)), self.second_nanos)


def nanos(usd: Decimal) -> int:
    """Convert USD to nano-USD, rounded up."""
    return int((usd * NANOS_PER_USD).to_integral_value(rounding=ROUND_CEILING))


def is_share(number: float) -> bool:
    """Return whether ``number`` is above 0, at most 1, and a whole number of parts per million."""
    return 0 < number <= 1 and Decimal(str(number)) * ONE_PPM % 1 == 0


def multiply_ppm(ppm: int, other_ppm: int) -> int:
    """Return the product of two multipliers in parts per million, rounded up."""
    return -(-ppm * other_ppm // ONE_PPM)


def usd(amount_nanos: int) -> str:
    """Format nano-USD as USD: a plain decimal without trailing zeros, ``0.000125``."""
    dollars, remainder_nanos = divmod(abs(amount_nanos), NANOS_PER_USD)
    sign = "-" if amount_nanos < 0 else ""
    return f"{sign}{dollars}.{remainder_nanos:09}".rstrip("0") if remainder_nanos else f"{sign}{dollars}"


def compute_cost_nanos(price: Price | None, usage: Usage, multiplier_ppm: int = ONE_PPM) -> int:
    """Return the cost of ``usage`` in nano-USD, rounded up. 0 without a price."""
    if price is None:
        return 0
    rates: Price | Tier = (price.find_tier(usage.prompt_tokens) if price.tiers else None) or price
    if usage.cached_tokens or usage.written_tokens:
        per_million = _sum_prompt_per_million(rates, usage)
    else:
        per_million = usage.prompt_tokens * rates.input_nanos_per_million
    per_million += usage.completion_tokens * rates.output_nanos_per_million
    if (details := usage.details) is not None:
        if price.modal:
            per_million += _sum_modal_per_million(price, rates, usage, details)
        if details.tier and price.tiers_served:
            per_million = multiply_ppm(per_million, price.find_factor(details.tier))
        per_million += _sum_counted_per_million(price, details)
    if usage.images or usage.characters or usage.duration_ms:
        per_million += _sum_media_per_million(price, usage)
    if price.call_nanos and usage.used:
        per_million += price.call_nanos * (_PER_MILLION if details is None else _PER_MILLION * details.calls)
    return -(-per_million * multiplier_ppm // _PER_MILLION_PPM)


def _sum_counted_per_million(price: Price, details: UsageDetails) -> int:
    """Return the cost of searches, separately reported reasoning and citations, times a million."""
    return (
        (details.searches * price.search_nanos + details.file_searches * price.file_search_nanos) * _PER_MILLION
        + details.reasoning * price.reasoning_nanos_per_million
        + details.citations * price.citation_nanos_per_million
    )


def _sum_media_per_million(price: Price, usage: Usage) -> int:
    """Return the cost of images, spoken characters and seconds of media, times a million."""
    return (
        usage.images * price.image_nanos * _PER_MILLION
        + usage.characters * price.character_nanos_per_million
        + usage.duration_ms * price.find_second_nanos(usage.size) * (_PER_MILLION // 1_000)
    )


class PromptParts(NamedTuple):
    """A prompt's tokens by price category. Each token counts once, even if the provider's numbers overlap."""

    fresh: int
    cached: int
    written: int
    written_long: int


def split_prompt(usage: Usage) -> PromptParts:
    """Split a prompt's tokens into the parts that are priced separately."""
    cached_tokens = min(usage.cached_tokens, usage.prompt_tokens)
    written_tokens = min(usage.written_tokens, usage.prompt_tokens - cached_tokens)
    long_tokens = min(usage.written_long_tokens, written_tokens)
    return PromptParts(
        usage.prompt_tokens - cached_tokens - written_tokens, cached_tokens, written_tokens - long_tokens, long_tokens
    )


def _sum_prompt_per_million(rates: Price | Tier, usage: Usage) -> int:
    rate = rates.input_nanos_per_million
    fresh_tokens, cached_tokens, written_tokens, long_tokens = split_prompt(usage)
    per_million = fresh_tokens * rate + cached_tokens * _choose_rate(rates.cached_input_nanos_per_million, rate)
    if written_tokens or long_tokens:
        write_rate = _choose_rate(rates.cache_write_nanos_per_million, rate)
        per_million += written_tokens * write_rate + long_tokens * _choose_rate(
            rates.cache_write_long_nanos_per_million, write_rate
        )
    return per_million


class OwnRates(NamedTuple):
    """The rates that apply to a modality's tokens, fallbacks included, in nano-USD per million."""

    fresh: int
    cached: int
    output: int


class Share(NamedTuple):
    """A modality's tokens in the prompt and in the completion, and their rates."""

    name: str
    fresh: int
    cached: int
    output: int
    rates: OwnRates


def list_shares(price: Price, rates: Price | Tier, usage: Usage, details: UsageDetails) -> Iterator[Share]:
    """Yield the audio, image and video tokens with their rates. Cached tokens of no known modality count as text."""
    rate, output_tokens = rates.input_nanos_per_million, usage.completion_tokens
    fresh_tokens, cached_tokens, _, _ = split_prompt(usage)
    for modality in _MODALITIES:
        prompt, cached_count, completion = modality.find_counts(details)
        modality_rates = modality.find_rates(price)
        cached_count = min(cached_count, cached_tokens)
        input_count, output_count = max(0, min(prompt - cached_count, fresh_tokens)), min(completion, output_tokens)
        own_rate = _choose_rate(modality_rates.fresh, rate)
        cached_rate = (
            _choose_rate(rates.cached_input_nanos_per_million, rate) if modality_rates.fresh is None else own_rate
        )
        output = _choose_rate(modality_rates.output, rates.output_nanos_per_million)
        yield Share(
            modality.name,
            input_count,
            cached_count,
            output_count,
            OwnRates(own_rate, _choose_rate(modality_rates.cached, cached_rate), output),
        )
        cached_tokens, fresh_tokens, output_tokens = (
            cached_tokens - cached_count,
            fresh_tokens - input_count,
            output_tokens - output_count,
        )


def _sum_modal_per_million(price: Price, rates: Price | Tier, usage: Usage, details: UsageDetails) -> int:
    """Return the extra cost of audio, image and video tokens over text tokens, times a million. May be negative."""
    rate, output_rate = rates.input_nanos_per_million, rates.output_nanos_per_million
    cached_rate = _choose_rate(rates.cached_input_nanos_per_million, rate)
    return sum(
        share.fresh * (share.rates.fresh - rate)
        + share.cached * (share.rates.cached - cached_rate)
        + share.output * (share.rates.output - output_rate)
        for share in list_shares(price, rates, usage, details)
    )


def _choose_rate(rate: int | None, default_rate: int) -> int:
    return default_rate if rate is None else rate


PriceKey = tuple[str, str | None]
"""A model, or a glob of models, and the provider; None: every provider."""
_Matcher = Callable[[str], object]


class PriceLayer:
    """One list of prices.

    Args:
        prices: the prices by model and provider. Each is read on first use, so a long list may parse them lazily.
        free: the providers that have a price of 0 for some model; None stands for every provider.
    """

    def __init__(self, prices: Mapping[PriceKey, Price], free: Iterable[str | None]) -> None:
        self.prices = prices
        self.free = frozenset(free)

    @classmethod
    def of(cls, prices: Iterable[Price]) -> "PriceLayer":
        """Return a layer of ``prices``. The last of several for the same model and provider counts."""
        prices_by_key = {(price.model, price.provider): price for price in prices}
        return cls(prices_by_key, (price.provider for price in prices_by_key.values() if not price.units))

    def __len__(self) -> int:
        return len(self.prices)

    def find(self, model: str, provider: str | None) -> Price | None:
        """Return the price as ``PriceList.find`` does, but from this list only."""
        if not is_glob(model):
            exact_price = self.prices.get((model, provider)) or self.prices.get((model, None))
            if exact_price is not None:
                return exact_price
        normalized = normalize_name(model)
        keys_by_name, keys_by_undated_name = self._spellings
        for keys, name in (keys_by_name, normalized), (keys_by_undated_name, split_release(normalized)[0]):
            price_keys = keys.get((name, provider)) or keys.get((name, None))
            if price_keys is not None:
                return (
                    self.prices[price_keys[0]]
                    if len(price_keys) == 1
                    else max(map(self.prices.__getitem__, price_keys), key=_rank)
                )
        return self._match(model, normalized, provider) or self._match(model, normalized, None)

    def _match(self, model: str, normalized: str, provider: str | None) -> Price | None:
        for glob_provider, matches_name, matches_spelling, key in self._globs:
            if glob_provider == provider and (matches_name(model) or matches_spelling(normalized)):
                return self.prices[key]
        return None

    @cached_property
    def names(self) -> frozenset[str]:
        """The models that this list names exactly, rather than by a glob."""
        return frozenset(model for model, _ in self.prices if not is_glob(model))

    @cached_property
    def _spellings(self) -> tuple[Mapping[PriceKey, list[PriceKey]], Mapping[PriceKey, list[PriceKey]]]:
        """The price keys of exact names, by normalized name and by normalized name without its date."""
        keys_by_name: dict[PriceKey, list[PriceKey]] = {}
        keys_by_undated_name: dict[PriceKey, list[PriceKey]] = {}
        for key in self.prices:
            model, provider = key
            if not is_glob(model):
                name = normalize_name(model)
                keys_by_name.setdefault((name, provider), []).append(key)
                keys_by_undated_name.setdefault((split_release(name)[0], provider), []).append(key)
        return keys_by_name, keys_by_undated_name

    @cached_property
    def _globs(self) -> Sequence[tuple[str | None, _Matcher, _Matcher, PriceKey]]:
        # Longest first. Compiled once, because a model without a price is compared with every glob.
        globs = sorted((key for key in self.prices if is_glob(key[0])), key=lambda key: -len(key[0]))
        return [(key[1], _compile(key[0]), _compile(normalize_name(key[0])), key) for key in globs]


class PriceList:
    """Prices by model and provider.

    ``layers`` are lists in order of precedence: any match in an earlier list hides the later lists. A ``PriceList``
    among them contributes its layers. Within a list, a later price replaces an earlier one for the same model and
    provider.
    """

    def __init__(self, *layers: "Iterable[Price] | PriceLayer | PriceList") -> None:
        self.layers: tuple[PriceLayer, ...] = ()
        for prices in layers:
            if isinstance(prices, PriceList):
                self.layers += prices.layers
            else:
                self.layers += (prices if isinstance(prices, PriceLayer) else PriceLayer.of(prices),)
        # Every request looks up a price. Few models are in use, and comparing one with hundreds of globs is slow.
        self._find_cached = lru_cache(_MAX_CACHED_LOOKUPS)(self._search)

    def __len__(self) -> int:
        return sum(map(len, self.layers))

    def find(self, model: str, provider: str | None = None) -> Price | None:
        """Return the price of ``model`` at ``provider``; None if no list has one.

        Within a list, an exact name precedes another spelling of the name (``model_name.py``), a spelling precedes a
        glob, and a longer glob a shorter one. Among equals, the provider's own price precedes one for every provider.
        If ``provider`` is None, only prices for every provider are found.

        A spelling without a date matches the name without a date, else the latest dated name. If several spellings of
        a name have different prices, the highest applies, because the intended spelling is unknown.
        """
        return self._find_cached(model, provider)

    def list_prices(self) -> list[Price]:
        return [price for layer in self.layers for price in layer.prices.values()]

    def is_named(self, model: str) -> bool:
        """Return whether a list names ``model`` exactly."""
        return any(model in layer.names for layer in self.layers)

    def has_free_model(self, providers: frozenset[str]) -> bool:
        """Return whether any of ``providers`` may have a model with a price of 0."""
        return any(None in layer.free or not layer.free.isdisjoint(providers) for layer in self.layers)

    def _search(self, model: str, provider: str | None) -> Price | None:
        layer_prices = (layer.find(model, provider) for layer in self.layers)
        return next((price for price in layer_prices if price is not None), None)


def _compile(glob: str) -> _Matcher:
    """Return a function that returns a true value for names that match ``glob``."""
    prefix = glob[:-1]
    if glob.endswith("*") and not is_glob(prefix):  # the usual case; compiling a pattern takes 50 us
        return lambda name: name.startswith(prefix)
    return re.compile(translate(glob)).match


def _rank(price: Price) -> tuple[str, int]:
    return split_release(normalize_name(price.model))[1], compute_cost_nanos(price, _SAMPLE_USAGE)
