"""What a limited request costs a gateway that counts alone, in PostgreSQL and in Valkey (Redis): printed.

``make bench-parts ARGS=tests/bench/test_limit_cost.py``. A key and its account have limits, as every caller has.
CPU is this process' own: the server's is not in it.
"""

import asyncio
import time
from contextlib import AsyncExitStack
from statistics import median

import pytest

from gateway.billing.rate_limiter import InMemoryRateLimiter
from gateway.cluster.limits.limiter import SharedRateLimiter
from gateway.cluster.limits.postgres import PostgresLimitServer
from gateway.domain.limit_server import LimitServer
from gateway.domain.rate_limit import Limits, RateLimiter, RateLimitSubject
from gateway.storage.valkey.limits import ValkeyLimitServer
from tests.support.limit_servers import LONG_S, running, running_redis
from tests.support.postgres import SharedPostgres

pytestmark = [pytest.mark.cost, pytest.mark.timeout(0)]
CALLS, TOKENS = 4_000, 100
RATES = Limits(rpm=10_000_000, tpm=1_000_000_000)
PLACES = Limits(rpm=10_000_000, tpm=1_000_000_000, max_concurrency=1_000)


def make_subjects(limits: Limits) -> tuple[RateLimitSubject, RateLimitSubject]:
    return RateLimitSubject("key", 1, limits), RateLimitSubject("account", 1, limits)


async def measure(limiter: RateLimiter, subjects: tuple[RateLimitSubject, ...], waiting: int) -> tuple[float, float]:
    """Return the CPU time of a call in us, and the median of how long a permit took in ms; ``waiting`` at a time."""
    took: list[float] = []

    async def call_many() -> None:
        for _ in range(CALLS // waiting):
            began = time.perf_counter()
            permit = limiter.take_now(subjects, TOKENS) or await limiter.take(subjects, TOKENS)
            took.append(time.perf_counter() - began)
            await asyncio.sleep(0)
            limiter.release(permit, TOKENS + 1)

    before = time.process_time()
    await asyncio.gather(*(call_many() for _ in range(waiting)))
    return (time.process_time() - before) / len(took) * 1e6, median(took) * 1000


@pytest.mark.parametrize("kind", ["memory", "postgresql", "valkey"])
async def test_the_cost_of_a_limited_request(
    shared_postgres: SharedPostgres, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = []
    async with AsyncExitStack() as stack:
        limiter: RateLimiter
        if kind == "memory":
            limiter = InMemoryRateLimiter(time.monotonic)
        else:
            server: LimitServer
            if kind == "valkey":
                server = ValkeyLimitServer((await stack.enter_async_context(running_redis())).url)
            else:
                server = PostgresLimitServer(await shared_postgres.empty())
            limiter = await stack.enter_async_context(
                running(SharedRateLimiter(server, time.monotonic, timeout_s=LONG_S))
            )
        for name, limits in (("rates", RATES), ("places", PLACES)):
            subjects = make_subjects(limits)
            for waiting in (1, 4, 16, 64):
                cpu_us, latency_ms = await measure(limiter, subjects, waiting)
                lines.append(f"  {name:7} {waiting:3} at a time: {cpu_us:6.1f} us, {latency_ms:6.3f} ms")
    with capsys.disabled():
        print(f"\n{kind}", *lines, sep="\n")
