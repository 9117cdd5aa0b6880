"""Connections that wait for their next request, and the one timer that watches the deadlines of all."""

import asyncio

import attrs

from gateway.upstream.connection import NEVER, Connection

KEEPALIVE_S = 30.0
"""A connection that nobody needed for so long is closed."""
_EARLY_S = 0.005  # a timer may come so much too soon
_CLOSING_S = 5.0


@attrs.define(eq=False)
class Origin:
    """Whom connections lead to, and those that wait; the last to come is the first to go.

    Attributes:
        scheme: http or https.
        proxy: the way there, or None.
    """

    scheme: str
    host: str
    port: int
    proxy: str | None = attrs.field(default=None, repr=False)
    idle: dict[Connection, None] = attrs.field(factory=dict, repr=False)


class Pool:
    """Every connection there is. Its timer runs only while there is a deadline, and is set to the next of them."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._all: set[Connection] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._next = NEVER
        self._emptied = asyncio.Event()
        self.closed = False

    def open(self, origin: Origin) -> Connection:
        """A connection that is still to be made."""
        return Connection(self, origin.idle)

    def add(self, line: Connection, deadline: float) -> None:
        """It has been made. Its first request is to end by ``deadline``."""
        self._all.add(line)
        line.deadline = deadline
        self.remind(deadline)

    def take(self, origin: Origin, deadline: float) -> Connection | None:
        """One that was used before, if one waits and nothing has come over it since. Its next request has ``deadline``.

        What lies in the kernel, unread, came before anybody asked: it would be the answer to another question.
        """
        idle = origin.idle
        while idle:
            line = idle.popitem()[0]
            if not line.peek(0):
                line.deadline = deadline
                if deadline < self._next:
                    self.remind(deadline)
                return line
            line.abort()
        return None

    def rest(self, line: Connection) -> None:
        """It waits for its next request."""
        if self.closed:
            line.abort()
            return
        line.idle[line] = None
        deadline = line.deadline = self._loop.time() + KEEPALIVE_S
        if deadline < self._next:
            self.remind(deadline)

    def forget(self, line: Connection) -> None:
        """It is closed."""
        self._all.discard(line)
        if not self._all:
            self._emptied.set()
            self._stop()

    def remind(self, deadline: float) -> None:
        """Look at the connections then, if not before."""
        if deadline < self._next and not self.closed:
            self._next = deadline
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(deadline, self._sweep)

    async def close(self) -> None:
        """Close every connection, and see them closed."""
        self.closed = True
        self._stop()
        for line in list(self._all):
            line.abort()
        self._emptied.clear()
        if self._all:
            try:
                async with asyncio.timeout(_CLOSING_S):
                    await self._emptied.wait()
            except TimeoutError:  # the loop has them, and they are closed on our side
                pass

    def _stop(self) -> None:
        self._next = NEVER
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sweep(self) -> None:
        self._stop()
        now = self._loop.time() + _EARLY_S
        soonest = NEVER
        try:
            for line in list(self._all):
                if line.deadline <= now:
                    line.expire()
                elif line.deadline < soonest:
                    soonest = line.deadline
        finally:
            if soonest < NEVER:
                self.remind(soonest)
