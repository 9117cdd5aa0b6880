"""The HTTP client for providers on top of aiohttp's ClientSession. aiohttp's exceptions are translated here."""

import asyncio
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import NoReturn

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http import RawResponseMessage
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from gateway.domain.http_request import HttpRequest
from gateway.domain.upload import Content
from gateway.errors import GatewayError, ProviderBadResponse, ProviderError, ProviderTimeout, ProxyRefused
from gateway.formats.openai.errors import describe_status
from gateway.upstream.decompress import Decompressor, open_inflation
from gateway.upstream.exhaustion import find_exhaustion
from gateway.upstream.interface import (
    IDEMPOTENT,
    RESEND_WITHIN_S,
    HttpResponse,
    PumpResult,
    Sink,
    StaleConnection,
    read_pushed,
)
from gateway.upstream.request_body import ContentPayload
from gateway.upstream.unreachable import build_unreachable

READ_BUFFER = 64 * 1024
"""For a connection; aiohttp's default of 256 KB is four times what a slow reader should hold."""
KEEPALIVE_S = 30
END_GRACE_S = 1.0
"""How long after the end mark of the stream the end of the response may come, so that the connection is reused."""
_BODILESS = frozenset({204, 304})
MAX_INTERIM = 16
_INTERIM = frozenset(range(100, 200)) - {101}
_Head = tuple[RawResponseMessage, aiohttp.StreamReader]
_REFUSED = 400
_HEAD_END = b"\r\n\r\n"
_ONE_PIECE = 1024 * 1024
_FOREIGN = (aiohttp.ClientError, aiohttp.EofStream, HttpProcessingError, OSError, ValueError)


class AiohttpResponse:
    """``HttpResponse`` over a response of aiohttp."""

    __slots__ = ("_ending", "_error", "_inflation", "_response", "_tasks")

    def __init__(self, response: aiohttp.ClientResponse, tasks: set[asyncio.Task[None]]) -> None:
        self._response = response
        self._inflation = _open_inflation(response)
        self._tasks = tasks
        self._error: ProviderError | None = None
        self._ending = False

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    async def read(self, limit: int) -> bytes:
        body = await read_pushed(self, limit, self._response.content_length)
        if body is None:
            self._response.close()
            raise ProviderBadResponse(f"The provider's answer is larger than {limit} bytes", phase="body")
        return body

    async def pump(self, sink: Sink) -> PumpResult:
        read = self._response.content.readany if self._inflation is None else partial(self._inflate, self._inflation)
        try:
            while True:
                piece = await read()
                if self._error is not None:
                    raise self._error
                if not piece:
                    return PumpResult.ENDED
                if sink(piece, None):  # aiohttp has removed the framing
                    return PumpResult.PAUSED
        except zlib.error as error:
            self._response.close()
            raise ProviderBadResponse("The provider's answer is not valid HTTP", phase="body") from error
        except _FOREIGN as error:
            if self._error is not None:
                raise self._error from None
            raise_translated(error, "body")

    async def _inflate(self, inflation: Decompressor) -> bytes:
        """Return the next decoded piece; empty at the end. aiohttp's own decoder does not notice a truncated body."""
        await asyncio.sleep(0)  # one small piece may decode to many
        content = self._response.content
        while not (piece := inflation.take()):
            if data := await content.readany():
                inflation.feed(data)
            else:
                inflation.end()
                break
        return piece

    def abort(self, error: ProviderError) -> None:
        if self._error is None:
            self._error = error
        self._response.close()

    def close(self) -> None:
        if self._ending:
            return
        content = self._response.content
        if content.at_eof() and content.exception() is None:
            self._response.release()
        else:
            self._response.close()

    def finish(self) -> None:
        if self._response.content.at_eof() or self._response.closed:
            self.close()
            return
        self._ending = True
        task = asyncio.get_running_loop().create_task(self._await_end())
        self._tasks.add(task)
        task.add_done_callback(self._end)

    async def _await_end(self) -> None:
        # Anything but the end is a byte after the end: the connection is not reused.
        try:
            async with asyncio.timeout(END_GRACE_S):
                await self._response.content.readany()
        except (aiohttp.ClientError, HttpProcessingError, OSError):
            pass

    def _end(self, task: asyncio.Task[None]) -> None:
        # Not in the task itself: one that is cancelled before its first step runs no ``finally``.
        self._tasks.discard(task)
        self._ending = False
        self.close()


