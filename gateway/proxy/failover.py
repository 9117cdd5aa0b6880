"""Room 5: an attempt becomes bytes. Streams are pushed through untouched; whole answers are read and checked.

Before the first byte a fault is raised and the next attempt may do better. After it the fault is one error event in
the stream, which then ends without its end mark: no retry, and no exception but the caller's own leaving.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from time import monotonic
from typing import Any, TypeVar

import attrs
import structlog

from gateway.billing.quota import Grant
from gateway.deadlines import DeadlineTimer
from gateway.domain.frozen import frozen
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.request_log import ID_PREFIX
from gateway.domain.usage import Usage, estimate_tokens
from gateway.errors import (
    ContextExceeded,
    ProviderBadResponse,
    ProviderError,
    RequestCancelled,
    ShuttingDown,
    UnsupportedByProvider,
)
from gateway.formats.anthropic.response import build_count_answer
from gateway.formats.json_or_stream import JsonOrStream
from gateway.formats.openai.errors import Secrets, mask
from gateway.formats.openai.responses import find_response_id
from gateway.formats.sse import KEEPALIVE
from gateway.formats.stream import StreamTransform
from gateway.formats.translator import PLAIN, ResponseMode, Translator
from gateway.large_work import work_aside
from gateway.media.buffered_stream import BufferedPassthrough
from gateway.media.images import ImageService, can_pass, find_timeouts
from gateway.proxy.attempt import Visit
from gateway.proxy.client_stream import ClientStream
from gateway.proxy.drain import DrainedStream, DrainService
from gateway.proxy.stream import StreamRelay
from gateway.proxy.stream_timeouts import StreamTimeouts
from gateway.request_context import Delivery
from gateway.routing.load_balancer import LoadBalancer
from gateway.routing.route import Route
from gateway.routing.target import Attempt, find_answered
from gateway.upstream.exhaustion import ResourcesExhausted
from gateway.upstream.interface import HttpClient, HttpResponse

log = structlog.stdlib.get_logger(__name__)

MAX_ANSWER_BYTES = 64 * 1024 * 1024
LARGE_ANSWER_BYTES = 1024 * 1024
MAX_CONTAINERS = 200_000
MAX_VALUES = 6_000_000
"""Of an answer over ``LARGE_ANSWER_BYTES``: its objects and arrays; its commas, those in strings too. 64 MiB of empty
objects would take gigabytes of memory; the largest batch of embeddings has some millions of numbers."""
TURN_WAIT_S = 1.0
"""How long a retry waits for the others to be answered before its fault becomes the answer."""
TURN_LOOK_S = 0.01
"""How often a retry looks whether it is its turn."""
CROWD = 20
"""Retries that may look so often; of twice as many each looks half as often, or they would keep the loop busy."""

T = TypeVar("T")


@frozen
class ProviderAnswer:
    """A whole answer, and the type it is of."""

    body: bytes = attrs.field(repr=False)
    media_type: str = PLAIN.media_type


class Proxy:
    """Makes attempts until one answers. It knows every visit under way, so that a shutdown can end them.

    Args:
        upstream: the way out.
        switchboard: told what became of every attempt.
        images: gets pictures.
        clock: Unix seconds.

    Attributes:
        broken_off: a shutdown has ended what was under way.
        drains: visits whose clients have left.
        sweep: watches over whatever is waited for.
    """

    def __init__(
        self,
        upstream: HttpClient,
        switchboard: LoadBalancer,
        images: ImageService,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._upstream = upstream
        self._switchboard = switchboard
        self._images = images
        self._clock = clock
        self._visits: dict[str, Visit] = {}
        self._waiting = 0
        self.broken_off = False
        self.drains = DrainService()
        self.sweep = DeadlineTimer()

    @property
    def running(self) -> int:
        """Visits under way, and those that wait for their turn."""
        return len(self._visits) + self._waiting

    def abort(self) -> None:
        """End every visit: the gateway shuts down."""
        self.broken_off = True
        for visit in list(self._visits.values()):
            visit.abort(_make_stop())

    def cancel(self, request_id: str) -> bool:
        """End a request's visit for good, its provider left at once; False where it has none at this moment."""
        visit = self._visits.get(request_id)
        if visit is None:
            return False
        visit.cancel(make_cancelled())
        return True

    def drain(self, grant: Grant, request_id: str) -> DrainedStream | None:
        """Read an answer to its end for a client that has left. None if no provider is at work on it, or by a bound.

        Images of which some have not been asked for yet are not: nobody wants those.
        """
        visit, attempt, image = self._visits.get(request_id), grant.delivery.attempt, grant.call.image
        if visit is None or attempt is None or not attempt.pending or self.broken_off:
            return None
        if image is not None and 0 < attempt.images < image.count:
            return None
        return self.drains.begin(visit, attempt.timeouts.total_s, grant.delivery.first_byte_at)

    def answer(self, grant: Grant, route: Route, request_id: str) -> Coroutine[Any, Any, ProviderAnswer]:
        """A whole answer. Raises the last attempt's ``ProviderError``, or ``NoHealthyChannel``."""
        if not route.options:  # counting tokens, and nobody who serves the model counts
            return _estimate(grant.call)
        return self.with_failover(grant.delivery, route, request_id, partial(self._read, grant))

    async def _read(self, grant: Grant, visit: Visit, attempt: Attempt) -> ProviderAnswer:
        call, exchange = grant.call, attempt.exchange
        if call.image is None:
            reply = await visit.open(self._upstream, attempt, call)
            raw = await reply.read(MAX_ANSWER_BYTES)
            if len(raw) > LARGE_ANSWER_BYTES:
                body, grant.delivery.usage = await work_aside(_parse_large, exchange, raw, attempt.channel.secrets)
                visit.check()
            else:
                body, grant.delivery.usage = exchange.parse_answer(raw, attempt.channel.secrets)
            if attempt.option.find_price is not None:
                grant.delivery.answered = find_answered(body)
            if call.operation == "responses":
                grant.delivery.response_id = find_response_id(body)
        else:
            painting = self._images.answer(attempt, call)
            body, grant.delivery.usage = await visit.run(painting, attempt.channel.timeouts.total_s)
            visit.check()
        self._switchboard.record_success(attempt.lease)
        return ProviderAnswer(body, exchange.manner.media_type)

    async def stream(
        self,
        grant: Grant,
        route: Route,
        client_stream: ClientStream,
        request_id: str,
        *,
        settle: Callable[[ProviderError | None], None],
    ) -> ProviderError | None:
        """A streamed answer into ``client_stream``; ``settle`` is called before its end mark is written.

        Returns the fault that ended it after the first byte, if one did. Raises the last attempt's ``ProviderError``
        where nothing was sent, ``NoHealthyChannel``, and ``ClientDisconnected`` where the caller left.
        """

        async def push(visit: Visit, attempt: Attempt) -> ProviderError | None:
            call, manner = grant.call, attempt.exchange.manner
            visit.attach_client(client_stream)
            timeout = find_timeouts(attempt.timeouts, call)
            keep_alive = partial(client_stream.write, b"" if manner.binary else KEEPALIVE)
            pulse = StreamTimeouts(timeout, self.sweep, give_up=visit.abort, keep_alive=keep_alive)
            try:
                reply, gate, open_whole = await self._open(visit, attempt, call)
                stream = StreamRelay(
                    reply,
                    gate,
                    grant,
                    client_stream,
                    pulse=pulse,
                    sound_type=_find_type(reply, manner) if manner.binary else None,
                    answered=partial(self._note_first, grant, attempt),
                    open_whole=open_whole,
                )
                return await stream.run(request_id, partial(self._end_stream, attempt, settle))
            finally:
                pulse.stop()

        return await self.with_failover(grant.delivery, route, request_id, push)

    async def _open(
        self, visit: Visit, attempt: Attempt, call: InferenceRequest
    ) -> tuple[HttpResponse, StreamTransform, Callable[[], StreamTransform] | None]:
        """The provider's stream, what of it may leave, and what opens the gate if it answers whole.

        Or a painting's, where pictures are not streamed.
        """
        if call.image is None or can_pass(attempt, call):
            reply = await visit.open(self._upstream, attempt, call)
            exchange, secrets = attempt.exchange, attempt.channel.secrets
            gate = exchange.open_gate(secrets)
            if exchange.manner.binary:
                return reply, gate, None
            return reply, gate, lambda: JsonOrStream(lambda raw: exchange.build_whole(raw, secrets))
        painting = self._images.stream(attempt, call)
        visit.follow(painting)
        return painting, BufferedPassthrough(painting), None

    def _note_first(self, grant: Grant, attempt: Attempt, told: Iterable[bytes]) -> None:
        """The first event of a stream is there; ``told``: what has come up to its end."""
        self._switchboard.record_success(attempt.lease)
        if attempt.option.find_price is not None:
            grant.delivery.answered = find_answered(b"".join(told))
        if grant.call.operation == "responses":
            grant.delivery.response_id = find_response_id(b"".join(told))

    def record_success(self, attempt: Attempt) -> None:
        """An attempt was answered: its channel is well."""
        self._switchboard.record_success(attempt.lease)

    def _end_stream(
        self,
        attempt: Attempt,
        settle: Callable[[ProviderError | None], None],
        fault: ProviderError | None,
    ) -> None:
        """An opened stream has ended; said before its caller hears so, who may be gone by then."""
        if fault is None:
            attempt.pending = False
        else:
            self._note_failed(attempt, fault)
        settle(fault)

    async def with_failover(
        self,
        delivery: Delivery,
        route: Route,
        request_id: str,
        make: Callable[[Visit, Attempt], Awaitable[T]],
    ) -> T:
        """What ``make`` makes of the first attempt that does not fail.

        Raises the first ``ProviderError`` that is an answer, or ``NoHealthyChannel``; and what else ``make`` raises.
        """
        loop = asyncio.get_running_loop()
        told: ProviderError | None = None
        if self.broken_off:
            raise _make_stop()
        attempt = route.begin(request_id.removeprefix(ID_PREFIX), int(self._clock()))
        while True:
            visit = self._visits[request_id] = Visit(self._clock, self.sweep)
            delivery.begin(attempt, loop.time())
            began = monotonic()  # the loop's clock stands still for as long as it is busy
            try:
                made = await make(visit, attempt)
            except ProviderError as fault:
                met = visit.cancelled or fault
                delivery.record_failure(attempt, met, loop.time())
                self._note_failed(attempt, met, route.digest if met.may_be_prompt else None)
            else:
                attempt.pending = False
                return made
            finally:
                delivery.upstream_s += monotonic() - began
                self._visits.pop(request_id, None)
                self._switchboard.end(attempt.lease)
                visit.close()
            told = _find_told(told, met)
            following = None if visit in self.drains.visits else await self._follow(route, attempt, met)
            if following is None:
                raise told
            attempt = following

    async def _follow(self, route: Route, failed: Attempt, fault: ProviderError) -> Attempt | None:
        """The next attempt, in its turn: where many fail at once, they are not all tried again at once."""
        if not route.may_follow(failed, fault):
            return None
        loop = asyncio.get_running_loop()
        until = loop.time() + TURN_WAIT_S
        self._waiting += 1
        try:
            while not (isinstance(fault, UnsupportedByProvider) or self._switchboard.may_retry()):
                if self.broken_off or loop.time() >= until or not route.is_open:
                    return None
                await asyncio.sleep(min(TURN_LOOK_S * max(1.0, self._waiting / CROWD), until - loop.time()))
            if route.pause_s:
                await asyncio.sleep(route.pause_s)
        finally:
            self._waiting -= 1
        return None if self.broken_off else route.follow(failed)

    def _note_failed(self, attempt: Attempt, fault: ProviderError, prompt: int | None = None) -> None:
        """Hold it against whoever it is held against, and say in the log what the caller is not told."""
        self._switchboard.record_failure(attempt.lease, fault, prompt)
        _log_failure(attempt, fault)


