"""The gate of a stream that has one event at its end which says it is whole: transcripts and speech."""

from typing import Any

import orjson

from gateway.errors import ProviderBadResponse
from gateway.formats.openai.errors import Secrets, build_reported, parse_error_value
from gateway.formats.openai.stream_tail import DONE
from gateway.formats.stream import PassthroughStream

_WHOLE = (b"}", DONE)


class AudioEventsPassthrough(PassthroughStream):
    """What of a provider's stream may leave: whole events, as they lie, up to the one that ends it.

    Attributes:
        events: complete events with data so far, the end not counted.
        ended: the last event, or the convention's other end mark, has passed; what follows is dropped.
        fault: the provider reported an error, or an event without an end; whatever follows it is dropped.
    """

    __slots__ = ()

    LAST = ""
    """The type of the event that ends the stream."""

    def feed(self, data: bytes) -> bytes:
        """A piece in, what may leave out."""
        return self._feed_slowly(data)

    def finish(self) -> bytes:
        """The transport has ended; an end that only lacks its blank line is completed.

        Raises ``ProviderBadResponse`` where the stream was cut, or what it reported.
        """
        events, rest = self.events, self._splitter.take().rstrip(b"\r\n")
        written = self._pass(rest + b"\n\n") if rest.endswith(_WHOLE) and not self.closed else b""
        if self.fault is not None:
            raise self.fault
        if not self.ended:
            self.events = events  # what was cut is none
            raise ProviderBadResponse("The provider's stream ended before it was complete", phase="stream")
        return written

    def _judge(self, event: bytes, payload: bytes) -> bytes:
        if payload.startswith(DONE):
            self.ended = True
            return event
        value = _parse_event(payload)
        self.fault = _find_fault(value, self._secrets)
        if self.fault is not None:
            return b""
        if value.get("type") == self.LAST:
            self.ended = True
        else:
            self.events += 1
        self._note(value)
        return event

    def _note(self, value: dict[str, Any]) -> None:
        """An event that has passed, as an object; empty where it is none."""
        raise NotImplementedError


def _parse_event(payload: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _find_fault(value: dict[str, Any], secrets: Secrets) -> ProviderBadResponse | None:
    """The error an event reports: in an ``error`` of its own, or as a whole where its type says so."""
    error = parse_error_value(value, secrets)
    if error is None and value.get("type") == "error":
        error = parse_error_value({"error": value}, secrets)
    return build_reported(error.message) if error else None
