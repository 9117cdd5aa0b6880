"""Notes of started requests in PostgreSQL, used by nodes without a disk of their own instead of a journal file.

A note is committed before the provider is asked, and deleted in the transaction that stores the request's row. Notes
are written by group commit: all waiting requests share one statement, over a dedicated connection.

A row that the database refuses is kept in a note, too.
"""

import asyncio
import json
from collections.abc import Callable, Collection, Sequence
from typing import Any

import attrs
import orjson
import structlog
from sqlalchemy import text

from gateway.cluster.credit.rows import Connection
from gateway.domain import exact_json
from gateway.domain.request_log import RequestRecord, RequestStart
from gateway.errors import StoreUnavailable
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database
from gateway.storage.postgres.address import Address
from gateway.storage.postgres.hosts import FAILURES

STATEMENT_TIMEOUT_S = 2.0
"""Time limit of a statement. Then the connection is closed, because the server may or may not have finished it."""
WAIT_S = 10.0
"""How long a request waits for its note, which is enough for a restart of the server."""
RETRY_S = 0.1
MAX_NOTES = 1_000
"""Notes per statement."""
REFUSED = "refused"
"""Stored instead of a node's id: the note is a row that the database refused."""

# The lock on the node's row orders this insert and the node's death: either all notes are collected, or it is refused.
_INSERT_NOTES = """
WITH live AS (SELECT 1 FROM nodes WHERE id = $1 AND epoch = $2 AND state = 'live' FOR SHARE),
added AS (
  INSERT INTO request_notes (request_id, node, note, at_ms)
  SELECT n.id, $1, n.note, (extract(epoch FROM clock_timestamp()) * 1000)::bigint
  FROM live, unnest($3::text[], $4::bytea[]) AS n(id, note)
  ON CONFLICT (request_id) DO NOTHING)
SELECT count(*) FROM live
"""
_DELETE_NOTES = "DELETE FROM request_notes WHERE request_id = ANY($1)"
_DELETE_STORED_NOTES = text("DELETE FROM request_notes WHERE request_id = ANY(CAST(:ids AS text[]))")
_PUT_REFUSED_ROW = text("""
INSERT INTO request_notes AS n (request_id, node, note, at_ms) VALUES (:id, :node, :note, :at_ms)
ON CONFLICT (request_id) DO UPDATE SET node = excluded.node, note = excluded.note
""")
_TERMINATE_CONNECTION = """
SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity WHERE pid = $1 AND application_name = $2
"""
_LIST_NODE_NOTES = text("SELECT note FROM request_notes WHERE node = :node")

log = structlog.stdlib.get_logger(__name__)


@attrs.define(eq=False)
class _WaitingNote:
    """A note that is not committed yet. ``commit``: a future, resolved by the commit."""

    id: str
    data: bytes
    commit: "asyncio.Future[None]"


