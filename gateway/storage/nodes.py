"""The nodes of a cluster, as its database has them."""

from collections.abc import Sequence

from sqlalchemy import text

from gateway.domain.node import Node
from gateway.storage.database import Database

_LIST = text("""
SELECT n.id, n.epoch, n.state, n.url, n.version, n.schema, n.config_digest, n.started_ms,
  greatest(0, (extract(epoch FROM clock_timestamp()) * 1000)::bigint - b.at_ms) AS beat_age_ms
FROM nodes n JOIN beats b ON b.node = n.id
WHERE n.state = 'live' OR b.at_ms > extract(epoch FROM clock_timestamp()) * 1000 - 86400000
ORDER BY n.state = 'live' DESC, n.started_ms, n.id
""")


async def list_nodes(database: Database) -> Sequence[Node]:
    """Return the live nodes, and those that ended within a day. None on SQLite. Raises ``StoreUnavailable``."""
    if database.kind != "postgresql":
        return ()
    return [Node(**row._mapping) for row in await database.read(_LIST)]  # noqa: SLF001 - its public name
