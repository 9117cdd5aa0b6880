"""What the subjects of limits have spent: sums by window or slice, written in the commit of the rows they count."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Row, delete, func, select, text

from gateway.domain.ledger import CounterDifference
from gateway.domain.limit import LimitCharge, parse_charges
from gateway.domain.request_log import RequestRecord
from gateway.frozen import frozen
from gateway.storage.bulk import BulkAddition
from gateway.storage.database import Database
from gateway.storage.schema import limit_counters, orphan_charges, requests, retired

SUBJECTS_PER_STATEMENT = 500
"""Subjects per statement, because databases limit the number of values in one."""
_ROWS_PER_STEP = 5_000

ADD_SPENT = BulkAddition(limit_counters, ("spent_nanos",))
ADD_ORPHANS = BulkAddition(orphan_charges, ("spent_nanos",))


def list_additions(rows: Iterable[RequestRecord], sign: int = 1) -> list[tuple[Any, ...]]:
    """Return what ``ADD_SPENT`` inserts to count the costs of ``rows``; with the sign -1, to reverse that."""
    # All writers use the same order, so that no two of them deadlock in PostgreSQL.
    return [(*charge, sign * nanos) for charge, nanos in sorted(sum_charges(rows).items())]


def sum_charges(rows: Iterable[RequestRecord]) -> dict[LimitCharge, int]:
    """Return the sums of the costs of ``rows``, in nano-USD, by counter, subject and window or slice."""
    sums: defaultdict[LimitCharge, int] = defaultdict(int)
    for row in rows:
        if row.limit_charges and row.cost_nanos:
            for charge in parse_charges(row.limit_charges):
                sums[charge] += row.cost_nanos
    return sums


@frozen
class CountedRows:
    """What the stored requests have spent, in nano-USD, by counter, subject and window or slice.

    ``is_partial`` says that requests were deleted. ``oldest_ms`` is then the time at which the oldest remaining request
    was settled, in Unix milliseconds: sums of windows that began earlier are too low.
    """

    spent: Mapping[LimitCharge, int]
    is_partial: bool
    oldest_ms: int


@frozen
class SubjectChoice:
    """The subjects that are asked for: those of ``subjects`` (None: all) that match ``pattern`` (empty: any).

    ``pattern`` is one of SQL's LIKE, without regard to case.
    """

    subjects: Sequence[str] | None = None
    pattern: str = ""


ALL_SUBJECTS = SubjectChoice()

WRONG_COUNTERS = text("""
WITH charged AS (
  SELECT counter, subject, start_s, sum(nanos)::bigint AS nanos FROM (
    SELECT c.charge ->> 0 AS counter, c.charge ->> 1 AS subject, (c.charge ->> 2)::bigint AS start_s,
      r.cost_nanos AS nanos
    FROM requests r CROSS JOIN LATERAL jsonb_array_elements(nullif(r.limit_charges, '')::jsonb) AS c(charge)
    WHERE r.limit_charges <> '' AND r.cost_nanos > 0
    UNION ALL SELECT counter, subject, start_s, spent_nanos FROM orphan_charges) charges GROUP BY 1, 2, 3)
SELECT counter, subject, start_s, coalesce(l.spent_nanos, 0) AS counted, coalesce(c.nanos, 0) AS charged,
  (SELECT coalesce(min(settled_ms), 0) FROM requests) AS oldest_ms, EXISTS (SELECT 1 FROM retired) AS is_partial
