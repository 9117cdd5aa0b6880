"""What the cost of a request is made of."""

from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st

from gateway.billing.cost_breakdown import BillLine, list_lines
from gateway.domain.charged_units import build_units, parse_charged_usage
from gateway.domain.price import NANOS_PER_USD, ONE_PPM, Price, Tier, compute_cost_nanos
from gateway.domain.request_log import RequestRecord
from gateway.domain.usage import Usage, UsageDetails, attach_details
from tests.support.request_records import make_row
from tests.support.table_rows import table_rows

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


def charged(price: Price | None, usage: Usage, multiplier_ppm: int = ONE_PPM, **values: Any) -> RequestRecord:
    """A row of what was used, charged at that price."""
    columns = {
        name: getattr(usage, name)
        for name in ("prompt_tokens", "completion_tokens", "cached_tokens", "images", "duration_ms", "characters")
    }
    cost = compute_cost_nanos(price, usage, multiplier_ppm)
    return make_row(1, **{"units": build_units(usage), "cost_nanos": cost, **columns, **values})


def shown(row: RequestRecord, *prices: Price, multiplier_ppm: int = ONE_PPM) -> dict[str, tuple[float, float | None]]:
    """The amount and the price of each line, none of which is an estimate."""
    lines = list_lines(row, prices, multiplier_ppm)
    assert not any(line.estimated for line in lines)
    assert sum(line.cost_nanos for line in lines) == row.cost_nanos
    return {line.what: (line.quantity, line.unit_usd) for line in lines}


