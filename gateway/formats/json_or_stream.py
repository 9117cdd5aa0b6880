"""A stream transform for a provider that answers a streaming request with one JSON object."""

from collections.abc import Callable

from gateway.domain.usage import NO_USAGE, Usage
from gateway.errors import ProviderBadResponse
from gateway.formats.stream import StreamState

MAX_WHOLE_BYTES = 64 * 1024 * 1024
LARGE_ANSWER_BYTES = 1024 * 1024
MAX_CONTAINERS = 200_000
MAX_VALUES = 6_000_000
"""Limits for an answer over ``LARGE_ANSWER_BYTES``: objects and arrays; commas, also those in strings. 64 MiB of empty
objects would take gigabytes of memory. The largest batch of embeddings has some millions of numbers."""
_BLANK = b" \t\r\n\xef\xbb\xbf"
"""Allowed before a stream or a JSON answer: line ends, and the byte order mark."""
_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
"""Beginnings of a line of an event stream (WHATWG HTML, 9.2.6)."""


def strip_beginning(data: bytes) -> bytes:
    """Strip blanks from the first bytes of an answer; empty if there is nothing else yet."""
    return data.lstrip(_BLANK)


def is_json(begun: bytes) -> bool:
    """Return whether an answer with this beginning is JSON: no line of an event stream begins with a bracket."""
    return begun.startswith((b"{", b"["))


def is_event_stream(begun: bytes) -> bool:
    """Return whether an answer with this beginning is an event stream. A first piece may end within a field's name."""
    return begun.startswith(_FIELDS) or any(field.startswith(begun) for field in _FIELDS)


def check_parts(raw: bytes) -> None:
    """Raise ``ProviderBadResponse`` for JSON that has more values than any answer needs: call it before parsing."""
    if len(raw) <= LARGE_ANSWER_BYTES or not is_json(strip_beginning(raw[:LARGE_ANSWER_BYTES])):
        return
    if raw.count(b"{") + raw.count(b"[") > MAX_CONTAINERS or raw.count(b",") > MAX_VALUES:
        raise ProviderBadResponse("The provider's answer has too many parts")


class JsonOrStream(StreamState):
    """Holds an answer until it is complete and writes it as the equivalent stream; see ``StreamTransform``.

    ``write``: turns an unstreamed answer into its events, end mark included, and its usage. Raises ``ProviderError``.
    """

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
