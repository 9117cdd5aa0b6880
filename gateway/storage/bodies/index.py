"""The index of kept bodies in the database: whose they are, and where."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, case, delete, func, or_, select, update

from gateway.domain.kept_body import BodyFilter, BodyOwner, LossReason
from gateway.frozen import frozen
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.bodies.segments import Location
from gateway.storage.bulk import BulkInsert
from gateway.storage.database import Database
from gateway.storage.schema import accounts
from gateway.storage.schema_bodies import bodies

ERASED_PER_STEP = 500
_columns = bodies.c
_NEW_VALUES = ", ".join(f"{column.name} = excluded.{column.name}" for column in _columns if not column.primary_key)
_PUT = BulkInsert(bodies, _columns.keys(), f" ON CONFLICT (request_id) DO UPDATE SET {_NEW_VALUES}")
_DELETED_VALUES = {"expires_ms": 0, "end_user": "", "session": ""}
_ABSENT_NODE_MS = 7 * 86_400_000
"""How long after their expiry the rows of another node are removed: that node has not done so by then."""
_MINE_COLUMNS = (_columns.request_id, _columns.account_id, _columns.segment, _columns.position, _columns.bytes)


@frozen
class BodyEntry:
    """A row of the index. ``location`` is None if nothing was kept; ``loss`` says why."""

    owner: BodyOwner
    expires_ms: int
    node: str
    location: Location | None
    loss: LossReason | None = None


class BodyIndex:
    """The ``bodies`` table. ``node`` is the id of this node, empty for a single gateway."""

    def __init__(self, database: Database, node: str) -> None:
        self._database = database
        self.node = node

    async def add(self, entries: Sequence[BodyEntry]) -> None:
        """Add rows; a row of a request that has one already replaces it."""
        rows = [_build_row(entry) for entry in entries]

        async def work(connection: AsyncConnection) -> None:
            await _PUT.run(connection, rows)

        await self._database.write_shared(work)

    async def find(self, request_id: str, now_ms: int) -> BodyEntry | None:
        """Return the row of a request; None if it has none, or if its bodies have expired or were deleted."""
        query = select(bodies).where(_columns.request_id == request_id, _columns.expires_ms > now_ms)
        rows = await self._database.read(query)
        return _parse(rows[0]) if rows else None

    async def list_kept(self, request_ids: Collection[str], now_ms: int) -> set[str]:
        """Return those of the requests whose bodies this node keeps."""
        is_kept = _columns.request_id.in_(list(request_ids)), _columns.expires_ms > now_ms
        rows = await self._database.read(select(_columns.request_id).where(*is_kept, *self._in_segments()))
        return {row.request_id for row in rows}

    async def find_ends(self) -> dict[int, int]:
        """Return the end of the last frame of each segment of this node."""
        end = func.max(_columns.position + _columns.bytes).label("end")
        query = select(_columns.segment, end).where(*self._in_segments()).group_by(_columns.segment)
        return {int(row.segment): int(row.end) for row in await self._database.read(query)}

    async def adopt(self) -> None:
        """Take over the rows of the single gateway that this node was before."""
        await self._database.change(update(bodies).where(_columns.node == "").values(node=self.node))

    async def list_segments(self) -> list[int]:
        """Return the segments of this node that have rows."""
        rows = await self._database.read(select(_columns.segment).where(*self._in_segments()).distinct())
        return [int(row.segment) for row in rows]

    async def list_accounts(self) -> set[int]:
        """Return the accounts that have kept bodies on this node."""
        rows = await self._database.read(select(_columns.account_id).where(*self._in_segments()).distinct())
        return {int(row.account_id) for row in rows}

    async def mark_deleted(self, body_filter: BodyFilter) -> int:
        """Hide the bodies of matching requests from now on, on every node; return the number of requests."""
        statement = update(bodies).where(*_build_conditions(body_filter), _columns.expires_ms > 0)
        return await self._database.change(statement.values(**_DELETED_VALUES))

    async def mark_ownerless_deleted(self) -> int:
        """Hide the bodies of deleted accounts from now on, on every node; return the number of requests."""
        statement = update(bodies).where(_columns.account_id.not_in(select(accounts.c.id)), _columns.expires_ms > 0)
        return await self._database.change(statement.values(**_DELETED_VALUES))

    async def shorten(self, keep_ms: float) -> None:
        """Have the bodies of this node expire ``keep_ms`` after the start of their requests, unless they do earlier."""
        expires_ms = _columns.started_ms + int(keep_ms)
        statement = update(bodies).where(_columns.node == self.node, _columns.expires_ms > expires_ms)
        await self._database.change(statement.values(expires_ms=expires_ms))

    async def list_deleted(self) -> list[tuple[str, Location | None]]:
        """Return some of the requests of this node whose bodies must be erased, with their frames."""
        query = select(*_MINE_COLUMNS).where(_columns.node == self.node, _columns.expires_ms == 0)
        rows = await self._database.read(query.limit(ERASED_PER_STEP))
        return [(row.request_id, _parse_location(row)) for row in rows]

    async def remove(self, request_ids: Iterable[str]) -> None:
        await self._database.change(delete(bodies).where(_columns.request_id.in_(list(request_ids))))

    async def remove_segments(self, segments: Iterable[int]) -> int:
        """Remove the rows of segments of this node; return their number."""
        is_there = _columns.segment.in_(list(segments))
        return await self._database.change(delete(bodies).where(_columns.node == self.node, is_there))

    async def remove_expired(self, now_ms: int) -> int:
        """Remove the rows of the segments of this node in which everything has expired, and expired rows without one.

        Rows of other nodes that expired a week ago are removed, too. Return the number of rows. Rows whose bytes must
        be erased are no reason to keep a segment.
        """
        query = select(_columns.segment).where(*self._in_segments()).group_by(_columns.segment)
        rows = await self._database.read(query.having(func.max(_columns.expires_ms) <= now_ms))
        removed = await self.remove_segments([int(row.segment) for row in rows]) if rows else 0
        is_expired = and_(_columns.node == self.node, _columns.segment.is_(None), _columns.expires_ms <= now_ms)
        is_left = and_(_columns.node != self.node, _columns.expires_ms.between(1, now_ms - _ABSENT_NODE_MS))
        return removed + await self._database.change(delete(bodies).where(or_(is_expired, is_left)))

    async def count_pending(self) -> int:
        """Return the number of requests whose bodies other nodes have yet to erase."""
        query = select(func.count()).select_from(bodies)
        rows = await self._database.read(query.where(_columns.node != self.node, _columns.expires_ms == 0))
        return int(rows[0][0])

    async def count(self, now_ms: int, account_id: int | None = None) -> tuple[int, int, int | None]:
        """Return how many requests have kept bodies, of how many nothing was kept, and when the oldest one began.

        ``account_id``: only requests of this account.
        """
        is_kept = _columns.segment.is_not(None)
        query = select(
            func.count(_columns.segment), func.count(), func.min(case((is_kept, _columns.started_ms)))
        ).where(_columns.expires_ms > now_ms)
        if account_id is not None:
            query = query.where(_columns.account_id == account_id)
        row: Sequence[Any] = (await self._database.read_long(query))[0]
        kept, total, oldest_ms = row
        return int(kept), int(total) - int(kept), None if oldest_ms is None else int(oldest_ms)

    def _in_segments(self) -> tuple[ColumnElement[bool], ...]:
        return _columns.node == self.node, _columns.segment.is_not(None)


def _build_row(entry: BodyEntry) -> tuple[Any, ...]:
    """Return the values of the columns, in the order of the table."""
    owner, location = entry.owner, entry.location
    place = (None, 0, 0) if location is None else (location.segment, location.position, location.bytes)
    names = owner.end_user, owner.session
    times = owner.started_ms, entry.expires_ms
    return (
        owner.request_id, owner.account_id, owner.key_id, *names, *times, entry.node, *place, entry.loss or ""
    )  # fmt: skip


def _parse(row: Row[Any]) -> BodyEntry:
    owner = BodyOwner(row.request_id, row.account_id, row.key_id, row.started_ms, row.end_user, row.session)
    return BodyEntry(owner, row.expires_ms, row.node, _parse_location(row), row.loss or None)


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
