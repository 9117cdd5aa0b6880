"""Gateway processes of one cluster are killed while their callers spend one limit: the ledger stays right."""

import asyncio
from pathlib import Path

import pytest

from tests.support.cluster import start_nodes
from tests.support.gateway import channel
from tests.support.gateway_process import eventually
from tests.support.postgres import SharedPostgres
from tests.support.scripted_upstream import COMPLETION, Received, ScriptedUpstream, answer
from tests.support.spending_callers import COST_NANOS, PRICE, RESERVED_NANOS, Callers, is_at_rest, sum_up

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
CALLERS = 12
QUOTA_USD = 9.0


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
