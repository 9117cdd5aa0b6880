"""M1 to M3 with gateway processes: of many callers at four nodes exactly as many pass as a limit covers, through kills.

``M1_RUNS`` is how often each combination of M1 is tried.
"""

import asyncio
import json
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import attrs
import pytest

from tests.support.cluster import start_nodes
from tests.support.credit_nodes import World, look
from tests.support.gateway import CHAT, HELLO, channel
from tests.support.gateway_process import GatewayProcess, eventually, open_caller
from tests.support.postgres import SharedPostgres
from tests.support.scripted_upstream import COMPLETION, Received, Script, ScriptedUpstream, answer
from tests.support.spending_callers import PRICE, is_at_rest

pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]
NODES = 4
CALLERS = 400
RESERVED_NANOS = 28_000_000
"""Of one request: 18 tokens of prompt and 10 of the answer at the price above."""
SPARE_NANOS = RESERVED_NANOS - 1_000_000
"""What a limit has beside what it covers exactly."""
RUNS = int(os.environ.get("M1_RUNS", "10"))
WHOSE = ("key", "account", "account under keys")


@attrs.define
class Door:
    """A provider whose requests stand still until it is open."""

    reached: int = 0
    go_on: asyncio.Event = attrs.Factory(asyncio.Event)

    async def stand_still(self, _: Received) -> None:
        self.reached += 1
        await self.go_on.wait()


@attrs.define
class Site:
    """Four nodes, their database, and the provider."""

    nodes: Sequence[GatewayProcess]
    url: str
    door: Door
    made: int = 0

    async def make_caller(self, covered: int, whose: str, period: str) -> str:
        """Make an account and a key of which one has a limit that covers so many requests; return the key's secret."""
        self.made += 1
        limit = {"quota_usd": (covered * RESERVED_NANOS + SPARE_NANOS) / 1e9, "quota_period": period}
        roomy = {"quota_usd": 1_000_000.0, "quota_period": period}
        of_account = {"key": {}, "account": limit, "account under keys": limit}[whose]
        of_key = {"key": limit, "account": {}, "account under keys": roomy}[whose]
        name = f"a{self.made}"
        await self.nodes[0].ask("accounts", {"name": name, **of_account})
        key = await self.nodes[0].ask("keys", {"name": "k", "account": name, **of_key})
        secret = str(key["secret"])

        async def is_known() -> bool:
            async with open_caller(secret) as caller:
                return [(await caller.get(f"{node.url}/v1/models")).status for node in self.nodes] == [200] * NODES

        await eventually(is_known, 30)
        return secret


@asynccontextmanager
async def open_site(folder: Path, shared: SharedPostgres) -> AsyncIterator[Site]:
    door, url = Door(), await shared.empty()
    async with ScriptedUpstream([door.stand_still, answer(COMPLETION)]) as up:
        slow = channel(up.base_url, first_byte_timeout_s=600, total_timeout_s=900)
        tables = {"channel": [slow], "account": [{"name": "acme"}], "price": [PRICE]}
        async with start_nodes(folder, [url] * NODES, tables) as nodes:
            yield Site(nodes, url, door)


async def ask(caller: aiohttp.ClientSession, node: GatewayProcess) -> tuple[int, str, float]:
    """Return the status, the error's code (of a 503: its message), and how long it took in seconds."""
    began = time.perf_counter()
    body = {**HELLO, "max_tokens": 10}
    async with caller.post(node.url + CHAT, json=body, timeout=aiohttp.ClientTimeout(total=900)) as response:
        found = await response.json()
        took = time.perf_counter() - began
        what = "message" if response.status == 503 else "code"
        return response.status, str(found.get("error", {}).get(what, "")), took


