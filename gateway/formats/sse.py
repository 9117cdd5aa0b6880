"""Server-sent events as bytes: where an event ends, and what its data is (WHATWG HTML, 9.2.6).

Lines may end in LF, CR or CRLF; a blank line ends an event. Events are forwarded unchanged, undecoded. An event has at
most 16 MiB.
"""

import re

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""The longest event. An image inside a chat delta has a few MB; a longer line is the provider's error."""
MAX_NOISE_BYTES = 256 * 1024
"""Bytes that a provider may send between two events with data: line ends, comments, names, empty data. Enough for a
comment of 24 bytes each second for three hours.
"""
_LARGE_BYTES = 256 * 1024
MAX_LINES = 10_000
MAX_CONTAINERS = 100_000
MAX_VALUES = 1_000_000
"""Limits for an event over ``_LARGE_BYTES``: lines; objects and arrays; commas, also those in strings. Images are long
strings. Anything with more parts would block the event loop for too long.
"""

# A blank line after a line's end. A CR that is the last byte so far waits for a possible LF: an event then ends at the
# same byte wherever the stream is cut.
_EVENT_END = re.compile(rb"\r\n(?:\r\n|\n|\r(?=[^\n]))|(?:(?<!\r)\n|\r(?!\n))(?:\r\n|\n|\r)")
_ERROR_NAME = re.compile(rb"(?<![^\r\n])event: ?error[\r\n]")
_END = b"\n\n"
_CRLF_END = b"\r\n\r\n"
_CR = 13
_LOOK_BACK = 3  # the longest event end, four bytes, less one
BOM = b"\xef\xbb\xbf"
KEEPALIVE = b": keepalive\n\n"
"""A comment: every client library ignores it. An event without data breaks some of them."""


class EventTooLong(Exception):
    """An event exceeds the splitter's limit, or has more parts than any valid event."""


class SseSplitter:
    """Splits a stream into whole events, byte for byte.

    Each byte is inspected once, however long an event is and however many pieces it arrives in.

    ``limit``: bytes of the longest event. ``waiting``: an event has begun and not ended. ``noise``: bytes of events
    without data so far; the code that parses the events counts them.
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
        return len(self._held)

    def split(self, data: bytes) -> list[bytes]:
        """Return the events that ``data`` completes, each with its terminator. Raises ``EventTooLong``."""
        # The usual piece is one event with LF line ends.
        if data.endswith(_END) and data.find(_END, 0, -1) < 0 and _CR not in data and not self.waiting:
            return [data]
        if _CR in data:
            self._lf_only = False
            # The usual piece of a provider with CRLF line ends, as Google.
            if data.endswith(_CRLF_END) and data.count(b"\r") == data.count(b"\n") == 2 and not self.waiting:  # noqa: PLR2004
                return [data]
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
        """Return and forget the incomplete event."""
        held, self._held = bytes(self._held), bytearray()
        self.waiting = False
        self._lines = self._containers = self._commas = 0
        return held

    def _hold(self, data: bytes) -> int:
        """Append to the incomplete event.

        Return the offset from which to search for its end; -1 if it has not ended.
        """
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
    """Return whether ``data`` is UTF-8, as every event stream must be (WHATWG HTML, 9.2.4)."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def has_name(event: bytes) -> bool:
    """Return whether a line begins with ``event:``, before a regular expression finds it at a tenth of the speed."""
    return event.startswith(b"event:") or b"\nevent:" in event or b"\revent:" in event


def has_match(pattern: re.Pattern[bytes], literal: bytes, data: bytes) -> bool:
    """Return whether ``pattern``, which begins with ``literal``, matches anywhere in ``data``.

    A regular expression searches megabytes at a tenth of the speed, and holds the interpreter meanwhile.
    """
    at = data.find(literal)
    while at >= 0:
        if pattern.match(data, at):
            return True
        at = data.find(literal, at + 1)
    return False


def is_error_event(event: bytes) -> bool:
    """Return whether an event is named ``error``."""
    return has_match(_ERROR_NAME, b"event:", event)


def parse_data(event: bytes) -> bytes | None:
    """Return the data of one event, its ``data`` lines joined by LF; None if it has none (a comment, a bare name)."""
    if event.startswith(b"data: ") and event.endswith(b"\n\n") and event.count(b"\n") == 2 and b"\r" not in event:  # noqa: PLR2004
        return event[6:-2]
    if event.startswith(b"event: ") and event.endswith(b"}\n\n") and event.count(b"\n") == 3 and b"\r" not in event:  # noqa: PLR2004
        at = event.find(b"\ndata: ")
        if at > 0:
            return event[at + 7 : -2]
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
