"""Relay of a stream from its first event to its end: the hot path."""

import asyncio
from collections.abc import Callable, Iterable

from gateway.deadlines import Timeout
from gateway.errors import GatewayError, ProviderBadResponse, ProviderError, drop_frames
from gateway.formats.error_body import build_error_event
from gateway.formats.json_or_stream import JsonOrStream, is_event_stream, is_json, strip_beginning
from gateway.formats.sse import KEEPALIVE, MAX_NOISE_BYTES
from gateway.formats.stream import LARGE_EVENT_BYTES, PassthroughStream, StreamTransform, TranslatingStream
from gateway.formats.translator import EVENT_STREAM
from gateway.large_work import work_aside
from gateway.proxy.client_stream import ClientStream
from gateway.proxy.stream_timeouts import StreamTimeouts
from gateway.request_context import RequestContext
from gateway.upstream.interface import HttpResponse, PumpResult
from gateway.upstream.large_answers import READING, ReadingShare

EVENTS = "text/event-stream; charset=utf-8"
MAX_HELD_BYTES = 64 * 1024
"""Maximum of held bytes before the first event, without noise; beyond it the client is answered without one."""
_READ_ASIDE = (TranslatingStream, PassthroughStream, JsonOrStream)
"""Transforms that a thread may use for a large event, or for an answer that is no stream."""


