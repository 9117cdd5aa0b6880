"""Lists of end users and of the values of a tag: searched, sorted and paged by the database, from the sums of days.

Also lists the names of tags.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from sqlalchemy import ColumnElement, UnaryExpression, exists, func, select

from gateway.domain.request_log import lower_ascii
from gateway.domain.subject_usage import OTHER_VALUES, SubjectFilter
from gateway.domain.traffic import SUMMED_FIELDS, TrafficLine
from gateway.frozen import frozen
from gateway.storage.database import Database
from gateway.storage.dialect import contain_text
from gateway.storage.schema import subject_counts, subject_usage
from gateway.storage.subject_usage import write_conditions

_COLUMNS = subject_usage.c
_SUMS = {name: func.sum(_COLUMNS[name]).label(name) for name in SUMMED_FIELDS}
_LAST_DAY = func.max(_COLUMNS.day).label("last_day")
SORT_KEYS: Mapping[str, ColumnElement[Any]] = {
    "name": _COLUMNS.value,
    "requests": _SUMS["requests"],
    "failed": _SUMS["failed"],
    "tokens": func.sum(_COLUMNS.prompt_tokens + _COLUMNS.completion_tokens),
    "cost_usd": _SUMS["cost_nanos"],
    "last_used_on": _LAST_DAY,
}
"""The columns by which a list can be sorted, by their names in the API."""


@frozen
class SubjectRow:
    """The sums of one end user or tag value, and the last UTC day with a request, in days since 1970."""

    sums: TrafficLine
    last_day: int


@frozen
class SubjectPage:
    """Some rows of a list, and how many rows the whole list has."""

    rows: Sequence[SubjectRow]
    total: int


async def list_subjects(
    database: Database, subject_filter: SubjectFilter, words: Sequence[str], sort: str, *, start: int, limit: int
) -> SubjectPage:
    """Return ``limit`` subjects from position ``start`` on, of those whose names have all ``words``.

    The case of ASCII letters does not count. ``sort`` is a name in ``SORT_KEYS``, with ``-`` before it for descending
    order. Beyond the last row there are no rows, and the total is 0.
    """
    has_words = [contain_text(word, _COLUMNS.value) for word in words]
    query = (  # only one page is summed in full: all sums of 70,000 rows take twice as long
        select(_COLUMNS.value, func.count().over().label("total"))
        .where(*write_conditions(subject_filter), _COLUMNS.value != OTHER_VALUES, *has_words)
        .group_by(_COLUMNS.value)
        .order_by(_write_order(sort), _COLUMNS.value)
    )
    page_rows = await database.read_long(query.offset(start).limit(limit))
    if not page_rows:
        return SubjectPage([], 0)
    own_filter = attrs.evolve(subject_filter, values=tuple(row.value for row in page_rows))
    sums = select(_COLUMNS.value, *_SUMS.values(), _LAST_DAY).where(*write_conditions(own_filter))
    rows = await database.read_long(sums.group_by(_COLUMNS.value))
    found_rows = {row.value: _build_row(*row) for row in rows}
    return SubjectPage([found_rows[row.value] for row in page_rows if row.value in found_rows], int(page_rows[0].total))


async def find_first_day(database: Database, subject_filter: SubjectFilter, max_values: int) -> int:
    """Return the first of the newest days of the filter that have at most ``max_values`` subjects together.

    A subject counts on each of its days, in any account. The newest day with subjects is always one of the days.
    """
    counts = subject_counts.c
    is_counted = counts.kind == subject_filter.kind, counts.name == subject_filter.name
    days = counts.day.between(subject_filter.since, subject_filter.until)
    query = select(counts.day, counts.distinct_values).where(*is_counted, days).order_by(counts.day.desc())
    total = 0
    for row in await database.read(query):
        if total and total + row.distinct_values > max_values:
            return int(row.day) + 1
        total += row.distinct_values
    return subject_filter.since


async def list_tag_names(database: Database, subject_filter: SubjectFilter) -> list[str]:
    """Return the names of the tags that have sums for the days, the account and the key of the filter."""
    counts = subject_counts.c
    days = counts.day.between(subject_filter.since, subject_filter.until)
    names = select(counts.name).where(counts.kind == "tag", counts.name != "", days).distinct().subquery()
    is_used = exists(
        select(_COLUMNS.kind).where(
            _COLUMNS.kind == "tag", _COLUMNS.name == names.c.name, *write_conditions(subject_filter)[2:]
        )
    )
    rows = await database.read_long(select(names.c.name).where(is_used).order_by(names.c.name))
    return [row.name for row in rows]


def split_words(search: str) -> list[str]:
    """Return the words of a search, each once, with ASCII letters in lower case."""
    return list(dict.fromkeys(lower_ascii(search).split()))


def _write_order(sort: str) -> UnaryExpression[Any]:
    column = SORT_KEYS[sort.removeprefix("-")]
    return column.desc() if sort.startswith("-") else column.asc()


def _build_row(name: str, *numbers: Any) -> SubjectRow:
    *amounts, last_day = map(int, numbers)
    return SubjectRow(TrafficLine(name, *amounts), last_day)
