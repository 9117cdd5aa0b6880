"""Money: integers, rounded up once."""

from decimal import Decimal
from fnmatch import fnmatchcase
from fractions import Fraction

import attrs
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.price import ONE_PPM, Price, PriceList, Tier, compute_cost_nanos, nanos, usd
from gateway.domain.usage import MAX_CHARACTERS, MAX_DURATION_MS, MAX_IMAGES, MAX_TOKENS, NO_USAGE, Usage, UsageDetails
from tests.support.table_rows import table_rows

RATES = st.integers(0, 10**12)
TOKENS = st.integers(0, MAX_TOKENS)
PRICES = st.builds(
    Price,
    model=st.just("m"),
    input_nanos_per_million=RATES,
    cached_input_nanos_per_million=st.none() | RATES,
    output_nanos_per_million=RATES,
    image_nanos=st.integers(0, 10**11),
    second_nanos=st.integers(0, 10**10),
    character_nanos_per_million=RATES,
    cache_write_nanos_per_million=st.none() | RATES,
    cache_write_long_nanos_per_million=st.none() | RATES,
    audio_input_nanos_per_million=st.none() | RATES,
    cached_audio_input_nanos_per_million=st.none() | RATES,
    audio_output_nanos_per_million=st.none() | RATES,
    image_input_nanos_per_million=st.none() | RATES,
    cached_image_input_nanos_per_million=st.none() | RATES,
    image_output_nanos_per_million=st.none() | RATES,
    search_nanos=st.integers(0, 10**9),
    call_nanos=st.integers(0, 10**9),
)
TIERS = st.lists(
    st.builds(Tier, TOKENS, RATES, st.none() | RATES, RATES, st.none() | RATES, st.none() | RATES), max_size=4
)
PART = st.integers(0, MAX_TOKENS // 4)


@st.composite
def draw_usage(draw: st.DrawFn) -> Usage:
    """What a request used; the parts of its prompt fit into it."""
    fresh, cached, short, long = (draw(PART) for _ in range(4))
    images, duration_ms = draw(st.integers(0, MAX_IMAGES)), draw(st.integers(0, MAX_DURATION_MS))
    prompt, answer = fresh + cached + short + long, draw(TOKENS)
    characters = draw(st.integers(0, MAX_CHARACTERS))
    cached_audio = draw(st.integers(0, cached))
    heard, spoken = draw(st.integers(0, fresh)), draw(st.integers(0, answer))
    cached_image, seen = draw(st.integers(0, cached - cached_audio)), draw(st.integers(0, fresh - heard))
    drawn = draw(st.integers(0, answer - spoken))
    units = UsageDetails(
        cached_audio + heard,
        cached_audio,
        spoken,
        cached_image + seen,
        cached_image,
        drawn,
        searches=draw(st.integers(0, 9)),
        calls=draw(st.integers(1, 3)),
    )
    rare = draw(st.none() | st.just(units))
    return Usage(prompt, answer, cached, "upstream", images, duration_ms, short + long, long, characters, details=rare)


USAGES = draw_usage()
MULTIPLIERS = st.integers(0, 10 * ONE_PPM)


def exact(price: Price, usage: Usage, multiplier_ppm: int) -> Fraction:
    """The cost without any rounding, reckoned as one would by hand."""
    passed = [tier for tier in price.tiers if usage.prompt_tokens > tier.above_tokens]
    rates = max(passed, key=lambda tier: tier.above_tokens) if passed else price
    rate = rates.input_nanos_per_million
    cached_rate, write_rate, long_rate = (
        rates.cached_input_nanos_per_million,
        rates.cache_write_nanos_per_million,
        rates.cache_write_long_nanos_per_million,
    )
    cached_rate = rate if cached_rate is None else cached_rate
    write_rate = rate if write_rate is None else write_rate
    long_rate = write_rate if long_rate is None else long_rate
    rare = usage.details or UsageDetails()
    parts = (
        (rare.audio_input, rare.cached_audio, rare.audio_output, "audio"),
        (rare.image_input, rare.cached_image, rare.image_output, "image"),
    )
    fresh = usage.prompt_tokens - usage.cached_tokens - usage.written_tokens
    cached, made, tokens = usage.cached_tokens, usage.completion_tokens, 0
    for prompt, kept, completion, name in parts:
        new, own_rate = prompt - kept, getattr(price, f"{name}_input_nanos_per_million")
        own_cached = getattr(price, f"cached_{name}_input_nanos_per_million")
        own_made = getattr(price, f"{name}_output_nanos_per_million")
        usual = cached_rate if own_rate is None else own_rate
        tokens += new * (rate if own_rate is None else own_rate)
        tokens += kept * (usual if own_cached is None else own_cached)
        tokens += completion * (rates.output_nanos_per_million if own_made is None else own_made)
        fresh, cached, made = fresh - new, cached - kept, made - completion
    tokens += (
        fresh * rate
        + cached * cached_rate
        + (usage.written_tokens - usage.written_long_tokens) * write_rate
        + usage.written_long_tokens * long_rate
        + made * rates.output_nanos_per_million
    )
    media = usage.images * price.image_nanos + Fraction(usage.duration_ms, 1000) * price.second_nanos
    media += Fraction(usage.characters * price.character_nanos_per_million, 10**6)
    media += rare.searches * price.search_nanos + rare.calls * price.call_nanos * usage.used
    return (Fraction(tokens, 10**6) + media) * Fraction(multiplier_ppm, ONE_PPM)


@given(PRICES, USAGES, MULTIPLIERS)
def test_a_cost_is_the_exact_amount_rounded_up_once(price: Price, usage: Usage, multiplier: int) -> None:
    cost = compute_cost_nanos(price, usage, multiplier)
    assert type(cost) is int
    assert 0 <= cost - exact(price, usage, multiplier) < 1


@given(PRICES, TIERS, USAGES, MULTIPLIERS)
def test_so_it_is_with_tiers(price: Price, tiers: list[Tier], usage: Usage, multiplier: int) -> None:
    tiered = attrs.evolve(price, tiers=tiers)
    assert 0 <= compute_cost_nanos(tiered, usage, multiplier) - exact(tiered, usage, multiplier) < 1


TIERED = Price(
    "m",
    input_nanos_per_million=nanos(Decimal(2)),
    cached_input_nanos_per_million=nanos(Decimal("0.5")),
    output_nanos_per_million=nanos(Decimal(10)),
    tiers=(
        Tier(200_000, nanos(Decimal(4)), nanos(Decimal(1)), nanos(Decimal(15))),
        Tier(1_000_000, nanos(Decimal(8)), None, nanos(Decimal(20))),
    ),
)


@table_rows(
    ("usage", "dollars"),
    [
        (Usage(200_000, 1_000), "0.41"),
        (Usage(200_001, 1_000), "0.815004"),
        (Usage(200_001, 0, 200_000), "0.200004"),
        (Usage(1_000_000, 1_000), "4.015"),
        (Usage(1_000_001, 1_000), "8.020008"),
        (Usage(1_000_001, 0, 1_000_000), "8.000008"),
        (Usage(0, 1_000_000), "10"),
    ],
    ids=repr,
)
def test_a_longer_prompt_prices_the_whole_request(usage: Usage, dollars: str) -> None:
    assert usd(compute_cost_nanos(TIERED, usage)) == dollars


def test_tiers_count_in_whichever_order_they_are_told() -> None:
    assert attrs.evolve(TIERED, tiers=reversed(TIERED.tiers)) == TIERED
    assert [tier.above_tokens for tier in TIERED.tiers] == [1_000_000, 200_000]


def test_images_and_seconds_are_paid_beside_tokens() -> None:
    price = Price("m", input_nanos_per_million=1_000_000, image_nanos=40_000_000, second_nanos=100_000_000)
    assert compute_cost_nanos(price, Usage(images=3)) == 120_000_000
    assert compute_cost_nanos(price, Usage(duration_ms=8_000)) == 800_000_000
    assert compute_cost_nanos(price, Usage(5, images=1, duration_ms=1)) == 5 + 40_000_000 + 100_000
    assert compute_cost_nanos(Price("m", second_nanos=1), Usage(duration_ms=1)) == 1


def test_what_is_spoken_is_paid_by_the_character() -> None:
    price = Price("tts-1", character_nanos_per_million=nanos(Decimal(15)))
    assert usd(compute_cost_nanos(price, Usage(1_024, 5_600, duration_ms=270_000, characters=4_096))) == "0.06144"
    assert compute_cost_nanos(price, Usage(characters=1)) == 15_000


def add_rare(usage: Usage, more: Usage) -> UsageDetails:
    counts = [
        attrs.asdict(each.details or UsageDetails(), filter=lambda _, value: type(value) is int)
        for each in (usage, more)
    ]
    return UsageDetails(**{name: counts[0][name] + counts[1][name] for name in counts[0]})


@given(PRICES, USAGES, USAGES)
def test_more_of_anything_never_costs_less(price: Price, usage: Usage, more: Usage) -> None:
    both = Usage(
        usage.prompt_tokens + more.prompt_tokens,
        usage.completion_tokens + more.completion_tokens,
        usage.cached_tokens + more.cached_tokens,
        "upstream",
        usage.images + more.images,
        usage.duration_ms + more.duration_ms,
        usage.written_tokens + more.written_tokens,
        usage.written_long_tokens + more.written_long_tokens,
        usage.characters + more.characters,
        details=add_rare(usage, more),
    )
    whole, parts = compute_cost_nanos(price, both), compute_cost_nanos(price, usage) + compute_cost_nanos(price, more)
    assert whole >= max(compute_cost_nanos(price, usage), compute_cost_nanos(price, more))
    assert parts - 1 <= whole <= parts


@given(PRICES, USAGES, MULTIPLIERS, MULTIPLIERS)
def test_a_higher_multiplier_never_costs_less(price: Price, usage: Usage, one: int, other: int) -> None:
    low, high = sorted((one, other))
    assert compute_cost_nanos(price, usage, low) <= compute_cost_nanos(price, usage, high)
    assert compute_cost_nanos(price, usage, 0) == 0


@given(PRICES, USAGES, st.integers(0, MAX_TOKENS))
def test_a_cached_token_is_never_dearer_where_its_rate_is_not(price: Price, usage: Usage, cached: int) -> None:
    rate = price.cached_input_nanos_per_million
    fresh = Usage(usage.prompt_tokens, usage.completion_tokens, 0)
    some = Usage(usage.prompt_tokens, usage.completion_tokens, min(cached, usage.prompt_tokens))
    if rate is None:
        assert compute_cost_nanos(price, some) == compute_cost_nanos(price, fresh)
    elif rate <= price.input_nanos_per_million:
        assert compute_cost_nanos(price, some) <= compute_cost_nanos(price, fresh)
    else:
        assert compute_cost_nanos(price, some) >= compute_cost_nanos(price, fresh)


WRITING = Price(
    "m",
    input_nanos_per_million=nanos(Decimal(4)),
    cached_input_nanos_per_million=nanos(Decimal("0.4")),
    cache_write_nanos_per_million=nanos(Decimal(5)),
    cache_write_long_nanos_per_million=nanos(Decimal(8)),
    tiers=(
        Tier(
            2_000_000,
            nanos(Decimal(8)),
            cache_write_nanos_per_million=nanos(Decimal(10)),
            cache_write_long_nanos_per_million=nanos(Decimal(16)),
        ),
    ),
)


@table_rows(
    ("usage", "dollars"),
    [
        (Usage(1_000_000), "4"),
        (Usage(1_000_000, written_tokens=1_000_000), "5"),
        (Usage(1_000_000, written_tokens=1_000_000, written_long_tokens=1_000_000), "8"),
        (Usage(1_000_000, cached_tokens=500_000, written_tokens=400_000, written_long_tokens=100_000), "2.9"),
        (Usage(4_000_000, written_tokens=3_000_000, written_long_tokens=1_000_000), "44"),
    ],
    ids=repr,
)
def test_writing_into_a_cache_has_its_own_price(usage: Usage, dollars: str) -> None:
    """Anthropic's, for instance: a quarter over input, and twice the input where it is kept for an hour."""
    assert usd(compute_cost_nanos(WRITING, usage)) == dollars


@table_rows(("write", "long", "dollars"), [(None, None, "4"), (5, None, "5"), (None, 8, "6"), (0, 0, "0")])
def test_a_write_without_a_price_is_as_input_and_a_long_one_as_any(
    write: int | None, long: int | None, dollars: str
) -> None:
    rates = [None if rate is None else nanos(Decimal(rate)) for rate in (write, long)]
    price = Price(
        "m", nanos(Decimal(4)), cache_write_nanos_per_million=rates[0], cache_write_long_nanos_per_million=rates[1]
    )
    usage = Usage(1_000_000, written_tokens=1_000_000, written_long_tokens=500_000)
    assert usd(compute_cost_nanos(price, usage)) == dollars


@given(PRICES, st.tuples(TOKENS, TOKENS, TOKENS, TOKENS))
def test_every_token_of_a_prompt_is_paid_once_whatever_its_parts_add_up_to(
    price: Price, counts: tuple[int, int, int, int]
) -> None:
    prompt, cached, written, long = counts
    price = attrs.evolve(price, call_nanos=0)
    cost = compute_cost_nanos(price, Usage(prompt, 0, cached, written_tokens=written, written_long_tokens=long))
    rates = [
        price.input_nanos_per_million,
        price.cached_input_nanos_per_million,
        price.cache_write_nanos_per_million,
        price.cache_write_long_nanos_per_million,
    ]
    reported = [rate for rate in rates if rate is not None]
    assert prompt * min(reported) <= cost * 10**6 < prompt * max(reported) + 10**6


@given(PRICES)
def test_nothing_used_costs_nothing(price: Price) -> None:
    assert compute_cost_nanos(price, NO_USAGE) == 0


@given(USAGES)
def test_without_a_price_nothing_is_charged(usage: Usage) -> None:
    assert compute_cost_nanos(None, usage) == 0


def test_one_token_at_a_tenth_of_a_cent_a_million_is_one_nano() -> None:
    assert compute_cost_nanos(Price("m", input_nanos_per_million=1_000_000), Usage(1)) == 1
    assert compute_cost_nanos(Price("m", input_nanos_per_million=1), Usage(1)) == 1
    assert (
        compute_cost_nanos(Price("m", 2_500_000_000, 1_250_000_000, 10_000_000_000), Usage(1000, 100, 400)) == 3_000_000
    )


@given(st.integers(0, 10**18))
def test_an_amount_in_dollars_is_read_back_as_it_was(amount: int) -> None:
    text = usd(amount)
    assert nanos(Decimal(text)) == amount
    assert "e" not in text.lower()
    assert not text.endswith(".")
    assert "." not in text or not text.endswith("0")


@table_rows(
    ("amount", "text"),
    [
        (0, "0"),
        (-1, "-0.000000001"),
        (-1_500_000_000, "-1.5"),
        (1, "0.000000001"),
        (125_000, "0.000125"),
        (10**9, "1"),
        (10 * 10**9, "10"),
        (1_500_000_000, "1.5"),
    ],
)
def test_dollars_are_written_plainly(amount: int, text: str) -> None:
    assert usd(amount) == text


@table_rows(
    ("dollars", "amount"), [("0", 0), ("0.1", 100_000_000), ("0.0000000001", 1), ("1.0000000001", 1_000_000_001)]
)
def test_dollars_are_read_rounded_up(dollars: str, amount: int) -> None:
    assert nanos(Decimal(dollars)) == amount


def make_list(*names: str) -> PriceList:
    return PriceList([Price(name) for name in names])


@table_rows(
    ("model", "found"),
    [
        ("gpt-4o", "gpt-4o"),
        ("gpt-4o-mini", "gpt-4o-*"),
        ("gpt-4-turbo", "gpt-*"),
        ("GPT-4o", "gpt-4o"),
        ("anything", "*"),
        ("o[1]", "*"),
        ("o1", "o[1]"),
    ],
)
def test_the_exact_name_wins_and_then_the_longest_glob(model: str, found: str) -> None:
    price = make_list("*", "gpt-*", "gpt-4o-*", "gpt-4o", "o[1]").find(model)
    assert price is not None
    assert price.model == found


@table_rows(
    ("listed", "asked"),
    [
        ("claude-sonnet-4-5", "claude-sonnet-4.5"),
        ("claude-sonnet-4.5", "claude-sonnet-4-5-20250929"),
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4.5"),
        ("claude-sonnet-4-5*", "anthropic/claude-sonnet-4.5"),
        ("claude-sonnet-4-5", "us.anthropic.claude-sonnet-4-5-20250929-v1:0"),
        ("claude-sonnet-4-5", "claude-sonnet-4-5@20250929"),
        ("claude-sonnet-4-5", "claude-4.5-sonnet"),
        ("claude-3-5-haiku*", "claude-3.5-haiku"),
        ("anthropic/claude-opus-4.1", "claude-opus-4-1"),
        ("gpt-4.1-mini", "openai/gpt-4.1-mini-2025-04-14"),
        ("gemini-2.5-pro*", "publishers/google/models/gemini-2.5-pro"),
        ("gemini-2.5-pro", "models/gemini-2.5-pro"),
        ("MiniMax-M2", "minimax/minimax-m2"),
        ("grok-4.1-fast", "x-ai/grok-4-1-fast"),
    ],
)
def test_another_spelling_of_a_name_has_its_price_before_any_glob(listed: str, asked: str) -> None:
    price = PriceList([Price(listed, 5), Price("c*", 1), Price("*", 2)]).find(asked)
    assert price == Price(listed, 5)


@table_rows(
    ("listed", "asked"),
    [
        ("gpt-4o", "gpt-4o-mini"),
        ("gpt-4.1", "gpt-41"),
        ("mistral-large-2411", "mistral-large-2512"),
        ("mistral-large-2411", "mistral-large"),
        ("gpt-oss-120b", "somebody/gpt-oss-120b"),
        ("claude-sonnet-4-5", "claude-sonnet-4"),
        ("qwen3:free", "qwen3"),
        ("m-latest", "m"),
    ],
)
def test_another_model_has_not(listed: str, asked: str) -> None:
    assert PriceList([Price(listed, 5)]).find(asked) is None


def test_of_several_releases_a_name_without_a_date_means_the_latest() -> None:
    prices = PriceList([Price("m-2025-08-06", 2), Price("m-20251001", 3), Price("m-2024-05-13", 1)])
    assert prices.find("m") == prices.find("m-20260101") == Price("m-20251001", 3)
    assert prices.find("m-20240513") == Price("m-2024-05-13", 1)


@table_rows("order", [1, -1])
def test_of_spellings_of_one_name_with_different_prices_the_dearer_answers_for_a_third(order: int) -> None:
    cheap, expensive = Price("m-4.5", 10**9), Price("m-4-5", 2 * 10**9)
    prices = PriceList([cheap, expensive][::order])
    assert (prices.find("m-4.5"), prices.find("m-4-5")) == (cheap, expensive)
    assert prices.find("M-4.5") == prices.find("m-4.5-20260101") == expensive


def test_a_model_without_a_price_has_none() -> None:
    assert make_list("gpt-*").find("claude") is None
    assert make_list().find("") is None
    assert PriceList().find("gpt") is None


SCOPED = [
    Price("gpt-*", provider="azure"),
    Price("gpt-5*"),
    Price("gpt-5", provider="azure"),
    Price("gpt-5"),
    Price("gpt-6"),
    Price("o*", provider="groq"),
]


@table_rows(
    ("model", "provider", "found"),
    [
        ("gpt-5", "azure", ("gpt-5", "azure")),
        ("gpt-5", "openai", ("gpt-5", None)),
        ("gpt-5", None, ("gpt-5", None)),
        ("gpt-6", "azure", ("gpt-6", None)),
        ("gpt-5-mini", "azure", ("gpt-*", "azure")),
        ("gpt-5-mini", "openai", ("gpt-5*", None)),
        ("gpt-5-mini", None, ("gpt-5*", None)),
        ("o1", "groq", ("o*", "groq")),
        ("o1", "azure", None),
        ("o1", None, None),
    ],
)
def test_among_names_and_among_globs_the_providers_own_price_wins(
    model: str, provider: str | None, found: tuple[str, str | None] | None
) -> None:
    price = PriceList(SCOPED).find(model, provider)
    assert (None if price is None else (price.model, price.provider)) == found


def test_of_two_prices_of_one_model_and_provider_the_later_holds() -> None:
    prices = PriceList([Price("m", 1), Price("m", 2, provider="p"), Price("m", 3), Price("m", 4, provider="p")])
    assert (prices.find("m"), prices.find("m", "p")) == (Price("m", 3), Price("m", 4, provider="p"))
    assert len(prices) == 2


@table_rows("mine", [Price("gpt-5"), Price("gpt-*"), Price("*", provider="azure")], ids=repr)
def test_an_earlier_list_is_asked_whole_before_a_later_one(mine: Price) -> None:
    """A general price of the operator's wins over a shipped one, however exact."""
    prices = PriceList([mine], SCOPED)
    assert prices.find("gpt-5", "azure") == mine
    assert prices.find("o1", "groq") == SCOPED[-1]
    assert len(prices) == 1 + len(SCOPED)


def test_an_override_for_one_provider_leaves_the_others() -> None:
    mine = Price("gpt-5", 7, provider="azure")
    prices = PriceList([mine], SCOPED)
    assert (prices.find("gpt-5", "azure"), prices.find("gpt-5", "openai")) == (mine, Price("gpt-5"))


NAMES = st.text("ab-*", min_size=1, max_size=5)
LISTS = st.lists(st.builds(Price, NAMES, RATES, provider=st.sampled_from([None, "p", "q"])))


@given(LISTS, st.text("ab-", max_size=5), st.sampled_from([None, "p"]))
def test_whatever_is_found_fits_and_what_fits_is_found(prices: list[Price], model: str, provider: str | None) -> None:
    listed = PriceList(prices)
    found = listed.find(model, provider)
    fits = [price for price in prices if price.provider in {None, provider} and fnmatchcase(model, price.model)]
    assert found in fits if fits else found is None
    assert listed.find(model, provider) is found


def test_what_callers_make_up_is_not_remembered_for_ever() -> None:
    prices = PriceList([Price("gpt-*")])
    for number in range(5_000):
        assert prices.find(f"gpt-{number}") is not None
    assert 0 < prices._find_cached.cache_info().currsize < 5_000
