"""Relay of a stream: first the wait for its first event, then the hot path to its end."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext

import attrs

from gateway.deadlines import DeadlineTimer, Timeout
from gateway.domain.channel import Timeouts
from gateway.errors import GatewayError, ProviderBadResponse, ProviderError, ProviderTimeout, drop_frames
from gateway.formats.errors.body import build_error_event
from gateway.formats.stream import (
    LARGE_EVENT_BYTES,
    JsonOrStream,
    PassthroughStream,
    StreamTransform,
    TranslatingStream,
    is_event_stream,
    is_json,
    strip_beginning,
)
from gateway.formats.translator import EVENT_STREAM
from gateway.formats.wire.sse import KEEPALIVE, MAX_NOISE_BYTES
from gateway.large_work import run_in_thread
from gateway.proxy.client_stream import ClientStream
from gateway.request_context import RequestContext
from gateway.upstream.interface import HttpResponse, PumpResult
from gateway.upstream.large_answers import READING, ReadingShare

EVENT_STREAM_TYPE = "text/event-stream; charset=utf-8"
KEEPALIVE_AFTER_S = 15.0
"""Silence after which the client gets a comment, to keep proxies from closing the connection after 30 or 60 seconds."""
MAX_HELD_BYTES = 64 * 1024
"""Limit of output buffered before the first event, without noise. Beyond it the response begins without an event."""
_READ_ASIDE = (TranslatingStream, PassthroughStream, JsonOrStream)
"""Transforms that can parse a large event, or an answer that is not a stream, in a thread."""
_ReadAside = TranslatingStream | PassthroughStream | JsonOrStream


class StreamTimeouts:
    """The timeouts of one stream (first event, idle, total), and the comments that keep its client's connection alive.

    All share one timer, which is set to the earliest possible expiry and computed again when it fires. An event
    therefore only stores a time and sets no timer.

    Args:
        give_up: called once, with the error of the timeout that expired.
        keep_alive: called when the client has received nothing for ``KEEPALIVE_AFTER_S``.

    Attributes:
        event_at: when the last complete event came (loop time); None before the first.
        written_at: when the client was last written to (loop time); None before the response has begun.
    """

    __slots__ = (
        "_give_up", "_keep_alive", "_loop", "_started", "_timeouts", "due_at", "event_at", "timer", "written_at",
    )  # fmt: skip

    def __init__(
        self,
        timeouts: Timeouts,
        timer: DeadlineTimer,
        *,
        give_up: Callable[[ProviderTimeout], None],
        keep_alive: Callable[[], object],
    ) -> None:
        self._timeouts = timeouts
        self.timer = timer
        self._give_up = give_up
        self._keep_alive = keep_alive
        self._loop = timer.loop
        self._started = self._loop.time()
        self.event_at: float | None = None
        self.written_at: float | None = None
        self.due_at = 0.0
        self.set_timer()

    def find_silence_s(self) -> float:
        """Return the seconds until the first comment, after which no other attempt is possible.

        If the timeout of the first event is at most twice ``KEEPALIVE_AFTER_S``, the comment comes only after it.
        """
        first_s = self._timeouts.first_byte_s
        return KEEPALIVE_AFTER_S if first_s > 2 * KEEPALIVE_AFTER_S else max(KEEPALIVE_AFTER_S, first_s + 1)

    def set_timer(self) -> None:
        """Set the deadline to the next possible expiry. Call this again once the response has begun."""
        deadline, _ = self._find_deadline()
        self.due_at = deadline if self.written_at is None else min(deadline, self.written_at + KEEPALIVE_AFTER_S)
        self.timer.enter(self)

    def wait_for_whole(self) -> None:
        """Switch to a complete answer instead of events: only the total timeout applies from now on."""
        total_s = self._timeouts.total_s
        self._timeouts = attrs.evolve(self._timeouts, first_byte_s=total_s, idle_s=total_s)
        self.set_timer()

    def stop(self) -> None:
        self.timer.leave(self)

    def _find_deadline(self) -> tuple[float, str]:
        total = self._started + self._timeouts.total_s
        if self.event_at is None:
            deadline, message = self._started + self._timeouts.first_byte_s, "The provider sent no event in time"
        else:
            deadline, message = self.event_at + self._timeouts.idle_s, "The provider stopped sending events"
        return (deadline, message) if deadline <= total else (total, "The provider took too long to finish")

    def expire(self, now_s: float) -> None:
        """Give up if a timeout has expired, or send a comment if one is due; then set the next deadline."""
        deadline, message = self._find_deadline()
        if now_s >= deadline:
            self.stop()
            self._give_up(ProviderTimeout(message, phase="stream"))
            return
        if self.written_at is not None and now_s >= self.written_at + KEEPALIVE_AFTER_S:
            self.written_at = now_s
            self._keep_alive()
        self.set_timer()


class ProviderStream:
    """Reads one provider's stream. Before the response to the client begins, errors are raised to permit a retry.

    The response begins with the first event, or with a comment after a long wait; from then on an ``OpenStream`` relays
    the stream.

    Args:
        answered: called with the received pieces when the first event is complete.

    Attributes:
        open_whole: creates the transform for a provider that sends one JSON answer instead of a stream, whatever its
            Content-Type; None if that is impossible, or once the answer has begun.
        held: output buffered until the response to the client begins.
        share: this stream's share of the memory for large events; None before its first large event.
        large_bytes: bytes read so far of the current large event.
    """

    __slots__ = (
        "_answered", "_events_before_noise", "_held_bytes", "_noise_before", "_noted", "_time", "held", "large_bytes",
        "open_whole", "response", "share", "timeouts", "transform",
    )  # fmt: skip

    def __init__(
        self,
        response: HttpResponse,
        transform: StreamTransform,
        *,
        timeouts: StreamTimeouts,
        answered: Callable[[Iterable[bytes]], None],
        open_whole: Callable[[], StreamTransform] | None = None,
    ) -> None:
        self.response = response
        self.transform = transform
        self.timeouts = timeouts
        self.open_whole = open_whole
        self.held: list[bytes] = []
        self._held_bytes = 0
        self._answered = answered
        self._noted = False
        self._events_before_noise = self._noise_before = 0
        self.share: ReadingShare | None = None
        self.large_bytes = 0
        self._time = timeouts.timer.loop.time

    async def await_first_event(self, *, comments: bool) -> None:
        """Read until an event is complete or, with ``comments``, a comment is due. ``held`` has the output.

        Raises ``ProviderError``; then nothing has been sent to the client.
        """
        pump_result, succeeded = PumpResult.PAUSED, False
        try:
            try:
                with Timeout(self.timeouts.timer, self.timeouts.find_silence_s()) if comments else nullcontext():
                    pump_result = await self.response.pump(self._buffer)
                    # Inlined here and in ``_push``: calling ``is_heavy`` would cost one more call per request.
                    if isinstance(self.transform, _READ_ASIDE) and self.transform.heavy:
                        pump_result = await self._buffer_large(pump_result)
            except TimeoutError:
                self.held.append(KEEPALIVE)
                if isinstance(self.transform, _READ_ASIDE):  # a thread may have finished an event meanwhile
                    self.held.append(self.transform.write())
            if self.transform.error is not None:
                raise self.transform.error
            if pump_result is PumpResult.ENDED:
                self.held.append(await self.finish())
            if self.transform.closed and self.transform.empty:
                raise ProviderBadResponse("The provider's stream has no answer")
            self.record_first(self.held)
            succeeded = True
        finally:
            if not succeeded and self.share is not None:
                self.share.resize(0)

    @property
    def is_heavy(self) -> bool:
        return isinstance(self.transform, _READ_ASIDE) and self.transform.heavy

    def record_first(self, received: Iterable[bytes]) -> None:
        """Report the first event, once. A comment may have been sent before it."""
        if self.transform.events and not self._noted:
            self._noted = True
            self._answered(received)

    def detect(self, data: bytes) -> None:
        """Detect from the first bytes whether an answer is a stream or JSON: the Content-Type is not reliable.

        For JSON, ``transform`` is replaced. An answer that is neither, and is not declared a stream, sets its error.
        """
        stripped_data = strip_beginning(data)
        if not stripped_data or self.open_whole is None:
            return
        open_whole, self.open_whole = self.open_whole, None
        if is_json(stripped_data):
            self.transform = open_whole()
            self.timeouts.wait_for_whole()
        elif not is_event_stream(stripped_data):
            media_type = self.response.headers.get("Content-Type", EVENT_STREAM).lower()
            if not media_type.startswith(EVENT_STREAM):
                self.transform.error = ProviderBadResponse("The provider did not answer with an event stream")

    def check_noise(self) -> None:
        """Set the stream's error if more than ``MAX_NOISE_BYTES`` have arrived without an event."""
        transform = self.transform
        noise, events = transform.noise, transform.events
        if events != self._events_before_noise:
            self._events_before_noise, self._noise_before = events, noise
        elif noise - self._noise_before > MAX_NOISE_BYTES and transform.error is None:
            transform.error = ProviderBadResponse(
                f"The provider sent {MAX_NOISE_BYTES} bytes without an event", phase="stream"
            )

    async def pump_large(self, transform: _ReadAside, send: Callable[[bytes], object]) -> PumpResult:
        """Read one piece of a large event, parse complete events in a thread, and ``send`` the output.

        Returns ``ENDED`` if the response has ended, else ``PAUSED``.
        """
        pieces = list[bytes]()
        if transform.pending_data:
            await run_in_thread(transform.read, b"")
        elif not transform.unwritten:

            def take(piece: bytes, _raw: bytes | None) -> bool:
                pieces.append(piece)
                return True

            if await self.response.pump(take) is PumpResult.ENDED:
                return PumpResult.ENDED
            data = b"".join(pieces)
            await self._reserve_memory(len(data))
            if transform.may_end(data):
                await run_in_thread(transform.read, data)
            else:
                transform.read(data)
        if out := transform.write():
            self.timeouts.event_at = self._time()
            self.large_bytes = 0
            send(out)
        return PumpResult.PAUSED

    async def finish(self) -> bytes:
        transform = self.transform
        if isinstance(transform, _READ_ASIDE) and transform.ends_heavily:
            return await run_in_thread(transform.finish)
        return transform.finish()

    async def _reserve_memory(self, size: int) -> None:
        """Count ``size`` more bytes of a large event, and wait while other answers use up the memory for them."""
        share = self.share = self.share or READING.open_share()
        self.large_bytes += size
        if share.resize(self.large_bytes):
            return
        if self.timeouts.written_at is None:  # the response has not begun: the first event's timeout continues
            await share.wait()
            return
        # Restart the timeouts afterwards, as in ``OpenStream._wait_for_reader``: the provider is not read meanwhile.
        self.timeouts.stop()
        await share.wait()
        self.timeouts.event_at = self.timeouts.written_at = self._time()
        self.timeouts.set_timer()

    def _buffer(self, data: bytes, _raw_chunks: bytes | None) -> bool:
        """The sink before the response to the client has begun."""
        if self.open_whole is not None:
            self.detect(data)
        transform = self.transform
        self.held.append(transform.feed(data))
        self._held_bytes += len(self.held[-1])
        if transform.events:
            self.timeouts.event_at = self._time()
        else:
            self.check_noise()
        return (
            transform.events > 0
            or transform.closed
            or self._held_bytes - transform.noise > MAX_HELD_BYTES
            or self.is_heavy
        )

    async def _buffer_large(self, pump_result: PumpResult) -> PumpResult:
        while pump_result is PumpResult.PAUSED and isinstance(self.transform, _READ_ASIDE) and self.transform.heavy:
            pump_result = await self.pump_large(self.transform, self.held.append)
            if pump_result is PumpResult.PAUSED and not (
                self.transform.events or self.transform.closed or self.is_heavy
            ):
                pump_result = await self.response.pump(self._buffer)
        return pump_result


