"""Sums of past days for charts: of each day a chart reads some rows, however many keys and models there are.

A row has the sums of one day, of the requests that ``filter_by`` and ``value`` select (all of them, or those of one
account, model or channel), with one ``label`` of ``split_by``: a model, key, account, channel, status, or the cause of
failures. A job adds them up from the daily sums in ``usage_hours`` and ``failure_hours`` a day after a day has ended.
Other writers wait for at most ``COMMIT_ROWS`` of these rows. A day counts only if it is in ``split_days``, which is
written last: a process that is killed leaves rows that are not read. The next process deletes them.

Requests may be stored days later, after an outage. The job looks at the days of all rows that were stored since its
last run, in the order of a cursor, and takes those days out of ``split_days``: their sums are read from ``usage_hours``
until they are added up again. A day gets into ``split_days`` only if the cursor has not moved meanwhile. Rows that
another process stored while the day was added up are behind the cursor, and the day is taken out again when the cursor
reaches them. A reader looks at the rows behind the cursor, too, and does not use the splits of their days.

Up to version 0.10, nodes take rows back without ``take_back``. Those of the last two days are not in the sums yet. An
older row is taken back only if the creation of a video had no answer: during an upgrade, the sums of its day keep its
part.
"""

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any, Literal

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    String,
    Table,
    cast,
    delete,
    func,
    literal,
    literal_column,
    select,
    tuple_,
    update,
)

from gateway.domain.balance import DAY_S
from gateway.domain.traffic import DAY_HOURS, SUMMED_FIELDS
from gateway.errors import InvalidRequest
from gateway.frozen import frozen
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.bulk import BulkInsert
from gateway.storage.database import Database
from gateway.storage.dialect import insert_for
from gateway.storage.request_cursor import open_window
from gateway.storage.schema import failure_hours, requests, rollups, split_days, usage_hours, usage_splits

SplitAxis = Literal["model", "key", "account", "channel", "status", "cause"]
FilterAxis = Literal["", "account", "model", "channel"]
FILTER_COLUMNS: dict[FilterAxis, str] = {"": "", "account": "account_id", "model": "model", "channel": "channel"}
LABEL_COLUMNS: dict[SplitAxis, str] = {
    "model": "model", "key": "key_id", "account": "account_id", "channel": "channel", "status": "status",
}  # fmt: skip
MAX_ROWS = 50_000
"""The maximum number of new rows whose days are looked at in one step."""
MAX_SUMS = 20_000
"""The maximum number of rows of one day. A day with more is not added up: charts read its daily sums."""
COMMIT_ROWS = 2_000
"""The maximum number of rows that one commit writes or deletes: other writes wait for it."""
PAUSE_S = 0.1
"""The pause between two of these commits, for other writers."""
END_DELAY_S = DAY_S
"""Seconds after its end before a day is added up, because most late and reversed rows are of the last hours."""
_NAME, _WRITER = "splits", "split_writer"
_TOO_MANY = "too_many"
"""``split_by`` of the only row of a day that is not added up."""
_PUT_ROWS = BulkInsert(usage_splits, usage_splits.c.keys())
_STATE = rollups.c
_DAY_MS = DAY_S * 1000


@frozen
class _Look:
    """The days of new rows, and the cursor after these rows. ``has_more``: whether there may be more rows."""

    days: frozenset[int]
    next_cursor: str
    has_more: bool


