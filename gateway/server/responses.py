"""Answers whose head the gateway writes itself, in one piece with what follows it.

aiohttp's own way is made for every kind of response there is, and sends the head of a stream by itself. These two are
what a call is answered with; everything else is aiohttp's.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from aiohttp import HttpVersion11, web
from aiohttp.helpers import rfc822_formatted_time

from gateway.formats.openai.rate_limit_headers import build_limits
from gateway.request_context import RequestContext, make_request_id
from gateway.server.admin.operation import PREFIX
from gateway.server.context import CONTEXT
from gateway.server.error_responses import ANTHROPIC_PATHS

WRITE_TIMEOUT_S = 60.0
"""How long a caller may leave a full buffer unread before it is cut off. One that reads on, however slowly, is not."""
SMALL = 64 * 1024
"""Bytes that may be copied into one piece with their head, and written without a look at their reader."""


class RawResponse(web.StreamResponse):
    """What aiohttp asks of a response once it has been returned to it: whether the connection stays."""

    keep_alive = False
    """Whether another request may follow on the connection."""
    _status, _reason = 200, "OK"

    def __init__(self) -> None:
        """Nothing: aiohttp's own state is for heads that it writes."""

    async def prepare(self, request: web.BaseRequest) -> None:  # noqa: ARG002 - aiohttp's signature
        """The head goes with the body."""
        return

    async def write_eof(self, data: bytes = b"") -> None:  # noqa: ARG002 - aiohttp's signature
        """The end has been written."""
        return

    def write_head(self, request: web.Request, said: dict[str, str], *, until_close: bool = False) -> bytes:
        """Status 200 and ``said``, to which what all answers say is added; ``until_close``: the connection ends it."""
        newer = request.version >= HttpVersion11
        self.keep_alive = stays = request.keep_alive and not until_close
        said |= build_common_headers(request)
        said["Date"] = rfc822_formatted_time()
        if stays != newer:
            said["Connection"] = "keep-alive" if stays else "close"
        lines = len(said)
        block = "\r\n".join(map(": ".join, said.items()))
        if block.count("\n") >= lines or block.count("\r") >= lines:
            raise ValueError("a header is more than one line")
        return f"HTTP/1.{int(newer)} 200 OK\r\n{block}\r\n\r\n".encode()


class BareResponse(web.Response):
    """A response outside the application, where no signal takes the server's name off it."""

    async def _prepare_headers(self) -> None:
        await super()._prepare_headers()
        self.headers.popall("Server", None)


class BufferedResponse(RawResponse):
    """A whole answer of at most ``SMALL`` bytes: one piece, written when aiohttp asks for its end."""

    def __init__(self, request: web.Request, body: bytes, headers: dict[str, str]) -> None:
        self._request = request
        headers["Content-Length"] = str(len(body))
        self._whole = self.write_head(request, headers) + body

    async def write_eof(self, data: bytes = b"") -> None:  # noqa: ARG002 - aiohttp's signature
        """Send it. Raises ``ConnectionError`` where the caller has left, or reads nothing of what was sent before."""
        transport = send(self._request, self._whole)
        if self._request.protocol.writing_paused:  # who sends request after request, and reads no answer
            await await_reader(self._request.writer.drain, transport)


def send(request: web.Request, data: bytes) -> asyncio.Transport:
    """Begin an answer. Raises ``ConnectionResetError`` where the caller has left."""
    transport = request.transport
    if transport is None or transport.is_closing():
        raise ConnectionResetError("the caller left")
    request.writer.output_size += len(data)  # that it has begun; what follows is not counted
    transport.write(data)
    return transport


async def await_reader(wait: Callable[[], Coroutine[Any, Any, None]], transport: asyncio.Transport) -> None:
    """``wait`` for a reader who reads on. Raises ``ConnectionError`` where it left, or read nothing for too long.

    What waits is not cancelled for a look at what is left: aiohttp would not be told a second time.
    """
    waiting = asyncio.ensure_future(wait())
    try:
        await watch({waiting}, transport)
    finally:
        waiting.cancel()
    waiting.result()


async def watch(waiting: set[asyncio.Future[None]], transport: asyncio.Transport) -> None:
    """Until one of them is done, while something is read of what was written. Raises ``ConnectionResetError``."""
    left = transport.get_write_buffer_size()
    done: set[asyncio.Future[None]] = set()
    while not done:
        done, _ = await asyncio.wait(waiting, timeout=WRITE_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        before, left = left, transport.get_write_buffer_size()
        if not done and left >= before:
            transport.abort()
            raise ConnectionResetError("the caller does not read")


async def add_common_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add the common headers to a response that aiohttp is about to send; a signal of the application."""
    headers = response.headers
    headers.popall("Server", None)
    if request.path.startswith(PREFIX):  # of errors too: a proxy may cache a 404 that has no Cache-Control
        headers.setdefault("Cache-Control", "no-store")
        headers["X-Content-Type-Options"] = "nosniff"
    common = build_common_headers(request)
    if "Vary" in common and "Vary" in headers:
        common["Vary"] = f"{headers['Vary']}, {common['Vary']}"
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
    if ctx.rate_limits is not None:
        headers |= build_limits(ctx.rate_limits)
    return headers


def _list_failures(ctx: RequestContext) -> str:
    """List the failed attempts without the names of their channels, which clients must not learn."""
    failures = [attempt.failure for attempt in ctx.attempts if attempt.failure is not None]
    return ", ".join(f"{failure.outcome};ms={failure.ms}" for failure in failures)
