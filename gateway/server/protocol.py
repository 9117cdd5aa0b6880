"""aiohttp's server and runner, extended with connection limits, slow-reader timeouts, and JSON errors for invalid HTTP.

aiohttp answers a request that it cannot parse before any middleware runs, in plain text and with a stack trace in the
log. Only its ``handle_error`` can change that. Overriding it takes subclasses of three aiohttp classes, one of them
through the private method ``_make_server``; a test checks that aiohttp still has it.
"""

import asyncio
import contextlib
import gc
import math
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

from aiohttp import StreamReader, web
from aiohttp.http_parser import RawRequestMessage
from aiohttp.web_protocol import RequestHandler, _ErrInfo
from aiohttp.web_request import BaseRequest

from gateway.error_status import find_page
from gateway.errors import InternalError, InvalidRequest, Overloaded
from gateway.request_context import make_request_id
from gateway.server.active_inference import leave_request
from gateway.server.client_ip import find_configured_url, find_peer_address
from gateway.server.connection_limits import ConnectionLimiter, ConnectionLimits, LimitedConnection
from gateway.server.context import ACTOR, CALLER, SERVICES
from gateway.server.cors import CORS, CrossOrigin
from gateway.server.error_responses import build_error_response
from gateway.server.fast_routes import FastRoutes
from gateway.server.responses import WRITE_TIMEOUT_S, BareResponse, BufferedResponse, RawResponse

WATCH_INTERVAL_S = 1.0
STOP_FIRST_REQUEST_TIMEOUT_S = 2.0
_POLL_INTERVAL_S = 0.01
_OWN_RESPONSES: frozenset[type[web.StreamResponse]] = frozenset({RawResponse, BufferedResponse})


class GatewayProtocol(RequestHandler):
    """One client connection. Bodies stay compressed until the caller is known (``server/request_body.py``)."""

    __slots__ = ("_connected_at", "_limiter", "_write_timer", "handshake")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, auto_decompress=False, **kwargs)
        # A full parser buffers requests until the protocol, once full itself, resumes it. The parser counts a request
        # twice if its body came late, so the protocol must report "full" one request earlier.
        self._max_msg_queue_size -= 1
        self._limiter: ConnectionLimiter | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._connected_at = self._loop.time()
        self.handshake: LimitedConnection | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        server = self._manager
        if isinstance(server, GatewayServer) and (limiter := server.limiter) is not None:
            if self.handshake is not None:  # the handshake counted this same connection
                limiter.release(self.handshake)
            admission = limiter.admit(self, find_peer_address(transport))
            if admission == "none":
                cast("asyncio.Transport", transport).write(build_crowded_response(server.address))
                self.force_close()
                return
            self._limiter = limiter
            if admission == "reserved":
                self._request_handler = server.reserved_handler  # type: ignore[assignment]

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_write_timer()
        if self._limiter is not None:
            self._limiter.release(self)
        if self._current_request is not None and leave_request(self._current_request):
            self._task_handler = None  # aiohttp would cancel the task, which has to finish
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start the timeout for a client that does not read; aiohttp would wait forever."""
        super().pause_writing()
        self._check_write_progress()

    def resume_writing(self) -> None:
        self._stop_write_timer()
        super().resume_writing()

    def _check_write_progress(self, earlier_bytes: float = math.inf) -> None:
        """Abort the connection if the client has read none of ``earlier_bytes`` since. Otherwise check again later."""
        self._write_timer = None
        if self.transport is None:
            return
        unsent_bytes = self.transport.get_write_buffer_size()
        if unsent_bytes >= earlier_bytes:
            self.transport.abort()
        else:
            self._write_timer = self._loop.call_later(WRITE_TIMEOUT_S, self._check_write_progress, unsent_bytes)

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    @property
    def served(self) -> bool:
        return self._request_count > 0

    def is_new(self, earliest_start: float) -> bool:
        return not self.served and self._connected_at > earliest_start

    @property
    def idle_since(self) -> float | None:
        """When the connection became idle (loop time); None while a request is in progress."""
        if self._request_in_progress or self._messages:
            return None
        return self._next_keepalive_close_time - self._keepalive_timeout

    @property
    def unauthenticated_since(self) -> float | None:
        request = self._current_request
        if request is None or CALLER in request or ACTOR in request:
            return None
        return self._next_keepalive_close_time - self._keepalive_timeout

    @property
    def connections(self) -> int:
        return 0 if self._manager is None else len(self._manager.connections)

    def close(self) -> None:
        """Accept no further request. The rest of the current request's body is still read."""
        request = self._current_request
        if request is not None and not request.content.is_eof():
            request.content.on_eof(super().close)
            return
        super().close()
        # aiohttp would leave an idle connection open, unread, until all other connections have ended.
        if self._current_request is None and not self._messages and self.transport is not None:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._messages and type(self._messages[-1][0]) is _ErrInfo:
            self._restore_requests()

    def _restore_requests(self) -> None:
        """Queue the complete requests that precede an unparsable one in the same data.

        aiohttp's parser keeps those requests in a private list of its C extension, reachable only through the garbage
        collector. A test checks that this still works.
        """
        error = self._messages.pop()
        for referent in gc.get_referents(self._parser):
            if (
                type(referent) is list
                and referent
                and type(referent[0]) is tuple
                and isinstance(referent[0][1], StreamReader)
            ):
                whole_messages = [message for message in referent if _is_complete_message(*message)]
                referent.clear()
                self._request_count += len(whole_messages)
                self._messages.extend(whole_messages)
        self._messages.append(error)

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Resume reading unless the body is complete; aiohttp calls this after every read of a body.

        Resume even a connection that is not paused: the parser may still be paused from the previous body.
        """
        request = self._current_request
        if self._reading_paused or request is None or not request.content.is_eof():
            super().resume_reading(resume_parser)

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - aiohttp's signature
    ) -> web.StreamResponse:
        """Answer a request that cannot be parsed, or that met a bug outside all middlewares; close the connection.

        Raises ``ConnectionError`` if the response has begun or the client has disconnected.
        """
        if request.writer.output_size > 0 or isinstance(exc, ConnectionError):
            raise ConnectionError("The response has begun, or the client has disconnected")
        error: InvalidRequest | InternalError
        if status < 500:  # noqa: PLR2004
            error = InvalidRequest("The request is not valid HTTP")
        else:
            self.log_exception("unhandled error", exc_info=exc)
            error = InternalError("Unexpected gateway error")
        address = self._manager.address if isinstance(self._manager, GatewayServer) else ""
        error.doc_url = find_page(error.public_code, address)
        request_id = make_request_id()
        error_response = build_error_response(error, request_id)
        headers = {**error_response.headers, "X-Request-Id": request_id}
        cors = self._get_cors()
        if cors is not None:
            headers |= cors.build_public_headers()
        response = BareResponse(body=error_response.body, status=error_response.status, headers=headers)
        response.force_close()
        return response

    async def finish_response(
        self, request: BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send the response. If it writes its own head, skip what aiohttp does for forms and protocol upgrades."""
        if type(resp) in _OWN_RESPONSES and not self._upgraded:
            try:
                await resp.write_eof()
            except ConnectionError:
                return resp, True
            return resp, False
        return await super().finish_response(request, resp, start_time)

    def _get_cors(self) -> CrossOrigin | None:
        return self._manager.cors if isinstance(self._manager, GatewayServer) else None

    def log_exception(self, *args: Any, **kwargs: Any) -> None:
        """Log a bug. A request body that breaks off after the response is not a bug."""
        if not isinstance(kwargs.get("exc_info"), web.RequestPayloadError):
            super().log_exception(*args, **kwargs)


