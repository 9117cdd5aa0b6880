"""Passthrough of event streams that end with an event of a known type: transcripts and speech."""

from typing import Any

from gateway.errors import ProviderBadResponse, ProviderError
from gateway.formats.errors.openai import Secrets, build_reported_error, parse_error_value
from gateway.formats.stream import PassthroughStream
from gateway.formats.stream_tail import DONE_MARK
from gateway.formats.wire.json_values import as_object, loads_or_none

_EVENT_ENDINGS = (b"}", DONE_MARK)


class AudioEventsPassthrough(PassthroughStream):
    """Forwards complete events unchanged, up to and including the event of type ``LAST_EVENT`` or ``[DONE]``.

    ``events`` does not count the last event.
    """

    __slots__ = ()

    LAST_EVENT = ""
    """The type of the event that ends the stream."""

    def feed(self, data: bytes) -> bytes:
        return self._feed_by_event(data)

    def finish(self) -> bytes:
        """Return the remaining bytes, with the last event's blank line.

        Raises the error that the stream reports, and ``ProviderBadResponse`` if the stream is incomplete.
        """
        events, last_event = self.events, self._splitter.take().rstrip(b"\r\n")
        output = (
            self._forward_event(last_event + b"\n\n")
            if last_event.endswith(_EVENT_ENDINGS) and not self.closed
            else b""
        )
        if self.error is not None:
            raise self.error
        if not self.ended:
            self.events = events  # an incomplete event does not count
            raise ProviderBadResponse("The provider's stream ended before it was complete", phase="stream")
        return output

    def _filter_event(self, event: bytes, payload: bytes) -> bytes:
        if payload.startswith(DONE_MARK):
            self.ended = True
            return event
        value = _parse_event(payload)
        self.error = _find_error(value, self._secrets)
        if self.error is not None:
            return b""
        if value.get("type") == self.LAST_EVENT:
            self.ended = True
        else:
            self.events += 1
        self._record_event(value)
        return event

    def _record_event(self, value: dict[str, Any]) -> None:
        """Process the data of a forwarded event. ``value`` is empty if the data is not a JSON object."""
        raise NotImplementedError


def _parse_event(payload: bytes) -> dict[str, Any]:
    return as_object(loads_or_none(payload))


def _find_error(value: dict[str, Any], secrets: Secrets) -> ProviderError | None:
    """Return the error that an event reports, or None.

    The error is the event's ``error`` field, or the whole event if its type is ``error``.
    """
    error = parse_error_value(value, secrets)
    if error is None and value.get("type") == "error":
        error = parse_error_value({"error": value}, secrets)
    return build_reported_error(error) if error else None
