"""A node's use of its cluster's database: its lock and beats, changes, notifications, leadership, and dead nodes.

It has two connections, because a change must not wait until a dead node's claims are freed. Both must be sessions of
the server: behind a pooler that shares sessions, locks and notifications are lost.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import lru_cache

import attrs
import structlog
from sqlalchemy import Executable, text

from gateway.cluster.credit.rows import LIMITS_LOCK, LIST_RESTORING_NODES
from gateway.cluster.membership.backends import (
    LEADER_LOCK,
    LOCK_SPACE,
    end_leader,
    end_node,
    end_stuck,
    find_leader,
    find_lock_number,
)
from gateway.cluster.membership.times import TIMES, ClusterTimes
from gateway.domain.node import Change, Heartbeat, Node
from gateway.errors import StoreUnavailable
from gateway.storage.postgres.address import Address
from gateway.storage.postgres.functions import CHANGES, RINGS
from gateway.storage.postgres.hosts import FAILURES, Connection
from gateway.storage.postgres.incarnation import read_generation
from gateway.storage.postgres.line import DedicatedConnection, report_failure
from gateway.storage.postgres.lock_numbers import BRING_BACK_LOCK, SOLE_USER_LOCK, START_LOCK
from gateway.storage.postgres.sole_user import DatabaseInUse, NodeFenced

FREE_TIMEOUT_S = 10.0
"""Time limit of the statements that free a node's claims, which may be many rows, in seconds."""
START_TIMEOUT_S = 60.0
"""How long a node waits for another one in ``start_alone`` and ``bring_back_alone``, in seconds."""
_PAUSE_S = 0.1
_MAX_CHANGES = 10_000
RETENTION_DAYS = 30
"""After how many days the store deletes the rows of an ended node, if the node left nothing to settle."""

