"""The caller's end of a stream: an aiohttp response whose body is written straight to the transport.

aiohttp sends the status and headers; from there the sink frames its own chunks, for ``StreamResponse.write`` is a
coroutine and a stream has no time for one per event.
"""

import asyncio

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from gateway.domain.fault import ClientGone

_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
WRITE_TIMEOUT_S = 60.0
"""How long a caller may leave a full buffer unread before it is cut off."""


class StreamOutlet:
    """``flow.outlet.Outlet`` over one aiohttp request."""

    __slots__ = ("_chunked", "_protocol", "_request", "_transport", "_writer", "response")

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._protocol = request.protocol
        self._transport: asyncio.Transport | None = None
        self._writer: AbstractStreamWriter | None = None
        self.response = web.StreamResponse(headers=_HEADERS)
        self._chunked = request.version >= (1, 1)
        if self._chunked:
            self.response.enable_chunked_encoding()

    @property
    def full(self) -> bool:
        """Whether the transport asked to be given no more."""
        return self._protocol.writing_paused

    async def open(self, media_type: str) -> None:
        """Send the status and the headers."""
        self.response.headers["Content-Type"] = media_type
        try:
            self._writer = await self.response.prepare(self._request)
        except ConnectionError:
            raise ClientGone from None
        self._transport = self._request.transport

    def write(self, data: bytes) -> None:
        """Send a piece as one chunk."""
        transport = self._transport
        if not data or transport is None or transport.is_closing():
            return
        transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    async def drain(self) -> None:
        """Wait until the caller has read."""
        if self._writer is None:
            return
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await self._writer.drain()
        except TimeoutError:
            if self._transport is not None:
                self._transport.abort()
            raise ClientGone from None
        except ConnectionError:
            raise ClientGone from None

    def cut(self) -> None:
        """Break the connection."""
        if self._transport is not None:
            self._transport.abort()

    async def finish(self) -> None:
        """End the body."""
        await self.drain()
        try:
            await self.response.write_eof()
        except ConnectionError:
            raise ClientGone from None