FROM limit_counters l FULL JOIN charged c USING (counter, subject, start_s)
WHERE coalesce(l.spent_nanos, 0) <> coalesce(c.nanos, 0) ORDER BY 1, 2, 3
""")
"""The sums that differ from the stored requests, in PostgreSQL: ``parse_wrong_counters`` reads the rows."""


def parse_wrong_counters(rows: Iterable[Row[Any]]) -> list[CounterDifference]:
    """Return the differences in the rows of ``WRONG_COUNTERS``, without those that deleted requests explain."""
    return [
        CounterDifference(row.counter, row.subject, int(row.start_s), int(row.counted), int(row.charged))
        for row in rows
        if not row.is_partial or row.start_s * 1000 >= row.oldest_ms
    ]


class LimitCounters:
    """The ``limit_counters`` table. All sums are in nano-USD."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_spent(self, counter: str, subjects: Sequence[str], since_s: int) -> dict[str, dict[int, int]]:
        """Return what ``subjects`` have spent, in nano-USD, by the starts of windows or slices from ``since_s`` on."""
        spent: dict[str, dict[int, int]] = {}
        table = limit_counters.c
        for first in range(0, len(subjects), SUBJECTS_PER_STATEMENT):
            statement = select(table.subject, table.start_s, table.spent_nanos).where(
                table.counter == counter,
                table.subject.in_(subjects[first : first + SUBJECTS_PER_STATEMENT]),
                table.start_s >= since_s,
            )
            for row in await self._database.read(statement):
                spent.setdefault(row.subject, {})[int(row.start_s)] = int(row.spent_nanos)
        return spent

    async def list_highest(
        self, counter: str, since_s: int, count: int, choice: SubjectChoice = ALL_SUBJECTS, *, offset: int = 0
    ) -> dict[str, int]:
        """Return the spending, in nano-USD, of the ``count`` chosen subjects that have spent most, highest first.

        Only windows and slices that began at or after ``since_s`` count. ``offset``: how many of the first subjects
        are left out.
        """
        table = limit_counters.c
        conditions = [] if choice.subjects is None else [table.subject.in_(choice.subjects)]
        if choice.pattern:
            conditions.append(table.subject.ilike(choice.pattern, escape="\\"))
        spent = func.sum(table.spent_nanos)
        statement = (
            select(table.subject, spent.label("spent"))
            .where(table.counter == counter, table.start_s >= since_s, *conditions)
            .group_by(table.subject)
            .order_by(spent.desc(), table.subject)
            .limit(count)
            .offset(offset)
        )
        return {row.subject: int(row.spent) for row in await self._database.read_long(statement)}

    async def delete_before(self, counter: str, before_s: int) -> int:
        """Delete the sums of a counter's windows or slices that began before ``before_s``; return their number.

        Charges for dead nodes in these windows are deleted, too, and not counted. Sums of windows without an end stay:
        their start is 0.
        """
        orphans, sums = [
            delete(table).where(table.c.counter == counter, table.c.start_s.between(1, before_s - 1))
            for table in (orphan_charges, limit_counters)
        ]
        await self._database.change(orphans)
        return await self._database.change(sums)

    async def list_counters(self) -> list[str]:
        """Return the names of all counters with sums."""
        return [row.counter for row in await self._database.read(select(limit_counters.c.counter).distinct())]

    async def list_all(self) -> dict[LimitCharge, int]:
        """Return all sums by counter, subject and start of the window or slice."""
        return {
            (row.counter, row.subject, int(row.start_s)): int(row.spent_nanos)
            for row in await self._database.read_long(select(limit_counters))
        }

    async def recompute(self) -> "CountedRows":
        """Return the sums according to the stored requests, and to what was charged for dead nodes."""
        sums: defaultdict[LimitCharge, int] = defaultdict(int)
        table, after = requests.c, 0
        ((oldest_ms,),) = await self._database.read_long(select(func.min(table.settled_ms)))
        is_partial = bool(await self._database.read(select(retired.c.key_id).limit(1)))
        for row in await self._database.read_long(select(orphan_charges)):
            sums[row.counter, row.subject, int(row.start_s)] += int(row.spent_nanos)
        while True:
            statement = (
                select(table.sequence, table.limit_charges, table.cost_nanos)
                .where(table.sequence > after, table.limit_charges != "", table.cost_nanos > 0)
                .order_by(table.sequence)
                .limit(_ROWS_PER_STEP)
            )
            rows = list(await self._database.read_long(statement))
            for row in rows:
                for charge in parse_charges(row.limit_charges):
                    sums[charge] += int(row.cost_nanos)
            if len(rows) < _ROWS_PER_STEP:
                return CountedRows(sums, is_partial, int(oldest_ms or 0))
            after = rows[-1].sequence
