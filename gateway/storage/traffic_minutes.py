"""Traffic by minute or hour in the database, summed from the rows themselves: for charts of short periods.

Hours are summed from rows for an end user or a tag, of whom only the sums of days are stored.
"""

from collections.abc import Sequence
from typing import Any

import attrs
from sqlalchemy import CTE, ColumnElement, String, and_, case, cast, func, literal, select, union_all

from gateway.domain.request_log import NON_FAILURES, RequestFilter
from gateway.domain.speed import Speed, TimedRow, sum_times
from gateway.domain.traffic import UNKNOWN_MODEL_CODES, TrafficFilter, TrafficLine
from gateway.frozen import frozen
from gateway.storage.database import Database
from gateway.storage.request_cursor import open_window
from gateway.storage.request_log import PageQuery, RequestLogRepository, write_conditions
from gateway.storage.schema import IS_NAMED, requests
from gateway.storage.traffic_series import EMPTY_LINE, TrafficSeries, parse_series, select_series, select_sums
from gateway.storage.usage_splits import SplitAxis

MINUTE_MS = 60_000
MAX_ROWS = 100_000
"""The maximum number of rows that one chart is summed from, which then takes about half a second."""
_MAX_SEARCHED_ROWS = 300_000
"""The maximum number of rows that are searched for those of a tag."""
_ROWS_PER_READ, _MAX_READS = 5_000, 20
_COLUMNS = requests.c
_MODEL = case(
    ((_COLUMNS.attempts == 0) & func.coalesce(_COLUMNS.error_code, "").in_(sorted(UNKNOWN_MODEL_CODES)), ""),
    else_=_COLUMNS.model,
)
"""The model in whose sums a row counts, as ``domain.traffic.find_summed_model`` returns it."""
_CHANNEL = func.coalesce(_COLUMNS.channel, "")
_HAS_FAILED = _COLUMNS.outcome.not_in(sorted(NON_FAILURES))
_LABELS: dict[SplitAxis, ColumnElement[Any]] = {
    "model": _MODEL,
    "key": cast(_COLUMNS.key_id, String),
    "account": cast(_COLUMNS.account_id, String),
    "channel": _CHANNEL,
    "status": cast(_COLUMNS.status, String),
    "cause": case((_HAS_FAILED, _COLUMNS.outcome + "/" + func.coalesce(_COLUMNS.error_code, "")), else_=""),
}
_SUMS = {
    "requests": literal(1),
    "failed": case((_HAS_FAILED, 1), else_=0),
    **{
        name: _COLUMNS[name]
        for name in ("prompt_tokens", "completion_tokens", "cached_tokens", "cost_nanos", "total_ms", "saved_nanos")
    },
}


@frozen
class _Rows:
    """The rows of a period: those with sequences from ``low`` to below ``high`` that meet the ``conditions``."""

    low: int
    high: int
    conditions: Sequence[ColumnElement[bool]]


class _RequestRanges(RequestLogRepository):
    async def find_range(self, since_ms: int, until_ms: int) -> tuple[int, int] | None:
        """Return a range of sequences with all rows settled in a period: its first, and the one after its last.

        Some rows of the range were settled earlier or later. None if a SQLite database has no rows at all.
        """
        window = await open_window(self._database, None)
        if window is None:
            return None
        times = RequestFilter(since_ms=since_ms, until_ms=until_ms)
        query = await self._narrow_to_times(times, PageQuery(window.low, window.high))
        return query.low, query.high


