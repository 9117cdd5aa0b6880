"""A primary and its standby, one of which is lost, and what the nodes must have stored afterwards."""

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import asyncpg
import attrs

from tests.support.gateway_process import GatewayProcess, eventually
from tests.support.postgres import PostgresServer, owning_pair
from tests.support.spending_callers import COST_NANOS, is_at_rest
from tests.support.video_scene import A_VIDEO

_FOUND = """
SELECT (SELECT count(*) FROM requests WHERE outcome = 'completed'),
  (SELECT count(*) FROM entries WHERE kind = 'charge'), (SELECT coalesce(sum(cost_nanos), 0)::bigint FROM usage_days)
"""


def name_servers(url: str, *servers: PostgresServer) -> str:
    """The URL of the database with all of its servers, in this order."""
    parts = urlsplit(url)
    user = parts.netloc.rpartition("@")[0]
    return parts._replace(netloc=f"{user}@{','.join(f'{each.host}:{each.port}' for each in servers)}").geturl()


@attrs.frozen
class Pair:
    """A primary, its standby, and the URL of their database with both."""

    primary: PostgresServer
    standby: PostgresServer
    url: str

    async def detach(self) -> None:
        """Let the standby receive nothing more."""
        await self.standby.execute("ALTER SYSTEM SET primary_conninfo = ''")
        await self.standby.execute("SELECT pg_reload_conf()")

        async def is_alone() -> bool:
            return await self.ask(self.primary, "SELECT count(*) FROM pg_stat_replication") == 0

        await eventually(is_alone, 10)

    async def is_level(self) -> bool:
        """Return whether the standby has everything."""
        query = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_lsn()"
        return await self.ask(self.primary, query) == 1

    def name_survivor(self) -> str:
        """Return the URL of the database at the standby."""
        return self.standby.name_url(self.url.rpartition("/")[2])

    async def lose(self) -> None:
        """Kill the primary and promote the standby."""
        await asyncio.to_thread(self.primary.signal, signal.SIGKILL)
        await asyncio.to_thread(self.standby.promote)

    async def ask(self, server: PostgresServer, query: str) -> int:
        connection = await asyncpg.connect(server.name_url(self.url.rpartition("/")[2]))
        try:
            return int(await connection.fetchval(query))
        finally:
            await connection.close()


@asynccontextmanager
async def open_pair(
    *settings: str, apart: bool = False, good_first: bool = False, sync: bool = False
) -> AsyncIterator[Pair]:
    """Start a primary and its standby, with a database.

    Args:
        settings: the standby's, see ``owning_pair``.
        apart: there is a network between the two, see ``owning_pair``.
        good_first: the URL names the standby first.
        sync: a commit waits for the standby.
    """
    async with owning_pair(*settings, apart=apart) as (primary, standby):
        if sync:
            await primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            await primary.execute("SELECT pg_reload_conf()")
        url = await primary.make_database() + ("?sslmode=disable" if apart else "")
        servers = (standby, primary) if good_first else (primary, standby)
        yield Pair(primary, standby, name_servers(url, *servers))


async def check_books(
    nodes: Sequence[GatewayProcess], url: str, served: int, *, repeated: int = 0, videos: int = 0
) -> None:
    """Every answer is one row and one charge, and nothing is left reserved.

    Args:
        repeated: how many more were answers to an earlier request again. They have a row each, and no charge.
        videos: how many video jobs were charged.
    """

    async def has_settled() -> bool:
        try:
            return await is_at_rest(nodes)
        except AssertionError:  # 503: a node is still storing its last charges again
            return False

    await eventually(has_settled, 30)
    for node in nodes:
        await node.check_books()
    connection = await asyncpg.connect(url)
    try:
        found, charged = tuple(await connection.fetchrow(_FOUND)), served + videos
        assert found == (charged + repeated, charged, served * COST_NANOS + videos * A_VIDEO), found
    finally:
        await connection.close()
