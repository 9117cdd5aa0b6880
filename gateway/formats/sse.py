"""Server-Sent Events as bytes: where an event ends, and what its data is (WHATWG HTML, 9.2.6).

Lines may end in LF, CR or CRLF; a blank line ends an event. An event travels as it lies, undecoded. It is at most
16 MiB long, and at most 256 KiB may come between two events that have data.
"""

import re

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""The longest event. An image inside a chat delta is a few MB; a line without end is the provider's fault."""
MAX_NOISE_BYTES = 256 * 1024
"""What a provider may send between two events that have data: line ends, comments, names, empty data. A comment of 24
bytes each second fits in for three hours."""
_LARGE_BYTES = 256 * 1024
MAX_LINES = 10_000
MAX_CONTAINERS = 100_000
MAX_VALUES = 1_000_000
"""Of an event over ``_LARGE_BYTES``: its lines; its objects and arrays; its commas, those in strings too. Images are
long strings: whatever has more would hold the event loop for longer than other streams may wait."""

# A blank line after a line's end. In a stream of CRLF a CR that is the last byte so far waits for its LF: the end of
# an event is then the same wherever the bytes were cut.
_EVENT_END = re.compile(rb"\r\n(?:\r\n|\n|\r(?=[^\n]))|(?:(?<!\r)\n|\r(?!\n))(?:\r\n|\n|\r)")
_END = b"\n\n"
_CR = 13
_LOOK_BACK = 3  # the longest event end, four bytes, less one
BOM = b"\xef\xbb\xbf"
KEEPALIVE = b": keepalive\n\n"
"""A comment: every client library skips it, and no event without data, which breaks some of them."""


class EventTooLong(Exception):
    """An event has not ended within the splitter's limit, or has more parts than any event needs."""


class SseSplitter:
    """Pieces of a stream in, whole events out; what they hold together is byte for byte what came in.

    Each byte is looked at once, however long an event grows and in however many pieces it comes.

    Args:
        limit: bytes of the longest event.

    Attributes:
        waiting: an event has begun and not ended.
        noise: bytes of events without data so far; whoever reads the events counts them.
    """

    __slots__ = ("_commas", "_containers", "_held", "_lf_only", "_limit", "_lines", "noise", "waiting")

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        self.waiting = False
        self.noise = 0
        self._limit = limit
        self._lf_only = True  # so far no line ended otherwise
        self._held = bytearray()
        self._lines = self._containers = self._commas = 0

    @property
    def held_bytes(self) -> int:
        """Of an event that has not ended."""
        return len(self._held)

    def split(self, data: bytes) -> list[bytes]:
        """The events that ``data`` completes, each with its terminator. Raises ``EventTooLong``."""
        # The usual piece is one event, whose lines end in LF.
        if data.endswith(_END) and data.find(_END, 0, -1) < 0 and _CR not in data and not self.waiting:
            return [data]
        if _CR in data:
            self._lf_only = False
        look = 0
        if self.waiting:
            look = self._hold(data)
            if look < 0:
                return []
            data = self.take()
        events: list[bytes] = []
        start = 0
        if self._lf_only:
            while (end := data.find(_END, look) + 2) > 1:
                events.append(data[start:end])
                start = look = end
        else:
            for found in _EVENT_END.finditer(data, look):
                events.append(data[start : found.end()])
                start = found.end()
        if start < len(data):
            self._hold(data[start:])
        return events

    def take(self) -> bytes:
        """What waits without an end; nothing waits afterwards."""
        held, self._held = bytes(self._held), bytearray()
        self.waiting = False
        self._lines = self._containers = self._commas = 0
        return held

    def _hold(self, data: bytes) -> int:
        """Add to what waits. Returns from where its end is to be looked for; -1 if it has not ended."""
        held = self._held
        look = max(0, len(held) - _LOOK_BACK)
        held += data
        self.waiting = True
        if len(held) > _LARGE_BYTES:
            self._count(data)
        if (
            held.find(_END, look) >= 0
            if self._lf_only
            else _has_line_end(held[look:]) and _EVENT_END.search(held, look)
        ):
            return look
        if len(held) > self._limit:
            raise EventTooLong("The provider sent an event without an end")
        return -1

    def _count(self, data: bytes) -> None:
        """Count the parts of an event that has grown large."""
        self._lines += data.count(b"\n") + data.count(b"\r")
        self._containers += data.count(b"{") + data.count(b"[")
        self._commas += data.count(b",")
        if self._lines > MAX_LINES or self._containers > MAX_CONTAINERS or self._commas > MAX_VALUES:
            raise EventTooLong("The provider sent an event of too many parts")


def _has_line_end(data: bytes | bytearray) -> bool:
    return b"\n" in data or b"\r" in data


def is_utf8(data: bytes) -> bool:
    """Whether ``data`` is UTF-8, which all of an event stream is (WHATWG HTML, 9.2.4)."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def parse_data(event: bytes) -> bytes | None:
    """The data of one event: its ``data`` lines joined by LF, or None where it has none (a comment, a bare name)."""
    if event.startswith(b"data: ") and event.endswith(b"\n\n") and event.count(b"\n") == 2 and b"\r" not in event:  # noqa: PLR2004
        return event[6:-2]
    if event.startswith(b"data: ") and event.endswith(b"\r\n\r\n") and event.count(b"\n") == event.count(b"\r") == 2:  # noqa: PLR2004
        return event[6:-4]
    if b"data" not in event:
        return None
    found = []
    if b"\r" in event:
        event = event.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    for line in event.split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"data":
            found.append(value.removeprefix(b" "))
    return b"\n".join(found) if found else None
