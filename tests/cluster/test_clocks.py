"""Nodes whose machines have wrong clocks: the store's clock decides, and a limit is kept to the last request."""

import asyncio
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest

from tests.support.cluster import MASTER_KEY
from tests.support.gateway import CHAT, HELLO, channel
from tests.support.gateway_process import GatewayProcess, eventually, open_caller
from tests.support.postgres import SharedPostgres
from tests.support.scripted_upstream import COMPLETION, Received, ScriptedUpstream, answer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
AHEAD_S = (90, -3600, 86_400)
CALLERS, COVERED = 24, 7
RESERVED_USD = 0.028
"""Of one request: 18 tokens of prompt and 10 of the answer at the price below."""
PRICE = {"model": "m", "input_usd_per_million": 1000, "output_usd_per_million": 1000}
SHIFTED = (
    "import sys, time; now, now_ns = time.time, time.time_ns; "
    "time.time = lambda: now() + ({0}); time.time_ns = lambda: now_ns() + ({0}) * 10**9; "
    "sys.argv[0] = 'gateway'; from gateway.cli.main import main; main()"
)
"""A gateway on a machine whose clock is ahead by so many seconds."""
_FOUND = """
SELECT (SELECT count(*) FROM requests WHERE outcome = 'completed') AS rows,
  (SELECT count(*) FROM requests WHERE abs(settled_ms - $1) > 60000 OR abs(started_ms - $1) > 60000) AS wrong,
  (SELECT count(DISTINCT day) FROM usage_days) AS days,
  (SELECT count(*) FROM changes WHERE abs(at_ms - $1) > 60000) AS changes,
  (SELECT array_agg(DISTINCT epoch) FROM nodes) AS epochs
"""


def make_node(path: Path, url: str, tables: dict[str, object], ahead_s: int) -> GatewayProcess:
    cluster = {"store": {"url": url, "master_key": MASTER_KEY}, "cluster": {"enabled": True}}
    return GatewayProcess(path, {**cluster, **tables}, command=("-c", SHIFTED.format(ahead_s), "serve"))


async def call(node: GatewayProcess, secret: str) -> int:
    async with (
        open_caller(secret) as caller,
        caller.post(node.url + CHAT, json={**HELLO, "max_tokens": 10}, timeout=60) as response,  # type: ignore[arg-type]
    ):
        await response.read()
        return response.status


async def test_wrong_clocks_of_nodes_end_no_key_and_shift_no_day_and_no_limit(
    tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    url = await shared_postgres.empty()
    reached, go_on = list[Received](), asyncio.Event()

    async def stand_still(received: Received) -> None:
        reached.append(received)
        await go_on.wait()

    async with ScriptedUpstream([stand_still, answer(COMPLETION)]) as up:
        slow = channel(up.base_url, first_byte_timeout_s=60, total_timeout_s=90)
        tables: dict[str, object] = {"channel": [slow], "account": [{"name": "acme"}], "price": [PRICE]}
        nodes = [make_node(tmp_path / f"node{ahead_s}", url, tables, ahead_s) for ahead_s in AHEAD_S]
        try:
            await asyncio.gather(*(node.start() for node in nodes))
            away_from_midnight()
            expires = (datetime.now(UTC) + timedelta(minutes=30)).strftime("%Y-%m-%dT%H:%M:%SZ")
            quota = {"quota_usd": round(RESERVED_USD * COVERED, 9), "quota_period": "daily", "expires_at": expires}
            key = await nodes[1].ask("keys", {"name": "k", "account": "acme", "rpm": 100_000, **quota})

            async def is_known() -> bool:
                async with open_caller(key["secret"]) as caller:
                    found = [(await caller.get(f"{node.url}/v1/models")).status for node in nodes]
                return found == [200] * len(nodes)

            await eventually(is_known, 30)
            calls = [asyncio.create_task(call(nodes[number % 3], key["secret"])) for number in range(CALLERS)]

            async def is_decided() -> bool:
                return sum(task.done() for task in calls) + len(reached) >= CALLERS

            await eventually(is_decided, 60)
            assert len(reached) == COVERED
            go_on.set()
            assert Counter([await task for task in calls]) == {200: COVERED, 429: CALLERS - COVERED}
            assert [await node.end() for node in nodes] == [0] * len(nodes)
        finally:
            for node in nodes:
                await node.kill()
    connection = await asyncpg.connect(url)
    try:
        found = dict(await connection.fetchrow(_FOUND, int(time.time() * 1000)))
    finally:
        await connection.close()
    assert found == {"rows": COVERED, "wrong": 0, "days": 1, "changes": 0, "epochs": [1]}


def away_from_midnight() -> None:
    if time.time() % 86_400 > 86_400 - 60:
        pytest.skip("the day is about to end")
