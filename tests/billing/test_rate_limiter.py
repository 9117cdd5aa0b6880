"""The meters in memory: all or nothing, nothing lost, nothing kept for ever."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.billing.rate_limiter import InMemoryRateLimiter
from gateway.domain.rate_limit import (
    NO_LIMITS,
    Limits,
    RateLimitPermit,
    RateLimitStatus,
    RateLimitSubject,
    RateLimitWindow,
    SubjectUse,
)
from gateway.errors import RateLimited

MAYBE = st.none() | st.integers(1, 40)
LIMITS = st.builds(Limits, MAYBE, st.none() | st.integers(1, 2_000), st.none() | st.integers(1, 4))


def about(value: float) -> Any:
    return pytest.approx(value)


@attrs.define
class Clock:
    """Monotonic seconds that pass when told to."""

    now: float = 5_000.0

    def __call__(self) -> float:
        return self.now


def finish(coroutine: Coroutine[Any, Any, RateLimitPermit]) -> RateLimitPermit:
    """The result of a coroutine that never waits; one that does is an error."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        turn = end.value
        assert isinstance(turn, RateLimitPermit)
        return turn
    raise AssertionError("take() waited")


def key(limits: Limits, number: int = 1) -> RateLimitSubject:
    return RateLimitSubject("key", number, limits)


def account(limits: Limits, number: int = 1) -> RateLimitSubject:
    return RateLimitSubject("account", number, limits)


def try_take(
    counters: InMemoryRateLimiter, subjects: Sequence[RateLimitSubject], tokens: int = 0
) -> RateLimitPermit | RateLimited:
    try:
        return finish(counters.take(subjects, tokens))
    except RateLimited as fault:
        return fault


async def test_a_request_takes_one_of_every_rate_of_every_subject() -> None:
    counters = InMemoryRateLimiter(Clock())
    permit = await counters.take([key(Limits(600, 6_000)), account(Limits(60, 60_000))], 60)
    # The account has fewer requests remaining, the key fewer tokens.
    assert permit.limit_status == RateLimitStatus(
        RateLimitWindow(60, 59, 1.0), RateLimitWindow(6_000, 5_940, about(0.6))
    )
    assert (permit.tokens, permit.released) == (60, False)


async def test_of_two_with_as_few_remaining_the_one_that_takes_longer_is_told() -> None:
    permit = await InMemoryRateLimiter(Clock()).take([key(Limits(19, burst=1)), account(Limits(10, burst=1))], 0)
    assert permit.limit_status.requests == RateLimitWindow(10, 0, 6.0)


async def test_a_subject_without_limits_stands_nowhere_and_is_never_refused() -> None:
    counters = InMemoryRateLimiter(Clock())
    for _ in range(1_000):
        permit = await counters.take([key(NO_LIMITS), account(NO_LIMITS)], 10**9)
        assert permit.limit_status == RateLimitStatus(None, None)


@pytest.mark.parametrize("whose", ["key", "account"])
@pytest.mark.parametrize(
    ("limits", "message", "seconds"),
    [
        (Limits(rpm=12, burst=1), r"12 requests per minute \(1 at once\)", 5),
        (Limits(tpm=105), "105 tokens per minute", 3),
        (Limits(max_concurrency=1), "1 concurrent request", 1),
    ],
)
async def test_every_limit_of_every_subject_refuses(whose: str, limits: Limits, message: str, seconds: int) -> None:
    counters = InMemoryRateLimiter(Clock())
    subjects = [key(limits if whose == "key" else NO_LIMITS), account(limits if whose == "account" else NO_LIMITS)]
    permit = await counters.take(subjects, 50)
    with pytest.raises(RateLimited, match=f"limit of {message} is reached") as refused:
        await counters.take(subjects, 60)
    assert refused.value.message.startswith("This key's" if whose == "key" else "The account's")
    assert refused.value.retry_after_s == seconds
    assert (refused.value.status, refused.value.public_code) == (429, "rate_limit_exceeded")
    assert refused.value.limit_status == permit.limit_status


async def test_the_limit_with_the_longest_wait_is_told() -> None:
    counters = InMemoryRateLimiter(Clock())
    subjects = [key(Limits(rpm=10, tpm=1, max_concurrency=1)), account(Limits(rpm=2, max_concurrency=1, burst=1))]
    await counters.take(subjects, 1)
    with pytest.raises(RateLimited, match="This key's limit of 1 token per minute") as refused:
        await counters.take(subjects, 1)
    assert refused.value.retry_after_s == 60
    with pytest.raises(RateLimited, match="The account's limit of 2 requests per minute") as refused:
        await counters.take([key(Limits(rpm=10, max_concurrency=1)), subjects[1]], 1)
    assert refused.value.retry_after_s == 30


