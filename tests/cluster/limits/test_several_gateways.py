"""Several gateways over one server of rate limits: together they keep each limit, and what holds if it is away."""

import asyncio
import os
import signal
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import asyncpg
import orjson
import pytest

from gateway.cluster.limits.fallback import WhenDown
from gateway.cluster.limits.limiter import SharedRateLimiter
from gateway.cluster.limits.postgres import PostgresLimitServer
from gateway.domain.rate_limit import Limits, RateLimitPermit, RateLimitSubject
from gateway.errors import Overloaded, RateLimited
from gateway.storage.valkey.limits import ValkeyLimitServer
from tests.support.limit_servers import (
    LONG_S,
    SetClock,
    open_clock,
    running,
    running_redis,
    running_sentinel,
    wait_until_reached,
)
from tests.support.postgres import SharedPostgres, owning_server

KINDS = pytest.mark.parametrize("kind", ["valkey", "postgresql"])


def subject(limits: Limits) -> tuple[RateLimitSubject]:
    return (RateLimitSubject("key", 1, limits),)


def make_limiter(clock: SetClock) -> SharedRateLimiter:
    return SharedRateLimiter(clock.make_server(), clock, timeout_s=LONG_S)


async def try_take(limiter: SharedRateLimiter, subjects: tuple[RateLimitSubject]) -> RateLimitPermit | None:
    try:
        return limiter.take_now(subjects, 0) or await limiter.take(subjects, 0)
    except RateLimited:
        return None


@KINDS
async def test_four_gateways_admit_a_limit_and_a_burst_in_any_minute(
    kind: str, shared_postgres: SharedPostgres
) -> None:
    rpm, burst = 600, 60
    passed: list[float] = []
    subjects = subject(Limits(rpm=rpm, burst=burst))
    async with open_clock(kind, shared_postgres) as clock, AsyncExitStack() as stack:
        limiters = [await stack.enter_async_context(running(make_limiter(clock))) for _ in range(4)]
        start = clock.now
        for _ in range(180):  # every half of a second each asks for more than its part
            for limiter in limiters:
                passed += [clock.now for _ in range(2) if await try_take(limiter, subjects)]
            await clock.set(clock.now + 0.5)
        seconds = clock.now - start
    for at in passed:
        assert sum(at - 60 < other <= at for other in passed) <= rpm + burst
    assert len(passed) >= 0.95 * (burst + seconds * rpm / 60)


@KINDS
async def test_gateways_share_places_and_a_dead_one_holds_none(kind: str, shared_postgres: SharedPostgres) -> None:
    subjects = subject(Limits(max_concurrency=3))
    async with open_clock(kind, shared_postgres) as clock, running(make_limiter(clock)) as left:
        async with running(make_limiter(clock)) as right:
            permit = await try_take(left, subjects)
            assert permit
            assert await try_take(right, subjects)
            assert await try_take(right, subjects)
            assert not await try_take(left, subjects)
            left.release(permit, 0)
            assert await try_take(left, subjects)
            assert not await try_take(right, subjects)
        await clock.set(clock.now + 16)  # the other is not heard from any more
        assert await try_take(left, subjects)
        assert await try_take(left, subjects)
        assert not await try_take(left, subjects)


@KINDS
async def test_a_gateway_that_starts_again_holds_no_places_of_its_former_process(
    kind: str, shared_postgres: SharedPostgres
) -> None:
    subjects = subject(Limits(max_concurrency=2))
    async with open_clock(kind, shared_postgres) as clock, running(make_limiter(clock)) as left:
        killed = SharedRateLimiter(clock.make_server(), clock, timeout_s=LONG_S, node="a1")
        job = asyncio.get_running_loop().create_task(killed.sender.run())
        await wait_until_reached(killed, away=False)
        assert await try_take(killed, subjects)
        assert await try_take(killed, subjects)
        assert not await try_take(left, subjects)
        again = SharedRateLimiter(clock.make_server(), clock, timeout_s=LONG_S, node="a1")
        other = SharedRateLimiter(clock.make_server(), clock, timeout_s=LONG_S, node="a12")
        async with running(other):  # another node's id may begin like it
            assert not await try_take(left, subjects)
        async with running(again):
            assert await try_take(left, subjects)
            assert await try_take(again, subjects)
            assert not await try_take(left, subjects)
        job.cancel()
        with suppress(asyncio.CancelledError):
            await job


async def test_a_part_is_that_of_the_nodes_known_to_live_even_if_the_server_was_never_reached() -> None:
    limiter = SharedRateLimiter(ValkeyLimitServer("valkey://127.0.0.1:1/0"), lambda: 0.0, count_live=lambda: 4)
    passed = [await try_take(limiter, subject(Limits(rpm=8))) for _ in range(8)]
    assert sum(permit is not None for permit in passed) == 2


@pytest.mark.soak
async def test_sentinels_name_the_server_and_its_successor(tmp_path: Path) -> None:
    async with running_redis() as first, running_redis() as second, running_sentinel(first, tmp_path) as sentinel:
        await second.follow(first)
        limiter = SharedRateLimiter(ValkeyLimitServer(sentinel.url), lambda: 0.0, timeout_s=LONG_S)
        async with running(limiter):
            assert limiter.sender.server_name == sentinel.url
            assert await try_take(limiter, subject(Limits(rpm=2)))
            await sentinel.wait_for_replica()
            first.kill()
            await wait_until_reached(limiter, away=True)
            await wait_until_reached(limiter, away=False)
            assert await try_take(limiter, subject(Limits(rpm=2)))
            assert await second.count_keys() > 0


