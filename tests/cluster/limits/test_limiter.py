"""Rate limits that a server decides: the same answers as in memory, and what holds among several gateways."""

import asyncio
import itertools
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.billing.rate_limiter import InMemoryRateLimiter
from gateway.cluster.limits.limiter import SharedRateLimiter
from gateway.domain.rate_limit import Limits, RateLimiter, RateLimitPermit, RateLimitSubject, RateLimitWindow
from gateway.errors import RateLimited
from tests.support.limit_servers import LONG_S, SetClock, open_clock, running
from tests.support.postgres import SharedPostgres

KINDS = pytest.mark.parametrize("kind", ["valkey", "postgresql"])
_prefixes = (f"test{number}" for number in itertools.count())

MAYBE = st.none() | st.integers(1, 40)
LIMITS = st.builds(Limits, MAYBE, st.none() | st.integers(1, 100_000), st.none() | st.integers(1, 4), MAYBE)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.integers(1, 40_000), st.just(0)),
        st.tuples(st.sampled_from(("take", "take", "take_part", "check")), st.integers(0, 3), st.integers(0, 3_000)),
        st.tuples(st.just("together"), st.integers(0, 3), st.integers(0, 50)),
        st.tuples(st.just("give_back"), st.integers(0, 5), st.integers(0, 4_000)),
    ),
    min_size=4,
    max_size=40,
)


def key(limits: Limits, number: int = 1) -> RateLimitSubject:
    return RateLimitSubject("key", number, limits)


def account(limits: Limits, number: int = 1) -> RateLimitSubject:
    return RateLimitSubject("account", number, limits)


async def try_take(
    limiter: RateLimiter, subjects: Sequence[RateLimitSubject], tokens: int = 0, what: str = "take"
) -> RateLimitPermit | RateLimited | None:
    try:
        if what == "take":
            return limiter.take_now(subjects, tokens) or await limiter.take(subjects, tokens)
        if what == "take_part":
            return await limiter.take_part(subjects, tokens)
        await limiter.check(subjects)
    except RateLimited as error:
        return error
    return None


def describe(outcome: RateLimitPermit | RateLimited | None) -> object:
    """What a client sees of it. Seconds are rounded: the server has been asked a few additions more."""
    if outcome is None:
        return None
    windows = [
        window and (window.limit, window.remaining, round(window.reset_s, 4))
        for window in ((outcome.limit_status.requests, outcome.limit_status.tokens) if outcome.limit_status else ())
    ]
    if isinstance(outcome, RateLimited):
        return outcome.message, outcome.retry_after_s, windows
    return windows


async def compare(
    clock: SetClock, callers: Sequence[Sequence[RateLimitSubject]], steps: Sequence[tuple[str, int, int]]
) -> None:
    """Do the same at a limiter in memory and at one with a server; both answer alike."""
    oracle = InMemoryRateLimiter(clock)
    async with running(SharedRateLimiter(clock.make_server(), clock, next(_prefixes), timeout_s=LONG_S)) as limiter:
        permits: list[tuple[RateLimitPermit, RateLimitPermit]] = []
        for what, number, tokens in steps:
            if what == "wait":
                for subjects in callers:  # corrections and units taken ahead go back before the clock goes on
                    await try_take(oracle, subjects, 0, "check")
                    await try_take(limiter, subjects, 0, "check")
                await clock.set(clock.now + number / 1_000)
            elif what == "give_back":
                if permits:
                    left, right = permits.pop(number % len(permits))
                    oracle.release(left, tokens)
                    limiter.release(right, tokens)
            else:
                kind, times = ("take", 3) if what == "together" else (what, 1)
                subjects = callers[number]
                expected = [await try_take(oracle, subjects, tokens, kind) for _ in range(times)]
                found = await asyncio.gather(*(try_take(limiter, subjects, tokens, kind) for _ in range(times)))
                assert [describe(one) for one in found] == [describe(one) for one in expected]
                for one, other in zip(expected, found, strict=True):
                    if isinstance(one, RateLimitPermit) and isinstance(other, RateLimitPermit):
                        permits.append((one, other))


@KINDS
def test_a_server_answers_as_memory_does(kind: str, shared_postgres: SharedPostgres) -> None:
    with asyncio.Runner() as runner:
        scene = open_clock(kind, shared_postgres)
        clock = runner.run(scene.__aenter__())

        free = [("wait", 1, 0), ("take", 2, 20), ("take", 2, 0), ("take", 2, 0)]  # in debt, a free request is refused

        @settings(max_examples=25)
        @example([Limits(), Limits(), Limits(tpm=2), Limits()], Limits(), free)
        @given(st.lists(LIMITS, min_size=4, max_size=4), LIMITS, STEPS)
        def agree(keys: list[Limits], limits: Limits, steps: list[tuple[str, int, int]]) -> None:
            callers = [(key(keys[0], 1), account(limits)), (key(keys[1], 2), account(limits)), (key(keys[2], 3),)]
            callers.append((key(keys[3], 1), account(limits)))  # the first one's limits are changed
            runner.run(compare(clock, callers, steps))

        try:
            agree()
        finally:
            runner.run(scene.__aexit__(None, None, None))


@KINDS
async def test_what_is_used_counts_all_gateways_and_takes_nothing(kind: str, shared_postgres: SharedPostgres) -> None:
    subjects, prefix = (key(Limits(rpm=10, tpm=1_000, max_concurrency=3)),), next(_prefixes)
    async with open_clock(kind, shared_postgres) as clock:
        here, there = (SharedRateLimiter(clock.make_server(), clock, prefix, timeout_s=LONG_S) for _ in range(2))
        async with running(here), running(there):
            for limiter in (here, there):
                await limiter.take(subjects, 100)
            for _ in range(2):
                (use,) = await here.list_use(subjects)
                assert use.subject == subjects[0]
                assert (find_remaining(use.requests), find_remaining(use.tokens)) == (8, 800)
                assert use.running == 2
            for _ in range(8):
                await here.take_part(subjects, 0)
            (use,) = await there.list_use(subjects)
            assert find_remaining(use.requests) == 0
        (use,) = await here.list_use(subjects)  # the last answer, because no job asks the server any more
        assert (find_remaining(use.requests), find_remaining(use.tokens)) == (0, 800)


def find_remaining(window: RateLimitWindow | None) -> int:
    assert window is not None
    return window.remaining
