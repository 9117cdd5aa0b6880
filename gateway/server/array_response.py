"""Streaming a response as one JSON array, as Google's API does without ``?alt=sse``."""

from gateway.formats.wire.sse import SseSplitter, parse_data
from gateway.server.responses import EventStreamResponse

_MEDIA_TYPE = "application/json; charset=utf-8"
_WHITE_SPACE = b"\n"
"""Sent instead of a comment of the stream: keeps the connection alive, and is insignificant between two elements."""


class ArrayStreamResponse(EventStreamResponse):
    """Sends each event of a stream as an element of a JSON array. ``write`` takes complete events only."""

    __slots__ = ("_has_started",)

    _has_started: bool

    def open(self, media_type: str, data: bytes) -> None:  # noqa: ARG002 - replaced by JSON's
        self._has_started = False
        super().open(_MEDIA_TYPE, b"")
        self.write(data)

    def write(self, data: bytes, framed: bytes | None = None) -> bool:  # noqa: ARG002 - provider's chunks
        return super().write(self._convert_events(data))

    async def finish(self, data: bytes) -> None:
        self.write(data)
        await super().finish(b"]" if self._has_started else b"[]")

    def _convert_events(self, data: bytes) -> bytes:
        elements = []
        for event in SseSplitter().split(data):
            payload = parse_data(event)
            if not payload:
                elements.append(_WHITE_SPACE)
                continue
            elements.append((b",\r\n" if self._has_started else b"[") + payload)
            self._has_started = True
        return b"".join(elements)
