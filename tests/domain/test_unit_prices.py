"""Prices of single units: exact, and the same that requests are charged."""

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.price import NANOS_PER_USD, ONE_PPM, Price, Tier, compute_cost_nanos
from gateway.domain.unit_prices import build_prices, build_pricing, find_highest_prices, list_unit_prices
from gateway.domain.usage import Usage

RATES = st.integers(0, 10**15)
CACHED = st.none() | RATES
PPM = st.integers(0, 10 * ONE_PPM)


@given(st.builds(Price, st.just("m"), RATES, CACHED, RATES), PPM, st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_request_costs_its_units_rounded_up_once(price: Price, ppm: int, prompt: int, completion: int) -> None:
    unit_prices = list_unit_prices(price, ppm)
    usage = Usage(prompt, completion, cached_tokens=prompt // 2)
    cached_price = unit_prices.get("input_cache_read", unit_prices["prompt"])
    usd = (
        (prompt - prompt // 2) * unit_prices["prompt"]
        + prompt // 2 * cached_price
        + completion * unit_prices["completion"]
    )
    assert compute_cost_nanos(price, usage, ppm) - 1 < usd * NANOS_PER_USD <= compute_cost_nanos(price, usage, ppm)


def test_prices_are_plain_decimal_numbers() -> None:
    price = Price("m", 250_000_000, 25_000_000, 2_000_000_000, call_nanos=1, search_nanos=10_000_000)
    assert build_prices(list_unit_prices(price)) == {
        "prompt": "0.00000025",
        "completion": "0.000002",
        "input_cache_read": "0.000000025",
        "request": "0.000000001",
        "web_search": "0.01",
    }
    assert build_prices(list_unit_prices(Price("m"))) == {"prompt": "0", "completion": "0"}
    assert build_prices(list_unit_prices(Price("m", 1), 1)) == {"prompt": "0.000000000000000000001", "completion": "0"}


def test_a_cached_token_may_be_free() -> None:
    assert build_prices(list_unit_prices(Price("m", 1_000_000_000, 0)))["input_cache_read"] == "0"


def test_media_are_priced_by_the_piece_the_second_and_the_character() -> None:
    film = Price("m", second_nanos=100_000_000, sizes=(("*1080*", 300_000_000),), tiers_served=(("flex", 500_000),))
    assert build_pricing(film, 2 * ONE_PPM) == {
        "prompt": "0",
        "completion": "0",
        "second": "0.2",
        "second_by_size": {"*1080*": "0.6"},
        "service_tiers": {"flex": "0.5"},
    }
    mixed = Price("m", image_nanos=40_000_000, character_nanos_per_million=15 * NANOS_PER_USD)
    assert build_pricing(mixed, ONE_PPM) == {
        "prompt": "0", "completion": "0", "image_output": "0.04", "character": "0.000015"
    }  # fmt: skip


def test_long_prompts_have_their_own_prices() -> None:
    price = Price("m", 10**9, tiers=(Tier(200_000, 2 * 10**9, output_nanos_per_million=3 * 10**9),))
    assert build_pricing(price, ONE_PPM)["tiers"] == [
        {"above_prompt_tokens": 200_000, "prompt": "0.000002", "completion": "0.000003"}
    ]


def test_the_most_of_several_prices_counts_each_unit() -> None:
    low, high = Price("a", 10**9, 10**8, 10**9), Price("b", 2 * 10**9, None, 10**8, call_nanos=7)
    assert find_highest_prices([(low, ONE_PPM), (high, ONE_PPM)]) == {
        "prompt": Decimal("0.000002"),
        "completion": Decimal("0.000001"),
        "input_cache_read": Decimal("0.000002"),  # the second has no price of its own for cached tokens
        "request": Decimal("0.000000007"),
    }
    assert find_highest_prices([(low, 3 * ONE_PPM), (high, ONE_PPM)])["prompt"] == Decimal("0.000003")


def test_the_most_includes_tiers_and_sizes() -> None:
    price = Price("m", 10**9, sizes=(("*", 5),), second_nanos=3, tiers=(Tier(9, 4 * 10**9),))
    highest = find_highest_prices([(price, ONE_PPM)])
    assert (highest["prompt"], highest["second"]) == (Decimal("0.000004"), Decimal("0.000000005"))
