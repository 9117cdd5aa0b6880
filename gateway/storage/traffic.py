"""Reads the sums of traffic by hour and day from the database."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
from sqlalchemy import ColumnElement, Select, String, Subquery, cast, func, literal, select, true, union_all

from gateway.domain.traffic import (
    DAY_HOURS,
    MAX_FACETS,
    SUMMED_FIELDS,
    Facet,
    Facets,
    KeyCost,
    TimeRange,
    TrafficAxis,
    TrafficFilter,
    TrafficLine,
    split_hours,
)
from gateway.storage.database import Database
from gateway.storage.schema import usage_hours

MAX_COUNTED = 40_000
"""How many daily sums facets are counted from: a page waits for them, and older ones need not be included."""
_COLUMNS = usage_hours.c
LABELS: Mapping[TrafficAxis, ColumnElement[Any]] = {
    "day": _COLUMNS.hour // DAY_HOURS,
    "hour": _COLUMNS.hour,
    "model": _COLUMNS.model,
    "key": _COLUMNS.key_id,
    "account": _COLUMNS.account_id,
    "status": _COLUMNS.status,
    "channel": _COLUMNS.channel,
}
_FACETS: Mapping[str, tuple[ColumnElement[Any], tuple[str, ...]]] = {
    "models": (_COLUMNS.model, ("model",)),
    "keys": (_COLUMNS.key_id, ("key_id",)),
    "statuses": (_COLUMNS.status, ("status", "verdict")),
    "channels": (_COLUMNS.channel, ("channel",)),
}
"""For each kind of facet, its column, and the filter fields that select by it."""


class TrafficRepository:
    """Reads the ``usage_hours`` table. Facets are counted from at most ``max_counted`` sums of days."""

    def __init__(self, database: Database, max_counted: int = MAX_COUNTED) -> None:
        self._database = database
        self._max_counted = max_counted

    async def list_traffic(self, axis: TrafficAxis, traffic_filter: TrafficFilter) -> Sequence[TrafficLine]:
        """Return traffic summed along ``axis``: hours and days in order, everything else by cost, highest first."""
        hours = [TimeRange(1, traffic_filter.since, traffic_filter.until)]
        stretches = hours if axis == "hour" else split_hours(traffic_filter.since, traffic_filter.until)
        if not stretches:
            return []
        lines = _find(
            stretches, traffic_filter, LABELS[axis].label("label"), *(_COLUMNS[name] for name in SUMMED_FIELDS)
        )
        sums = [func.sum(lines.c[name]).label(name) for name in SUMMED_FIELDS]
        statement = select(lines.c.label, *sums).group_by(lines.c.label)
        by_cost = (func.sum(lines.c.cost_nanos).desc(), func.sum(lines.c.requests).desc(), lines.c.label)
        statement = statement.order_by(*((lines.c.label,) if axis in {"day", "hour"} else by_cost))
        return [TrafficLine(str(row[0]), *map(int, row[1:])) for row in await self._database.read_long(statement)]

    async def list_facets(self, traffic_filter: TrafficFilter) -> Facets:
        """Return the most frequent values of each field, and the number of requests with each.

        If there are many sums, only the newest days are counted.
        """
        stretches = await self._choose_ranges(traffic_filter)
        if not stretches:
            return Facets(traffic_filter.since, traffic_filter.until)
        facets: dict[str, list[Facet]] = {kind: [] for kind in _FACETS}
        statement = union_all(*(_count(stretches, traffic_filter, kind) for kind in _FACETS))
        for row in await self._database.read_long(statement):
            facets[row.kind].append(Facet(row.value, int(row.total)))
        return Facets(min(stretch.since for stretch in stretches), traffic_filter.until, **facets)

    async def sum_costs(
        self, span: int, hours: Sequence[int], account_id: int, key_id: int | None
    ) -> Mapping[int, int]:
        """Return what an account or one of its keys has spent, in nano-USD by the first hour of each sum.

        Sums of 0 are left out. ``hours`` count from 1970 (UTC); ``span`` is the length of the sums in hours. Each hour
        is a look-up of its own, so that the other accounts' sums are not read.
        """
        statement = select(_COLUMNS.hour, func.sum(_COLUMNS.cost_nanos).label("nanos")).where(
            _COLUMNS.span == span, _COLUMNS.hour.in_(hours), _COLUMNS.account_id == account_id
        )
        if key_id is not None:
            statement = statement.where(_COLUMNS.key_id == key_id)
        rows = await self._database.read_long(statement.group_by(_COLUMNS.hour))
        return {int(row.hour): int(row.nanos) for row in rows if row.nanos}

    async def list_key_costs(self, hours: Sequence[int]) -> Sequence[KeyCost]:
        """Return what each key has spent in each of ``hours`` (since 1970, UTC), unless it is nothing."""
        total = func.sum(_COLUMNS.cost_nanos)
        columns = (_COLUMNS.hour, _COLUMNS.account_id, _COLUMNS.key_id)
        statement = select(*columns, total).where(_COLUMNS.span == 1, _COLUMNS.hour.in_(hours))
        rows = await self._database.read_long(statement.group_by(*columns).having(total > 0))
        return [KeyCost(*map(int, row)) for row in rows]

    async def _choose_ranges(self, traffic_filter: TrafficFilter) -> list[TimeRange]:
        """Return the ranges to count.

        If there are more than ``max_counted`` daily sums, the ranges have only the newest days, but at least one.
        """
        stretches = split_hours(traffic_filter.since, traffic_filter.until)
        days = next((stretch for stretch in stretches if stretch.span == DAY_HOURS), None)
        if days is None:
            return stretches
        cutoff_query = select(_COLUMNS.hour).where(
            _COLUMNS.span == DAY_HOURS, _COLUMNS.hour >= days.since, _COLUMNS.hour < days.until
        )
        cutoff_query = cutoff_query.order_by(_COLUMNS.hour.desc()).limit(1).offset(self._max_counted)
        for (hour,) in await self._database.read(cutoff_query):
            since_hour = min(hour + DAY_HOURS, days.until - DAY_HOURS)
            later_stretches = [stretch for stretch in stretches if stretch.since >= days.until]
            return [TimeRange(DAY_HOURS, since_hour, days.until), *later_stretches]
        return stretches


def _find(stretches: Iterable[TimeRange], traffic_filter: TrafficFilter, *columns: ColumnElement[Any]) -> Subquery:
    selects = [
        select(*columns).where(
            _COLUMNS.span == stretch.span,
            _COLUMNS.hour >= stretch.since,
            _COLUMNS.hour < stretch.until,
            *write_conditions(traffic_filter),
        )
        for stretch in stretches
    ]
    return (selects[0] if len(selects) == 1 else union_all(*selects)).subquery()


def write_conditions(traffic_filter: TrafficFilter) -> list[ColumnElement[bool]]:
    """Return the conditions of a filter on ``usage_hours``, without its time and its verdict."""
    equal_values = {
        name: getattr(traffic_filter, name) for name in ("account_id", "key_id", "model", "channel", "status")
    }
    return [_COLUMNS[name] == value for name, value in equal_values.items() if value is not None]


def _count(stretches: Iterable[TimeRange], traffic_filter: TrafficFilter, kind: str) -> Select[Any]:
    column, filter_fields = _FACETS[kind]
    nothing_chosen: dict[str, Any] = dict.fromkeys(filter_fields)
    traffic_filter = attrs.evolve(traffic_filter, **nothing_chosen)
    counts = {"error": _COLUMNS.failed, "ok": _COLUMNS.requests - _COLUMNS.failed}
    lines = _find(
        stretches,
        traffic_filter,
        column.label("value"),
        counts.get(traffic_filter.verdict or "", _COLUMNS.requests).label("n"),
    )
    total = func.sum(lines.c.n)
    has_name = lines.c.value != "" if isinstance(column.type, String) else true()
    totals = select(lines.c.value, total.label("total")).where(has_name).group_by(lines.c.value).having(total > 0)
    totals = totals.order_by(total.desc(), lines.c.value).limit(MAX_FACETS)
    top_values = totals.subquery()
    return select(literal(kind).label("kind"), cast(top_values.c.value, String).label("value"), top_values.c.total)
