"""Responses of a cluster: what one node makes or keeps, every node shows, continues and cancels."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.cluster import start_nodes
from tests.support.gateway import KEY, channel
from tests.support.gateway_process import GatewayProcess, eventually, open_caller
from tests.support.postgres import SharedPostgres
from tests.support.scripted_upstream import COMPLETION, Received, ScriptedUpstream, answer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
WITHIN_S = 60
SLOW = "slow"


class Provider:
    """Answers chat requests; those whose prompt is ``SLOW`` when they may."""

    def __init__(self) -> None:
        self.reached = 0
        self.prompts: list[int] = []
        self.may_answer = asyncio.Event()

    async def note(self, received: Received) -> None:
        if received.body:
            messages = received.json["messages"]
            self.prompts.append(len(messages))
            if messages[-1]["content"] == SLOW:
                self.reached += 1
                await self.may_answer.wait()


async def send(caller: aiohttp.ClientSession, node: GatewayProcess, **body: Any) -> dict[str, Any]:
    async with caller.post(f"{node.url}/v1/responses", json={"model": "m", **body}) as response:
        found: dict[str, Any] = await response.json()
        assert response.status == 200, found
        return found


async def show(caller: aiohttp.ClientSession, node: GatewayProcess, response_id: str) -> str:
    async with caller.get(f"{node.url}/v1/responses/{response_id}") as response:
        found = await response.json()
        assert "gateway_node" not in found
        return str(found["status"])


async def test_responses_are_shown_continued_and_cancelled_at_any_node(
    tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    provider = Provider()
    async with ScriptedUpstream([provider.note, answer(COMPLETION)]) as up:
        tables = {
            "channel": [channel(up.base_url, provider="mistral", first_byte_timeout_s=100, total_timeout_s=100)],
            "account": [{"name": "acme"}],
            "key": [{"name": "test", "account": "acme", "secret": KEY}],
            "price": [{"model": "m", "input_usd_per_million": 1, "output_usd_per_million": 1}],
        }
        url = await shared_postgres.empty()
        async with start_nodes(tmp_path, [url] * 2, tables) as nodes, open_caller() as caller:
            first, second = nodes
            for turn in range(1, 8):  # each at the other node, at once
                one = await send(caller, nodes[turn % 2], input="hello")
                await send(caller, nodes[1 - turn % 2], input="more", previous_response_id=one["id"])
                assert provider.prompts[-1] == 3

            made, cancelled, lost = [(await send(caller, first, input=SLOW, background=True))["id"] for _ in range(3)]
            await eventually(lambda: asyncio.sleep(0, provider.reached == 3), WITHIN_S)
            assert [await show(caller, second, each) for each in (made, cancelled, lost)] == ["queued"] * 3
            async with caller.post(f"{second.url}/v1/responses/{cancelled}/cancel") as response:
                assert (response.status, (await response.json())["status"]) == (200, "cancelled")

            async def is_cancelled() -> bool:
                return await show(caller, first, cancelled) == "cancelled"

            await eventually(is_cancelled, WITHIN_S)
            provider.may_answer.set()

            async def is_made() -> bool:
                return await show(caller, second, made) == "completed"

            await eventually(is_made, WITHIN_S)
            provider.may_answer.clear()
            lost = (await send(caller, first, input=SLOW, background=True))["id"]
            assert await show(caller, second, lost) == "queued"
            await first.kill()
            await first.start()

            async def has_failed() -> bool:
                return await show(caller, second, lost) == "failed"

            await eventually(has_failed, WITHIN_S)
            assert await show(caller, second, cancelled) == "cancelled"
