"""Routes at several nodes of one database: a limit holds over steps of several prices, and nothing stays reserved."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.support.cluster import start_nodes
from tests.support.gateway import CHAT, HELLO, channel
from tests.support.gateway_process import GatewayProcess, eventually, open_caller
from tests.support.openai_videos import Answered, OpenAiVideos, Play
from tests.support.postgres import SharedPostgres
from tests.support.scripted_upstream import COMPLETION, Script, ScriptedUpstream, answer
from tests.support.video_scene import VIDEOS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
NODES, CALLERS, LIMIT_NANOS = 2, 60, 140_000_000
PRICES = {"dear": 1_000, "usual": 100, "cheap": 10}
COSTS = {model: 12 * 1_000 * price for model, price in PRICES.items()}
BUSY = answer({"error": {"message": "down"}}, 503)
VIDEO_BUSY = Answered({"error": {"message": "slow down", "code": "rate_limit_exceeded"}}, 429)
SCRIPTS: list[Script] = [[BUSY] if number % 3 == 2 else [answer(COMPLETION)] for number in range(CALLERS)]
A_FILM = 40_000_000
_SERVED = "SELECT served_model, cost_nanos FROM requests WHERE route = 'fast' AND outcome = 'completed'"
_SPENT = """
SELECT coalesce(sum(amount_nanos), 0)::bigint AS charged,
  (SELECT sum(reserved)::bigint FROM credit_balances) AS reserved,
  (SELECT coalesce(sum(overrun_nanos), 0)::bigint FROM requests) AS overrun FROM entries WHERE kind = 'charge'
"""


async def _post(node: GatewayProcess, secret: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    async with open_caller(secret) as caller, caller.post(node.url + path, json=body) as response:
        return response.status, await response.json()


async def test_a_limit_holds_over_three_prices_at_every_node_and_a_job_gives_back_what_it_held(
    tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    url = await shared_postgres.empty()
    async with (
        ScriptedUpstream(*SCRIPTS) as dear,
        ScriptedUpstream(*SCRIPTS) as usual,
        ScriptedUpstream([answer(COMPLETION)]) as cheap,
        OpenAiVideos(Play(submit=[VIDEO_BUSY])) as first,
        OpenAiVideos(Play(polls=["completed"])) as second,
    ):
        lines = [
            channel(up.base_url, f"of-{model}", models=[model], first_byte_timeout_s=60, total_timeout_s=90)
            for model, up in (("dear", dear), ("usual", usual), ("cheap", cheap))
        ]
        lines += [first.channel("film-1", models=["film-a"]), second.channel("film-2", models=["film-b"])]
        prices: list[dict[str, Any]] = [
            {"model": model, "input_usd_per_million": price, "output_usd_per_million": price}
            for model, price in PRICES.items()
        ]
        prices += [{"model": "film-a", "usd_per_second": 0.1}, {"model": "film-b", "usd_per_second": 0.01}]
        routes = [
            {"name": "fast", "step": [{"models": [model]} for model in PRICES]},
            {"name": "film", "step": [{"models": ["film-a"]}, {"models": ["film-b"]}]},
        ]
        tables = {"channel": lines, "account": [{"name": "acme"}], "price": prices, "route": routes}
        async with start_nodes(tmp_path, [url] * NODES, tables) as nodes:
            key = await nodes[0].ask("keys", {"name": "k", "account": "acme", "quota_usd": LIMIT_NANOS / 1e9})

            async def is_known() -> bool:
                async with open_caller(key["secret"]) as caller:
                    found = [(await caller.get(f"{node.url}/v1/models")).status for node in nodes]
                return found == [200] * NODES

            await eventually(is_known, 30)
            status, job = await _post(nodes[0], key["secret"], VIDEOS, {"model": "film", "prompt": "x", "seconds": "4"})
            assert status == 200, job

            async def is_made() -> bool:
                address = f"{nodes[1].url}{VIDEOS}/{job['id']}"
                async with open_caller(key["secret"]) as caller, caller.get(address) as response:
                    return bool((await response.json())["status"] == "completed")

            await eventually(is_made, 60)
            body = {**HELLO, "model": "fast", "max_tokens": 8}
            answers = await asyncio.gather(
                *(_post(nodes[number % NODES], key["secret"], CHAT, body) for number in range(CALLERS))
            )
            assert [await node.end() for node in nodes] == [0] * NODES
        connection = await asyncpg.connect(url)
        try:
            row = await connection.fetchrow(_SPENT)
            served = await connection.fetch(_SERVED)
        finally:
            await connection.close()
        statuses = Counter(status for status, _ in answers)
        assert set(statuses) <= {200, 403}
        assert len(served) == statuses[200] > 0
        assert {each["served_model"] for each in served} == set(PRICES)
        assert all(each["cost_nanos"] == COSTS[each["served_model"]] for each in served)
        assert row["charged"] == sum(each["cost_nanos"] for each in served) + A_FILM
        assert row["charged"] <= LIMIT_NANOS
        assert (row["reserved"], row["overrun"]) == (0, 0)
