"""Sees how late the event loop comes to what is due: what keeps it busy for long keeps everybody waiting."""

import asyncio
import time
from collections.abc import Callable

from gateway.monitoring import LAG_EVERY_S, EventLoopLag


class LoopLagMeter:
    """The job.

    Args:
        lag: told of every sample.
        clock: seconds of a monotonic clock. Not the loop's own: uvloop's stands still while a callback runs.
    """

    def __init__(self, lag: EventLoopLag, clock: Callable[[], float] = time.monotonic) -> None:
        self._lag = lag
        self._clock = clock

    async def run(self) -> None:
        """Sleep for half a second and see for how long that was, for ever."""
        while True:
            due = self._clock() + LAG_EVERY_S
            await asyncio.sleep(LAG_EVERY_S)
            self._lag.note(self._clock() - due)
