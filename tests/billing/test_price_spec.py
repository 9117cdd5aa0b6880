"""Prices as people write them, and as JSON shows them."""

from decimal import Decimal
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.billing.price_spec import PriceSpec, build_price
from gateway.domain.price import ONE_PPM, Price
from gateway.parsing import ValidationErrors, parse_table
from tests.support.table_rows import table_rows

AMOUNTS = st.decimals(0, 10, places=4).map(float)
RATES = ("cached_input", "output", "cache_write", "cache_write_long")
TABLES = st.fixed_dictionaries(
    {"model": st.sampled_from(["m", "gpt-*", "org/m:1"]), "input_usd_per_million": AMOUNTS},
    optional={
        "provider": st.sampled_from(["openai", "x-y"]),
        **{f"{rate}_usd_per_million": AMOUNTS for rate in RATES},
        **{
            f"{rate}_usd_per_million": AMOUNTS
            for rate in ("audio_input", "cached_image_input", "video_output", "citation")
        },
        "usd_per_image": AMOUNTS,
        "usd_per_search": AMOUNTS,
        "usd_per_call": AMOUNTS,
        "tiers_served": st.dictionaries(st.sampled_from(["flex", "priority"]), AMOUNTS),
        "usd_per_second": AMOUNTS,
        "usd_per_million_characters": AMOUNTS,
        "tiers": st.lists(
            st.fixed_dictionaries(
                {"above_tokens": st.integers(1, 9)}, optional={f"{rate}_usd_per_million": AMOUNTS for rate in RATES}
            ),
            max_size=3,
            unique_by=lambda tier: tier["above_tokens"],
        ),
        "sizes": st.lists(
            st.fixed_dictionaries({"size": st.sampled_from(["*x1080", "640x360"]), "usd_per_second": AMOUNTS}),
            max_size=2,
        ),
    },
)


@given(TABLES)
def test_what_is_shown_of_a_price_can_be_read_back(table: dict[str, Any]) -> None:
    price = parse_table(table, PriceSpec).price()
    assert parse_table(build_price(price), PriceSpec).price() == price


def test_a_price_is_shown_with_every_unit() -> None:
    """So that one which is added to prices is one that people see."""
    names = set(build_price(Price("m")))
    assert names == {field.name for field in attrs.fields(PriceSpec)}


def test_a_multiplier_is_in_every_amount() -> None:
    tiers = [{"above_tokens": 5, "output_usd_per_million": 4}]
    sizes = [{"size": "*", "usd_per_second": Decimal("0.5")}]
    table = {"model": "m", "input_usd_per_million": 3, "usd_per_image": Decimal("0.04"), "tiers": tiers, "sizes": sizes}
    shown = build_price(parse_table(table, PriceSpec).price(), ONE_PPM // 2)
    assert (shown["input_usd_per_million"], shown["cached_input_usd_per_million"], shown["usd_per_image"]) == (
        1.5,
        None,
        0.02,
    )
    assert [(tier["input_usd_per_million"], tier["output_usd_per_million"]) for tier in shown["tiers"]] == [(1.5, 2)]
    assert shown["sizes"] == [{"size": "*", "usd_per_second": 0.25}]


@table_rows("model", ["", "a\nb", "m" * 257, 5])
def test_a_price_is_of_a_model_that_can_be_asked_for(model: object) -> None:
    with pytest.raises(ValidationErrors) as caught:
        parse_table({"model": model, "free": True}, PriceSpec)
    assert [where for where, _ in caught.value.problems] == ["model"]


@table_rows(
    ("fields", "problem"),
    [
        ({}, "expected a rate"),
        ({"provider": "openai"}, "expected a rate"),
        ({"tiers": [{"above_tokens": 5}]}, "expected a rate"),
        ({"tiers_served": {"flex": 0.5}}, "expected a rate"),
        ({"free": False}, "expected a rate"),
        ({"free": True, "output_usd_per_million": 1}, "not both"),
        ({"free": True, "sizes": [{"size": "*", "usd_per_second": 1}]}, "not both"),
    ],
    ids=repr,
)
def test_a_price_has_a_rate_or_says_that_it_is_free(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationErrors) as caught:
        parse_table({"model": "gpt-5-mini", **fields}, PriceSpec)
    ((where, what),) = caught.value.problems
    assert where == "free"
    assert problem in what


@table_rows(
    "fields",
    [
        {"free": True},
        {"free": True, "input_usd_per_million": 0},
        {"input_usd_per_million": 0},
        {"usd_per_search": 0.002},
        {"usd_per_call": 1},
        {"audio_output_usd_per_million": 0.1},
        {"tiers": [{"above_tokens": 5, "output_usd_per_million": 1}]},
    ],
    ids=repr,
)
def test_a_rate_of_zero_or_free_is_meant(fields: dict[str, Any]) -> None:
    price = parse_table({"model": "m", **fields}, PriceSpec).price()
    assert build_price(price)["free"] is not any(value for name, value in fields.items() if name != "free" and value)


@table_rows("factors", [{"flex": 11}, {"flex": -1}, {"": 1}, {"flex": "1"}, ["flex"], {"x" * 33: 1}])
def test_a_factor_of_a_service_tier_is_a_number(factors: object) -> None:
    with pytest.raises(ValidationErrors) as caught:
        parse_table({"model": "m", "input_usd_per_million": 1, "tiers_served": factors}, PriceSpec)
    assert [where for where, _ in caught.value.problems] == ["tiers_served"]