class NoteWriter:
    """Writes the notes of one node. ``find_process``: returns the node's id and epoch, as ``Node.process`` does."""

    def __init__(self, address: Address, find_process: Callable[[], str]) -> None:
        self._address = address
        self._find_process = find_process
        self._connection: Connection | None = None
        self._pid = self._former_pid = 0
        self._pending_notes: list[_WaitingNote] = []
        self._withdrawn_ids: set[str] = set()
        self._wake = asyncio.Event()
        self._is_failing = False

    async def write(self, start: RequestStart) -> None:
        """Return once the note of ``start`` is committed.

        After any error, such as ``StoreUnavailable``, the note is withdrawn.
        """
        commit = self.write_soon(start)
        try:
            async with asyncio.timeout(WAIT_S):
                await commit
        except BaseException as error:
            self.withdraw(start.id)
            if isinstance(error, TimeoutError):
                raise _make_unavailable() from None
            raise

    def withdraw(self, request_id: str) -> None:
        self._withdrawn_ids.add(request_id)
        self._wake.set()

    def write_soon(self, start: RequestStart) -> "asyncio.Future[None]":
        commit: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending_notes.append(_WaitingNote(start.id, exact_json.trim(orjson.dumps(start._asdict())), commit))
        self._wake.set()
        return commit

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            try:
                await self.step()
            except StoreUnavailable:
                await asyncio.sleep(RETRY_S)

    async def step(self) -> None:
        """Write waiting notes, and delete withdrawn ones. Raises ``StoreUnavailable``; both then stay pending."""
        self._wake.clear()
        batch = [note for note in self._pending_notes[:MAX_NOTES] if not note.commit.done()]
        withdrawn_ids = frozenset(self._withdrawn_ids)
        if len(self._pending_notes) > MAX_NOTES:
            self._wake.set()
        self._pending_notes = self._pending_notes[MAX_NOTES:]
        try:
            async with asyncio.timeout(STATEMENT_TIMEOUT_S):
                if batch:
                    await self._insert(batch)
                if withdrawn_ids:
                    await (await self._connect()).execute(_DELETE_NOTES, list(withdrawn_ids))
                    self._withdrawn_ids -= withdrawn_ids
        except BaseException as error:
            self._pending_notes = batch + self._pending_notes
            self._wake.set()
            self._disconnect()
            if not isinstance(error, FAILURES):
                raise
            if not self._is_failing:
                log.warning("notes_not_written", rows=len(batch), error=str(error) or type(error).__name__)
            self._is_failing = True
            raise _make_unavailable() from error
        if self._is_failing:
            self._is_failing = False
            log.info("notes_written_again", rows=len(batch))

    async def close(self) -> None:
        """Delete withdrawn notes if the database answers, and close the connection."""
        if self._withdrawn_ids:
            try:
                await self.step()
            except StoreUnavailable:
                log.warning("notes_not_deleted", rows=len(self._withdrawn_ids))
        self._disconnect()

    async def _insert(self, batch: Sequence[_WaitingNote]) -> None:
        node, _, epoch = self._find_process().rpartition(":")
        connection = await self._connect()
        is_live = await connection.fetchval(
            _INSERT_NOTES, node, int(epoch), [note.id for note in batch], [note.data for note in batch]
        )
        for note in batch:
            if not note.commit.done():
                if is_live:
                    note.commit.set_result(None)
                else:  # another node has declared this one dead
                    note.commit.set_exception(_make_unavailable())
                    note.commit.exception()  # marks the error as retrieved even if no caller waits for it

    async def _connect(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            connection = await self._address.connect(
                statement_timeout=f"{STATEMENT_TIMEOUT_S:.0f}s",
                lock_timeout="1500ms",
                idle_in_transaction_session_timeout="10s",
            )
            try:
                if self._former_pid:  # the former connection must not write a note after its deletion
                    await connection.execute(_TERMINATE_CONNECTION, self._former_pid, self._address.user)
            except BaseException:
                connection.terminate()
                raise
            # asyncpg no longer knows the server process of a broken connection.
            self._pid, self._former_pid = connection.get_server_pid(), 0
            self._connection = connection
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._former_pid = self._pid
            connection.terminate()


class PostgresNotes:
    """Deletes notes in the transactions that store their rows. A row that the database refuses is kept in a note."""

    async def delete(self, connection: AsyncConnection, ids: Collection[str]) -> None:
        await connection.execute(_DELETE_STORED_NOTES, {"ids": list(ids)})

    async def store_refused_row(self, connection: AsyncConnection, row: RequestRecord, reason: str) -> None:
        # Unlike orjson, json serializes any number and any text; the column accepts any bytes.
        note = json.dumps({"reason": reason, "row": attrs.asdict(row)}, default=repr).encode()
        values = {"id": row.id, "node": REFUSED, "note": note, "at_ms": row.settled_ms}
        await connection.execute(_PUT_REFUSED_ROW, values)


def parse_note(note: bytes) -> RequestRecord:
    """Return the row of a request that is known only from its note."""
    fields: dict[str, Any] = orjson.loads(note)
    return RequestStart(**{name: value for name, value in fields.items() if name in RequestStart._fields}).interrupt()


async def find_own_notes(database: Database, node: str) -> Sequence[RequestRecord]:
    """Return the rows of the requests that a node has started and not ended."""
    return [parse_note(bytes(row.note)) for row in await database.read(_LIST_NODE_NOTES.bindparams(node=node))]


def _make_unavailable() -> StoreUnavailable:
    return StoreUnavailable("The gateway's store does not record requests at the moment", retry_after_s=2)