_END_FORMER_CONNECTIONS = """
SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity WHERE application_name = $1 AND pid <> pg_backend_pid()
"""
_NOW_MS = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_FIND_NEWEST_CHANGE = "SELECT coalesce(max(sequence), 0) FROM changes"
_REGISTER_NODE = """
INSERT INTO nodes AS n (id, epoch, state, url, version, schema, config_digest, started_ms)
VALUES ($1, 1, 'live', $2, $3, $4, $5, NOW)
ON CONFLICT (id) DO UPDATE SET epoch = n.epoch + 1, state = 'live', url = excluded.url, version = excluded.version,
  schema = excluded.schema, config_digest = excluded.config_digest, started_ms = excluded.started_ms, ended_ms = NULL
RETURNING epoch, started_ms
""".replace("NOW", _NOW_MS)
_PUT_FIRST_BEAT = """
INSERT INTO beats AS b (node, beat, at_ms, seen_change)
VALUES ($1, 1, NOW, (NEWEST))
ON CONFLICT (node) DO UPDATE SET beat = b.beat + 1, at_ms = excluded.at_ms, seen_change = excluded.seen_change
RETURNING seen_change
""".replace("NOW", _NOW_MS).replace("NEWEST", _FIND_NEWEST_CHANGE)
_UPDATE_BEAT = """
UPDATE beats b SET beat = b.beat + 1, at_ms = CASE WHEN $5::boolean THEN NOW ELSE b.at_ms END, seen_change = $3,
  detail = $4::text::jsonb FROM nodes n
WHERE b.node = $1 AND n.id = $1 AND n.epoch = $2 AND n.state = 'live'
RETURNING b.at_ms, (SELECT array_agg(id || ':' || epoch ORDER BY id) FROM nodes WHERE state = 'live') AS live,
  (SELECT count(*) FROM nodes WHERE state = 'dead') AS dead,
  ARRAY(SELECT o.node FROM beats o WHERE o.node <> $1 AND o.at_ms < NOW - $6::bigint) AS late,
  (SELECT convert_from(value, 'UTF8') FROM cluster WHERE name = 'oldest') AS oldest
""".replace("NOW", _NOW_MS)
_PUT_DIGEST = "UPDATE nodes SET config_digest = $2 WHERE id = $1"
_PUT_URL = "UPDATE nodes SET url = $3 WHERE id = $1 AND epoch = $2"
_LIST_CHANGES = f"SELECT sequence, kind, id FROM changes WHERE sequence > $1 ORDER BY sequence LIMIT {_MAX_CHANGES}"  # noqa: S608
_LIST_BEATS = "SELECT n.id, n.epoch, b.beat FROM nodes n JOIN beats b ON b.node = n.id WHERE n.state = 'live'"
# The statement waits for a transaction that has locked the row, because that node is writing: all its rows count, or
# none.
_END_REGISTRATION = """
UPDATE nodes SET state = $3, ended_ms = NOW WHERE id = $1 AND epoch = $2 AND state = 'live' RETURNING id
""".replace("NOW", _NOW_MS)
# This also deletes the node's last beat. Its credit and its started requests are settled before.
_DELETE_OLD_NODES = f"""
DELETE FROM nodes n USING beats b
WHERE b.node = n.id AND n.state <> 'live'
  AND coalesce(n.ended_ms, b.at_ms) < {_NOW_MS} - {RETENTION_DAYS}::bigint * 86400000
  AND NOT EXISTS (SELECT 1 FROM credit_leases l WHERE l.node = n.id)
  AND NOT EXISTS (SELECT 1 FROM request_notes r WHERE r.node = n.id)
RETURNING n.id
"""  # noqa: S608 - our own words
_FREE_CLAIMS = (
    "UPDATE videos SET owner = '', lease_until_ms = 0 WHERE owner <> '' AND owner LIKE $1 AND owner <> $2",
    "UPDATE deliveries SET owner = '', lease_until_ms = 0 WHERE due_ms IS NOT NULL AND owner LIKE $1 AND owner <> $2",
    "UPDATE batches SET owner = '' WHERE owner LIKE $1 AND owner <> $2",
    "UPDATE replays SET state = 'lost' WHERE state = 'running' AND owner LIKE $1 AND owner <> $2",
)
# The jobs of a node that has not stored its last rows again on this server (``beats.detail``).
_LIST_OUTDATED_JOBS = """
SELECT job FROM (
  SELECT 'batch ' || id AS job FROM batches WHERE owner LIKE $1 || ':%'
    AND status NOT IN ('failed', 'completed', 'expired', 'cancelled')
  UNION ALL SELECT 'video ' || id FROM videos WHERE owner <> '' AND owner LIKE $1 || ':%') jobs
WHERE EXISTS (SELECT 1 FROM beats WHERE node = $1 AND detail ->> 'store' IS DISTINCT FROM $2) ORDER BY job
"""
# One statement, because a round trip takes longer than either part. The row is read when the lock is granted: FOR SHARE
# reads its newest version.
_LOCK_IF_LIVE = (
    "SELECT {}(:writes), (SELECT 1 FROM nodes WHERE id = :id AND epoch = :epoch AND state = 'live' FOR SHARE) AS alive"
)
_LOCK_ALONE = text(_LOCK_IF_LIVE.format("pg_advisory_xact_lock"))
_LOCK_SHARED = text(_LOCK_IF_LIVE.format("pg_advisory_xact_lock_shared"))

log = structlog.stdlib.get_logger(__name__)


