"""Nodes whose configuration files differ: what they declare comes in once, and an old file undoes nothing."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.doctor.postgres_check import check_server
from tests.support.cluster import start_nodes
from tests.support.gateway import channel
from tests.support.gateway_process import GatewayProcess, write_toml
from tests.support.postgres import SharedPostgres

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
OLD = {"name": "old", "account": "acme", "secret": "sk-" + "a" * 48}
NEW = {"name": "new", "account": "acme", "secret": "sk-" + "b" * 48}


@pytest.fixture
async def url(shared_postgres: SharedPostgres) -> str:
    return await shared_postgres.empty()


async def list_active(node: GatewayProcess) -> set[str]:
    return {key["name"] for key in (await node.ask("keys"))["data"] if key["status"] == "active"}


async def list_digests(node: GatewayProcess) -> set[str]:
    return {each["config_digest"] for each in (await node.ask("nodes"))["data"] if each["state"] == "live"}


def tables(*keys: dict[str, Any]) -> dict[str, Any]:
    return {"channel": [channel("http://127.0.0.1:9/v1")], "account": [{"name": "acme"}], "key": list(keys)}


async def test_a_node_that_restarts_with_an_old_file_undoes_nothing_until_it_reloads_it(
    tmp_path: Path, url: str
) -> None:
    async with start_nodes(tmp_path, [url] * 2, tables(OLD)) as nodes:
        first, second = nodes
        assert await list_active(first) == {"old"}
        assert len(await list_digests(first)) == 1
        assert [found.state for found in await asyncio.to_thread(list, check_server(url))] == ["ok", "ok"]
        assert await second.end() == 0

        added = write_toml({"key": [NEW]})
        first.config.write_text(first.config.read_text() + added)
        await first.ask("reload", {})
        assert await list_active(first) == {"old", "new"}

        await second.start()
        assert await list_active(second) == {"old", "new"}
        assert second.read_log("declared_superseded")
        assert second.read_log("configuration_differs")
        assert len(await list_digests(second)) == 2
        found = await asyncio.to_thread(list, check_server(url))
        assert [(each.check, each.state) for each in found] == [("database", "ok"), ("nodes", "warning")]

        await second.ask("reload", {})
        assert await list_active(first) == {"old"}, "who asks for it gets it"
        second.config.write_text(second.config.read_text() + added)
        await second.ask("reload", {})
        assert await list_active(first) == {"old", "new"}
        assert len(await list_digests(first)) == 1


async def test_what_nodes_declare_alike_is_declared_once(tmp_path: Path, url: str) -> None:
    async with start_nodes(tmp_path, [url] * 3, tables(OLD, NEW)) as nodes:
        assert await list_active(nodes[2]) == {"old", "new"}
        created = [row for row in (await nodes[0].ask("audit-trail"))["data"] if row["action"].endswith(".created")]
        assert len(created) == 3, "one account and two keys"
        assert not any(node.read_log("declared_superseded") for node in nodes)
