"""Traffic over time in the database, for charts: a bounded number of rows, whatever the number of keys and models."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from sqlalchemy import CTE, ColumnElement, Row, Select, String, and_, cast, func, literal, select, union_all

from gateway.domain.traffic import (
    DAY_HOURS,
    SUMMED_FIELDS,
    TimeRange,
    TrafficFilter,
    TrafficLine,
    add_lines,
    split_hours,
)
from gateway.errors import StoreUnavailable
from gateway.frozen import frozen
from gateway.storage.database import Database
from gateway.storage.schema import failure_hours, keys, split_days, usage_hours, usage_splits
from gateway.storage.usage_splits import (
    FILTER_COLUMNS,
    LABEL_COLUMNS,
    FilterAxis,
    SplitAxis,
    SplitRepository,
    list_split_days,
)

_FILTERED = ("account_id", "key_id", "model", "channel", "status")
_BUCKET, _TOTAL, _VALUE, _DAYS = "bucket", "total", "value", "days"
_MAX_LOOKS = 3
"""How many batches of new rows are looked at before an answer; if there are more, the daily sums are read instead."""
EMPTY_LINE = TrafficLine("", *(0 for _ in SUMMED_FIELDS))


@frozen
class TrafficSeries:
    """Traffic over time, split by one property.

    Attributes:
        buckets: the sums of each hour or day that has any, by its first hour; those of a ``RowSeriesReader`` by minute
            or hour. All are counted from 1970 (UTC). Their label is empty.
        top: the sums of the values that cost most, the highest first.
        values: the nano-USD by top value and hour; for causes of failures, the number of requests.
    """

    buckets: dict[int, TrafficLine]
    top: list[TrafficLine]
    values: dict[tuple[str, int], int]


class TrafficSeriesReader:
    """Reads series by hour or day of the requests that ``traffic_filter`` selects; the filter's hours are ignored.

    With ``uses_splits``, past days are read from ``usage_splits``, except ``changed_days``: days with new rows that
    the job for ``usage_splits`` has not examined yet.
    """

    def __init__(
        self,
        database: Database,
        traffic_filter: TrafficFilter,
        *,
        uses_splits: bool,
        changed_days: frozenset[int] = frozenset(),
    ) -> None:
        self._database = database
        self._changed_days = changed_days
        self._filter = traffic_filter
        self._split_filter = _find_split_filter(traffic_filter) if uses_splits else None
        self._complete_days: dict[range, list[int]] = {}

    async def list_series(self, axis: SplitAxis, period: TimeRange, max_values: int) -> TrafficSeries:
        """Return the traffic of each hour or day of ``period``, and that of the top ``max_values`` values of ``axis``.

        These are the values that cost most, or the causes with the most requests.
        """
        rows = await self._read([period], axis, lambda cells: select_series(cells, max_values))
        return parse_series(axis, rows)

    async def sum_traffic(self, since: int, until: int) -> TrafficLine:
        """Return the traffic of the hours from ``since`` up to ``until``."""
        ranges = split_hours(since, until)
        rows = await self._read(ranges, "status", lambda cells: [select_sums("total", cells)]) if ranges else []
        return TrafficLine("", *map(int, rows[0][3:])) if rows else EMPTY_LINE

    async def list_lines(self, axis: SplitAxis | Literal["day"], since: int, until: int) -> list[TrafficLine]:
        """Return the traffic of the hours from ``since`` up to ``until``, summed along ``axis``.

        Days are in order, values of other axes by cost, highest first.
        """
        ranges = split_hours(since, until)
        if not ranges:
            return []
        if axis != "day":
            rows = await self._read(ranges, axis, lambda cells: [select_sums("line", cells, label=cells.c.label)])
            lines = [TrafficLine(*row[2:3], *map(int, row[3:])) for row in map(tuple, rows)]
            return sorted(lines, key=lambda line: (-line.cost_nanos, -line.requests, line.label))
        days: dict[int, TrafficLine] = {}
        for row in map(
            tuple, await self._read(ranges, "status", lambda cells: [select_sums("line", cells, hour=cells.c.hour)])
        ):
            day = int(row[1]) // DAY_HOURS
            line = TrafficLine(str(day), *map(int, row[3:]))
            days[day] = add_lines(days[day], line) if day in days else line
        return [days[day] for day in sorted(days)]

    async def _read(
        self, ranges: Sequence[TimeRange], axis: SplitAxis, select_parts: Callable[[CTE], list[Select[Any]]]
    ) -> list[Row[Any]]:
        """Return the rows of ``select_parts``, which gets the sums of ``ranges``. All rows are of the same moment."""
        conditions = await self._list_conditions(axis)
        summed_days = await self._list_split_days(ranges)
        while True:
            cells = union_all(*self._select_cells(ranges, axis, summed_days, conditions)).cte("cells")
            parts = select_parts(cells)
            if summed_days:
                parts.append(_count_split_days(summed_days))
            rows = await self._database.read_long(union_all(*parts))
            if all(row.hour == len(summed_days) for row in rows if row.part == _DAYS):
                return [row for row in rows if row.part != _DAYS]
            summed_days = []  # some were taken out meanwhile

    async def _list_split_days(self, ranges: Iterable[TimeRange]) -> list[int]:
        days = next((part for part in ranges if part.span == DAY_HOURS), None)
        if days is None or self._split_filter is None:
            return []
        period = range(days.since // DAY_HOURS, days.until // DAY_HOURS)
        if period not in self._complete_days:  # each statement checks that they are still complete
            self._complete_days[period] = await list_split_days(self._database, period)
        return [day for day in self._complete_days[period] if day not in self._changed_days]

    async def _list_conditions(self, axis: SplitAxis) -> list[ColumnElement[bool]]:
        table = failure_hours if axis == "cause" else usage_hours
        values = {name: getattr(self._filter, name) for name in _FILTERED}
        if values["key_id"] is not None and values["account_id"] is None:
            # The sums are ordered by account: with it, those of the other accounts are not read.
            for row in await self._database.read(select(keys.c.account_id).where(keys.c.id == values["key_id"])):
                values["account_id"] = row.account_id
        return [table.c[name] == value for name, value in values.items() if value is not None]

    def _select_cells(
        self,
        ranges: Sequence[TimeRange],
        axis: SplitAxis,
        days: Sequence[int],
        conditions: Sequence[ColumnElement[bool]],
    ) -> list[Select[Any]]:
        columns = (failure_hours if axis == "cause" else usage_hours).c
        selects = []
        if days and self._split_filter is not None:
            selects.append(_select_splits(axis, days, *self._split_filter))
        for part in ranges:
            hours = range(part.since, part.until, part.span)
            if part.span == DAY_HOURS:
                summed_hours = {day * DAY_HOURS for day in days}
                in_time: ColumnElement[bool] = columns.hour.in_([hour for hour in hours if hour not in summed_hours])
            else:
                in_time = and_(columns.hour >= part.since, columns.hour < part.until)
            selects.append(_select_hours(axis, and_(columns.span == part.span, in_time, *conditions)))
        return selects


async def open_series_reader(database: Database, traffic_filter: TrafficFilter) -> TrafficSeriesReader:
    """Return a reader, which uses the splits of past days if it is known which of these days have new rows."""
    try:
        changed_days = await SplitRepository(database).find_changed_days(_MAX_LOOKS)
    except StoreUnavailable:
        changed_days = None
    return TrafficSeriesReader(
        database, traffic_filter, uses_splits=changed_days is not None, changed_days=changed_days or frozenset()
    )


def _find_split_filter(traffic_filter: TrafficFilter) -> tuple[FilterAxis, str] | None:
    """Return what selects exactly these requests in ``usage_splits``; None if nothing does."""
    if traffic_filter.key_id is not None or traffic_filter.status is not None:
        return None
    chosen: list[tuple[FilterAxis, str]] = [
        (filter_by, str(getattr(traffic_filter, name)))
        for filter_by, name in FILTER_COLUMNS.items()
        if name and getattr(traffic_filter, name) is not None
    ]
    return None if len(chosen) > 1 else (chosen or [("", "")])[0]


def _select_splits(axis: SplitAxis, days: Sequence[int], filter_by: FilterAxis, value: str) -> Select[Any]:
    columns = usage_splits.c
    is_chosen = columns.filter_by == filter_by, columns.value == value, columns.split_by == axis
    hour = (columns.day * DAY_HOURS).label("hour")
    sums = [columns[name] for name in SUMMED_FIELDS]
    return select(hour, columns.label, *sums).where(columns.day.in_(_select_split_days(days)), *is_chosen)


def _select_hours(axis: SplitAxis, condition: ColumnElement[bool]) -> Select[Any]:
    if axis == "cause":
        columns = failure_hours.c
        label: ColumnElement[Any] = columns.outcome + "/" + columns.code
        zeros = [literal(0).label(name) for name in SUMMED_FIELDS[2:]]
        sums = [columns.requests, columns.requests.label("failed"), *zeros]
        return select(columns.hour.label("hour"), label.label("label"), *sums).where(condition)
    columns = usage_hours.c
    label = cast(columns[LABEL_COLUMNS[axis]], String)
    return select(columns.hour.label("hour"), label.label("label"), *(columns[name] for name in SUMMED_FIELDS)).where(
        condition
    )


def select_series(cells: CTE, max_values: int) -> list[Select[Any]]:
    """Select the rows that ``parse_series`` parses from sums with an hour and a label."""
    by_cost = func.sum(cells.c.cost_nanos).desc(), func.sum(cells.c.requests).desc(), cells.c.label
    top = select(cells.c.label).where(cells.c.label != "").group_by(cells.c.label).order_by(*by_cost)
    top_labels = top.limit(max_values).cte("top")
    is_top = cells.c.label.in_(select(top_labels.c.label))
    return [
        select_sums(_BUCKET, cells, hour=cells.c.hour),
        select_sums(_TOTAL, cells, label=cells.c.label).where(is_top),
        select_sums(_VALUE, cells, hour=cells.c.hour, label=cells.c.label).where(is_top),
    ]


def select_sums(part: str, cells: CTE, **groups: ColumnElement[Any]) -> Select[Any]:
    """Select the sums of each hour or label in ``groups``; of all, without groups."""
    sums = [func.coalesce(func.sum(cells.c[name]), 0).label(name) for name in SUMMED_FIELDS]
    labels = groups.get("hour", literal(0)).label("hour"), groups.get("label", literal("")).label("label")
    return select(literal(part).label("part"), *labels, *sums).group_by(*groups.values())


def parse_series(axis: SplitAxis, rows: Iterable[Row[Any]]) -> TrafficSeries:
    """Parse the rows of ``select_series``."""
    buckets, top, values = {}, [], {}
    for part, hour, label, *amounts in map(tuple, rows):
        line = TrafficLine(label, *map(int, amounts))
        if part == _BUCKET:
            buckets[int(hour)] = line
        elif part == _TOTAL:
            top.append(line)
        else:
            values[label, int(hour)] = line.requests if axis == "cause" else line.cost_nanos
    top.sort(key=lambda line: (-line.cost_nanos, -line.requests, line.label))
    return TrafficSeries(buckets, top, values)


def _count_split_days(days: Sequence[int]) -> Select[Any]:
    """Select how many of ``days`` have complete splits at the moment at which the other parts are read."""
    count = select(func.count()).select_from(_select_split_days(days).subquery()).scalar_subquery()
    return select(
        literal(_DAYS).label("part"),
        count.label("hour"),
        literal("").label("label"),
        *(literal(0) for _ in SUMMED_FIELDS),
    )


def _select_split_days(days: Sequence[int]) -> Select[Any]:
    """Select those of ``days`` that have complete splits, in fewer parameters than a list has."""
    others = sorted(set(range(min(days), max(days) + 1)).difference(days))
    column = split_days.c.day
    return select(column).where(column.between(min(days), max(days)), *([column.not_in(others)] if others else []))
