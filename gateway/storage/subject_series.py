"""Traffic of end users and tags by day, for charts."""

from typing import Literal

from sqlalchemy import String, cast, select, union_all

from gateway.domain.subject_usage import SubjectFilter
from gateway.domain.traffic import DAY_HOURS, SUMMED_FIELDS
from gateway.storage.database import Database
from gateway.storage.schema import subject_usage
from gateway.storage.subject_usage import write_conditions
from gateway.storage.traffic_series import TrafficSeries, parse_series, select_series

_COLUMNS = subject_usage.c


async def list_subject_series(
    database: Database, subject_filter: SubjectFilter, axis: Literal["key", "account"], max_values: int
) -> TrafficSeries:
    """Return the traffic of each day, by its first hour, and the ``max_values`` keys or accounts that cost most."""
    label = cast(_COLUMNS.key_id if axis == "key" else _COLUMNS.account_id, String).label("label")
    hour = (_COLUMNS.day * DAY_HOURS).label("hour")
    query = select(hour, label, *(_COLUMNS[name] for name in SUMMED_FIELDS))
    cells = query.where(*write_conditions(subject_filter)).cte("cells")
    return parse_series(axis, await database.read_long(union_all(*select_series(cells, max_values))))
