"""Sums of past days for charts: of each day a chart reads some rows, however many keys and models there are.

A row has the sums of one day, of the requests that ``filter_by`` and ``value`` select (all of them, or those of one
account, model or channel), with one ``label`` of ``split_by``: a model, key, account, channel, status, or the cause of
failures. A job adds them up from the daily sums in ``usage_hours`` and ``failure_hours`` when a day has ended.

Requests may be stored days later, after an outage. The job looks at the days of all rows that were stored since its
last run, in the order of a cursor, and takes those days out of ``split_days``: their sums are read from ``usage_hours``
until they are added up again. A day gets into ``split_days`` only if the cursor has not moved meanwhile. Rows that
another process stored while the day was added up are behind the cursor, and the day is taken out again when the cursor
reaches them.
"""

from collections.abc import Sequence
from typing import Any, Literal

from sqlalchemy import (
    ColumnElement,
    Select,
    String,
    Table,
    cast,
    delete,
    func,
    insert,
    literal,
    literal_column,
    select,
    update,
)

from gateway.domain.balance import DAY_S
from gateway.domain.traffic import DAY_HOURS, SUMMED_FIELDS
from gateway.errors import InvalidRequest
from gateway.storage.async_engine import AsyncConnection
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
"""The maximum number of new rows whose days are looked at in one step, which then takes about 30 ms."""
END_DELAY_S = 300
"""Seconds after midnight before a day counts as ended, because requests of its last moments are stored later."""
_NAME = "splits"
_STATE = rollups.c
_DAY_MS = DAY_S * 1000


class SplitRepository:
    """Adds up the ``usage_splits`` table."""

    def __init__(self, database: Database, max_rows: int = MAX_ROWS) -> None:
        self._database = database
        self._max_rows = max_rows

    async def look_at_new_rows(self) -> bool:
        """Take the days of at most ``max_rows`` new rows out of ``split_days``. Return whether there may be more."""
        cursor = await self._find_cursor() or await self._begin()
        try:
            window = None if cursor is None else await open_window(self._database, cursor[0])
        except InvalidRequest:  # copied from a database of another kind, which has other cursors
            await self._restart()
            return True
        if cursor is None or window is None:
            return False
        high = min(window.high, window.low + self._max_rows)
        has_more = high < window.high
        if high <= window.low and not window.is_cut:
            return False
        day = (requests.c.settled_ms // _DAY_MS).label("day")
        is_new = requests.c.sequence >= window.low, requests.c.sequence < high, *window.conditions
        rows = await self._database.read_long(select(day).where(*is_new).distinct())
        next_cursor = window.build_next_cursor(high - 1, has_more=has_more)
        move = update(rollups).where(*_is_at(cursor)).values(cursor=next_cursor)

        async def work(connection: AsyncConnection) -> bool:
            if not (await connection.execute(move)).rowcount:
                return False
            await connection.execute(delete(split_days).where(split_days.c.day.in_([row.day for row in rows])))
            return True

        return not await self._database.write_shared(work) or has_more or window.is_cut

    async def add_day(self, now_s: float) -> bool:
        """Add up the newest day that has ended and has no splits. Return whether there may be more days."""
        cursor = await self._find_cursor()
        first_hours = await self._database.read(
            select(func.min(usage_hours.c.hour).label("hour")).where(usage_hours.c.span == DAY_HOURS)
        )
        if cursor is None or first_hours[0].hour is None:
            return False
        ended_days = range(first_hours[0].hour // DAY_HOURS, int(now_s - END_DELAY_S) // DAY_S)
        done_days = set(await list_split_days(self._database, ended_days))
        day = next((day for day in reversed(ended_days) if day not in done_days), None)
        if day is None:
            return False
        lock = update(rollups).where(*_is_at(cursor)).values(cursor=cursor[0])

        async def work(connection: AsyncConnection) -> None:
            if not (await connection.execute(lock)).rowcount:
                return
            await connection.execute(delete(usage_splits).where(usage_splits.c.day == day))
            for query in _list_queries(day):
                await connection.execute(insert(usage_splits).from_select(usage_splits.c.keys(), query))
            await connection.execute(
                insert_for(self._database.kind, split_days).values(day=day).on_conflict_do_nothing()
            )

        await self._database.write_shared(work)
        return True

    async def _find_cursor(self) -> tuple[str, int] | None:
        """Return up to where new rows were looked at, and how often rows were taken back."""
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
        return await self._find_cursor()

    async def _restart(self) -> None:
        async def work(connection: AsyncConnection) -> None:
            await connection.execute(delete(rollups).where(_STATE.name == _NAME))
            await connection.execute(delete(split_days))

        await self._database.write(work)


async def list_split_days(database: Database, days: range) -> list[int]:
    """Return those of ``days`` whose splits are complete."""
    is_within = split_days.c.day >= days.start, split_days.c.day < days.stop
    return [int(row.day) for row in await database.read(select(split_days.c.day).where(*is_within))]


async def take_back(connection: AsyncConnection, settled_ms: Sequence[int]) -> None:
    """Take days out of ``split_days`` whose sums are reduced by the current transaction. No cursor sees that."""
    reversals = _STATE.before + 1
    await connection.execute(update(rollups).where(_STATE.name == _NAME).values(before=reversals))
    days = {at_ms // _DAY_MS for at_ms in settled_ms}
    await connection.execute(delete(split_days).where(split_days.c.day.in_(days)))


def _is_at(cursor: tuple[str, int]) -> list[ColumnElement[bool]]:
    return [_STATE.name == _NAME, _STATE.cursor == cursor[0], _STATE.before == cursor[1]]


def _list_queries(day: int) -> list[Select[Any]]:
    """Return the queries for the rows of one day: one for each filter and split."""
    usage_sums = [func.sum(usage_hours.c[name]) for name in SUMMED_FIELDS]
    failed = func.sum(failure_hours.c.requests)
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
    is_of_day = table.c.span == DAY_HOURS, table.c.hour == day * DAY_HOURS
    return query.where(*is_of_day).group_by(*([value, label] if filter_by else [label]))
