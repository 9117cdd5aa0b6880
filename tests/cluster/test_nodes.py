"""Gateway processes on one PostgreSQL database: what is changed at one is in force at all of them."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.support.cluster import FENCED_SERVE, make_node, start_nodes
from tests.support.gateway import HELLO, channel
from tests.support.gateway_process import GatewayProcess, ask_chat, eventually, open_caller
from tests.support.postgres import SharedPostgres
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.stoppable_proxy import StoppableProxy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
WITHIN_S = 30


@pytest.fixture
async def url(shared_postgres: SharedPostgres) -> str:
    return await shared_postgres.empty()


@pytest.fixture
async def connection(url: str) -> AsyncIterator[asyncpg.Connection]:
    opened = await asyncpg.connect(url)
    yield opened
    await opened.close()


@pytest.fixture
async def tables() -> AsyncIterator[dict[str, Any]]:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        yield {"channel": [channel(up.base_url)], "account": [{"name": "acme"}]}


async def call(node: GatewayProcess, secret: str) -> int:
    async with open_caller(secret) as caller, ask_chat(caller, node.url, HELLO) as response:
        await response.read()
        found: int = response.status
        return found


def all_answer(nodes: Sequence[GatewayProcess], secret: str, status: int) -> Callable[[], Awaitable[bool]]:
    """Whether every node answers a request with ``status``."""

    async def look() -> bool:
        return [await call(node, secret) for node in nodes] == [status] * len(nodes)

    return look


async def test_first_starts_at_once_make_one_cluster(
    tmp_path: Path, url: str, tables: dict[str, Any], connection: asyncpg.Connection
) -> None:
    async with start_nodes(tmp_path, [url] * 3, tables) as nodes:
        found = await connection.fetch("SELECT id, epoch, state FROM nodes")
        assert sorted(row["id"] for row in found) == sorted((node.data / "node.id").read_text() for node in nodes)
        assert {(row["epoch"], row["state"]) for row in found} == {(1, "live")}
        assert await connection.fetchval("SELECT count(*) FROM accounts") == 1
        for name in ("pepper", "media.key", "webhook.key", "admin.token"):
            assert len({(node.data / name).read_bytes() for node in nodes}) == 1
        shown = await asyncio.to_thread(run_command, ["nodes", "--data", str(nodes[1].data)], {})
        assert (shown.returncode, len(shown.stdout.splitlines())) == (0, 4), shown.stderr
        assert (shown.stdout.count("live"), shown.stdout.count("live (this one")) == (3, 1)
        listed = (await nodes[0].ask("nodes"))["data"]
        assert [one["id"] for one in listed if one["own"]] == [(nodes[0].data / "node.id").read_text()]
        assert len({one["config_digest"] for one in listed}) == 1
        assert [await node.end() for node in nodes] == [0] * 3
        assert {row["state"] for row in await connection.fetch("SELECT state FROM nodes")} == {"gone"}


async def test_what_is_made_or_revoked_at_one_node_is_so_at_all(
    tmp_path: Path, url: str, tables: dict[str, Any]
) -> None:
    async with start_nodes(tmp_path, [url] * 2, tables) as nodes:
        first, second = nodes
        await first.ask("accounts", {"name": "beta"})
        for maker, revoker, path, change in (
            (first, second, "keys/{id}", ({"status": "disabled"}, "PATCH")),
            (second, first, "keys/{id}", (None, "DELETE")),
            (first, second, "accounts/beta", (None, "DELETE")),
        ):
            key = await maker.ask("keys", {"name": "k", "account": "beta"})
            await eventually(all_answer(nodes, key["secret"], 200), WITHIN_S)
            found = (await revoker.ask(path.format(id=key["id"]), *change))["in_force"]
            refused = all_answer(nodes, key["secret"], 401)
            assert await refused() or found["nodes"] < found["of"], "it is in force where the answer says so"
            await eventually(refused, WITHIN_S)
            if change[1] == "PATCH":
                await maker.ask(f"keys/{key['id']}", None, "DELETE")


async def test_channels_routes_and_settings_of_one_node_are_those_of_all(
    tmp_path: Path, url: str, tables: dict[str, Any]
) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up, start_nodes(tmp_path, [url] * 2, tables) as nodes:
        first, second = nodes
        stored = {"name": "stored", "provider": "custom", "base_url": up.base_url, "models": ["new"], "api_key": "k"}
        await first.ask("channels?check=none", stored)
        await first.ask("settings/routing/retry_ratio", {"value": 0.5}, "PUT")
        made = await first.ask("routes/quick", {"step": [{"models": ["new"]}]}, "PUT")
        assert made["in_force"]["of"] == 2

        async def is_known() -> bool:
            channels = (await second.ask("channels"))["data"]
            settings = (await second.ask("settings"))["sections"]["routing"]
            steps = (await second.ask("explain?model=quick"))["steps"]
            return (
                "stored" in {one["name"] for one in channels}
                and settings["retry_ratio"]["value"] == 0.5
                and steps is not None
                and steps[0]["verdict"] == "first"
            )

        await eventually(is_known, WITHIN_S)
        await second.ask("channels/stored", None, "DELETE")
        await second.ask("routes/quick", None, "DELETE")

        async def is_gone() -> bool:
            names = {one["name"] for path in ("channels", "routes") for one in (await first.ask(path))["data"]}
            return names.isdisjoint({"stored", "quick"})

        await eventually(is_gone, WITHIN_S)


async def test_a_node_that_has_lost_touch_serves_nobody_until_it_knows_what_was_changed(
    tmp_path: Path, url: str, tables: dict[str, Any]
) -> None:
    port = int(url.rpartition(":")[2].partition("/")[0])
    async with StoppableProxy(port) as proxy:
        urls = [url, url.replace(f":{port}/", f":{proxy.port}/")]
        async with start_nodes(tmp_path, urls, tables, command=FENCED_SERVE) as nodes:
            key = await nodes[0].ask("keys", {"name": "k", "account": "acme"})
            await eventually(all_answer(nodes, key["secret"], 200), WITHIN_S)
            proxy.stop()
            words = ["keys", "disable", str(key["id"]), "--data", str(nodes[0].data)]
            done = await asyncio.to_thread(run_command, words, {})
            waited_ms = re.match(r"In force at 1 of 2 nodes after (\d+) ms\.", done.stderr)
            assert waited_ms is not None, done
            assert int(waited_ms[1]) >= 500
            await eventually(all_answer(nodes[:1], key["secret"], 401), WITHIN_S)
            await eventually(all_answer(nodes[1:], key["secret"], 503), WITHIN_S)
            assert (await nodes[1].probe())[0] == 503
            proxy.go_on()
            seen = set()

            async def is_back() -> bool:
                seen.add(await call(nodes[1], key["secret"]))
                return 401 in seen

            await eventually(is_back, WITHIN_S)
            assert seen <= {401, 503}


async def test_a_node_with_another_master_key_or_other_secrets_is_refused_and_writes_nothing(
    tmp_path: Path, url: str, tables: dict[str, Any], connection: asyncpg.Connection
) -> None:
    kept = "SELECT (SELECT array_agg(f ORDER BY name) FROM fingerprints f), (SELECT array_agg(n) FROM nodes n)"
    async with start_nodes(tmp_path, [url], tables):
        before = await connection.fetch(kept)
        foreign = make_node(tmp_path / "foreign", url, tables)
        foreign.config.write_text(foreign.config.read_text().replace("5a" * 32, "5b" * 32))
        foreign.launch()
        assert await foreign.wait() != 0
        assert "store.master_key is not the one that the other nodes" in foreign.err.read_text()
        other = make_node(tmp_path / "other", url, tables)
        other.data.mkdir()
        (other.data / "pepper").write_bytes(bytes(range(32)))
        other.launch()
        assert await other.wait() != 0
        assert f"{other.data / 'pepper'} is not the one that the other nodes" in other.err.read_text()
        assert await connection.fetch(kept) == before


async def test_a_command_in_the_folder_of_a_stopped_node_changes_nothing(
    tmp_path: Path, url: str, tables: dict[str, Any], connection: asyncpg.Connection
) -> None:
    async with start_nodes(tmp_path, [url] * 2, tables) as nodes:
        assert await nodes[1].end() == 0
        count = "SELECT (SELECT count(*) FROM nodes), (SELECT count(*) FROM accounts), (SELECT max(epoch) FROM nodes)"
        before = await connection.fetchrow(count)
        words = ["requests", "--data", str(nodes[1].data), "--config", str(nodes[1].config)]
        done = await asyncio.to_thread(run_command, words, {})
        assert done.returncode != 0
        assert "this command needs a running gateway" in done.stderr
        assert await connection.fetchrow(count) == before


def run_command(words: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-m", "gateway", *words],
        env={**kept, "GATEWAY_DISCOVER": "0", **environ},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
