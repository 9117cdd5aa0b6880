"""Sums what charts show of stored requests, in small steps, because other writers wait for each step."""

import asyncio
from collections.abc import Callable

import structlog

from gateway.errors import StoreUnavailable
from gateway.server.context import Services
from gateway.storage.speed import SpeedRepository
from gateway.storage.usage_splits import SplitRepository

INTERVAL_S = 60.0
PAUSE_S = 0.2
"""The pause between two commits, for other writers."""

log = structlog.stdlib.get_logger(__name__)


class SpeedWorker:
    """Sums new rows regularly; then days that have ended, and rows that were stored before the first run.

    Of these days and rows the newest are summed first. Days and rows do not wait for each other: if the sums of one
    fail, those of the other go on.
    """

    def __init__(
        self,
        speed: SpeedRepository,
        splits: SplitRepository,
        clock: Callable[[], float],
        *,
        interval_s: float = INTERVAL_S,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._speed = speed
        self._splits = splits
        self._clock = clock
        self._interval_s = interval_s
        self._pause_s = pause_s

    async def run(self) -> None:
        while True:
            await self.sum_rows()
            await asyncio.sleep(self._interval_s)

    async def sum_rows(self) -> None:
        """Sum all rows that are not summed yet. If the database does not answer, the next run goes on."""
        steps = [self._sum_days, self._sum_speed]
        has_more = True
        while has_more:
            has_more = False
            for step in tuple(steps):
                try:
                    has_more |= await step()
                except StoreUnavailable as error:
                    log.warning("speed_not_summed", error=error.message)
                    steps.remove(step)
            await asyncio.sleep(self._pause_s)

    async def _sum_days(self) -> bool:
        return await self._splits.look_at_new_rows() or await self._splits.add_day(self._clock())

    async def _sum_speed(self) -> bool:
        return await self._speed.add_new_rows() or await self._speed.add_old_rows()


async def run_speed_worker(services: Services) -> None:
    """Sum what charts show until the gateway stops."""
    database = services.storage.database
    await SpeedWorker(SpeedRepository(database), SplitRepository(database), services.clock).run()
