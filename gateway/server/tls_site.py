"""A listening socket with TLS that counts a connection when it is accepted, and not after its handshake."""

import asyncio
import errno
import socket
import ssl
from typing import cast

from aiohttp import web

from gateway.server.connection_limits import HANDSHAKE_TIMEOUT_S, ConnectionLimiter
from gateway.server.protocol import GatewayServer

SHUTDOWN_TIMEOUT_S = 2.0
"""How long a closed connection waits for the client's last word, in seconds."""
_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_PAUSE_S = 1.0
"""After which a process without descriptors accepts again, as asyncio's own servers do."""


class TlsSite(web.SockSite):
    """As aiohttp's, which leaves both timeouts at asyncio's 60 and 30 seconds, and counts after the handshake."""

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
    """Accepts connections of one socket, in place of asyncio's server, which makes none known before its handshake.

    ``server``: makes the protocols, and has the limits of connections. ``most``: accepted at once; then others have a
    turn.
    """

    def __init__(self, listener: socket.socket, context: ssl.SSLContext, server: GatewayServer, most: int) -> None:
        self.sockets = (listener,)
        self._context = context
        self._server = server
        self._most = most
        self._loop = asyncio.get_running_loop()
        self._pausing: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._pausing = None
        self._loop.add_reader(self.sockets[0].fileno(), self._accept)

    def close(self) -> None:
        """Stop accepting, and close the socket. Handshakes go on."""
        if self._pausing is not None:
            self._pausing.cancel()
        if self.sockets[0].fileno() >= 0:
            self._loop.remove_reader(self.sockets[0].fileno())
            self.sockets[0].close()

    def _accept(self) -> None:
        for _ in range(self._most):
            try:
                connection, address = self.sockets[0].accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_DESCRIPTORS:
                    raise
                self._loop.remove_reader(self.sockets[0].fileno())
                self._pausing = self._loop.call_later(_PAUSE_S, self.start)
                return
            connection.setblocking(False)
            Handshake(self._server, connection).start(self._context, address)


def find_timeout(limiter: ConnectionLimiter | None) -> float:
    """Return how long a handshake that begins now may take, in seconds."""
    if limiter is None:
        return HANDSHAKE_TIMEOUT_S
    return limiter.limits.crowded_handshake_s if limiter.crowded else limiter.limits.handshake_s


class Handshake:
    """A connection from its acceptance to the end of its handshake, as ``ConnectionLimiter`` sees it."""

    served = False
    strange_since = None

    def __init__(self, server: GatewayServer, connection: socket.socket) -> None:
        self._server = server
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self.waits_since = self._loop.time()

    def start(self, context: ssl.SSLContext, address: object) -> None:
        """Count the connection. One beyond the limit is closed: before a handshake no answer could be read."""
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
        if task.cancelled():  # perhaps before its first step
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
                ssl_handshake_timeout=find_timeout(limiter),
                ssl_shutdown_timeout=SHUTDOWN_TIMEOUT_S,
            )
        except (
            OSError,
            RuntimeError,
        ):  # no TLS, too late, or the client has left: uvloop says RuntimeError of the last
            self._connection.close()
        finally:
            if limiter is not None:
                limiter.release(self)
