"""The meters: smooth, exact over any stretch of time, and honest about the wait."""

import math
from fractions import Fraction
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.domain.rate_limit import (
    NO_LIMITS,
    GcraBucket,
    LimitExceeded,
    Limits,
    Rate,
    RateLimitSubject,
    RateLimitWindow,
    change_limit,
    compute_remaining,
    compute_reset_s,
    compute_retry_after_s,
    compute_smooth_burst,
    compute_wait_s,
    correct_all,
    spend,
    spend_all,
    undo_spend,
)
from tests.support.table_rows import table_rows

START = 1_000_000.0  # a machine that has been up for twelve days
LIMITS = st.integers(1, 300) | st.integers(1, 10**7)
GAPS_MS = st.lists(st.integers(0, 3_000) | st.integers(0, 90_000), min_size=1, max_size=80)
DEBTS_S = st.floats(0, 10_000)


def times(gaps_ms: list[int]) -> list[float]:
    return [START + ms / 1_000 for ms in accumulate(gaps_ms)]


def find_wait(tat: float, limit: int, cost: int, now: float) -> float:
    """The wait under the burst of a channel."""
    return compute_wait_s(tat, (limit, compute_smooth_burst(limit)), cost, now)


def rate_of(tat: float, limit: int) -> Rate:
    """A meter that stands so."""
    return GcraBucket(limit, tat), limit, compute_smooth_burst(limit)


def correct(tat: float, limit: int, tokens: int, now: float) -> float:
    """The ``tat`` of a meter after a correction."""
    rate = rate_of(tat, limit)
    correct_all([rate], tokens, now)
    return rate[0].tat


