"""A session that is ended at one node is cancelled and refused at the others, and after their restart."""

import asyncio
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.support.cluster import start_nodes
from tests.support.fault_scene import until
from tests.support.gateway import CHAT, HELLO, KEY, channel
from tests.support.gateway_process import GatewayProcess, open_caller
from tests.support.postgres import SharedPostgres
from tests.support.scripted_upstream import STALL, ScriptedUpstream

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

_PUT_BUDGET = "INSERT INTO session_states (subject, account_id, limit_nanos, changed_ms) VALUES ($1, $2, 1000, 1)"


async def ask(node: GatewayProcess, session: str) -> tuple[int, str]:
    async with (
        open_caller(within_s=60) as caller,
        caller.post(node.url + CHAT, json=HELLO, headers={"x-gateway-session": session}) as response,
    ):
        return response.status, (await response.json())["error"]["code"]


async def test_a_session_ends_at_every_node(tmp_path: Path, shared_postgres: SharedPostgres) -> None:
    async with ScriptedUpstream([STALL]) as up:
        key = {"name": "test", "account": "acme", "secret": KEY}
        patient: dict[str, Any] = {"first_byte_timeout_s": 100, "total_timeout_s": 100}
        tables = {"channel": [channel(up.base_url, **patient)], "account": [{"name": "acme"}], "key": [key]}
        async with start_nodes(tmp_path, [await shared_postgres.empty()] * 2, tables) as (first, second):
            account_id = (await first.ask("accounts/acme"))["id"]
            running = [asyncio.create_task(ask(node, "run1")) for node in (first, second)]
            await until(lambda: len(up.received) == 2)
            ended = await first.ask(f"request-sessions/{account_id}:run1/end", method="POST")
            assert ended["cancelled"] == 1
            assert [await one for one in running] == [(409, "request_cancelled")] * 2
            for node in (first, second):
                assert await ask(node, "run1") == (403, "session_ended")
            await second.end()
            await second.start()
            assert await ask(second, "run1") == (403, "session_ended")
            assert len(up.received) == 2


async def test_nodes_refuse_a_session_whose_budget_a_single_gateway_has_stored(
    tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    url = await shared_postgres.empty()
    async with ScriptedUpstream([STALL]) as up:
        key = {"name": "test", "account": "acme", "secret": KEY}
        tables = {"channel": [channel(up.base_url)], "account": [{"name": "acme"}], "key": [key]}
        async with start_nodes(tmp_path, [url] * 2, tables) as (first, second):
            account_id = (await first.ask("accounts/acme"))["id"]
            connection = await asyncpg.connect(url)
            await connection.execute(_PUT_BUDGET, f"{account_id}:run1", account_id)
            await connection.close()
            await second.end()
            await second.start()
            assert (await ask(second, "run1"))[0] == 400
            assert not up.received
