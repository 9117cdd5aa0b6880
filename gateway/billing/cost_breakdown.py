"""The cost of a request, split into lines.

A row has its charge, the charged units and the model that answered, but no prices. So the lines use the current prices.
If these add up to the charge, the lines are exact; otherwise they are marked as estimates.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import ceil

from gateway.answer_fields import Count
from gateway.domain.charged_units import parse_charged_usage
from gateway.domain.price import (
    NANOS_PER_USD,
    ONE_PPM,
    Price,
    Tier,
    compute_cost_nanos,
    list_shares,
    multiply_ppm,
    split_prompt,
)
from gateway.domain.request_log import RequestRecord
from gateway.domain.usage import NO_USAGE_DETAILS, Usage
from gateway.frozen import frozen

_MILLION = 1_000_000
_Part = tuple[str, int | Fraction, int, int | Fraction]
"""A kind of usage, its quantity, the number of units that a price is for, and that price in nano-USD."""


@frozen
class BillLine:
    """One line of the breakdown of a request's cost.

    Attributes:
        what: ``input_tokens``, ``cached_input_tokens``, ``cache_write_tokens``, ``output_tokens``, the tokens of a
            modality (``audio_input_tokens``), ``searches``, ``images``, ``seconds`` and so on; ``reported_cost`` if the
            provider's own figure was charged; ``cached_answer`` for one from the gateway's cache; ``request`` if only
            the whole cost is known.
        unit_usd: the price of ``per`` units; None if unknown.
        estimated: the prices are not those that were charged.
        cost_nanos: the cost. Unless the lines are ``estimated``, they add up to the charge of the request.
    """

    what: str
    quantity: float
    per: Count
    unit_usd: float | None
    cost_usd: float
    estimated: bool = False
    cost_nanos: Count = 0


def list_lines(row: RequestRecord, prices: Sequence[Price], multiplier_ppm: int = ONE_PPM) -> list[BillLine]:
    """Return the lines of a request. ``prices`` are those of the requested model and of the model that answered."""
    if row.cache in {"hit", "joined"}:
        return [_build_total_line("cached_answer", row.cost_nanos)] if row.cost_nanos else []
    usage = parse_charged_usage(row)
    price = next(
        (candidate for candidate in prices if compute_cost_nanos(candidate, usage, multiplier_ppm) == row.cost_nanos),
        None,
    )
    if price is not None:
        return _build_lines(price, usage, multiplier_ppm, charged_nanos=row.cost_nanos)
    reported_nanos = usage.details.cost_nanos if usage.details is not None else None
    if reported_nanos is not None and multiply_ppm(reported_nanos, multiplier_ppm) == row.cost_nanos:
        return [_build_total_line("reported_cost", row.cost_nanos)]
    if prices:
        return _build_lines(prices[0], usage, multiplier_ppm)
    return [_build_total_line("request", row.cost_nanos)] if row.cost_nanos else []


def _build_total_line(kind: str, nanos: int) -> BillLine:
    return BillLine(kind, 1, 1, None, nanos / NANOS_PER_USD, cost_nanos=nanos)


def _build_lines(price: Price, usage: Usage, multiplier_ppm: int, charged_nanos: int | None = None) -> list[BillLine]:
    """Build the lines at a price. The running sum is rounded up at each line.

    The total is ``charged_nanos``; None makes the lines estimates.
    """
    parts = [part for part in _list_parts(price, usage) if part[1]]
    factor, total, former_nanos, lines = Fraction(multiplier_ppm, ONE_PPM), Fraction(0), 0, []
    for number, (kind, quantity, per, nanos) in enumerate(parts, 1):
        total += quantity * factor * nanos / per
        total_nanos = ceil(total) if charged_nanos is None or number < len(parts) else charged_nanos
        unit_usd = float(nanos * factor / NANOS_PER_USD)
        cost = total_nanos - former_nanos
        shown_quantity = int(quantity) if quantity == int(quantity) else float(quantity)
        lines.append(BillLine(kind, shown_quantity, per, unit_usd, cost / NANOS_PER_USD, charged_nanos is None, cost))
        former_nanos = total_nanos
    return lines


def _list_parts(price: Price, usage: Usage) -> Iterator[_Part]:
    rates = price.find_tier(usage.prompt_tokens) or price
    details = usage.details or NO_USAGE_DETAILS
    factor = Fraction(price.find_factor(details.tier) if details.tier else ONE_PPM, ONE_PPM)
    for kind, tokens, nanos in _list_tokens(price, rates, usage):
        yield kind, tokens, _MILLION, nanos * factor
    yield "reasoning_tokens", details.reasoning, _MILLION, price.reasoning_nanos_per_million
    yield "citation_tokens", details.citations, _MILLION, price.citation_nanos_per_million
    yield "searches", details.searches, 1, price.search_nanos
    yield "file_searches", details.file_searches, 1, price.file_search_nanos
    yield "images", usage.images, 1, price.image_nanos
    yield "seconds", Fraction(usage.duration_ms, 1_000), 1, price.find_second_nanos(usage.size)
    yield "characters", usage.characters, _MILLION, price.character_nanos_per_million
    yield "calls", details.calls if price.call_nanos and usage.used else 0, 1, price.call_nanos


def _list_tokens(price: Price, rates: Price | Tier, usage: Usage) -> Iterator[tuple[str, int, int]]:
    """Yield the tokens of the prompt and of the answer, each kind with its price in nano-USD per million."""
    text, rate = split_prompt(usage), rates.input_nanos_per_million
    fresh, cached, made, shares = text.fresh, text.cached, usage.completion_tokens, []
    if price.modal and usage.details is not None:
        shares = list(list_shares(price, rates, usage, usage.details))
    for share in shares:
        fresh, cached, made = fresh - share.fresh, cached - share.cached, made - share.output
    write = rates.cache_write_nanos_per_million
    write_rate = rate if write is None else write
    kept_long = rates.cache_write_long_nanos_per_million
    cached_rate = rates.cached_input_nanos_per_million
    yield "input_tokens", fresh, rate
    yield "cached_input_tokens", cached, rate if cached_rate is None else cached_rate
    yield "cache_write_tokens", text.written, write_rate
    yield "cache_write_long_tokens", text.written_long, write_rate if kept_long is None else kept_long
    for share in shares:
        yield f"{share.name}_input_tokens", share.fresh, share.rates.fresh
        yield f"cached_{share.name}_input_tokens", share.cached, share.rates.cached
    yield "output_tokens", made, rates.output_nanos_per_million
    for share in shares:
        yield f"{share.name}_output_tokens", share.output, share.rates.output
