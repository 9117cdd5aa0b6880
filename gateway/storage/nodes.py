"""The nodes of a cluster, as recorded in its database; and the wait until all have applied a change.

A node that listens on loopback has a URL for the other nodes on its machine only: the URL's fragment identifies the
machine.
"""

import asyncio
import hashlib
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import Row, text

from gateway.domain.node import InForce, Node
from gateway.storage.database import Database

# A row may hold any value that the database accepts: none may make the statement fail or hide the other rows.
_LIST_NODES = text("""
SELECT n.id, n.epoch, n.state, n.url, n.version, n.schema, n.config_digest,
  greatest(0, least(n.started_ms, 253402300799000)) AS started_ms,
  greatest(0, least((extract(epoch FROM clock_timestamp()) * 1000)::numeric - b.at_ms, 9007199254740991))::bigint
    AS beat_age_ms,
  left(b.detail::text, 1000) AS detail,
  (SELECT coalesce(sum(granted - posted - late), 0)::bigint FROM credit_leases WHERE node = n.id) AS outstanding_nanos
FROM nodes n JOIN beats b ON b.node = n.id
WHERE n.state IN ('live', 'dead') OR b.at_ms > extract(epoch FROM clock_timestamp()) * 1000 - 86400000
  OR EXISTS (SELECT 1 FROM credit_leases l WHERE l.node = n.id)
ORDER BY n.state = 'live' DESC, n.started_ms, n.id
""")
_COUNT_FIELDS = ("clock_offset_ms", "waiting_rows", "active_requests")
"""The counts in the ``detail`` of a beat. The column accepts any JSON; a count that is not an integer is skipped."""
_FIND_NEWEST_CHANGE = text("SELECT coalesce(max(sequence), 0) FROM changes")
_COUNT_NODES = text("""
SELECT count(*) FILTER (WHERE b.seen_change >= :change) AS nodes, count(*) AS total
FROM nodes n JOIN beats b ON b.node = n.id WHERE n.state = 'live'
""")
WAIT_S = 0.5
"""How long the answer to a change waits for all nodes to apply it, in seconds."""
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.002, 0.05


async def list_nodes(database: Database) -> Sequence[Node]:
    """Return nodes that are live or dead, ended within a day, or have credit; empty on SQLite."""
    if database.kind != "postgresql":
        return ()
    return [_build_node(row) for row in await database.read(_LIST_NODES)]


def bind_to_machine(url: str) -> str:
    """Return a URL that only nodes of this machine use; empty if the system does not identify the machine."""
    return f"{url}#{read_machine()}" if read_machine() else ""


@cache
def read_machine() -> str:
    """Return the identity of this process's loopback interface: machine and container. Empty except on Linux."""
    try:
        boot, network = Path("/proc/sys/kernel/random/boot_id").read_text(), Path("/proc/self/ns/net").readlink()
    except OSError:
        return ""
    return hashlib.sha256(f"{boot}{network}".encode()).hexdigest()[:16]


def _build_node(row: Row[Any]) -> Node:
    fields: dict[str, Any] = dict(row._mapping)  # noqa: SLF001 - public
    url, _, machine = row.url.partition("#")
    detail_fields = _parse_detail(fields.pop("detail"))
    fields |= {name: detail_fields[name] for name in _COUNT_FIELDS if type(detail_fields.get(name)) is int}
    fields["leads"] = row.state == "live" and detail_fields.get("leads") is True
    return Node(**fields | {"url": url if machine in {"", read_machine()} else ""})


def _parse_detail(detail: str) -> dict[str, Any]:
    try:
        detail_fields = orjson.loads(detail)
    except ValueError:
        return {}
    return detail_fields if isinstance(detail_fields, dict) else {}


async def await_in_force(database: Database, wait_s: float = WAIT_S) -> InForce:
    """Wait, at most ``wait_s``, until every live node has applied the changes made so far; return how many have."""
    started_s = time.monotonic()
    change = (await database.read(_FIND_NEWEST_CHANGE))[0][0]
    statement, pause_s = _COUNT_NODES.bindparams(change=change), _FIRST_PAUSE_S
    while True:
        (count,) = await database.read(statement)
        took_s = time.monotonic() - started_s
        if count.nodes >= count.total or took_s >= wait_s:
            return InForce(count.nodes, count.total, round(took_s * 1000))
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _MAX_PAUSE_S)
