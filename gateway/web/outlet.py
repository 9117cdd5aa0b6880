"""The caller's end of an answer.

Of a stream aiohttp sends the status and headers; from there the outlet writes its own chunks straight to the
transport, for ``StreamResponse.write`` is a coroutine and a stream has no time for one per event. A whole answer is
aiohttp's own, but for the time that its reader is given.
"""

import asyncio
import socket
import struct
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from gateway.domain.fault import ClientGone

_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
WRITE_TIMEOUT_S = 60.0
"""How long a caller may leave a full buffer unread before it is cut off. One that reads on, however slowly, is not."""
_NO_LINGER = struct.pack("ii", 1, 0)
_LARGE = 64 * 1024
"""Bytes that are not copied into a chunk, nor given to the transport without a look at their reader."""


class StreamOutlet:
    """``flow.outlet.Outlet`` over one aiohttp request."""

    __slots__ = ("_chunked", "_protocol", "_reading", "_request", "_transport", "_woken", "_writer", "response")

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._protocol = request.protocol
        self._transport: asyncio.Transport | None = None
        self._writer: AbstractStreamWriter | None = None
        self._reading: asyncio.Future[None] | None = None
        self._woken: asyncio.Future[None] | None = None
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
        if not self._chunked:
            transport.write(data)
        elif len(data) < _LARGE:
            transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        else:
            transport.write(b"%x\r\n" % len(data))
            transport.write(data)
            transport.write(b"\r\n")

    async def drain(self) -> None:
        """Wait until the caller has read."""
        if self._writer is None or self._transport is None or not self.full:
            self._reading = None
            return
        reading, self._reading = self._reading or asyncio.ensure_future(self._writer.drain()), None
        woken = self._woken = asyncio.get_running_loop().create_future()
        try:
            await _watch({reading, woken}, self._transport)
            if reading.done():
                reading.result()
            else:  # whoever waits next goes on with it: aiohttp would not be told a second time
                self._reading = reading
                reading.add_done_callback(_forget)
        except ConnectionError:
            raise ClientGone from None
        finally:
            self._woken = None
            if self._reading is None:
                reading.cancel()

    def wake(self) -> None:
        """Let go of whoever waits for the caller."""
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def cut(self) -> None:
        """Break the connection. Where nothing but its end ends the answer, it is reset: that end is none."""
        if self._transport is None:
            return
        sock = self._transport.get_extra_info("socket")
        if not self._chunked and sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._transport.abort()

    async def finish(self) -> None:
        """End the body."""
        await self.drain()
        while self._reading is not None:  # woken by the end of the process, it waits as long as it may
            await self.drain()
        try:
            await self.response.write_eof()
        except ConnectionError:
            raise ClientGone from None


class WholeAnswer(web.Response):
    """A whole answer. Pictures make it large: a caller who does not read it must not keep it in memory for ever."""

    def __init__(self, request: web.Request, body: bytes, headers: Mapping[str, str]) -> None:
        super().__init__(body=body, headers=headers)
        self._whole = body
        self._transport = request.transport

    async def write_eof(self, data: bytes = b"") -> None:
        """Send the body. Raises ``ConnectionError`` where the caller has left or stopped to read."""
        transport, view = self._transport, memoryview(self._whole)
        if transport is None or len(view) <= _LARGE:
            return await super().write_eof(data)
        for start in range(0, len(view), _LARGE):
            await await_reader(partial(self.write, view[start : start + _LARGE]), transport)
        return await web.StreamResponse.write_eof(self)


async def await_reader(wait: Callable[[], Coroutine[Any, Any, None]], transport: asyncio.Transport) -> None:
    """``wait`` for a reader who reads on. Raises ``ConnectionError`` where it left, or read nothing for too long.

    What waits is not cancelled for a look at what is left: aiohttp would not be told a second time.
    """
    waiting = asyncio.ensure_future(wait())
    try:
        await _watch({waiting}, transport)
    finally:
        waiting.cancel()
    waiting.result()


async def _watch(waiting: set[asyncio.Future[None]], transport: asyncio.Transport) -> None:
    """Until one of them is done, while something is read of what was written. Raises ``ConnectionResetError``."""
    left = transport.get_write_buffer_size()
    done: set[asyncio.Future[None]] = set()
    while not done:
        done, _ = await asyncio.wait(waiting, timeout=WRITE_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        before, left = left, transport.get_write_buffer_size()
        if not done and left >= before:
            transport.abort()
            raise ConnectionResetError("the caller does not read")


def _forget(reading: asyncio.Future[None]) -> None:
    """A caller whom nobody waits for any more may have left."""
    if not reading.cancelled():
        reading.exception()
