"""Responses whose head the gateway writes itself, in one write with the body.

aiohttp's own responses are slower and send the head of a stream separately. Inference requests are answered with these
classes; everything else uses aiohttp's.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from aiohttp import HttpVersion11, web
from aiohttp.helpers import rfc822_formatted_time

from gateway.domain.request_log import build_adapted
from gateway.formats.openai.rate_limit_headers import build_limits
from gateway.request_context import RequestContext, make_request_id
from gateway.server.admin.prefix import PREFIX
from gateway.server.context import CONTEXT
from gateway.server.error_responses import ANTHROPIC_PATHS

WRITE_TIMEOUT_S = 60.0
"""How long a client may leave a full buffer unread before its connection is aborted. A slow reader is not aborted."""
SMALL = 64 * 1024
"""Bytes up to which a body is copied behind its head, and written without waiting for the client."""


class RawResponse(web.StreamResponse):
    """The part of a response that aiohttp needs when a handler returns it: whether the connection is kept open."""

    keep_alive = False
    _status, _reason = 200, "OK"

    def __init__(self) -> None:
        """Skip aiohttp's: its state is for heads that it writes."""

    async def prepare(self, request: web.BaseRequest) -> None:  # noqa: ARG002 - aiohttp's signature
        return  # the head is sent with the body

    async def write_eof(self, data: bytes = b"") -> None:  # noqa: ARG002 - aiohttp's signature
        return  # the end has been sent

    def write_head(self, request: web.Request, headers: dict[str, str], *, until_close: bool = False) -> bytes:
        """Build a head with status 200, ``headers`` and the common ones; ``until_close``: closing ends the body."""
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
    """A response outside the application, where no signal removes the ``Server`` header."""

    async def _prepare_headers(self) -> None:
        await super()._prepare_headers()
        self.headers.popall("Server", None)


class BufferedResponse(RawResponse):
    """A whole response of at most ``SMALL`` bytes, sent in one write when aiohttp calls ``write_eof``."""

    def __init__(self, request: web.Request, body: bytes, headers: dict[str, str]) -> None:
        self._request = request
        headers["Content-Length"] = str(len(body))
        self._whole = self.write_head(request, headers) + body

    async def write_eof(self, data: bytes = b"") -> None:  # noqa: ARG002 - aiohttp's signature
        """Send it. Raises ``ConnectionError`` if the client has disconnected, or does not read earlier responses."""
        transport = send(self._request, self._whole)
        if self._request.protocol.writing_paused:  # a client that sends requests and reads no response
            await await_reader(self._request.writer.drain, transport)


def send(request: web.Request, data: bytes) -> asyncio.Transport:
    """Send the beginning of a response. Raises ``ConnectionResetError`` if the client has disconnected."""
    transport = request.transport
    if transport is None or transport.is_closing():
        raise ConnectionResetError("the client disconnected")
    request.writer.output_size += len(data)  # marks that the response has begun; later writes are not counted
    transport.write(data)
    return transport


async def await_reader(wait: Callable[[], Coroutine[Any, Any, None]], transport: asyncio.Transport) -> None:
    """Run ``wait`` while the client reads. Raises ``ConnectionError`` if it disconnects, or reads nothing for too long.

    ``wait`` is not cancelled to check the progress: aiohttp wakes a waiter only once.
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
    """Add the common headers to a response that aiohttp is about to send; a signal of the application."""
    headers = response.headers
    headers.popall("Server", None)
    if request.path.startswith(PREFIX):  # of errors too: a proxy may cache a 404 that has no Cache-Control
        headers.setdefault("Cache-Control", "no-store")
        headers["X-Content-Type-Options"] = "nosniff"
    common = build_common_headers(request)
    if "Vary" in common and "Vary" in headers:
        names = f"{headers['Vary']}, {common['Vary']}".split(", ")
        common["Vary"] = ", ".join(dict.fromkeys(names))
    headers.update(common)


def build_common_headers(request: web.Request) -> dict[str, str]:
    """Build the headers of every response: the request id, the caller's rate limits, the number of attempts."""
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
    """List the failed attempts without the names of their channels, which clients must not learn."""
    failures = [attempt.failure for attempt in ctx.attempts if attempt.failure is not None]
    return ", ".join(f"{failure.code};ms={failure.ms}" for failure in failures)
