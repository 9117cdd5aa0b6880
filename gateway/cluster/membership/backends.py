"""Ends connections of other nodes at the server: a node that is frozen or cut off cannot close them itself.

The server keeps a connection, and the locks that it has, for as long as the other side's machine acknowledges packets.
That of a frozen process does.
"""

from collections.abc import Collection
from typing import Any, TypeAlias

from gateway.storage.postgres.address import NODE

SPACE, LEADER = 7130, 0
"""The advisory locks of the nodes, and that of the leader; the others are numbered by ``number_node``."""
STUCK_S = 2.0
"""How long a transaction may wait for its node while it keeps another one waiting. A node that works sends its next
statement within milliseconds."""

_END_NODE = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE starts_with(application_name, $1) AND pid <> pg_backend_pid()
  AND EXISTS (SELECT 1 FROM nodes WHERE id = $2 AND epoch = $3 AND state = 'live')
"""
_FIND_LEADER = f"""
SELECT leader.pid, own.objid FROM pg_locks leader JOIN pg_locks own USING (pid, locktype, database, classid, objsubid)
WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND classid = {SPACE} AND objsubid = 2 AND leader.objid = {LEADER} AND own.objid <> {LEADER} AND leader.granted
"""  # noqa: S608 - our own numbers
_END = "SELECT pg_terminate_backend($1, 1000)"
# A transaction whose server waits for the client in the middle of a statement is inside of a COPY.
_END_STUCK = f"""
SELECT holder.application_name, pg_terminate_backend(holder.pid)
FROM (SELECT DISTINCT unnest(pg_blocking_pids(pid)) AS pid FROM pg_stat_activity
      WHERE datname = current_database() AND wait_event_type = 'Lock') blocking
JOIN pg_stat_activity holder USING (pid)
WHERE holder.wait_event_type = 'Client' AND holder.state <> 'idle' AND starts_with(holder.application_name, '{NODE}')
  AND holder.state_change < clock_timestamp() - interval '{STUCK_S} s'
"""  # noqa: S608 - our own words

Connection: TypeAlias = Any
"""asyncpg's ``Connection``, which has no types."""


def number_node(node: str) -> int:
    """Return the number of the lock that the process of a node has; ``LEADER`` is no node's.

    An id that is no hexadecimal number, which no gateway makes, has the number -1, which no lock has.
    """
    try:
        return int(node[:7], 16) + 1
    except ValueError:
        return -1


async def end_node(connection: Connection, node: str, epoch: int) -> None:
    """End every connection of a node that counts as alive in this epoch: what it has not committed is undone."""
    await connection.fetch(_END_NODE, f"{NODE}{node} ", node, epoch)


async def end_leader(connection: Connection, pid: int) -> None:
    """End the connection of a leader, which frees its lock; wait for that for a second at most."""
    await connection.fetchval(_END, pid)


async def find_leader(connection: Connection) -> tuple[int, int] | None:
    """Return the server's process for the leader's connection and the leader's ``number_node``; None without one."""
    row = await connection.fetchrow(_FIND_LEADER)
    return None if row is None else (row["pid"], row["objid"])


async def end_stuck(connection: Connection) -> Collection[str]:
    """End transactions that keep others waiting and whose node does not go on; return the names of the connections."""
    return [row["application_name"] for row in await connection.fetch(_END_STUCK)]
