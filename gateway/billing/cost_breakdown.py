"""The lines of a request's cost.

A row has usage and cost, and no prices. So the lines use the present prices: they are exact if their sum is the cost,
and marked as estimates if it is not.
"""

from collections.abc import Iterator

import attrs

from gateway.domain.price import NANOS_PER_USD, ONE_PPM, Price, cost_nanos
from gateway.domain.request_log import RequestRecord
from gateway.domain.usage import Usage

_MILLION = 1_000_000


@attrs.frozen
class BillLine:
    """One line.

    Attributes:
        what: ``input_tokens``, ``cached_input_tokens``, ``output_tokens``, ``images``, ``seconds``, ``characters``; or
            ``request`` if only the whole cost is known.
        per: the number of units that ``unit_usd`` is for.
        unit_usd: the price of that many; None if unknown.
        estimated: the prices are not those that were charged.
    """

    what: str
    quantity: float
    per: int
    unit_usd: float | None
    cost_usd: float
    estimated: bool = False


def list_lines(row: RequestRecord, price: Price | None, multiplier_ppm: int = ONE_PPM) -> list[BillLine]:
    """Return the lines of a request at a price and a multiplier; none without usage.

    ``input_tokens`` do not include ``cached_tokens`` here.
    """
    if price is None:
        usd = row.cost_nanos / NANOS_PER_USD
        return [BillLine("request", 1, 1, None, usd)] if row.cost_nanos else []
    estimated = cost_nanos(price, _parse_usage(row), multiplier_ppm) != row.cost_nanos
    return [
        _build_line(what, quantity, per, nanos * multiplier_ppm / ONE_PPM, estimated=estimated)
        for what, quantity, per, nanos in _list_parts(row, price)
        if quantity
    ]


def _parse_usage(row: RequestRecord) -> Usage:
    return Usage(
        row.prompt_tokens,
        row.completion_tokens,
        row.cached_tokens,
        images=row.images,
        duration_ms=row.duration_ms,
        characters=row.characters,
    )


def _list_parts(row: RequestRecord, price: Price) -> Iterator[tuple[str, float, int, int]]:
    """Yield each kind of usage, its amount, and the price in nano-USD of how many units."""
    rates = price.find_tier(row.prompt_tokens) or price
    cached, rate = min(row.cached_tokens, row.prompt_tokens), rates.cached_input_nanos_per_million
    yield "input_tokens", row.prompt_tokens - cached, _MILLION, rates.input_nanos_per_million
    yield "cached_input_tokens", cached, _MILLION, rates.input_nanos_per_million if rate is None else rate
    yield "output_tokens", row.completion_tokens, _MILLION, rates.output_nanos_per_million
    yield "images", row.images, 1, price.image_nanos
    yield "seconds", row.duration_ms / 1_000, 1, price.second_nanos
    yield "characters", row.characters, _MILLION, price.character_nanos_per_million


def _build_line(what: str, quantity: float, per: int, nanos: float, *, estimated: bool) -> BillLine:
    unit_usd = nanos / NANOS_PER_USD
    return BillLine(what, quantity, per, unit_usd, quantity / per * unit_usd, estimated)