class SplitRepository:
    """Fills the table ``usage_splits``, and records in ``split_days`` which days are complete."""

    def __init__(
        self, database: Database, max_rows: int = MAX_ROWS, *, max_sums: int = MAX_SUMS, commit_rows: int = COMMIT_ROWS
    ) -> None:
        self._database = database
        self._max_rows = max_rows
        self._max_sums = max_sums
        self._commit_rows = commit_rows

    async def look_at_new_rows(self) -> bool:
        """Delete the days of at most ``max_rows`` new rows from ``split_days``. Return whether there may be more."""
        state = await self._find_state() or await self._begin()
        try:
            look = None if state is None else await self._read_days(state[0])
        except InvalidRequest:  # copied from a database of another kind, which has other cursors
            await self._restart()
            return True
        if state is None or look is None:
            return False
        move_query = update(rollups).where(*_is_at(state)).values(cursor=look.next_cursor)

        async def work(connection: AsyncConnection) -> bool:
            if not (await connection.execute(move_query)).rowcount:
                return False
            await connection.execute(delete(split_days).where(split_days.c.day.in_(look.days)))
            return True

        return not await self._database.write_shared(work) or look.has_more

    async def find_changed_days(self, max_looks: int) -> frozenset[int] | None:
        """Return the days of the new rows, at which the job has not looked yet. Nothing is written.

        None if there are more than ``max_looks`` times ``max_rows``, or if the cursor is one of another database.
        """
        days: frozenset[int] = frozenset()
        state = await self._find_state()
        cursor_text = None if state is None else state[0]
        for _ in range(max_looks):
            try:
                look = None if cursor_text is None else await self._read_days(cursor_text)
            except InvalidRequest:
                return None
            if look is None:
                return days
            days |= look.days
            if not look.has_more:
                return days
            cursor_text = look.next_cursor
        return None

    async def add_day(self, now_s: float) -> bool:
        """Add up the newest day that has ended and has no splits. Return whether to go on with the next one at once.

        A day with too many sums gets one row, which says so. If other processes have changed the state, return False:
        a later call begins again.
        """
        state = await self._find_state()
        day = None if state is None else await self._choose_day(now_s)
        if state is None or day is None:
            return False
        sums = await self._read_sums(day)
        rows = [_make_mark(day)] if sums is None else sums
        writer = _DayWriter(self._database, day)
        await writer.begin()
        while deleted_rows := await writer.delete_rows(self._commit_rows):
            if deleted_rows < self._commit_rows:
                break
            await asyncio.sleep(PAUSE_S)
        for start in range(0, len(rows), self._commit_rows):
            if start:
                await asyncio.sleep(PAUSE_S)
            if not await writer.add_rows(rows[start : start + self._commit_rows]):
                return False
        return sums is None or await writer.finish(state)

    async def _read_days(self, cursor_text: str) -> _Look | None:
        """Return the days of at most ``max_rows`` rows after a cursor; None without rows.

        Raises ``InvalidRequest`` for a cursor of another database.
        """
        window = await open_window(self._database, cursor_text)
        if window is None:
            return None
        high = min(window.high, window.low + self._max_rows)
        has_more = high < window.high
        if high <= window.low and not window.is_cut:
            return None
        day = (requests.c.settled_ms // _DAY_MS).label("day")
        is_new = requests.c.sequence >= window.low, requests.c.sequence < high, *window.conditions
        rows = await self._database.read_long(select(day).where(*is_new).distinct())
        next_cursor = window.build_next_cursor(high - 1, has_more=has_more)
        return _Look(frozenset(int(row.day) for row in rows), next_cursor, has_more or window.is_cut)

    async def _choose_day(self, now_s: float) -> int | None:
        """Return the newest day that ended at least ``END_DELAY_S`` ago and has to be added up; None if there is none.

        Days with too many sums are not added up.
        """
        first_hours = await self._database.read(
            select(func.min(usage_hours.c.hour).label("hour")).where(usage_hours.c.span == DAY_HOURS)
        )
        if first_hours[0].hour is None:
            return None
        ended_days = range(first_hours[0].hour // DAY_HOURS, int(now_s - END_DELAY_S) // DAY_S)
        done_days = set(await list_split_days(self._database, ended_days))
        open_days = [day for day in ended_days if day not in done_days]
        if not open_days:
            return None
        columns = usage_splits.c
        is_mark = columns.filter_by == "", columns.value == "", columns.split_by == _TOO_MANY
        marks = await self._database.read(select(columns.day).where(columns.day.in_(open_days), *is_mark))
        return max(set(open_days) - {int(row.day) for row in marks}, default=None)

    async def _read_sums(self, day: int) -> list[tuple[Any, ...]] | None:
        """Return the rows of one day; None if there are too many of them, or too many daily sums to add up."""
        for table in (usage_hours, failure_hours):
            query = select(literal(1)).where(*_is_of_day(table, day)).limit(self._max_sums + 1)
            (count,) = await self._database.read_long(select(func.count()).select_from(query.subquery()))
            if count[0] > self._max_sums:
                return None
        rows: list[tuple[Any, ...]] = []
        for select_rows in _list_queries(day):
            query = select_rows.limit(self._max_sums + 1 - len(rows))
            rows += map(tuple, await self._database.read_long(query))
            if len(rows) > self._max_sums:
                return None
        return rows

    async def _find_state(self) -> tuple[str, int] | None:
        """Return the stored cursor, and how often rows were taken back; None before the first look at new rows."""
        rows: Sequence[Any] = await self._database.read(
            select(_STATE.cursor, _STATE.before).where(_STATE.name == _NAME)
        )
        return (rows[0].cursor, rows[0].before) if rows else None

    async def _begin(self) -> tuple[str, int] | None:
        """Store the state of a job that has looked at no row; None if there are no rows."""
        window = await open_window(self._database, None)
        if window is None:
            return None
        values = {"name": _NAME, "cursor": window.newest, "first_cursor": window.newest, "before": 0}
        await self._database.change(insert_for(self._database.kind, rollups).values(values).on_conflict_do_nothing())
        return await self._find_state()

    async def _restart(self) -> None:
        async def work(connection: AsyncConnection) -> None:
            await connection.execute(delete(rollups).where(_STATE.name == _NAME))
            await connection.execute(delete(split_days))

        await self._database.write(work)


class _DayWriter:
    """Writes the rows of one day in several commits, as long as no other writer has begun."""

    def __init__(self, database: Database, day: int) -> None:
        self._database = database
        self._day = day
        self._token = secrets.token_hex(8)

    async def begin(self) -> None:
        """Make this writer the only one."""
        values = {"cursor": self._token, "before": self._day}
        statement = insert_for(self._database.kind, rollups).values(name=_WRITER, first_cursor="", **values)
        await self._database.change(statement.on_conflict_do_update(index_elements=["name"], set_=values))

    async def delete_rows(self, max_rows: int) -> int:
        """Delete at most ``max_rows`` rows of the day; return how many were deleted.

        None are deleted if another writer has begun, or the day is in ``split_days``.
        """
        key = [usage_splits.c[name] for name in ("filter_by", "value", "split_by", "label")]
        some_keys = select(*key).where(usage_splits.c.day == self._day).limit(max_rows)
        statement = delete(usage_splits).where(usage_splits.c.day == self._day, tuple_(*key).in_(some_keys))

        async def work(connection: AsyncConnection) -> int:
            return (await connection.execute(statement)).rowcount if await self._is_alone(connection) else 0

        return await self._database.write_shared(work)

    async def add_rows(self, rows: list[tuple[Any, ...]]) -> bool:
        """Insert rows. Return False if another writer has begun, or the day is in ``split_days``."""

        async def work(connection: AsyncConnection) -> bool:
            if not await self._is_alone(connection):
                return False
            await _PUT_ROWS.run(connection, rows)
            return True

        return await self._database.write_shared(work)

    async def finish(self, state: tuple[str, int]) -> bool:
        """Put the day into ``split_days``.

        Return False if ``state`` is not the stored one any more, or if another writer has begun.
        """
        lock_query = update(rollups).where(*_is_at(state)).values(cursor=state[0])
        add_query = insert_for(self._database.kind, split_days).values(day=self._day).on_conflict_do_nothing()

        async def work(connection: AsyncConnection) -> bool:
            if not await self._is_alone(connection) or not (await connection.execute(lock_query)).rowcount:
                return False
            await connection.execute(add_query)
            return True

        return await self._database.write_shared(work)

    async def _is_alone(self, connection: AsyncConnection) -> bool:
        """Return whether no other writer has begun and the day is not complete. Until the commit none can begin."""
        hold_query = (
            update(rollups).where(_STATE.name == _WRITER, _STATE.cursor == self._token).values(before=self._day)
        )
        if not (await connection.execute(hold_query)).rowcount:
            return False
        complete_days = select(split_days.c.day).where(split_days.c.day == self._day)
        return not (await connection.execute(complete_days)).all()


async def list_split_days(database: Database, days: range) -> list[int]:
    """Return those of ``days`` whose splits are complete."""
    is_within = split_days.c.day >= days.start, split_days.c.day < days.stop
    return [int(row.day) for row in await database.read(select(split_days.c.day).where(*is_within))]


async def take_back(connection: AsyncConnection, settled_ms: Sequence[int]) -> None:
    """Delete from ``split_days`` the days whose sums the current transaction reduces, and count this reversal."""
    reversals = _STATE.before + 1
    await connection.execute(update(rollups).where(_STATE.name == _NAME).values(before=reversals))
    days = {at_ms // _DAY_MS for at_ms in settled_ms}
    await connection.execute(delete(split_days).where(split_days.c.day.in_(days)))


def _is_at(state: tuple[str, int]) -> list[ColumnElement[bool]]:
    return [_STATE.name == _NAME, _STATE.cursor == state[0], _STATE.before == state[1]]


def _list_queries(day: int) -> list[Select[Any]]:
    """Return the queries for the rows of one day: one for each filter and split."""
    usage_sums = [cast(func.sum(usage_hours.c[name]), BigInteger) for name in SUMMED_FIELDS]
    failed = cast(func.sum(failure_hours.c.requests), BigInteger)
    failure_sums = [failed, failed, *(literal(0) for _ in SUMMED_FIELDS[2:])]
    cause = failure_hours.c.outcome + literal_column("'/'", String) + failure_hours.c.code
    queries: list[Select[Any]] = []
    for filter_by, name in FILTER_COLUMNS.items():
        for split_by, label in LABEL_COLUMNS.items():
            columns = _select_labels(usage_hours, name, usage_hours.c[label])
            queries.append(_split(day, usage_hours, (filter_by, split_by), columns, usage_sums))
        columns = _select_labels(failure_hours, name, cause)
        queries.append(_split(day, failure_hours, (filter_by, "cause"), columns, failure_sums))
    return queries


def _select_labels(table: Table, filter_column: str, label: ColumnElement[Any]) -> tuple[ColumnElement[Any], ...]:
    value = table.c[filter_column] if filter_column else literal("")
    return cast(value, String), cast(label, String)


def _split(
    day: int,
    table: Table,
    axes: tuple[FilterAxis, SplitAxis],
    labels: tuple[ColumnElement[Any], ...],
    sums: Sequence[ColumnElement[Any]],
) -> Select[Any]:
    filter_by, split_by = axes
    value, label = labels
    query = select(literal(day), literal(filter_by), value, literal(split_by), label, *sums)
    return query.where(*_is_of_day(table, day)).group_by(*([value, label] if filter_by else [label]))


def _is_of_day(table: Table, day: int) -> tuple[ColumnElement[bool], ...]:
    return table.c.span == DAY_HOURS, table.c.hour == day * DAY_HOURS


def _make_mark(day: int) -> tuple[Any, ...]:
    """Return the row of a day with too many sums, which is never read as one of its sums."""
    return (day, "", "", _TOO_MANY, "", *(0 for _ in SUMMED_FIELDS))
