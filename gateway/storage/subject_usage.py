"""Reads usage by end user, session and tag from the database, and the charges that must agree with it."""

from collections.abc import Iterable
from functools import partial, reduce
from typing import Any

import attrs
from sqlalchemy import ColumnElement, Row, Select, case, exists, func, literal, or_, select, union_all

from gateway.domain.balance import DAY_S
from gateway.domain.ledger import SubjectTotals
from gateway.domain.subject_usage import OTHER_VALUES, SubjectFilter, SubjectUsage
from gateway.domain.traffic import SUMMED_FIELDS, TrafficLine, add_lines
from gateway.storage.database import Database
from gateway.storage.ledger_rows import UNSTORABLE_MODEL
from gateway.storage.schema import IS_NAMED, requests, retired, subject_usage, usage_days

_COLUMNS = subject_usage.c
_SUM_COLUMNS = tuple(func.coalesce(func.sum(_COLUMNS[name]), 0).label(name) for name in SUMMED_FIELDS)


_DAY_MS = DAY_S * 1000
_AMOUNTS = ("usage", "users", "user_rows", "unattributed")
_MAX_SOUGHT_DAYS = 400
_LINE, _TOTAL, _OTHER = "line", "total", "other"


class SubjectUsageRepository:
    """Reads the ``subject_usage`` table."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find_usage(self, subject_filter: SubjectFilter, max_lines: int) -> SubjectUsage:
        """Return the ``max_lines`` most expensive subjects, the sum of the others, and the sum of ``OTHER_VALUES``.

        The latter has the values that are beyond a day's bound and have no sums of their own.
        """
        conditions = write_conditions(subject_filter)
        listed = _COLUMNS.value != OTHER_VALUES
        by_cost = func.sum(_COLUMNS.cost_nanos).desc(), func.sum(_COLUMNS.requests).desc(), _COLUMNS.value
        # Only the highest are summed in full: sorting all sums of 300,000 sessions takes twice as long.
        highest_values = select(_COLUMNS.value).where(*conditions, listed).group_by(_COLUMNS.value).order_by(*by_cost)
        is_highest = _COLUMNS.value.in_(highest_values.limit(max_lines))
        is_other = write_conditions(attrs.evolve(subject_filter, values=(OTHER_VALUES,)))
        lines_query = select(literal(_LINE), _COLUMNS.value, *_SUM_COLUMNS).where(*conditions, is_highest)
        statement: Any = union_all(  # one statement, because all parts must be of the same moment
            lines_query.group_by(_COLUMNS.value),
            select(literal(_TOTAL), literal(""), *_SUM_COLUMNS).where(*conditions, listed),
            select(literal(_OTHER), literal(""), *_SUM_COLUMNS).where(*is_other),
        )
        rows = await self._database.read_long(statement)
        sums = [(part, TrafficLine(label, *map(int, amounts))) for part, label, *amounts in map(tuple, rows)]
        lines = [line for part, line in sums if part == _LINE]
        lines.sort(key=lambda line: (-line.cost_nanos, -line.requests, line.label))
        total, other = (next(line for part, line in sums if part == name) for name in (_TOTAL, _OTHER))
        return SubjectUsage(tuple(lines), reduce(partial(add_lines, sign=-1), lines, total), other)

    async def list_days(self, subject_filter: SubjectFilter) -> list[TrafficLine]:
        """Return the sums of the days on which one of the subjects has any, in order.

        The label is the day, counted from 1970.
        """
        query = select(_COLUMNS.day, *_SUM_COLUMNS).where(*write_conditions(subject_filter))
        rows = await self._database.read(query.group_by(_COLUMNS.day).order_by(_COLUMNS.day))
        return [TrafficLine(str(row[0]), *map(int, row[1:])) for row in rows]


def write_conditions(subject_filter: SubjectFilter) -> list[ColumnElement[bool]]:
    """Return the conditions of a filter on ``subject_usage``."""
    conditions = [_COLUMNS.kind == subject_filter.kind, _COLUMNS.name == subject_filter.name]
    days = range(subject_filter.since, subject_filter.until + 1)
    if subject_filter.values and len(days) <= _MAX_SOUGHT_DAYS:
        conditions.append(_COLUMNS.day.in_(days))  # a search for each day and value, past the other values
    else:
        conditions.append(_COLUMNS.day.between(subject_filter.since, subject_filter.until))
    if subject_filter.account_id is not None:
        conditions.append(_COLUMNS.account_id == subject_filter.account_id)
    if subject_filter.key_id is not None:
        conditions.append(_COLUMNS.key_id == subject_filter.key_id)
    if subject_filter.values:
        conditions.append(_COLUMNS.value.in_(subject_filter.values))
    return conditions


def _sum_totals() -> Select[Any]:
    """Select the charges of each key and day by each source. Without any user there are no rows, and none is read."""
    rows, has_user = requests.c, IS_NAMED["end_user"]
    has_users = or_(
        exists(select(_COLUMNS.kind).where(_COLUMNS.kind == "user")),
        exists(select(literal(1)).select_from(requests).where(has_user).correlate(None)),
    )
    days, cost = usage_days.c, usage_days.c.cost_nanos
    is_unstorable = days.model == UNSTORABLE_MODEL
    owner_and_day = (rows.settled_ms // _DAY_MS).label("day"), rows.account_id, rows.key_id
    sources = [
        _select_amounts((days.day, days.account_id, days.key_id), usage=cost, unattributed=case((is_unstorable, cost))),
        _select_amounts((_COLUMNS.day, _COLUMNS.account_id, _COLUMNS.key_id), users=_COLUMNS.cost_nanos).where(
            _COLUMNS.kind == "user"
        ),
        _select_amounts(
            owner_and_day,
            user_rows=case((rows.end_user != "", rows.cost_nanos)),
            unattributed=case((rows.end_user == "", rows.cost_nanos)),
        ).where(rows.cost_nanos > 0),
    ]
    amounts = union_all(*(source.where(has_users) for source in sources)).subquery()
    owner = amounts.c.account_id, amounts.c.key_id
    return (
        select(amounts.c.day, *owner, retired.c.until_ms, *(func.sum(amounts.c[name]).label(name) for name in _AMOUNTS))
        .select_from(amounts)
        .outerjoin(retired, (retired.c.account_id == owner[0]) & (retired.c.key_id == owner[1]))
        .group_by(amounts.c.day, *owner, retired.c.until_ms)
        .order_by(amounts.c.day, *owner)
    )


def _select_amounts(owner_and_day: tuple[ColumnElement[Any], ...], **amounts: ColumnElement[Any]) -> Select[Any]:
    zero = literal(0)
    return select(*owner_and_day, *(func.coalesce(amounts.get(name, zero), 0).label(name) for name in _AMOUNTS))


SUBJECT_TOTALS = _sum_totals()
"""The statement that selects the charges of each key and day by each source; ``parse_totals`` parses its rows."""


def parse_totals(rows: Iterable[Row[Any]]) -> list[SubjectTotals]:
    """Return the charges of each key and day by each source."""
    totals = []
    for row in rows:
        is_complete = row.until_ms is None or row.day > row.until_ms // _DAY_MS
        amounts = [int(getattr(row, name)) for name in _AMOUNTS]
        totals.append(SubjectTotals(row.day, row.account_id, row.key_id, is_complete, *amounts))
    return totals
