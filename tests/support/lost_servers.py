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

_FOUND = """
SELECT (SELECT count(*) FROM requests WHERE outcome = 'completed'),
  (SELECT count(*) FROM entries WHERE kind = 'charge'), (SELECT coalesce(sum(cost_nanos), 0)::bigint FROM usage_days)
"""


def name_servers(url: str, *servers: PostgresServer) -> str:
    """The URL of the database with all of its servers, in this order."""
    parts = urlsplit(url)
    user = parts.netloc.rpartition("@")[0]
    return parts._replace(netloc=f"{user}@{','.join(f'127.0.0.1:{each.port}' for each in servers)}").geturl()


@attrs.frozen
class Pair:
    """A primary, its asynchronous standby, and the URL of their database with both."""

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
async def open_pair() -> AsyncIterator[Pair]:
    async with owning_pair() as (primary, standby):
        yield Pair(primary, standby, name_servers(await primary.make_database(), primary, standby))


async def check_books(nodes: Sequence[GatewayProcess], url: str, served: int, repeated: int = 0) -> None:
    """Every answer is one row and one charge, and nothing is left reserved.

    ``repeated``: how many more were answers to an earlier request again. They have a row each, and no charge.
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
        found = tuple(await connection.fetchrow(_FOUND))
        assert found == (served + repeated, served, served * COST_NANOS), found
    finally:
        await connection.close()