async def test_of_two_equal_waits_the_keys_is_told() -> None:
    counters = InMemoryRateLimiter(Clock())
    subjects = [key(Limits(max_concurrency=1)), account(Limits(max_concurrency=1))]
    await counters.take(subjects, 0)
    with pytest.raises(RateLimited, match="This key's"):
        await counters.take(subjects, 0)


async def test_a_caller_who_waits_as_told_passes() -> None:
    clock = Clock()
    counters = InMemoryRateLimiter(clock)
    subjects = [key(Limits(rpm=7, tpm=1_000, burst=1)), account(Limits(rpm=33))]
    passed = 0
    for _ in range(40):
        outcome = try_take(counters, subjects, 150)
        if isinstance(outcome, RateLimited):
            assert outcome.retry_after_s is not None
            clock.now += outcome.retry_after_s
            outcome = try_take(counters, subjects, 150)
        assert isinstance(outcome, RateLimitPermit)
        passed += 1
    assert clock.now - 5_000 == about((passed - 1) * 9)


ATTEMPTS = st.lists(
    st.tuples(st.integers(0, 3_000), st.integers(1, 3), st.integers(0, 300), st.integers(0, 300), st.booleans()),
    max_size=60,
)


@given(st.lists(LIMITS, min_size=3, max_size=3), LIMITS, ATTEMPTS)
def test_a_refused_request_takes_nothing_and_no_place_is_given_twice(
    keys: list[Limits], limits: Limits, attempts: list[tuple[int, int, int, int, bool]]
) -> None:
    """One hears of every attempt, its twin of those alone that passed: both tell the same of each."""
    clock = Clock()
    counters, twin = InMemoryRateLimiter(clock), InMemoryRateLimiter(clock)
    running: list[tuple[RateLimitPermit, RateLimitPermit, int, int]] = []
    for gap_ms, number, tokens, used, ends in attempts:
        clock.now += gap_ms / 1_000
        if ends and running:
            permit, other, used_tokens, _ = running.pop(0)
            counters.release(permit, used_tokens)
            twin.release(other, used_tokens)
            continue
        subjects = [key(keys[number - 1], number), account(limits)]
        outcome = try_take(counters, subjects, tokens)
        if isinstance(outcome, RateLimited):
            continue
        again = finish(twin.take(subjects, tokens))
        assert again.limit_status == outcome.limit_status
        running.append((outcome, again, used, number))
        assert limits.max_concurrency is None or len(running) <= limits.max_concurrency
        most = keys[number - 1].max_concurrency
        assert most is None or sum(whose == number for _, _, _, whose in running) <= most


@given(st.integers(1, 200), st.lists(st.integers(0, 500), min_size=20, max_size=200))
def test_over_any_minute_a_subject_gets_its_limit_and_a_burst(rpm: int, gaps_ms: list[int]) -> None:
    clock = Clock()
    counters = InMemoryRateLimiter(clock)
    passed: list[float] = []
    for number, gap_ms in enumerate(gaps_ms):
        clock.now += gap_ms / 1_000
        if isinstance(try_take(counters, [key(NO_LIMITS, number % 3), account(Limits(rpm))]), RateLimitPermit):
            passed.append(clock.now)
            assert sum(at >= clock.now - 60 for at in passed) <= 2 * rpm
    assert passed


async def test_places_are_free_again_when_requests_end() -> None:
    counters = InMemoryRateLimiter(Clock())
    subjects = [key(Limits(max_concurrency=2)), account(Limits(max_concurrency=3))]
    first, _ = await counters.take(subjects, 0), await counters.take(subjects, 0)
    with pytest.raises(RateLimited):
        await counters.take(subjects, 0)
    counters.release(first, 0)
    await counters.take(subjects, 0)
    with pytest.raises(RateLimited):
        await counters.take(subjects, 0)


async def test_a_turn_is_given_back_once() -> None:
    counters = InMemoryRateLimiter(Clock())
    subjects = [key(Limits(tpm=60_000, max_concurrency=2))]
    permit, _ = await counters.take(subjects, 3_000), await counters.take(subjects, 3_000)
    counters.release(permit, 0)
    counters.release(permit, 0)
    last = await counters.take(subjects, 0)
    assert last.limit_status.tokens == RateLimitWindow(60_000, 57_000, 3.0)
    with pytest.raises(RateLimited, match="2 concurrent requests"):
        await counters.take(subjects, 0)


@pytest.mark.parametrize(
    ("used", "remaining"), [(0, 60_000), (10, 59_990), (1_000, 59_000), (4_000, 56_000), (90_000, 0)]
)
async def test_what_a_request_used_is_what_is_counted(used: int, remaining: int) -> None:
    counters = InMemoryRateLimiter(Clock())
    subjects = [key(Limits(tpm=60_000)), account(Limits(tpm=600_000))]
    counters.release(await counters.take(subjects, 1_000), used)
    outcome = try_take(counters, subjects, 0)
    assert outcome.limit_status is not None
    assert outcome.limit_status.tokens is not None
    assert outcome.limit_status.tokens.remaining == remaining
    assert isinstance(outcome, RateLimitPermit) is (used <= 60_000)


