"""Gateway processes on one database admit exactly what a limit of end users covers, also when one of them is killed."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest

from tests.support.cluster import is_known, start_nodes
from tests.support.gateway import CHAT, HELLO, channel
from tests.support.gateway_process import GatewayProcess, eventually, open_caller
from tests.support.postgres import SharedPostgres
from tests.support.scripted_upstream import COMPLETION, Received, ScriptedUpstream, answer
from tests.support.spending_callers import COST_NANOS, PRICE, RESERVED_USD, is_at_rest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
NODES, CALLERS, COVERED = 4, 400, 23
USERS = ("u-1", "u-2")
_SUMS = "SELECT subject, sum(spent_nanos)::bigint AS nanos FROM limit_counters GROUP BY subject ORDER BY subject"


def build_limit(covered: int, window: str) -> dict[str, Any]:
    return {"name": "each user", "of": "user", "usd": round(RESERVED_USD * covered + 0.001, 9), "window": window}


async def call(caller: aiohttp.ClientSession, node: GatewayProcess, user: str) -> tuple[int, str]:
    """Return the status of one request, and the message of its error."""
    body = {**HELLO, "max_tokens": 10, "user": user}
    async with caller.post(node.url + CHAT, json=body) as response:
        found = await response.json()
        return response.status, found.get("error", {}).get("message", "")


async def list_spent(url: str) -> dict[str, int]:
    connection = await asyncpg.connect(url)
    try:
        assert await connection.fetchval("SELECT count(*) FROM credit_leases WHERE owner = 2") == 0
        return {row["subject"].partition(":")[2]: row["nanos"] for row in await connection.fetch(_SUMS)}
    finally:
        await connection.close()


@pytest.mark.parametrize("window", ["month", "rolling:24h"])
async def test_callers_at_every_node_get_exactly_what_the_limit_of_their_user_covers(
    tmp_path: Path, shared_postgres: SharedPostgres, window: str
) -> None:
    url, reached, go_on = await shared_postgres.empty(), list[Received](), asyncio.Event()

    async def stand_still(received: Received) -> None:
        reached.append(received)
        await go_on.wait()

    async with ScriptedUpstream([stand_still, answer(COMPLETION)]) as up:
        slow = channel(up.base_url, first_byte_timeout_s=120, total_timeout_s=150)
        tables = {"channel": [slow], "account": [{"name": "acme"}], "price": [PRICE]}
        tables["limit"] = [build_limit(COVERED, window)]
        async with start_nodes(tmp_path, [url] * NODES, tables) as nodes:
            key = await nodes[0].ask("keys", {"name": "k", "account": "acme"})
            await eventually(lambda: is_known(nodes, key["secret"]), 30)
            async with open_caller(key["secret"]) as caller:
                calls = [
                    asyncio.create_task(call(caller, nodes[number % NODES], USERS[number // NODES % len(USERS)]))
                    for number in range(CALLERS)
                ]

                async def is_decided() -> bool:
                    return sum(task.done() for task in calls) + len(reached) >= CALLERS

                await eventually(is_decided, 120)
                assert len(reached) == COVERED * len(USERS)
                go_on.set()
                answers = [await task for task in calls]
            statuses = Counter(status for status, _ in answers)
            assert statuses == {200: COVERED * len(USERS), 429: CALLERS - COVERED * len(USERS)}
            assert all("limit 'each user' of the user 'u-" in message for status, message in answers if status != 200)
            await eventually(lambda: is_at_rest(nodes), 60)
            for node in nodes:
                await node.check_books()
            assert [await node.end() for node in nodes] == [0] * NODES
    assert await list_spent(url) == dict.fromkeys(USERS, COVERED * COST_NANOS)


async def test_a_user_spends_no_more_than_the_limit_while_nodes_are_killed(
    tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    url, reached, answers = await shared_postgres.empty(), list[Received](), Counter[int]()
    going_on = True

    async def note(received: Received) -> None:
        reached.append(received)
        await asyncio.sleep(0.1)

    async def keep_calling(caller: aiohttp.ClientSession, number: int) -> None:
        while going_on:
            number += 1
            try:
                status, _ = await call(caller, nodes[number % len(nodes)], "u-1")
            except (aiohttp.ClientError, OSError, TimeoutError):
                status = 0  # the node was killed
            answers[status] += 1
            if status != 200:
                await asyncio.sleep(0.05)

    async with ScriptedUpstream([note, answer(COMPLETION)]) as up:
        tables = {"channel": [channel(up.base_url)], "account": [{"name": "acme"}], "price": [PRICE]}
        tables["limit"] = [build_limit(60, "month")]
        async with start_nodes(tmp_path, [url] * 2, tables) as nodes:
            key = await nodes[0].ask("keys", {"name": "k", "account": "acme"})
            await eventually(lambda: is_known(nodes, key["secret"]), 30)
            async with open_caller(key["secret"]) as caller:
                calls = [asyncio.create_task(keep_calling(caller, number)) for number in range(8)]
                for number in range(2):
                    expected, refused = answers[200] + 15, answers[429] + 20

                    async def has_gone_on(expected: int = expected, refused: int = refused) -> bool:
                        """The other node may use up the limit while this one starts."""
                        return answers[200] >= expected or answers[429] >= refused

                    await eventually(has_gone_on, 60)
                    await nodes[number].kill()
                    await nodes[number].start()
                refused = answers[429] + 20

                async def is_used_up() -> bool:
                    return answers[429] >= refused

                await eventually(is_used_up, 90)
                going_on = False
                await asyncio.gather(*calls)
            await eventually(lambda: is_at_rest(nodes), 60)
            for node in nodes:
                await node.check_books()
            assert [await node.end() for node in nodes] == [0, 0]
    spent = (await list_spent(url))["u-1"]
    assert spent <= round((RESERVED_USD * 60 + 0.001) * 10**9)
    assert answers[200] * COST_NANOS <= spent <= len(reached) * COST_NANOS
