"""What the cost of a request is made of."""

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.billing.cost_breakdown import BillLine, list_lines
from gateway.domain.price import NANOS_PER_USD, ONE_PPM, Price, Tier, cost_nanos
from gateway.domain.request_log import RequestRecord
from gateway.domain.usage import Usage
from tests.support.request_records import make_row

NOTHING: dict[str, Any] = dict.fromkeys(
    ("prompt_tokens", "completion_tokens", "cached_tokens", "images", "duration_ms", "characters", "cost_nanos"), 0
)
PRICE = Price(
    "m",
    input_nanos_per_million=3 * NANOS_PER_USD,
    cached_input_nanos_per_million=NANOS_PER_USD,
    output_nanos_per_million=15 * NANOS_PER_USD,
    image_nanos=NANOS_PER_USD // 25,
    second_nanos=NANOS_PER_USD // 10,
    character_nanos_per_million=30 * NANOS_PER_USD,
    tiers=(Tier(200_000, input_nanos_per_million=6 * NANOS_PER_USD, output_nanos_per_million=22 * NANOS_PER_USD),),
)


def used(price: Price | None = PRICE, multiplier_ppm: int = ONE_PPM, **values: Any) -> RequestRecord:
    """A row of what was used, charged at that price."""
    row = make_row(1, **NOTHING | values)
    usage = Usage(
        row.prompt_tokens, row.completion_tokens, row.cached_tokens,
        images=row.images, duration_ms=row.duration_ms, characters=row.characters,
    )  # fmt: skip
    return attrs.evolve(row, cost_nanos=cost_nanos(price, usage, multiplier_ppm))


def test_a_call_is_billed_by_what_went_in_from_the_cache_and_out() -> None:
    row = used(prompt_tokens=100_000, cached_tokens=40_000, completion_tokens=10_000)
    assert list_lines(row, PRICE) == [
        BillLine("input_tokens", 60_000, 1_000_000, 3.0, pytest.approx(0.18)),
        BillLine("cached_input_tokens", 40_000, 1_000_000, 1.0, pytest.approx(0.04)),
        BillLine("output_tokens", 10_000, 1_000_000, 15.0, pytest.approx(0.15)),
    ]


def test_what_is_made_and_heard_and_spoken_is_billed() -> None:
    row = used(images=2, duration_ms=3_500, characters=500_000)
    assert list_lines(row, PRICE) == [
        BillLine("images", 2, 1, 0.04, pytest.approx(0.08)),
        BillLine("seconds", 3.5, 1, 0.1, pytest.approx(0.35)),
        BillLine("characters", 500_000, 1_000_000, 30.0, pytest.approx(15)),
    ]


def test_a_long_prompt_is_billed_by_its_tier() -> None:
    row = used(prompt_tokens=200_001, cached_tokens=1, completion_tokens=1)
    lines = {line.what: line.unit_usd for line in list_lines(row, PRICE)}
    assert lines == {"input_tokens": 6.0, "cached_input_tokens": 6.0, "output_tokens": 22.0}
    assert not any(line.estimated for line in list_lines(row, PRICE))


def test_a_multiplier_is_in_every_price() -> None:
    row = used(multiplier_ppm=1_250_000, images=1, prompt_tokens=1_000_000)
    assert [(line.unit_usd, line.cost_usd, line.estimated) for line in list_lines(row, PRICE, 1_250_000)] == [
        (pytest.approx(7.5), pytest.approx(7.5), False),  # as a long prompt
        (pytest.approx(0.05), pytest.approx(0.05), False),
    ]


def test_at_other_prices_than_were_charged_every_line_says_so() -> None:
    row = used(prompt_tokens=10, completion_tokens=10)
    assert {line.estimated for line in list_lines(row, attrs.evolve(PRICE, output_nanos_per_million=1))} == {True}
    assert {line.estimated for line in list_lines(attrs.evolve(row, cost_nanos=0), PRICE)} == {True}


def test_without_a_price_there_is_the_whole_cost_or_nothing() -> None:
    assert list_lines(used(prompt_tokens=10), None) == [BillLine("request", 1, 1, None, pytest.approx(0.00003))]
    assert list_lines(used(None, prompt_tokens=10), None) == []


def test_where_nothing_was_used_there_is_no_line() -> None:
    assert list_lines(used(), PRICE) == []


COUNTS = st.integers(0, 10**8)
USED = st.fixed_dictionaries(
    {
        "prompt_tokens": COUNTS,
        "completion_tokens": COUNTS,
        "cached_tokens": COUNTS,
        "images": st.integers(0, 1_000),
        "characters": COUNTS,
    },
)


@given(USED, st.sampled_from([ONE_PPM, 0, 333_333, 2 * ONE_PPM]))
def test_lines_that_are_not_estimated_come_to_what_was_charged(values: dict[str, int], multiplier_ppm: int) -> None:
    row = used(PRICE, multiplier_ppm, **values)
    lines = list_lines(row, PRICE, multiplier_ppm)
    assert not any(line.estimated for line in lines)
    assert sum(line.cost_usd for line in lines) == pytest.approx(row.cost_nanos / NANOS_PER_USD, abs=1e-8, rel=1e-9)
