"""Usage by end user, session and tag in the database."""

from functools import partial, reduce

from sqlalchemy import ColumnElement, func, select

from gateway.domain.subject_usage import OTHER, SubjectFilter, SubjectUsage
from gateway.domain.traffic import SUMS, TrafficLine, add_lines
from gateway.storage.database import Database
from gateway.storage.schema import subject_usage

_COLUMNS = subject_usage.c
_SUMMED = tuple(func.coalesce(func.sum(_COLUMNS[name]), 0).label(name) for name in SUMS)


_NO_TRAFFIC = TrafficLine("", *(0 for _ in SUMS))


class SubjectUsageRepository:
    """Reads the ``subject_usage`` table."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find_usage(self, subject_filter: SubjectFilter, max_lines: int) -> SubjectUsage:
        """Return the ``max_lines`` most expensive subjects, the sum of the others, and of those without own sums."""
        conditions = _write_conditions(subject_filter)
        is_other = (_COLUMNS.value == OTHER).label("is_other")
        lines_query = (
            select(_COLUMNS.value, *_SUMMED)
            .where(*conditions, _COLUMNS.value != OTHER)
            .group_by(_COLUMNS.value)
            .order_by(func.sum(_COLUMNS.cost_nanos).desc(), func.sum(_COLUMNS.requests).desc(), _COLUMNS.value)
            .limit(max_lines)
        )
        rows = await self._database.read_long(lines_query)
        lines = tuple(TrafficLine(row[0], *map(int, row[1:])) for row in rows)
        totals_query = select(is_other, *_SUMMED).where(*conditions).group_by(is_other)
        totals = {
            bool(row[0]): TrafficLine("", *map(int, row[1:])) for row in await self._database.read_long(totals_query)
        }
        rest = reduce(partial(add_lines, sign=-1), lines, totals.get(False, _NO_TRAFFIC))
        return SubjectUsage(lines, rest, totals.get(True, _NO_TRAFFIC))


def _write_conditions(subject_filter: SubjectFilter) -> list[ColumnElement[bool]]:
    conditions = [
        _COLUMNS.kind == subject_filter.kind,
        _COLUMNS.name == subject_filter.name,
        _COLUMNS.day.between(subject_filter.since, subject_filter.until),
    ]
    if subject_filter.account_id is not None:
        conditions.append(_COLUMNS.account_id == subject_filter.account_id)
    if subject_filter.key_id is not None:
        conditions.append(_COLUMNS.key_id == subject_filter.key_id)
    return conditions
