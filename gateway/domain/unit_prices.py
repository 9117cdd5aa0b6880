"""The price of one unit of each thing that a model bills, as exact decimal numbers.

The names are those of OpenRouter's list of models (openrouter.ai/docs, "Pricing Object"; ``PublicPricing`` of
OpenRouterTeam/python-sdk), where it has one: ``prompt`` and ``completion`` are tokens.
"""

from collections.abc import Iterable, Mapping
from decimal import Decimal, localcontext
from typing import Any

from gateway.domain.price import NANOS_PER_USD, ONE_PPM, Price, Tier

UnitPrices = Mapping[str, Decimal]
"""US dollars for each unit."""

_PER_TOKEN = {
    "prompt": "input_nanos_per_million",
    "completion": "output_nanos_per_million",
    "input_cache_read": "cached_input_nanos_per_million",
    "input_cache_write": "cache_write_nanos_per_million",
    "input_cache_write_1h": "cache_write_long_nanos_per_million",
}
_OTHER_TOKENS = {
    "internal_reasoning": "reasoning_nanos_per_million",
    "citation": "citation_nanos_per_million",
    "audio": "audio_input_nanos_per_million",
    "input_audio_cache": "cached_audio_input_nanos_per_million",
    "audio_output": "audio_output_nanos_per_million",
    "image_token": "image_input_nanos_per_million",
    "input_image_cache": "cached_image_input_nanos_per_million",
    "image_output_token": "image_output_nanos_per_million",
    "video": "video_input_nanos_per_million",
    "video_output": "video_output_nanos_per_million",
    "character": "character_nanos_per_million",
}
_FIELDS_PER_UNIT = {
    "image_output": "image_nanos",
    "second": "second_nanos",
    "request": "call_nanos",
    "web_search": "search_nanos",
    "file_search": "file_search_nanos",
}
_ALWAYS_LISTED_UNITS = frozenset({"prompt", "completion"})
_FALLBACK_UNITS = {
    "input_cache_read": "prompt",
    "input_cache_write": "prompt",
    "input_cache_write_1h": "input_cache_write",
    "audio": "prompt",
    "input_audio_cache": "audio",
    "audio_output": "completion",
    "image_token": "prompt",
    "input_image_cache": "image_token",
    "image_output_token": "completion",
    "video": "prompt",
    "video_output": "completion",
}
"""The unit whose price applies to a unit without one; every other unit costs nothing then."""
_MILLION = 1_000_000
_DIGITS = 60
"""More than an amount of nano-dollars, a million and two multipliers need: no price is rounded."""


def list_unit_prices(price: Price | Tier, multiplier_ppm: int = ONE_PPM) -> dict[str, Decimal]:
    """Return the USD for each unit that has a price, times the multiplier; ``prompt`` and ``completion`` always."""
    with localcontext(prec=_DIGITS):
        per_unit = Decimal(multiplier_ppm) / ONE_PPM / NANOS_PER_USD
        per_token = per_unit / _MILLION
        prices = _multiply(price, _PER_TOKEN, per_token)
        if isinstance(price, Price):
            prices |= _multiply(price, _OTHER_TOKENS, per_token) | _multiply(price, _FIELDS_PER_UNIT, per_unit)
        return prices


def _multiply(price: Price | Tier, fields: Mapping[str, str], factor: Decimal) -> dict[str, Decimal]:
    amounts = ((unit, getattr(price, field)) for unit, field in fields.items())
    # A rate of 0 for cached tokens says something, where 0 by default does not.
    return {
        unit: amount * factor
        for unit, amount in amounts
        if amount or unit in _ALWAYS_LISTED_UNITS or (amount is not None and unit in _FALLBACK_UNITS)
    }


def find_highest_prices(prices: Iterable[tuple[Price, int]]) -> dict[str, Decimal]:
    """Return the most that each unit costs at any of ``prices``, each with its multiplier in parts per million.

    Higher tiers and the prices of sizes count, too.
    """
    lists = [unit_prices for price, ppm in prices for unit_prices in _list_cases(price, ppm)]
    units = dict.fromkeys(unit for unit_prices in lists for unit in unit_prices)
    return {unit: max(_find_price(unit_prices, unit) for unit_prices in lists) for unit in units}


def _list_cases(price: Price, multiplier_ppm: int) -> Iterable[dict[str, Decimal]]:
    base = list_unit_prices(price, multiplier_ppm)
    seconds = [nanos for _, nanos in price.sizes]
    if seconds:
        with localcontext(prec=_DIGITS):
            highest = Decimal(max(*seconds, price.second_nanos)) * multiplier_ppm / ONE_PPM / NANOS_PER_USD
        base["second"] = highest
    yield base
    for tier in price.tiers:
        yield base | list_unit_prices(tier, multiplier_ppm)


def _find_price(prices: UnitPrices, unit: str) -> Decimal:
    if unit in prices:
        return prices[unit]
    return _find_price(prices, _FALLBACK_UNITS[unit]) if unit in _FALLBACK_UNITS else Decimal(0)


def build_prices(prices: UnitPrices) -> dict[str, str]:
    """Return prices as plain decimal numbers in text: ``0.00000025``."""
    return {unit: format_decimal(amount) for unit, amount in prices.items()}


def format_decimal(amount: Decimal) -> str:
    """Format a number without an exponent and without trailing zeros."""
    text = f"{amount:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def build_pricing(price: Price, multiplier_ppm: int) -> dict[str, Any]:
    """Return a price as JSON: unit prices, and what changes with prompt, size or service tier.

    ``tiers`` replace the prices of tokens for prompts of more than ``above_prompt_tokens``, highest first.
    """
    pricing: dict[str, Any] = dict(build_prices(list_unit_prices(price, multiplier_ppm)))
    if price.tiers:
        pricing["tiers"] = [
            {"above_prompt_tokens": tier.above_tokens, **build_prices(list_unit_prices(tier, multiplier_ppm))}
            for tier in price.tiers
        ]
    if price.sizes:
        with localcontext(prec=_DIGITS):
            factor = Decimal(multiplier_ppm) / ONE_PPM / NANOS_PER_USD
            pricing["second_by_size"] = {size: format_decimal(nanos * factor) for size, nanos in price.sizes}
    if price.tiers_served:
        pricing["service_tiers"] = {name: format_decimal(Decimal(ppm) / ONE_PPM) for name, ppm in price.tiers_served}
    return pricing
