"""Limits the number of concurrent lines of all batches. Waiting batches take turns."""

import asyncio
from collections import deque
from collections.abc import Callable


class LineSlots:
    """The slots. ``limit``: returns their current number."""

    def __init__(self, limit: Callable[[], int]) -> None:
        self.limit = limit
        self._used = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def acquire(self, stop: asyncio.Event) -> bool:
        """Take a slot. Return False if ``stop`` is set before a slot is free."""
        if not self._waiting and self._used < self.limit():
            self._used += 1
            return True
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({turn, stopping}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if turn.done():
                self.release()
            raise
        finally:
            stopping.cancel()
            if not turn.done():
                self._waiting.remove(turn)
        return turn.done()

    def release(self) -> None:
        self._used -= 1
        while self._waiting and self._used < self.limit():
            self._used += 1
            self._waiting.popleft().set_result(None)


class Slot:
    """The slot of one line. A line releases its slot while it waits for something else."""

    def __init__(self, slots: LineSlots) -> None:
        self._slots = slots
        self._held = False

    async def acquire(self, stop: asyncio.Event) -> bool:
        self._held = await self._slots.acquire(stop)
        return self._held

    def release(self) -> None:
        if self._held:
            self._held = False
            self._slots.release()
