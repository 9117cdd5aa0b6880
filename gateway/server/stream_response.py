"""The caller's end of an answer.

The outlet of a stream writes its own chunks straight to the transport, for ``StreamResponse.write`` is a coroutine and
a stream has no time for one per event. A large answer is aiohttp's own, but for the time that its reader is given.
"""

import asyncio
import socket
import struct
from collections.abc import Callable, Mapping
from functools import partial

from aiohttp import HttpVersion11, web
from aiohttp.web_protocol import RequestHandler

from gateway.errors import ClientDisconnected
from gateway.server.responses import SMALL, BufferedResponse, RawResponse, await_reader, send, watch

_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_NO_LINGER = struct.pack("ii", 1, 0)
_LAST_CHUNK = b"0\r\n\r\n"


class DiscardingTransport(asyncio.Transport):
    """In place of the connection of a client that has left: it counts what is written, and keeps nothing.

    Args:
        most_bytes: that may be written.
        give_up: called once, from the event loop, when they have been.
    """

    writing_paused = False

    def __init__(self, most_bytes: int, give_up: Callable[[], None]) -> None:
        super().__init__()
        self._left_bytes = most_bytes
        self._give_up = give_up

    def is_closing(self) -> bool:
        """It takes whatever comes."""
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Count it."""
        before, self._left_bytes = self._left_bytes, self._left_bytes - len(data)
        if self._left_bytes < 0 <= before:
            asyncio.get_running_loop().call_soon(self._give_up)

    def abort(self) -> None:
        """There is nothing to break."""


class EventStreamResponse:
    """``flow.client_stream.Outlet`` over one aiohttp request."""

    __slots__ = ("_chunked", "_protocol", "_reading", "_request", "_transport", "_woken", "response")

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._protocol: RequestHandler | DiscardingTransport = request.protocol
        self._transport: asyncio.Transport | None = None
        self._reading: asyncio.Future[None] | None = None
        self._woken: asyncio.Future[None] | None = None
        self.response = RawResponse()
        self._chunked = request.version >= HttpVersion11

    @property
    def full(self) -> bool:
        """Whether the transport asked to be given no more."""
        return self._protocol.writing_paused

    def open(self, media_type: str, data: bytes) -> None:
        """Send the status and the headers, and the first piece with them."""
        headers = {"Content-Type": media_type, **_HEADERS}
        if self._chunked:
            headers["Transfer-Encoding"] = "chunked"
        head = self.response.write_head(self._request, headers, until_close=not self._chunked)
        try:
            self._transport = send(self._request, head + self._frame(data) if len(data) < SMALL else head)
        except ConnectionError:
            if not isinstance(self._transport, DiscardingTransport):
                raise ClientDisconnected from None
        if len(data) >= SMALL:
            self.write(data)

    def _frame(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if data and self._chunked else data

    def write(self, data: bytes, framed: bytes | None = None) -> bool:
        """Send a piece as one chunk, or as the chunks in which it came."""
        transport = self._transport
        if not data or transport is None or transport.is_closing():
            return False
        if not self._chunked:
            transport.write(data)
        elif framed is not None:
            transport.write(framed)
        elif len(data) < SMALL:
            transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        else:
            transport.write(b"%x\r\n" % len(data))
            transport.write(data)
            transport.write(b"\r\n")
        return self._protocol.writing_paused

    async def drain(self) -> None:
        """Wait until the caller has read."""
        if self._transport is None or not self.full:
            self._reading = None
            return
        reading, self._reading = self._reading or asyncio.ensure_future(self._request.writer.drain()), None
        woken = self._woken = asyncio.get_running_loop().create_future()
        try:
            await watch({reading, woken}, self._transport)
            if reading.done():
                reading.result()
            else:  # whoever waits next goes on with it: aiohttp would not be told a second time
                self._reading = reading
                reading.add_done_callback(_forget)
        except ConnectionError:
            await asyncio.sleep(0)  # who is cut off has left when the protocol has been told so
            if not isinstance(self._transport, DiscardingTransport):
                raise ClientDisconnected from None
        finally:
            self._woken = None
            if self._reading is None:
                reading.cancel()

    def wake(self) -> None:
        """Let go of whoever waits for the caller."""
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def leave(self, most_bytes: int, give_up: Callable[[], None]) -> None:
        """The client has left, and the answer is read to its end; see ``flow.client_stream.Outlet``."""
        self._protocol = self._transport = DiscardingTransport(most_bytes, give_up)
        self.wake()

    def cut(self) -> None:
        """Break the connection. Where nothing but its end ends the answer, it is reset: that end is none."""
        if self._transport is None:
            return
        sock = self._transport.get_extra_info("socket")
        if not self._chunked and sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._transport.abort()

    async def finish(self, data: bytes) -> None:
        """Send what is left, and end the body."""
        if len(data) >= SMALL:
            self.write(data)
            data = b""
        await self.drain()
        while self._reading is not None:  # woken by the end of the process, it waits as long as it may
            await self.drain()
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ClientDisconnected
        end = self._frame(data) + _LAST_CHUNK if self._chunked else data
        if end:
            transport.write(end)


def write_answer(request: web.Request, body: bytes, headers: dict[str, str]) -> web.StreamResponse:
    """A whole answer with status 200, of whatever size."""
    return BufferedResponse(request, body, headers) if len(body) <= SMALL else LargeResponse(request, body, headers)


class LargeResponse(web.Response):
    """A whole answer. Pictures make it large: a caller who does not read it must not keep it in memory for ever."""

    def __init__(self, request: web.Request, body: bytes, headers: Mapping[str, str]) -> None:
        super().__init__(body=body, headers=headers)
        self._whole = body
        self._transport = request.transport

    async def write_eof(self, data: bytes = b"") -> None:
        """Send the body. Raises ``ConnectionError`` where the caller has left or stopped to read."""
        transport, view = self._transport, memoryview(self._whole)
        if transport is None or len(view) <= SMALL:
            return await super().write_eof(data)
        for start in range(0, len(view), SMALL):
            await await_reader(partial(self.write, view[start : start + SMALL]), transport)
        return await web.StreamResponse.write_eof(self)


def _forget(reading: asyncio.Future[None]) -> None:
    """A caller whom nobody waits for any more may have left."""
    if not reading.cancelled():
        reading.exception()
