"""Streamed and large responses to the client.

A stream writes its chunks directly to the transport, because one call of aiohttp's coroutine ``StreamResponse.write``
per event is too slow. A large response is aiohttp's own, with a timeout for clients that stop reading.
"""

import asyncio
import socket
import struct
from collections.abc import Callable, Mapping
from functools import partial

from aiohttp import HttpVersion11, web
from aiohttp.web_protocol import RequestHandler

from gateway.errors import ClientDisconnected, GatewayError
from gateway.memory_budget import Loan
from gateway.server.error_responses import add_doc_url
from gateway.server.responses import SMALL, BufferedResponse, RawResponse, await_reader, send, watch

_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_NO_LINGER = struct.pack("ii", 1, 0)
_LAST_CHUNK = b"0\r\n\r\n"
_PIECE_BYTES = 1024 * 1024
"""Size of the pieces in which the end of a stream is written: a translated response repeats its text five times."""


class DiscardingTransport(asyncio.Transport):
    """Replaces the transport of a disconnected client. Calls ``give_up`` after more than ``max_bytes``."""

    writing_paused = False

    def __init__(self, max_bytes: int, give_up: Callable[[], None]) -> None:
        super().__init__()
        self._left_bytes = max_bytes
        self._give_up = give_up

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        before, self._left_bytes = self._left_bytes, self._left_bytes - len(data)
        if self._left_bytes < 0 <= before:
            asyncio.get_running_loop().call_soon(self._give_up)

    def abort(self) -> None: ...


class EventStreamResponse:
    """Implements ``proxy.client_stream.ClientStream`` for an aiohttp request."""

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
        return self._protocol.writing_paused

    def open(self, media_type: str, data: bytes) -> None:
        headers = {"Content-Type": media_type, **_HEADERS}
        if self._chunked:
            headers["Transfer-Encoding"] = "chunked"
        head = self.response.build_head(self._request, headers, until_close=not self._chunked)
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
        if self._transport is None or not self.full:
            self._reading = None
            return
        reading, self._reading = self._reading or asyncio.ensure_future(self._request.writer.drain()), None
        woken = self._woken = asyncio.get_running_loop().create_future()
        try:
            await watch({reading, woken}, self._transport)
            if reading.done():
                reading.result()
            else:  # kept for the next call: aiohttp wakes a waiter only once
                self._reading = reading
                reading.add_done_callback(_forget)
        except ConnectionError:
            await asyncio.sleep(0)  # lets connection_lost() run first, which may call discard_writes()
            if not isinstance(self._transport, DiscardingTransport):
                raise ClientDisconnected from None
        finally:
            self._woken = None
            if self._reading is None:
                reading.cancel()

    async def _drain_whole(self) -> None:
        await self.drain()
        while self._reading is not None:  # wake() ended the wait early: the process is stopping
            await self.drain()

    def add_doc_url(self, error: GatewayError) -> None:
        add_doc_url(error, self._request)

    def wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def discard_writes(self, max_bytes: int, give_up: Callable[[], None]) -> None:
        self._protocol = self._transport = DiscardingTransport(max_bytes, give_up)
        self.wake()

    def abort(self) -> None:
        """Abort the connection. Without chunks, reset it: a regular close would mark the body as complete."""
        if self._transport is None:
            return
        sock = self._transport.get_extra_info("socket")
        if not self._chunked and sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._transport.abort()

    async def finish(self, data: bytes) -> None:
        if len(data) >= SMALL:
            for start in range(0, len(data), _PIECE_BYTES):
                self.write(data[start : start + _PIECE_BYTES])
                await asyncio.sleep(0)  # yields to the event loop even if the network takes everything at once
                await self._drain_whole()
            data = b""
        await self._drain_whole()
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ClientDisconnected
        end = self._frame(data) + _LAST_CHUNK if self._chunked else data
        if end:
            transport.write(end)


def write_answer(request: web.Request, body: bytes, headers: dict[str, str]) -> web.StreamResponse:
    """Build a whole response with status 200, of any size."""
    return BufferedResponse(request, body, headers) if len(body) <= SMALL else LargeResponse(request, body, headers)


class LargeResponse(web.Response):
    """A complete response of any size. A client that stops reading is disconnected, which frees the body's ``loan``."""

    def __init__(self, request: web.Request, body: bytes, headers: Mapping[str, str], loan: Loan | None = None) -> None:
        super().__init__(body=body, headers=headers)
        self._whole = body
        self._transport = request.transport
        self._loan = loan

    async def write_eof(self, data: bytes = b"") -> None:
        try:
            await self._write_eof(data)
        finally:
            if self._loan is not None:
                self._loan.close()

    async def _write_eof(self, data: bytes) -> None:
        transport, view = self._transport, memoryview(self._whole)
        if transport is None or len(view) <= SMALL:
            return await super().write_eof(data)
        for start in range(0, len(view), SMALL):
            await await_reader(partial(self.write, view[start : start + SMALL]), transport)
        return await web.StreamResponse.write_eof(self)


def _forget(reading: asyncio.Future[None]) -> None:
    """Retrieve the exception of an abandoned wait, to keep asyncio from logging it."""
    if not reading.cancelled():
        reading.exception()
