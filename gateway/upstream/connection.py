"""Connections to providers, and the pool that keeps them. Received data is passed on in the call that received it.

A waiter is only woken; it then reads the state itself. Exceptions are never set on its future: they would be lost if
the waiter has been cancelled.
"""

import asyncio
import select
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

import attrs

from gateway.deadlines import NEVER, DeadlineTimer
from gateway.errors import ProviderBadResponse, ProviderError, ProviderTimeout
from gateway.upstream.interface import Sink
from gateway.upstream.response_parser import MAX_PUSH_BYTES, ResponseParser, read_chunks

READ_BUFFER = 64 * 1024
"""Maximum of buffered bytes that wait for a sink; beyond it, reading pauses."""
END_GRACE_S = 1.0
"""How long the end of the response may take after the end mark of the stream. If it takes longer, the connection is
closed and not reused."""
KEEPALIVE_S = 30.0
"""Idle connections are closed after this time."""
_CLOSE_TIMEOUT_S = 5.0
_MIN_ERROR_STATUS = 400
_BLANK_LINE = b"\n\n"
_MAX_TURNS = 3

Peek = Callable[[float], Sequence[object]]
"""Called with 0. The result is truthy if unread data or the end of the stream is in the socket."""


class Connection(asyncio.Protocol):
    """A connection over an asyncio transport.

    Attributes:
        idle: the idle connections of its origin.
        due_at: the deadline of the request, of the idle time or of the wait for the response's end (loop time).
        response_begun: a byte of the response to the last request has arrived.
        gone: the connection is closed, or being closed.
        peek: see ``find_peek``.
        sent: the whole request has been passed to the transport.
        write_paused: the write buffer of the transport is full.
        error: the error with which the gateway ended the request, or None.
        broken: the error with which the provider ended the connection, or None.
        sink_error: the exception that the sink raised, or None.
    """

    __slots__ = (
        "_divided", "_ending", "_is_paused", "_loop", "_pool", "_sink", "_waiter", "backlog", "broken", "busy",
        "due_at", "error", "framing", "gone", "idle", "peek", "response_begun", "sent", "sink_error", "transport",
        "waiting_bytes", "write_paused",
    )  # fmt: skip

    transport: asyncio.Transport | None

    def __init__(self, pool: "Pool", idle: "dict[Connection, None]") -> None:
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self.idle = idle
        self.framing = ResponseParser()
        self.transport = None
        self.backlog: deque[bytes] = deque()
        self.waiting_bytes = 0
        self.due_at = NEVER
        self._sink: Sink | None = None
        self.peek: Peek = find_no_data
        self._waiter: asyncio.Future[None] | None = None
        self._divided = self._is_paused = self._ending = self.write_paused = self.gone = self.busy = (
            self.response_begun
        ) = False
        self.sent = True
        self.error: ProviderError | None = None
        self.broken: ProviderError | None = None
        self.sink_error: Exception | None = None

    @property
    def refused(self) -> bool:
        return self.framing.head_complete and self.framing.status >= _MIN_ERROR_STATUS

    def send_request(self, data: bytes) -> None:
        self.framing.begin()
        self.busy = True
        self.response_begun = False
        self.sink_error = None
        if self.transport is not None and not self.gone:
            self.transport.write(data)

    def write(self, data: bytes) -> None:
        if self.transport is not None and not self.gone:
            self.transport.write(data)

    def wait(self) -> asyncio.Future[None]:
        """Return a future that ends with None at the next change of state. There is only one waiter."""
        waiter = self._waiter = self._loop.create_future()
        return waiter

    async def follow(self, sink: Sink | None) -> bool:
        """Pass received data to ``sink`` until it returns True, or until the state changes.

        Return whether ``sink`` has returned True.
        """
        self._sink = sink
        self._resume_reading()
        self._divided = False
        try:
            await self.wait()
            return sink is not None and self._sink is None and not self._divided
        finally:
            self._sink = None

    def check(self) -> None:
        if self.error is not None:
            raise self.error
        if self.sink_error is not None:
            sink_error, self.sink_error = self.sink_error, None
            raise sink_error

    def pop(self) -> bytes:
        """Return the next piece of the backlog; empty if there is none."""
        if not self.backlog:
            return b""
        piece = self.backlog.popleft()
        self.waiting_bytes -= len(piece)
        return piece

    def pop_all(self) -> bytes:
        pieces = self.backlog
        data = b"".join(pieces)
        pieces.clear()
        self.waiting_bytes = 0
        return data

    def finish(self) -> None:
        """Keep the connection until the response ends after the end mark of its stream, at most ``END_GRACE_S``.

        The connection can then be reused. The method returns at once.
        """
        if self.framing.complete or self.backlog or self.gone:
            self.release()
            return
        self._ending = True
        self._resume_reading()
        self.due_at = self._loop.time() + END_GRACE_S
        self._pool.watch(self)

    def release(self) -> None:
        """Return the connection to the pool if the response is complete, else close it."""
        self._sink = None
        if self.framing.complete and not (self.backlog or self.gone or self.error):
            self.busy = self._ending = False
            if self._is_paused:
                self._resume_reading()
            self._pool.keep_idle(self)
        else:
            self.abort()

    def fail(self, error: ProviderError) -> None:
        if self.error is None:
            self.error = error
        self.abort()

    def abort(self) -> None:
        self.backlog.clear()
        self.waiting_bytes = 0
        self._close()

    def expire(self, now_s: float) -> None:  # noqa: ARG002 - the signature of ``Deadline``
        self.due_at = NEVER
        if self.busy and not self._ending:
            phase = "body" if self.framing.head_complete else "headers"
            self.fail(ProviderTimeout("The provider took too long to answer", phase=phase))
        else:
            self.abort()

    # Callbacks of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's transports do not inherit from it
        self.peek = find_peek(self.transport)

    def data_received(self, data: bytes) -> None:
        sink = self._sink
        if sink is not None:
            if self.framing.at_chunk:
                payload = read_chunks(data)
                if payload is not None:
                    # The hot path: ``_push``, inlined to save a call.
                    try:
                        is_enough = sink(payload, data)
                    except Exception as error:  # noqa: BLE001 - raised again by the pumping coroutine
                        self.sink_error, is_enough = error, True
                    if is_enough:
                        self._sink = None
                        self._wake()
                    return
        elif not self.busy:
            self.abort()  # the data would be taken for the answer to the next request
            return
        self._receive(data)

    def eof_received(self) -> bool:
        self._end(None)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)
        self.framing.release_parser()
        self._pool.forget(self)

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        self._wake()

    def _push(self, sink: Sink, payload: bytes) -> None:
        """Pass the sink a payload without its chunked framing. The pumping coroutine raises the sink's exception."""
        try:
            is_enough = sink(payload, None)
        except Exception as error:  # noqa: BLE001 - raised again by the pumping coroutine
            self.sink_error, is_enough = error, True
        if is_enough:
            self._sink = None
            self._wake()

    def _receive(self, data: bytes) -> None:
        framing = self.framing
        self.response_begun = True
        payload = framing.feed(data)
        if framing.complete:
            has_unsent = not self.sent or self.transport is None or self.transport.get_write_buffer_size()
            if framing.excess or has_unsent or not framing.keep_alive:
                self._close()
        elif framing.broken is not None:
            self._break("The provider's answer is not valid HTTP", framing.broken)
        if self._ending:
            self._end_early(payload)
        elif payload:
            self._deliver(payload)
        if self._sink is None or framing.complete:
            self._wake()

    def _deliver(self, payload: bytes) -> None:
        if self._sink is not None and len(payload) <= MAX_PUSH_BYTES:
            self._push(self._sink, payload)
            return
        if self._sink is not None:
            self._divided = True
            self._sink = None
            self._wake()
        if len(payload) <= MAX_PUSH_BYTES:
            self.backlog.append(payload)
            self.waiting_bytes += len(payload)
        else:
            self._queue_pieces(payload)
        is_full = self.waiting_bytes > READ_BUFFER and not self.framing.complete
        if is_full and not (self._is_paused or self.gone) and self.transport is not None:
            self._is_paused = True
            self.transport.pause_reading()

    def _queue_pieces(self, payload: bytes) -> None:
        """Split the payload into pieces for one turn of the event loop each, between two events where possible."""
        start = 0
        while len(payload) - start > MAX_PUSH_BYTES:
            end = start + MAX_PUSH_BYTES
            piece_end = payload.rfind(_BLANK_LINE, start, end) + len(_BLANK_LINE)
            self.backlog.append(payload[start : (end := piece_end if piece_end > start + 1 else end)])
            start = end
        self.backlog.append(payload[start:] if start else payload)
        self.waiting_bytes += len(payload)

    def _end_early(self, payload: bytes) -> None:
        """Handle data after the end mark of the stream: only the end of the response is valid."""
        if payload:
            self.abort()
        elif self.framing.complete:
            self.release()

    def _resume_reading(self) -> None:
        if self._is_paused and self.transport is not None and not self.gone:
            self._is_paused = False
            self.transport.resume_reading()

    def _break(self, message: str, cause: Exception | None) -> None:
        if self.broken is None:
            self.broken = ProviderBadResponse(message, phase="body" if self.framing.head_complete else "headers")
            self.broken.__cause__ = cause
        self._close()

    def _end(self, cause: Exception | None) -> None:
        if self.busy and not self.gone:
            if cause is None:
                self.framing.end()
            if not self.framing.complete:
                self._break("The provider broke the connection", cause)
        self._close()

    def _close(self) -> None:
        if not self.gone:
            self.gone = True
            self.idle.pop(self, None)
            if self.transport is not None:
                self.transport.abort()
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)


