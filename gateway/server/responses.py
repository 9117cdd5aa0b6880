"""Responses whose head goes out together with the body in one write, whole or as event streams.

aiohttp's own responses are slower, and send the head of a stream separately. Inference responses use these classes;
most others use aiohttp's. A stream writes its chunks directly to the transport, because one call of aiohttp's coroutine
``StreamResponse.write`` per event is too slow. A large response is aiohttp's own, with a timeout for clients that stop
reading. Every response of the application gets the headers of ``build_common_headers``.
"""

import asyncio
import math
import socket
import struct
from collections.abc import Callable, Coroutine, Mapping
from functools import lru_cache, partial
from typing import Any
from urllib.parse import quote

from aiohttp import HttpVersion11, web
from aiohttp.helpers import rfc822_formatted_time
from aiohttp.web_protocol import RequestHandler

from gateway.domain.price import usd
from gateway.domain.rate_limit import RateLimitStatus
from gateway.domain.request_log import format_adapted_fields
from gateway.errors import ClientDisconnected, GatewayError
from gateway.memory_budget import Loan
from gateway.request_context import RequestContext, make_request_id
from gateway.server.admin.prefix import PREFIX
from gateway.server.context import CONTEXT
from gateway.server.error_responses import ANTHROPIC_PATHS, add_doc_url

WRITE_TIMEOUT_S = 60.0
"""Time without any progress before a connection with a full write buffer is aborted. Slow readers are not aborted."""
SMALL_BODY_BYTES = 64 * 1024
"""Maximum size in bytes of a body that is sent with its head in one write, without waiting for the client."""
_STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_LINGER_OPTION = struct.pack("ii", 1, 0)
_LAST_CHUNK = b"0\r\n\r\n"
_PIECE_BYTES = 1024 * 1024
"""Size of the pieces in which the end of a stream is written: a translated response repeats its text five times."""
_MS_PER_S = 1_000
_S_PER_MINUTE = 60
_MINUTES_PER_HOUR = 60
_MAX_RESET_S = 99 * 3_600  # upper limit of reported resets
_SLACK_MS = 0.0005  # a reset of 9 ms may be slightly more than 9 ms as a float, and must not become 10 ms


class RawResponse(web.StreamResponse):
    """A response whose head is already written. aiohttp only reads from it whether to keep the connection open."""

    keep_alive = False
    _status, _reason = 200, "OK"

    def __init__(self) -> None:
        """Skip aiohttp's initializer, whose state serves only heads written by aiohttp."""

    async def prepare(self, request: web.BaseRequest) -> None:  # noqa: ARG002 - aiohttp's signature
        return  # the head is sent with the body

    async def write_eof(self, data: bytes = b"") -> None:  # noqa: ARG002 - aiohttp's signature
        return  # the end has been sent

    def build_head(self, request: web.Request, headers: dict[str, str], *, until_close: bool = False) -> bytes:
        """Build a head with status 200, and add the common headers to ``headers``.

        With ``until_close``, the end of the connection marks the end of the body. Raises ``ValueError`` for a line
        break in a header.
        """
        is_http_11 = request.version >= HttpVersion11
        self.keep_alive = keep_alive = request.keep_alive and not until_close
        headers |= build_common_headers(request)
        headers["Date"] = rfc822_formatted_time()
        if keep_alive != is_http_11:
            headers["Connection"] = "keep-alive" if keep_alive else "close"
        header_count = len(headers)
        block = "\r\n".join(map(": ".join, headers.items()))
        head = f"HTTP/1.{int(is_http_11)} 200 OK\r\n{block}\r\n\r\n".encode()
        # Bytes, because counting in a text takes twice as long.
        if head.count(b"\n") > header_count + 2 or head.count(b"\r") > header_count + 2:
            raise ValueError("a header is more than one line")
        return head


class BareResponse(web.Response):
    """A response without the ``Server`` header.

    Used for responses sent outside the application, which get no ``on_response_prepare`` signal
    (``add_common_headers``).
    """

    async def _prepare_headers(self) -> None:
        await super()._prepare_headers()
        self.headers.popall("Server", None)


