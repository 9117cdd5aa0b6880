"""The primary of the database is lost and a standby promoted: what it lacks, and what the former primary has."""

import asyncio
import signal
import time
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import asyncpg
import pytest

from tests.support.cluster import make_node, start_nodes
from tests.support.gateway import channel
from tests.support.gateway_process import GatewayProcess, eventually
from tests.support.lost_servers import check_books, name_servers, open_pair
from tests.support.postgres import PostgresServer, owning_pair
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.sockets import find_free_port
from tests.support.spending_callers import PRICE, call
from tests.support.steady_callers import SteadyCallers
from tests.support.stoppable_proxy import StoppableProxy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
_NODE_CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'gateway node %'"


async def cut_off(standby: PostgresServer, primary: PostgresServer) -> None:
    """Let ``standby`` follow the primary no more, with all that was committed so far."""

    async def count(server: PostgresServer, statement: str) -> int:
        connection = await asyncpg.connect(server.name_url("postgres"))
        try:
            return int(await connection.fetchval(statement))
        finally:
            await connection.close()

    behind = "SELECT coalesce(max(pg_current_wal_lsn() - replay_lsn), 0) FROM pg_stat_replication"
    await eventually(lambda: is_zero(count(primary, behind)), 30)
    await standby.execute("ALTER SYSTEM SET primary_conninfo = ''")
    await standby.execute("SELECT pg_reload_conf()")
    await eventually(lambda: is_zero(count(primary, "SELECT count(*) FROM pg_stat_replication")), 30)


async def is_zero(found: Awaitable[int]) -> bool:
    return await found == 0


async def test_revocations_that_a_standby_lacks_are_in_force_again(tmp_path: Path) -> None:
    async with owning_pair() as (primary, standby), ScriptedUpstream([answer(COMPLETION)]) as up:
        url = name_servers(await primary.make_database(), primary, standby)
        tables = {"channel": [channel(up.base_url)], "account": [{"name": "acme"}]}
        async with start_nodes(tmp_path, [url] * 2, tables) as nodes:
            keys = [await nodes[0].ask("keys", {"name": each, "account": "acme"}) for each in "abc"]
            await cut_off(standby, primary)
            await nodes[0].ask(f"keys/{keys[1]['id']}", {"status": "disabled"}, "PATCH")
            await nodes[0].ask(f"keys/{keys[2]['id']}", method="DELETE")
            await nodes[0].ask("keys", {"name": "lost", "account": "acme"})
            callers = SteadyCallers(nodes, [key["secret"] for key in keys])
            async with callers.run(30):
                await callers.wait(10)
                primary.signal(signal.SIGKILL)
                await asyncio.to_thread(standby.promote)
                await asyncio.gather(*(callers.wait(10, node=node, within_s=90) for node in range(2)))
            assert {(each.key, each.status) for each in callers.answers} <= {(0, 200), (0, 503), (1, 401), (2, 401)}
            lost = (await nodes[1].ask("nodes/lost-changes"))["data"]
            assert [(each["subject"], bool(each["applied"])) for each in lost] == [
                ("acme/lost", False), ("acme/c", True), ("acme/b", True),
            ]  # fmt: skip
            assert [await node.end() for node in nodes] == [0, 0]


async def test_of_two_primaries_the_older_one_is_left_when_nodes_meet(tmp_path: Path) -> None:
    """Each of two nodes keeps to a server of its own, as if the network between them were cut."""
    async with owning_pair() as (primary, standby), ScriptedUpstream([answer(COMPLETION)]) as up:
        url = await primary.make_database()
        urls = [f"{server.name_url(url.rpartition('/')[2])}" for server in (primary, standby)]
        tables = {"channel": [channel(up.base_url)], "account": [{"name": "acme"}], "price": [PRICE]}
        ports = find_free_port(), find_free_port()
        nodes = [make_node(tmp_path / f"node{port}", urls[0], tables, port=port) for port in ports]
        async with nodes[0] as older, nodes[1] as newer:
            key = await older.ask("keys", {"name": "k", "account": "acme"})
            await newer.end()
            await asyncio.to_thread(standby.promote)
            moved = make_node(newer.data, urls[1], tables)
            async with moved:
                callers = SteadyCallers([older, moved], [key["secret"]])
                async with callers.run(20):
                    await callers.wait(3, status=503, node=0, within_s=20)
                    left_s = time.monotonic()
                    await callers.wait(40, node=1)
                assert callers.count(0, since_s=left_s + 1).keys() == {503}
                assert callers.count(1).keys() == {200}
                assert older.read_log("store_outdated")
                assert any("timeline 2" in line["error"] for line in older.read_log("node_unanswered"))
                assert (await older.probe())[0] == 503
                await older.end()
                older.launch()  # it remembers
                assert await older.wait() == 2
                assert "stop this server" in older.err.read_text()


async def test_the_node_of_the_older_side_moves_over_without_a_restart(tmp_path: Path) -> None:
    """Its address leads to the former primary, then to a standby in the place of that one, then to the new primary."""
    async with open_pair() as pair, ScriptedUpstream([answer(COMPLETION)]) as up, AsyncExitStack() as stack:
        former, new, name = pair.primary, pair.standby, pair.url.rpartition("/")[2]
        tables = {"channel": [channel(up.base_url)], "account": [{"name": "acme"}], "price": [PRICE]}
        proxy = await stack.enter_async_context(StoppableProxy(former.port))
        by_proxy = former.name_url(name).replace(f":{former.port}/", f":{proxy.port}/")
        older = await stack.enter_async_context(make_node(tmp_path / "older", by_proxy, tables, port=find_free_port()))
        key = (await older.ask("keys", {"name": "k", "account": "acme", "quota_usd": 100}))["secret"]
        await eventually(pair.is_level, 30)
        await pair.detach()
        await asyncio.to_thread(new.promote)
        assert [await call(older, key) for _ in range(5)] == [200] * 5  # of which the new primary knows nothing
        newer = await stack.enter_async_context(make_node(tmp_path / "newer", new.name_url(name), tables))
        await eventually(partial(is_answered, older, key, 503), 60)

        follower = await asyncio.to_thread(new.make_standby, former.folder.with_name("follower"))
        await asyncio.to_thread(follower.start)
        stack.callback(follower.signal, signal.SIGKILL)
        proxy.target = follower.port
        await asyncio.to_thread(former.signal, signal.SIGKILL)
        await eventually(partial(can_list_audit, older), 60)
        assert (await call(older, key), (await older.probe())[0]) == (503, 503)
        await cut_off(follower, new)  # what is read there is out of date from now on
        late = (await newer.ask("keys", {"name": "late", "account": "acme"}))["secret"]

        proxy.target = new.port
        await eventually(partial(is_answered, older, key, 200), 60)
        assert [await call(node, late) for node in (older, newer)] == [200, 200]
        await eventually(lambda: is_zero(pair.ask(follower, _NODE_CONNECTIONS)), 30)
        assert len(older.read_log("store_replaced")) == 1
        served = sum("/chat/" in each.path for each in up.received)
        await check_books([older, newer], new.name_url(name), served)


async def is_answered(node: GatewayProcess, secret: str, status: int) -> bool:
    return await call(node, secret) == status


async def can_list_audit(node: GatewayProcess) -> bool:
    try:
        return bool((await node.ask("audit-trail"))["data"])
    except AssertionError:  # 503
        return False
