"""A stream from its first event to its end: the hot path. See ``proxy/failover.py`` for who tries what."""

import asyncio
from collections.abc import Callable, Iterable

from gateway.billing.quota import Grant
from gateway.deadlines import Timeout
from gateway.errors import GatewayError, ProviderBadResponse, ProviderError
from gateway.formats.error_body import build_error_event
from gateway.formats.json_or_stream import is_event_stream, is_json, strip_beginning
from gateway.formats.sse import KEEPALIVE, MAX_NOISE_BYTES
from gateway.formats.stream import StreamTransform, TranslatingStream
from gateway.large_work import work_aside
from gateway.proxy.client_stream import ClientStream
from gateway.proxy.stream_timeouts import StreamTimeouts
from gateway.routing.target import EVENT_STREAM
from gateway.upstream.interface import HttpResponse, PumpResult

EVENTS = "text/event-stream; charset=utf-8"
MAX_HELD_BYTES = 64 * 1024
"""Of what comes before the first event, besides noise; a provider that sends more has the caller answered."""


class StreamRelay:
    """One provider's stream, on its way into one outlet.

    The caller is answered when the first event is there, or when it has waited so long that a comment is due;
    until then a fault still belongs to the next attempt.

    Args:
        reply: the provider's answer, from its headers on.
        gate: what of it may leave.
        grant: the call; its delivery is written here.
        outlet: towards the caller.
        pulse: watches the provider.
        sound_type: the media type of an answer that is sound, in which no comment may stand, and no error either; None
            for a stream of events.
        answered: called when the first event is there, with what has come up to its end.
        open_whole: opens the gate for a provider that answers with one whole JSON answer instead of a stream, whatever
            its Content-Type says; None if it cannot.
    """

    # ``_last``: the end mark, and what came in one piece with it, waits for the settlement.
    __slots__ = (
        "_answered",
        "_binary",
        "_client_stream",
        "_events_before_noise",
        "_gate",
        "_grant",
        "_held",
        "_held_bytes",
        "_last",
        "_media_type",
        "_noise_before",
        "_noted",
        "_open_whole",
        "_pulse",
        "_reply",
        "_time",
        "opened",
    )  # fmt: skip

    def __init__(
        self,
        reply: HttpResponse,
        gate: StreamTransform,
        grant: Grant,
        client_stream: ClientStream,
        *,
        pulse: StreamTimeouts,
        answered: Callable[[Iterable[bytes]], None],
        sound_type: str | None = None,
        open_whole: Callable[[], StreamTransform] | None = None,
    ) -> None:
        self._reply = reply
        self._gate = gate
        self._grant = grant
        self._client_stream = client_stream
        self._pulse = pulse
        self._answered = answered
        self._media_type = sound_type or EVENTS
        self._binary = sound_type is not None
        self._open_whole = open_whole
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._events_before_noise = self._noise_before = 0
        self._last = b""
        self._noted = False
        self._time = asyncio.get_running_loop().time
        self.opened = False

    async def run(self, request_id: str, settle: Callable[[ProviderError | None], None]) -> ProviderError | None:
        """Relay to the end. Returns the fault that ended an opened stream, if one did.

        ``settle`` is called before the end mark is written: whoever has a whole answer has paid for it, also where
        this process ends between the two. Raises ``ProviderError`` while nothing has been sent; ``ClientDisconnected``
        where the caller left.
        """
        fault: ProviderError | None = None
        try:
            ended = await self._await_first_event()
            self._open()
            if ended is PumpResult.PAUSED:
                ended = await self._push()
            if ended is PumpResult.ENDED:
                self._last += self._gate.finish()
                self._note_first([self._last])
            self._reply.finish()
        except GatewayError as met:
            if not self.opened:
                raise
            fault = met if isinstance(met, ProviderError) else _build_ours(met)
            if not self._binary:
                self._last += build_error_event(met, request_id, self._grant.call.operation)
        finally:
            self._write_usage(fault)
        self._pulse.stop()  # the provider has no part in what is left
        settle(fault)
        if fault is not None and self._binary:
            self._client_stream.cut()
            return fault
        await self._client_stream.finish(self._last)
        return fault

    async def _await_first_event(self) -> PumpResult:
        """Pump until an event is there or a comment is due. Raises an ``ProviderError``: nothing has been sent."""
        pumped = PumpResult.PAUSED
        try:
            if self._binary:
                pumped = await self._reply.pump(self._hold)
            else:
                with Timeout(self._pulse.sweep, self._pulse.find_silence_s()):
                    pumped = await self._reply.pump(self._hold)
                    while pumped is PumpResult.PAUSED and self._is_heavy():
                        pumped = await self._pump_large(self._held.append)
                        if pumped is PumpResult.PAUSED and not (
                            self._gate.events or self._gate.closed or self._is_heavy()
                        ):
                            pumped = await self._reply.pump(self._hold)
        except TimeoutError:
            self._held.append(KEEPALIVE)
        if self._gate.fault is not None:
            raise self._gate.fault
        if pumped is PumpResult.ENDED:
            self._held.append(self._gate.finish())
            pumped = PumpResult.PAUSED
        self._note_first(self._held)
        return pumped

    def _note_first(self, told: Iterable[bytes]) -> None:
        """The first event is there, whether or not the caller has been answered without waiting for it."""
        if self._gate.events and not self._noted:
            self._noted = True
            self._answered(told)

    def _open(self) -> None:
        held = b"".join(self._held)
        self._held.clear()
        if self._gate.closed:
            self._last, held = self._last + held, b""
        self._client_stream.open(self._media_type, held)
        self.opened = True
        now = self._time()
        self._grant.delivery.first_byte_at = now
        self._pulse.written_at = now
        self._pulse.wind()

    async def _push(self) -> PumpResult:
        """Pump to the end of the dialect or of the transport, waiting for the caller where it reads slowly."""
        while not self._gate.closed:
            if self._is_heavy():
                if await self._pump_large(self._send) is PumpResult.ENDED:
                    return PumpResult.ENDED
            elif (
                await self._reply.pump(self._pass if self._open_whole is None else self._pass_first) is PumpResult.ENDED
            ):
                return PumpResult.ENDED
            if self._client_stream.full:
                await self._wait_for_reader()
        if self._gate.fault is not None:
            raise self._gate.fault
        return PumpResult.PAUSED

    def _is_heavy(self) -> bool:
        return isinstance(self._gate, TranslatingStream) and self._gate.heavy

    async def _pump_large(self, send: Callable[[bytes], object]) -> PumpResult:
        """Pump one piece of a large event, which a thread reads, and ``send`` what may leave of it."""
        gate, pieces = self._gate, list[bytes]()
        assert isinstance(gate, TranslatingStream)  # noqa: S101 - it is heavy
        if not gate.unwritten:

            def take(piece: bytes, _raw: bytes | None) -> bool:
                pieces.append(piece)
                return True

            if await self._reply.pump(take) is PumpResult.ENDED:
                return PumpResult.ENDED
            data = b"".join(pieces)
            if b"\n" in data or b"\r" in data:
                await work_aside(gate.read, data)
            else:  # nothing ends here
                gate.read(data)
        if out := gate.write():
            self._pulse.event_at = self._time()
            send(out)
        return PumpResult.PAUSED

    def _send(self, out: bytes) -> None:
        """What a large event has come to, to the caller."""
        self._note_first([out])
        self._pulse.written_at = self._time()
        if self._gate.closed:
            self._last += out
        else:
            self._client_stream.write(out, None)

    async def _wait_for_reader(self) -> None:
        # The provider is not read meanwhile, so its silence is ours: the clocks start again afterwards.
        self._pulse.stop()
        await self._client_stream.drain()
        self._pulse.event_at = self._pulse.written_at = self._time()
        self._pulse.wind()

    def _look(self, data: bytes) -> None:
        """Tell by how an answer begins what it is: its Content-Type may be missing, or wrong."""
        begun = strip_beginning(data)
        if not begun or self._open_whole is None:
            return
        open_whole, self._open_whole = self._open_whole, None
        if is_json(begun):
            self._gate = open_whole()
            self._pulse.wait_for_whole()
        elif not is_event_stream(begun):
            kind = self._reply.headers.get("Content-Type", EVENT_STREAM).lower()
            if not kind.startswith(EVENT_STREAM):
                self._gate.fault = ProviderBadResponse("The provider did not answer with an event stream")

    def _pass_first(self, data: bytes, raw_chunks: bytes | None) -> bool:
        """The sink of a caller who was answered with a comment, until something has come."""
        self._look(data)
        self._pass(data, raw_chunks)
        return True

    def _hold(self, data: bytes, _raw_chunks: bytes | None) -> bool:
        """The sink before the caller is answered."""
        if self._open_whole is not None:
            self._look(data)
        self._held.append(self._gate.feed(data))
        self._held_bytes += len(self._held[-1])
        gate = self._gate
        if gate.events:
            self._pulse.event_at = self._time()
        else:
            self._check_noise()
        return gate.events > 0 or gate.closed or self._held_bytes - gate.noise > MAX_HELD_BYTES or self._is_heavy()

    def _check_noise(self) -> None:
        """A piece has completed no event of an answer: too much of such pieces is the provider's failure."""
        gate = self._gate
        noise, events = gate.noise, gate.events
        if events != self._events_before_noise:
            self._events_before_noise, self._noise_before = events, noise
        elif noise - self._noise_before > MAX_NOISE_BYTES and gate.fault is None:
            gate.fault = ProviderBadResponse(
                f"The provider sent {MAX_NOISE_BYTES} bytes without an event", phase="stream"
            )

    def _pass(self, data: bytes, raw_chunks: bytes | None) -> bool:
        """The sink of the hot path."""
        gate, pulse = self._gate, self._pulse
        before = gate.events
        out = gate.feed(data)
        now = self._time()
        if gate.events != before:
            pulse.event_at = now
            if not before:
                self._note_first([out])
        else:
            self._check_noise()
        if not out:
            return gate.closed or self._is_heavy()
        pulse.written_at = now
        if gate.closed:
            self._last += out
            return True
        return self._client_stream.write(out, raw_chunks if out is data else None)

    def _write_usage(self, fault: ProviderError | None) -> None:
        """What the gate says; of a stream that broke it knows from nobody else."""
        if not self.opened:
            return
        if fault is not None and self._gate.fault is None:
            self._gate.fault = fault
        self._grant.delivery.usage = self._gate.parse_usage()


def _build_ours(met: GatewayError) -> ProviderError:
    """A fault of ours in the middle of a stream: it ends like any other, and is held against nobody."""
    fault = ProviderBadResponse(met.message, phase="gateway")
    fault.failure_scope = "nobody"
    return fault
