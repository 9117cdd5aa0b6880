"""A streamed answer as one JSON array, which Google's API sends without ``?alt=sse``.

The array is sent piece by piece: an element for every event of the stream.
"""

from gateway.formats.sse import SseSplitter, parse_data
from gateway.server.stream_response import EventStreamResponse

_MEDIA_TYPE = "application/json; charset=utf-8"
_SPACE = b"\n"
"""For a comment of the stream: it keeps the connection alive, and means nothing between two elements."""


class ArrayStreamResponse(EventStreamResponse):
    """Sends every event of a stream as an element of a JSON array; what it is given are whole events."""

    __slots__ = ("_begun",)

    _begun: bool

    def open(self, media_type: str, data: bytes) -> None:  # noqa: ARG002 - it is another one
        self._begun = False
        super().open(_MEDIA_TYPE, b"")
        self.write(data)

    def write(self, data: bytes, framed: bytes | None = None) -> bool:  # noqa: ARG002 - the provider's frames
        return super().write(self._convert(data))

    async def finish(self, data: bytes) -> None:
        self.write(data)
        await super().finish(b"]" if self._begun else b"[]")

    def _convert(self, data: bytes) -> bytes:
        elements = []
        for event in SseSplitter().split(data):
            payload = parse_data(event)
            if not payload:
                elements.append(_SPACE)
                continue
            elements.append((b",\r\n" if self._begun else b"[") + payload)
            self._begun = True
        return b"".join(elements)
