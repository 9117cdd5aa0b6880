"""Prices, groups and changes of settings as users write them, in the configuration file or the admin API."""

from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import partial
from typing import Any

import attrs

from gateway.domain.account_spec import NAME
from gateway.domain.price import NANOS_PER_USD, ONE_PPM, Price, Tier, nanos
from gateway.domain.usage import MAX_TIER_CHARS
from gateway.frozen import frozen
from gateway.parsing import between, must

MODEL = must("a model's name or a glob", lambda value: 0 < len(value) <= 256 and value.isprintable())  # noqa: PLR2004
# With the largest usage of a request (domain/usage.py) and the highest multipliers of a channel and a group,
# a cost is still a 64-bit integer.
_TOKEN_PRICE = between(0, 1_000)
_IMAGE_PRICE = between(0, 100)
_SECOND_PRICE = between(0, 10)
_CHARACTER_PRICE = between(0, 1_000)
_COUNTED_PRICE = between(0, 100)
_MAX_TIERS = 16
_MAX_FACTOR = 10


def _are_factors(factors: Mapping[str, Decimal]) -> bool:
    return len(factors) <= _MAX_TIERS and all(
        0 < len(name) <= MAX_TIER_CHARS and 0 <= factor <= _MAX_FACTOR for name, factor in factors.items()
    )


_FACTORS = must("at most 16 names of service tiers with factors from 0 to 10, such as { flex = 0.5 }", _are_factors)


@frozen
class SettingSpec:
    """A new value of a setting. The setting validates it."""

    value: Any


@frozen
class SettingChanges:
    """New values of several settings.

    Attributes:
        settings: values by paths such as ``routing.max_attempts``; null takes a stored value back.
        former: the values that the change was made from, by path: 409 if one of them is another now.
    """

    settings: dict[str, Any]
    former: dict[str, Any] = attrs.field(factory=dict)


@frozen
class GroupSpec:
    """``[[group]]``: the price multiplier of its keys. A group need not be declared to be used."""

    name: str = attrs.field(metadata=NAME)
    price_multiplier: Decimal = attrs.field(default=Decimal(1), metadata=between(0, 100))


@frozen
class TierSpec:
    """An entry of a price's ``tiers``: the price of a whole request with a longer prompt."""

    above_tokens: int = attrs.field(metadata=between(1))
    input_usd_per_million: Decimal | None = attrs.field(default=None, metadata=_TOKEN_PRICE)
    cached_input_usd_per_million: Decimal | None = attrs.field(default=None, metadata=_TOKEN_PRICE)
    output_usd_per_million: Decimal | None = attrs.field(default=None, metadata=_TOKEN_PRICE)
    cache_write_usd_per_million: Decimal | None = attrs.field(default=None, metadata=_TOKEN_PRICE)
    cache_write_long_usd_per_million: Decimal | None = attrs.field(default=None, metadata=_TOKEN_PRICE)

    def tier(self, price: Price) -> Tier:
        """Return the tier in nano-USD. Rates that the tier lacks are those of ``price``."""
        usd_by_name = {
            "input_nanos_per_million": self.input_usd_per_million,
            "cached_input_nanos_per_million": self.cached_input_usd_per_million,
            "output_nanos_per_million": self.output_usd_per_million,
            "cache_write_nanos_per_million": self.cache_write_usd_per_million,
            "cache_write_long_nanos_per_million": self.cache_write_long_usd_per_million,
        }
        rates = {name: getattr(price, name) if usd is None else nanos(usd) for name, usd in usd_by_name.items()}
        return Tier(above_tokens=self.above_tokens, **rates)


@frozen
class SizeSpec:
    """An entry of a price's ``sizes``: the price of a second of video of that size, a glob such as ``*x1080``."""

    size: str = attrs.field(metadata=MODEL)
    usd_per_second: Decimal = attrs.field(metadata=_SECOND_PRICE)


