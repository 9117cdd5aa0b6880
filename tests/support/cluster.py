"""Several gateway processes on one PostgreSQL database: the nodes of a cluster, each with a data folder of its own."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.gateway_process import GatewayProcess

MASTER_KEY = "5a" * 32


def make_node(path: Path, url: str, tables: Mapping[str, Any]) -> GatewayProcess:
    """A node over the data folder ``path`` on the database at ``url``; it is not started."""
    cluster = {"store": {"url": url, "master_key": MASTER_KEY}, "cluster": {"enabled": True}}
    return GatewayProcess(path, {**cluster, **tables})


@asynccontextmanager
async def start_nodes(
    path: Path, urls: Sequence[str], tables: Mapping[str, Any]
) -> AsyncIterator[Sequence[GatewayProcess]]:
    """Start a node for each of ``urls``, ways to one database, all at once; they end whatever happens."""
    nodes = [make_node(path / f"node{number}", url, tables) for number, url in enumerate(urls)]
    async with AsyncExitStack() as stack:
        for node in nodes:
            stack.push_async_callback(node.kill)
        await asyncio.gather(*(node.start() for node in nodes))
        yield nodes
