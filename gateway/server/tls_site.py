"""A TLS listening socket that counts a connection at its acceptance, before the TLS handshake."""

import asyncio
import errno
import socket
import ssl
from typing import cast

from aiohttp import web

from gateway.server.connection_limits import HANDSHAKE_TIMEOUT_S, ConnectionLimiter
from gateway.server.protocol import GatewayServer

SHUTDOWN_TIMEOUT_S = 2.0
"""Time for the client's TLS close alert after the gateway has closed the connection."""
_RESOURCE_ERRORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_ACCEPT_PAUSE_S = 1.0
"""Pause before accepting again after running out of file descriptors; asyncio's servers wait as long."""


class TlsSite(web.SockSite):
    """aiohttp's socket site with shorter timeouts, and with connections counted before their handshake."""

    async def start(self) -> None:
        await web.BaseSite.start(self)
        if not isinstance(server := self._runner.server, GatewayServer) or self._ssl_context is None:
            raise RuntimeError("the runner is no GatewayRunner that is set up, or there is no certificate")
        self._sock.setblocking(False)
        self._sock.listen(self._backlog)
        acceptor = TlsAcceptor(self._sock, self._ssl_context, server, self._backlog)
        acceptor.start()
        self._server = cast("asyncio.AbstractServer", acceptor)


class TlsAcceptor:
    """Accepts connections of one socket, ``max_handshakes`` per turn. asyncio's server hides unfinished handshakes."""

    def __init__(
        self, listener: socket.socket, context: ssl.SSLContext, server: GatewayServer, max_handshakes: int
    ) -> None:
        self.sockets = (listener,)
        self._context = context
        self._server = server
        self._max_handshakes = max_handshakes
        self._loop = asyncio.get_running_loop()
        self._pause_timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._pause_timer = None
        self._loop.add_reader(self.sockets[0].fileno(), self._accept)

    def close(self) -> None:
        if self._pause_timer is not None:
            self._pause_timer.cancel()
        if self.sockets[0].fileno() >= 0:
            self._loop.remove_reader(self.sockets[0].fileno())
            self.sockets[0].close()

    def _accept(self) -> None:
        for _ in range(self._max_handshakes):
            try:
                connection, address = self.sockets[0].accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _RESOURCE_ERRORS:
                    raise
                self._loop.remove_reader(self.sockets[0].fileno())
                self._pause_timer = self._loop.call_later(_ACCEPT_PAUSE_S, self.start)
                return
            connection.setblocking(False)
            Handshake(self._server, connection).start(self._context, address)


def find_handshake_timeout_s(limiter: ConnectionLimiter | None) -> float:
    """Return the timeout, in seconds, of a handshake that begins now."""
    if limiter is None:
        return HANDSHAKE_TIMEOUT_S
    return limiter.limits.crowded_handshake_s if limiter.crowded else limiter.limits.handshake_s


class Handshake:
    """A connection between its acceptance and the end of its TLS handshake, counted by ``ConnectionLimiter``."""

    served = False
    unauthenticated_since = None

    def __init__(self, server: GatewayServer, connection: socket.socket) -> None:
        self._server = server
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self.idle_since = self._loop.time()

    def start(self, context: ssl.SSLContext, address: object) -> None:
        """Count the connection and start the handshake. Beyond the limit, close it without a response."""
        limiter = self._server.limiter
        peer = str(address[0]) if isinstance(address, tuple) and address else None
        if limiter is not None and limiter.admit(self, peer) == "none":
            self._connection.close()
            return
        self._task = self._loop.create_task(self._run(context, limiter))
        self._server.handshakes.add(self._task)
        self._task.add_done_callback(self._end)

    def force_close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _end(self, task: asyncio.Task[None]) -> None:
        self._server.handshakes.discard(task)
        if task.cancelled():  # a task cancelled before its first step has not run its cleanup
            self._connection.close()
            if self._server.limiter is not None:
                self._server.limiter.release(self)

    async def _run(self, context: ssl.SSLContext, limiter: ConnectionLimiter | None) -> None:
        protocol = self._server()
        protocol.handshake = self
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol,
                self._connection,
                ssl=context,
                ssl_handshake_timeout=find_handshake_timeout_s(limiter),
                ssl_shutdown_timeout=SHUTDOWN_TIMEOUT_S,
            )
        except (OSError, RuntimeError):  # no TLS, timeout, or client disconnected (RuntimeError with uvloop)
            self._connection.close()
        finally:
            if limiter is not None:
                limiter.release(self)
