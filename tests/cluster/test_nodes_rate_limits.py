"""Four gateway processes and one server of rate limits under load: one meter would admit the same (a soak test).

```make soak ARGS=tests/cluster/test_nodes_rate_limits.py``` prints the figures.
"""

# ruff: noqa: T201 - its figures are printed

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gateway.domain.rate_limit import Limits
from tests.support.limit_load import NODES, TOKENS, Limited, limited_nodes, run_load
from tests.support.limit_servers import running_redis
from tests.support.postgres import SharedPostgres

pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]
RPM, BURST, TPM, PLACES, SERVICE_S = 600, 60, 24_000, 8, 1.0
MINUTE_S, JITTER_S = 60.0, 0.5
"""Between a permit and its request at the provider."""
LATE = NODES - 1
"""Places too many: after an answer that is late, as on a busy machine, a node decides by what it has heard last."""


def make_load() -> tuple[Limited, Limited, Limited]:
    return (
        Limited("rpm", Limits(rpm=RPM, burst=BURST), 20),
        Limited("tpm", Limits(tpm=TPM), 15),
        Limited("places", Limits(max_concurrency=PLACES), 30, SERVICE_S),
    )


def run_for(seconds: float) -> Callable[[], bool]:
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    return lambda: loop.time() < until


def check_statuses(load: tuple[Limited, ...]) -> None:
    for one in load:
        assert {outcome.status for outcome in one.outcomes} <= {200, 429}, one.name


@pytest.mark.parametrize("kind", ["postgresql", "valkey"])
async def test_four_nodes_admit_what_one_meter_does(
    tmp_path: Path, shared_postgres: SharedPostgres, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rpm, tpm, places = load = make_load()
    async with AsyncExitStack() as stack:
        limits = {}
        if kind == "valkey":
            limits["url"] = (await stack.enter_async_context(running_redis())).url
        url = await shared_postgres.empty()
        nodes = await stack.enter_async_context(limited_nodes(tmp_path, url, limits, load))
        found = (await nodes[0].ask("health"))["limits"]
        assert (found["store"], found["gateways"]) == (kind, NODES)
        await run_load(nodes, load, run_for(90))
    with capsys.disabled():
        print(f"\n{kind}")
        for one in load:
            share = len(one.arrived) / one.allowed
            figures = one.describe(0, float("inf"))
            print(f"  {one.name}: {len(one.arrived)} of the {one.allowed} of one meter ({share:.3f}); {figures}")
        print(f"  in any minute: {rpm.count_most(MINUTE_S)} requests, {tpm.count_most(MINUTE_S) * TOKENS} tokens")
        print(f"  at once: {places.up.most_running}")
    check_statuses(load)
    assert rpm.count_most(MINUTE_S) <= RPM + BURST + RPM / MINUTE_S * JITTER_S
    assert tpm.count_most(MINUTE_S) * TOKENS <= 2 * TPM + TPM / MINUTE_S * JITTER_S + NODES * TOKENS
    assert places.up.most_running <= PLACES + LATE
    for one in load:
        assert len(one.arrived) >= 0.95 * one.allowed, one.name


async def test_valkey_is_killed_and_comes_back_empty(
    tmp_path: Path, shared_postgres: SharedPostgres, capsys: pytest.CaptureFixture[str]
) -> None:
    load = make_load()
    rpm, _, places = load
    loop = asyncio.get_running_loop()
    marks: list[float] = []

    async def kill() -> None:
        await asyncio.sleep(15)
        marks.append(loop.time())
        redis.kill()
        await redis.start()
        await asyncio.sleep(15)
        marks.append(loop.time())

    async with running_redis() as redis:
        limits = {"url": redis.url}
        async with limited_nodes(tmp_path, await shared_postgres.empty(), limits, load) as nodes:
            start = loop.time()
            trouble = asyncio.create_task(kill())
            await run_load(nodes, load, lambda: not trouble.done())
            await trouble
    killed, end = marks
    report(load, {"before": (start, killed), "killed + 3 s": (killed, killed + 3), "later": (killed + 3, end)}, capsys)
    check_statuses(load)
    assert len(rpm.arrived) <= 2 * BURST + (end - start) * RPM / MINUTE_S
    settled = [running for at, running in places.running if at >= killed + 1 + 2 + SERVICE_S]
    assert max(settled) <= PLACES + LATE  # right within two seconds of the reconnection, which takes at most one


async def test_valkey_stands_still_for_ten_seconds(
    tmp_path: Path, shared_postgres: SharedPostgres, capsys: pytest.CaptureFixture[str]
) -> None:
    load = make_load()
    rpm, _, places = load
    loop = asyncio.get_running_loop()
    marks: list[float] = []

    async def pause() -> None:
        assert redis.process is not None
        for what in (signal.SIGSTOP, signal.SIGCONT):
            await asyncio.sleep(10)
            marks.append(loop.time())
            os.kill(redis.process.pid, what)
        await asyncio.sleep(10)
        marks.append(loop.time())

    async with running_redis() as redis:
        limits = {"url": redis.url}
        async with limited_nodes(tmp_path, await shared_postgres.empty(), limits, load) as nodes:
            start = loop.time()
            trouble = asyncio.create_task(pause())
            await run_load(nodes, load, lambda: not trouble.done())
            await trouble
    stopped, back, end = marks
    phases = {
        "before": (start, stopped),
        "stopped + 2 s": (stopped, stopped + 2),
        "away": (stopped + 2, back),
        "later": (back, end),
    }
    report(load, phases, capsys)
    check_statuses(load)
    assert len(rpm.arrived) <= 2 * BURST + (end - start) * RPM / MINUTE_S
    settled = [running for at, running in places.running if not stopped <= at <= back + 1 + 2 + SERVICE_S]
    assert max(settled) <= PLACES + LATE


def report(
    load: tuple[Limited, ...], phases: dict[str, tuple[float, float]], capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        print()
        for name, (since, until) in phases.items():
            for one in load:
                passed = sum(since <= at < until for at in one.arrived)
                most = max([running for at, running in one.running if since <= at < until], default=0)
                figures = f"{passed / (until - since):.1f}/s passed, {most} at once"
                print(f"  {name:14} {one.name:7} {figures}; {one.describe(since, until)}")