async def test_requests_that_come_together_share_the_places() -> None:
    counters = InMemoryRateLimiter(Clock())
    subjects = [key(NO_LIMITS), account(Limits(max_concurrency=5))]
    outcomes = await asyncio.gather(*(counters.take(subjects, 1) for _ in range(20)), return_exceptions=True)
    assert sum(isinstance(outcome, RateLimitPermit) for outcome in outcomes) == 5
    assert sum(isinstance(outcome, RateLimited) for outcome in outcomes) == 15


async def test_a_key_and_an_account_of_the_same_id_are_two() -> None:
    counters = InMemoryRateLimiter(Clock())
    await counters.take([key(Limits(max_concurrency=1))], 0)
    await counters.take([account(Limits(max_concurrency=1))], 0)
    with pytest.raises(RateLimited):
        await counters.take([account(Limits(max_concurrency=1))], 0)


async def test_changed_limits_hold_from_the_next_request_on() -> None:
    clock = Clock()
    counters = InMemoryRateLimiter(clock)
    await counters.take([key(Limits(rpm=1))], 0)
    with pytest.raises(RateLimited) as refused:
        await counters.take([key(Limits(rpm=1))], 0)
    assert refused.value.retry_after_s == 60
    raised = await counters.take([key(Limits(rpm=600))], 0)  # the one request owed is a tenth of a second now
    assert raised.limit_status.requests == RateLimitWindow(600, 598, about(0.2))
    for _ in range(58):
        await counters.take([key(Limits(rpm=600))], 0)
    with pytest.raises(RateLimited, match="limit of 12 ") as refused:
        await counters.take([key(Limits(rpm=12, burst=1))], 0)
    assert refused.value.retry_after_s == 6  # not the five minutes that sixty would take
    await counters.take([key(NO_LIMITS)], 0)
    with pytest.raises(RateLimited):
        await counters.take([key(Limits(rpm=12, burst=1))], 0)


async def test_limits_that_were_changed_hold_for_a_caller_whose_own_are_still_those_before() -> None:
    """Its subjects are the same object as before: what was found for them is not good any more."""
    counters = InMemoryRateLimiter(Clock())
    before, after = (key(Limits(max_concurrency=2)),), (key(Limits(max_concurrency=1)), account(NO_LIMITS))
    for subjects, most in ((before, 2), (after, 1), (before, 2), (after, 1)):
        turns = [await counters.take(subjects, 0) for _ in range(most)]
        with pytest.raises(RateLimited, match=f"limit of {most} concurrent"):
            await counters.take(subjects, 0)
        for permit in turns:
            counters.release(permit, 0)


async def test_callers_who_share_an_account_share_its_meters_however_often_limits_change() -> None:
    counters = InMemoryRateLimiter(Clock())
    shared = account(Limits(rpm=600, max_concurrency=4))
    callers = [(key(Limits(rpm=900), number), shared) for number in range(4)]
    turns = []
    for left, subjects in zip(range(599, 595, -1), callers, strict=True):
        turns.append(await counters.take(subjects, 0))
        assert turns[-1].limit_status.requests == RateLimitWindow(600, left, about((600 - left) / 10))
        await counters.take([key(Limits(rpm=left), 9)], 0)  # the limits of the key change
    with pytest.raises(RateLimited, match="4 concurrent requests"):
        await counters.take(callers[0], 0)
    counters.release(turns[0], 0)
    await counters.take(callers[3], 0)


async def test_a_raised_limit_frees_a_caller_who_owes_tokens() -> None:
    counters = InMemoryRateLimiter(Clock())
    await counters.take([key(Limits(tpm=60))], 3_000)
    with pytest.raises(RateLimited) as refused:
        await counters.take([key(Limits(tpm=60))], 1)
    assert refused.value.retry_after_s == 2_941
    raised = await counters.take([key(Limits(tpm=60_000))], 0)
    assert raised.limit_status.tokens == RateLimitWindow(60_000, 57_000, about(3))


async def test_lowered_places_count_what_began_before() -> None:
    counters = InMemoryRateLimiter(Clock())
    turns = [await counters.take([key(NO_LIMITS)], 0) for _ in range(3)]
    for permit in turns[:2]:
        with pytest.raises(RateLimited):
            await counters.take([key(Limits(max_concurrency=1))], 0)
        counters.release(permit, 0)
    counters.release(turns[2], 0)
    await counters.take([key(Limits(max_concurrency=1))], 0)