class _Protocol(ResponseHandler):
    """aiohttp's connection, strict about reuse.

    aiohttp reuses a connection although bytes came without a request (they would be taken for the next answer). It
    reports a broken chunk to the connection and not to the reader of the body, forgets a head that came in one piece
    with a broken body, and does not know whether any byte of a response has come. It takes the class of its connections
    from a private attribute; the contract tests of HTTP clients check that it still does.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.requested = 0
        self.written_at: float | None = None
        self.busy = True  # a tunnel through a proxy is asked for by aiohttp itself
        self.heard = False
        self.headed = False
        self.refused = False
        self.interim = 0
        self._tail = b""

    def ask(self) -> None:
        """Reset the state: a request is about to be sent."""
        self.requested += 1
        self.note_written()
        self.busy = True
        self.heard = False
        self.headed = False
        self.refused = False
        self.interim = 0
        self._tail = b""

    def note_written(self) -> None:
        """Note that the whole request has been given to the transport."""
        self.written_at = self._loop.time()

    def rest(self) -> None:
        """Note that the request is over."""
        self.busy = False

    def close(self) -> None:
        """Close without sending the rest: a provider that does not read would keep the connection open for ever."""
        if self.transport is not None and self.transport.get_write_buffer_size():
            self.abort()
        else:
            super().close()

    def feed_data(self, data: _Head, size: int = 0) -> None:
        """Handle a head. aiohttp skips any number of interim responses (1xx); a few are enough."""
        if data[0].code in _INTERIM:
            self.interim += 1
            if self.interim > MAX_INTERIM:
                self.set_exception(aiohttp.ClientPayloadError("The provider sends interim answers without end"))
                if self.transport is not None:
                    self.transport.close()
                return
        else:
            self.headed = True
        self.refused = data[0].code >= _REFUSED
        super().feed_data(data, size)

    def data_received(self, data: bytes) -> None:
        if data and not self.busy:
            self.abort()
            return
        self.heard = True
        while not self.headed and (end := self._find_head_end(data)):
            super().data_received(data[:end])
            data = data[end:]
            if not data or self._exception is not None:
                break
        else:
            super().data_received(data)
        payload = self._payload
        if self._exception is not None and payload is not None and not payload.is_eof():
            payload.set_exception(aiohttp.ClientPayloadError("The body is not framed as its headers say"))

    def _find_head_end(self, data: bytes) -> int:
        """Return how many bytes of ``data`` end the head; 0 if it does not end there."""
        before, seen = len(self._tail), self._tail + data
        at = seen.find(_HEAD_END)
        self._tail = seen[1 - len(_HEAD_END) :] if at < 0 else b""
        return 0 if at < 0 else at + len(_HEAD_END) - before


class _Request(aiohttp.ClientRequest):
    """aiohttp's request, which keeps its connection and reports when it has been written."""

    protocol: _Protocol | None = None
    on_written: Callable[[], None] | None = None

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        protocol = conn.protocol
        if isinstance(protocol, _Protocol):
            self.protocol = protocol
            protocol.ask()
            if isinstance(self.body, ContentPayload):
                self.body.line = protocol
                protocol.written_at = None
                self.body.on_written = self.on_written
            conn.add_callback(protocol.rest)
        response = await super().send(conn)
        if self.on_written is not None and not isinstance(self.body, ContentPayload):
            self.on_written()
        return response

    @property
    def died_unheard(self) -> bool:
        """Whether it failed on a reused connection, without a byte of a response."""
        return self.protocol is not None and self.protocol.requested > 1 and not self.protocol.heard

    @property
    def died_unread(self) -> bool:
        """Whether it failed too soon after it was written for the provider to have processed it."""
        written_at = None if self.protocol is None else self.protocol.written_at
        return written_at is None or self.loop.time() - written_at <= RESEND_WITHIN_S