class BufferedResponse(RawResponse):
    """A whole response of at most ``SMALL_BODY_BYTES`` bytes, sent in one write when aiohttp calls ``write_eof``."""

    def __init__(self, request: web.Request, body: bytes, headers: dict[str, str]) -> None:
        self._request = request
        headers["Content-Length"] = str(len(body))
        self._whole_body = self.build_head(request, headers) + body

    async def write_eof(self, data: bytes = b"") -> None:  # noqa: ARG002 - aiohttp's signature
        transport = send_first(self._request, self._whole_body)
        if self._request.protocol.writing_paused:  # the client sends requests without reading the responses
            await await_reader(self._request.writer.drain, transport)


def send_first(request: web.Request, data: bytes) -> asyncio.Transport:
    """Send the first bytes of a response. Raises ``ConnectionResetError`` if the client has disconnected."""
    transport = request.transport
    if transport is None or transport.is_closing():
        raise ConnectionResetError("the client disconnected")
    request.writer.output_size += len(data)  # tells aiohttp that the response has begun; later writes are not counted
    transport.write(data)
    return transport


async def await_reader(wait: Callable[[], Coroutine[Any, Any, None]], transport: asyncio.Transport) -> None:
    """Run ``wait`` as long as the client reads. Raises ``ConnectionError`` if it disconnects or stops reading.

    The progress checks do not cancel ``wait``, because aiohttp wakes a waiter only once.
    """
    wait_task = asyncio.ensure_future(wait())
    try:
        await await_first({wait_task}, transport)
    finally:
        wait_task.cancel()
    wait_task.result()


