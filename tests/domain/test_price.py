"""Money: integers, rounded up once."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.price import ONE_PPM, Price, PriceList, cost_nanos, nanos, usd
from gateway.domain.usage import MAX_TOKENS, NO_USAGE, Usage

RATES = st.integers(0, 10**12)
PRICES = st.builds(
    Price,
    model=st.just("m"),
    input_nanos_per_million=RATES,
    cached_input_nanos_per_million=st.none() | RATES,
    output_nanos_per_million=RATES,
)
USAGES = st.tuples(st.integers(0, MAX_TOKENS), st.integers(0, MAX_TOKENS), st.integers(0, MAX_TOKENS)).map(
    lambda counts: Usage(counts[0], counts[1], min(counts[2], counts[0]), "upstream"),
)
MULTIPLIERS = st.integers(0, 10 * ONE_PPM)


def exact(price: Price, usage: Usage, multiplier_ppm: int) -> Fraction:
    """The cost without any rounding."""
    cached_rate = price.cached_input_nanos_per_million
    rate = price.input_nanos_per_million if cached_rate is None else cached_rate
    fresh = (usage.prompt_tokens - usage.cached_tokens) * price.input_nanos_per_million
    total = fresh + usage.cached_tokens * rate + usage.completion_tokens * price.output_nanos_per_million
    return Fraction(total * multiplier_ppm, 10**12)


@given(PRICES, USAGES, MULTIPLIERS)
def test_a_cost_is_the_exact_amount_rounded_up_once(price: Price, usage: Usage, multiplier: int) -> None:
    cost = cost_nanos(price, usage, multiplier)
    assert type(cost) is int
    assert 0 <= cost - exact(price, usage, multiplier) < 1


@given(PRICES, USAGES, USAGES)
def test_more_tokens_never_cost_less(price: Price, usage: Usage, more: Usage) -> None:
    both = Usage(
        usage.prompt_tokens + more.prompt_tokens,
        usage.completion_tokens + more.completion_tokens,
        usage.cached_tokens + more.cached_tokens,
    )
    whole, parts = cost_nanos(price, both), cost_nanos(price, usage) + cost_nanos(price, more)
    assert whole >= max(cost_nanos(price, usage), cost_nanos(price, more))
    assert parts - 1 <= whole <= parts


@given(PRICES, USAGES, MULTIPLIERS, MULTIPLIERS)
def test_a_higher_multiplier_never_costs_less(price: Price, usage: Usage, one: int, other: int) -> None:
    low, high = sorted((one, other))
    assert cost_nanos(price, usage, low) <= cost_nanos(price, usage, high)
    assert cost_nanos(price, usage, 0) == 0


@given(PRICES, USAGES, st.integers(0, MAX_TOKENS))
def test_a_cached_token_is_never_dearer_where_its_rate_is_not(price: Price, usage: Usage, cached: int) -> None:
    rate = price.cached_input_nanos_per_million
    fresh = Usage(usage.prompt_tokens, usage.completion_tokens, 0)
    some = Usage(usage.prompt_tokens, usage.completion_tokens, min(cached, usage.prompt_tokens))
    if rate is None:
        assert cost_nanos(price, some) == cost_nanos(price, fresh)
    elif rate <= price.input_nanos_per_million:
        assert cost_nanos(price, some) <= cost_nanos(price, fresh)
    else:
        assert cost_nanos(price, some) >= cost_nanos(price, fresh)


@given(PRICES)
def test_nothing_used_costs_nothing(price: Price) -> None:
    assert cost_nanos(price, NO_USAGE) == 0


@given(USAGES)
def test_without_a_price_nothing_is_charged(usage: Usage) -> None:
    assert cost_nanos(None, usage) == 0


def test_one_token_at_a_tenth_of_a_cent_a_million_is_one_nano() -> None:
    assert cost_nanos(Price("m", input_nanos_per_million=1_000_000), Usage(1)) == 1
    assert cost_nanos(Price("m", input_nanos_per_million=1), Usage(1)) == 1
    assert cost_nanos(Price("m", 2_500_000_000, 1_250_000_000, 10_000_000_000), Usage(1000, 100, 400)) == 3_000_000


@given(st.integers(0, 10**18))
def test_an_amount_in_dollars_is_read_back_as_it_was(amount: int) -> None:
    text = usd(amount)
    assert nanos(Decimal(text)) == amount
    assert "e" not in text.lower()
    assert not text.endswith(".")
    assert "." not in text or not text.endswith("0")


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0"), (1, "0.000000001"), (125_000, "0.000125"), (10**9, "1"), (10 * 10**9, "10"), (1_500_000_000, "1.5")],
)
def test_dollars_are_written_plainly(amount: int, text: str) -> None:
    assert usd(amount) == text


@pytest.mark.parametrize(
    ("dollars", "amount"), [("0", 0), ("0.1", 100_000_000), ("0.0000000001", 1), ("1.0000000001", 1_000_000_001)]
)
def test_dollars_are_read_rounded_up(dollars: str, amount: int) -> None:
    assert nanos(Decimal(dollars)) == amount


def make_list(*names: str) -> PriceList:
    return PriceList({name: Price(name) for name in names})


@pytest.mark.parametrize(
    ("model", "found"),
    [
        ("gpt-4o", "gpt-4o"),
        ("gpt-4o-mini", "gpt-4o-*"),
        ("gpt-4-turbo", "gpt-*"),
        ("GPT-4o", "*"),
        ("anything", "*"),
        ("o[1]", "*"),
        ("o1", "o[1]"),
    ],
)
def test_the_exact_name_wins_and_then_the_longest_glob(model: str, found: str) -> None:
    price = make_list("*", "gpt-*", "gpt-4o-*", "gpt-4o", "o[1]").find(model)
    assert price is not None
    assert price.model == found


def test_a_model_without_a_price_has_none() -> None:
    assert make_list("gpt-*").find("claude") is None
    assert make_list().find("") is None
