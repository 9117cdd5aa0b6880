"""Sums of traffic in the database."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
from sqlalchemy import ColumnElement, Select, String, Subquery, cast, func, literal, select, true, union_all

from gateway.domain.traffic import (
    DAY_HOURS,
    MAX_FACETS,
    SUMS,
    Facet,
    Facets,
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
_C = usage_hours.c
_LABELS: Mapping[TrafficAxis, ColumnElement[Any]] = {
    "day": _C.hour // DAY_HOURS,
    "hour": _C.hour,
    "model": _C.model,
    "key": _C.key_id,
    "account": _C.account_id,
    "status": _C.status,
    "channel": _C.channel,
}
_FACETS: Mapping[str, tuple[ColumnElement[Any], tuple[str, ...]]] = {
    "models": (_C.model, ("model",)),
    "keys": (_C.key_id, ("key_id",)),
    "statuses": (_C.status, ("status", "verdict")),
    "channels": (_C.channel, ("channel",)),
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
        lines = _find(stretches, traffic_filter, _LABELS[axis].label("label"), *(_C[name] for name in SUMS))
        sums = [func.sum(lines.c[name]).label(name) for name in SUMS]
        statement = select(lines.c.label, *sums).group_by(lines.c.label)
        by_cost = (func.sum(lines.c.cost_nanos).desc(), func.sum(lines.c.requests).desc(), lines.c.label)
        statement = statement.order_by(*((lines.c.label,) if axis in {"day", "hour"} else by_cost))
        return [TrafficLine(str(row[0]), *map(int, row[1:])) for row in await self._database.read_long(statement)]

    async def list_facets(self, traffic_filter: TrafficFilter) -> Facets:
        """Return the values that occur in requests, and the number of requests with each."""
        stretches = await self._choose(traffic_filter)
        if not stretches:
            return Facets(traffic_filter.since, traffic_filter.until)
        facets: dict[str, list[Facet]] = {kind: [] for kind in _FACETS}
        statement = union_all(*(_count(stretches, traffic_filter, kind) for kind in _FACETS))
        for row in await self._database.read_long(statement):
            facets[row.kind].append(Facet(row.value, int(row.total)))
        return Facets(min(stretch.since for stretch in stretches), traffic_filter.until, **facets)

    async def _choose(self, traffic_filter: TrafficFilter) -> list[TimeRange]:
        """Return the ranges to count. If there are too many daily sums, only the newest days, at least one."""
        stretches = split_hours(traffic_filter.since, traffic_filter.until)
        days = next((stretch for stretch in stretches if stretch.span == DAY_HOURS), None)
        if days is None:
            return stretches
        cutoff_query = select(_C.hour).where(_C.span == DAY_HOURS, _C.hour >= days.since, _C.hour < days.until)
        cutoff_query = cutoff_query.order_by(_C.hour.desc()).limit(1).offset(self._max_counted)
        for (hour,) in await self._database.read(cutoff_query):
            since = min(hour + DAY_HOURS, days.until - DAY_HOURS)
            later_stretches = [stretch for stretch in stretches if stretch.since >= days.until]
            return [TimeRange(DAY_HOURS, since, days.until), *later_stretches]
        return stretches


def _find(stretches: Iterable[TimeRange], traffic_filter: TrafficFilter, *columns: ColumnElement[Any]) -> Subquery:
    selects = [
        select(*columns).where(
            _C.span == stretch.span,
            _C.hour >= stretch.since,
            _C.hour < stretch.until,
            *_write_conditions(traffic_filter),
        )
        for stretch in stretches
    ]
    return (selects[0] if len(selects) == 1 else union_all(*selects)).subquery()


def _write_conditions(traffic_filter: TrafficFilter) -> list[ColumnElement[bool]]:
    equal = {name: getattr(traffic_filter, name) for name in ("account_id", "key_id", "model", "channel", "status")}
    return [_C[name] == value for name, value in equal.items() if value is not None]


def _count(stretches: Iterable[TimeRange], traffic_filter: TrafficFilter, kind: str) -> Select[Any]:
    column, filter_field = _FACETS[kind]
    nothing_chosen: dict[str, Any] = dict.fromkeys(filter_field)
    traffic_filter = attrs.evolve(traffic_filter, **nothing_chosen)
    counts = {"error": _C.failed, "ok": _C.requests - _C.failed}
    lines = _find(
        stretches,
        traffic_filter,
        column.label("value"),
        counts.get(traffic_filter.verdict or "", _C.requests).label("n"),
    )
    total = func.sum(lines.c.n)
    has_name = lines.c.value != "" if isinstance(column.type, String) else true()
    totals = select(lines.c.value, total.label("total")).where(has_name).group_by(lines.c.value).having(total > 0)
    totals = totals.order_by(total.desc(), lines.c.value).limit(MAX_FACETS)
    top_values = totals.subquery()
    return select(literal(kind).label("kind"), cast(top_values.c.value, String).label("value"), top_values.c.total)
