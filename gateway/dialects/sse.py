"""Server-Sent Events as bytes: where an event ends, and what its data is (WHATWG HTML, 9.2.6).

Lines may end in LF, CR or CRLF; a blank line ends an event. Nothing here decodes text: an event travels as it lies.
"""

import re

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""The longest event kept waiting for its end. A picture inside a chat delta is a few MB; an endless line is a fault."""

# A blank line after a line's end. In a stream of CRLF a CR that is the last byte so far waits for its LF: the end of
# an event is then the same wherever the bytes were cut.
_EVENT_END = re.compile(rb"\r\n(?:\r\n|\n|\r(?=[^\n]))|(?:(?<!\r)\n|\r(?!\n))(?:\r\n|\n|\r)")
_LINE_END = re.compile(rb"\r\n|\n|\r")
_LOOK_BACK = 3  # the longest event end, four bytes, less one
BOM = b"\xef\xbb\xbf"
KEEPALIVE = b": keepalive\n\n"
"""A comment: every client library skips it, and no event without data, which breaks some of them."""


class EventTooLong(Exception):  # noqa: N818 - says what happened
    """An event did not end within the splitter's ``LIMIT``."""


class EventSplitter:
    """Pieces of a stream in, whole events out; what they hold together is byte for byte what came in.

    Attributes:
        waiting: an event has begun and not ended.
    """

    __slots__ = ("_pieces", "_size", "_tail", "waiting")

    LIMIT = MAX_EVENT_BYTES

    def __init__(self) -> None:
        self.waiting = False
        self._pieces: list[bytes] = []
        self._size = 0
        self._tail = b""  # the last bytes of what waits, in which an event end may have begun

    def split(self, data: bytes) -> list[bytes]:
        """The events that ``data`` completes, each with its terminator. Raises ``EventTooLong``."""
        if self._pieces and _EVENT_END.search(self._tail + data) is None:
            self._keep(data)
            return []
        if self._pieces:
            data = self.take() + data
        events: list[bytes] = []
        start = 0
        for end in _EVENT_END.finditer(data):
            events.append(data[start : end.end()])
            start = end.end()
        if start < len(data):
            self._keep(data[start:])
        return events

    def take(self) -> bytes:
        """What waits without an end; nothing waits afterwards."""
        rest = b"".join(self._pieces)
        self.waiting = False
        self._pieces.clear()
        self._size = 0
        self._tail = b""
        return rest

    def _keep(self, data: bytes) -> None:
        self.waiting = True
        self._pieces.append(data)
        self._size += len(data)
        self._tail = (self._tail + data)[-_LOOK_BACK:]
        if self._size > self.LIMIT:
            raise EventTooLong


def read_data(event: bytes) -> bytes | None:
    """The data of one event: its ``data`` lines joined by LF, or None where it has none (a comment, a bare name)."""
    if event.startswith(b"data: ") and event.endswith(b"\n\n") and event.count(b"\n") == 2 and b"\r" not in event:  # noqa: PLR2004
        return event[6:-2]
    found = []
    for line in _LINE_END.split(event):
        name, _, value = line.partition(b":")
        if name == b"data":
            found.append(value.removeprefix(b" "))
    return b"\n".join(found) if found else None