async def await_first(wait_tasks: set[asyncio.Future[None]], transport: asyncio.Transport) -> None:
    """Wait until one of ``wait_tasks`` is done.

    If the client stops reading, aborts the connection and raises ``ConnectionResetError``.
    """
    unsent_bytes = transport.get_write_buffer_size()
    finished_waits: set[asyncio.Future[None]] = set()
    while not finished_waits:
        finished_waits, _ = await asyncio.wait(wait_tasks, timeout=WRITE_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        earlier_bytes, unsent_bytes = unsent_bytes, transport.get_write_buffer_size()
        if not finished_waits and unsent_bytes >= earlier_bytes:
            transport.abort()
            raise ConnectionResetError("the client does not read")


async def add_common_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add the common headers to a response that aiohttp is about to send (``on_response_prepare`` signal)."""
    headers = response.headers
    headers.popall("Server", None)
    if request.path.startswith(PREFIX):  # also for errors: a proxy may cache a 404 without Cache-Control
        headers.setdefault("Cache-Control", "no-store")
        headers["X-Content-Type-Options"] = "nosniff"
    common_headers = build_common_headers(request)
    if "Vary" in common_headers and "Vary" in headers:
        names = f"{headers['Vary']}, {common_headers['Vary']}".split(", ")
        common_headers["Vary"] = ", ".join(dict.fromkeys(names))
    headers.update(common_headers)


def build_common_headers(request: web.Request) -> dict[str, str]:
    """Build the headers common to all responses.

    They have the request id, the headers that were set in the context, the caller's rate limits, what is left of the
    strictest spending limit, and how the request was routed: attempts, conversation, route, adapted fields and the time
    in a queue.
    """
    ctx = request.get(CONTEXT) or RequestContext(make_request_id())
    is_anthropic = request.path.startswith(ANTHROPIC_PATHS)
    headers = {"X-Request-Id": ctx.id, "request-id": ctx.id} if is_anthropic else {"X-Request-Id": ctx.id}
    if ctx.headers is not None:
        headers |= ctx.headers
    if attempts := ctx.attempts:
        last_attempt = attempts[-1]
        headers["x-gateway-attempts"] = str(len(attempts))
        if attempts[0].failure is not None:
            headers["x-gateway-tried"] = _format_failures(ctx)
        if last_attempt.affinity:
            headers["x-gateway-affinity"] = last_attempt.affinity
        if (place := last_attempt.target.place) is not None:
            headers["x-gateway-route"], headers["x-gateway-step"] = quote(place.route.name), str(place.step + 1)
        if adapted := last_attempt.translator.adapted:
            headers["x-gateway-adapted"] = format_adapted_fields(adapted)
    if ctx.queued_s:
        headers["x-gateway-queue-ms"] = str(round(ctx.queued_s * _MS_PER_S))
    if ctx.rate_limits is not None:
        headers |= build_limits(ctx.rate_limits)
    if (reservation := ctx.reservation) is not None and reservation.limit_left_nanos is not None:
        headers |= _build_money_left(reservation.limit_left_nanos, reservation.soft_limit)
    return headers


def _build_money_left(left_nanos: int, soft_limit: str) -> dict[str, str]:
    headers = {"x-gateway-limit-usd-left": usd(max(0, left_nanos))}
    return headers | {"x-gateway-limit-soft": quote(soft_limit)} if soft_limit else headers


def _format_failures(ctx: RequestContext) -> str:
    """List the failed attempts, without channel names: clients must not learn them."""
    failures = [attempt.failure for attempt in ctx.attempts if attempt.failure is not None]
    return ", ".join(f"{failure.code};ms={failure.ms}" for failure in failures)


def build_limits(status: RateLimitStatus) -> dict[str, str]:
    """Build ``x-ratelimit-{limit,remaining,reset}-{requests,tokens}`` for the configured rate limits.

    The limit is that of one minute. What remains is the amount that would pass now, at most the burst. The reset is the
    time until the full burst is available again, rounded up to milliseconds. Clients accept it only in the form of Go's
    ``time.Duration``: ``20ms``, ``1.5s``, ``6m0s``, ``1h0m0.25s`` (OpenAI API reference, "Rate limits in headers").
    """
    headers: dict[str, str] = {}
    if (window := status.requests) is not None:
        headers["x-ratelimit-limit-requests"] = str(window.limit)
        headers["x-ratelimit-remaining-requests"] = str(window.remaining)
        ms = math.ceil(min(window.reset_s, _MAX_RESET_S) * _MS_PER_S - _SLACK_MS)
        headers["x-ratelimit-reset-requests"] = _build_duration(ms)
    if (window := status.tokens) is not None:
        headers["x-ratelimit-limit-tokens"] = str(window.limit)
        headers["x-ratelimit-remaining-tokens"] = str(window.remaining)
        ms = math.ceil(min(window.reset_s, _MAX_RESET_S) * _MS_PER_S - _SLACK_MS)
        headers["x-ratelimit-reset-tokens"] = _build_duration(ms)
    return headers


@lru_cache(1024)
def _build_duration(ms: int) -> str:
    """Format milliseconds like Go: the largest unit first, no unit left out after it, no trailing zeros."""
    if ms < _MS_PER_S:
        return f"{ms}ms" if ms else "0s"
    seconds, ms = divmod(ms, _MS_PER_S)
    minutes, s = divmod(seconds, _S_PER_MINUTE)
    text = f"{s}.{ms:03}".rstrip("0") + "s" if ms else f"{s}s"
    if not minutes:
        return text
    hours, minutes = divmod(minutes, _MINUTES_PER_HOUR)
    return f"{hours}h{minutes}m{text}" if hours else f"{minutes}m{text}"


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
        earlier_bytes, self._left_bytes = self._left_bytes, self._left_bytes - len(data)
        if self._left_bytes < 0 <= earlier_bytes:
            asyncio.get_running_loop().call_soon(self._give_up)

    def abort(self) -> None: ...


class EventStreamResponse:
    """Implements ``proxy.client_stream.ClientStream`` for an aiohttp request."""

    __slots__ = (
        "_drain_task",
        "_has_head",
        "_is_chunked",
        "_protocol",
        "_request",
        "_transport",
        "_wake_future",
        "response",
    )

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._protocol: RequestHandler | DiscardingTransport = request.protocol
        self._transport: asyncio.Transport | None = None
        self._drain_task: asyncio.Future[None] | None = None
        self._wake_future: asyncio.Future[None] | None = None
        self._has_head = False
        self.response = RawResponse()
        self._is_chunked = request.version >= HttpVersion11

    @property
    def full(self) -> bool:
        return self._protocol.writing_paused

    def open(self, media_type: str, data: bytes) -> None:
        if self._has_head:
            self.write(data)
            return
        headers = {"Content-Type": media_type, **_STREAM_HEADERS}
        if self._is_chunked:
            headers["Transfer-Encoding"] = "chunked"
        header_block = self.response.build_head(self._request, headers, until_close=not self._is_chunked)
        try:
            self._transport = send_first(
                self._request, header_block + self._frame(data) if len(data) < SMALL_BODY_BYTES else header_block
            )
        except ConnectionError:
            if not isinstance(self._transport, DiscardingTransport):
                raise ClientDisconnected from None
        self._has_head = True
        if len(data) >= SMALL_BODY_BYTES:
            self.write(data)

    def _frame(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if data and self._is_chunked else data

    def write(self, data: bytes, framed: bytes | None = None) -> bool:
        transport = self._transport
        if not data or transport is None or transport.is_closing():
            return False
        if not self._is_chunked:
            transport.write(data)
        elif framed is not None:
            transport.write(framed)
        elif len(data) < SMALL_BODY_BYTES:
            transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        else:
            transport.write(b"%x\r\n" % len(data))
            transport.write(data)
            transport.write(b"\r\n")
        return self._protocol.writing_paused

    async def drain(self) -> None:
        if self._transport is None or not self.full:
            self._drain_task = None
            return
        reading, self._drain_task = self._drain_task or asyncio.ensure_future(self._request.writer.drain()), None
        woken = self._wake_future = asyncio.get_running_loop().create_future()
        try:
            await await_first({reading, woken}, self._transport)
            if reading.done():
                reading.result()
            else:  # kept for the next call: aiohttp wakes a waiter only once
                self._drain_task = reading
                reading.add_done_callback(_ignore_result)
        except ConnectionError:
            await asyncio.sleep(0)  # lets connection_lost() run first, which may call discard_writes()
            if not isinstance(self._transport, DiscardingTransport):
                raise ClientDisconnected from None
        finally:
            self._wake_future = None
            if self._drain_task is None:
                reading.cancel()

    async def _drain_whole(self) -> None:
        await self.drain()
        while self._drain_task is not None:  # wake() ended the wait early: the process is stopping
            await self.drain()

    def add_doc_url(self, error: GatewayError) -> None:
        add_doc_url(error, self._request)

    def wake(self) -> None:
        if self._wake_future is not None and not self._wake_future.done():
            self._wake_future.set_result(None)

    def discard_writes(self, max_bytes: int, give_up: Callable[[], None]) -> None:
        self._protocol = self._transport = DiscardingTransport(max_bytes, give_up)
        self.wake()

    def abort(self) -> None:
        """Abort the connection. Without chunks, reset it: a regular close would mark the body as complete."""
        if self._transport is None:
            return
        sock = self._transport.get_extra_info("socket")
        if not self._is_chunked and sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_OPTION)
        self._transport.abort()

    async def finish(self, data: bytes) -> None:
        if len(data) >= SMALL_BODY_BYTES:
            for start in range(0, len(data), _PIECE_BYTES):
                self.write(data[start : start + _PIECE_BYTES])
                await asyncio.sleep(0)  # yields to the event loop even if the network takes everything at once
                await self._drain_whole()
            data = b""
        await self._drain_whole()
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ClientDisconnected
        last_bytes = self._frame(data) + _LAST_CHUNK if self._is_chunked else data
        if last_bytes:
            transport.write(last_bytes)


def write_answer(request: web.Request, body: bytes, headers: dict[str, str]) -> web.StreamResponse:
    """Build a whole response with status 200, of any size."""
    return (
        BufferedResponse(request, body, headers)
        if len(body) <= SMALL_BODY_BYTES
        else LargeResponse(request, body, headers)
    )


class LargeResponse(web.Response):
    """A complete response of any size. If the client stops reading, it is disconnected. The end frees ``loan``."""

    def __init__(self, request: web.Request, body: bytes, headers: Mapping[str, str], loan: Loan | None = None) -> None:
        super().__init__(body=body, headers=headers)
        self._whole_body = body
        self._transport = request.transport
        self._loan = loan

    async def write_eof(self, data: bytes = b"") -> None:
        try:
            await self._write_eof(data)
        finally:
            if self._loan is not None:
                self._loan.close()

    async def _write_eof(self, data: bytes) -> None:
        transport, view = self._transport, memoryview(self._whole_body)
        if transport is None or len(view) <= SMALL_BODY_BYTES:
            return await super().write_eof(data)
        for start in range(0, len(view), SMALL_BODY_BYTES):
            await await_reader(partial(self.write, view[start : start + SMALL_BODY_BYTES]), transport)
        return await web.StreamResponse.write_eof(self)


def _ignore_result(reading: asyncio.Future[None]) -> None:
    """Retrieve the exception of an abandoned wait, to keep asyncio from logging it."""
    if not reading.cancelled():
        reading.exception()