class AiohttpClient:
    """``HttpClient`` over two sessions of aiohttp: one reuses connections, the other never does."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._pooled = _open_session(aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S))
        self._fresh = _open_session(aiohttp.TCPConnector(limit=0, force_close=True))

    async def send(self, http_request: HttpRequest) -> HttpResponse:
        sent: list[_Request] = []
        try:
            response = await _request(self._fresh if http_request.once else self._pooled, http_request, sent)
        except _FOREIGN as error:
            if http_request.once or not (_is_broken(error) and sent and sent[-1].died_unheard):
                raise_translated(error, "headers")
            if http_request.method not in IDEMPOTENT:
                if sent[-1].died_unread:
                    raise StaleConnection("The provider broke the connection", phase="headers") from error
                raise_translated(error, "headers")
            try:
                response = await _request(self._fresh, http_request, sent)
            except _FOREIGN as again:
                raise_translated(again, "headers")
        try:
            return AiohttpResponse(response, self._tasks)
        except ProviderBadResponse:
            response.close()
            raise

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._pooled.close()
        await self._fresh.close()


def _open_inflation(response: aiohttp.ClientResponse) -> Decompressor | None:
    """Return the decompressor of the body; None for none. Raises ``ProviderBadResponse``."""
    first, *more = response.headers.getall("Content-Encoding", [""])
    encoding = first.strip().lower()
    inflation = open_inflation(None if more else "" if encoding == "identity" else encoding)
    return None if response.method == "HEAD" or response.status in _BODILESS else inflation


def _open_session(connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
    factory = partial(_Protocol, loop=asyncio.get_running_loop())
    connector._factory = factory  # type: ignore[assignment]  # noqa: SLF001 - see _Protocol
    return aiohttp.ClientSession(
        connector=connector,
        request_class=_Request,
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=READ_BUFFER,
        auto_decompress=False,
        skip_auto_headers=("User-Agent",),
        trust_env=False,
    )


async def _request(
    session: aiohttp.ClientSession, http_request: HttpRequest, sent: list[_Request]
) -> aiohttp.ClientResponse:
    async def remember(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        if isinstance(request, _Request):
            sent.append(request)
            request.on_written = http_request.on_written
        return await send(request)

    timeouts = http_request.timeouts
    return await session.request(
        http_request.method,
        URL(http_request.url, encoded=True) if http_request.exact else http_request.url,
        data=_wrap_body(http_request.body),
        headers=http_request.headers,
        proxy=http_request.proxy,
        allow_redirects=False,
        middlewares=(remember,),
        timeout=aiohttp.ClientTimeout(total=timeouts.total_s, connect=timeouts.connect_s, ceil_threshold=60),
    )


def _wrap_body(body: bytes | Content | None) -> bytes | ContentPayload | None:
    # aiohttp writes bytes in one piece and warns of it above 1 MB.
    if isinstance(body, bytes) and len(body) > _ONE_PIECE:
        body = Content((body,))
    return ContentPayload(body) if isinstance(body, Content) else body


def _is_broken(error: Exception) -> bool:
    """Return whether an established connection failed."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return False
    return isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)


def raise_translated(error: Exception, phase: str) -> NoReturn:
    """Raise an exception of aiohttp as one of the gateway's, with the original as its cause for the log."""
    if isinstance(error.__cause__, GatewayError):  # it came from the request body
        raise error.__cause__
    if (exhausted := find_exhaustion(error)) is not None:
        raise exhausted
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        raise ProviderTimeout("Connecting to the provider took too long", phase="connect") from error
    if isinstance(error, TimeoutError):
        raise ProviderTimeout("The provider took too long to answer", phase=phase) from error
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        raise ProviderBadResponse(
            "The provider's TLS certificate or handshake was not accepted", phase="connect"
        ) from error
    if isinstance(error, aiohttp.ClientConnectorError):
        raise build_unreachable(error.os_error) from error
    if isinstance(error, aiohttp.ClientHttpProxyError):
        raise ProxyRefused(describe_status(error.status)) from error
    if isinstance(error, aiohttp.InvalidURL | ValueError):
        raise ProviderBadResponse("The channel's address or headers cannot be sent", phase="connect") from error
    if isinstance(error, aiohttp.ClientResponseError | HttpProcessingError):
        raise ProviderBadResponse("The provider's answer is not valid HTTP", phase=phase) from error
    raise ProviderBadResponse("The provider broke the connection", phase=phase) from error
