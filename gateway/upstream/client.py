"""The HTTP client for providers, on asyncio transports: one write for a small request, one call per received piece.

Exceptions of libraries are translated here, in ``connection.py`` and in ``connector.py``.
"""

import asyncio
import re
import ssl
import zlib
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import NoReturn

import attrs
from yarl import URL

from gateway.domain.http_request import HttpRequest
from gateway.domain.upload import Content
from gateway.errors import ProviderBadResponse, ProviderError, ProviderTimeout
from gateway.frozen import quick_frozen
from gateway.upstream import interface
from gateway.upstream.access_tokens import AuthorizedHttpClient
from gateway.upstream.connection import Connection, Origin, Pool, is_refused
from gateway.upstream.connector import Connector, build_proxy_authorization, make_unsendable_error, open_context
from gateway.upstream.decompress import open_inflation
from gateway.upstream.dns_cache import Resolve, resolve
from gateway.upstream.environment_proxy import EXPECTED_PROXY, PROXY_URLS, FindProxy, use_channels_proxy
from gateway.upstream.request_body import read_content
from gateway.upstream.response_parser import MAX_PUSH_BYTES, Headers

MAX_JOINT_BYTES = 256 * 1024
"""A larger body is sent in pieces, as fast as the provider reads. Sending stops if the provider refuses it."""
_SHARES_PER_TURN = 32
_SHARE_BYTES = MAX_PUSH_BYTES // _SHARES_PER_TURN
"""Size of one share. A piece uses one share for each ``_SHARE_BYTES`` begun. One turn of the event loop passes on
``_SHARES_PER_TURN`` shares."""
MAX_ORIGINS = 512
_CONTROL_CHARS = re.compile(r"[\x00-\x1f\x7f]")
_METHOD_PATTERN = re.compile(r"(?!HEAD\Z)[A-Z]{1,20}\Z")
"""HEAD is excluded: its response has no body regardless of its headers, which the response parser does not handle."""
_BODILESS_METHODS = frozenset({"GET", "OPTIONS", "TRACE"})
"""Methods whose requests have no Content-Length if they have no body."""
_GATEWAY_HEADERS = frozenset({"content-length", "transfer-encoding"})