@frozen
class PriceSpec:
    """``[[price]]``: the price of a model, or of every model that a glob matches, at one provider or all."""

    model: str = attrs.field(metadata=MODEL)
    provider: str | None = attrs.field(default=None, metadata=NAME)
    input_usd_per_million: Decimal | None = attrs.field(default=None, metadata=_TOKEN_PRICE)
    cached_input_usd_per_million: Decimal | None = attrs.field(default=None, metadata=_TOKEN_PRICE)
    output_usd_per_million: Decimal | None = attrs.field(default=None, metadata=_TOKEN_PRICE)
    usd_per_image: Decimal | None = attrs.field(default=None, metadata=_IMAGE_PRICE)
    usd_per_second: Decimal | None = attrs.field(default=None, metadata=_SECOND_PRICE)
    usd_per_million_characters: Decimal | None = attrs.field(default=None, metadata=_CHARACTER_PRICE)
    cache_write_usd_per_million: Decimal | None = attrs.field(default=None, metadata=_TOKEN_PRICE)
    cache_write_long_usd_per_million: Decimal | None = attrs.field(default=None, metadata=_TOKEN_PRICE)
    tiers: tuple[TierSpec, ...] = ()
    sizes: tuple[SizeSpec, ...] = ()
    audio_input_usd_per_million: Decimal | None = attrs.field(default=None, metadata=_TOKEN_PRICE)
    cached_audio_input_usd_per_million: Decimal | None = attrs.field(default=None, metadata=_TOKEN_PRICE)
    audio_output_usd_per_million: Decimal | None = attrs.field(default=None, metadata=_TOKEN_PRICE)
    image_input_usd_per_million: Decimal | None = attrs.field(default=None, metadata=_TOKEN_PRICE)
    cached_image_input_usd_per_million: Decimal | None = attrs.field(default=None, metadata=_TOKEN_PRICE)
    image_output_usd_per_million: Decimal | None = attrs.field(default=None, metadata=_TOKEN_PRICE)
    video_input_usd_per_million: Decimal | None = attrs.field(default=None, metadata=_TOKEN_PRICE)
    video_output_usd_per_million: Decimal | None = attrs.field(default=None, metadata=_TOKEN_PRICE)
    reasoning_usd_per_million: Decimal | None = attrs.field(default=None, metadata=_TOKEN_PRICE)
    citation_usd_per_million: Decimal | None = attrs.field(default=None, metadata=_TOKEN_PRICE)
    usd_per_search: Decimal | None = attrs.field(default=None, metadata=_COUNTED_PRICE)
    usd_per_file_search: Decimal | None = attrs.field(default=None, metadata=_COUNTED_PRICE)
    usd_per_call: Decimal | None = attrs.field(default=None, metadata=_COUNTED_PRICE)
    tiers_served: dict[str, Decimal] = attrs.field(factory=dict, metadata=_FACTORS)
    free: bool = False

    def find_problems(self) -> Iterator[tuple[str, str]]:
        """Yield a key and a description for each broken rule that involves more than one value."""
        if len({tier.above_tokens for tier in self.tiers}) < len(self.tiers):
            yield "tiers", "expected tiers with an above_tokens of their own"
        rates = list(self.list_rates())
        if not rates and not self.free:
            yield (
                "free",
                f"expected a rate such as input_usd_per_million, or free = true if {self.model!r} costs nothing",
            )
        elif self.free and any(rates):
            yield "free", "expected free = true or rates above 0, not both"

    def list_rates(self) -> Iterator[Decimal]:
        parts: tuple[attrs.AttrsInstance, ...] = (self, *self.tiers, *self.sizes)
        for spec in parts:
            yield from (rate for rate in attrs.asdict(spec, recurse=False).values() if isinstance(rate, Decimal))

    def price(self) -> Price:
        """Return the price with amounts in nano-USD."""
        price = Price(
            model=self.model,
            provider=self.provider,
            input_nanos_per_million=_find_nanos(self.input_usd_per_million) or 0,
            cached_input_nanos_per_million=_find_nanos(self.cached_input_usd_per_million),
            output_nanos_per_million=_find_nanos(self.output_usd_per_million) or 0,
            image_nanos=_find_nanos(self.usd_per_image) or 0,
            second_nanos=_find_nanos(self.usd_per_second) or 0,
            sizes=tuple((size.size, nanos(size.usd_per_second)) for size in self.sizes),
            character_nanos_per_million=_find_nanos(self.usd_per_million_characters) or 0,
            cache_write_nanos_per_million=_find_nanos(self.cache_write_usd_per_million),
            cache_write_long_nanos_per_million=_find_nanos(self.cache_write_long_usd_per_million),
            audio_input_nanos_per_million=_find_nanos(self.audio_input_usd_per_million),
            cached_audio_input_nanos_per_million=_find_nanos(self.cached_audio_input_usd_per_million),
            audio_output_nanos_per_million=_find_nanos(self.audio_output_usd_per_million),
            image_input_nanos_per_million=_find_nanos(self.image_input_usd_per_million),
            cached_image_input_nanos_per_million=_find_nanos(self.cached_image_input_usd_per_million),
            image_output_nanos_per_million=_find_nanos(self.image_output_usd_per_million),
            video_input_nanos_per_million=_find_nanos(self.video_input_usd_per_million),
            video_output_nanos_per_million=_find_nanos(self.video_output_usd_per_million),
            reasoning_nanos_per_million=_find_nanos(self.reasoning_usd_per_million) or 0,
            citation_nanos_per_million=_find_nanos(self.citation_usd_per_million) or 0,
            search_nanos=_find_nanos(self.usd_per_search) or 0,
            file_search_nanos=_find_nanos(self.usd_per_file_search) or 0,
            call_nanos=_find_nanos(self.usd_per_call) or 0,
            tiers_served=tuple((name.lower(), int(factor * ONE_PPM)) for name, factor in self.tiers_served.items()),
        )
        return attrs.evolve(price, tiers=tuple(tier.tier(price) for tier in self.tiers)) if self.tiers else price


