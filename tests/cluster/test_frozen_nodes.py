"""A node is frozen under load, again and again: the other one serves and writes, and takes over its place."""

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import asyncpg
import pytest

from gateway.cluster.membership.times import ClusterTimes
from tests.support.cluster import find_leader, start_nodes
from tests.support.gateway import channel
from tests.support.gateway_process import SERVE, GatewayProcess, eventually
from tests.support.postgres import SharedPostgres
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.steady_callers import SteadyCallers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PRICE = {"model": "m", "input_usd_per_million": 1000, "output_usd_per_million": 1000}
TIMES = 10
DETECTED_S = ClusterTimes().dead_s + 10
_FOUND = """
SELECT (SELECT count(*) FROM requests) AS rows,
  (SELECT coalesce(sum(cost_nanos), 0)::bigint FROM requests) AS cost,
  (SELECT coalesce(sum(amount_nanos), 0)::bigint FROM entries) AS charged,
  (SELECT count(*) FROM (SELECT request_id FROM entries GROUP BY 1 HAVING count(*) > 1) twice) AS twice
"""


@pytest.mark.soak
@pytest.mark.parametrize("leads", [True, False], ids=["leader", "follower"])
async def test_a_node_that_is_frozen_under_load_holds_no_other_one_up_and_joins_again(
    tmp_path: Path, shared_postgres: SharedPostgres, *, leads: bool
) -> None:
    url = await shared_postgres.empty()
    connection = await asyncpg.connect(url)
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        tables = {"channel": [channel(up.base_url)], "account": [{"name": "acme"}], "price": [PRICE]}
        async with start_nodes(tmp_path, [url] * 2, tables, command=SERVE) as nodes:
            keys = [
                await nodes[0].ask("keys", {"name": f"k{number}", "account": "acme", **quota})
                for number, quota in enumerate(({}, {"quota_usd": 100_000.0}))
            ]
            await asyncio.sleep(0.5)  # the other node hears of them
            callers = [SteadyCallers([node], [key["secret"] for key in keys]) for node in nodes]
            async with callers[0].run(20), callers[1].run(20):
                for number in range(TIMES):
                    leader = await find_leader(url, nodes)
                    frozen = leader if leads else 1 - leader
                    await callers[frozen].wait(20)
                    since_s, until_s = await freeze_once(connection, nodes, frozen, keys[0]["id"], f"{leads} {number}")
                    assert set(callers[1 - frozen].count(since_s=since_s, until_s=until_s)) == {200}
                    await callers[frozen].wait(1)
            await check_books(nodes)
            assert [await node.end() for node in nodes] == [0, 0]
    found = await connection.fetchrow(_FOUND)
    await connection.close()
    print(dict(found), [dict(each.count()) for each in callers])  # noqa: T201 - the figures
    assert found["rows"] >= sum(each.count()[200] for each in callers)
    assert (found["cost"], found["twice"]) == (found["charged"], 0)


async def freeze_once(
    connection: asyncpg.Connection, nodes: Sequence[GatewayProcess], frozen: int, key: int, title: str
) -> tuple[float, float]:
    """Freeze a node until it is declared dead, write at the other one meanwhile, and wake it again.

    Return from when until when it was frozen (seconds of the monotonic clock).
    """
    name = (nodes[frozen].data / "node.id").read_text()

    async def is_in(state: str) -> bool:
        return bool(await connection.fetchval("SELECT state FROM nodes WHERE id = $1", name) == state)

    epoch = await connection.fetchval("SELECT epoch FROM nodes WHERE id = $1", name)
    os.kill(nodes[frozen].pid, signal.SIGSTOP)
    began_s = time.monotonic()
    try:
        await nodes[1 - frozen].ask(f"keys/{key}", {"rpm": 100_000}, "PATCH")
        wrote_s = time.monotonic() - began_s
        await eventually(lambda: is_in("dead"), DETECTED_S)
        dead_s = time.monotonic() - began_s
    finally:
        os.kill(nodes[frozen].pid, signal.SIGCONT)
    woken_s = time.monotonic()
    await eventually(lambda: is_in("live"), 15)
    back_s = time.monotonic() - woken_s
    print(f"{title}: wrote after {wrote_s:.1f} s, dead after {dead_s:.1f} s, back after {back_s:.1f} s")  # noqa: T201
    assert await connection.fetchval("SELECT epoch FROM nodes WHERE id = $1", name) == epoch + 1
    return began_s, woken_s


async def check_books(nodes: Sequence[GatewayProcess]) -> None:
    async def is_at_rest() -> bool:
        reports = [await node.ask("audit") for node in nodes]
        return all(report["open_holds"] == report["waiting_rows"] == 0 for report in reports)

    await eventually(is_at_rest, 30)
    for node in nodes:
        await node.check_books()
