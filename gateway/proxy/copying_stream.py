"""A client stream whose output is also collected, to be kept or compared."""

from collections.abc import Callable
from typing import Protocol

from gateway.errors import GatewayError
from gateway.proxy.client_stream import ClientStream


class StreamCollector(Protocol):
    """Takes what a client is sent."""

    def begin_stream(self, media_type: str) -> None: ...

    def add(self, data: bytes) -> None: ...


class CopyingStream:
    """Implements ``ClientStream``: sends to another one, and gives a collector what is sent."""

    __slots__ = ("_add", "_collector", "_stream", "_write")

    def __init__(self, stream: ClientStream, collector: StreamCollector) -> None:
        self._stream = stream
        self._collector = collector
        self._add = collector.add
        self._write = stream.write

    @property
    def full(self) -> bool:
        return self._stream.full

    def open(self, media_type: str, data: bytes) -> None:
        self._collector.begin_stream(media_type)
        if data:
            self._add(data)
        self._stream.open(media_type, data)

    def write(self, data: bytes, framed: bytes | None = None) -> bool:
        self._add(data)
        return self._write(data, framed)

    async def drain(self) -> None:
        await self._stream.drain()

    def add_doc_url(self, error: GatewayError) -> None:
        self._stream.add_doc_url(error)

    def wake(self) -> None:
        self._stream.wake()

    def discard_writes(self, max_bytes: int, give_up: Callable[[], None]) -> None:
        self._stream.discard_writes(max_bytes, give_up)

    async def finish(self, data: bytes) -> None:
        if data:
            self._add(data)
        await self._stream.finish(data)

    def abort(self) -> None:
        self._stream.abort()
