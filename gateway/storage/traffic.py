"""Sums of traffic in the database."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
from sqlalchemy import ColumnElement, Select, String, Subquery, cast, func, literal, select, true, union_all

from gateway.domain.traffic import (
    DAY_HOURS,
    MOST_FACETS,
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

MOST_COUNTED = 40_000
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
    """Reads the ``usage_hours`` table. Facets are counted from at most ``most_counted`` sums of days."""

    def __init__(self, database: Database, most_counted: int = MOST_COUNTED) -> None:
        self._database = database
        self._most_counted = most_counted

    async def list_traffic(self, axis: TrafficAxis, wanted: TrafficFilter) -> Sequence[TrafficLine]:
        """Return traffic summed along ``axis``: hours and days in order, everything else by cost, highest first."""
        hours = [TimeRange(1, wanted.since, wanted.until)]
        stretches = hours if axis == "hour" else split_hours(wanted.since, wanted.until)
        if not stretches:
            return []
        found = _find(stretches, wanted, _LABELS[axis].label("label"), *(_C[name] for name in SUMS))
        sums = [func.sum(found.c[name]).label(name) for name in SUMS]
        statement = select(found.c.label, *sums).group_by(found.c.label)
        by_cost = (func.sum(found.c.cost_nanos).desc(), func.sum(found.c.requests).desc(), found.c.label)
        statement = statement.order_by(*((found.c.label,) if axis in {"day", "hour"} else by_cost))
        return [TrafficLine(str(row[0]), *map(int, row[1:])) for row in await self._database.read_long(statement)]

    async def list_facets(self, wanted: TrafficFilter) -> Facets:
        """Return the values that occur in requests, and the number of requests with each."""
        stretches = await self._choose(wanted)
        if not stretches:
            return Facets(wanted.since, wanted.until)
        found: dict[str, list[Facet]] = {kind: [] for kind in _FACETS}
        statement = union_all(*(_count(stretches, wanted, kind) for kind in _FACETS))
        for row in await self._database.read_long(statement):
            found[row.kind].append(Facet(row.value, int(row.total)))
        return Facets(min(one.since for one in stretches), wanted.until, **found)

    async def _choose(self, wanted: TrafficFilter) -> list[TimeRange]:
        """Return the ranges to count. If there are too many daily sums, only the newest days, at least one."""
        stretches = split_hours(wanted.since, wanted.until)
        days = next((one for one in stretches if one.span == DAY_HOURS), None)
        if days is None:
            return stretches
        counted = select(_C.hour).where(_C.span == DAY_HOURS, _C.hour >= days.since, _C.hour < days.until)
        counted = counted.order_by(_C.hour.desc()).limit(1).offset(self._most_counted)
        for (hour,) in await self._database.read(counted):
            since = min(hour + DAY_HOURS, days.until - DAY_HOURS)
            later = [one for one in stretches if one.since >= days.until]
            return [TimeRange(DAY_HOURS, since, days.until), *later]
        return stretches


def _find(stretches: Iterable[TimeRange], wanted: TrafficFilter, *columns: ColumnElement[Any]) -> Subquery:
    parts = [
        select(*columns).where(
            _C.span == one.span, _C.hour >= one.since, _C.hour < one.until, *_write_conditions(wanted)
        )
        for one in stretches
    ]
    return (parts[0] if len(parts) == 1 else union_all(*parts)).subquery()


def _write_conditions(wanted: TrafficFilter) -> list[ColumnElement[bool]]:
    equal = {name: getattr(wanted, name) for name in ("account_id", "key_id", "model", "channel", "status")}
    return [_C[name] == value for name, value in equal.items() if value is not None]


def _count(stretches: Iterable[TimeRange], wanted: TrafficFilter, kind: str) -> Select[Any]:
    column, chosen_by = _FACETS[kind]
    nothing_chosen: dict[str, Any] = dict.fromkeys(chosen_by)
    wanted = attrs.evolve(wanted, **nothing_chosen)
    counts = {"error": _C.failed, "ok": _C.requests - _C.failed}
    found = _find(stretches, wanted, column.label("value"), counts.get(wanted.verdict or "", _C.requests).label("n"))
    total = func.sum(found.c.n)
    named = found.c.value != "" if isinstance(column.type, String) else true()
    counted = select(found.c.value, total.label("total")).where(named).group_by(found.c.value).having(total > 0)
    counted = counted.order_by(total.desc(), found.c.value).limit(MOST_FACETS)
    best = counted.subquery()
    return select(literal(kind).label("kind"), cast(best.c.value, String).label("value"), best.c.total)
