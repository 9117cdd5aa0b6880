"""Deletes old requests and the sums of old hours from the database."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import takewhile
from typing import Any

from sqlalchemy import ColumnElement, Row, delete, exists, func, select

from gateway.errors import BudgetExceeded, SessionEnded
from gateway.frozen import frozen
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.bulk import BulkAddition
from gateway.storage.database import Database
from gateway.storage.schema import NOT_SUCCESSFUL, failure_hours, requests, retired, speed_hours, usage_hours, videos
from gateway.storage.startup_state import find_newest_ms

_ADD_RETIRED = BulkAddition(retired, ("requests", "cost_nanos"), highest_columns=("until_ms",))
CountLost = Callable[[AsyncConnection, Sequence[ColumnElement[bool]]], Awaitable[None]]
_SESSION_REFUSALS = (BudgetExceeded.code, SessionEnded.code)
_IS_JOB = exists().where(videos.c.request_id == requests.c.id)


@frozen
class RetentionBatch:
    """The result of one step.

    Attributes:
        retired: the number of deleted rows.
        last: the last sequence that was checked.
        ended: whether no later row is old enough.
    """

    retired: int
    last: int
    ended: bool


class RetentionRepository:
    """Deletes old rows in small commits, because other writes must not wait long.

    ``count_lost`` is called in a commit that deletes requests, with the conditions that select them.
    """

    def __init__(self, database: Database, count_lost: CountLost | None = None) -> None:
        self._database = database
        self._count_lost = count_lost

    async def find_newest_ms(self) -> int | None:
        return await find_newest_ms(self._database)

    async def retire_requests(self, before_ms: int, after_sequence: int, max_rows: int) -> RetentionBatch:
        """Look at ``max_rows`` rows after ``after_sequence``, and delete those that were settled before ``before_ms``.

        The same commit adds their costs to the totals of their keys. A request stays while its video job is stored: its
        webhook may be pending, and reconciliation compares the two.
        """
        query = (
            select(
                requests.c.sequence,
                requests.c.account_id,
                requests.c.key_id,
                requests.c.cost_nanos,
                requests.c.settled_ms,
                _IS_JOB.label("kept"),
            )
            .where(requests.c.sequence > after_sequence)
            .order_by(requests.c.sequence)
            .limit(max_rows)
        )

        async def work(connection: AsyncConnection) -> RetentionBatch:
            rows = (await connection.execute(query)).all()
            old_rows = [row for row in rows if row.settled_ms < before_ms]
            deleted_rows = [row for row in old_rows if not row.kept]
            if deleted_rows:
                await _ADD_RETIRED.run(connection, _sum_up(deleted_rows))
                is_in_range = requests.c.sequence.between(deleted_rows[0].sequence, deleted_rows[-1].sequence)
                is_deleted = (is_in_range, requests.c.settled_ms < before_ms, ~_IS_JOB)
                await self._delete(connection, is_deleted)
            return RetentionBatch(
                len(deleted_rows),
                rows[-1].sequence if rows else after_sequence,
                ended=not old_rows or len(rows) < max_rows,
            )

        return await self._database.write(work)

    async def _delete(self, connection: AsyncConnection, is_deleted: Sequence[ColumnElement[bool]]) -> None:
        if self._count_lost is not None:
            await self._count_lost(connection, is_deleted)
        await connection.execute(delete(requests).where(*is_deleted))

    async def retire_refused(self, before_ms: int, after_sequence: int, max_rows: int) -> RetentionBatch:
        """Look at ``max_rows`` failures after ``after_sequence``; delete old refusals by budgets and ended sessions.

        They cost nothing, so the totals of their keys do not change. ``last`` is the last old failure: none before it
        needs another look.
        """
        columns = requests.c
        rows = await self._database.read(
            select(columns.sequence, columns.settled_ms, columns.error_code, columns.cost_nanos, columns.attempts)
            .where(NOT_SUCCESSFUL, columns.sequence > after_sequence)
            .order_by(columns.sequence)
            .limit(max_rows)
        )
        old_rows = list(takewhile(lambda row: row.settled_ms < before_ms, rows))
        sequences = [
            row.sequence
            for row in old_rows
            if row.error_code in _SESSION_REFUSALS and not row.attempts and not row.cost_nanos
        ]
        if sequences:
            await self._database.write(partial(self._delete, is_deleted=(columns.sequence.in_(sequences),)))
        last = old_rows[-1].sequence if old_rows else after_sequence
        return RetentionBatch(len(sequences), last, ended=len(old_rows) < max_rows)

    async def retire_hours(self, before_hour: int) -> int:
        """Delete the hourly sums of the oldest hour before ``before_hour``; return the number of deleted sums.

        ``before_hour`` counts from 1970. The oldest hour is that of each table. Sums of days stay.
        """
        deleted = 0
        for table in (usage_hours, failure_hours, speed_hours):
            oldest_hour = select(func.min(table.c.hour)).where(table.c.span == 1).scalar_subquery()
            is_old = table.c.span == 1, table.c.hour == oldest_hour, table.c.hour < before_hour
            deleted += await self._database.change(delete(table).where(*is_old))
        return deleted


def _sum_up(rows: Iterable[Row[Any]]) -> list[tuple[int, ...]]:
    sums: dict[tuple[int, int], tuple[int, int, int]] = {}
    for row in rows:
        request_count, cost_nanos, until_ms = sums.get((row.account_id, row.key_id), (0, 0, 0))
        sums[row.account_id, row.key_id] = request_count + 1, cost_nanos + row.cost_nanos, max(until_ms, row.settled_ms)
    return [(*owner, *sums[owner]) for owner in sorted(sums)]
