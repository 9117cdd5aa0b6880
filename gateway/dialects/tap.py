"""A tap keeps references to the beginning and the end of what flows past, so that it is read once, at the end."""

from collections import deque

HEAD_BYTES = 4 * 1024
TAIL_BYTES = 16 * 1024


class Tap:
    """The first 4 KB and the last 16 KB of a stream, in whole pieces; ``size`` counts every byte."""

    __slots__ = ("_head", "_kept", "_tail", "size")

    def __init__(self) -> None:
        self._head: list[bytes] = []
        self._tail: deque[bytes] = deque()
        self._kept = 0
        self.size = 0

    def feed(self, data: bytes) -> None:
        """Let ``data`` flow past."""
        if self.size < HEAD_BYTES:
            self._head.append(data)
        self.size += len(data)
        tail = self._tail
        tail.append(data)
        kept = self._kept + len(data)
        while kept - len(tail[0]) >= TAIL_BYTES:
            kept -= len(tail.popleft())
        self._kept = kept

    @property
    def head(self) -> bytes:
        """The beginning."""
        return b"".join(self._head)

    @property
    def tail(self) -> bytes:
        """The end; it overlaps the beginning where the whole is short."""
        return b"".join(self._tail)

    @property
    def whole(self) -> bool:
        """Whether ``tail`` is everything that flowed past."""
        return self._kept == self.size
