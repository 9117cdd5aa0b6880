"""Gateway processes of one cluster are killed while their callers spend one limit: the ledger stays right."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest

from tests.support.cluster import start_nodes
from tests.support.gateway import CHAT, HELLO, channel
from tests.support.gateway_process import GatewayProcess, eventually, open_caller
from tests.support.postgres import SharedPostgres
from tests.support.scripted_upstream import COMPLETION, Received, ScriptedUpstream, answer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
PRICE = {"model": "m", "input_usd_per_million": 1000, "output_usd_per_million": 1000}
COST_NANOS, RESERVED_NANOS = 12_000_000, 28_000_000
"""Of a request: 12 tokens are used, of 18 tokens of prompt and 10 of the answer."""
CALLERS = 12
QUOTA_USD = 9.0


class Callers:
    """Callers of one key, at all nodes in turn, until a node answers that nothing is left."""

    def __init__(self, nodes: list[GatewayProcess], secret: str) -> None:
        self._nodes, self._secret = nodes, secret
        self.answers: Counter[int] = Counter()
        self.going_on = True

    async def run(self, number: int) -> None:
        async with open_caller(self._secret) as caller:
            while self.going_on:
                number += 1
                try:
                    await self._call(caller, self._nodes[number % len(self._nodes)].url)
                except (aiohttp.ClientError, OSError, TimeoutError):
                    await asyncio.sleep(0.05)  # it has been killed

    async def wait(self, status: int, more: int, *, within_s: float) -> None:
        """Wait for more answers of ``status``."""
        until = self.answers[status] + more

        async def is_reached() -> bool:
            return self.answers[status] >= until

        try:
            await eventually(is_reached, within_s)
        except TimeoutError:
            raise AssertionError(self.answers) from None

    async def _call(self, caller: aiohttp.ClientSession, url: str) -> None:
        async with caller.post(url + CHAT, json={**HELLO, "max_tokens": 10}) as response:
            await response.read()
            self.answers[response.status] += 1
            if response.status != 200:
                await asyncio.sleep(0.05)


async def sum_up(url: str) -> dict[str, Any]:
    connection = await asyncpg.connect(url)
    try:
        return dict(
            await connection.fetchrow(
                "SELECT (SELECT coalesce(sum(amount_nanos), 0)::bigint FROM entries) AS charged,"
                " (SELECT count(*) FROM requests WHERE outcome = 'completed') AS completed,"
                " (SELECT count(*) FROM requests WHERE outcome = 'interrupted') AS interrupted,"
                " (SELECT sum(leased)::bigint FROM credit_balances) AS leased,"
                " (SELECT count(*) FROM credit_leases) AS leases"
            )
        )
    finally:
        await connection.close()


async def test_killed_nodes_lose_no_charge_and_give_back_what_they_had(
    tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    reached = list[Received]()

    async def note(received: Received) -> None:
        reached.append(received)
        await asyncio.sleep(0.2)

    url = await shared_postgres.empty()
    async with ScriptedUpstream([note, answer(COMPLETION)]) as up:
        tables = {"channel": [channel(up.base_url)], "account": [{"name": "acme"}], "price": [PRICE]}
        async with start_nodes(tmp_path, [url] * 2, tables) as nodes:
            key = await nodes[0].ask("keys", {"name": "k", "account": "acme", "quota_usd": QUOTA_USD})
            callers = Callers(list(nodes), key["secret"])
            calls = [asyncio.create_task(callers.run(number)) for number in range(CALLERS)]
            for number in range(3):
                await callers.wait(200, 20, within_s=60)
                await nodes[number % 2].kill()
                await nodes[number % 2].start()
            await callers.wait(403, CALLERS, within_s=90)
            callers.going_on = False
            await asyncio.gather(*calls)
            await eventually(lambda: is_at_rest(nodes), 30)
            for node in nodes:
                await node.check_books()
            assert [await node.end() for node in nodes] == [0, 0]
    found = await sum_up(url)
    print(dict(callers.answers), found, len(reached))  # noqa: T201 - what happened
    assert found["completed"] >= callers.answers[200]
    assert found["completed"] + found["interrupted"] >= len(reached) >= found["completed"]
    assert found["charged"] == found["completed"] * COST_NANOS
    left = QUOTA_USD * 10**9 - found["charged"]  # what ran when the callers stopped had reserved more than it cost
    assert 0 <= left < CALLERS * RESERVED_NANOS
    assert (found["leased"], found["leases"]) == (0, 0)


async def is_at_rest(nodes: Sequence[GatewayProcess]) -> bool:
    reports = [await node.ask("audit") for node in nodes]
    return all(report["open_holds"] == report["waiting_rows"] == 0 for report in reports)
