"""What operators see of all nodes at any one of them: requests under way, nodes, health and channels."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.server.sessions import CONSOLE_HEADER
from tests.support.cluster import make_node
from tests.support.console import FROGS
from tests.support.gateway import CHAT, HELLO, channel
from tests.support.gateway_process import GatewayProcess, eventually
from tests.support.postgres import SharedPostgres
from tests.support.scripted_upstream import STALL, ScriptedUpstream
from tests.support.sockets import find_free_port
from tests.support.upstream_scripts import STARTED, TWO

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
WITHIN_S = 30


@pytest.fixture
async def url(shared_postgres: SharedPostgres) -> str:
    return await shared_postgres.empty()


@pytest.fixture
async def tables() -> AsyncIterator[dict[str, Any]]:
    async with ScriptedUpstream([*STARTED, STALL]) as up:
        unhurried: dict[str, Any] = {"first_byte_timeout_s": 150, "idle_timeout_s": 150, "total_timeout_s": 150}
        yield {"channel": [channel(up.base_url, **unhurried)], "account": [{"name": "acme"}, {"name": "other"}]}


@asynccontextmanager
async def start(path: Path, url: str, tables: dict[str, Any], known: Sequence[bool]) -> AsyncIterator[list[Any]]:
    """A node for each of ``known``: whether the others know where they reach it, as nodes of one machine do."""
    nodes = []
    for number, is_known in enumerate(known):
        nodes.append(make_node(path / f"node{number}", url, tables, port=find_free_port() if is_known else 0))
    async with AsyncExitStack() as stack:
        for node in nodes:
            stack.push_async_callback(node.kill)
        await asyncio.gather(*(node.start() for node in nodes))
        await eventually(lambda: _see_each_other(nodes), WITHIN_S)
        yield nodes


async def _see_each_other(nodes: Sequence[GatewayProcess]) -> bool:
    listed = [await node.ask("nodes") for node in nodes]
    return all(sum(one["leads"] for one in each["data"]) == 1 for each in listed)


def read_id(node: GatewayProcess) -> str:
    return (node.data / "node.id").read_text()


@asynccontextmanager
async def streaming(node: GatewayProcess, secret: str) -> AsyncIterator[aiohttp.ClientResponse]:
    """A stream that has begun at a node and does not end."""
    headers, unhurried = {"Authorization": f"Bearer {secret}"}, aiohttp.ClientTimeout(total=150)
    async with (
        aiohttp.ClientSession(headers=headers, timeout=unhurried) as caller,
        caller.post(node.url + CHAT, json={**HELLO, "stream": True}) as response,
    ):
        await response.content.readuntil(TWO)
        yield response


async def make_key(nodes: Sequence[GatewayProcess], account: str) -> str:
    key = await nodes[0].ask("keys", {"name": "k", "account": account})

    async def is_known() -> bool:
        return all([key["id"] in {one["id"] for one in (await node.ask("keys"))["data"]} for node in nodes])

    await eventually(is_known, WITHIN_S)
    return str(key["secret"])


async def test_each_node_lists_and_cancels_the_requests_of_all(
    tmp_path: Path, url: str, tables: dict[str, Any]
) -> None:
    async with start(tmp_path, url, tables, [True, True]) as (first, second):
        ours, theirs = await make_key([first, second], "acme"), await make_key([first, second], "other")
        async with streaming(first, ours), streaming(second, theirs) as response:
            for node in (first, second):
                await eventually(lambda node=node: lists_all(node, first, second), WITHIN_S)  # type: ignore[misc]
                assert len((await node.ask("running?node=own"))["data"]) == 1
            wanted = (await second.ask("running?node=own"))["data"][0]["id"]
            answer = await first.ask(f"running/{wanted}/cancel", {})
            assert answer["cancelled"] or answer["unanswered"] == [read_id(second)], "it may have taken too long"
            assert b"request_cancelled" in await response.content.read()
        changes = (await first.ask("audit-trail?action=request"))["data"]
        assert [(one["action"], one["subject"], one["account"]) for one in changes] == [
            ("request.cancelled", wanted, "other")
        ]
        with pytest.raises(AssertionError, match="No request under way"):
            await second.ask(f"running/{wanted}/cancel?node=own", {})


async def lists_all(node: GatewayProcess, first: GatewayProcess, second: GatewayProcess) -> bool:
    listed = await node.ask("running")
    whose = [one["node"] for one in listed["data"]]
    return (whose, listed["unanswered"]) == ([read_id(first), read_id(second)], [])


async def test_a_node_without_an_address_is_named_and_told_to_cancel(
    tmp_path: Path, url: str, tables: dict[str, Any]
) -> None:
    async with start(tmp_path, url, tables, [True, False]) as (first, second):
        key = await make_key([first, second], "acme")
        async with streaming(second, key) as response:
            (wanted,) = (await second.ask("running?node=own"))["data"]
            assert await first.ask("running") == {"object": "list", "data": [], "unanswered": [read_id(second)]}
            answer = await first.ask(f"running/{wanted['id']}/cancel", {})
            assert (answer["cancelled"], answer["unanswered"]) == (False, [read_id(second)])
            assert b"request_cancelled" in await response.content.read()


async def test_commands_reach_a_cluster_from_anywhere(tmp_path: Path, url: str, tables: dict[str, Any]) -> None:
    async with start(tmp_path, url, tables, [True, True]) as (first, second):
        key = await make_key([first, second], "acme")
        for node, other in ((first, second), (second, first)):
            async with streaming(other, key):
                shown = await command(node, tmp_path, "running")
                assert (shown.returncode, read_id(other)[:8] in shown.stdout + shown.stderr) == (0, True), shown
                shown = await command(node, tmp_path, "health")
                assert f"process {node.pid}" in shown.stdout
                (wanted,) = (await other.ask("running?node=own"))["data"]
                shown = await command(node, tmp_path, "running", "cancel", wanted["id"])
                assert wanted["id"] in shown.stdout or read_id(other) in shown.stdout
        shown = await command(first, tmp_path, "--url", second.url, "nodes")
        own = next(line for line in shown.stdout.splitlines() if "this one" in line)
        assert read_id(second) in own
        refused = await command(first, tmp_path, "nodes", token="")
        assert (refused.returncode, "GATEWAY_ADMIN_TOKEN" in refused.stderr) == (1, True)
        assert not (tmp_path / "data").exists()


async def command(
    node: GatewayProcess, cwd: Path, *words: str, token: str | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a command in a folder without a gateway, with a node's address and the cluster's token."""
    token = node.token if token is None else token
    environ = {**os.environ, "GATEWAY_URL": node.url, "GATEWAY_ADMIN_TOKEN": token, "COLUMNS": "200"}
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "gateway", *words],
        cwd=cwd, env={**environ, "PYTHONPATH": str(Path(__file__).parents[2])}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


