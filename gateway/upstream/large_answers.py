"""Bounds the memory of large answers that are read at the same time.

Once their total reaches ``MOST_BYTES``, only the oldest is read further. The others pause, and so do their providers.
"""

import asyncio
from types import TracebackType
from typing import Self

LARGE_BYTES = 1024 * 1024
"""A smaller answer is not counted."""
MOST_BYTES = 64 * 1024 * 1024


class ReadingShare:
    """The bytes of one answer or event in memory. A context manager: the bytes count until its block ends."""

    __slots__ = ("_size", "_waiting", "_whole")

    def __init__(self, whole: "LargeAnswers") -> None:
        self._whole = whole
        self._size = 0
        self._waiting: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        self.resize(0)

    def resize(self, size: int) -> bool:
        """Set the counted bytes to ``size``. Return whether more may be read."""
        added, self._size = size - self._size, size
        if not size:
            self._whole.remove(self, -added)
            return True
        return self._whole.add(self, added)

    async def wait(self) -> None:
        while not self._whole.add(self, 0):
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting

    def wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class LargeAnswers:
    """Counts the large answers being read, at most ``most`` bytes together; only the oldest may exceed this."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._shares: dict[ReadingShare, None] = {}

    def open_share(self) -> ReadingShare:
        return ReadingShare(self)

    def add(self, share: ReadingShare, size: int) -> bool:
        self._held += size
        self._shares.setdefault(share)
        return self._held <= self._most or next(iter(self._shares)) is share

    def remove(self, share: ReadingShare, size: int) -> None:
        self._held -= size
        if self._shares.pop(share, share) is None:
            for other in self._shares:
                other.wake()


READING = LargeAnswers(MOST_BYTES)
"""One counter per process, because memory is a resource of the process."""
