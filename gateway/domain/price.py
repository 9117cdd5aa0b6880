"""Prices in integers, and the one function from price and usage to cost.

Amounts are nano-USD. A price of one dollar per million tokens is 1,000 nano-USD a token; prices are kept per
million tokens so that a tenth of a cent per million is still an integer.
"""

from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal
from fnmatch import fnmatchcase

import attrs

from gateway.domain.usage import Usage

NANOS_PER_USD = 1_000_000_000
_PER_MILLION = 1_000_000
ONE_PPM = 1_000_000
"""A multiplier of one, in parts per million."""


@attrs.frozen
class Price:
    """What a model costs, in nano-USD per million tokens, per image and per second."""

    model: str
    input_nanos_per_million: int = 0
    cached_input_nanos_per_million: int | None = None
    output_nanos_per_million: int = 0
    image_nanos: int = 0
    second_nanos: int = 0


def nanos(usd: Decimal) -> int:
    """Dollars -> nano-USD, rounded up so that no amount is lost."""
    return int((usd * NANOS_PER_USD).to_integral_value(rounding=ROUND_CEILING))


def usd(amount_nanos: int) -> str:
    """Nano-USD -> dollars as a plain decimal string, without trailing zeros: ``0.000125``."""
    text = f"{Decimal(amount_nanos) / NANOS_PER_USD:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def cost_nanos(price: Price | None, usage: Usage, multiplier_ppm: int = ONE_PPM) -> int:
    """What ``usage`` costs at ``price``, in nano-USD, rounded up once at the end. No price: 0."""
    if price is None:
        return 0
    cached_rate = price.cached_input_nanos_per_million
    if cached_rate is None:
        cached_rate = price.input_nanos_per_million
    fresh = usage.prompt_tokens - usage.cached_tokens
    per_million = (
        fresh * price.input_nanos_per_million
        + usage.cached_tokens * cached_rate
        + usage.completion_tokens * price.output_nanos_per_million
    )
    return -(-per_million * multiplier_ppm // (_PER_MILLION * ONE_PPM))


class PriceList:
    """Prices by model: an exact name first, then the longest glob that matches."""

    def __init__(self, prices: Mapping[str, Price]) -> None:
        self._exact = {name: price for name, price in prices.items() if not _is_glob(name)}
        self._globs = sorted(
            ((name, price) for name, price in prices.items() if _is_glob(name)),
            key=lambda item: -len(item[0]),
        )

    def find(self, model: str) -> Price | None:
        """The price of ``model``, or None where the list has none."""
        exact = self._exact.get(model)
        if exact is not None:
            return exact
        return next((price for name, price in self._globs if fnmatchcase(model, name)), None)


def _is_glob(name: str) -> bool:
    return any(mark in name for mark in "*?[")
