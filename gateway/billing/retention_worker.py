"""Deletes old request rows, sums and budgets of sessions in small steps, because other writers have to wait."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from gateway.billing.write_queue import WriteQueue
from gateway.domain.traffic import HOUR_MS
from gateway.errors import StoreUnavailable
from gateway.storage.retention import RetentionBatch, RetentionRepository

RETIRE_INTERVAL_S = 3_600.0
PAUSE_S = 0.1
"""The pause between two commits, for other writers."""
MAX_ROWS = 500
"""The maximum number of rows per commit, which then takes about 15 ms."""
RETENTION_HOURS = 400 * 24
SESSION_DAYS = 30
"""How long the budget of a session without stored requests is kept if requests are kept forever. Requests that such a
session has refused are not kept longer either: the budget would be kept with them."""
_DAY_MS = 86_400_000

log = structlog.stdlib.get_logger(__name__)


class RetentionWorker:
    """Deletes old rows regularly.

    Args:
        write_queue: rows that are not stored yet. No request is deleted while it fails: a row whose commit was not
            confirmed is written again, and that write must find the stored row.
        keep_days: returns how long requests are kept; 0: forever, except those that sessions have refused.
        retire_limits: deletes sums of limits that are old at a time in Unix seconds; returns their number.
        retire_sessions: deletes budgets of sessions without requests that were set before a time in Unix milliseconds,
            and their sums; returns the number of rows.
        clock: if the newest record is older than this time, age is counted from that record.
    """

    def __init__(
        self,
        retirement: RetentionRepository,
        write_queue: WriteQueue,
        keep_days: Callable[[], int],
        clock: Callable[[], float],
        *,
        pause_s: float = PAUSE_S,
        retire_limits: Callable[[float], Awaitable[int]] | None = None,
        retire_sessions: Callable[[int], Awaitable[int]] | None = None,
    ) -> None:
        self._retirement = retirement
        self._write_queue = write_queue
        self._keep_days = keep_days
        self._clock = clock
        self._pause_s = pause_s
        self._retire_limits = retire_limits
        self._retire_sessions = retire_sessions
        self._refused_until = 0

    async def run(self) -> None:
        while True:
            await self.retire()
            await asyncio.sleep(RETIRE_INTERVAL_S)

    async def retire(self) -> None:
        """Delete what is too old. If the database fails, the next run tries again."""
        now_ms, keep_days = int(self._clock() * 1000), self._keep_days()
        try:
            newest_ms = await self._retirement.find_newest_ms()
            now_ms = now_ms if newest_ms is None else min(now_ms, newest_ms)
            before_ms = now_ms - (keep_days or SESSION_DAYS) * _DAY_MS
            rows = await self._retire_requests(before_ms) if keep_days else await self._retire_refused(before_ms)
            rows += await self._retire_hours(now_ms // HOUR_MS - RETENTION_HOURS)
            if self._retire_limits is not None:
                rows += await self._retire_limits(now_ms / 1000)
            if self._retire_sessions is not None:
                rows += await self._retire_sessions(before_ms)
        except StoreUnavailable as error:
            log.warning("requests_not_retired", error=error.message)
            return
        if rows:
            log.info("requests_retired", rows=rows)

    async def _retire_requests(self, before_ms: int) -> int:
        """Delete rows from the oldest on, until the next is too new. Rows are stored in the order of settlement."""
        retired_rows, _ = await self._retire_rows(self._retirement.retire_requests, before_ms, 0)
        return retired_rows

    async def _retire_refused(self, before_ms: int) -> int:
        """Delete requests settled before ``before_ms`` that sessions have refused, from where the last run stopped."""
        retired_rows, self._refused_until = await self._retire_rows(
            self._retirement.retire_refused, before_ms, self._refused_until
        )
        return retired_rows

    async def _retire_rows(
        self, retire: Callable[[int, int, int], Awaitable[RetentionBatch]], before_ms: int, after_sequence: int
    ) -> tuple[int, int]:
        """Delete old rows in steps. Return the number of deleted rows, and the last sequence that was checked."""
        retired_rows, is_done = 0, False
        while not is_done and not self._write_queue.failing:
            batch = await retire(before_ms, after_sequence, MAX_ROWS)
            retired_rows, after_sequence, is_done = retired_rows + batch.retired, batch.last, batch.ended
            await asyncio.sleep(self._pause_s)
        return retired_rows, after_sequence

    async def _retire_hours(self, before_hour: int) -> int:
        retired_rows = 0
        while deleted_rows := await self._retirement.retire_hours(before_hour):
            retired_rows += deleted_rows
            await asyncio.sleep(self._pause_s)
        return retired_rows
