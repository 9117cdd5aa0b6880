"""Bounds the memory of large answers that are read at the same time.

Once their total reaches ``MAX_TOTAL_BYTES``, only the oldest is read further. The others pause, and their providers
wait.
"""

import asyncio
from types import TracebackType
from typing import Self

LARGE_BYTES = 1024 * 1024
"""A smaller answer is not counted."""
MAX_TOTAL_BYTES = 64 * 1024 * 1024


class ReadingShare:
    """The bytes of one answer or event in memory. A context manager: the bytes count until its block ends."""

    __slots__ = ("_answers", "_size", "_waiter")

    def __init__(self, answers: "LargeAnswers") -> None:
        self._answers = answers
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        self.resize(0)

    def resize(self, size: int) -> bool:
        """Set the counted bytes to ``size``. Return whether more may be read."""
        added_bytes, self._size = size - self._size, size
        if not size:
            self._answers.remove(self, -added_bytes)
            return True
        return self._answers.add(self, added_bytes)

    async def wait(self) -> None:
        while not self._answers.add(self, 0):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class LargeAnswers:
    """Counts the large answers being read, at most ``max_bytes`` together; only the oldest answer may exceed this."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held_bytes = 0
        self._shares: dict[ReadingShare, None] = {}

    def open_share(self) -> ReadingShare:
        return ReadingShare(self)

    def add(self, share: ReadingShare, size: int) -> bool:
        self._held_bytes += size
        self._shares.setdefault(share)
        return self._held_bytes <= self._max_bytes or next(iter(self._shares)) is share

    def remove(self, share: ReadingShare, size: int) -> None:
        self._held_bytes -= size
        if self._shares.pop(share, share) is None:
            for waiting_share in self._shares:
                waiting_share.wake()


READING = LargeAnswers(MAX_TOTAL_BYTES)
"""One counter per process, because memory is a resource of the process."""
