"""Ends connections of other nodes at the server, because a frozen or disconnected node cannot close them itself.

The server keeps a connection and its locks as long as the machine at the other end acknowledges packets, which the
machine of a frozen process does.
"""

from collections.abc import Collection
from typing import Any, TypeAlias

from gateway.storage.postgres.address import NODE_PREFIX

LOCK_SPACE, LEADER_LOCK = 7130, 0
"""The first key of the nodes' advisory locks, and the second key of the leader's.

``find_lock_number`` returns the second key of a node's lock.
"""

_END_NODE_CONNECTIONS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE starts_with(application_name, $1) AND pid <> pg_backend_pid()
  AND EXISTS (SELECT 1 FROM nodes WHERE id = $2 AND epoch = $3 AND state = 'live')
"""
_FIND_LEADER = f"""
SELECT leader.pid, own.objid FROM pg_locks leader JOIN pg_locks own USING (pid, locktype, database, classid, objsubid)
WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND classid = {LOCK_SPACE} AND objsubid = 2
  AND leader.objid = {LEADER_LOCK} AND own.objid <> {LEADER_LOCK} AND leader.granted
"""  # noqa: S608 - our own numbers
_END_CONNECTION = "SELECT pg_terminate_backend($1, 1000)"
# A transaction whose backend waits for the client in the middle of a statement is executing a COPY.
_END_STUCK_TRANSACTIONS = f"""
SELECT holder.application_name, pg_terminate_backend(holder.pid)
FROM (SELECT DISTINCT unnest(pg_blocking_pids(pid)) AS pid FROM pg_stat_activity
      WHERE datname = current_database() AND wait_event_type = 'Lock') blocking
JOIN pg_stat_activity holder USING (pid)
WHERE holder.wait_event_type = 'Client' AND holder.state <> 'idle'
  AND starts_with(holder.application_name, '{NODE_PREFIX}')
  AND holder.state_change < clock_timestamp() - make_interval(secs => $1)
"""  # noqa: S608 - our own words

Connection: TypeAlias = Any
"""asyncpg's ``Connection``, which is untyped."""


def find_lock_number(node: str) -> int:
    """Return the number of the lock of a node's process, never ``LEADER_LOCK``; -1 if the id is not hexadecimal."""
    try:
        return int(node[:7], 16) + 1
    except ValueError:
        return -1


async def end_node(connection: Connection, node: str, epoch: int) -> None:
    """End every connection of a node that is live in this epoch, so that its uncommitted changes are rolled back."""
    await connection.fetch(_END_NODE_CONNECTIONS, f"{NODE_PREFIX}{node} ", node, epoch)


async def end_leader(connection: Connection, pid: int) -> None:
    """End the connection of the leader, which frees its lock. Wait at most a second for the end."""
    await connection.fetchval(_END_CONNECTION, pid)


async def find_leader(connection: Connection) -> tuple[int, int] | None:
    """Return the server process id of the leader's connection and its lock number; None without a leader."""
    row = await connection.fetchrow(_FIND_LEADER)
    return None if row is None else (row["pid"], row["objid"])


async def end_stuck(connection: Connection, stuck_s: float) -> Collection[str]:
    """End transactions that block others while their node sends nothing; return the names of their connections."""
    return [row["application_name"] for row in await connection.fetch(_END_STUCK_TRANSACTIONS, stuck_s)]
