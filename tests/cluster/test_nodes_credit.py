"""Gateway processes on one database together admit exactly what a spending limit covers."""

import asyncio
from collections import Counter
from pathlib import Path

import aiohttp
import asyncpg
import pytest

from tests.support.cluster import start_nodes
from tests.support.gateway import channel
from tests.support.gateway_process import eventually, open_caller
from tests.support.postgres import SharedPostgres
from tests.support.scripted_upstream import COMPLETION, Received, ScriptedUpstream, answer
from tests.support.spending_callers import PRICE, RESERVED_USD, call

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
CALLERS, COVERED, NODES = 40, 7, 3


async def test_callers_of_one_key_at_every_node_get_exactly_what_its_limit_covers(
    tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    reached, go_on = list[Received](), asyncio.Event()

    async def stand_still(received: Received) -> None:
        reached.append(received)
        await go_on.wait()

    async with ScriptedUpstream([stand_still, answer(COMPLETION)]) as up:
        slow = channel(up.base_url, first_byte_timeout_s=60, total_timeout_s=90)
        tables = {"channel": [slow], "account": [{"name": "acme"}], "price": [PRICE]}
        async with start_nodes(tmp_path, [await shared_postgres.empty()] * NODES, tables) as nodes:
            quota = {"quota_usd": round(RESERVED_USD * COVERED, 9)}
            key = await nodes[0].ask("keys", {"name": "k", "account": "acme", **quota})

            async def is_known() -> bool:
                async with open_caller(key["secret"]) as caller:
                    found = [(await caller.get(f"{node.url}/v1/models")).status for node in nodes]
                return found == [200] * NODES

            await eventually(is_known, 30)
            calls = [asyncio.create_task(call(nodes[number % NODES], key["secret"])) for number in range(CALLERS)]

            async def is_decided() -> bool:
                return sum(task.done() for task in calls) + len(reached) >= CALLERS

            await eventually(is_decided, 60)
            assert len(reached) == COVERED
            go_on.set()
            answers = Counter([await task for task in calls])
            assert answers == {200: COVERED, 403: CALLERS - COVERED}
            assert [await node.end() for node in nodes] == [0] * NODES


async def test_a_killed_node_that_starts_again_has_charged_each_request_once_and_keeps_no_credit(
    tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    url, reached = await shared_postgres.empty(), list[Received]()

    async def stand_still(received: Received) -> None:
        reached.append(received)
        await asyncio.Event().wait()

    async with ScriptedUpstream([answer(COMPLETION)], [answer(COMPLETION)], [stand_still]) as up:
        slow = channel(up.base_url, first_byte_timeout_s=60, total_timeout_s=90)
        tables = {"channel": [slow], "account": [{"name": "acme"}], "price": [PRICE]}
        async with start_nodes(tmp_path, [url] * 2, tables) as nodes:
            first, second = nodes
            key = await first.ask("keys", {"name": "k", "account": "acme", "quota_usd": round(RESERVED_USD * 3, 9)})
            assert [await call(first, key["secret"]) for _ in range(2)] == [200, 200]
            running = asyncio.create_task(call(first, key["secret"]))
            await eventually(lambda: asyncio.sleep(0, bool(reached)), 30)
            await first.kill()
            with pytest.raises(aiohttp.ClientError):
                await running
            await first.start()

            async def has_settled() -> bool:
                return len((await second.ask("requests"))["data"]) == 3

            await eventually(has_settled, 30)
            rows = (await second.ask("requests"))["data"]
            assert Counter(row["outcome"] for row in rows) == {"completed": 2, "interrupted": 1}
            assert len({row["id"] for row in rows}) == 3
            spent = sum(row["cost_nanos"] for row in rows)
            assert [await node.end() for node in nodes] == [0, 0]
    connection = await asyncpg.connect(url)
    try:
        assert await connection.fetchval("SELECT count(*) FROM credit_leases") == 0
        found = await connection.fetchrow("SELECT settled, leased, reserved FROM credit_balances WHERE owner = 1")
        assert tuple(found) == (spent, 0, 0)
        assert await connection.fetchval("SELECT sum(amount_nanos) FROM entries WHERE kind = 'charge'") == spent
        assert await connection.fetchval("SELECT array_agg(epoch ORDER BY epoch) FROM nodes") == [1, 2]
    finally:
        await connection.close()
