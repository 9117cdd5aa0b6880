"""Response classes that write their own head, together with the body in one write.

aiohttp's own responses are slower, and send the head of a stream separately. Inference responses use these classes; all
others use aiohttp's.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from aiohttp import HttpVersion11, web
from aiohttp.helpers import rfc822_formatted_time

from gateway.domain.request_log import build_adapted
from gateway.formats.wire.rate_limit_headers import build_limits
from gateway.request_context import RequestContext, make_request_id
from gateway.server.admin.prefix import PREFIX
from gateway.server.context import CONTEXT
from gateway.server.error_responses import ANTHROPIC_PATHS

WRITE_TIMEOUT_S = 60.0
"""Time without any progress before a connection with a full write buffer is aborted. Slow readers are not aborted."""
SMALL = 64 * 1024
"""Maximum size in bytes of a body that is sent with its head in one write, without waiting for the client."""


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
        """Build a head with status 200. ``until_close``: the end of the connection marks the end of the body."""
        newer = request.version >= HttpVersion11
        self.keep_alive = stays = request.keep_alive and not until_close
        headers |= build_common_headers(request)
        headers["Date"] = rfc822_formatted_time()
        if stays != newer:
            headers["Connection"] = "keep-alive" if stays else "close"
        lines = len(headers)
        block = "\r\n".join(map(": ".join, headers.items()))
        if block.count("\n") >= lines or block.count("\r") >= lines:
            raise ValueError("a header is more than one line")
        return f"HTTP/1.{int(newer)} 200 OK\r\n{block}\r\n\r\n".encode()


class BareResponse(web.Response):
    """A response from outside the application, whose signal cannot remove the ``Server`` header."""

    async def _prepare_headers(self) -> None:
        await super()._prepare_headers()
        self.headers.popall("Server", None)


class BufferedResponse(RawResponse):
    """A whole response of at most ``SMALL`` bytes, sent in one write when aiohttp calls ``write_eof``."""

    def __init__(self, request: web.Request, body: bytes, headers: dict[str, str]) -> None:
        self._request = request
        headers["Content-Length"] = str(len(body))
        self._whole = self.build_head(request, headers) + body

    async def write_eof(self, data: bytes = b"") -> None:  # noqa: ARG002 - aiohttp's signature
        transport = send(self._request, self._whole)
        if self._request.protocol.writing_paused:  # the client sends requests without reading the responses
            await await_reader(self._request.writer.drain, transport)


def send(request: web.Request, data: bytes) -> asyncio.Transport:
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
    waiting = asyncio.ensure_future(wait())
    try:
        await watch({waiting}, transport)
    finally:
        waiting.cancel()
    waiting.result()


async def watch(waiting: set[asyncio.Future[None]], transport: asyncio.Transport) -> None:
    """Wait until one of ``waiting`` is done. Raises ``ConnectionResetError`` if the client stops reading."""
    left = transport.get_write_buffer_size()
    done: set[asyncio.Future[None]] = set()
    while not done:
        done, _ = await asyncio.wait(waiting, timeout=WRITE_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        before, left = left, transport.get_write_buffer_size()
        if not done and left >= before:
            transport.abort()
            raise ConnectionResetError("the client does not read")


async def add_common_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add the common headers to a response that aiohttp is about to send (``on_response_prepare`` signal)."""
    headers = response.headers
    headers.popall("Server", None)
    if request.path.startswith(PREFIX):  # also for errors: a proxy may cache a 404 without Cache-Control
        headers.setdefault("Cache-Control", "no-store")
        headers["X-Content-Type-Options"] = "nosniff"
    common = build_common_headers(request)
    if "Vary" in common and "Vary" in headers:
        names = f"{headers['Vary']}, {common['Vary']}".split(", ")
        common["Vary"] = ", ".join(dict.fromkeys(names))
    headers.update(common)


def build_common_headers(request: web.Request) -> dict[str, str]:
    """Build the headers common to all responses: request id, rate limits of the caller, number of attempts."""
    ctx = request.get(CONTEXT) or RequestContext(make_request_id())
    headers = {"X-Request-Id": ctx.id}
    if request.path.startswith(ANTHROPIC_PATHS):
        headers["request-id"] = ctx.id
    if ctx.headers is not None:
        headers |= ctx.headers
    if ctx.attempts:
        headers["x-gateway-attempts"] = str(len(ctx.attempts))
        if ctx.attempts[0].failure is not None:
            headers["x-gateway-tried"] = _list_failures(ctx)
        if adapted := ctx.attempts[-1].translator.adapted:
            headers["x-gateway-adapted"] = build_adapted(adapted)
    if ctx.rate_limits is not None:
        headers |= build_limits(ctx.rate_limits)
    return headers


def _list_failures(ctx: RequestContext) -> str:
    """List the failed attempts, without channel names: clients must not learn them."""
    failures = [attempt.failure for attempt in ctx.attempts if attempt.failure is not None]
    return ", ".join(f"{failure.code};ms={failure.ms}" for failure in failures)
