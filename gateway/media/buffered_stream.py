"""Streams images from a backend that cannot stream: a response whose single piece is the whole stream."""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from gateway.domain.usage import NO_USAGE, Usage
from gateway.errors import GatewayError, ProviderBadResponse, ProviderError
from gateway.upstream.interface import PumpResult, Sink

_EMPTY_HEADERS: Mapping[str, str] = {}


class BufferedStream:
    """A running image generation as an ``HttpResponse``. ``work`` also runs without a reader, until ``close``."""

    __slots__ = ("_error", "_is_read", "_task", "usage")

    def __init__(self, work: Coroutine[Any, Any, tuple[bytes, Usage]]) -> None:
        self._task = asyncio.get_running_loop().create_task(work)
        self._error: ProviderError | None = None
        self._is_read = False
        self.usage = NO_USAGE

    @property
    def task(self) -> "asyncio.Task[tuple[bytes, Usage]]":
        return self._task

    @property
    def status(self) -> int:
        return 200

    @property
    def headers(self) -> Mapping[str, str]:
        return _EMPTY_HEADERS

    async def read(self, limit: int) -> bytes:
        pieces: list[bytes] = []

        def keep_piece(piece: bytes, _raw: bytes | None) -> bool:
            pieces.append(piece)
            return False

        await self.pump(keep_piece)
        if sum(map(len, pieces)) > limit:
            raise ProviderBadResponse(f"The provider's answer is larger than {limit} bytes", phase="body")
        return b"".join(pieces)

    async def pump(self, sink: Sink) -> PumpResult:
        """Wait for the images and push them. Raises the generation's error, or the error passed to ``abort``."""
        if self._is_read:
            return PumpResult.ENDED
        await asyncio.wait({self._task})
        if self._error is not None:
            raise self._error
        events, self.usage = self._task.result()
        self._is_read = True
        return PumpResult.PAUSED if sink(events, None) else PumpResult.ENDED

    def abort(self, error: ProviderError) -> None:
        if self._error is None:
            self._error = error
        self._task.cancel()

    def finish(self) -> None: ...

    def close(self) -> None:
        self._task.cancel()


class BufferedPassthrough:
    """The stream transform of a ``BufferedStream``: passes everything on immediately."""

    __slots__ = ("_response", "ended", "error", "events")
    noise = 0
    empty = False

    def __init__(self, response: BufferedStream) -> None:
        self._response = response
        self.events = 0
        self.ended = False
        self.error: ProviderError | None = None

    @property
    def closed(self) -> bool:
        return self.ended

    def feed(self, data: bytes) -> bytes:
        self.events, self.ended = 1, True
        return data

    def finish(self) -> bytes:
        return b""

    def write_error(self, error: GatewayError, request_id: str) -> bytes:  # noqa: ARG002
        """Return no bytes: the usual error event ends the stream."""
        return b""

    def parse_usage(self) -> Usage:
        return self._response.usage