class OpenStream:
    """Relays a provider's stream to a client, from the first bytes to the end. An error is sent as one last event.

    ``ctx``: the request, whose usage and time of the first byte are set here. ``sound_type``: media type of an audio
    answer, which cannot contain comments or error events; None for a stream of events.
    """

    # ``_last`` holds the end mark, with the data that arrived in the same piece, until the request is settled.
    __slots__ = ("_client_stream", "_ctx", "_last", "_provider", "_sound_type", "_time", "_timeouts", "_transform")

    def __init__(
        self, provider: ProviderStream, ctx: RequestContext, client_stream: ClientStream, sound_type: str | None = None
    ) -> None:
        self._provider = provider
        self._transform, self._timeouts = provider.transform, provider.timeouts
        self._ctx = ctx
        self._client_stream = client_stream
        self._sound_type = sound_type
        self._last = b""
        self._time = self._timeouts.timer.loop.time

    async def run(self, settle: Callable[[ProviderError | None], None]) -> ProviderError | None:
        """Relay the stream to its end. Return the error that ended it; None for a complete stream.

        ``settle`` is called before the end mark is sent: no client gets a complete answer without being charged, even
        if this process dies between the two. Raises ``ClientDisconnected``.
        """
        provider, error = self._provider, None
        self._open(provider.held)
        try:
            if await self._push() is PumpResult.ENDED:
                self._last += await provider.finish()
                provider.record_first([self._last])
            provider.response.finish()
        except GatewayError as caught_error:
            error = caught_error if isinstance(caught_error, ProviderError) else _wrap_own_error(caught_error)
            self._write_error(caught_error, error)
        finally:
            if provider.share is not None:
                provider.share.resize(0)
            self._ctx.usage = self._transform.parse_usage()
        self._timeouts.stop()  # nothing is read from the provider any more
        settle(error)
        if error is not None and self._sound_type is not None:
            self._client_stream.abort()
            return error
        await self._client_stream.finish(self._last)
        return error

    def _open(self, held_chunks: list[bytes]) -> None:
        rest = b""
        if self._transform.closed and len(held_chunks[-1]) > LARGE_EVENT_BYTES:
            rest = held_chunks.pop()  # avoids copying it in the join below
        first = b"".join(held_chunks)
        held_chunks.clear()
        if self._transform.closed:
            self._last, first = (rest, first) if rest else (first, b"")
        self._client_stream.open(self._sound_type or EVENT_STREAM_TYPE, first)
        self._ctx.first_byte_at = self._timeouts.written_at = self._time()
        self._timeouts.set_timer()

    async def _push(self) -> PumpResult:
        """Relay the response, no faster than the client reads.

        Return ``ENDED`` if the provider ended the response, ``PAUSED`` after the end mark. Raises the error of the
        transform.
        """
        provider = self._provider
        while not self._transform.closed:
            if provider.share is not None and not provider.large_bytes:  # no large event is in memory
                provider.share.resize(0)
            if isinstance(self._transform, _READ_ASIDE) and self._transform.heavy:
                if await provider.pump_large(self._transform, self._send) is PumpResult.ENDED:
                    return PumpResult.ENDED
            elif (
                await provider.response.pump(self._pass if provider.open_whole is None else self._pass_first)
                is PumpResult.ENDED
            ):
                return PumpResult.ENDED
            if self._client_stream.full:
                await self._wait_for_reader()
        if self._transform.error is not None:
            raise self._transform.error
        return PumpResult.PAUSED

    async def _wait_for_reader(self) -> None:
        # The provider is not read while the client is slow, so its timeouts restart afterwards.
        self._timeouts.stop()
        await self._client_stream.drain()
        self._timeouts.event_at = self._timeouts.written_at = self._time()
        self._timeouts.set_timer()

    def _pass(self, data: bytes, raw_chunks: bytes | None) -> bool:
        """A sink: transform received data, and write them to the client.

        Return whether to pause: at the end mark, for a large event, or if the client is slow. This runs for every
        event: each function call in here counts.
        """
        transform, timeouts = self._transform, self._timeouts
        before = transform.events
        out = transform.feed(data)
        now_s = self._time()
        if transform.events != before:
            timeouts.event_at = now_s
            if not before:
                self._provider.record_first([out])
        else:
            self._provider.check_noise()
        if not out:
            return transform.closed or self._provider.is_heavy
        timeouts.written_at = now_s
        if transform.closed:
            self._last += out
            return True
        return self._client_stream.write(out, raw_chunks if out is data else None)

    def _pass_first(self, data: bytes, raw_chunks: bytes | None) -> bool:
        """The sink for the provider's first bytes if a comment was sent before them."""
        self._provider.detect(data)
        self._transform = self._provider.transform
        self._pass(data, raw_chunks)
        return True

    def _send(self, out: bytes) -> None:
        self._provider.record_first([out])
        self._timeouts.written_at = self._time()
        if self._transform.closed:
            self._last += out
        else:
            self._client_stream.write(out, None)

    def _write_error(self, caught_error: GatewayError, error: ProviderError) -> None:
        """Add the error event to the output, and set the error in the transform, whose usage depends on it."""
        if self._sound_type is None:
            self._client_stream.add_doc_url(caught_error)
            error_event = self._transform.write_error(caught_error, self._ctx.id)
            self._last += error_event or build_error_event(caught_error, self._ctx.id, self._ctx.operation)
        if self._transform.error is None:
            self._transform.error = error
        drop_frames(caught_error)


async def end_open_stream(
    caught_error: GatewayError,
    ctx: RequestContext,
    client_stream: ClientStream,
    settle: Callable[[GatewayError | None], None],
) -> ProviderError:
    """Send the error event for ``caught_error`` to a client that has received only comments, and end the stream.

    ``settle`` is called before. Returns ``caught_error`` as a ``ProviderError``, as ``OpenStream.run`` does.
    """
    error = caught_error if isinstance(caught_error, ProviderError) else _wrap_own_error(caught_error)
    client_stream.add_doc_url(caught_error)
    settle(caught_error)
    await client_stream.finish(build_error_event(caught_error, ctx.id, ctx.operation))
    drop_frames(caught_error)
    return error


def _wrap_own_error(caught_error: GatewayError) -> ProviderError:
    """Wrap an error of the gateway itself as a ``ProviderError`` that does not count as a failure of the channel."""
    error = ProviderBadResponse(caught_error.message, phase="gateway")
    error.failure_scope = "nobody"
    return error