class GatewayServer(web.Server):
    """aiohttp's server with a ``GatewayProtocol`` for each connection.

    Attributes:
        address: the gateway's configured address, for links to error pages if a request has no usable Host; or empty.
        cors: None if no other origin may call the API.
        limiter: None if connections are not limited.
        handshakes: TLS handshakes in progress.
        reserved_handler: answers requests on connections reserved for probes, the console and the admin API.
    """

    address = ""
    cors: CrossOrigin | None = None
    limiter: ConnectionLimiter | None = None
    handshakes: set[asyncio.Task[None]]
    reserved_handler: Callable[[web.Request], Awaitable[web.StreamResponse]]

    def __call__(self) -> GatewayProtocol:
        return GatewayProtocol(self, loop=self._loop, **self._kwargs)

    def end_connections(self) -> None:
        """Announce the end of the connection in each further response (``Connection: close``)."""
        self.request_handler = handler = partial(_answer_and_close, self.request_handler)
        self.reserved_handler = partial(_answer_and_close, self.reserved_handler)
        for connection in self.connections:
            connection._request_handler = handler  # noqa: SLF001 - see the module's docstring

    async def watch(self) -> None:
        """While the server is crowded, close connections whose first request is overdue, once a second."""
        while self.limiter is not None:
            await self.limiter.wait_until_crowded()
            await asyncio.sleep(WATCH_INTERVAL_S)
            self.limiter.sweep()

    async def await_first_requests(self) -> None:
        """Wait for the first request of every connection that is younger than ``STOP_FIRST_REQUEST_TIMEOUT_S``.

        Their clients may already be sending. Some connections have no protocol yet, hence the pause before the first
        check.
        """
        while True:
            await asyncio.sleep(_POLL_INTERVAL_S)
            earliest_start = self._loop.time() - STOP_FIRST_REQUEST_TIMEOUT_S
            if not any(cast("GatewayProtocol", connection).is_new(earliest_start) for connection in self.connections):
                return


