"""The index of the shared store: its segments, the rows of ``bodies`` in them, drafts, leftovers and the mark."""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, delete, func, insert, select, tuple_, update
from sqlalchemy.dialects.sqlite import Insert

from gateway.frozen import frozen
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.bodies.segments import Location
from gateway.storage.database import Database
from gateway.storage.dialect import insert_for
from gateway.storage.schema_bodies import bodies, body_drafts, body_leftovers, body_segments, body_store_marks

ERASED_PER_STEP = 500
SEGMENTS_PER_STEP = 200
_rows, _segments, _drafts = bodies.c, body_segments.c, body_drafts.c
_GIVEN_UP = ""
"""The value of ``process`` for a draft that was given up; its process may still store the object."""
_ROW_IS_IN_SEGMENT = and_(_rows.node == _segments.node, _rows.segment == _segments.segment)


@frozen
class SharedSegment:
    """A segment in the shared store. ``name`` is that of its file or object."""

    node: str
    number: int
    name: str
    bytes: int


@frozen
class DeletedBody:
    """A request whose bodies must be erased, and its frame in a segment of the shared store."""

    request_id: str
    segment: SharedSegment
    location: Location


class SharedIndex:
    """The tables of the shared store's segments, drafts, leftovers and mark.

    ``node`` is the id of this node, empty for a single gateway.
    """

    def __init__(self, database: Database, node: str) -> None:
        self._database = database
        self.node = node

    async def note_draft(self, segment: SharedSegment, process: str, now_ms: int) -> None:
        """Note that ``process`` is about to store a copy of a segment, as ``segment.name``."""
        values = {"name": segment.name, "node": segment.node, "segment": segment.number, "process": process}
        await self._database.change(insert(body_drafts).values(**values, noted_ms=now_ms))

    async def give_up_drafts(self, *conditions: ColumnElement[bool]) -> None:
        """Turn the drafts that match all ``conditions`` into leftovers, which can no longer become segments."""
        await self._database.write(lambda connection: self._give_up(connection, *conditions))

    async def give_up_drafts_of(self, segment: SharedSegment) -> None:
        """Turn every draft of a segment into a leftover."""
        await self.give_up_drafts(*_build_draft_conditions(segment))

    async def give_up_former_drafts(self, process: str) -> None:
        """Turn the drafts of earlier processes of this node into leftovers."""
        await self.give_up_drafts(_drafts.node == self.node, _drafts.process != process)

    async def give_up_old_drafts(self, before_ms: int) -> None:
        """Turn the drafts that any node noted before ``before_ms`` (Unix ms) into leftovers, and delete their rows."""
        is_old = _drafts.noted_ms < before_ms

        async def work(connection: AsyncConnection) -> None:
            await self._give_up(connection, is_old)
            await connection.execute(delete(body_drafts).where(is_old))

        await self._database.write(work)

    async def repeat_given_up_drafts(self) -> None:
        """Turn all drafts that were given up into leftovers again: their processes may have stored them since."""
        is_given_up = _drafts.process == _GIVEN_UP
        if await self._database.read(select(_drafts.name).where(is_given_up).limit(1)):
            await self.give_up_drafts(is_given_up)

    async def _give_up(self, connection: AsyncConnection, *conditions: ColumnElement[bool]) -> None:
        for (name,) in (await connection.execute(select(_drafts.name).where(*conditions))).all():
            await connection.execute(self._build_leftover(name))
        await connection.execute(update(body_drafts).where(*conditions).values(process=_GIVEN_UP))

    async def add(self, segment: SharedSegment, now_ms: int) -> bool:
        """Note that a segment was moved. Return False if another copy of it was added, or this draft was given up.

        Then this copy becomes a leftover: parts of the segment may have been erased since.
        """
        values = {"node": segment.node, "segment": segment.number, "name": segment.name, "bytes": segment.bytes}
        statement = insert_for(self._database.kind, body_segments).values(**values, moved_ms=now_ms)

        async def work(connection: AsyncConnection) -> bool:
            is_draft = await _end_draft(connection, segment.name)
            is_added = is_draft and bool((await connection.execute(statement.on_conflict_do_nothing())).rowcount)
            if is_added:
                await self._give_up(connection, *_build_draft_conditions(segment))
            elif await _is_stored_as(connection, segment, segment.name):
                return True  # by a first run of this transaction, whose end was not learnt of
            else:
                await connection.execute(self._build_leftover(segment.name))
            return is_added

        return await self._database.write(work)

    async def has_segments(self) -> bool:
        """Return whether any segment is in the store."""
        return bool(await self._database.read(select(_segments.segment).limit(1)))

    async def find(self, node: str, number: int) -> SharedSegment | None:
        """Return a segment; None if the store does not have it."""
        rows = await self._database.read(
            select(body_segments).where(_segments.node == node, _segments.segment == number)
        )
        return _parse(rows[0]) if rows else None

    async def rename(self, segment: SharedSegment, name: str) -> bool:
        """Change the name of a segment; its former object and all of its drafts are leftovers then.

        Return False if another process has done so meanwhile, has removed it, or has given up the draft ``name``.
        """
        is_same = _segments.node == segment.node, _segments.segment == segment.number, _segments.name == segment.name
        statement = update(body_segments).where(*is_same).values(name=name)

        async def work(connection: AsyncConnection) -> bool:
            is_draft = name == segment.name or await _end_draft(connection, name)
            is_renamed = is_draft and bool((await connection.execute(statement)).rowcount)
            if is_renamed:
                await self._give_up(connection, *_build_draft_conditions(segment))
            elif await _is_stored_as(connection, segment, name):
                return True  # as above
            if name != segment.name:
                await connection.execute(self._build_leftover(segment.name if is_renamed else name))
            return is_renamed

        return await self._database.write(work)

    async def note_leftover(self, name: str) -> None:
        """Note an object that must be removed."""
        await self._database.change(self._build_leftover(name))

    def _build_leftover(self, name: str) -> Insert:
        return insert_for(self._database.kind, body_leftovers).values(name=name).on_conflict_do_nothing()

    async def list_leftovers(self) -> list[str]:
        """Return the names of some objects that must be removed."""
        return [row.name for row in await self._database.read(select(body_leftovers).limit(SEGMENTS_PER_STEP))]

    async def forget_leftovers(self, names: Collection[str]) -> None:
        """Delete the names of objects that were removed from the store."""
        await self._database.change(delete(body_leftovers).where(body_leftovers.c.name.in_(list(names))))

    async def find_mark(self) -> str:
        """Return the mark of this database; empty if it has none."""
        rows = await self._database.read(select(body_store_marks.c.mark))
        return str(rows[0].mark) if rows else ""

    async def add_mark(self, mark: str) -> str:
        """Store the mark of this database, unless another process has just stored one; return the stored mark."""
        statement = insert_for(self._database.kind, body_store_marks).values(id=1, mark=mark)
        await self._database.change(statement.on_conflict_do_nothing())
        return await self.find_mark()

    async def list_deleted(self) -> list[DeletedBody]:
        """Return some of the requests whose bodies must be erased, those of one segment together."""
        columns = _rows.request_id, _rows.position, _rows.bytes.label("frame_bytes"), *body_segments.columns
        query = select(*columns).join_from(bodies, body_segments, _ROW_IS_IN_SEGMENT).where(_rows.expires_ms == 0)
        rows = await self._database.read(query.order_by(_segments.node, _segments.segment).limit(ERASED_PER_STEP))
        places = [Location(row.segment, row.position, row.frame_bytes) for row in rows]
        return [DeletedBody(row.request_id, _parse(row), place) for row, place in zip(rows, places, strict=True)]

    async def is_deleted_whole(self, segment: SharedSegment) -> bool:
        """Return whether all rows of a segment are deleted."""
        is_left = _rows.node == segment.node, _rows.segment == segment.number, _rows.expires_ms > 0
        return not await self._database.read(select(_rows.request_id).where(*is_left).limit(1))

    async def list_unused(self) -> list[SharedSegment]:
        """Return some of the segments without rows."""
        query = (
            select(body_segments)
            .where(~select(_rows.request_id).where(_ROW_IS_IN_SEGMENT).exists())
            .limit(SEGMENTS_PER_STEP)
        )
        return [_parse(row) for row in await self._database.read(query)]

    async def forget(self, segments: Sequence[SharedSegment]) -> None:
        """Delete the rows of segments whose objects were removed from the store."""
        await self._database.change(delete(body_segments).where(_is_among(segments)))

    async def list_names(self) -> set[str]:
        """Return the names of all segments."""
        return {row.name for row in await self._database.read_long(select(_segments.name))}

    async def sum_bytes(self) -> int:
        """Return the size of all segments in bytes."""
        return int((await self._database.read(select(func.coalesce(func.sum(_segments.bytes), 0))))[0][0])

    async def remove_oldest(self, excess_bytes: int) -> int:
        """Remove the rows of the oldest segments that have ``excess_bytes`` together; return the number of rows.

        A call removes those of at most ``SEGMENTS_PER_STEP`` segments.
        """
        query = select(body_segments).order_by(_segments.moved_ms).limit(SEGMENTS_PER_STEP)
        oldest: list[SharedSegment] = []
        for segment in map(_parse, await self._database.read(query)):
            if excess_bytes <= 0:
                break
            oldest.append(segment)
            excess_bytes -= segment.bytes
        return await self._remove_rows(oldest) if oldest else 0

    async def remove_expired(self, now_ms: int) -> int:
        """Remove the rows of some segments, of any node, in which everything has expired; return the number of rows."""
        query = (
            select(body_segments).join_from(body_segments, bodies, _ROW_IS_IN_SEGMENT).group_by(*body_segments.columns)
        )
        expired = query.having(func.max(_rows.expires_ms) <= now_ms)
        segments = [_parse(row) for row in await self._database.read_long(expired.limit(SEGMENTS_PER_STEP))]
        return await self._remove_rows(segments) if segments else 0

    async def list_key_owners(self) -> set[tuple[str, int]]:
        """Return the pairs of a node and an account id that have rows with bodies."""
        query = select(_rows.node, _rows.account_id).where(_rows.segment.is_not(None)).distinct()
        return {(row.node, int(row.account_id)) for row in await self._database.read_long(query)}

    async def remove(self, request_ids: Collection[str]) -> None:
        """Remove the rows of requests."""
        await self._database.change(delete(bodies).where(_rows.request_id.in_(list(request_ids))))

    async def _remove_rows(self, segments: Sequence[SharedSegment]) -> int:
        keys = [(segment.node, segment.number) for segment in segments]

        async def work(connection: AsyncConnection) -> int:
            is_there = tuple_(_rows.node, _rows.segment).in_(keys)
            return (await connection.execute(delete(bodies).where(is_there))).rowcount

        return await self._database.write_shared(work)


async def _end_draft(connection: AsyncConnection, name: str) -> bool:
    """Remove the row of a draft. Return False if it has none, or if the draft was given up; then the row stays."""
    is_live = _drafts.name == name, _drafts.process != _GIVEN_UP
    return bool((await connection.execute(delete(body_drafts).where(*is_live))).rowcount)


async def _is_stored_as(connection: AsyncConnection, segment: SharedSegment, name: str) -> bool:
    is_same = _segments.node == segment.node, _segments.segment == segment.number, _segments.name == name
    return (await connection.execute(select(_segments.segment).where(*is_same))).first() is not None


def _build_draft_conditions(segment: SharedSegment) -> tuple[ColumnElement[bool], ...]:
    return _drafts.node == segment.node, _drafts.segment == segment.number


def _is_among(segments: Sequence[SharedSegment]) -> Any:
    return tuple_(_segments.node, _segments.segment).in_([(segment.node, segment.number) for segment in segments])


def _parse(row: Row[Any]) -> SharedSegment:
    return SharedSegment(row.node, int(row.segment), row.name, int(row.bytes))
