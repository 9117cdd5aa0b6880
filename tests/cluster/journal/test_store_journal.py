"""Nodes without disks of their own are killed and start again with empty folders: no call is lost, and none is left."""

import asyncio
import os
import random
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.support.cluster import start_nodes
from tests.support.gateway import CHAT, HELLO, channel
from tests.support.gateway_process import GatewayProcess, eventually, open_caller
from tests.support.postgres import SharedPostgres
from tests.support.scripted_upstream import COMPLETION, Received, ScriptedUpstream, answer
from tests.support.spending_callers import COST_NANOS, PRICE, Callers, is_at_rest, sum_up

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SOAK_S = 60.0
WITHIN_S = 120
"""How long a test waits for what must happen: a busy machine takes a minute for some of it."""
_DEAD = "UPDATE nodes SET state = 'dead' WHERE id = $1"
_LEFT = """
SELECT (SELECT count(*) FROM request_notes) + (SELECT count(*) FROM credit_leases l JOIN nodes n ON n.id = l.node
                                               WHERE n.state <> 'live')
  + (SELECT count(*) FROM nodes WHERE state = 'live' AND id <> ALL($1::text[]))
"""


class Cluster:
    """Nodes on one database, an account and a key with a limit, and a provider that takes 0.2 s."""

    def __init__(self, url: str, nodes: Sequence[GatewayProcess], reached: list[Received]) -> None:
        self.url, self.nodes, self.reached = url, list(nodes), reached

    async def kill(self, number: int) -> str:
        """Kill a node with all that it has on its disk; start another one in its place; return the name of the dead."""
        node = self.nodes[number]
        await node.kill()
        name = (node.data / "node.id").read_text()
        shutil.rmtree(node.data)
        await node.start()
        return name

    async def execute(self, statement: str, *values: Any) -> Any:
        connection = await asyncpg.connect(self.url)
        try:
            return await connection.fetchval(statement, *values)
        finally:
            await connection.close()

    async def has_rows(self, outcome: str, cost_nanos: int) -> bool:
        """Whether there are rows with ``outcome``, which cost so much together."""
        found = await self.execute("SELECT sum(cost_nanos)::bigint FROM requests WHERE outcome = $1", outcome)
        return bool(found == cost_nanos)

    async def has_settled(self) -> bool:
        """Whether nothing is left of any node but the present ones, and nothing is under way at those."""
        names = [(node.data / "node.id").read_text() for node in self.nodes]
        return await is_at_rest(self.nodes) and not await self.execute(_LEFT, names)

    async def check(self, callers: Callers, most_interrupted: int) -> dict[str, Any]:
        """Each call at the provider has its row, each row that says so its charge, and nothing is left over."""
        for node in self.nodes:
            await node.check_books()
        assert [await node.end() for node in self.nodes] == [0] * len(self.nodes)
        found = await sum_up(self.url)
        print(dict(callers.answers), found, len(self.reached))  # noqa: T201 - what happened
        rows = found["completed"] + found["interrupted"] + found["left_early"]
        assert rows >= len(self.reached), "a call that reached the provider has a row"
        assert found["completed"] + found["interrupted"] >= callers.answers[200]
        assert found["interrupted"] <= most_interrupted
        assert found["charged"] == (found["completed"] + found["left_early"]) * COST_NANOS
        # An interrupted call is charged nothing, and cost less than was reserved for it.
        assert 0 <= len(self.reached) * COST_NANOS - found["charged"] <= found["interrupted"] * COST_NANOS
        assert (found["leased"], found["leases"], found["notes"]) == (0, 0, 0)
        return found


def list_tables(base_url: str) -> dict[str, Any]:
    return {
        "channel": [channel(base_url)],
        "account": [{"name": "acme"}],
        "price": [PRICE],
        "cluster": {"enabled": True, "journal": "store", "orphan_after_s": 2},
    }


