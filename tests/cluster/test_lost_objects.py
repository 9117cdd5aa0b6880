"""Files of which the standby has not heard when the primary is lost: each is found."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import pytest

from tests.support.cluster import share_files, start_nodes
from tests.support.gateway import KEY, channel
from tests.support.gateway_process import GatewayProcess, eventually, open_caller
from tests.support.lost_servers import Pair, open_pair
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.spending_callers import PRICE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
FILES = "/v1/files"
WITHIN_S = 60.0


@attrs.frozen
class LostScene:
    """A primary with a standby, two nodes with one folder of files, and a client."""

    pair: Pair
    nodes: Sequence[GatewayProcess]
    caller: aiohttp.ClientSession
    up: ScriptedUpstream

    async def lose(self, *, killed: bool) -> None:
        """Lose the primary, with what the standby lacks. ``killed``: a node ends too, and starts again later."""
        if killed:
            await self.nodes[1].kill()
        await self.pair.lose()
        if killed:
            await self.nodes[1].start()

    async def ask(self, node: int, method: str, path: str, **more: Any) -> tuple[int, Any]:
        async with self.caller.request(method, self.nodes[node % 2].url + path, **more) as response:
            is_json = response.content_type == "application/json"
            return response.status, await (response.json() if is_json else response.read())

    async def get(self, node: int, method: str, path: str, **more: Any) -> Any:
        status, body = await self.ask(node, method, path, **more)
        assert status == 200, body
        return body


@asynccontextmanager
async def open_scene(path: Path) -> AsyncIterator[LostScene]:
    share_files(path, 2)
    async with AsyncExitStack() as stack:
        pair = await stack.enter_async_context(open_pair())
        up = await stack.enter_async_context(ScriptedUpstream([answer(COMPLETION)]))
        tables = {
            "channel": [channel(up.base_url, provider="mistral")],
            "account": [{"name": "acme"}],
            "key": [{"name": "test", "account": "acme", "secret": KEY}],
            "price": [PRICE],
        }
        nodes = await stack.enter_async_context(start_nodes(path, [pair.url] * 2, tables))
        caller = await stack.enter_async_context(open_caller(within_s=WITHIN_S))
        await eventually(pair.is_level, 30)
        yield LostScene(pair, nodes, caller, up)


@pytest.mark.parametrize("killed", [False, True])
async def test_every_file_is_found_after_a_failover(tmp_path: Path, *, killed: bool) -> None:
    async with open_scene(tmp_path) as scene:

        async def add(number: int) -> str:
            form = aiohttp.FormData({"purpose": "user_data"})
            form.add_field("file", f"text {number}", filename=f"{number}.txt")
            return str((await scene.get(number, "POST", FILES, data=form))["id"])

        before = await asyncio.gather(*map(add, range(2)))
        await eventually(scene.pair.is_level, 30)
        await scene.pair.detach()
        ids = [*before, *await asyncio.gather(*map(add, range(2, 8)))]
        await scene.get(0, "DELETE", f"{FILES}/{ids[0]}")
        size = {"bytes": 6, "filename": "u.txt", "purpose": "user_data", "mime_type": "text/plain"}
        upload = (await scene.get(1, "POST", "/v1/uploads", json=size))["id"]
        form = aiohttp.FormData()
        form.add_field("data", b"upload", filename="part")
        part = (await scene.get(1, "POST", f"/v1/uploads/{upload}/parts", data=form))["id"]
        await scene.lose(killed=killed)

        async def are_found() -> bool:
            answers = [
                await scene.ask(number + at, "GET", f"{FILES}/{ids[number]}/content")
                for number in range(1, 8)
                for at in range(2)
            ]
            return answers == [(200, f"text {number}".encode()) for number in range(1, 8) for _ in range(2)]

        await eventually(are_found, WITHIN_S)

        async def is_gone() -> bool:  # 503: another node may bring it back
            return [(await scene.ask(node, "GET", f"{FILES}/{ids[0]}"))[0] for node in range(2)] == [404, 404]

        await eventually(is_gone, WITHIN_S)
        done = await scene.get(0, "POST", f"/v1/uploads/{upload}/complete", json={"part_ids": [part]})
        assert await scene.get(1, "GET", f"{FILES}/{done['file']['id']}/content") == b"upload"
        listed = (await scene.get(0, "GET", FILES))["data"]
        assert {each["id"] for each in listed} == {*ids[1:], done["file"]["id"]}
