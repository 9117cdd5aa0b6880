"""One connection to a provider, push-shaped: what comes is given to the sink in the very call that received it.

Who waits here is woken and looks for itself at what has happened; nothing is told by an exception in a future, so
nobody has to be there to hear it.
"""

import asyncio
from collections import deque
from typing import Protocol, cast

from gateway.deadlines import NEVER
from gateway.errors import ProviderBadResponse, ProviderError, ProviderTimeout
from gateway.upstream.interface import Sink
from gateway.upstream.request_body import Peek, find_peek, see_nothing
from gateway.upstream.response_parser import MAX_PUSH_BYTES, ResponseParser, read_chunks

READ_BUFFER = 64 * 1024
"""What may wait for a sink; with more than that the provider is read no further."""
END_GRACE_S = 1.0
"""After the dialect's end mark, how long the transport's end may take for the connection to be used again."""
_REFUSED = 400
_BLANK_LINE = b"\n\n"


class Keeper(Protocol):
    """Where connections wait for their next request, and what watches their deadlines."""

    def rest(self, line: "Connection") -> None:
        """``line`` may be used again."""
        ...

    def forget(self, line: "Connection") -> None:
        """``line`` is lost."""
        ...

    def watch(self, line: "Connection") -> None:
        """Check ``line`` when it is due."""
        ...


class Connection(asyncio.Protocol):
    """A connection, over whichever transport.

    Attributes:
        idle: those it may wait with for its next request.
        due_at: its deadline, on the loop's clock; what passes then depends on what it is doing.
        heard: whether any byte of an answer to the last has come.
        gone: it is closed, or being closed.
        peek: see ``content.find_peek``.
        sent: all of the request has been given to the transport.
        choked: the transport holds more than it should; see ``wait``.
        fault: what it was broken with from our side.
        broken: how the provider broke it.
        met: what the sink raised.
    """

    __slots__ = (
        "_divided", "_ending", "_held", "_keeper", "_loop", "_sink", "_waiter", "backlog", "broken", "busy", "choked",
        "due_at", "fault", "framing", "gone", "heard", "idle", "met", "peek", "sent", "transport",
        "waiting_bytes",
    )  # fmt: skip

    transport: asyncio.Transport | None

    def __init__(self, keeper: Keeper, idle: "dict[Connection, None]") -> None:
        self._keeper = keeper
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
        self.fault: ProviderError | None = None
        self.broken: ProviderError | None = None
        self.met: Exception | None = None

    # What is done with it.

    @property
    def refused(self) -> bool:
        """Whether the answer is an error."""
        return self.framing.headed and self.framing.status >= _REFUSED

    def ask(self, data: bytes) -> None:
        """Send a request, or what of it is sent at once."""
        self.framing.begin()
        self.busy = True
        self.heard = False
        self.met = None
        self.write(data)

    def write(self, data: bytes) -> None:
        """Send. A connection that is gone takes nothing."""
        if self.transport is not None and not self.gone:
            self.transport.write(data)

    def wait(self) -> asyncio.Future[None]:
        """Done when something has happened. Only one may wait."""
        waiter = self._waiter = self._loop.create_future()
        return waiter

    async def follow(self, sink: Sink | None) -> bool:
        """Push what comes into ``sink`` until it has had enough (True), or something else has happened."""
        self._sink = sink
        self._let_flow()
        self._divided = False
        try:
            await self.wait()
            return sink is not None and self._sink is None and not self._divided
        finally:
            self._sink = None

    def check(self) -> None:
        """Raise what it was broken with from our side, or what the sink raised."""
        if self.fault is not None:
            raise self.fault
        if self.met is not None:
            met, self.met = self.met, None
            raise met

    def pop(self) -> bytes:
        """The next piece that nobody has had yet; empty where there is none."""
        if not self.backlog:
            return b""
        piece = self.backlog.popleft()
        self.waiting_bytes -= len(piece)
        return piece

    def pop_all(self) -> bytes:
        """Every piece that nobody has had yet."""
        pieces = self.backlog
        data = b"".join(pieces)
        pieces.clear()
        self.waiting_bytes = 0
        return data

    def finish(self) -> None:
        """The dialect is complete: nothing but the transport's end is wanted any more."""
        if self.framing.complete or self.backlog or self.gone:
            self.release()
            return
        self._ending = True
        self._let_flow()
        self.due_at = self._loop.time() + END_GRACE_S
        self._keeper.watch(self)

    def release(self) -> None:
        """Done with the answer: the connection is used again where nothing at all speaks against it."""
        self._sink = None
        if self.framing.complete and not (self.backlog or self.gone or self.fault):
            self.busy = self._ending = False
            if self._held:
                self._let_flow()
            self._keeper.rest(self)
        else:
            self.abort()

    def fail(self, fault: ProviderError) -> None:
        """Break it; who waits finds ``fault``, or what it was broken with before."""
        if self.fault is None:
            self.fault = fault
        self.abort()

    def abort(self) -> None:
        """Close it, at once and whatever is not sent yet."""
        self.backlog.clear()
        self.waiting_bytes = 0
        self._hang_up()

    def force_close(self) -> None:
        """It is not to be used again."""
        self.sent = False

    def expire(self, now: float) -> None:  # noqa: ARG002 - the signature of ``Deadline``
        """Break the connection: its deadline has passed."""
        self.due_at = NEVER
        if self.busy and not self._ending:
            phase = "body" if self.framing.headed else "headers"
            self.fail(ProviderTimeout("The provider took too long to answer", phase=phase))
        else:
            self.abort()

    # What the transport tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are none by their class
        self.peek = find_peek(self.transport)

    def data_received(self, data: bytes) -> None:
        """Bytes from the provider."""
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
            self.abort()  # nobody asked: it would be the next request's answer
            return
        self._receive(data)

    def eof_received(self) -> bool:
        """The provider sends no more. The transport closes itself."""
        self._end(None)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed."""
        self._end(exc)
        self.framing.drop()
        self._keeper.forget(self)

    def pause_writing(self) -> None:
        """The provider does not read as fast as it is written to."""
        self.choked = True

    def resume_writing(self) -> None:
        """It has read."""
        self.choked = False
        self._wake()

    # What comes of it.

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
                self._hang_up()
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
        self._keep(payload)
        full = self.waiting_bytes > READ_BUFFER and not self.framing.complete
        if full and not (self._held or self.gone) and self.transport is not None:
            self._held = True
            self.transport.pause_reading()

    def _keep(self, payload: bytes) -> None:
        """In pieces of what is pushed in one turn of the loop; between two events, if there is such a place."""
        start = 0
        while len(payload) - start > MAX_PUSH_BYTES:
            end = start + MAX_PUSH_BYTES
            cut = payload.rfind(_BLANK_LINE, start, end) + len(_BLANK_LINE)
            self.backlog.append(payload[start : (end := cut if cut > start + 1 else end)])
            start = end
        self.backlog.append(payload[start:] if start else payload)
        self.waiting_bytes += len(payload)

    def _end_early(self, payload: bytes) -> None:
        """The dialect was complete before. Anything but the end is a byte after the end: it is not to be trusted."""
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
        self._hang_up()

    def _end(self, cause: Exception | None) -> None:
        """The provider's side has ended; that may be the end of the body, too."""
        if self.busy and not self.gone:
            if cause is None:
                self.framing.end()
            if not self.framing.complete:
                self._break("The provider broke the connection", cause)
        self._hang_up()

    def _hang_up(self) -> None:
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
