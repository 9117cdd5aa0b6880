"""Histograms of durations in the database: they are summed from stored rows, so that a request does not pay for them.

A job reads the rows stored since its last run, and older rows, from the newest to the oldest. Each commit moves
the stored cursor and adds the rows up to it: a row is counted once, whatever process stops or runs beside this one.
Completed rows never change, so nothing is subtracted.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, delete, func, or_, select, update

from gateway.domain.speed import CellKind, Speed, SpeedKey, TimedRow, parse_histogram, sum_speed, write_histogram
from gateway.domain.traffic import TimeRange, TrafficFilter
from gateway.errors import InvalidRequest
from gateway.frozen import frozen
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.bulk import BulkInsert
from gateway.storage.database import Database
from gateway.storage.dialect import insert_for
from gateway.storage.request_cursor import Snapshot, open_window, parse_cursor
from gateway.storage.schema import requests, rollups, speed_hours

MAX_ROWS = 5_000
"""The maximum number of rows per commit, which then takes about 20 ms."""
_NAME = "speed"
_MAX_NAMES = 400
"""Names per statement, because databases limit the number of values in one."""
_MAX_SEARCHES = 1_000
_COLUMNS, _STATE = speed_hours.c, rollups.c
_HISTOGRAMS = ("latency", "first_byte", "output_rate")
_PUT_CELLS = BulkInsert(
    speed_hours,
    speed_hours.c.keys(),
    " ON CONFLICT (span, hour, kind, name, account_id) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _HISTOGRAMS),
)
_TIMED_ROWS = select(*(requests.c[name] for name in TimedRow._fields)).where(requests.c.outcome == "completed")


@frozen
class _State:
    """The row of this job in ``rollups``."""

    name: str
    cursor: str
    first_cursor: str
    before: int
    since_ms: int | None


@frozen
class SpeedLine:
    """The histograms of one hour or day. ``hour`` is its first hour, counted from 1970 (UTC)."""

    hour: int
    speed: Speed


class SpeedRepository:
    """Fills the table ``speed_hours`` from stored rows, and reads it."""

    def __init__(self, database: Database, max_rows: int = MAX_ROWS) -> None:
        self._database = database
        self._max_rows = max_rows

    async def add_new_rows(self) -> bool:
        """Add at most ``max_rows`` rows that were stored since the last call. Return whether there may be more."""
        state = await self._find_state() or await self._begin()
        try:
            window = None if state is None else await open_window(self._database, state.cursor)
        except InvalidRequest:  # copied from a database of another kind, which has other cursors
            await self.restart()
            return True
        if state is None or window is None:
            return False
        high = min(window.high, window.low + self._max_rows)
        has_more = high < window.high
        if high <= window.low and not window.is_cut:
            return False
        in_range = requests.c.sequence >= window.low, requests.c.sequence < high
        rows = await self._database.read_long(_TIMED_ROWS.where(*in_range, *window.conditions))
        cursor = window.build_next_cursor(high - 1, has_more=has_more)
        return await self._add(state, rows, {"cursor": cursor}) and (has_more or window.is_cut)

    async def add_old_rows(self) -> bool:
        """Add at most ``max_rows`` rows that were stored before the first call, newest first.

        Return whether there may be more.
        """
        state = await self._find_state()
        if state is None or not state.before:
            return False
        (ends,) = await self._database.read(select(func.min(requests.c.sequence).label("first")))
        before = max(state.before - self._max_rows, ends.first or 0)
        if before <= (ends.first or 0):
            before = 0
        in_range = requests.c.sequence >= before, requests.c.sequence < state.before
        rows = await self._database.read_long(_TIMED_ROWS.where(*in_range, _is_before(state.first_cursor)))
        return await self._add(state, rows, {"before": before}) and bool(before)

    async def restart(self) -> None:
        """Delete all histograms and the state; the next calls sum every stored row again."""

        async def work(connection: AsyncConnection) -> None:
            await connection.execute(delete(rollups).where(_STATE.name == _NAME))
            await connection.execute(delete(speed_hours))

        await self._database.write(work)

    async def find_since_ms(self) -> int | None:
        """Return from when on durations are known, in Unix milliseconds; None if none is known."""
        state = await self._find_state()
        return None if state is None else state.since_ms

    async def list_speed(self, ranges: Sequence[TimeRange], traffic_filter: TrafficFilter) -> list[SpeedLine] | None:
        """Return the histograms of each hour or day of ``ranges``.

        None if no cells have exactly the requests of ``traffic_filter``.
        """
        conditions = _choose_cells(traffic_filter)
        if conditions is None:
            return None
        in_time = or_(*(and_(_COLUMNS.span == part.span, _is_within(part)) for part in ranges))
        columns = (_COLUMNS.hour, *(_COLUMNS[name] for name in _HISTOGRAMS))
        query = select(*columns).where(in_time, *conditions).order_by(_COLUMNS.hour)
        rows: Sequence[Sequence[Any]] = await self._database.read_long(query)
        return [SpeedLine(int(row[0]), Speed(*map(parse_histogram, row[1:]))) for row in rows]

    async def _find_state(self) -> _State | None:
        rows: Sequence[Sequence[Any]] = await self._database.read(select(rollups).where(_STATE.name == _NAME))
        return _State(*rows[0]) if rows else None

    async def _begin(self) -> _State | None:
        """Store the state of a job that has summed nothing; None if there are no rows."""
        window = await open_window(self._database, None)
        if window is None:
            return None
        values = {"name": _NAME, "cursor": window.newest, "first_cursor": window.newest, "before": window.high}
        statement = insert_for(self._database.kind, rollups).values(values).on_conflict_do_nothing()
        await self._database.change(statement)
        return await self._find_state()

    async def _add(self, state: _State, rows: Sequence[Row[Any]], values: Mapping[str, Any]) -> bool:
        """Add rows and move the state by ``values`` in one commit. Return False if another process has moved it."""
        cells = sum_speed(map(TimedRow._make, rows))
        settled_ms = [row.settled_ms for row in rows]
        if state.since_ms is not None:
            settled_ms.append(state.since_ms)
        is_same = (_STATE.name == _NAME, _STATE.cursor == state.cursor, _STATE.before == state.before)
        move_query = update(rollups).where(*is_same).values(since_ms=min(settled_ms, default=None), **values)

        async def work(connection: AsyncConnection) -> bool:
            if not (await connection.execute(move_query)).rowcount:
                return False
            await _merge(connection, cells)
            return True

        return await self._database.write_shared(work)


async def _merge(connection: AsyncConnection, cells: dict[SpeedKey, Speed]) -> None:
    """Add ``cells`` to the stored ones; both have the totals then.

    The caller has locked the state, because no other process may change the stored cells meanwhile.
    """
    for key, stored_speed in await _find_cells(connection, cells):
        cells[key].add(stored_speed)
    values = [(*key, *(write_histogram(getattr(cells[key], name)) for name in _HISTOGRAMS)) for key in sorted(cells)]
    if values:
        await _PUT_CELLS.run(connection, values)


async def _find_cells(connection: AsyncConnection, keys: Iterable[SpeedKey]) -> list[tuple[SpeedKey, Speed]]:
    wanted_keys = set(keys)
    hours = {span: sorted({key.hour for key in wanted_keys if key.span == span}) for span in (1, 24)}
    names = sorted({key.name for key in wanted_keys})
    in_time = or_(*(and_(_COLUMNS.span == span, _COLUMNS.hour.in_(numbers)) for span, numbers in hours.items()))
    cells: list[tuple[SpeedKey, Speed]] = []
    for start in range(0, len(names), _MAX_NAMES):
        query = select(speed_hours).where(in_time, _COLUMNS.name.in_(names[start : start + _MAX_NAMES]))
        for span, hour, kind, name, account_id, *texts in await connection.execute(query):
            key = SpeedKey(span, hour, kind, name, account_id)
            if key in wanted_keys:
                cells.append((key, Speed(*map(parse_histogram, texts))))
    return cells


def _is_before(cursor_text: str) -> ColumnElement[bool]:
    """Return the condition that a row is not after a cursor."""
    since = parse_cursor(cursor_text).since
    return since.has() if isinstance(since, Snapshot) else requests.c.sequence <= since


def _is_within(part: TimeRange) -> ColumnElement[bool]:
    """Return the condition on ``hour``: a search for each of a few numbers, which skips cells of other names."""
    hours = range(part.since, part.until, part.span)
    if len(hours) <= _MAX_SEARCHES:
        return _COLUMNS.hour.in_(hours)
    return (_COLUMNS.hour >= part.since) & (_COLUMNS.hour < part.until)


def _choose_cells(traffic_filter: TrafficFilter) -> list[ColumnElement[bool]] | None:
    """Return the conditions of the cells that have exactly the requests of a filter; None if there are none."""
    names_by_kind: dict[CellKind, str | None] = {
        "key": None if traffic_filter.key_id is None else str(traffic_filter.key_id),
        "model": traffic_filter.model,
        "channel": traffic_filter.channel,
    }
    chosen_cells = [(kind, name) for kind, name in names_by_kind.items() if name is not None]
    account_id = traffic_filter.account_id
    if len(chosen_cells) > 1 or traffic_filter.status is not None:
        return None
    kind, name = chosen_cells[0] if chosen_cells else ("all", "")
    if kind == "channel" and account_id is not None:
        return None
    conditions = [_COLUMNS.kind == kind, _COLUMNS.name == name]
    if kind != "key" or account_id is not None:
        conditions.append(_COLUMNS.account_id == (account_id or 0))
    return conditions