class RowSeriesReader:
    """Reads series by minute or hour of the requests that both filters select; the filters' times are ignored.

    ``unit_ms`` is the length of a minute or an hour. ``has_rows`` returns False if a chart would have to sum more than
    ``max_rows`` rows.
    """

    def __init__(
        self,
        database: Database,
        traffic_filter: TrafficFilter,
        request_filter: RequestFilter | None = None,
        unit_ms: int = MINUTE_MS,
        max_rows: int = MAX_ROWS,
    ) -> None:
        self._database = database
        self._filter = traffic_filter
        self._request_filter = request_filter or RequestFilter()
        self._unit_ms = unit_ms
        self._max_rows = max_rows

    async def has_rows(self, units: range) -> bool:
        """Return whether every row of the minutes or hours is stored, and they are not too many."""
        (first,) = await self._database.read(select(func.min(_COLUMNS.sequence).label("sequence")))
        if first.sequence is None:
            return True
        query = select(_COLUMNS.settled_ms).where(_COLUMNS.sequence == first.sequence)
        (oldest,) = await self._database.read(query)
        rows = await self._find_rows(units)
        is_stored = first.sequence == 1 or oldest.settled_ms < units.start * self._unit_ms
        return is_stored and (rows is None or rows.high - rows.low <= self._max_rows or await self._are_few(rows))

    async def _are_few(self, rows: _Rows) -> bool:
        """Return whether few of very many rows are those of an end user or tag, and reading these does not take long.

        Those of an end user are read by the index of end users, those of a tag by reading the whole range.
        """
        end_user, is_tag = self._request_filter.end_user, self._request_filter.tag is not None
        if not end_user and not (is_tag and rows.high - rows.low <= _MAX_SEARCHED_ROWS):
            return False
        is_within = _COLUMNS.sequence >= rows.low, _COLUMNS.sequence < rows.high
        some_rows = select(literal(1)).where(*is_within, *rows.conditions).limit(self._max_rows + 1)
        (count,) = await self._database.read_long(select(func.count()).select_from(some_rows.subquery()))
        return int(count[0]) <= self._max_rows

    async def list_series(self, axis: SplitAxis, units: range, max_values: int) -> TrafficSeries:
        """Return the traffic of each minute or hour, and of the ``max_values`` most expensive values of ``axis``."""
        rows = await self._find_rows(units)
        if rows is None:
            return TrafficSeries({}, [], {})
        series_rows = await self._database.read_long(
            union_all(*select_series(_select_cells(axis, rows, self._unit_ms), max_values))
        )
        return parse_series(axis, series_rows)

    async def sum_traffic(self, units: range) -> TrafficLine:
        """Return the traffic of all ``units`` together."""
        rows = await self._find_rows(units)
        if rows is None:
            return EMPTY_LINE
        (sums,) = await self._database.read_long(select_sums("total", _select_cells("status", rows, self._unit_ms)))
        return TrafficLine("", *map(int, sums[3:]))

    async def list_speed(self, units: range) -> dict[int, Speed]:
        """Return the histograms of the completed requests of each minute or hour that has any."""
        rows = await self._find_rows(units)
        speeds: dict[int, Speed] = {}
        if rows is None:
            return speeds
        columns = [_COLUMNS[name] for name in TimedRow._fields]
        step = max(_ROWS_PER_READ, -(-(rows.high - rows.low) // _MAX_READS))
        for low in range(rows.low, rows.high, step):
            high = min(low + step, rows.high)
            is_within = _COLUMNS.sequence >= low, _COLUMNS.sequence < high, _COLUMNS.outcome == "completed"
            timed_rows = await self._database.read_long(select(*columns).where(*is_within, *rows.conditions))
            for unit, speed in sum_times(map(TimedRow._make, timed_rows), self._unit_ms).items():
                if unit in speeds:
                    speeds[unit].add(speed)
                else:
                    speeds[unit] = speed
        return speeds

    async def _find_rows(self, units: range) -> _Rows | None:
        since_ms, until_ms = units.start * self._unit_ms, units.stop * self._unit_ms
        sequences = await _RequestRanges(self._database).find_range(since_ms, until_ms)
        if sequences is None:
            return None
        end_user = self._request_filter.end_user
        index = "end_user" if end_user else None
        request_filter = attrs.evolve(self._request_filter, since_ms=since_ms, until_ms=until_ms)
        conditions = write_conditions(request_filter, index)
        if index is not None:
            conditions.append(and_(IS_NAMED[index], _COLUMNS.end_user == end_user))
        values = {"account_id": _COLUMNS.account_id, "key_id": _COLUMNS.key_id, "model": _MODEL, "channel": _CHANNEL}
        for name, column in values.items():
            value = getattr(self._filter, name)
            if value is not None:
                conditions.append(column + (0 if isinstance(value, int) else "") == value)  # not by another index
        return _Rows(*sequences, conditions)


def _select_cells(axis: SplitAxis, rows: _Rows, unit_ms: int) -> CTE:
    unit = (_COLUMNS.settled_ms // unit_ms).label("hour")
    sums = [amount.label(name) for name, amount in _SUMS.items()]
    is_within = _COLUMNS.sequence >= rows.low, _COLUMNS.sequence < rows.high
    return select(unit, _LABELS[axis].label("label"), *sums).where(*is_within, *rows.conditions).cte("cells")
