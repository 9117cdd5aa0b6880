"""Traffic over time in the database, for charts."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import and_, false, func, or_, select

from gateway.domain.traffic import SUMMED_FIELDS, TimeRange, TrafficAxis, TrafficFilter, TrafficLine, split_hours
from gateway.frozen import frozen
from gateway.storage.database import Database
from gateway.storage.schema import usage_hours
from gateway.storage.traffic import LABELS, write_conditions

_COLUMNS = usage_hours.c


@frozen
class SeriesLine:
    """The traffic of one model, key, account, channel or status (``traffic.label``) in one hour or day."""

    hour: int
    traffic: TrafficLine


async def sum_traffic(database: Database, traffic_filter: TrafficFilter) -> TrafficLine:
    """Return the traffic of the filter's hours. It is read without sorting, which would take most of the time."""
    is_within = [
        and_(_COLUMNS.span == part.span, _COLUMNS.hour >= part.since, _COLUMNS.hour < part.until)
        for part in split_hours(traffic_filter.since, traffic_filter.until)
    ]
    sums = [func.coalesce(func.sum(_COLUMNS[name]), 0) for name in SUMMED_FIELDS]
    statement = select(*sums).where(or_(false(), *is_within), *write_conditions(traffic_filter))
    rows: Sequence[Sequence[Any]] = await database.read_long(statement)
    return TrafficLine("", *map(int, rows[0]))


async def list_series(
    database: Database, axis: TrafficAxis, period: TimeRange, traffic_filter: TrafficFilter
) -> list[SeriesLine]:
    """Return traffic summed along ``axis`` for each hour or day of ``period``, in the order of time."""
    label = LABELS[axis].label("label")
    sums = [func.sum(_COLUMNS[name]) for name in SUMMED_FIELDS]
    is_within = _COLUMNS.span == period.span, _COLUMNS.hour >= period.since, _COLUMNS.hour < period.until
    statement = select(_COLUMNS.hour, label, *sums).where(*is_within, *write_conditions(traffic_filter))
    rows: Sequence[Sequence[Any]] = await database.read_long(
        statement.group_by(_COLUMNS.hour, label).order_by(_COLUMNS.hour, label)
    )
    return [SeriesLine(int(row[0]), TrafficLine(str(row[1]), *map(int, row[2:]))) for row in rows]