class PooledHttpResponse:
    """A response whose headers have arrived. Raises ``ProviderBadResponse`` if its encoding is unknown."""

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
        connection = self._line or self._reject_line()
        framing = connection.framing
        if framing.complete and self._inflation is None and connection.error is None:
            body = connection.pop_all()
            if len(body) <= limit:
                return body
            raise self._make_size_error(limit)
        whole_body = await interface.read_pushed(self, limit, framing.length)
        if whole_body is None:
            raise self._make_size_error(limit)
        return whole_body

    async def pump(self, sink: interface.Sink) -> interface.PumpResult:
        connection = self._line or self._reject_line()
        take_piece = Connection.pop if self._inflation is None else self._inflate
        turns = 0
        while True:
            connection.check()
            if piece := take_piece(connection):
                share = -(-len(piece) // _SHARE_BYTES)
                if turns and turns + share > _SHARES_PER_TURN:
                    turns = 0
                    await asyncio.sleep(0)
                    (self._line or self._reject_line()).check()
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

    def _reject_line(self) -> NoReturn:
        raise self._error or ProviderBadResponse("The provider broke the connection", phase="body")

    def _make_size_error(self, limit: int) -> ProviderBadResponse:
        error = ProviderBadResponse(f"The provider's answer is larger than {limit} bytes", phase="body")
        if self._line is not None:
            self._line.abort()
        return error

    def _inflate(self, connection: Connection) -> bytes:
        inflation = self._inflation
        if inflation is None:
            return b""
        try:
            while not (piece := inflation.read_piece()) and connection.backlog:
                inflation.feed(connection.pop())
            if not piece and connection.framing.complete:
                inflation.end()
        except zlib.error as error:
            connection.abort()
            raise ProviderBadResponse("The provider's answer is not valid HTTP", phase="body") from error
        return piece


@quick_frozen
class RequestHead:
    """The head of a request without its Content-Length, and the origin that the request goes to.

    Attributes:
        bodiless: whether a request without a body has no Content-Length.
    """

    origin: Origin
    lines: bytes = attrs.field(repr=False)
    bodiless: bool

    def build(self, length: int | None) -> bytes:
        if length is None and self.bodiless:
            return self.lines + b"\r\n"
        return b"%bContent-Length: %d\r\n\r\n" % (self.lines, length or 0)


class RequestHeadBuilder:
    """Builds the heads of requests, and caches their origins.

    At ``MAX_ORIGINS`` origins, those without idle connections are dropped.
    """

    def __init__(self) -> None:
        self._origins: dict[tuple[str, str, int, str | None], Origin] = {}

    def build(self, http_request: HttpRequest, proxy: str | None) -> RequestHead:
        """Build the head of a request through ``proxy``. Raises ``ProviderBadResponse`` if a part of it is invalid."""
        if proxy is not None and not proxy.lower().startswith(PROXY_URLS):  # of a channel stored by an older version
            raise ProviderBadResponse(f"The channel's proxy must be {EXPECTED_PROXY}", phase="connect")
        method, address = http_request.method, http_request.url
        if _CONTROL_CHARS.search(address) or not _METHOD_PATTERN.match(method):
            raise make_unsendable_error()
        try:
            url = URL(address, encoded=http_request.exact)
            host, port = url.raw_host, url.port
        except ValueError as error:
            raise make_unsendable_error() from error
        has_credentials = url.user is not None or url.password is not None  # a proxy would see them
        if not host or not port or url.scheme not in {"http", "https"} or has_credentials:
            raise make_unsendable_error()
        start = _build_start(method, url, proxy if url.scheme == "http" else None)
        lines = _build_lines(start, url.host_port_subcomponent or host, http_request.headers)
        return RequestHead(self._find_origin(url.scheme, host, port, proxy), lines, method in _BODILESS_METHODS)

    def _find_origin(self, scheme: str, host: str, port: int, proxy: str | None) -> Origin:
        key = (scheme, host, port, proxy)
        origin = self._origins.get(key)
        if origin is None:
            if len(self._origins) >= MAX_ORIGINS:
                self._origins = {origin_key: origin for origin_key, origin in self._origins.items() if origin.idle}
            origin = self._origins[key] = Origin(*key)
        return origin


def _build_lines(start: str, host: str, headers: dict[str, str]) -> bytes:
    names = {name.lower() for name in headers}
    host_line = "" if "host" in names else f"Host: {host}\r\n"
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    try:
        header_bytes = lines.encode("latin-1")
    except UnicodeEncodeError as error:
        raise make_unsendable_error() from error
    line_count = len(headers)
    # Bytes, because counting in a text takes twice as long.
    is_split = header_bytes.count(b"\n") != line_count or header_bytes.count(b"\r") != line_count
    if is_split or names & _GATEWAY_HEADERS or "\0" in lines:
        raise make_unsendable_error()
    return f"{start}{host_line}".encode("latin-1") + header_bytes


def _build_start(method: str, url: URL, proxy: str | None) -> str:
    """Build the request line, and the header for a proxy (RFC 9112, 3.2.2; RFC 9110, 11.7.2)."""
    if proxy is None or not proxy.lower().startswith("http:"):
        return f"{method} {url.raw_path_qs} HTTP/1.1\r\n"
    return f"{method} {url.with_fragment(None)} HTTP/1.1\r\n{build_proxy_authorization(proxy)}"


class PooledHttpClient:
    """``HttpClient`` with its own connection pool.

    Args:
        resolve: resolves names to addresses; raises ``OSError``.
        open_tls_context: creates the TLS context, once, when the first connection needs it.
        find_proxy: returns the proxy for a channel's proxy and a URL; None for a direct connection.

    Attributes:
        access_tokens: sends requests that have a ``grant``.
    """

    def __init__(
        self,
        resolve: Resolve = resolve,
        open_tls_context: Callable[[], ssl.SSLContext] = open_context,
        find_proxy: FindProxy = use_channels_proxy,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._pool = Pool()
        self._heads = RequestHeadBuilder()
        self._dialer = Connector(resolve, open_tls_context)
        self._find_proxy = find_proxy
        self.access_tokens = AuthorizedHttpClient(self)

    async def send(self, http_request: HttpRequest) -> interface.HttpResponse:
        head = http_request.template.head if http_request.template is not None else None
        if not isinstance(head, RequestHead):
            if http_request.grant is not None:
                return await self.access_tokens.send(http_request)
            head = self._build_head(http_request)
        body = http_request.body
        if isinstance(body, bytes) and len(body) <= MAX_JOINT_BYTES:
            data, remaining_body = head.build(len(body)) + body, None
        else:
            remaining_body = Content((body,)) if isinstance(body, bytes) else body
            data = head.build(None if remaining_body is None else remaining_body.length)
        written_s = self._loop.time()
        deadline = written_s + http_request.timeouts.total_s
        connection = None if http_request.once else self._pool.acquire(head.origin, deadline)
        is_reused = connection is not None
        while True:
            if connection is None:
                connection = await self._open(head.origin, http_request.timeouts.connect_s, deadline)
            framing = connection.framing
            try:
                connection.send_request(data)
                written_s = written_s if remaining_body is None else await _send_content(connection, remaining_body)
                if http_request.on_written is not None and connection.sent and not connection.gone:
                    http_request.on_written()
                while not (framing.head_complete or connection.gone):
                    await connection.wait()
                if framing.head_complete and connection.error is None:
                    return PooledHttpResponse(connection)
            except BaseException:
                connection.abort()
                raise
            elapsed_s = self._loop.time() - written_s
            _check_resendable(connection, http_request.method, is_reused=is_reused, elapsed_s=elapsed_s)
            connection, is_reused = None, False

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


def _check_resendable(connection: Connection, method: str, *, is_reused: bool, elapsed_s: float) -> None:
    """Check whether an unanswered request may be sent again immediately, because a reused connection broke.

    If it may not, the connection's error is raised. The error is ``StaleConnection`` if the provider cannot have
    processed the request, because the connection broke before all of it was sent, or at most ``RESEND_WITHIN_S``
    afterwards. ``elapsed_s``: the seconds since the request was written.
    """
    connection.check()
    error = connection.broken or ProviderBadResponse("The provider broke the connection", phase="headers")
    if not is_reused or connection.response_begun:
        raise error
    if method in interface.IDEMPOTENT_METHODS:
        return
    if connection.sent and elapsed_s > interface.RESEND_WITHIN_S:
        raise error
    raise interface.StaleConnection(error.message, phase="headers") from error.__cause__


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
