"""A follower at one node sees every request that eight nodes make, once (C4)."""

import asyncio
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import start_nodes
from tests.support.gateway import HELLO, channel
from tests.support.gateway_process import GatewayProcess, ask_chat, eventually, open_caller
from tests.support.postgres import SharedPostgres
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]
NODES, CALLERS, CALLS = 8, 4, 60
WITHIN_S = 60


async def follow(node: GatewayProcess, after: str, seen: list[dict[str, Any]], over: asyncio.Event) -> None:
    """Read what comes after ``after`` as ``gateway requests --follow`` does, until nothing has come since ``over``."""
    while True:
        ends = over.is_set()
        page = await node.ask(f"requests?after={after}&limit=50")
        seen += page["data"]
        after = page["next"]
        if ends and not page["more"]:
            return
        if not page["more"]:
            await asyncio.sleep(0.02)


async def call(node: GatewayProcess, secret: str) -> int:
    async with open_caller(secret) as caller:
        for _ in range(CALLS):
            async with ask_chat(caller, node.url, HELLO) as response:
                assert response.status == 200, await response.text()
        return CALLS


async def test_a_follower_sees_the_requests_of_eight_gateways_once(
    tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        url = await shared_postgres.empty()
        tables = {"channel": [channel(up.base_url)], "account": [{"name": "acme"}]}
        async with start_nodes(tmp_path, [url] * NODES, tables) as nodes:
            key = await nodes[0].ask("keys", {"name": "k", "account": "acme"})

            async def is_known() -> bool:
                listed = [(await node.ask("keys"))["data"] for node in nodes]
                return all(key["id"] in {one["id"] for one in each} for each in listed)

            await eventually(is_known, WITHIN_S)
            await asyncio.sleep(1)  # a key is in force a moment after it is listed
            start = (await nodes[0].ask("requests"))["newest"]
            over, seen, late = asyncio.Event(), list[dict[str, Any]](), list[dict[str, Any]]()
            followers = [
                asyncio.create_task(follow(nodes[0], start, seen, over)),
                asyncio.create_task(follow(nodes[-1], start, late, over)),
            ]
            made = await asyncio.gather(*(call(node, key["secret"]) for node in nodes for _ in range(CALLERS)))

            async def is_stored() -> bool:
                return not any(one["waiting_rows"] for one in (await nodes[0].ask("nodes"))["data"])

            await asyncio.sleep(3)  # the last rows are on their way, and the beats that report it
            await eventually(is_stored, WITHIN_S)
            over.set()
            await asyncio.gather(*followers)
    for rows in (seen, late):
        counts = Counter(row["id"] for row in rows)
        assert (len(counts), set(counts.values())) == (sum(made), {1})
    sequences = [row["sequence"] for row in seen]
    inversions = sum(second < first for first, second in pairwise(sequences))
    sys.stdout.write(f"\n{len(sequences)} rows, {inversions} of them after one with a higher sequence\n")