class NodeSession:
    """The database session of one node.

    If the database does not answer, ``acquire`` raises other errors, and ``leave`` raises none.

    Args:
        deliver: called with each message of ``notify``, including this node's own.

    Attributes:
        address: where the database is, for other connections of this node.
        times: the times of the cluster.
        node: the node as last registered; its ``epoch`` is 0 before the first registration.
        wake_event: set when the log of changes has grown, and when the connection was lost.
        generation: see ``read_generation``; as of the last connection.
        history: a value that differs after the database was replaced: the generation, and how often the database
            lacked a change that this node had read. The latter recognises a server that hides its timeline.
    """

    def __init__(
        self, address: Address, node: Node, deliver: Callable[[str], object], times: ClusterTimes = TIMES
    ) -> None:
        self.times = times
        self.address = address
        self._deliver = deliver
        self._name = f"{address.user} control"
        self._control_connection = DedicatedConnection(self._connect, address.suspect)
        self._log_connection = DedicatedConnection(self._listen, address.suspect)
        self._leads = False
        self.node = node
        self.wake_event = asyncio.Event()
        self.generation = ""
        self._newest_change = self._loss_count = 0

    @property
    def history(self) -> tuple[str, int]:
        return self.generation, self._loss_count

    def lock(self, *, is_exclusive: bool) -> Executable:
        """Return the statement that locks writes; see ``DatabaseUser``. A live node stays live until the commit."""
        return _make_lock(self.node.id, self.node.epoch, is_exclusive=is_exclusive)

    async def acquire(self, wait_s: float = 0.0) -> None:
        """Connect and take the node's lock at start; do nothing once the node is registered.

        Raises ``DatabaseInUse`` if, after ``wait_s`` seconds, another process still runs as this node, or a single
        gateway uses the database. Raises ``OSError`` or asyncpg's errors if the server does not answer.
        """
        if self.node.epoch:  # later, ``DedicatedConnection`` reconnects by itself
            return
        deadline_s = time.monotonic() + wait_s
        while True:
            try:
                await self._control_connection.open()
            except DatabaseInUse:
                if time.monotonic() >= deadline_s:
                    raise
                await asyncio.sleep(_PAUSE_S)
            else:
                break
        await self._log_connection.open()

    def lose(self) -> None:
        """See ``DatabaseUser``. Raises ``NodeFenced``."""
        raise NodeFenced("the other nodes hold this one for dead")

    async def register(self, *, frees: bool = True) -> int:
        """Begin a new epoch, and return the number of the newest change.

        ``frees``: whether to free the claims of earlier processes, as ``free_former`` does.
        """
        node = self.node
        async with self._control_connection.exclusive(FREE_TIMEOUT_S) as connection, connection.transaction():
            row = await connection.fetchrow(
                _REGISTER_NODE, node.id, node.url, node.version, node.schema, node.config_digest
            )
            newest_change: int = await connection.fetchval(_PUT_FIRST_BEAT, node.id)
            if frees:
                await _free_claims(connection, f"{node.id}:%")
        self.node = attrs.evolve(node, epoch=row["epoch"], started_ms=row["started_ms"])
        self._newest_change = newest_change
        return newest_change

    async def free_former(self) -> None:
        """Free the claims of this node's earlier processes: other nodes may work on what these have left."""
        async with self._control_connection.exclusive(FREE_TIMEOUT_S) as connection, connection.transaction():
            await _free_claims(connection, f"{self.node.id}:%", self.node.process)

    async def list_restoring(self, expected_nodes: Collection[str]) -> Mapping[str, int]:
        """Return the other nodes, live or in ``expected_nodes``, that have yet to store their last rows on this server.

        The result maps the id of a node with rows of another server to the number of its beats. Nodes that are
        starting, or are of an older version, have 0.
        """
        async with self._log_connection.exclusive(self.times.statement_s) as connection:
            rows = await connection.fetch(LIST_RESTORING_NODES, list(expected_nodes), self.node.id, self.generation)
        return {row["id"]: row["beat"] for row in rows}

    async def heartbeat(self, seen_change: int, detail: str = "{}", *, serves: bool = True) -> Heartbeat | None:
        """Report that this node is alive, and has applied the changes up to number ``seen_change``.

        ``detail`` is a JSON object for the list of nodes. A node that no longer ``serves`` gets no share of the work
        after ``late_s``, but is not declared dead. Returns None if this node was declared dead.
        """
        async with self._log_connection.exclusive(self.times.statement_s) as connection:
            node, late_ms = self.node, int(self.times.late_s * 1000)
            row = await connection.fetchrow(_UPDATE_BEAT, node.id, node.epoch, seen_change, detail, serves, late_ms)
        if row is None:
            return None
        return Heartbeat(row["at_ms"], tuple(row["live"]), row["dead"], frozenset(row["late"]), row["oldest"] or "")

    async def read_changes(self, after_sequence: int) -> Sequence[Change]:
        """Return the next changes after number ``after_sequence``, in order; empty if there are none."""
        async with self._log_connection.exclusive(self.times.statement_s) as connection:
            changes = [Change(*row) for row in await connection.fetch(_LIST_CHANGES, after_sequence)]
        self._newest_change = changes[-1].sequence if changes else self._newest_change
        return changes

    async def find_newest_change(self) -> int:
        """Return the number of the newest change."""
        async with self._control_connection.exclusive(self.times.statement_s) as connection:
            return int(await connection.fetchval(_FIND_NEWEST_CHANGE))

    async def put_digest(self, config_digest: str) -> None:
        """Store the digest of this node's configuration."""
        async with self._control_connection.exclusive(self.times.statement_s) as connection:
            await connection.execute(_PUT_DIGEST, self.node.id, config_digest)
        self.node = attrs.evolve(self.node, config_digest=config_digest)

    async def put_url(self, url: str) -> None:
        """Store the address at which other nodes reach this one from now on."""
        async with self._control_connection.exclusive(self.times.statement_s) as connection:
            await connection.execute(_PUT_URL, self.node.id, self.node.epoch, url)
        self.node = attrs.evolve(self.node, url=url)

    async def try_lead(self) -> bool:
        """Become the leader of the cluster if it has no leader. Return whether this node leads."""
        async with self._control_connection.exclusive(self.times.statement_s) as connection:
            if not self._leads:
                self._leads = await connection.fetchval("SELECT pg_try_advisory_lock($1, $2)", LOCK_SPACE, LEADER_LOCK)
            return self._leads

    async def stop_leading(self) -> None:
        """Let another node become the leader."""
        async with self._control_connection.exclusive(self.times.statement_s) as connection:
            if self._leads:
                await connection.fetchval("SELECT pg_advisory_unlock($1, $2)", LOCK_SPACE, LEADER_LOCK)
                self._leads = False

    async def list_beats(self) -> Mapping[tuple[str, int], int]:
        """Return the number of beats of each live node, by id and epoch."""
        async with self._control_connection.exclusive(self.times.statement_s) as connection:
            return {(row["id"], row["epoch"]): row["beat"] for row in await connection.fetch(_LIST_BEATS)}

    async def declare_dead(self, node: str, epoch: int) -> bool:
        """Declare a node dead and free its claims; return False if it was not live in this ``epoch``.

        The connections of a live node are ended first: a write on which it is stuck would block this method.
        """
        async with self._control_connection.exclusive(FREE_TIMEOUT_S) as connection, connection.transaction():
            await end_node(connection, node, epoch)
            if await connection.fetchval(_END_REGISTRATION, node, epoch, "dead") is None:
                return False
            await _free_claims(connection, f"{node}:%")
            return True

    async def list_outdated_jobs(self, node: str) -> Sequence[str]:
        """Return kind and id of a node's jobs if it has not stored its last rows again on this server, else nothing."""
        async with self._control_connection.exclusive(FREE_TIMEOUT_S) as connection:
            return [row["job"] for row in await connection.fetch(_LIST_OUTDATED_JOBS, node, self.generation)]

    async def notify(self, messages: Sequence[str]) -> None:
        """Send messages of fewer than 8,000 bytes each to every node, this one included."""
        async with self._control_connection.exclusive(self.times.statement_s) as connection:
            await connection.execute("SELECT pg_notify($1, message) FROM unnest($2::text[]) message", RINGS, messages)

    async def find_leader(self) -> tuple[int, int] | None:
        """Return process id and lock number of the leader's connection, see ``backends``; None without a leader."""
        async with self._control_connection.exclusive(self.times.statement_s) as connection:
            return await find_leader(connection)

    async def end_leader(self, leader: tuple[int, int], alive_nodes: Iterable[str]) -> bool:
        """End the leader's connection (``find_leader``), unless the leader is in ``alive_nodes``.

        Return whether the connection was ended.
        """
        pid, lock_number = leader
        if lock_number in map(find_lock_number, alive_nodes):
            return False
        async with self._control_connection.exclusive(self.times.statement_s) as connection:
            await end_leader(connection, pid)
        return True

    async def end_stuck(self) -> Collection[str]:
        """End stuck transactions of nodes, see ``backends.end_stuck``; return the names of their connections."""
        async with self._control_connection.exclusive(self.times.statement_s) as connection:
            return await end_stuck(connection, self.times.stuck_s)

    async def delete_old_nodes(self) -> Sequence[str]:
        """Delete the rows of nodes with nothing to settle that ended over ``RETENTION_DAYS`` ago; return their ids."""
        async with self._control_connection.exclusive(FREE_TIMEOUT_S) as connection:
            return [row["id"] for row in await connection.fetch(_DELETE_OLD_NODES)]

    async def leave(self) -> None:
        node, self.node = self.node, attrs.evolve(self.node, epoch=0)
        try:
            if node.epoch:
                async with self._control_connection.exclusive(FREE_TIMEOUT_S) as connection, connection.transaction():
                    await connection.fetchval(_END_REGISTRATION, node.id, node.epoch, "gone")
                    await _free_claims(connection, f"{node.id}:%")
        except StoreUnavailable:
            log.warning("node_not_signed_off")  # the leader will declare it dead
        await self.close()

    async def close(self) -> None:
        self._log_connection.close()
        self._control_connection.close()

    def start_alone(self) -> AbstractAsyncContextManager[None]:
        return self._hold_lock(START_LOCK)

    def bring_back_alone(self) -> AbstractAsyncContextManager[None]:
        return self._hold_lock(BRING_BACK_LOCK)

    @asynccontextmanager
    async def _hold_lock(self, lock: int) -> AsyncIterator[None]:
        """Hold a lock that one node has at a time; wait for it at most ``START_TIMEOUT_S``."""
        try:
            connection = await self.address.connect(lock_timeout=f"{START_TIMEOUT_S:.0f}s")
        except FAILURES as error:
            raise report_failure(error) from error
        try:
            try:
                await connection.execute("SELECT pg_advisory_lock($1)", lock)
            except FAILURES as error:
                raise report_failure(error) from error
            yield
        finally:
            connection.terminate()

    async def _connect(self) -> Connection:
        connection = await self.address.connect(
            application_name=self._name,
            statement_timeout=f"{FREE_TIMEOUT_S:.0f}s",
            lock_timeout="1500ms",
            idle_in_transaction_session_timeout="10s",
        )
        try:
            await self._take_locks(connection)
        except BaseException:
            connection.terminate()
            raise
        self._leads = False
        return connection

    async def _listen(self) -> Connection:
        connection = await self.address.connect(
            application_name=f"{self.address.user} log",
            statement_timeout=f"{self.times.statement_s * 1000:.0f}ms",
            lock_timeout="1500ms",
        )
        try:
            await connection.add_listener(CHANGES, self._on_notification)
            await connection.add_listener(RINGS, self._on_peer_message)
            connection.add_termination_listener(self._on_notification)
            self.generation = await read_generation(connection)
            if self.node.epoch:  # a database is empty before the first node registers
                await self._check_changes(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _check_changes(self, connection: Connection) -> None:
        """Count a loss (see ``history``) if the database lacks a change that this node has read."""
        newest_change = int(await connection.fetchval(_FIND_NEWEST_CHANGE))
        if newest_change < self._newest_change:
            self._newest_change, self._loss_count = newest_change, self._loss_count + 1

    async def _take_locks(self, connection: Connection) -> None:
        """End this process's former connection; keep out single gateways, and other processes of this node.

        Raises ``DatabaseInUse`` if one of them is connected.
        """
        await connection.fetch(
            _END_FORMER_CONNECTIONS, self._name
        )  # the server may not know that our former connection broke
        if not await connection.fetchval("SELECT pg_try_advisory_lock_shared($1)", SOLE_USER_LOCK):
            raise DatabaseInUse(
                f"A gateway without cluster.enabled uses the database {self.address.name}. Stop it first"
            )
        lock_number = find_lock_number(self.node.id)
        if not await connection.fetchval("SELECT pg_try_advisory_lock($1, $2)", LOCK_SPACE, lock_number):
            raise DatabaseInUse(
                f"Another process runs as the node {self.node.id} on the database {self.address.name}. If this data "
                "folder is a copy of that one's, delete the file node.id in it"
            )

    def _on_notification(self, *_: object) -> None:
        self.wake_event.set()

    def _on_peer_message(self, _connection: Connection, _pid: int, _channel: str, message: str) -> None:
        self._deliver(message)


@lru_cache(maxsize=8)
def _make_lock(node: str, epoch: int, *, is_exclusive: bool) -> Executable:
    """Return the statement that takes the lock of writes, and says whether the node is live in this ``epoch``.

    It is cached, because building it takes a fifth of a millisecond, as long as sending it.
    """
    statement = _LOCK_ALONE if is_exclusive else _LOCK_SHARED
    return statement.bindparams(writes=LIMITS_LOCK, id=node, epoch=epoch)


async def _free_claims(connection: Connection, processes: str, except_process: str = "") -> None:
    """Free the claims of ``processes`` (a pattern of ``LIKE``), except those of ``except_process``.

    Requests with an ``Idempotency-Key`` that these processes were running count as lost.
    """
    for statement in _FREE_CLAIMS:
        await connection.execute(statement, processes, except_process)