def _find_nanos(usd: Decimal | None) -> int | None:
    return None if usd is None else nanos(usd)


def build_price(price: Price, multiplier_ppm: int = ONE_PPM) -> dict[str, Any]:
    """Return a price, times a multiplier, as JSON for ``PriceSpec``. For a rate of null, a more general one applies."""
    usd = partial(_find_usd, multiplier_ppm)
    rates = _build_amounts(price, usd)
    tiers = [{"above_tokens": tier.above_tokens, **_build_rates(tier, usd)} for tier in price.tiers]
    sizes = [{"size": size, "usd_per_second": usd(amount)} for size, amount in price.sizes]
    is_paid = any(rates.values()) or any(
        any(amounts.values()) for amounts in (*map(_drop_key, tiers), *map(_drop_key, sizes))
    )
    return {
        "model": price.model,
        "provider": price.provider,
        **rates,
        "tiers_served": {name: ppm / ONE_PPM for name, ppm in price.tiers_served},
        "free": not is_paid,
        "tiers": tiers,
        "sizes": sizes,
    }


def _drop_key(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in {"above_tokens", "size"}}


def _build_amounts(price: Price, usd: Callable[[int | None], float | None]) -> dict[str, Any]:
    return {
        **_build_rates(price, usd),
        "usd_per_image": usd(price.image_nanos),
        "usd_per_second": usd(price.second_nanos),
        "usd_per_million_characters": usd(price.character_nanos_per_million),
        "audio_input_usd_per_million": usd(price.audio_input_nanos_per_million),
        "cached_audio_input_usd_per_million": usd(price.cached_audio_input_nanos_per_million),
        "audio_output_usd_per_million": usd(price.audio_output_nanos_per_million),
        "image_input_usd_per_million": usd(price.image_input_nanos_per_million),
        "cached_image_input_usd_per_million": usd(price.cached_image_input_nanos_per_million),
        "image_output_usd_per_million": usd(price.image_output_nanos_per_million),
        "video_input_usd_per_million": usd(price.video_input_nanos_per_million),
        "video_output_usd_per_million": usd(price.video_output_nanos_per_million),
        "reasoning_usd_per_million": usd(price.reasoning_nanos_per_million),
        "citation_usd_per_million": usd(price.citation_nanos_per_million),
        "usd_per_search": usd(price.search_nanos),
        "usd_per_file_search": usd(price.file_search_nanos),
        "usd_per_call": usd(price.call_nanos),
    }


def _build_rates(rates: Price | Tier, usd: Callable[[int | None], float | None]) -> dict[str, Any]:
    return {
        "input_usd_per_million": usd(rates.input_nanos_per_million),
        "cached_input_usd_per_million": usd(rates.cached_input_nanos_per_million),
        "output_usd_per_million": usd(rates.output_nanos_per_million),
        "cache_write_usd_per_million": usd(rates.cache_write_nanos_per_million),
        "cache_write_long_usd_per_million": usd(rates.cache_write_long_nanos_per_million),
    }


def _find_usd(multiplier_ppm: int, amount_nanos: int | None) -> float | None:
    return None if amount_nanos is None else amount_nanos * multiplier_ppm / (ONE_PPM * NANOS_PER_USD)