async def test_a_killed_server_stops_nobody_and_learns_what_runs() -> None:
    subjects = subject(Limits(rpm=40, max_concurrency=4))
    async with running_redis() as redis, AsyncExitStack() as stack:
        left, right = [
            await stack.enter_async_context(
                running(SharedRateLimiter(ValkeyLimitServer(redis.url), lambda: 0.0, timeout_s=LONG_S))
            )
            for _ in range(2)
        ]
        assert await try_take(left, subjects)
        assert await try_take(right, subjects)
        assert await try_take(right, subjects)
        await left.check(subjects)  # now it knows that there are two
        redis.kill()
        for limiter in (left, right):
            await wait_until_reached(limiter, away=True)
        assert await try_take(left, subjects)  # its part of four is two
        assert not await try_take(left, subjects)
        assert not await try_take(right, subjects)
        await redis.start()
        for limiter in (left, right):
            await wait_until_reached(limiter, away=False)
        for limiter in (left, right, left):  # what was announced is on its way before these
            await limiter.check(subject(Limits(rpm=1_000)))
        assert not await try_take(left, subjects)
        assert not await try_take(right, subjects)


async def test_a_node_of_another_version_does_not_replace_the_functions_of_this_one(
    shared_postgres: SharedPostgres,
) -> None:
    url = await (await shared_postgres.get_server()).make_database()  # the functions are left behind
    clock = "CREATE FUNCTION read_limit_clock_VERSION() RETURNS double precision LANGUAGE sql AS 'SELECT {}::float8'"
    older, newer = [PostgresLimitServer(url, clock.format(now)) for now in (1, 2)]
    command = orjson.dumps({"prefix": "p", "node": "n", "token": "t", "replaces": "", "leaves": "1", "names": []})
    for server in (older, newer, older):
        await server.connect()
    assert [orjson.loads(await server.run(command))[3] for server in (older, newer)] == [1, 2]
    for server in (older, newer):
        await server.close()


async def test_a_crash_of_postgresql_empties_its_tables_and_gateways_say_what_they_run() -> None:
    subjects = subject(Limits(max_concurrency=3))
    async with owning_server() as server, AsyncExitStack() as stack:
        url = await server.make_database()
        left, right = [
            await stack.enter_async_context(
                running(SharedRateLimiter(PostgresLimitServer(url), lambda: 0.0, timeout_s=LONG_S))
            )
            for _ in range(2)
        ]
        assert await try_take(left, subjects)
        assert await try_take(right, subjects)
        await asyncio.to_thread(server.restart)
        for limiter in (left, right):
            limiter.sender.wake()
        connection = await asyncpg.connect(url)
        try:
            async with asyncio.timeout(30):
                while await connection.fetchval("SELECT sum(running) FROM limit_running") != 2:  # noqa: ASYNC110 - a test looks
                    await asyncio.sleep(0.05)
        finally:
            await connection.close()
        assert await try_take(left, subjects)
        assert not await try_take(right, subjects)


@pytest.mark.parametrize(("when_down", "most"), [("open", 4), ("share", 4)])
async def test_without_a_server_a_gateway_counts_alone(when_down: WhenDown, most: int) -> None:
    limiter = SharedRateLimiter(ValkeyLimitServer("valkey://127.0.0.1:1/0"), lambda: 0.0, when_down=when_down)
    passed = [await try_take(limiter, subject(Limits(rpm=most))) for _ in range(most + 3)]
    assert sum(permit is not None for permit in passed) == most


async def test_a_closed_gateway_refuses_without_a_server() -> None:
    limiter = SharedRateLimiter(ValkeyLimitServer("valkey://127.0.0.1:1/0"), lambda: 0.0, when_down="closed")
    with pytest.raises(Overloaded):
        await try_take(limiter, subject(Limits(rpm=5)))


async def test_a_gateway_that_is_left_alone_goes_on_with_what_is_owed() -> None:
    subjects = subject(Limits(rpm=40, tpm=400))
    async with running_redis() as redis:
        limiter = SharedRateLimiter(ValkeyLimitServer(redis.url), lambda: 0.0, timeout_s=LONG_S, count_live=lambda: 2)
        async with running(limiter):
            for _ in range(30):  # three quarters of the requests, and of the tokens
                permit = limiter.take_now(subjects, 10) or await limiter.take(subjects, 10)
                limiter.release(permit, 10)
            redis.kill()
            await wait_until_reached(limiter, away=True)
            passed = [await try_take(limiter, subjects) for _ in range(10)]
    assert sum(permit is not None for permit in passed) == 5  # its part of the last quarter


async def test_what_was_admitted_alone_is_not_admitted_again_when_the_server_is_back() -> None:
    subjects = subject(Limits(rpm=40))
    async with running_redis() as redis, AsyncExitStack() as stack:
        assert redis.process is not None
        made = [SharedRateLimiter(ValkeyLimitServer(redis.url), lambda: 0.0, count_live=lambda: 2) for _ in range(2)]
        limiters = [await stack.enter_async_context(running(limiter)) for limiter in made]
        passed = sum([bool(await try_take(limiter, subjects)) for _ in range(10) for limiter in limiters])
        os.kill(redis.process.pid, signal.SIGSTOP)
        for limiter in limiters:
            limiter.sender.wake()
            await wait_until_reached(limiter, away=True)
            passed += sum([bool(await try_take(limiter, subjects)) for _ in range(20)])
        assert 20 < passed <= 40
        os.kill(redis.process.pid, signal.SIGCONT)
        for limiter in limiters:
            await wait_until_reached(limiter, away=False)
            with suppress(RateLimited):
                await limiter.check(subjects)  # what was admitted alone is reported before this
        passed += sum([bool(await try_take(limiter, subjects)) for limiter in limiters for _ in range(20)])
        assert passed <= 40  # the clock stands still
