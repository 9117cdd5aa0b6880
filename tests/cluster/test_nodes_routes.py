"""Routes at several nodes of one database: a limit holds over steps of several prices, and nothing stays reserved."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.support.cluster import start_nodes
from tests.support.gateway import CHAT, HELLO, channel
from tests.support.gateway_process import GatewayProcess, eventually, open_caller
from tests.support.openai_videos import Answered, OpenAiVideos, Play
from tests.support.postgres import SharedPostgres
from tests.support.scripted_upstream import COMPLETION, Received, Script, ScriptedUpstream, answer
from tests.support.video_scene import VIDEOS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
NODES, CALLERS, LIMIT_NANOS = 2, 60, 140_000_000
PRICES = {"dear": 1_000, "usual": 100, "cheap": 10}
COSTS = {model: 12 * 1_000 * price for model, price in PRICES.items()}
COVERED = {"dear": 3, "usual": 4, "cheap": 5}
"""How many requests at each price a limit covers: as many as can be of the dearest, then of the next."""
RESERVED_TOKENS = 26
"""Of a request: 18 of the prompt, and 8 of the answer."""
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


async def test_four_nodes_admit_exactly_what_a_limit_covers_over_a_chain_of_three_prices(
    tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    """All providers stand still until each of 400 callers is admitted or refused: what is reserved fills the limit."""
    reached, go_on = list[str](), asyncio.Event()

    async def stand_still(received: Received) -> None:
        reached.append(received.json["model"])
        await go_on.wait()

    async with ScriptedUpstream([stand_still, answer(COMPLETION)]) as up:
        slow = channel(up.base_url, models=list(PRICES), first_byte_timeout_s=90, total_timeout_s=120)
        prices = [
            {"model": model, "input_usd_per_million": price, "output_usd_per_million": price}
            for model, price in PRICES.items()
        ]
        chain = {"name": "fast", "step": [{"models": [model]} for model in PRICES]}
        tables = {"channel": [slow], "account": [{"name": "acme"}], "price": prices, "route": [chain]}
        async with start_nodes(tmp_path, [await shared_postgres.empty()] * 4, tables) as nodes:
            quota_usd = sum(COVERED[model] * RESERVED_TOKENS * price for model, price in PRICES.items()) / 1e6
            key = await nodes[0].ask("keys", {"name": "k", "account": "acme", "quota_usd": round(quota_usd, 9)})
            await eventually(all_know(nodes, key["secret"]), 30)
            body = {**HELLO, "model": "fast", "max_tokens": 8}
            calls = [asyncio.create_task(_post(nodes[number % 4], key["secret"], CHAT, body)) for number in range(400)]

            async def is_decided() -> bool:
                return sum(task.done() for task in calls) + len(reached) >= len(calls)

            await eventually(is_decided, 90)
            assert Counter(reached) == COVERED
            go_on.set()
            statuses = Counter([(await task)[0] for task in calls])
            assert statuses == {200: sum(COVERED.values()), 403: 400 - sum(COVERED.values())}
            assert [await node.end() for node in nodes] == [0] * 4


def all_know(nodes: Sequence[GatewayProcess], secret: str) -> Callable[[], Awaitable[bool]]:
    """Return a condition: every node knows the key."""

    async def look() -> bool:
        async with open_caller(secret) as caller:
            found = [(await caller.get(f"{node.url}/v1/models")).status for node in nodes]
        return found == [200] * len(nodes)

    return look


async def test_a_route_that_is_edited_at_one_node_is_in_force_at_all_as_keys_are(
    tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        tables = {"channel": [channel(up.base_url, models=["a", "b"])], "account": [{"name": "acme"}]}
        async with start_nodes(tmp_path, [await shared_postgres.empty()] * 4, tables) as nodes:
            key = await nodes[0].ask("keys", {"name": "k", "account": "acme"})
            await eventually(all_know(nodes, key["secret"]), 30)
            for number, node in enumerate(nodes):
                model = "ab"[number % 2]
                path = "routes/fast"
                in_force = (await node.ask(path, {"step": [{"models": [model]}]}, "PUT"))["in_force"]
                assert in_force["of"] == 4

                async def is_in_force(model: str = model) -> bool:
                    found = [await _post(each, key["secret"], CHAT, {**HELLO, "model": "fast"}) for each in nodes]
                    asked = [received.json["model"] for received in up.received[-len(found) :]]
                    return [status for status, _ in found] == [200] * 4 and asked == [model] * 4

                assert await is_in_force() or in_force["nodes"] < 4, "it is in force where the answer says so"
                await eventually(is_in_force, 30)
            await nodes[3].ask("routes/fast", None, "DELETE")

            async def is_gone() -> bool:
                body = {**HELLO, "model": "fast"}
                return [(await _post(node, key["secret"], CHAT, body))[0] for node in nodes] == [404] * 4

            await eventually(is_gone, 30)
