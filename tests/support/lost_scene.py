"""Nodes whose primary is lost together with what its standby lacks, and what clients find afterwards."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import attrs

from tests.support.cluster import share_files, start_nodes
from tests.support.gateway import KEY, channel
from tests.support.gateway_process import GatewayProcess, eventually, open_caller
from tests.support.lost_servers import Pair, open_pair
from tests.support.spending_callers import PRICE

WITHIN_S = 60.0


@attrs.frozen
class LostScene:
    """A primary with a standby, two nodes with one folder of files, and a client."""

    pair: Pair
    nodes: Sequence[GatewayProcess]
    caller: aiohttp.ClientSession

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
async def open_scene(path: Path, base_url: str = "http://127.0.0.1:9/v1", **tables: Any) -> AsyncIterator[LostScene]:
    share_files(path, 2)
    async with AsyncExitStack() as stack:
        pair = await stack.enter_async_context(open_pair())
        tables |= {
            "channel": [channel(base_url, provider="mistral")],
            "account": [{"name": "acme"}],
            "key": [{"name": "test", "account": "acme", "secret": KEY}],
            "price": [PRICE],
        }
        nodes = await stack.enter_async_context(start_nodes(path, [pair.url] * 2, tables))
        caller = await stack.enter_async_context(open_caller(within_s=WITHIN_S))
        await eventually(pair.is_level, 30)
        yield LostScene(pair, nodes, caller)