async def try_once(site: Site, covered: int, whose: str, period: str) -> float:
    """Let 400 ask at once; return what the slowest refusal took in seconds."""
    secret = await site.make_caller(covered, whose, period)
    site.door.reached, site.door.go_on = 0, asyncio.Event()
    headers = {"authorization": f"Bearer {secret}"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as caller:
        calls = [asyncio.create_task(ask(caller, site.nodes[number % NODES])) for number in range(CALLERS)]

        async def is_decided() -> bool:
            return sum(task.done() for task in calls) + site.door.reached >= CALLERS

        try:
            await eventually(is_decided, 120)
            refused = [task.result() for task in calls if task.done()]
            at_provider = site.door.reached
        finally:
            site.door.go_on.set()
        answers = await asyncio.gather(*calls)
    expected = 403 if period == "lifetime" else 429
    codes = Counter((status, code) for status, code, _ in answers)
    assert at_provider == covered, (whose, period, codes)
    assert codes[200, ""] == covered, codes
    assert {status for status, _ in codes} == {200, expected}, codes
    assert {code for status, code in codes if status != 200} == {"insufficient_quota"}, codes
    return max(took for _, _, took in refused)


@pytest.mark.parametrize("covered", [1, 7, 37, 399])
async def test_exactly_as_many_as_a_limit_covers_reach_the_provider(
    tmp_path: Path, shared_postgres: SharedPostgres, covered: int
) -> None:
    """M1."""
    slowest: list[float] = []
    async with open_site(tmp_path, shared_postgres) as site:
        for whose in WHOSE:
            for period in ("lifetime", "daily", "monthly"):
                slowest += [await try_once(site, covered, whose, period) for _ in range(RUNS)]
        await eventually(lambda: is_at_rest(site.nodes), 60)
        for node in site.nodes:
            await node.check_books()
        assert [await node.end() for node in site.nodes] == [0] * NODES
    slowest.sort()
    print(f"M1: K = {covered}, {len(slowest)} runs of {CALLERS} callers: exact; slowest refusal of a run: median")  # noqa: T201
    print(f"{slowest[len(slowest) // 2]:.2f} s, most {slowest[-1]:.2f} s")  # noqa: T201


def make_scripts(chance: random.Random, counter: Counter[str]) -> list[Script]:
    """Answers that use 1 to 10 tokens, each after up to a tenth of a second."""

    async def note(_: Received) -> None:
        counter["provider"] += 1

    def make(tokens: int) -> Script:
        used = COMPLETION["usage"]["prompt_tokens"]
        usage = {"prompt_tokens": used, "completion_tokens": tokens, "total_tokens": used + tokens}
        return [note, tokens / 100, answer({**COMPLETION, "usage": usage})]

    kinds = [make(tokens) for tokens in range(1, 11)]
    return [chance.choice(kinds) for _ in range(100_000)]


async def watch_store(url: str, world: World) -> None:
    connection = await asyncpg.connect(url)
    try:
        while True:
            await look(connection, world)
            await asyncio.sleep(0.02)
    finally:
        connection.terminate()


class LoadCallers:
    """Callers that ask one node after another until told to stop; what a node answers is counted."""

    def __init__(self, nodes: Sequence[GatewayProcess], secret: str) -> None:
        self._nodes, self._secret = nodes, secret
        self.answers: Counter[int] = Counter()
        self.broken = 0
        self.going_on = True

    async def run(self, number: int) -> None:
        async with open_caller(self._secret) as caller:
            while self.going_on:
                number += 1
                try:
                    status, _, _ = await ask(caller, self._nodes[number % len(self._nodes)])
                    self.answers[status] += 1
                    if status != 200:
                        await asyncio.sleep(0.1)
                except (aiohttp.ClientError, OSError, TimeoutError, json.JSONDecodeError):
                    self.broken += 1
                    await asyncio.sleep(0.05)


async def test_requests_that_end_at_different_costs_never_spend_more_than_the_limit(
    tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    """M2."""
    counter, url = Counter[str](), await shared_postgres.empty()
    covered = int(os.environ.get("M2_REQUESTS", "600"))
    world = World(url, random.Random(2))  # noqa: S311 - no secret
    async with ScriptedUpstream(*make_scripts(world.chance, counter)) as up:
        tables = {"channel": [channel(up.base_url)], "account": [{"name": "acme"}], "price": [PRICE]}
        async with start_nodes(tmp_path, [url] * NODES, tables) as nodes:
            site = Site(nodes, url, Door())
            secret = await site.make_caller(covered, "account under keys", "daily")
            watching = asyncio.create_task(watch_store(url, world))
            crowd = LoadCallers(nodes, secret)
            calls = [asyncio.create_task(crowd.run(number)) for number in range(48)]
            began = time.perf_counter()
            while crowd.answers[429] < 200 or min(crowd.answers.values()) == 0:
                await asyncio.sleep(0.2)
                assert time.perf_counter() - began < 600, crowd.answers
            await asyncio.sleep(3)
            crowd.going_on = False
            await asyncio.gather(*calls)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await eventually(lambda: is_at_rest(nodes), 60)
            for node in nodes:
                await node.check_books()
            assert [await node.end() for node in nodes] == [0] * NODES
    assert world.wrong == []
    limit = covered * RESERVED_NANOS + SPARE_NANOS
    connection = await asyncpg.connect(url)
    try:
        spent = int(await connection.fetchval("SELECT sum(amount_nanos) FROM entries WHERE kind = 'charge'"))
        rows = await connection.fetchval("SELECT count(*) FROM requests WHERE outcome = 'completed'")
        assert await connection.fetchval("SELECT count(*) FROM credit_leases") == 0
    finally:
        await connection.close()
    print(f"M2: {rows} requests, ${spent / 1e9} of ${limit / 1e9}, {world.done['looked']} balances seen, all right")  # noqa: T201
    assert rows == counter["provider"] == crowd.answers[200]
    assert 0 <= limit - spent < RESERVED_NANOS


async def test_four_nodes_that_are_killed_at_random_under_load_charge_each_request_once(
    tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    """M3."""
    lasts_s, counter, url = float(os.environ.get("M3_S", "60")), Counter[str](), await shared_postgres.empty()
    chance, kills = random.Random(3), 0  # noqa: S311 - no secret
    async with ScriptedUpstream(*make_scripts(chance, counter)) as up:
        tables = {"channel": [channel(up.base_url)], "account": [{"name": "acme"}], "price": [PRICE]}
        async with start_nodes(tmp_path, [url] * NODES, tables) as nodes:
            site = Site(nodes, url, Door())
            secret = await site.make_caller(100_000, "account under keys", "lifetime")
            crowd = LoadCallers(nodes, secret)
            calls = [asyncio.create_task(crowd.run(number)) for number in range(48)]
            until = time.perf_counter() + lasts_s
            starting: dict[int, asyncio.Task[Any]] = {}
            while time.perf_counter() < until:
                await asyncio.sleep(chance.uniform(0.7, 1.6))
                ready = [at for at in range(NODES) if at not in starting or starting[at].done()]
                if len(ready) > 1:  # one is always there
                    at = chance.choice(ready)
                    await nodes[at].kill()
                    kills += 1
                    starting[at] = asyncio.create_task(nodes[at].start())
            await asyncio.gather(*starting.values())
            crowd.going_on = False
            await asyncio.gather(*calls)
            await eventually(lambda: is_at_rest(nodes), 60)
            reports = [await node.check_books() for node in nodes]
            assert [await node.end() for node in nodes] == [0] * NODES
    connection = await asyncpg.connect(url)
    try:
        rows = Counter({
            row["outcome"]: row["number"]
            for row in await connection.fetch("SELECT outcome, count(*) AS number FROM requests GROUP BY 1")
        })  # fmt: skip
        charges = await connection.fetchrow(
            "SELECT count(*) AS number, count(DISTINCT request_id) AS requests FROM entries WHERE kind = 'charge'"
        )
        left = await connection.fetchrow(
            "SELECT (SELECT count(*) FROM credit_leases), (SELECT sum(leased + reserved) FROM credit_balances)"
        )
    finally:
        await connection.close()
    print(f"M3: {kills} kills in {lasts_s:.0f} s; answers {dict(crowd.answers)}, {crowd.broken} broken")  # noqa: T201
    print(f"rows {dict(rows)}, {counter['provider']} requests at the provider, {charges['number']} charges")  # noqa: T201
    assert all(report["ok"] for report in reports)
    # A node can be killed between its provider's answer and its caller's, and between its note and its provider.
    assert rows["completed"] >= crowd.answers[200] > 0
    assert rows["completed"] - crowd.answers[200] <= crowd.broken
    assert rows["completed"] <= counter["provider"] <= rows["completed"] + rows["interrupted"] + rows["cancelled"]
    assert charges["number"] == charges["requests"] >= rows["completed"]
    assert [int(each) for each in left] == [0, 0]