async def test_a_node_that_does_not_answer_is_named_within_the_second(
    tmp_path: Path, url: str, tables: dict[str, Any]
) -> None:
    async with start(tmp_path, url, tables, [True, True]) as (first, second):
        key = await make_key([first, second], "acme")
        async with streaming(first, key):
            await second.kill()
            listed = await first.ask("running")
            assert (len(listed["data"]), listed["unanswered"]) == (1, [read_id(second)])


async def test_nodes_health_and_channels_of_each_are_seen_at_any(
    tmp_path: Path, url: str, tables: dict[str, Any]
) -> None:
    async with start(tmp_path, url, tables, [True, True]) as (first, second):
        key = await make_key([first, second], "acme")
        async with streaming(second, key):
            own, other = await first.ask("health"), await first.ask(f"health?node={read_id(second)}")
            assert (own["node"], other["node"], own["pid"], other["pid"]) == (
                read_id(first), read_id(second), first.pid, second.pid
            )  # fmt: skip
            assert (own["running"], other["running"]) == (0, 1)
            (there,) = (await first.ask(f"channels?node={read_id(second)}"))["data"]
            (here,) = (await first.ask("channels"))["data"]
            assert (here["running"], there["running"]) == (0, 1)
            assert (await first.ask(f"channels/up?node={read_id(second)}"))["running"] == 1
            with pytest.raises(AssertionError, match="No live node"):
                await first.ask("health?node=0123456789abcdef")

            async def is_shown() -> bool:
                nodes = {one["id"]: one for one in (await first.ask("nodes"))["data"]}
                return [nodes[read_id(node)]["active_requests"] for node in (first, second)] == [0, 1]

            await eventually(is_shown, WITHIN_S)
        listed = (await second.ask("nodes"))["data"]
        assert {one["url"] for one in listed} == {first.url, second.url}
        assert [one["config_differs"] for one in listed] == [False, False]


async def test_the_console_of_any_node_has_a_page_of_all_and_shows_each(
    tmp_path: Path, url: str, tables: dict[str, Any]
) -> None:
    async with start(tmp_path, url, tables, [True, False]) as (first, second):
        link = (await first.ask("links", {"account": "acme", "role": "administrator"}))["url"]
        jar = aiohttp.CookieJar(unsafe=True)
        async with aiohttp.ClientSession(headers={CONSOLE_HEADER: "1"}, cookie_jar=jar) as visitor:
            join = {"token": link.partition("#")[2], "name": "ada", "passphrase": FROGS}
            async with visitor.post(f"{second.url}/admin/v1/links/use", json=join) as response:
                assert response.status == 201, await response.text()

            async def read(path: str) -> str:
                async with visitor.get(f"{second.url}/console/{path}") as response:
                    assert response.status == 200, (path, await response.text())
                    return await response.text()

            listed = await read("nodes")
            assert all(read_id(node) in listed for node in (first, second))
            assert "Set cluster.url on these nodes" in listed
            for path in ("health", "channels", "channels/up"):
                assert f'value="{read_id(second)}" selected' in await read(path)
                assert f'value="{read_id(first)}" selected' in await read(f"{path}?node={read_id(first)}")
            assert f"These figures are for the node {read_id(first)}" in await read(f"health?node={read_id(first)}")
            assert 'data-cell="node"' in await read("live")
