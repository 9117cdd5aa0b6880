"""Limits the number of concurrent lines of all batches. Waiting batches take turns."""

import asyncio
from collections import deque
from collections.abc import Callable


class LineSlots:
    """Slots for the lines of all batches. Waiting lines get slots in the order in which they asked.

    Attributes:
        limit: returns the current number of slots.
    """

    def __init__(self, limit: Callable[[], int]) -> None:
        self.limit = limit
        self._used_slots = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def acquire(self, stop: asyncio.Event) -> bool:
        """Take a slot. Return False if ``stop`` is set before a slot is free."""
        if not self._waiters and self._used_slots < self.limit():
            self._used_slots += 1
            return True
        turn = asyncio.get_running_loop().create_future()
        self._waiters.append(turn)
        stop_task = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({turn, stop_task}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if turn.done():
                self.release()
            raise
        finally:
            stop_task.cancel()
            if not turn.done():
                self._waiters.remove(turn)
        return turn.done()

    def release(self) -> None:
        self._used_slots -= 1
        while self._waiters and self._used_slots < self.limit():
            self._used_slots += 1
            self._waiters.popleft().set_result(None)


class Slot:
    """The slot of one line. A line releases its slot while it waits for something else."""

    def __init__(self, slots: LineSlots) -> None:
        self._slots = slots
        self._is_acquired = False

    async def acquire(self, stop: asyncio.Event) -> bool:
        self._is_acquired = await self._slots.acquire(stop)
        return self._is_acquired

    def release(self) -> None:
        if self._is_acquired:
            self._is_acquired = False
            self._slots.release()
