"""Deletes request rows that are too old, and hours of traffic that are; a little at a time, for others write too."""

import asyncio
from collections.abc import Callable

import structlog

from gateway.billing.write_queue import WriteQueue
from gateway.domain.traffic import HOUR_MS
from gateway.errors import StoreUnavailable
from gateway.storage.retention import RetentionRepository

FIRST_AFTER_S = 60.0
RETIRE_EVERY_S = 3_600.0
REST_S = 0.1
"""Between two commits: whoever else writes goes first."""
MOST = 500
"""Rows that are looked at in one commit, which then takes some 15 ms."""
HOURS_KEPT = 400 * 24
_DAY_MS = 86_400_000

log = structlog.stdlib.get_logger(__name__)


class RetentionWorker:
    """The job.

    Args:
        retirement: where rows and sums live.
        outbox: rows on their way there. While it fails nothing is retired: a row whose commit has come to nobody's
            knowledge is stored again, and must be found.
        keep_days: how long rows are kept, asked anew each time; 0: for ever.
        clock: Unix seconds. If the newest record is older, age is counted from that.
        rest_s: between two commits.
    """

    def __init__(
        self,
        retirement: RetentionRepository,
        outbox: WriteQueue,
        keep_days: Callable[[], int],
        clock: Callable[[], float],
        *,
        provider_retry_after_s: float = REST_S,
    ) -> None:
        self._retirement = retirement
        self._outbox = outbox
        self._keep_days = keep_days
        self._clock = clock
        self._rest_s = provider_retry_after_s

    async def run(self) -> None:
        """Retire soon after the start, and then regularly, for ever."""
        await asyncio.sleep(FIRST_AFTER_S)
        while True:
            await self.retire()
            await asyncio.sleep(RETIRE_EVERY_S)

    async def retire(self) -> None:
        """Retire once. A store that fails is asked the next time."""
        now_ms, keep_days = int(self._clock() * 1000), self._keep_days()
        try:
            newest_ms = await self._retirement.find_newest_ms()
            now_ms = now_ms if newest_ms is None else min(now_ms, newest_ms)
            rows = await self._retire_requests(now_ms - keep_days * _DAY_MS) if keep_days else 0
            rows += await self._retire_hours(now_ms // HOUR_MS - HOURS_KEPT)
        except StoreUnavailable as fault:
            log.warning("requests_not_retired", error=fault.message)
            return
        if rows:
            log.info("requests_retired", rows=rows)

    async def _retire_requests(self, before_ms: int) -> int:
        """From the oldest row on, until there are none that are old enough: rows are stored as they are settled."""
        retired, after, ended = 0, 0, False
        while not ended and not self._outbox.failing:
            step = await self._retirement.retire_requests(before_ms, after, MOST)
            retired, after, ended = retired + step.retired, step.last, step.ended
            await asyncio.sleep(self._rest_s)
        return retired

    async def _retire_hours(self, before: int) -> int:
        retired = 0
        while gone := await self._retirement.retire_hours(before):
            retired += gone
            await asyncio.sleep(self._rest_s)
        return retired
