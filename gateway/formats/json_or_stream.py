"""A stream transform for providers that answer a streaming request with one JSON object."""

from collections.abc import Callable

from gateway.domain.usage import NO_USAGE, Usage
from gateway.errors import ProviderBadResponse
from gateway.formats.stream import StreamState

MAX_WHOLE_BYTES = 64 * 1024 * 1024
LARGE_ANSWER_BYTES = 1024 * 1024
MAX_CONTAINERS = 200_000
MAX_VALUES = 6_000_000
"""Limits for an answer over ``LARGE_ANSWER_BYTES``: objects and arrays; commas, including those in strings. 64 MiB of
empty objects would take gigabytes of memory. The largest embedding batches have a few million numbers."""
_BLANK = b" \t\r\n\xef\xbb\xbf"
"""Bytes allowed before a stream or a JSON answer: whitespace and the byte order mark."""
_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
"""Possible beginnings of an event stream line (WHATWG HTML, 9.2.6)."""


def strip_beginning(data: bytes) -> bytes:
    """Strip leading whitespace and the byte order mark from the first bytes of an answer."""
    return data.lstrip(_BLANK)


def is_json(begun: bytes) -> bool:
    """Return whether an answer with this beginning is JSON: event stream lines never begin with a bracket."""
    return begun.startswith((b"{", b"["))


def is_event_stream(begun: bytes) -> bool:
    """Return whether an answer with this beginning is an event stream. The first piece may end within a field name."""
    return begun.startswith(_FIELDS) or any(field.startswith(begun) for field in _FIELDS)


def check_parts(raw: bytes) -> None:
    """Raise ``ProviderBadResponse`` for JSON with more values than any valid answer. Call this before parsing."""
    if len(raw) <= LARGE_ANSWER_BYTES or not is_json(strip_beginning(raw[:LARGE_ANSWER_BYTES])):
        return
    if raw.count(b"{") + raw.count(b"[") > MAX_CONTAINERS or raw.count(b",") > MAX_VALUES:
        raise ProviderBadResponse("The provider's answer has too many parts")


class JsonOrStream(StreamState):
    """Buffers a complete answer, which ``write`` converts into stream bytes and usage; see ``StreamTransform``."""

    __slots__ = ("_held", "_held_bytes", "_usage", "_write", "events")

    def __init__(self, write: Callable[[bytes], tuple[bytes, Usage]]) -> None:
        super().__init__()
        self._write = write
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._usage = NO_USAGE
        self.events = 0

    def feed(self, data: bytes) -> bytes:
        self._held_bytes += len(data)
        if self._held_bytes > MAX_WHOLE_BYTES:
            self._held.clear()
            self.error = ProviderBadResponse(
                f"The provider's answer is larger than {MAX_WHOLE_BYTES} bytes", phase="body"
            )
        else:
            self._held.append(data)
        return b""

    @property
    def heavy(self) -> bool:
        return not self.closed and self._held_bytes > LARGE_ANSWER_BYTES

    def may_end(self, data: bytes) -> bool:  # noqa: ARG002 - ``finish`` reads everything
        return False

    def finish(self) -> bytes:
        if self.error is not None:
            raise self.error
        raw = b"".join(self._held)
        self._held.clear()
        check_parts(raw)
        written, self._usage = self._write(raw)
        self.events, self.ended = 1, True
        return written

    def parse_usage(self) -> Usage:
        return self._usage