FULL = attrs.evolve(
    PRICE,
    cache_write_nanos_per_million=4 * NANOS_PER_USD,
    cache_write_long_nanos_per_million=6 * NANOS_PER_USD,
    audio_input_nanos_per_million=32 * NANOS_PER_USD,
    image_output_nanos_per_million=60 * NANOS_PER_USD,
    search_nanos=NANOS_PER_USD // 100,
    file_search_nanos=NANOS_PER_USD // 400,
    call_nanos=NANOS_PER_USD // 200,
    citation_nanos_per_million=2 * NANOS_PER_USD,
    tiers_served=(("flex", ONE_PPM // 2),),
)


@table_rows(
    ("usage", "lines"),
    [
        (
            Usage(100_000, 10_000, 40_000),
            {"input_tokens": (60_000, 3), "cached_input_tokens": (40_000, 1), "output_tokens": (10_000, 15)},
        ),
        (
            Usage(images=2, duration_ms=3_500, characters=500_000),
            {"images": (2, 0.04), "seconds": (3.5, 0.1), "characters": (500_000, 30)},
        ),
        (Usage(200_001, 1, 1), {"input_tokens": (200_000, 6), "cached_input_tokens": (1, 6), "output_tokens": (1, 22)}),
        (
            Usage(100, written_tokens=70, written_long_tokens=30),
            {"input_tokens": (30, 3), "cache_write_tokens": (40, 4), "cache_write_long_tokens": (30, 6)},
        ),
        (
            Usage(1_928, 1_920, details=UsageDetails(audio_input=1_920, image_output=1_120, tier="flex")),
            {
                "input_tokens": (8, 1.5),
                "audio_input_tokens": (1_920, 16),
                "output_tokens": (800, 7.5),
                "image_output_tokens": (1_120, 30),
            },
        ),
        (
            Usage(details=UsageDetails(searches=2, file_searches=1, citations=5, calls=3)),
            {"searches": (2, 0.01), "file_searches": (1, 0.0025), "citation_tokens": (5, 2), "calls": (3, 0.005)},
        ),
    ],
)
def test_a_row_has_a_line_for_each_kind_of_unit(usage: Usage, lines: dict[str, tuple[float, float]]) -> None:
    found = shown(charged(FULL, usage), FULL)
    if "calls" not in lines:
        assert found.pop("calls") == (1, 0.005)
    assert found == lines


def test_a_multiplier_is_in_every_price() -> None:
    row = charged(PRICE, Usage(1_000_000, images=1), 1_250_000)
    assert shown(row, PRICE, multiplier_ppm=1_250_000) == {
        "input_tokens": (1_000_000, 7.5),  # as a long prompt
        "images": (1, 0.05),
    }


def test_the_lines_are_those_of_the_model_that_was_charged() -> None:
    dearer = attrs.evolve(PRICE, output_nanos_per_million=120 * NANOS_PER_USD)
    row = charged(dearer, Usage(10, 10), served_model="m-large")
    assert shown(row, PRICE, dearer)["output_tokens"] == (10, 120)


def test_a_figure_of_the_provider_is_one_line() -> None:
    usage = Usage(10, 10, details=UsageDetails(cost_nanos=4_200_000))
    row = charged(PRICE, usage, cost_nanos=8_400_000)
    assert list_lines(row, [PRICE], 2 * ONE_PPM) == [
        BillLine("reported_cost", 1, 1, None, 0.0084, cost_nanos=8_400_000)
    ]
    assert "output_tokens" in shown(charged(PRICE, usage), PRICE)  # an operator's price goes first


def test_at_other_prices_than_were_charged_every_line_says_so() -> None:
    row = charged(PRICE, Usage(10, 10))
    assert {line.estimated for line in list_lines(row, [attrs.evolve(PRICE, output_nanos_per_million=1)])} == {True}
    assert {line.estimated for line in list_lines(attrs.evolve(row, cost_nanos=0), [PRICE])} == {True}


def test_without_a_price_there_is_the_whole_cost_or_nothing() -> None:
    assert list_lines(charged(PRICE, Usage(10)), []) == [BillLine("request", 1, 1, None, 0.00003, cost_nanos=30_000)]
    assert list_lines(charged(None, Usage(10)), []) == []


def test_where_nothing_was_used_there_is_no_line() -> None:
    assert list_lines(charged(FULL, Usage()), [FULL]) == []


COUNTS = st.integers(0, 10**6)
RATES = st.integers(0, 10**9)
_COUNTED = [field.name for field in attrs.fields(UsageDetails) if field.type is int]
_RATED = [field.name for field in attrs.fields(Price) if "nanos" in field.name]
RARE = st.fixed_dictionaries({}, optional=dict.fromkeys(_COUNTED, COUNTS) | {"tier": st.just("flex")})
USAGES = st.builds(
    attach_details,
    st.builds(
        Usage,
        *(COUNTS, COUNTS, COUNTS),
        images=st.integers(0, 1_000),
        duration_ms=COUNTS,
        written_tokens=COUNTS,
        written_long_tokens=COUNTS,
        characters=COUNTS,
        size=st.sampled_from(["", "1280x720"]),
    ),
    RARE,
)
PRICES = st.builds(
    Price,
    st.just("m"),
    tiers_served=st.just((("flex", 333_333),)),
    tiers=st.sampled_from([(), PRICE.tiers]),
    sizes=st.sampled_from([(), (("1280*", 7),)]),
    **dict.fromkeys(_RATED, RATES),
)


@given(PRICES, USAGES, st.sampled_from([ONE_PPM, 0, 333_333, 2 * ONE_PPM]))
def test_lines_add_up_to_the_charge_exactly(price: Price, usage: Usage, multiplier_ppm: int) -> None:
    row = charged(price, usage, multiplier_ppm)
    kept = parse_charged_usage(row)
    assert attrs.evolve(kept, details=kept.details or UsageDetails()) == attrs.evolve(
        usage, details=usage.details or UsageDetails()
    )
    lines = list_lines(row, [price], multiplier_ppm)
    assert not any(line.estimated for line in lines)
    assert sum(line.cost_nanos for line in lines) == row.cost_nanos
    assert all(line.cost_nanos >= 0 for line in lines)
