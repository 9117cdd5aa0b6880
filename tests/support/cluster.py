"""Several gateway processes on one PostgreSQL database: the nodes of a cluster, each with a data folder of its own."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg

from tests.support.gateway_process import GatewayProcess, open_caller

FREQUENT_SERVE = ("tests.support.quick_nodes", "frequent", "serve")
FENCED_SERVE = ("tests.support.quick_nodes", "fenced", "serve")
PATIENT_SERVE = ("tests.support.quick_nodes", "patient", "serve")
"""Commands of nodes with other times than in operation: see ``quick_nodes``."""
MASTER_KEY = "5a" * 32
_LEADER = """
SELECT own.objid FROM pg_locks leader JOIN pg_locks own USING (pid, database)
WHERE leader.locktype = 'advisory' AND leader.classid = 7130 AND leader.objid = 0 AND leader.objsubid = 2
  AND own.classid = 7130 AND own.objid <> 0
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


def make_node(
    path: Path,
    url: str,
    tables: Mapping[str, Any],
    cluster: Mapping[str, Any] = {},
    *,
    port: int = 0,
    command: Sequence[str] = FREQUENT_SERVE,
) -> GatewayProcess:
    """A node over the data folder ``path`` on the database at ``url``; it is not started.

    It beats more often than a node in operation, unless its ``command`` is ``SERVE``.
    """
    cluster = {"store": {"url": url, "master_key": MASTER_KEY}, "cluster": {"enabled": True, **cluster}}
    return GatewayProcess(path, {**cluster, **tables}, command=command, port=port)


@asynccontextmanager
async def start_nodes(
    path: Path,
    urls: Sequence[str],
    tables: Mapping[str, Any],
    cluster: Mapping[str, Any] = {},
    *,
    command: Sequence[str] = FREQUENT_SERVE,
) -> AsyncIterator[Sequence[GatewayProcess]]:
    """Start a node for each of ``urls``, ways to one database, all at once; they end whatever happens."""
    nodes = [
        make_node(path / f"node{number}", url, tables, cluster, command=command) for number, url in enumerate(urls)
    ]
    async with AsyncExitStack() as stack:
        for node in nodes:
            stack.push_async_callback(node.kill)
        await asyncio.gather(*(node.start() for node in nodes))
        yield nodes


def share_files(path: Path, count: int) -> None:
    """Give the nodes below ``path`` one folder of clients' files."""
    shared = path / "shared"
    shared.mkdir()
    for number in range(count):
        data = path / f"node{number}"
        data.mkdir(mode=0o700)
        (data / "files").symlink_to(shared, target_is_directory=True)


async def find_leader(url: str, nodes: Sequence[GatewayProcess]) -> int:
    """Which of the nodes leads."""
    connection = await asyncpg.connect(url)
    try:
        number = await connection.fetchval(_LEADER)
    finally:
        await connection.close()
    return [int((node.data / "node.id").read_text()[:7], 16) + 1 for node in nodes].index(number)


async def is_known(nodes: Sequence[GatewayProcess], secret: str) -> bool:
    """Return whether every node takes requests of the key with this secret."""
    async with open_caller(secret) as caller:
        return [(await caller.get(f"{node.url}/v1/models")).status for node in nodes] == [200] * len(nodes)
