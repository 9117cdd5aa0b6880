"""Which users, sessions and tags get sums of their own, decided in the transactions of their rows.

A value gets its own sums with its first row of the day, unless ``attribution.max_values`` values have some; then it is
summed as ``OTHER_VALUES`` for the rest of the day. The number of values is stored, because several nodes may add some.
The bound of a group is stored with its first value: a changed setting applies from the next day on.

Only what earlier transactions have committed is remembered, so a value is looked up in its first two transactions.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Row, Select, Table, select, update

from gateway.domain.request_log import RequestRecord
from gateway.domain.subject_usage import MAX_TAG_NAMES, OTHER_VALUES, SubjectGroup, SubjectKey, sum_subjects
from gateway.domain.traffic import SUMMED_FIELDS, Sums, add_sums, negate
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.bulk import BulkAddition, Inserts
from gateway.storage.dialect import insert_for
from gateway.storage.schema import subject_counts, subject_usage

_ADD_SUMS = BulkAddition(subject_usage, SUMMED_FIELDS)
_VALUES_PER_STATEMENT = 500
"""Values per statement, because databases limit the number of values in one."""
_DAYS_REMEMBERED = 2
"""How many days are remembered. Rows of earlier days are rare: an outage delayed them."""
_COUNTS, _USAGE = subject_counts.c, subject_usage.c


class _GroupValues:
    """The values of a group that are known to have sums of their own.

    ``is_full``: no other value of the group has sums, nor will get any.
    """

    def __init__(self) -> None:
        self.values: set[str] = set()
        self.is_full = False

    def decide(self, value: str) -> bool | None:
        """Return whether ``value`` has sums of its own; None if that must be looked up."""
        return True if value in self.values else False if self.is_full else None


class SubjectBounds:
    """Adds rows to the sums of their subjects, and decides which subjects get sums of their own.

    On each day, at most ``find_max_values()`` users get some. The same holds for sessions, and for values of each tag.
    """

    def __init__(self, find_max_values: Callable[[], int]) -> None:
        self._find_max_values = find_max_values
        self._groups: dict[SubjectGroup, _GroupValues] = {}
        self._newest_day = 0

    def list_inserts(self, rows: Iterable[RequestRecord]) -> Inserts | None:
        """Return the additions to the sums of ``rows``; None if a value must be looked up first."""
        placed_sums = _place(sum_subjects(rows), self._groups)
        return None if placed_sums is None else [(_ADD_SUMS, placed_sums)]

    async def add(self, connection: AsyncConnection, rows: Iterable[RequestRecord], *, reverses: bool) -> None:
        """Add ``rows`` to the sums, or with ``reverses`` subtract them, as part of the current transaction."""
        sums = sum_subjects(rows)
        if reverses:
            sums = {key: negate(amounts) for key, amounts in sums.items()}
        placed_sums = _place(sums, self._groups)
        if placed_sums is None:
            placed_sums = _place(sums, await self._look_up(connection, sums, admits=not reverses))
        if placed_sums:
            await _ADD_SUMS.run(connection, placed_sums)

    async def _look_up(
        self, connection: AsyncConnection, sums: Iterable[SubjectKey], *, admits: bool
    ) -> Mapping[SubjectGroup, _GroupValues]:
        """Return the groups of ``sums`` with a decision for each value. With ``admits`` new values are admitted."""
        values_by_group: defaultdict[SubjectGroup, set[str]] = defaultdict(set)
        for key in sums:
            values_by_group[key.group].add(key.value)
            if key.kind == "tag":
                values_by_group[_find_name_group(key)].add(key.name)
        decided_groups: dict[SubjectGroup, _GroupValues] = {}
        for group in sorted(values_by_group):  # the names of tags come before their values
            values = values_by_group[group]
            names = decided_groups.get(SubjectGroup("tag", "", group.day))
            if group.name and names is not None and not names.decide(group.name):
                continue
            known_group = self._remember(group)
            unknown_values = sorted(value for value in values if known_group.decide(value) is None)
            decided_group = decided_groups[group] = _GroupValues()
            decided_group.is_full = True
            decided_group.values = values & known_group.values
            if unknown_values:
                decided_group.values |= await self._decide(
                    connection, group, unknown_values, known_group, admits=admits
                )
        return decided_groups

    async def _decide(
        self,
        connection: AsyncConnection,
        group: SubjectGroup,
        values: Sequence[str],
        known_group: _GroupValues,
        *,
        admits: bool,
    ) -> set[str]:
        """Return those of ``values`` that have sums of their own; with ``admits``, new ones within the bound, too.

        The admitted ones are counted in the database, and ``known_group`` learns the stored ones. The group stays
        locked until the commit.
        """
        count = await self._lock(connection, group)
        is_names = group.kind == "tag" and not group.name
        stored_values = await _find_values(connection, group, values, is_names=is_names)
        known_group.values |= stored_values
        new_values = [value for value in values if value not in stored_values]
        free_count = max(count.max_values - count.distinct_values, 0)
        if new_values and not free_count and not known_group.is_full:
            known_group.values |= await _find_values(connection, group, None, is_names=is_names)
            known_group.is_full = True
        admitted_values = new_values[:free_count] if admits else []
        if admitted_values:
            number = _COUNTS.distinct_values + len(admitted_values)
            await connection.execute(
                update(subject_counts).where(*_is_group(subject_counts, group)).values(distinct_values=number)
            )
        return stored_values | set(admitted_values)

    async def _lock(self, connection: AsyncConnection, group: SubjectGroup) -> Row[Any]:
        """Return the stored number of values and its bound; other transactions wait for this one."""
        max_values = MAX_TAG_NAMES if group.kind == "tag" and not group.name else self._find_max_values()
        statement = insert_for(connection.dialect.name, subject_counts).values(
            **group._asdict(), distinct_values=0, max_values=max_values
        )
        statement = statement.on_conflict_do_update(
            index_elements=[column.name for column in subject_counts.primary_key.columns],
            set_={"distinct_values": _COUNTS.distinct_values},
        )
        return (await connection.execute(statement.returning(_COUNTS.distinct_values, _COUNTS.max_values))).one()

    def _remember(self, group: SubjectGroup) -> _GroupValues:
        """Return what is known of a group, which is kept for the newest days only."""
        if group.day > self._newest_day:
            self._newest_day = group.day
            self._groups = {
                known_group: known_values
                for known_group, known_values in self._groups.items()
                if known_group.day > group.day - _DAYS_REMEMBERED
            }
        if group.day <= self._newest_day - _DAYS_REMEMBERED:
            return _GroupValues()
        return self._groups.setdefault(group, _GroupValues())


def _place(
    sums: Mapping[SubjectKey, Sums], groups: Mapping[SubjectGroup, _GroupValues]
) -> list[tuple[Any, ...]] | None:
    """Return ``sums`` as rows to be added to the stored ones; None if a value is undecided.

    Names of tags beyond the bound are left out. Other values beyond it are summed as ``OTHER_VALUES``.
    """
    placed_sums: dict[SubjectKey, Sums] = {}
    for key, amounts in sums.items():
        if key.kind == "tag":
            names = groups.get(_find_name_group(key))
            is_summed = None if names is None else names.decide(key.name)
            if is_summed is None:
                return None
            if not is_summed:
                continue
        group = groups.get(key.group)
        has_own = None if group is None else group.decide(key.value)
        if has_own is None:
            return None
        own_key = key if has_own else key._replace(value=OTHER_VALUES)
        placed_sums[own_key] = add_sums(placed_sums[own_key], amounts) if own_key in placed_sums else amounts
    return [(*key, *placed_sums[key]) for key in sorted(placed_sums)]


def _find_name_group(key: SubjectKey) -> SubjectGroup:
    return SubjectGroup("tag", "", key.day)


async def _find_values(
    connection: AsyncConnection, group: SubjectGroup, values: Sequence[str] | None, *, is_names: bool
) -> set[str]:
    """Return those of ``values`` (None: of all) that have sums of their own.

    With ``is_names``, the values are names of tags.
    """
    query: Select[tuple[str]] = select(_USAGE.value).where(*_is_group(subject_usage, group)).distinct()
    column = _USAGE.value
    if is_names:
        query = select(_COUNTS.name).where(_COUNTS.kind == group.kind, _COUNTS.day == group.day)
        column = _COUNTS.name
    if values is None:
        return set(await connection.scalars(query.where(column != "")))
    stored_values: set[str] = set()
    for start in range(0, len(values), _VALUES_PER_STATEMENT):
        some_values = values[start : start + _VALUES_PER_STATEMENT]
        stored_values.update(await connection.scalars(query.where(column.in_(some_values))))
    return stored_values


def _is_group(table: Table, group: SubjectGroup) -> Collection[Any]:
    return [table.c[name] == value for name, value in group._asdict().items()]