def pass_all(limit: int, tries: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """Which of the (time, cost) a meter lets through."""
    tat, passed = START, []
    for now, cost in tries:
        if not find_wait(tat, limit, cost, now):
            tat = spend(tat, limit, cost, now)
            passed.append((now, cost))
    return passed


def simulate(limit: int, tries: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """The same by a leaking bucket of whole fractions: it holds a burst, and leaks a sixtieth of the limit a second."""
    level, last, passed = Fraction(0), Fraction(START), []
    size, leak, slack = max(1, limit // 10), Fraction(limit, 60), Fraction(1, 10**6)
    for now, cost in tries:
        level = max(Fraction(0), level - (Fraction(now) - last) * leak)
        last = Fraction(now)
        over_s = (level - max(0, size - cost)) / leak
        assume(abs(over_s - slack) > Fraction(1, 10**7))  # a tie that floats may call either way
        if over_s <= slack:
            level += cost
            passed.append((now, cost))
    return passed


@table_rows(("limit", "units"), [(1, 1), (9, 1), (10, 1), (19, 1), (20, 2), (60, 6), (100, 10), (10**9, 10**8)])
def test_a_tenth_of_the_limit_may_pass_at_once_and_at_least_one(limit: int, units: int) -> None:
    assert compute_smooth_burst(limit) == units
    assert pass_all(limit, [(START, 1)] * min(units + 5, 20)) == [(START, 1)] * min(units, 20)


@given(LIMITS, GAPS_MS, st.data())
def test_a_meter_is_a_leaking_bucket(limit: int, gaps_ms: list[int], data: st.DataObject) -> None:
    costs = st.integers(0, 3) | st.integers(0, 2 * compute_smooth_burst(limit))
    tries = [(now, data.draw(costs)) for now in times(gaps_ms)]
    assert pass_all(limit, tries) == simulate(limit, tries)


@given(st.integers(1, 200), st.lists(st.integers(0, 40) | st.integers(0, 5_000), min_size=50, max_size=300))
def test_over_any_stretch_no_more_pass_than_its_share_and_a_burst(limit: int, gaps_ms: list[int]) -> None:
    passed = pass_all(limit, [(now, 1) for now in times(gaps_ms)])
    for first, (begin, _) in enumerate(passed):
        for last in range(first, len(passed)):
            share = (passed[last][0] - begin) * limit / 60
            assert last - first + 1 <= share + compute_smooth_burst(limit) + 1e-3


@given(st.integers(1, 100), st.integers(1, 100))
def test_over_a_minute_of_hammering_the_limit_and_a_burst_pass(limit: int, tries_per_s: int) -> None:
    passed = pass_all(limit, [(START + n / tries_per_s, 1) for n in range(60 * tries_per_s + 1)])
    assert len(passed) <= limit + compute_smooth_burst(limit)
    assert len(passed) >= min(limit, tries_per_s * 60) * 0.5


@given(LIMITS)
def test_a_caller_who_keeps_to_the_limit_is_never_refused(limit: int) -> None:
    tries = [(START + n * 60 / limit, 1) for n in range(100)]
    assert pass_all(limit, tries) == tries


@given(st.integers(10, 600))
def test_after_a_burst_units_pass_one_by_one_and_evenly(limit: int) -> None:
    tat = spend(START, limit, compute_smooth_burst(limit), START)
    waits = []
    now = START
    for _ in range(5):
        waits.append(find_wait(tat, limit, 1, now))
        now += waits[-1]
        assert find_wait(tat, limit, 1, now) == 0
        tat = spend(tat, limit, 1, now)
    assert waits == pytest.approx([60 / limit] * 5, rel=1e-4)


@given(st.integers(1, 10_000), GAPS_MS, st.data())
def test_a_cost_above_the_burst_passes_at_rest_only_and_is_then_owed(
    limit: int, gaps_ms: list[int], data: st.DataObject
) -> None:
    costs = st.integers(1, 20 * compute_smooth_burst(limit))
    passed = pass_all(limit, [(now, data.draw(costs)) for now in times(gaps_ms)])
    assert passed  # the first one finds the meter at rest, however large it is
    tat = START
    for now, cost in passed:
        assert cost <= compute_smooth_burst(limit) or tat <= now + 1e-5
        tat = spend(tat, limit, cost, now)
    total = sum(cost for _, cost in passed[:-1])
    assert total <= (passed[-1][0] - passed[0][0]) * limit / 60 + compute_smooth_burst(limit) + 0.1


@given(LIMITS, DEBTS_S, st.integers(0, 10**6))
def test_the_wait_that_is_told_is_enough_and_not_too_long(limit: int, debt_s: float, cost: int) -> None:
    tat = START + debt_s
    wait = find_wait(tat, limit, cost, START)
    assert find_wait(tat, limit, cost, START + wait) == 0
    if wait > 1e-5:
        assert find_wait(tat, limit, cost, START + wait - 1e-5) > 0
    assert wait <= compute_reset_s(tat, START)


@given(LIMITS, DEBTS_S, st.integers(0, 10**6))
def test_a_retry_after_of_whole_seconds_is_enough(limit: int, debt_s: float, cost: int) -> None:
    seconds = compute_retry_after_s(find_wait(START + debt_s, limit, cost, START))
    assert seconds == 3_600 or find_wait(START + debt_s, limit, cost, START + seconds) == 0


@table_rows(
    ("wait", "seconds"),
    [(0, 1), (0.001, 1), (1, 1), (1.000_000_5, 1), (1.001, 2), (59.5, 60), (3_599.5, 3_600), (3_601, 3_600),
     (math.inf, 3_600)],
)  # fmt: skip
def test_a_wait_is_told_in_whole_seconds_from_one_to_an_hour(wait: float, seconds: int) -> None:
    assert compute_retry_after_s(wait) == seconds


@given(LIMITS, DEBTS_S)
def test_what_remains_would_pass_and_one_more_would_not(limit: int, debt_s: float) -> None:
    tat = START + debt_s
    left = compute_remaining(tat, limit, compute_smooth_burst(limit), START)
    assert 0 <= left <= compute_smooth_burst(limit)
    if left:
        assert find_wait(tat, limit, left, START) < 1e-6
    if left < compute_smooth_burst(limit):
        assert find_wait(tat, limit, left + 1, START) > 0


@given(st.integers(10, 1_000))
def test_what_remains_counts_down_by_one(limit: int) -> None:
    tat, seen = START + 0.3, []
    now = START + 0.3  # neither is a round number of the clock's
    for _ in range(compute_smooth_burst(limit)):
        seen.append(compute_remaining(tat, limit, compute_smooth_burst(limit), now))
        tat = spend(tat, limit, 1, now)
    assert seen == list(range(compute_smooth_burst(limit), 0, -1))
    assert compute_remaining(tat, limit, compute_smooth_burst(limit), now) == 0


@given(LIMITS, st.floats(-100, 100), st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_correction_at_once_is_as_if_the_real_cost_had_been_taken(
    limit: int, debt_s: float, estimate: int, real: int
) -> None:
    corrected = correct(spend(START + debt_s, limit, estimate, START), limit, real - estimate, START)
    taken = spend(START + debt_s, limit, real, START)
    assert compute_reset_s(corrected, START) == pytest.approx(compute_reset_s(taken, START), rel=1e-9, abs=1e-8)


@given(LIMITS, DEBTS_S, st.integers(0, 10**6))
def test_a_correction_is_undone_by_its_opposite(limit: int, debt_s: float, tokens: int) -> None:
    there_and_back = correct(correct(START + debt_s, limit, tokens, START), limit, -tokens, START)
    assert there_and_back == pytest.approx(START + debt_s, abs=1e-6, rel=1e-12)


def test_what_is_posted_after_an_idle_time_is_owed_in_full() -> None:
    assert compute_reset_s(correct(START - 100, 60, 10, START), START) == 10


@given(LIMITS, st.floats(-100, 100), st.integers(-(10**9), -1))
def test_no_correction_gives_credit(limit: int, debt_s: float, tokens: int) -> None:
    corrected = correct(START + debt_s, limit, tokens, START)
    assert START <= corrected <= max(START, START + debt_s)
    assert compute_remaining(corrected, limit, compute_smooth_burst(limit), START) <= compute_smooth_burst(limit)


@given(st.integers(10, 10_000), GAPS_MS, st.data())
def test_in_the_long_run_only_real_units_count_and_never_more_than_the_limit(
    limit: int, gaps_ms: list[int], data: st.DataObject
) -> None:
    most = 5 * compute_smooth_burst(limit)
    tat, counted = START, 0
    running: list[int] = []
    for now in times(gaps_ms):
        if running and data.draw(st.booleans()):  # type: ignore[arg-type]
            estimate = running.pop(data.draw(st.integers(0, len(running) - 1)))
            real = data.draw(st.integers(0, estimate))
            tat = correct(tat, limit, real - estimate, now)
            counted += real - estimate
            continue
        estimate = data.draw(st.integers(1, most))
        if not find_wait(tat, limit, estimate, now):
            tat = spend(tat, limit, estimate, now)
            counted += estimate
            running.append(estimate)
            assert counted <= (now - START) * limit / 60 + compute_smooth_burst(limit) + most


@given(LIMITS, LIMITS, st.floats(-100, 10_000))
def test_a_changed_limit_lets_neither_the_seconds_nor_the_units_of_a_debt_grow(
    old: int, new: int, debt_s: float
) -> None:
    before = compute_reset_s(START + debt_s, START)
    after = compute_reset_s(change_limit(START + debt_s, old, new, START), START)
    assert after <= before + 1e-9
    assert after * new <= before * old * (1 + 1e-9) + 1e-3
    assert after == pytest.approx(min(before, before * old / new), rel=1e-6, abs=1e-8)


TATS = (DEBTS_S | st.floats(0, 0.01)).map(lambda debt_s: START - 100 + debt_s) | st.just(START)


@given(st.lists(st.tuples(TATS, LIMITS), min_size=1, max_size=3), st.integers(0, 10**6) | st.integers(0, 3))
def test_to_take_of_all_is_what_its_three_parts_say_of_each(meters: list[tuple[float, int]], cost: int) -> None:
    rates = [rate_of(tat, limit) for tat, limit in meters]
    reported = spend_all(rates, cost, START)
    if any(find_wait(tat, limit, cost, START) for tat, limit in meters):
        assert reported is None
        assert [meter.tat for meter, _, _ in rates] == [tat for tat, _ in meters]
        return
    after = [(spend(tat, limit, cost, START), limit) for tat, limit in meters]
    assert [meter.tat for meter, _, _ in rates] == [tat for tat, _ in after]
    left, minus_tat, limit = min(
        (compute_remaining(tat, limit, compute_smooth_burst(limit), START), -tat, limit) for tat, limit in after
    )
    assert reported == RateLimitWindow(limit, left, compute_reset_s(-minus_tat, START))
    undo_spend(rates)
    assert [meter.tat for meter, _, _ in rates] == [tat for tat, _ in meters]


def test_a_correction_counts_at_the_larger_limit() -> None:
    for asked, now in ((60, 600), (600, 60)):
        meter = GcraBucket(now, START)
        correct_all([(meter, asked, compute_smooth_burst(asked))], 100, START)
        assert compute_reset_s(meter.tat, START) == pytest.approx(10)


def test_a_raised_limit_frees_a_caller_who_was_deep_in_debt() -> None:
    tat = spend(START, 1, 60, START)
    assert find_wait(tat, 1, 1, START) == pytest.approx(3_600)
    assert find_wait(change_limit(tat, 1, 100_000, START), 100_000, 1, START) == 0


def test_a_lowered_limit_makes_no_hours_out_of_what_was_rightly_used() -> None:
    tat = spend(START, 100_000, 10_000, START)
    assert compute_reset_s(change_limit(tat, 100_000, 1, START), START) == pytest.approx(6)


def test_what_costs_nothing_passes_until_more_than_a_burst_is_owed() -> None:
    assert find_wait(START + 6, 100, 0, START) == 0
    assert find_wait(START + 7, 100, 0, START) == pytest.approx(1)


@given(LIMITS, st.none() | st.integers(1, 10**7))
def test_a_whole_minute_of_a_caller_may_start_at_once_unless_its_burst_is_smaller(
    limit: int, burst: int | None
) -> None:
    most = Limits(rpm=limit, burst=burst).find_request_burst(limit)
    assert most == (limit if burst is None else min(limit, burst))
    tat = spend(START, limit, most - 1, START)
    assert compute_remaining(tat, limit, most, START) == 1
    assert compute_wait_s(tat, (limit, most), 1, START) == 0
    tat = spend(tat, limit, 1, START)
    assert compute_remaining(tat, limit, most, START) == 0
    assert compute_wait_s(tat, (limit, most), 1, START) == pytest.approx(60 / limit, rel=1e-3, abs=1e-6)


@table_rows(
    ("kind", "what", "limit", "burst", "message"),
    [
        ("key", "requests per minute", 60, 60, "This key's limit of 60 requests per minute is reached; retry in 7 s"),
        (
            "key",
            "requests per minute",
            60,
            5,
            "This key's limit of 60 requests per minute (5 at once) is reached; retry in 7 s",
        ),
        ("key", "tokens per minute", 9, None, "This key's limit of 9 tokens per minute is reached; retry in 7 s"),
        ("key", "tokens per minute", 1, None, "This key's limit of 1 token per minute is reached; retry in 7 s"),
        ("account", "concurrent requests", 5, None, "The account's limit of 5 concurrent requests is reached"),
        ("account", "concurrent requests", 1, None, "The account's limit of 1 concurrent request is reached"),
    ],
)
def test_a_refusal_names_the_limit_its_owner_and_the_wait(
    kind: Any, what: Any, limit: int, burst: int | None, message: str
) -> None:
    exceeded = LimitExceeded(RateLimitSubject(kind, 1, NO_LIMITS), what, limit, 6.2, burst)
    assert exceeded.message == message


@table_rows(
    ("limits", "limited"), [(Limits(), False), (Limits(1), True), (Limits(tpm=1), True), (Limits(None, None, 1), True)]
)
def test_limits_know_whether_there_are_any(limits: Limits, limited: bool) -> None:
    assert limits.any is limited
