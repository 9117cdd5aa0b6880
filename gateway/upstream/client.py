"""The HTTP client for providers, on asyncio transports: one write per request, one call per received piece.

Exceptions of libraries are translated here, in ``connection.py`` and in ``connector.py``.
"""

import asyncio
import ssl
import zlib
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import NoReturn

from gateway.domain.http_request import HttpRequest
from gateway.domain.upload import Content
from gateway.errors import ProviderBadResponse, ProviderError, ProviderTimeout
from gateway.upstream import interface
from gateway.upstream.access_tokens import AuthorizedHttpClient
from gateway.upstream.connection import Connection, is_refused
from gateway.upstream.connector import Connector, open_context
from gateway.upstream.decompress import open_inflation
from gateway.upstream.dns_cache import Resolve, resolve
from gateway.upstream.environment_proxy import FindProxy, use_channels_proxy
from gateway.upstream.pool import Origin, Pool
from gateway.upstream.request_body import read_content
from gateway.upstream.request_head import RequestHead, RequestHeadBuilder
from gateway.upstream.response_parser import MAX_PUSH_BYTES, Headers

ONE_WRITE_BYTES = 256 * 1024
"""A larger body is sent in pieces, as fast as the provider reads. Sending stops if the provider refuses it."""
_TURN = 32
_TURN_BYTES = MAX_PUSH_BYTES // _TURN
"""Size of one share. A piece uses one share for each ``_TURN_BYTES`` begun; ``_TURN`` shares are passed on per turn of
the event loop."""


