"""One connection to a provider. Received data is passed to the sink in the same call that received it.

A waiter is only woken, and then reads the state itself. No exception is set on a future, so that none is lost if the
waiter has been cancelled.
"""

import asyncio
import select
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from gateway.deadlines import NEVER
from gateway.errors import ProviderBadResponse, ProviderError, ProviderTimeout
from gateway.upstream.interface import Sink
from gateway.upstream.response_parser import MAX_PUSH_BYTES, ResponseParser, read_chunks

READ_BUFFER = 64 * 1024
"""Maximum of data that waits for a sink; with more, reading pauses."""
END_GRACE_S = 1.0
"""How long after the end mark of the stream the end of the response may come, so that the connection is reused."""
_REFUSED = 400
_BLANK_LINE = b"\n\n"
_TURNS = 3

Peek = Callable[[float], Sequence[object]]
"""Called with 0; the result is used as a flag."""


class ConnectionOwner(Protocol):
    """The pool, as its connections know it."""

    def rest(self, connection: "Connection") -> None:
        """Take back a connection that can be reused."""
        ...

    def forget(self, connection: "Connection") -> None:
        """Drop a closed connection."""
        ...

    def watch(self, connection: "Connection") -> None:
        """Check a connection whose deadline has been moved."""
        ...


class Connection(asyncio.Protocol):
    """A connection over a transport of asyncio.

    Attributes:
        idle: the idle connections of its origin.
        due_at: the deadline of the request, of the idle time or of the wait for the end (loop time).
        heard: a byte of the response to the last request has come.
        gone: it is closed, or being closed.
        peek: see ``find_peek``.
        sent: the whole request has been given to the transport.
        choked: the write buffer of the transport is full.
        error: the error that the gateway ended the request with, or None.
        broken: the error by which the provider ended it, or None.
        met: the exception that the sink raised, or None.
    """

    __slots__ = (
        "_divided", "_ending", "_held", "_loop", "_owner", "_sink", "_waiter", "backlog", "broken", "busy", "choked",
        "due_at", "error", "framing", "gone", "heard", "idle", "met", "peek", "sent", "transport",
        "waiting_bytes",
    )  # fmt: skip

    transport: asyncio.Transport | None

    def __init__(self, owner: ConnectionOwner, idle: "dict[Connection, None]") -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self.idle = idle
        self.framing = ResponseParser()
        self.transport = None
        self.backlog: deque[bytes] = deque()
        self.waiting_bytes = 0
        self.due_at = NEVER
        self._sink: Sink | None = None
        self.peek: Peek = see_nothing
        self._waiter: asyncio.Future[None] | None = None
        self._divided = self._held = self._ending = self.choked = self.gone = self.busy = self.heard = False
        self.sent = True
        self.error: ProviderError | None = None
        self.broken: ProviderError | None = None
        self.met: Exception | None = None

    @property
    def refused(self) -> bool:
        """Whether the response is an error."""
        return self.framing.headed and self.framing.status >= _REFUSED

    def ask(self, data: bytes) -> None:
        """Send a request, or its first part."""
        self.framing.begin()
        self.busy = True
        self.heard = False
        self.met = None
        if self.transport is not None and not self.gone:
            self.transport.write(data)

    def write(self, data: bytes) -> None:
        """Send data; dropped if the connection is gone."""
        if self.transport is not None and not self.gone:
            self.transport.write(data)

    def wait(self) -> asyncio.Future[None]:
        """Return a future that is done at the next change of state. There is only one waiter."""
        waiter = self._waiter = self._loop.create_future()
        return waiter

    async def follow(self, sink: Sink | None) -> bool:
        """Pass received data to ``sink`` until it returns True (True), or until the state changes."""
        self._sink = sink
        self._let_flow()
        self._divided = False
        try:
            await self.wait()
            return sink is not None and self._sink is None and not self._divided
        finally:
            self._sink = None

    def check(self) -> None:
        """Raise the error that the gateway ended the request with, or the sink's exception."""
        if self.error is not None:
            raise self.error
        if self.met is not None:
            met, self.met = self.met, None
            raise met

    def pop(self) -> bytes:
        """Return the next piece of the backlog; empty if there is none."""
        if not self.backlog:
            return b""
        piece = self.backlog.popleft()
        self.waiting_bytes -= len(piece)
        return piece

    def pop_all(self) -> bytes:
        """Return the whole backlog."""
        pieces = self.backlog
        data = b"".join(pieces)
        pieces.clear()
        self.waiting_bytes = 0
        return data

    def finish(self) -> None:
        """Wait for the end of the response, after the end mark of the stream, to reuse the connection."""
        if self.framing.complete or self.backlog or self.gone:
            self.release()
            return
        self._ending = True
        self._let_flow()
        self.due_at = self._loop.time() + END_GRACE_S
        self._owner.watch(self)

    def release(self) -> None:
        """Return the connection to the pool if the response is complete; close it if not."""
        self._sink = None
        if self.framing.complete and not (self.backlog or self.gone or self.error):
            self.busy = self._ending = False
            if self._held:
                self._let_flow()
            self._owner.rest(self)
        else:
            self.abort()

    def fail(self, error: ProviderError) -> None:
        """Close the connection; the reader gets ``error``, or the error before it."""
        if self.error is None:
            self.error = error
        self.abort()

    def abort(self) -> None:
        """Close the connection at once, without sending the rest."""
        self.backlog.clear()
        self.waiting_bytes = 0
        self._close()

    def expire(self, now: float) -> None:  # noqa: ARG002 - the signature of ``Deadline``
        """Close the connection: its deadline has passed."""
        self.due_at = NEVER
        if self.busy and not self._ending:
            phase = "body" if self.framing.headed else "headers"
            self.fail(ProviderTimeout("The provider took too long to answer", phase=phase))
        else:
            self.abort()

    # Callbacks of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # those of uvloop do not inherit from it
        self.peek = find_peek(self.transport)

    def data_received(self, data: bytes) -> None:
        sink = self._sink
        if sink is not None:
            if self.framing.at_chunk:
                payload = read_chunks(data)
                if payload is not None:
                    # The hot path: what ``_push`` does, without its call.
                    try:
                        enough = sink(payload, data)
                    except Exception as error:  # noqa: BLE001 - the coroutine that pumps raises it
                        self.met, enough = error, True
                    if enough:
                        self._sink = None
                        self._wake()
                    return
        elif not self.busy:
            self.abort()  # it would be taken for the answer to the next request
            return
        self._receive(data)

    def eof_received(self) -> bool:
        """Note the end of what the provider sends. The transport closes itself."""
        self._end(None)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)
        self.framing.drop()
        self._owner.forget(self)

    def pause_writing(self) -> None:
        self.choked = True

    def resume_writing(self) -> None:
        self.choked = False
        self._wake()

    def _push(self, sink: Sink, payload: bytes) -> None:
        """Give the sink a payload whose chunked framing is not known. The coroutine that pumps raises its exception."""
        try:
            enough = sink(payload, None)
        except Exception as error:  # noqa: BLE001 - the coroutine that pumps raises it
            self.met, enough = error, True
        if enough:
            self._sink = None
            self._wake()

    def _receive(self, data: bytes) -> None:
        framing = self.framing
        self.heard = True
        payload = framing.take(data)
        if framing.complete:
            unsent = not self.sent or self.transport is None or self.transport.get_write_buffer_size()
            if framing.excess or unsent or not framing.keep_alive:
                self._close()
        elif framing.broken is not None:
            self._break("The provider's answer is not valid HTTP", framing.broken)
        if self._ending:
            self._end_early(payload)
        elif payload:
            self._give(payload)
        if self._sink is None or framing.complete:
            self._wake()

    def _give(self, payload: bytes) -> None:
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
            self._keep(payload)
        full = self.waiting_bytes > READ_BUFFER and not self.framing.complete
        if full and not (self._held or self.gone) and self.transport is not None:
            self._held = True
            self.transport.pause_reading()

    def _keep(self, payload: bytes) -> None:
        """Split the payload into pieces for one turn of the event loop each, between two events if possible."""
        start = 0
        while len(payload) - start > MAX_PUSH_BYTES:
            end = start + MAX_PUSH_BYTES
            cut = payload.rfind(_BLANK_LINE, start, end) + len(_BLANK_LINE)
            self.backlog.append(payload[start : (end := cut if cut > start + 1 else end)])
            start = end
        self.backlog.append(payload[start:] if start else payload)
        self.waiting_bytes += len(payload)

    def _end_early(self, payload: bytes) -> None:
        """Handle data after the end mark of the stream: only the end of the response may come."""
        if payload:
            self.abort()
        elif self.framing.complete:
            self.release()

    def _let_flow(self) -> None:
        if self._held and self.transport is not None and not self.gone:
            self._held = False
            self.transport.resume_reading()

    def _break(self, message: str, cause: Exception | None) -> None:
        if self.broken is None:
            self.broken = ProviderBadResponse(message, phase="body" if self.framing.headed else "headers")
            self.broken.__cause__ = cause
        self._close()

    def _end(self, cause: Exception | None) -> None:
        """Handle the end of the connection, which may be the end of the body."""
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
    """Return whether an error response has come, after the event loop has read what is in the socket."""
    for _ in range(_TURNS):
        transport = connection.transport
        if transport is None or transport.is_closing() or not connection.peek(0):
            break
        await asyncio.sleep(0)
    return connection.refused


def find_peek(transport: asyncio.Transport) -> Peek:
    """Return a function that, called with 0, returns whether unread data, or the end, is in the socket."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return see_nothing
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return poll.poll


def see_nothing(_: float) -> Sequence[object]:
    """Return that there is no data: for a transport without a socket."""
    return ()
