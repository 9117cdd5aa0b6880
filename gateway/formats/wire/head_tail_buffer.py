"""A buffer that keeps references to the first and the last pieces of a stream, to be parsed once at the end."""

HEAD_BYTES = 4 * 1024
TAIL_BYTES = 16 * 1024
SLACK_BYTES = 2 * 1024
"""Bytes kept beyond the tail before trimming, to avoid a trim for every piece."""
_FULL_BYTES = TAIL_BYTES + SLACK_BYTES


class HeadTailBuffer:
    """Keeps at least the first 4 KiB and the last 16 KiB of a stream, in whole pieces.

    ``pieces``: the tail and up to ``SLACK_BYTES`` before it. ``room``: bytes that fit before the next trim.
    """

    __slots__ = ("_gone", "_head", "_head_room", "pieces", "room")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.room = _FULL_BYTES
        self._head: list[bytes] = []
        self._head_room = HEAD_BYTES
        self._gone = 0

    def feed(self, data: bytes) -> None:
        self.pieces.append(data)
        self.room -= len(data)
        if self.room < 0:
            self.trim()

    def trim(self) -> None:
        pieces, count, excess = self.pieces, 0, SLACK_BYTES - self.room
        for piece in pieces:
            if len(piece) > excess:
                break
            excess -= len(piece)
            count += 1
            if self._head_room > 0:
                self._head.append(piece)
                self._head_room -= len(piece)
        del pieces[:count]
        gone = SLACK_BYTES - self.room - excess
        self._gone += gone
        self.room += gone

    @property
    def size(self) -> int:
        return self._gone + _FULL_BYTES - self.room

    @property
    def head(self) -> bytes:
        found, room = list(self._head), self._head_room
        for piece in self.pieces:
            if room <= 0:
                break
            found.append(piece)
            room -= len(piece)
        return b"".join(found)

    @property
    def tail(self) -> bytes:
        self.trim()
        return b"".join(self.pieces)

    @property
    def whole(self) -> bool:
        self.trim()
        return not self._gone