def build_crowded_response(address: str) -> bytes:
    """Return the response for a connection beyond the limit; it is sent without reading a request."""
    error = Overloaded("The gateway has no room for another connection", retry_after_s=1)
    error.doc_url = find_page(error.public_code, address)
    response = build_error_response(error, request_id := make_request_id())
    body = response.body if isinstance(response.body, bytes) else b""
    head = (
        f"HTTP/1.1 {response.status} Service Unavailable\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nRetry-After: 1\r\nX-Request-Id: {request_id}\r\n"
        f"Link: {response.headers['Link']}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def _is_complete_message(message: RawRequestMessage, payload: StreamReader) -> bool:
    """Return whether a request is complete. With an unknown Transfer-Encoding, the end of the body is unknown."""
    return payload.is_eof() and (message.chunked or "Transfer-Encoding" not in message.headers)


async def _answer_and_close(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]], request: web.Request
) -> web.StreamResponse:
    request._message = request._message._replace(should_close=True)  # noqa: SLF001 - see the module's docstring
    return await answer(request)


def _accept_waiting(site: web.BaseSite) -> list[socket.socket]:
    """Accept and return the connections queued in the kernel, which closing the socket would reset.

    With TLS nothing is accepted: before the handshake a client has not sent its request, and it can safely repeat the
    connection after a reset.
    """
    accepted_sockets: list[socket.socket] = []
    if not isinstance(site, web.SockSite) or site._ssl_context is not None:  # noqa: SLF001 - see above
        return accepted_sockets
    listener: socket.socket = site._sock  # noqa: SLF001 - see above
    listener.setblocking(False)
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            connection.setblocking(False)
            accepted_sockets.append(connection)
    return accepted_sockets


class GatewayRunner(web.AppRunner):
    """Runs the application on a ``GatewayServer``.

    ``limits`` is None if connections are not limited. If ``inherited`` is true, the sockets belong to a service
    manager, and the next gateway process serves the connections queued on them.
    """

    __slots__ = ("_is_inherited", "_limits", "_watch_task")

    def __init__(
        self, app: web.Application, *, limits: ConnectionLimits | None = None, inherited: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(app, **kwargs)
        self._limits = limits
        self._is_inherited = inherited
        self._watch_task: asyncio.Task[None] | None = None

    async def _make_server(self) -> web.Server:
        base_server = await super()._make_server()
        routes = FastRoutes(self.app, base_server.request_handler)
        server = GatewayServer(
            cast("Callable[[BaseRequest], Awaitable[web.StreamResponse]]", routes.handle),
            request_factory=base_server.request_factory,
            handler_cancellation=base_server.handler_cancellation,
            **base_server._kwargs,  # noqa: SLF001 - see the module's docstring
        )
        server.cors = self.app.get(CORS)
        if (services := self.app.get(SERVICES)) is not None:
            server.address = find_configured_url(services.http.base_url)
        server.handshakes = set()
        server.reserved_handler = routes.handle_reserved
        if self._limits is not None:
            loop = asyncio.get_running_loop()
            server.limiter = ConnectionLimiter(self._limits, self.app[SERVICES].http.trusted_proxies, loop.time)
            self._watch_task = loop.create_task(server.watch())
        return server

    async def cleanup(self) -> None:
        """Close the listening sockets, serve the connections that are already open or queued, and shut down."""
        await self.stop_sites()
        await super().cleanup()

    async def stop_sites(self) -> None:
        """Close the listening sockets, and wait for the first requests of connections that are new or queued."""
        self._stop_accepting()
        # asyncio drops an accepted connection if the listening socket is closed before the transport exists.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting_sockets = [] if self._is_inherited else list(map(_accept_waiting, self.sites))
        sites = list(self.sites)
        for site in sites:
            await site.stop()
        for connections in waiting_sockets:
            for connection in connections:
                await self._serve(connection)
        if isinstance(self.server, GatewayServer):
            await self.server.await_first_requests()

    def close_idle(self) -> None:
        """Close the connections without a request. The others accept no further request."""
        if self.server is not None:
            self.server.pre_shutdown()

    def end_connections(self) -> None:
        """Close every connection after its next response. The response announces this, so no client reuses it."""
        if isinstance(self.server, GatewayServer):
            self.server.end_connections()

    async def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the client has already disconnected
            await asyncio.get_running_loop().connect_accepted_socket(cast("Any", self.server), connection)

    def _stop_accepting(self) -> None:
        """Stop accepting. New connections stay queued in the kernel.

        If systemd holds the socket, the next gateway accepts them.
        """
        loop = asyncio.get_running_loop()
        for site in self.sites:
            server = cast("asyncio.Server | None", site._server)  # noqa: SLF001 - TCPSite has no other way to its sockets
            for listener in () if server is None else server.sockets:
                loop.remove_reader(listener.fileno())

    async def shutdown(self) -> None:
        if self._watch_task is not None:
            self._watch_task.cancel()
            await asyncio.gather(self._watch_task, return_exceptions=True)
        await super().shutdown()