class StreamRelay:
    """Relays one provider's stream to one client.

    The client is answered with the first event, or when it has waited so long that a comment is due. Until then an
    error is raised, so that another attempt can follow.

    Args:
        response: the provider's response at its headers.
        transform: transforms the provider's bytes into the client's.
        ctx: the request; its usage and the time of its first byte are set here.
        client_stream: takes the stream.
        timeouts: of the provider.
        sound_type: the media type of an audio answer, in which neither a comment nor an error can be sent; None for a
            stream of events.
        answered: called with the received pieces when the first event is complete.
        open_whole: makes the transform for a provider that sends one JSON answer instead of a stream, whatever its
            Content-Type is; None if it cannot.
    """

    # ``_last`` holds the end mark, and what arrived in one piece with it, until the request is settled.
    __slots__ = (
        "_answered",
        "_binary",
        "_client_stream",
        "_ctx",
        "_events_before_noise",
        "_held",
        "_held_bytes",
        "_large_bytes",
        "_last",
        "_media_type",
        "_noise_before",
        "_noted",
        "_open_whole",
        "_reply",
        "_share",
        "_time",
        "_timeouts",
        "_transform",
        "opened",
    )  # fmt: skip

    def __init__(
        self,
        response: HttpResponse,
        transform: StreamTransform,
        ctx: RequestContext,
        client_stream: ClientStream,
        *,
        timeouts: StreamTimeouts,
        answered: Callable[[Iterable[bytes]], None],
        sound_type: str | None = None,
        open_whole: Callable[[], StreamTransform] | None = None,
    ) -> None:
        self._reply = response
        self._transform = transform
        self._ctx = ctx
        self._client_stream = client_stream
        self._timeouts = timeouts
        self._answered = answered
        self._media_type = sound_type or EVENTS
        self._binary = sound_type is not None
        self._open_whole = open_whole
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._events_before_noise = self._noise_before = 0
        self._share: ReadingShare | None = None
        self._large_bytes = 0
        self._last = b""
        self._noted = False
        self._time = asyncio.get_running_loop().time
        self.opened = False

    async def run(self, settle: Callable[[ProviderError | None], None]) -> ProviderError | None:
        """Relay the stream to its end. Return the error that ended it after its first byte; None if it is complete.

        ``settle`` is called before the end mark is sent: a client that has the whole answer has paid for it, even if
        this process ends between the two.

        Raises:
            ProviderError: nothing has been sent.
            ClientDisconnected: the client has left.
        """
        error: ProviderError | None = None
        try:
            ended = await self._await_first_event()
            self._open()
            if ended is PumpResult.PAUSED:
                ended = await self._push()
            if ended is PumpResult.ENDED:
                self._last += await self._finish()
                self._record_first([self._last])
            self._reply.finish()
        except GatewayError as met:
            if not self.opened:
                raise
            error = met if isinstance(met, ProviderError) else _build_ours(met)
            if not self._binary:
                self._client_stream.note_page(met)
                written = self._transform.write_error(met, self._ctx.id)
                self._last += written or build_error_event(met, self._ctx.id, self._ctx.operation)
            drop_frames(met)
        finally:
            if self._share is not None:
                self._share.resize(0)
            self._write_usage(error)
        self._timeouts.stop()  # from here on nothing waits for the provider
        settle(error)
        if error is not None and self._binary:
            self._client_stream.cut()
            return error
        await self._client_stream.finish(self._last)
        return error

    async def _await_first_event(self) -> PumpResult:
        """Pump until an event is complete or a comment is due. Raises ``ProviderError``: nothing has been sent."""
        pumped = PumpResult.PAUSED
        try:
            if self._binary:
                pumped = await self._reply.pump(self._hold)
            else:
                with Timeout(self._timeouts.timer, self._timeouts.find_silence_s()):
                    pumped = await self._reply.pump(self._hold)
                    # Written out here and in ``_push``: a call of ``_is_heavy`` would be one more for every request.
                    while (
                        pumped is PumpResult.PAUSED
                        and isinstance(self._transform, _READ_ASIDE)
                        and self._transform.heavy
                    ):
                        pumped = await self._pump_large(self._held.append)
                        if pumped is PumpResult.PAUSED and not (
                            self._transform.events or self._transform.closed or self._is_heavy()
                        ):
                            pumped = await self._reply.pump(self._hold)
        except TimeoutError:
            self._held.append(KEEPALIVE)
            if isinstance(self._transform, _READ_ASIDE):  # a thread may have finished an event meanwhile
                self._held.append(self._transform.write())
        if self._transform.error is not None:
            raise self._transform.error
        if pumped is PumpResult.ENDED:
            self._held.append(await self._finish())
            pumped = PumpResult.PAUSED
        if self._transform.closed and self._transform.empty:
            raise ProviderBadResponse("The provider's stream has no answer")
        self._record_first(self._held)
        return pumped

    def _record_first(self, received: Iterable[bytes]) -> None:
        """Report the first event once, also if the client was answered with a comment before it."""
        if self._transform.events and not self._noted:
            self._noted = True
            self._answered(received)

    def _open(self) -> None:
        rest = b""
        if self._transform.closed and len(self._held[-1]) > LARGE_EVENT_BYTES:
            rest = self._held.pop()  # it is not copied together with the others
        held = b"".join(self._held)
        self._held.clear()
        if self._transform.closed:
            self._last, held = (rest, held) if rest else (held, b"")
        self._client_stream.open(self._media_type, held)
        self.opened = True
        now = self._time()
        self._ctx.first_byte_at = now
        self._timeouts.written_at = now
        self._timeouts.wind()

    async def _push(self) -> PumpResult:
        """Pump to the end mark or to the end of the response; wait while the client reads slowly."""
        while not self._transform.closed:
            if self._share is not None and not self._large_bytes:  # the client has read the last large event
                self._share.resize(0)
            if isinstance(self._transform, _READ_ASIDE) and self._transform.heavy:
                if await self._pump_large(self._send) is PumpResult.ENDED:
                    return PumpResult.ENDED
            elif (
                await self._reply.pump(self._pass if self._open_whole is None else self._pass_first) is PumpResult.ENDED
            ):
                return PumpResult.ENDED
            if self._client_stream.full:
                await self._wait_for_reader()
        if self._transform.error is not None:
            raise self._transform.error
        return PumpResult.PAUSED

    async def _finish(self) -> bytes:
        """Return the rest of the answer: all of it if the provider has sent JSON."""
        transform = self._transform
        if isinstance(transform, _READ_ASIDE) and transform.ends_heavily:
            return await work_aside(transform.finish)
        return transform.finish()

    def _is_heavy(self) -> bool:
        return isinstance(self._transform, _READ_ASIDE) and self._transform.heavy

    async def _pump_large(self, send: Callable[[bytes], object]) -> PumpResult:
        """Pump one piece of a large event, which a thread reads, and ``send`` the output."""
        transform, pieces = self._transform, list[bytes]()
        assert isinstance(transform, _READ_ASIDE)  # noqa: S101 - see ``_is_heavy``
        if transform.waiting:
            await work_aside(transform.read, b"")
        elif not transform.unwritten:

            def take(piece: bytes, _raw: bytes | None) -> bool:
                pieces.append(piece)
                return True

            if await self._reply.pump(take) is PumpResult.ENDED:
                return PumpResult.ENDED
            data = b"".join(pieces)
            await self._take_room(len(data))
            if transform.may_end(data):
                await work_aside(transform.read, data)
            else:
                transform.read(data)
        if out := transform.write():
            self._timeouts.event_at = self._time()
            self._large_bytes = 0
            send(out)
        return PumpResult.PAUSED

    async def _take_room(self, size: int) -> None:
        """Count ``size`` more bytes of a large event, and wait while other answers leave no room for them."""
        share = self._share = self._share or READING.open_share()
        self._large_bytes += size
        if share.resize(self._large_bytes):
            return
        if not self.opened:
            await share.wait()
            return
        # The provider is not read meanwhile: see ``_wait_for_reader``.
        self._timeouts.stop()
        await share.wait()
        self._timeouts.event_at = self._timeouts.written_at = self._time()
        self._timeouts.wind()

    def _send(self, out: bytes) -> None:
        """Send the output of a large event to the client."""
        self._record_first([out])
        self._timeouts.written_at = self._time()
        if self._transform.closed:
            self._last += out
        else:
            self._client_stream.write(out, None)

    async def _wait_for_reader(self) -> None:
        # The provider is not read meanwhile, so its timeouts start again afterwards.
        self._timeouts.stop()
        await self._client_stream.drain()
        self._timeouts.event_at = self._timeouts.written_at = self._time()
        self._timeouts.wind()

    def _detect(self, data: bytes) -> None:
        """Detect by its beginning whether an answer is a stream or JSON: its Content-Type may be missing, or wrong."""
        begun = strip_beginning(data)
        if not begun or self._open_whole is None:
            return
        open_whole, self._open_whole = self._open_whole, None
        if is_json(begun):
            self._transform = open_whole()
            self._timeouts.wait_for_whole()
        elif not is_event_stream(begun):
            kind = self._reply.headers.get("Content-Type", EVENT_STREAM).lower()
            if not kind.startswith(EVENT_STREAM):
                self._transform.error = ProviderBadResponse("The provider did not answer with an event stream")

    def _pass_first(self, data: bytes, raw_chunks: bytes | None) -> bool:
        """The sink until the first bytes, if the client was answered with a comment before them."""
        self._detect(data)
        self._pass(data, raw_chunks)
        return True

    def _hold(self, data: bytes, _raw_chunks: bytes | None) -> bool:
        """The sink before the client is answered."""
        if self._open_whole is not None:
            self._detect(data)
        self._held.append(self._transform.feed(data))
        self._held_bytes += len(self._held[-1])
        transform = self._transform
        if transform.events:
            self._timeouts.event_at = self._time()
        else:
            self._check_noise()
        return (
            transform.events > 0
            or transform.closed
            or self._held_bytes - transform.noise > MAX_HELD_BYTES
            or self._is_heavy()
        )

    def _check_noise(self) -> None:
        """Fail the stream if too many bytes have come since the last event."""
        transform = self._transform
        noise, events = transform.noise, transform.events
        if events != self._events_before_noise:
            self._events_before_noise, self._noise_before = events, noise
        elif noise - self._noise_before > MAX_NOISE_BYTES and transform.error is None:
            transform.error = ProviderBadResponse(
                f"The provider sent {MAX_NOISE_BYTES} bytes without an event", phase="stream"
            )

    def _pass(self, data: bytes, raw_chunks: bytes | None) -> bool:
        """The sink of the hot path. Every call in here is one more for every event."""
        transform, timeouts = self._transform, self._timeouts
        before = transform.events
        out = transform.feed(data)
        now = self._time()
        if transform.events != before:
            timeouts.event_at = now
            if not before:
                self._record_first([out])
        else:
            self._check_noise()
        if not out:
            return transform.closed or self._is_heavy()
        timeouts.written_at = now
        if transform.closed:
            self._last += out
            return True
        return self._client_stream.write(out, raw_chunks if out is data else None)

    def _write_usage(self, error: ProviderError | None) -> None:
        """Take the usage from the transform, which has to know the error that ended the stream."""
        if not self.opened:
            return
        if error is not None and self._transform.error is None:
            self._transform.error = error
        self._ctx.usage = self._transform.parse_usage()


def _build_ours(met: GatewayError) -> ProviderError:
    """Wrap an error of the gateway itself: it ends the stream like any other, and counts for no channel."""
    error = ProviderBadResponse(met.message, phase="gateway")
    error.failure_scope = "nobody"
    return error
