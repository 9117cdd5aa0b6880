"""Nodes share model lists: a provider is asked once for all of them, and a start asks nobody."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import start_nodes
from tests.support.fast_provider import SwiftUpstream, failing
from tests.support.gateway_process import GatewayProcess, eventually
from tests.support.postgres import SharedPostgres

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
WITHIN_S = 60


def synced(up: SwiftUpstream, name: str) -> dict[str, Any]:
    return {"name": name, "provider": "custom", "base_url": up.base_url, "sync": True, "api_key": name}


async def describe(node: GatewayProcess, name: str) -> dict[str, Any]:
    return next((one for one in (await node.ask("channels"))["data"] if one["name"] == name), {})


def all_offer(nodes: list[GatewayProcess], name: str) -> Any:
    async def look() -> bool:
        return all([(await describe(node, name)).get("offers") for node in nodes])

    return look


async def test_a_provider_is_asked_once_for_all_nodes_and_not_again_at_a_start(
    tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    url = await shared_postgres.empty()
    async with SwiftUpstream() as up, SwiftUpstream() as other:
        tables = {"channel": [synced(up, "filed")], "routing": {"sync_interval_s": 3600}}
        async with start_nodes(tmp_path, [url] * 3, tables) as started:
            nodes = list(started)
            await eventually(all_offer(nodes, "filed"), WITHIN_S)
            assert up.lists == 1
            await nodes[1].ask("channels?check=none", synced(other, "stored"))
            await eventually(all_offer(nodes, "stored"), WITHIN_S)
            assert other.lists == 1
            await nodes[0].end()
            await nodes[0].start()
            assert [bool((await describe(nodes[0], name)).get("offers")) for name in ("filed", "stored")] == [True] * 2
            other.behaviour = failing(503)
            await nodes[2].ask("channels/stored/sync", {})

            async def know_of_it() -> bool:
                return all([(await describe(node, "stored"))["sync_error"] for node in nodes])

            await eventually(know_of_it, WITHIN_S)
            assert all([(await describe(node, "stored"))["offers"] for node in nodes]), "its models are still known"
            assert (up.lists, other.lists) == (1, 2)