async def is_refused(connection: Connection) -> bool:
    """Return whether an error response has arrived, after the event loop has read the data in the socket."""
    for _ in range(_MAX_TURNS):
        transport = connection.transport
        if transport is None or transport.is_closing() or not connection.peek(0):
            break
        await asyncio.sleep(0)
    return connection.refused


def find_peek(transport: asyncio.Transport) -> Peek:
    """Return a function that, called with 0, returns whether unread data or the end of the stream is in the socket."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return find_no_data
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return poll.poll


def find_no_data(_: float) -> Sequence[object]:
    """Return no data; the ``Peek`` of a transport without a socket."""
    return ()


@attrs.define(eq=False)
class Origin:
    """A server, and the idle connections to it; the connection returned last is used first."""

    scheme: str
    host: str
    port: int
    proxy: str | None = attrs.field(default=None, repr=False)
    idle: dict[Connection, None] = attrs.field(factory=dict, repr=False)


class Pool:
    """All open connections, idle or in use, and the timer for their deadlines."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._connections: set[Connection] = set()
        self._timer = DeadlineTimer()
        self._all_closed = asyncio.Event()
        self.closed = False

    def open(self, origin: Origin) -> Connection:
        """Return a new connection that is not connected yet."""
        return Connection(self, origin.idle)

    def add(self, connection: Connection, deadline: float) -> None:
        """Add a connected connection. Its first request must end by ``deadline``."""
        self._connections.add(connection)
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
        """Let the timer check a connection whose deadline has changed."""
        self._timer.enter(connection)

    def forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._timer.leave(connection)
        if not self._connections:
            self._all_closed.set()

    async def close(self) -> None:
        self.closed = True
        for connection in list(self._connections):
            connection.abort()
        self._all_closed.clear()
        if self._connections:
            try:
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await self._all_closed.wait()
            except TimeoutError:  # the event loop still holds them; our side is closed
                pass