async def _estimate(call: InferenceRequest) -> ProviderAnswer:
    """The house's rule of thumb for the tokens of a prompt."""
    return ProviderAnswer(build_count_answer(estimate_tokens(call.prompt_chars)))


def _find_told(told: ProviderError | None, met: ProviderError) -> ProviderError:
    """What the caller is told, after one more attempt that has failed.

    That one language has no words for the call is an answer only where nothing else went wrong. That the prompt is too
    long is one whatever went wrong where a larger context was looked for.
    """
    if told is None or (not isinstance(met, UnsupportedByProvider) and not isinstance(told, ContextExceeded)):
        return met
    return told


def _parse_large(exchange: Translator, raw: bytes, secrets: Secrets) -> tuple[bytes, Usage]:
    """``Translator.parse_answer`` of a large answer; one of more parts than any needs is not parsed at all."""
    if raw.count(b"{") + raw.count(b"[") > MAX_CONTAINERS or raw.count(b",") > MAX_VALUES:
        raise ProviderBadResponse("The provider's answer has too many parts")
    return exchange.parse_answer(raw, secrets)


def make_cancelled() -> RequestCancelled:
    """What whoever made the call is told."""
    return RequestCancelled(
        "The request was cancelled by an operator, or a member of its account", phase="cancel", should_retry=False
    )


def _make_stop() -> ShuttingDown:
    return ShuttingDown("The gateway is shutting down", phase="shutdown")


def _find_type(reply: HttpResponse, manner: ResponseMode) -> str:
    """What sound is of: as its provider says, where it says so."""
    said = reply.headers.get("Content-Type", "").strip().lower()
    return said if said.startswith("audio/") and said.isascii() and said.isprintable() else manner.media_type


def _log_failure(attempt: Attempt, fault: ProviderError) -> None:
    """What the caller is not told: which channel failed, and how. A refusal is the caller's matter, a stop ours."""
    if fault.failure_scope == "nobody" and not isinstance(fault, ProviderBadResponse | ResourcesExhausted):
        return
    log.warning(
        "attempt_failed",
        request_id=f"{ID_PREFIX}{attempt.exchange.naming.id}",
        channel=attempt.channel.name,
        model=attempt.option.model,
        error=fault.message,
        reason=mask(str(fault.__cause__), attempt.channel.secrets) if fault.__cause__ else fault.phase,
    )
