"""The ``sinks`` table: how far each sink is, and how many requests were delivered, refused, or deleted too early."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, or_, select, update

from gateway.domain.request_log import RequestRecord
from gateway.domain.sink import SinkState
from gateway.errors import InvalidRequest
from gateway.frozen import frozen
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database
from gateway.storage.dialect import insert_for
from gateway.storage.request_cursor import PageCursor, Snapshot, parse_cursor
from gateway.storage.row_mapping import parse_request
from gateway.storage.schema import requests, sinks

MAX_ERROR_CHARS = 300
_columns = sinks.c


@frozen
class Progress:
    """A page of the request log that a sink has dealt with: how many requests were delivered, and how many refused.

    ``cursor`` is that after the page. ``waiting_ms`` is when a request after the page was settled, in Unix
    milliseconds; None if there is none yet.
    """

    cursor: str
    delivered: int = 0
    refused: int = 0
    waiting_ms: int | None = None


class SinkRepository:
    """The ``sinks`` table."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_states(self, names: Collection[str]) -> list[SinkState]:
        """Return the stored states of the sinks ``names``. A sink that has not begun has none."""
        rows = await self._database.read(select(sinks).where(_columns.name.in_(names)).order_by(_columns.name))
        return [_parse(row) for row in rows]

    async def begin(self, name: str, cursor: str) -> SinkState:
        """Let a sink begin at ``cursor``, unless it has begun already; return its state."""
        values = {"name": name, "cursor": cursor, "delivered": 0, "lost": 0, "error": ""}
        statement = insert_for(self._database.kind, sinks).values(values).on_conflict_do_nothing()
        await self._database.change(statement)
        (state,) = await self.list_states([name])
        return state

    async def advance(self, state: SinkState, progress: Progress, now_ms: int) -> bool:
        """Note that the page after ``state`` is dealt with, and clear the last error.

        Return False if the stored cursor is another one by now.
        """
        values: dict[str, Any] = {"cursor": progress.cursor, "waiting_ms": progress.waiting_ms, "error": ""}
        if progress.delivered:
            values |= {"delivered": _columns.delivered + progress.delivered, "delivered_ms": now_ms}
        if progress.refused:
            values |= {"lost": _columns.lost + progress.refused, "lost_ms": now_ms}
        statement = update(sinks).where(_columns.name == state.name, _columns.cursor == state.cursor)
        return bool(await self._database.change(statement.values(values)))

    async def restart(self, name: str, cursor: str) -> None:
        """Let a sink continue at another ``cursor``, because the stored one is not of this database."""
        await self._database.change(update(sinks).where(_columns.name == name).values(cursor=cursor))

    async def note_failure(self, name: str, error: str, waiting_ms: int | None) -> None:
        """Note why an attempt failed, and when the oldest request that waits was settled, in Unix milliseconds."""
        values = {"error": error[:MAX_ERROR_CHARS], "waiting_ms": waiting_ms}
        await self._database.change(update(sinks).where(_columns.name == name).values(values))


class LostRequests:
    """Counts the requests that retention deletes before a sink has delivered them.

    ``matches_by_name`` has for each sink a function that returns whether the sink delivers a row.
    """

    def __init__(
        self, matches_by_name: Mapping[str, Callable[[RequestRecord], bool]], clock: Callable[[], float]
    ) -> None:
        self._matches_by_name = matches_by_name
        self._clock = clock

    async def count(self, connection: AsyncConnection, is_deleted: Sequence[ColumnElement[bool]]) -> None:
        """Count as lost what each sink has yet to deliver of the rows that the current transaction deletes.

        ``is_deleted`` selects these rows.
        """
        states = (await connection.execute(select(sinks).where(_columns.name.in_(self._matches_by_name)))).all()
        for state in map(_parse, states):
            try:
                condition = _build_after_condition(parse_cursor(state.cursor))
            except InvalidRequest:  # a cursor of another database: the sink begins again with the oldest row
                continue
            rows = await connection.execute(select(requests).where(*is_deleted, condition))
            matches = self._matches_by_name[state.name]
            lost = sum(matches(parse_request(row).row) for row in rows)
            if lost:
                values = {"lost": _columns.lost + lost, "lost_ms": int(self._clock() * 1000)}
                await connection.execute(update(sinks).where(_columns.name == state.name).values(values))


def _build_after_condition(cursor: PageCursor) -> ColumnElement[bool]:
    """Return the condition that a row is after a cursor, whichever cursors this database has."""
    since, sequence = cursor.since, requests.c.sequence
    is_after = since.misses() if isinstance(since, Snapshot) else sequence > since
    if cursor.until is None:
        return is_after
    return or_(cursor.until.misses(), and_(is_after, sequence > cursor.last))


def _parse(row: Row[Any]) -> SinkState:
    return SinkState(**row._mapping)  # noqa: SLF001 - the documented way to a row's names
