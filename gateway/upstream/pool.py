"""Idle connections of every origin, and the timer for the deadlines of all connections."""

import asyncio

import attrs

from gateway.deadlines import DeadlineTimer
from gateway.upstream.connection import Connection

KEEPALIVE_S = 30.0
"""Idle connections are closed after this time."""
_CLOSING_S = 5.0


@attrs.define(eq=False)
class Origin:
    """A server, and the idle connections to it; the connection returned last is used first."""

    scheme: str
    host: str
    port: int
    proxy: str | None = attrs.field(default=None, repr=False)
    idle: dict[Connection, None] = attrs.field(factory=dict, repr=False)


class Pool:
    """All open connections, idle or in use."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._all: set[Connection] = set()
        self._timer = DeadlineTimer()
        self._emptied = asyncio.Event()
        self.closed = False

    def open(self, origin: Origin) -> Connection:
        """Return a new connection that the caller still has to connect."""
        return Connection(self, origin.idle)

    def add(self, connection: Connection, deadline: float) -> None:
        """Add a connected connection. Its first request must end by ``deadline``."""
        self._all.add(connection)
        connection.due_at = deadline
        self._timer.enter(connection)

    def acquire(self, origin: Origin, deadline: float) -> Connection | None:
        """Return an idle connection for a request that must end by ``deadline``; None if there is none.

        A connection with unread bytes is closed instead: they would be taken for the answer.
        """
        idle = origin.idle
        while idle:
            connection = idle.popitem()[0]
            if not connection.peek(0):
                connection.due_at = deadline
                if deadline < self._timer.fires_at:
                    self._timer.enter(connection)
                return connection
            connection.abort()
        return None

    def keep_idle(self, connection: Connection) -> None:
        if self.closed:
            connection.abort()
            return
        connection.idle[connection] = None
        connection.due_at = self._loop.time() + KEEPALIVE_S
        if connection.due_at < self._timer.fires_at:
            self._timer.enter(connection)

    def watch(self, connection: Connection) -> None:
        self._timer.enter(connection)

    def forget(self, connection: Connection) -> None:
        self._all.discard(connection)
        self._timer.leave(connection)
        if not self._all:
            self._emptied.set()

    async def close(self) -> None:
        self.closed = True
        for connection in list(self._all):
            connection.abort()
        self._emptied.clear()
        if self._all:
            try:
                async with asyncio.timeout(_CLOSING_S):
                    await self._emptied.wait()
            except TimeoutError:  # the event loop still holds them; our side is closed
                pass
