"""Failures by cause in the database."""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import func, or_, select

from gateway.domain.failures import FailureLine, sum_failures
from gateway.domain.request_log import RequestRecord
from gateway.domain.traffic import TimeRange, TrafficFilter
from gateway.storage.bulk import BulkAddition
from gateway.storage.database import Database
from gateway.storage.schema import failure_hours

ADD_FAILURES = BulkAddition(failure_hours, ("requests",))
_COLUMNS = failure_hours.c
_FILTERED_COLUMNS = ("account_id", "key_id", "model", "channel")


def list_additions(rows: Iterable[RequestRecord], sign: int = 1) -> list[tuple[Any, ...]]:
    """Return what ``ADD_FAILURES`` inserts to count failed rows; with the sign -1, to reverse that."""
    return [(*key, sign * count) for key, count in sum_failures(rows).items()]


class FailureRepository:
    """Reads the ``failure_hours`` table."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_failures(self, ranges: Sequence[TimeRange], traffic_filter: TrafficFilter) -> list[FailureLine]:
        """Return the failures of each cause in each hour or day of ``ranges``, in the order of time."""
        in_time = or_(
            *(
                (_COLUMNS.span == part.span) & (_COLUMNS.hour >= part.since) & (_COLUMNS.hour < part.until)
                for part in ranges
            )
        )
        values = {name: getattr(traffic_filter, name) for name in _FILTERED_COLUMNS}
        conditions = [_COLUMNS[name] == value for name, value in values.items() if value is not None]
        labels, total = (_COLUMNS.hour, _COLUMNS.outcome, _COLUMNS.code), func.sum(_COLUMNS.requests).label("total")
        query = (
            select(*labels, total)
            .where(in_time, *conditions)
            .group_by(*labels)
            .having(func.sum(_COLUMNS.requests) > 0)
            .order_by(*labels)
        )
        rows = await self._database.read_long(query)
        return [FailureLine(int(row.hour), row.outcome, row.code, int(row.total)) for row in rows]
