"""Traffic over time in the database, for charts."""

from sqlalchemy import func, select

from gateway.domain.traffic import SUMMED_FIELDS, TimeRange, TrafficAxis, TrafficFilter, TrafficLine
from gateway.frozen import frozen
from gateway.storage.database import Database
from gateway.storage.schema import usage_hours
from gateway.storage.traffic import LABELS, write_conditions

_COLUMNS = usage_hours.c


@frozen
class SeriesLine:
    """The traffic of one hour or day that ``line.label`` identifies."""

    hour: int
    line: TrafficLine


async def list_series(
    database: Database, axis: TrafficAxis, period: TimeRange, traffic_filter: TrafficFilter
) -> list[SeriesLine]:
    """Return traffic summed along ``axis`` for each hour or day of ``period``, in the order of time."""
    label = LABELS[axis].label("label")
    sums = [func.sum(_COLUMNS[name]) for name in SUMMED_FIELDS]
    is_within = _COLUMNS.span == period.span, _COLUMNS.hour >= period.since, _COLUMNS.hour < period.until
    statement = select(_COLUMNS.hour, label, *sums).where(*is_within, *write_conditions(traffic_filter))
    rows = await database.read_long(statement.group_by(_COLUMNS.hour, label).order_by(_COLUMNS.hour, label))
    return [SeriesLine(int(row[0]), TrafficLine(str(row[1]), *map(int, row[2:]))) for row in rows]