class PooledHttpResponse:
    """A response at its headers. Raises ``ProviderBadResponse`` if its encoding is unknown."""

    __slots__ = ("_error", "_head", "_inflation", "_line", "status")

    def __init__(self, connection: Connection) -> None:
        framing = connection.framing
        self._line: Connection | None = connection
        self._error: ProviderError | None = None
        self._inflation = None if framing.encoding == "" else open_inflation(framing.encoding)
        self._head = framing.head
        self.status = framing.status

    @property
    def headers(self) -> Mapping[str, str]:
        return Headers(self._head)

    async def read(self, limit: int) -> bytes:
        connection = self._line or self._refuse_line()
        framing = connection.framing
        if framing.complete and self._inflation is None and connection.error is None:
            body = connection.pop_all()
            if len(body) <= limit:
                return body
            raise self._refuse_size(limit)
        whole = await interface.read_pushed(self, limit, framing.length)
        if whole is None:
            raise self._refuse_size(limit)
        return whole

    async def pump(self, sink: interface.Sink) -> interface.PumpResult:
        connection = self._line or self._refuse_line()
        take = Connection.pop if self._inflation is None else self._inflate
        turns = 0
        while True:
            connection.check()
            if piece := take(connection):
                share = -(-len(piece) // _TURN_BYTES)
                if turns and turns + share > _TURN:
                    turns = 0
                    await asyncio.sleep(0)
                    (self._line or self._refuse_line()).check()
                if sink(piece, None):
                    return interface.PumpResult.PAUSED
                turns += share
            elif connection.framing.complete:
                return interface.PumpResult.ENDED
            elif connection.gone:
                raise connection.broken or ProviderBadResponse("The provider broke the connection", phase="body")
            elif turns:  # else data read in this turn would exceed the turn's limit
                turns = 0
                await asyncio.sleep(0)
            else:
                paused = await connection.follow(sink if self._inflation is None else None)
                # The sink's decision takes precedence over any later event.
                if connection.sink_error is None and paused:
                    return interface.PumpResult.PAUSED

    def abort(self, error: ProviderError) -> None:
        self._error = self._error or error
        if self._line is not None:
            self._line.fail(error)

    def finish(self) -> None:
        if self._line is not None:
            connection, self._line = self._line, None
            connection.finish()

    def close(self) -> None:
        connection = self._line
        if connection is not None:
            self._line = None
            connection.release()

    def _refuse_line(self) -> NoReturn:
        raise self._error or ProviderBadResponse("The provider broke the connection", phase="body")

    def _refuse_size(self, limit: int) -> ProviderBadResponse:
        error = ProviderBadResponse(f"The provider's answer is larger than {limit} bytes", phase="body")
        if self._line is not None:
            self._line.abort()
        return error

    def _inflate(self, connection: Connection) -> bytes:
        inflation = self._inflation
        if inflation is None:
            return b""
        try:
            while not (piece := inflation.take()) and connection.backlog:
                inflation.feed(connection.pop())
            if not piece and connection.framing.complete:
                inflation.end()
        except zlib.error as error:
            connection.abort()
            raise ProviderBadResponse("The provider's answer is not valid HTTP", phase="body") from error
        return piece


class PooledHttpClient:
    """``HttpClient`` with its own connection pool.

    ``resolve``: resolves names to addresses; raises ``OSError``. ``trust``: creates the TLS context, once, when the
    first connection needs it. ``access_tokens``: sends requests that have a ``grant``.
    """

    def __init__(
        self,
        resolve: Resolve = resolve,
        trust: Callable[[], ssl.SSLContext] = open_context,
        find_proxy: FindProxy = use_channels_proxy,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._pool = Pool()
        self._heads = RequestHeadBuilder()
        self._dialer = Connector(resolve, trust)
        self._find_proxy = find_proxy
        self.access_tokens = AuthorizedHttpClient(self)

    async def send(self, http_request: HttpRequest) -> interface.HttpResponse:
        head = http_request.template.head if http_request.template is not None else None
        if not isinstance(head, RequestHead):
            if http_request.grant is not None:
                return await self.access_tokens.send(http_request)
            head = self._build_head(http_request)
        body = http_request.body
        if isinstance(body, bytes) and len(body) <= ONE_WRITE_BYTES:
            data, rest = head.build(len(body)) + body, None
        else:
            rest = Content((body,)) if isinstance(body, bytes) else body
            data = head.build(None if rest is None else rest.length)
        written = self._loop.time()
        deadline = written + http_request.timeouts.total_s
        connection = None if http_request.once else self._pool.acquire(head.origin, deadline)
        kept = connection is not None
        while True:
            if connection is None:
                connection = await self._open(head.origin, http_request.timeouts.connect_s, deadline)
            framing = connection.framing
            try:
                connection.ask(data)
                written = written if rest is None else await _send_content(connection, rest)
                if http_request.on_written is not None and connection.sent and not connection.gone:
                    http_request.on_written()
                while not (framing.headed or connection.gone):
                    await connection.wait()
                if framing.headed and connection.error is None:
                    return PooledHttpResponse(connection)
            except BaseException:
                connection.abort()
                raise
            _check_resendable(connection, http_request.method, kept=kept, since_s=self._loop.time() - written)
            connection, kept = None, False

    async def close(self) -> None:
        await self.access_tokens.stop()
        await self._dialer.close()
        await self._pool.close()

    def _build_head(self, http_request: HttpRequest) -> RequestHead:
        head = self._heads.build(http_request, self._find_proxy(http_request.proxy, http_request.url))
        if http_request.template is not None:
            http_request.template.head = head
        return head

    async def _open(self, origin: Origin, connect_s: float, deadline: float) -> Connection:
        connection = self._pool.open(origin)
        try:
            async with asyncio.timeout_at(min(self._loop.time() + connect_s, deadline)):
                await self._dialer.dial(origin, connection)
        except TimeoutError as error:
            raise ProviderTimeout("Connecting to the provider took too long", phase="connect") from error
        if self._pool.closed:
            connection.abort()
            raise ProviderBadResponse("The gateway is being stopped", phase="connect")
        self._pool.add(connection, deadline)
        return connection


def _check_resendable(connection: Connection, method: str, *, kept: bool, since_s: float) -> None:
    """Return if an unanswered idempotent request may be sent again at once, because a reused connection broke.

    Else raise the error: ``StaleConnection`` if the provider cannot have processed the request, because the connection
    broke at most ``RESEND_WITHIN_S`` after the request was written or before all of it was sent. ``since_s``: seconds
    since the request was written.
    """
    connection.check()
    broken = connection.broken or ProviderBadResponse("The provider broke the connection", phase="headers")
    if not kept or connection.response_begun:
        raise broken
    if method in interface.IDEMPOTENT:
        return
    if connection.sent and since_s > interface.RESEND_WITHIN_S:
        raise broken
    raise interface.StaleConnection(broken.message, phase="headers") from broken.__cause__


async def _send_content(connection: Connection, content: Content) -> float:
    """Send a body as fast as the provider reads, until it refuses. Return the end of sending (loop time)."""
    loop = asyncio.get_running_loop()
    connection.sent = False
    async with aclosing(read_content(content)) as pieces:
        async for piece in pieces:
            while connection.write_paused and not (
                connection.gone or connection.refused or connection.framing.complete
            ):
                await connection.wait()
            if await is_refused(connection) or connection.gone or connection.framing.complete:
                return loop.time()
            connection.write(piece)
    connection.sent = True
    return loop.time()
