"""One visit to one provider: opened, then read or pumped, then closed."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.deadlines import DeadlineTimer, Timeout
from gateway.domain.inference_request import InferenceRequest
from gateway.errors import ProviderBadResponse, ProviderError, ProviderTimeout, RequestCancelled
from gateway.formats.content_filter import parse_image_fault
from gateway.formats.openai.errors import parse_error, parse_fault, parse_retry_after
from gateway.formats.openai.speech import is_sound_type
from gateway.proxy.client_stream import ClientStream
from gateway.routing.target import Attempt
from gateway.upstream.interface import HttpClient, HttpResponse

MAX_ERROR_BYTES = 64 * 1024
OK = range(200, 300)

T = TypeVar("T")


class Visit:
    """A visit can be broken off from outside at any time, in whatever phase it is.

    Args:
        clock: Unix seconds.
        sweep: watches over what it waits for.

    Attributes:
        cancelled: it was broken off for good: whatever else became of it, this is why it ended.
    """

    __slots__ = ("_broken", "_client_stream", "_clock", "_reply", "_sweep", "_timeout", "cancelled")

    def __init__(self, clock: Callable[[], float], sweep: DeadlineTimer) -> None:
        self._clock = clock
        self._sweep = sweep
        self._reply: HttpResponse | None = None
        self._timeout: Timeout | None = None
        self._broken: ProviderError | None = None
        self._client_stream: ClientStream | None = None
        self.cancelled: RequestCancelled | None = None

    async def open(self, upstream: HttpClient, attempt: Attempt, call: InferenceRequest) -> HttpResponse:
        """Send, and pass the headers. Raises an ``ProviderError`` for anything but a good answer of the right type."""
        timeouts = attempt.timeouts
        # What a provider is sent may take longer than what it says first.
        waits = call.stream and not call.files and call.image is None
        timeout_s = min(timeouts.first_byte_s, timeouts.total_s) if waits else timeouts.total_s
        reply = await self.run(self._open(upstream, attempt, call), timeout_s)
        self.check()
        return reply

    async def run(self, work: Awaitable[T], timeout_s: float) -> T:
        """``work``, which is bounded, and broken off with the visit. Raises ``ProviderTimeout`` besides its own."""
        try:
            self._timeout = Timeout(self._sweep, timeout_s)
            with self._timeout:
                return await work
        except TimeoutError:
            timeout = ProviderTimeout("The provider took too long to answer", phase="headers")
            raise self.cancelled or self._broken or timeout from None
        finally:
            self._timeout = None

    def check(self) -> None:
        """Raise what broke it off: a ``run`` that ended at that very moment has not noticed."""
        if self._broken is not None:
            raise self.cancelled or self._broken

    def follow(self, reply: HttpResponse) -> None:
        """From here on the visit is that reply."""
        self._reply = reply

    def attach_client(self, client_stream: ClientStream) -> None:
        """What comes goes there; where the caller is waited for, that has an end when the visit has."""
        self._client_stream = client_stream

    async def _open(self, upstream: HttpClient, attempt: Attempt, call: InferenceRequest) -> HttpResponse:
        plan = attempt.plan(call, await attempt.pack_aside()) if call.large else attempt.plan(call)
        reply = self._reply = await upstream.send(plan)
        if reply.status not in OK:
            attempt.pending = False
            raise await self._parse_fault(reply, attempt, call)
        if call.stream and attempt.exchange.manner.binary:
            await _check_sound(reply, attempt)
        return reply

    async def _parse_fault(self, reply: HttpResponse, attempt: Attempt, call: InferenceRequest) -> ProviderError:
        """What the provider said instead of an answer."""
        raw = await reply.read(MAX_ERROR_BYTES)
        provider_retry_after_s = parse_retry_after(reply.headers.get("Retry-After"), self._clock())
        read = parse_fault if call.image is None else parse_image_fault
        path = attempt.option.endpoint.path.replace("{model}", attempt.option.model)
        return read(
            reply.status, raw, attempt.channel.secrets, provider_retry_after_s=provider_retry_after_s, path=path
        )

    def cancel(self, fault: RequestCancelled) -> None:
        """Break it off, and let nothing come after it."""
        self.cancelled = fault
        self.abort(fault)

    def abort(self, fault: ProviderError) -> None:
        """End the visit with ``fault``, wherever it stands."""
        self._broken = fault
        if self._timeout is not None:
            self._timeout.end()
        elif self._reply is not None:
            self._reply.abort(fault)
        if self._client_stream is not None:
            self._client_stream.wake()

    def drain(self, most_bytes: int, give_up: Callable[[], None]) -> None:
        """The client has left, and the visit goes on; ``give_up`` is called if a stream has ``most_bytes`` more."""
        if self._client_stream is not None:
            self._client_stream.leave(most_bytes, give_up)

    def close(self) -> None:
        """Done, one way or another: what was not read to its end is broken."""
        if self._reply is not None:
            self._reply.close()


async def _check_sound(reply: HttpResponse, attempt: Attempt) -> None:
    """Sound was asked for. Raises what the provider sent instead, as an error.

    What an answer in events is, is told by how it begins; see ``proxy/stream.py``.
    """
    if is_sound_type(reply.headers.get("Content-Type", "").lower()):
        return
    told = parse_error(await reply.read(MAX_ERROR_BYTES), attempt.channel.secrets)
    if told is not None:
        raise ProviderBadResponse(f"The provider reported an error: {told.message}")
    raise ProviderBadResponse("The provider did not answer with sound")
