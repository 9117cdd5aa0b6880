"""A database that has lost its last commits takes the place of a node's store: the node stores them again."""

import asyncio
from pathlib import Path

import asyncpg
import pytest

from tests.support.cluster import start_nodes
from tests.support.gateway import HELLO, channel
from tests.support.gateway_process import GatewayProcess, ask_chat, eventually, open_caller
from tests.support.postgres import PostgresServer, SharedPostgres
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
PRICE = {"model": "m", "input_usd_per_million": 1000, "output_usd_per_million": 1000}
COST_NANOS = 12_000_000


async def call(node: GatewayProcess, secret: str) -> int:
    async with open_caller(secret) as caller, ask_chat(caller, node.url, {**HELLO, "max_tokens": 10}) as response:
        await response.read()
        found: int = response.status
        return found


async def replace(server: PostgresServer, name: str, *, by: str = "", keep: str = "") -> None:
    """Cut all connections of a database; then ``keep`` a copy of it, or let another one take its place."""
    await server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    await server.execute(
        f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{name}'"  # noqa: S608
    )
    if keep:
        await server.execute(f"CREATE DATABASE {keep} TEMPLATE {name}")
        await server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    else:
        await server.execute(f"ALTER DATABASE {name} RENAME TO {name}_lost")
        await server.execute(f"ALTER DATABASE {by} RENAME TO {name}")


async def test_what_a_replaced_store_has_lost_is_stored_again_and_its_limit_holds(
    tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    server = await shared_postgres.get_server()
    url = await server.make_database()
    name = url.rpartition("/")[2]
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        tables = {"channel": [channel(up.base_url)], "account": [{"name": "acme"}], "price": [PRICE]}
        async with start_nodes(tmp_path, [url], tables) as (node,):
            key = await node.ask("keys", {"name": "k", "account": "acme", "quota_usd": 0.2})
            assert [await call(node, key["secret"]) for _ in range(3)] == [200] * 3
            await eventually(lambda: has_stored(node, 3), 30)
            await replace(server, name, keep=f"{name}_before")
            await eventually(lambda: serves(node, key["secret"]), 30)
            assert [await call(node, key["secret"]) for _ in range(3)] == [200] * 3
            await eventually(lambda: has_stored(node, 7), 30)
            await replace(server, name, by=f"{name}_before")
            await eventually(lambda: asyncio.sleep(0, bool(node.read_log("records_posted_again"))), 30)
            await eventually(lambda: has_stored(node, 7), 30)
            statuses = [await call(node, key["secret"]) for _ in range(12)]
            assert statuses == sorted(statuses)
            served = 7 + statuses.count(200)
            assert set(statuses) == {200, 403}
            assert served * COST_NANOS <= 200_000_000 < (served + 1) * COST_NANOS + 28_000_000
            await eventually(lambda: has_stored(node, served), 30)
            await node.check_books()
            assert await node.end() == 0
    connection = await asyncpg.connect(url)
    try:
        found = await connection.fetchrow("SELECT settled, leased, reserved FROM credit_balances WHERE owner = 1")
        assert tuple(found) == (served * COST_NANOS, 0, 0)
        assert await connection.fetchval("SELECT count(*) FROM requests WHERE outcome = 'completed'") == served
    finally:
        await connection.close()


async def has_stored(node: GatewayProcess, rows: int) -> bool:
    try:
        found = (await node.ask("requests"))["data"]
        return bool(sum(row["outcome"] == "completed" for row in found) == rows)
    except AssertionError:  # it is not in touch yet
        return False


async def serves(node: GatewayProcess, secret: str) -> bool:
    return await call(node, secret) == 200


async def test_revocations_are_applied_again_once_and_all_else_is_listed(
    tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    server = await shared_postgres.get_server()
    url = await server.make_database()
    name = url.rpartition("/")[2]
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        tables = {"channel": [channel(up.base_url)], "account": [{"name": "acme"}]}
        async with start_nodes(tmp_path, [url] * 2, tables) as nodes:
            ask = nodes[0].ask
            kept, revoked, gone = [await ask("keys", {"name": each, "account": "acme"}) for each in "abc"]
            await replace(server, name, keep=f"{name}_before")
            await eventually(lambda: are_ready(*nodes), 30)
            await ask(f"keys/{revoked['id']}", {"status": "disabled", "rpm": 6}, "PATCH")
            await ask(f"keys/{gone['id']}", method="DELETE")
            await ask("keys", {"name": "lost", "account": "acme"})
            await ask(f"keys/{kept['id']}", {"webhook_url": "https://example.org/hook"}, "PATCH")
            await replace(server, name, by=f"{name}_before")
            await eventually(lambda: asyncio.sleep(0, all(node.read_log("changes_lost") for node in nodes)), 30)
            await eventually(lambda: are_ready(*nodes), 30)
            for node in nodes:
                assert [await call(node, key["secret"]) for key in (kept, revoked, gone)] == [200, 401, 401]
            lost = (await nodes[1].ask("nodes/lost-changes"))["data"]
            assert [(each["action"], each["subject"]) for each in lost] == [
                ("key.edited", "acme/a"),
                ("key.created", "acme/lost"),
                ("key.deleted", "acme/c"),
                ("key.edited", "acme/b"),
            ]
            assert [bool(each["applied"]) for each in lost] == [False, False, True, True]
            shown = await ask(f"keys/{revoked['id']}")
            assert (shown["status"], shown["rpm"]) == ("disabled", 6)
            audited = (await ask("audit-trail?action=key"))["data"]
            assert [each["action"] for each in audited if "reapplied_at" in each["detail"]] == [
                "key.deleted",
                "key.edited",
            ]


async def are_ready(*nodes: GatewayProcess) -> bool:
    return all([(await node.probe())[0] == 200 for node in nodes])
