"""The index of kept bodies in the database: the request, the owner and the place of each.

Also counts how often the data keys of an account were destroyed.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, case, delete, exists, func, or_, select, update

from gateway.domain.audit_log import AuditRow
from gateway.domain.kept_body import BodyFilter, BodyOwner, LossReason
from gateway.domain.request_log import NON_FAILURES
from gateway.frozen import frozen
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.audit_log import add_row
from gateway.storage.bodies.segments import Location
from gateway.storage.bulk import BulkInsert
from gateway.storage.database import Database
from gateway.storage.dialect import insert_for
from gateway.storage.schema import accounts, requests
from gateway.storage.schema_bodies import bodies, body_key_versions, body_segments

ERASED_PER_STEP = 500
ACCOUNTS_PER_STEP = 500
"""Maximum number of accounts that one statement names: a database refuses more than 32,766 parameters."""
MARKED_PER_STEP = 5_000
"""Maximum number of rows that are hidden in one transaction: other writes wait for it."""
_columns, _segments, _versions = bodies.c, body_segments.c, body_key_versions.c
SHARED_KEYS = "*"
"""The value of ``node`` for the data keys of all nodes, in the shared store."""
IS_MOVED = exists().where(_segments.node == _columns.node, _segments.segment == _columns.segment)
"""Whether the segment of a row was moved to a shared store."""
_HELD = "held"
"""The value of ``loss`` for bodies of a request that started a job, such as a video: kept only if the request fails."""
_HAS_FAILED = requests.c.outcome.not_in(NON_FAILURES)
_IS_SHOWN = or_(_columns.loss != _HELD, exists().where(requests.c.id == _columns.request_id, _HAS_FAILED))
_DELETED_VALUES = {"expires_ms": 0, "end_user": "", "session": ""}
_NEW_VALUES = ", ".join(
    f"{column.name} = "
    + (
        f"CASE WHEN bodies.expires_ms = 0 THEN bodies.{column.name} ELSE excluded.{column.name} END"
        if column.name in _DELETED_VALUES  # a deletion is not undone by a writer that has not learnt of its commit
        else f"excluded.{column.name}"
    )
    for column in _columns
    if not column.primary_key
)
_PUT = BulkInsert(bodies, _columns.keys(), f" ON CONFLICT (request_id) DO UPDATE SET {_NEW_VALUES}")
_ABSENT_NODE_MS = 7 * 86_400_000
"""How long after their expiry the rows of another node are removed. That node should have removed them itself."""
_FRAME_COLUMNS = (_columns.request_id, _columns.account_id, _columns.segment, _columns.position, _columns.bytes)


@frozen
class BodyEntry:
    """A row of the index. ``location`` is None if nothing was kept; ``loss`` says why.

    ``is_held``: whether ``find`` returns the row only if the request is logged as failed.
    """

    owner: BodyOwner
    expires_ms: int
    node: str
    location: Location | None
    loss: LossReason | None = None
    is_held: bool = False


class BodyIndex:
    """The table ``bodies``, and the versions of accounts' data keys.

    ``node`` is the id of this node, empty for a single gateway.

    ``shares_keys``: whether every node can destroy the data keys of all, in a shared store.
    """

    def __init__(self, database: Database, node: str, *, shares_keys: bool = False) -> None:
        self._database = database
        self.node = node
        self._key_node = SHARED_KEYS if shares_keys else node

    async def add(self, entries: Sequence[BodyEntry]) -> None:
        """Add rows. A new row of a request replaces its earlier one, but stays deleted if that was deleted."""

        async def work(connection: AsyncConnection) -> None:
            await _PUT.run(connection, [_build_row(entry) for entry in entries])

        if not await self._database.insert(lambda: [(_PUT, [_build_row(entry) for entry in entries])]):
            await self._database.write_shared(work)

    async def find(self, request_id: str, now_ms: int) -> BodyEntry | None:
        """Return the row of a request; None if it has none, or if its bodies have expired, are held or were deleted."""
        query = select(bodies).where(_columns.request_id == request_id, _columns.expires_ms > now_ms, _IS_SHOWN)
        rows = await self._database.read(query)
        return _parse(rows[0]) if rows else None

    async def list_kept(self, request_ids: Collection[str], now_ms: int, *, reads_moved: bool = False) -> set[str]:
        """Return those of the requests whose bodies this node keeps.

        ``reads_moved``: also those in segments that any node has moved to the shared store.
        """
        is_kept = _columns.request_id.in_(list(request_ids)), _columns.expires_ms > now_ms, _IS_SHOWN
        is_readable = and_(*self._in_segments())
        is_readable = or_(is_readable, IS_MOVED) if reads_moved else is_readable
        rows = await self._database.read(select(_columns.request_id).where(*is_kept, is_readable))
        return {row.request_id for row in rows}

    async def find_ends(self) -> dict[int, int]:
        """Return the segments of this node that were not moved to a shared store, each with the end of its last frame.

        The end is an offset in bytes.
        """
        end = func.max(_columns.position + _columns.bytes).label("end")
        query = select(_columns.segment, end).where(*self._in_segments(), ~IS_MOVED).group_by(_columns.segment)
        return {int(row.segment): int(row.end) for row in await self._database.read(query)}

    async def find_last(self, former_node: str | None = None) -> int:
        """Return the highest number of a segment of this node, or of its ``former_node``; 0 without one.

        Segments of both are in one folder, and those of one may become those of the other.
        """
        nodes = [self.node] if former_node is None else [self.node, former_node]
        numbers = [
            (await self._database.read(select(func.max(table.c.segment)).where(table.c.node.in_(nodes))))[0][0]
            for table in (bodies, body_segments)
        ]
        return max(int(number or 0) for number in numbers)

    async def adopt(self, former_node: str) -> None:
        """Take over the rows of the node that this gateway was before; an empty text stands for a single gateway.

        Rows of segments that were moved to a shared store stay: their data keys have the name of the former node.
        """
        is_left = _columns.node == former_node, ~IS_MOVED
        await self._database.change(update(bodies).where(*is_left).values(node=self.node))

    async def list_frames(self, node: str, segment: int | None = None) -> list[tuple[str, int, Location]]:
        """Return the request id, the account id and the frame of all bodies in the folder of ``node``.

        Deleted bodies are left out. ``segment``: only bodies in this segment.
        """
        is_there = _columns.node == node, _columns.expires_ms > 0, _columns.segment.is_not(None), ~IS_MOVED
        query = select(*_FRAME_COLUMNS).where(*is_there)
        rows = await self._database.read_long(query if segment is None else query.where(_columns.segment == segment))
        return [(row.request_id, row.account_id, Location(row.segment, row.position, row.bytes)) for row in rows]

    async def list_pending_keys(self) -> set[int]:
        """Return the accounts whose data keys must be destroyed: a deletion of all their bodies was cut off."""
        is_pending = _versions.node == self._key_node, _versions.is_pending
        rows = await self._database.read(select(_versions.account_id).where(*is_pending))
        return {int(row.account_id) for row in rows}

    async def find_key_versions(self, account_ids: Collection[int]) -> dict[int, int]:
        """Return how many times the data keys of each account were destroyed.

        Accounts whose keys never were may be missing.
        """
        query = select(_versions.account_id, _versions.version).where(_versions.node == self._key_node)
        if len(account_ids) <= ACCOUNTS_PER_STEP:
            query = query.where(_versions.account_id.in_(list(account_ids)))
        asked_ids, rows = set(account_ids), await self._database.read_long(query)
        return {int(row.account_id): int(row.version) for row in rows if row.account_id in asked_ids}

    async def end_key_destruction(self, account_id: int) -> None:
        """Note that the data keys of an account are destroyed. The new version lets nodes forget a key in memory."""
        is_of_account = _versions.node == self._key_node, _versions.account_id == account_id
        values = {"version": _versions.version + 1, "is_pending": False}
        await self._database.change(update(body_key_versions).where(*is_of_account).values(**values))

    async def remove_key_versions(self) -> None:
        """Remove the versions of deleted accounts without bodies, whose data keys are destroyed."""
        account_id = _versions.account_id
        is_gone = account_id.not_in(select(accounts.c.id)), account_id.not_in(select(_columns.account_id))
        await self._database.change(delete(body_key_versions).where(*is_gone, ~_versions.is_pending))

    async def _note_key_destruction(self, connection: AsyncConnection, account_id: int) -> None:
        row = {"account_id": account_id, "node": self._key_node, "version": 0, "is_pending": True}
        statement = insert_for(self._database.kind, body_key_versions).values(**row)
        changes = {"is_pending": True}
        await connection.execute(statement.on_conflict_do_update(index_elements=["account_id", "node"], set_=changes))

    async def list_segments(self) -> list[int]:
        """Return the segments of this node that have rows, also deleted and moved ones."""
        rows = await self._database.read(select(_columns.segment).where(*self._in_segments()).distinct())
        return [int(row.segment) for row in rows]

    async def list_accounts(self) -> set[int]:
        """Return the accounts with rows in segments of this node, also deleted and moved ones."""
        rows = await self._database.read(select(_columns.account_id).where(*self._in_segments()).distinct())
        return {int(row.account_id) for row in rows}

    async def count_by_account(self, body_filter: BodyFilter) -> dict[int, int]:
        """Return for each account how many of its requests match the filter. Deleted bodies are left out.

        Raises ``ValueError`` for an empty filter.
        """
        query = select(_columns.account_id, func.count().label("requests"))
        query = query.where(*_build_conditions(body_filter), _columns.expires_ms > 0).group_by(_columns.account_id)
        return {int(row.account_id): int(row.requests) for row in await self._database.read_long(query)}

    async def mark_deleted(
        self, body_filter: BodyFilter, audit: AuditRow | None = None, *, key_account_id: int | None = None
    ) -> int:
        """Hide the bodies of some matching requests from now on, on every node; return the number of requests.

        Fewer than ``MARKED_PER_STEP`` means that no more match. The same transaction stores ``audit``, and a note that
        the data keys of the account ``key_account_id`` must be destroyed. Raises ``ValueError`` for an empty filter.
        """
        return await self._mark(audit, *_build_conditions(body_filter), key_account_id=key_account_id)

    async def mark_ownerless_deleted(self) -> int:
        """Hide the bodies of deleted accounts from now on, on every node; return the number of requests.

        Fewer than ``MARKED_PER_STEP`` means that there are no more.
        """
        return await self._mark(None, _columns.account_id.not_in(select(accounts.c.id)))

    async def _mark(
        self, audit: AuditRow | None, *conditions: ColumnElement[bool], key_account_id: int | None = None
    ) -> int:
        some = select(_columns.request_id).where(*conditions, _columns.expires_ms > 0).limit(MARKED_PER_STEP)
        statement = update(bodies).where(_columns.request_id.in_(some)).values(**_DELETED_VALUES)

        async def work(connection: AsyncConnection) -> int:
            await add_row(connection, audit)
            if key_account_id is not None:
                await self._note_key_destruction(connection, key_account_id)
            return (await connection.execute(statement)).rowcount

        return await self._database.write_shared(work)

    async def hide_unmoved(self, account_ids: Collection[int]) -> None:
        """Hide the bodies of accounts in the folder of this node from now on, on every node."""
        is_here, ids = and_(*self._in_segments(), ~IS_MOVED, _columns.expires_ms > 0), list(account_ids)
        for start in range(0, len(ids), ACCOUNTS_PER_STEP):
            is_theirs = _columns.account_id.in_(ids[start : start + ACCOUNTS_PER_STEP])
            await self._database.change(update(bodies).where(is_here, is_theirs).values(**_DELETED_VALUES))

    async def settle_held(self) -> None:
        """Hide the held bodies of requests that have ended without a failure, and end the hold of those that failed.

        This is done for rows of all nodes, because a node may be gone.
        """
        is_held = _columns.loss == _HELD, _columns.expires_ms > 0
        query = select(_columns.request_id, _HAS_FAILED.label("has_failed"))
        query = query.join_from(bodies, requests, requests.c.id == _columns.request_id).where(*is_held)
        while rows := await self._database.read_long(query.limit(ERASED_PER_STEP)):
            for has_failed in {bool(row.has_failed) for row in rows}:
                ended_ids = [row.request_id for row in rows if bool(row.has_failed) is has_failed]
                values = {"loss": ""} if has_failed else _DELETED_VALUES
                statement = update(bodies).where(_columns.request_id.in_(ended_ids), *is_held)
                await self._database.change(statement.values(**values))

    async def shorten(self, keep_ms: float, *, of_all_nodes: bool = False) -> None:
        """Let bodies of this node (or ``of_all_nodes``) expire at the latest ``keep_ms`` after their request began."""
        expires_ms = _columns.started_ms + int(keep_ms)
        is_later = _columns.expires_ms > expires_ms
        where = (is_later,) if of_all_nodes else (_columns.node == self.node, is_later)
        await self._database.change(update(bodies).where(*where).values(expires_ms=expires_ms))

    async def list_deleted(self) -> list[tuple[str, Location | None]]:
        """Return some of the requests of this node whose bodies must be erased in its folder, with their frames.

        The frame is None if no bytes were kept.
        """
        query = select(*_FRAME_COLUMNS).where(_columns.node == self.node, _columns.expires_ms == 0, ~IS_MOVED)
        rows = await self._database.read(query.limit(ERASED_PER_STEP))
        return [(row.request_id, _parse_location(row)) for row in rows]

    async def remove(self, request_ids: Iterable[str]) -> None:
        await self._database.change(delete(bodies).where(_columns.request_id.in_(list(request_ids))))

    async def remove_segments(self, segments: Iterable[int]) -> int:
        """Remove the rows of segments of this node; return their number."""
        is_there = _columns.segment.in_(list(segments))
        return await self._database.change(delete(bodies).where(_columns.node == self.node, is_there))

    async def remove_expired(self, now_ms: int) -> int:
        """Remove rows that have expired, also some of other nodes; return how many were removed.

        Rows of this node that are in a segment stay until all rows of the segment have expired or were deleted. Rows
        of other nodes are removed a week after they expired. Deleted rows without bytes are removed for all nodes.
        """
        query = select(_columns.segment).where(*self._in_segments()).group_by(_columns.segment)
        rows = await self._database.read(query.having(func.max(_columns.expires_ms) <= now_ms))
        removed = await self.remove_segments([int(row.segment) for row in rows]) if rows else 0
        is_expired = and_(_columns.node == self.node, _columns.segment.is_(None), _columns.expires_ms <= now_ms)
        is_left = and_(_columns.node != self.node, _columns.expires_ms.between(1, now_ms - _ABSENT_NODE_MS))
        is_erased = and_(_columns.segment.is_(None), _columns.expires_ms == 0)
        return removed + await self._database.change(delete(bodies).where(or_(is_expired, is_left, is_erased)))

    async def count_pending(self) -> int:
        """Return the number of requests whose bodies other nodes have yet to erase."""
        return await self._count_deleted(_columns.node != self.node)

    async def count_deleted(self) -> int:
        """Return the number of requests whose bodies are hidden, and have yet to be erased, on all nodes."""
        return await self._count_deleted()

    async def _count_deleted(self, *conditions: ColumnElement[bool]) -> int:
        query = select(func.count()).select_from(bodies).where(_columns.expires_ms == 0, *conditions)
        return int((await self._database.read(query))[0][0])

    async def count(self, now_ms: int, account_id: int | None = None) -> tuple[int, int, int | None]:
        """Return how many requests have kept bodies, of how many nothing was kept, and when the oldest kept one began.

        The time is in Unix milliseconds; None if nothing is kept. ``account_id``: only requests of this account.
        """
        is_kept = _columns.segment.is_not(None)
        query = select(
            func.count(_columns.segment), func.count(), func.min(case((is_kept, _columns.started_ms)))
        ).where(_columns.expires_ms > now_ms)
        if account_id is not None:
            query = query.where(_columns.account_id == account_id)
        row: Sequence[Any] = (await self._database.read_long(query))[0]
        kept_count, total, oldest_ms = row
        return int(kept_count), int(total) - int(kept_count), None if oldest_ms is None else int(oldest_ms)

    def _in_segments(self) -> tuple[ColumnElement[bool], ...]:
        return _columns.node == self.node, _columns.segment.is_not(None)


def find_key_account(body_filter: BodyFilter) -> int | None:
    """Return the account whose data keys a deletion destroys; None if it is not a deletion of all of an account."""
    account_id = body_filter.account_id
    return account_id if body_filter == BodyFilter(account_id=account_id) else None


def _build_row(entry: BodyEntry) -> tuple[Any, ...]:
    """Return the values of the columns, in the order of the table."""
    owner, location = entry.owner, entry.location
    place = (None, 0, 0) if location is None else (location.segment, location.position, location.bytes)
    names = owner.end_user, owner.session
    times, loss = (owner.started_ms, entry.expires_ms), _HELD if entry.is_held else entry.loss or ""
    return (
        owner.request_id, owner.account_id, owner.key_id, *names, *times, entry.node, *place, loss
    )  # fmt: skip


def _parse(row: Row[Any]) -> BodyEntry:
    owner = BodyOwner(row.request_id, row.account_id, row.key_id, row.started_ms, row.end_user, row.session)
    is_held = row.loss == _HELD
    loss = None if is_held else row.loss or None
    return BodyEntry(owner, row.expires_ms, row.node, _parse_location(row), loss, is_held)


def _parse_location(row: Row[Any]) -> Location | None:
    return None if row.segment is None else Location(row.segment, row.position, row.bytes)


def _build_conditions(body_filter: BodyFilter) -> list[ColumnElement[bool]]:
    """Return the conditions of a deletion. Raises ``ValueError`` without any: that would delete everything."""
    conditions: list[ColumnElement[bool]] = []
    for column, value in (
        (_columns.request_id, body_filter.request_id),
        (_columns.account_id, body_filter.account_id),
        (_columns.key_id, body_filter.key_id),
        (_columns.session, body_filter.session),
    ):
        if value is not None:
            conditions.append(column == value)
    if body_filter.end_users is not None:
        conditions.append(_columns.end_user.in_(sorted(body_filter.end_users)))
    if body_filter.before_ms is not None:
        conditions.append(_columns.started_ms < body_filter.before_ms)
    if not conditions:
        raise ValueError("a deletion of bodies needs a condition")
    return conditions
