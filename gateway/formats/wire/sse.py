"""Server-sent events as bytes: split a stream into events, and extract their data (WHATWG HTML, 9.2.6).

Lines end in LF, CR or CRLF; a blank line ends an event. Events stay undecoded and unchanged. Their size is limited, by
default to 16 MiB.
"""

import re

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""Maximum size of an event. An image in a chat delta has a few MB; a larger event is a provider's fault."""
MAX_NOISE_BYTES = 256 * 1024
"""Maximum bytes without data between two events with data: line ends, comments, names, empty data. The limit allows a
24-byte comment per second for three hours.
"""
_LARGE_BYTES = 256 * 1024
MAX_LINES = 10_000
MAX_CONTAINERS = 100_000
MAX_VALUES = 1_000_000
"""Limits for an event over ``_LARGE_BYTES``: lines; objects and arrays; commas, including those in strings. A large
valid event holds an image, one long string. Parsing more parts would block the event loop for too long.
"""

# A line end followed by a blank line. A CR at the end of the received data waits for a possible LF. Otherwise the end
# of an event would depend on where the network cuts the stream.
_EVENT_END_PATTERN = re.compile(rb"\r\n(?:\r\n|\n|\r(?=[^\n]))|(?:(?<!\r)\n|\r(?!\n))(?:\r\n|\n|\r)")
_ERROR_NAME_PATTERN = re.compile(rb"(?<![^\r\n])event: ?error[\r\n]")
_EVENT_SEPARATOR = b"\n\n"
_CRLF_END = b"\r\n\r\n"
_CARRIAGE_RETURN = 13
_OVERLAP_BYTES = 3  # the longest event end has four bytes; up to three may have arrived
BOM = b"\xef\xbb\xbf"
KEEPALIVE = b": keepalive\n\n"
"""A comment, because every client library ignores comments; some fail on an event without data."""


class EventTooLong(Exception):
    """Raised for an event that exceeds the splitter's limit, or that has more parts than any valid event."""


class SseSplitter:
    """Splits a stream into whole events without changing a byte, in time linear in its length.

    Args:
        limit: maximum bytes of an event.

    Attributes:
        has_pending: whether an event is incomplete.
        noise: total bytes of events without data, counted by the code that parses the events.
    """

    __slots__ = (
        "_buffer",
        "_comma_count",
        "_container_count",
        "_is_lf_only",
        "_limit",
        "_line_count",
        "has_pending",
        "noise",
    )

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        self.has_pending = False
        self.noise = 0
        self._limit = limit
        self._is_lf_only = True  # whether every line so far ended in LF
        self._buffer = bytearray()
        self._line_count = self._container_count = self._comma_count = 0

    @property
    def held_bytes(self) -> int:
        return len(self._buffer)

    def split(self, data: bytes) -> list[bytes]:
        """Return the events that ``data`` completes, each with its terminator. Raises ``EventTooLong``."""
        # Fast path: a piece is usually exactly one event with LF line ends.
        if (
            data.endswith(_EVENT_SEPARATOR)
            and data.find(_EVENT_SEPARATOR, 0, -1) < 0
            and _CARRIAGE_RETURN not in data
            and not self.has_pending
        ):
            return [data]
        if _CARRIAGE_RETURN in data:
            self._is_lf_only = False
            # Fast path for providers with CRLF line ends, such as Google.
            if data.endswith(_CRLF_END) and data.count(b"\r") == data.count(b"\n") == 2 and not self.has_pending:  # noqa: PLR2004
                return [data]
        search_start = 0
        if self.has_pending:
            search_start = self._append(data)
            if search_start < 0:
                return []
            data = self.take()
        events: list[bytes] = []
        start = 0
        if self._is_lf_only:
            while (end := data.find(_EVENT_SEPARATOR, search_start) + 2) > 1:
                events.append(data[start:end])
                start = search_start = end
        else:
            for match in _EVENT_END_PATTERN.finditer(data, search_start):
                events.append(data[start : match.end()])
                start = match.end()
        if start < len(data):
            self._append(data[start:])
        return events

    def take(self) -> bytes:
        data, self._buffer = bytes(self._buffer), bytearray()
        self.has_pending = False
        self._line_count = self._container_count = self._comma_count = 0
        return data

    def _append(self, data: bytes) -> int:
        """Append ``data`` to the incomplete event. Return the offset from which the end of the event can be searched.

        Returns -1 if the event is still incomplete. Raises ``EventTooLong``.
        """
        buffer = self._buffer
        search_start = max(0, len(buffer) - _OVERLAP_BYTES)
        buffer += data
        self.has_pending = True
        if len(buffer) > _LARGE_BYTES:
            self._check_counts(data)
        if (
            buffer.find(_EVENT_SEPARATOR, search_start) >= 0
            if self._is_lf_only
            else _has_line_end(buffer[search_start:]) and _EVENT_END_PATTERN.search(buffer, search_start)
        ):
            return search_start
        if len(buffer) > self._limit:
            raise EventTooLong("The provider sent an event without an end")
        return -1

    def _check_counts(self, data: bytes) -> None:
        self._line_count += data.count(b"\n") + data.count(b"\r")
        self._container_count += data.count(b"{") + data.count(b"[")
        self._comma_count += data.count(b",")
        if self._line_count > MAX_LINES or self._container_count > MAX_CONTAINERS or self._comma_count > MAX_VALUES:
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
    """Return whether a line begins with ``event:``. This is ten times as fast as a regular expression."""
    return event.startswith(b"event:") or b"\nevent:" in event or b"\revent:" in event


def has_match(pattern: re.Pattern[bytes], literal: bytes, data: bytes) -> bool:
    """Return whether ``pattern``, which begins with ``literal``, matches anywhere in ``data``.

    A regular expression alone would take ten times as long for megabytes, and block all threads meanwhile.
    """
    position = data.find(literal)
    while position >= 0:
        if pattern.match(data, position):
            return True
        position = data.find(literal, position + 1)
    return False


def is_error_event(event: bytes) -> bool:
    """Return whether an event is named ``error``."""
    return has_match(_ERROR_NAME_PATTERN, b"event:", event)


def parse_data(event: bytes) -> bytes | None:
    """Return an event's ``data`` lines joined by LF; None if there are none (a comment, a name without data)."""
    if event.startswith(b"data: ") and event.endswith(b"\n\n") and event.count(b"\n") == 2 and b"\r" not in event:  # noqa: PLR2004
        return event[6:-2]
    if event.startswith(b"event: ") and event.endswith(b"}\n\n") and event.count(b"\n") == 3 and b"\r" not in event:  # noqa: PLR2004
        position = event.find(b"\ndata: ")
        if position > 0:
            return event[position + 7 : -2]
    if event.startswith(b"data: ") and event.endswith(b"\r\n\r\n") and event.count(b"\n") == event.count(b"\r") == 2:  # noqa: PLR2004
        return event[6:-4]
    if b"data" not in event:
        return None
    lines = []
    if b"\r" in event:
        event = event.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    for line in event.split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"data":
            lines.append(value.removeprefix(b" "))
    return b"\n".join(lines) if lines else None