@pytest.mark.parametrize(("before", "after"), [(60_000, 600), (600, 60_000)])
async def test_a_correction_across_a_change_counts_at_the_larger_limit(before: int, after: int) -> None:
    counters = InMemoryRateLimiter(Clock())
    permit = await counters.take([key(Limits(tpm=before))], 0)
    kept = await counters.take([key(Limits(tpm=after))], 0)
    counters.release(permit, 6_000)
    outcome = try_take(counters, [key(Limits(tpm=after))])
    assert outcome.limit_status is not None
    assert outcome.limit_status.tokens is not None
    assert outcome.limit_status.tokens.reset_s == about(6)
    counters.release(kept, 0)


async def test_a_limit_that_was_lifted_or_set_meanwhile_is_corrected_by_what_was_taken() -> None:
    counters = InMemoryRateLimiter(Clock())
    limited, free = await counters.take([key(Limits(tpm=6_000))], 600), await counters.take([key(NO_LIMITS)], 600)
    counters.release(limited, 300)
    counters.release(free, 600_000)  # began unlimited
    last = await counters.take([key(Limits(tpm=6_000))], 0)
    assert last.limit_status.tokens == RateLimitWindow(6_000, 5_700, about(3))


async def test_subjects_at_rest_are_forgotten() -> None:
    clock = Clock()
    counters = InMemoryRateLimiter(clock)
    for number in range(20_000):
        clock.now += 1
        counters.release(await counters.take([key(Limits(60, 600, 1), number)], 1), 1)
    assert len(counters._subjects) <= 1_024
    assert len(counters._callers) <= 1_024


async def test_subjects_who_owe_or_run_something_are_remembered() -> None:
    clock = Clock()
    counters = InMemoryRateLimiter(clock)
    owes, runs = key(Limits(rpm=1), -1), key(Limits(max_concurrency=1), -2)
    spends = key(Limits(tpm=1), -3)
    counters.release(await counters.take([owes], 0), 0)
    counters.release(await counters.take([spends], 1), 1)
    permit = await counters.take([runs], 0)
    for number in range(3_000):
        clock.now += 0.01
        counters.release(await counters.take([key(Limits(60_000), number)], 0), 0)
    assert len(counters._subjects) <= 1_024
    for subject in (owes, spends, runs):
        with pytest.raises(RateLimited):
            await counters.take([subject], 1)
    counters.release(permit, 0)
    await counters.take([runs], 0)


async def test_a_caller_who_is_read_anew_over_and_over_is_not_remembered_as_often() -> None:
    counters = InMemoryRateLimiter(Clock())
    for _ in range(3_000):
        await counters.take((key(NO_LIMITS),), 0)
    assert len(counters._callers) <= 1_024
    assert len(counters._subjects) == 1


async def test_a_newcomer_among_many_who_run_costs_no_look_at_all_of_them() -> None:
    """The dictionary is walked when it has doubled, not on each request."""
    counters = InMemoryRateLimiter(Clock())
    walked = 0
    for number in range(5_000):
        before = counters._subjects
        await counters.take([key(NO_LIMITS, number)], 0)
        walked += counters._subjects is not before
    assert len(counters._subjects) == 5_000
    assert walked == 3


async def test_meters_that_are_new_are_not_forgotten_by_their_own_request() -> None:
    clock = Clock()
    counters = InMemoryRateLimiter(clock)
    for number in range(1_023):
        counters.release(await counters.take([RateLimitSubject("key", number, NO_LIMITS)], 0), 0)
    permit = await counters.take(
        [RateLimitSubject("key", 5_000, NO_LIMITS), RateLimitSubject("account", 5_000, NO_LIMITS)], 0
    )
    counters.release(permit, 0)
    assert permit.released


async def test_what_is_used_is_told_for_each_subject_and_takes_nothing() -> None:
    clock = Clock()
    counters = InMemoryRateLimiter(clock)
    subjects = [key(Limits(rpm=10, max_concurrency=2)), account(Limits(tpm=1_000))]
    unused = SubjectUse(subjects[0], RateLimitWindow(10, 10, 0.0), None, 0)
    assert list(await counters.list_use(subjects)) == [
        unused,
        SubjectUse(subjects[1], None, RateLimitWindow(1_000, 1_000, 0.0), None),
    ]
    permit = await counters.take(subjects, 100)
    for _ in range(2):
        assert list(await counters.list_use(subjects)) == [
            SubjectUse(subjects[0], RateLimitWindow(10, 9, about(6.0)), None, 1),
            SubjectUse(subjects[1], None, RateLimitWindow(1_000, 900, about(6.0)), None),
        ]
    counters.release(permit, 100)
    clock.now += 6
    assert next(iter(await counters.list_use(subjects))) == unused