async def test_a_killed_node_whose_disk_is_lost_leaves_nothing_and_loses_no_call(
    tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    reached = list[Received]()

    async def note(received: Received) -> None:
        reached.append(received)
        await asyncio.sleep(0.2)

    url = await shared_postgres.empty()
    async with (
        ScriptedUpstream([note, answer(COMPLETION)]) as up,
        start_nodes(tmp_path, [url] * 2, list_tables(up.base_url)) as nodes,
    ):
        cluster = Cluster(url, nodes, reached)
        key = await nodes[0].ask("keys", {"name": "k", "account": "acme", "quota_usd": 9.0})
        callers = Callers(list(nodes), key["secret"])
        calls = [asyncio.create_task(callers.run(number)) for number in range(12)]
        for number in range(2):
            await callers.wait(200, 20, within_s=WITHIN_S)
            # The leader would take 20 s to be sure.
            await cluster.execute(_DEAD, await cluster.kill(number))
        await callers.wait(200, 20, within_s=WITHIN_S)
        callers.going_on = False
        await asyncio.gather(*calls)
        await eventually(cluster.has_settled, WITHIN_S)
        found = await cluster.check(callers, most_interrupted=callers.answers[200] + 24)
    assert found["interrupted"] > 0, "nothing was under way"


async def test_a_node_that_stops_in_order_may_lose_its_folder(tmp_path: Path, shared_postgres: SharedPostgres) -> None:
    url = await shared_postgres.empty()
    async with (
        ScriptedUpstream([answer(COMPLETION)]) as up,
        start_nodes(tmp_path, [url], list_tables(up.base_url)) as nodes,
    ):
        cluster = Cluster(url, nodes, [])
        key = await nodes[0].ask("keys", {"name": "k", "account": "acme", "quota_usd": 9.0})
        callers = Callers(list(nodes), key["secret"])
        calling = asyncio.create_task(callers.run(0))
        await callers.wait(200, 5, within_s=WITHIN_S)
        callers.going_on = False
        await calling
        assert await nodes[0].end() == 0
        before = await sum_up(url)
        assert (before["completed"], before["notes"], before["leases"]) == (callers.answers[200], 0, 0)
        shutil.rmtree(nodes[0].data)
        await nodes[0].start()
        assert (await cluster.execute("SELECT count(*) FROM nodes WHERE state = 'gone'")) == 1
        assert (nodes[0].data / "pepper").read_bytes(), "the secrets are the cluster's"


@pytest.mark.soak
async def test_nodes_without_disks_are_killed_at_random_for_a_minute(
    tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    chance, reached, kills = random.Random(4), list[Received](), 0  # noqa: S311 - the same each time

    async def note(received: Received) -> None:
        reached.append(received)
        await asyncio.sleep(chance.uniform(0.05, 0.4))

    url = await shared_postgres.empty()
    async with (
        ScriptedUpstream([note, answer(COMPLETION)]) as up,
        start_nodes(tmp_path, [url] * 4, list_tables(up.base_url)) as nodes,
    ):
        cluster = Cluster(url, nodes, reached)
        key = await nodes[0].ask("keys", {"name": "k", "account": "acme", "quota_usd": 2_000.0})
        callers = Callers(list(nodes), key["secret"])
        calls = [asyncio.create_task(callers.run(number)) for number in range(48)]
        until, starting = time.monotonic() + SOAK_S, dict[int, asyncio.Task[str]]()
        while time.monotonic() < until:
            await asyncio.sleep(chance.uniform(0.7, 1.6))
            running = [number for number in range(4) if number not in starting or starting[number].done()]
            if len(running) > 1:  # one of them goes on to serve
                number, kills = chance.choice(running), kills + 1
                starting[number] = asyncio.create_task(cluster.kill(number))
        await asyncio.gather(*starting.values())
        callers.going_on = False
        await asyncio.gather(*calls)
        await eventually(cluster.has_settled, 90)
        # What runs at a node, and what it has answered since its last flush.
        found = await cluster.check(callers, most_interrupted=callers.answers[200])
    print(f"{kills} kills, {found['interrupted'] / kills:.1f} interrupted calls each")  # noqa: T201 - what happened


async def test_a_frozen_node_that_comes_back_corrects_what_was_recorded_for_it(
    tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    reached, going_on = asyncio.Event(), asyncio.Event()

    async def wait(_received: Received) -> None:
        reached.set()
        await going_on.wait()

    url = await shared_postgres.empty()
    async with ScriptedUpstream([wait, answer(COMPLETION)]) as up:
        tables = list_tables(up.base_url)
        tables["channel"] = [channel(up.base_url, first_byte_timeout_s=WITHIN_S, total_timeout_s=WITHIN_S)]
        async with start_nodes(tmp_path, [url] * 2, tables) as nodes:
            cluster = Cluster(url, nodes, [])
            await eventually(lambda: leads_any(nodes), WITHIN_S)
            frozen = next(node for node in nodes if not node.read_log("node_leads"))
            name = (frozen.data / "node.id").read_text()
            key = await nodes[0].ask("keys", {"name": "k", "account": "acme", "quota_usd": 9.0})
            async with open_caller(key["secret"]) as caller:
                calling = asyncio.create_task(caller.post(frozen.url + CHAT, json={**HELLO, "max_tokens": 10}))
                await asyncio.wait_for(reached.wait(), WITHIN_S)
                os.kill(frozen.pid, signal.SIGSTOP)
                try:
                    await cluster.execute(_DEAD, name)
                    await eventually(lambda: cluster.has_rows("interrupted", 0), WITHIN_S)
                finally:
                    os.kill(frozen.pid, signal.SIGCONT)
                going_on.set()
                response = await calling
                assert response.status == 200
                await response.read()
            await eventually(lambda: cluster.has_rows("completed", COST_NANOS), WITHIN_S)
            assert await cluster.execute("SELECT count(*) FROM requests") == 1
            for node in nodes:
                await node.check_books()
            assert [await node.end() for node in nodes] == [0, 0]
    found = await sum_up(url)
    assert (found["charged"], found["leased"], found["leases"], found["notes"]) == (COST_NANOS, 0, 0, 0)


async def leads_any(nodes: Sequence[GatewayProcess]) -> bool:
    return any(node.read_log("node_leads") for node in nodes)
