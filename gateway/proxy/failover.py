"""Failover: try one channel after another until a provider answers.

Until the first byte is sent to the client, an error is raised and another attempt may follow. After the first byte
there is no retry: the stream ends with one error event and without its end mark (see ``proxy/stream.py``).
"""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TYPE_CHECKING, Protocol, TypeVar

import attrs
import structlog

from gateway.billing.abandoned import could_have_processed
from gateway.billing.step_reservation import lower_reservation
from gateway.deadlines import DeadlineTimer
from gateway.deferred import load
from gateway.domain.request_log import ID_PREFIX, FailedAttempt
from gateway.errors import (
    GatewayError,
    NoHealthyChannel,
    OutputLimitExceeded,
    ProviderBadResponse,
    ProviderError,
    RequestCancelled,
    ShuttingDown,
    UnsupportedByProvider,
    drop_frames,
)
from gateway.formats.errors.openai import mask
from gateway.proxy.client_stream import ClientStream
from gateway.proxy.drain import DrainedStream, DrainService, make_drain_error
from gateway.request_context import RequestContext
from gateway.routing.causes import find_cause
from gateway.routing.load_balancer import LoadBalancer
from gateway.routing.target import Attempt
from gateway.routing.target_list import TargetList
from gateway.upstream.exhaustion import ResourcesExhausted
from gateway.upstream.interface import HttpClient, StaleConnection

if TYPE_CHECKING:  # imported only by gateways that share limits, or have a channel with a queue
    from gateway.cluster.limits.channels import SharedChannelLimits
    from gateway.proxy.queue_wait import QueueWait

log = structlog.stdlib.get_logger(__name__)

RETRY_WAIT_S = 1.0
"""Maximum wait of a retry for the retry budget. After it the client gets the error."""
RETRY_CHECK_S = 0.01
"""Interval at which a waiting retry checks the retry budget."""
CROWDED_WAITS = 20
"""Number of waiting retries above which the interval grows in proportion, to limit the load of the event loop."""
_PREFIX_CHARS = len(ID_PREFIX)

T = TypeVar("T")


class PromptMedia(Protocol):
    """Replaces media URLs in an attempt's request with the fetched data; see ``media/prompt_addresses.py``."""

    async def load(self, ctx: RequestContext, attempt: Attempt) -> None: ...


class Proxy:
    """Makes attempts until a provider answers, and tracks the attempts in progress to be able to end them.

    Args:
        load_balancer: gets the outcome of every attempt. Success means the first event of a stream, or a complete
            answer.
        prompt_media: fetches media URLs in prompts for providers that accept only data; None: URLs are not fetched.

    Attributes:
        broken_off: whether a shutdown has ended all attempts.
        waiting: number of requests that wait until they may make an attempt.
    """

    def __init__(
        self,
        client: HttpClient,
        load_balancer: LoadBalancer,
        *,
        clock: Callable[[], float],
        prompt_media: PromptMedia | None = None,
    ) -> None:
        self.client = client
        self.clock = clock
        self.load_balancer = load_balancer
        self._attempts: set[Attempt] = set()
        self.waiting = 0
        self.broken_off = False
        self.drains = DrainService()
        self.timer = DeadlineTimer()
        self._prompt_media = prompt_media

    @property
    def running(self) -> int:
        return len(self._attempts) + self.waiting

    def abort(self) -> None:
        self.broken_off = True
        self.load_balancer.dismiss_waiting()
        for attempt in list(self._attempts):
            attempt.abort(_make_shutdown_error())

    def check_running(self) -> None:
        """Raise ``ShuttingDown`` after ``abort``."""
        if self.broken_off:
            raise _make_shutdown_error()

    def _find_attempt(self, ctx: RequestContext) -> Attempt | None:
        return ctx.attempts[-1] if ctx.attempts and ctx.attempts[-1] in self._attempts else None

    def cancel(self, ctx: RequestContext) -> bool:
        """End a request's attempt without another attempt. Return False if no attempt is in progress."""
        attempt = self._find_attempt(ctx)
        if attempt is None:
            return False
        attempt.cancel(make_cancellation_error())
        return True

    def give_up(self, ctx: RequestContext) -> bool:
        """End the attempt of a request that no client reads any more; return False if no attempt is in progress."""
        attempt = self._find_attempt(ctx)
        if attempt is not None:
            error = make_drain_error()
            error.retryable = False
            attempt.abort(error)
        return attempt is not None

    def drain(self, ctx: RequestContext, *, whole: bool = False) -> DrainedStream | None:
        """Start to drain a request's answer after its client has disconnected; return None if that is impossible.

        Draining is impossible if no provider is processing the request, if some of its images have not been requested
        yet, if the streams are being aborted, or if there are too many drains. With ``whole``, only the channel's total
        timeout limits the time.
        """
        attempt = self._find_attempt(ctx)
        if attempt is None or not attempt.pending or self.broken_off:
            return None
        image = attempt.translator.inference.image
        if image is not None and 0 < attempt.images < image.count:
            return None
        return self.drains.begin(attempt, attempt.timeouts.total_s, ctx.first_byte_at, whole=whole)

    def record_failure(self, attempt: Attempt, error: ProviderError, prompt: int | None = None) -> None:
        """Record a failed attempt, and log details that the client does not see. ``prompt`` is the prompt's digest."""
        self.load_balancer.record_failure(attempt.slot, error, prompt)
        _log_failure(attempt, error)
        drop_frames(error)

    async def with_failover(
        self, ctx: RequestContext, send: Callable[[Attempt], Awaitable[T]], client: ClientStream | None = None
    ) -> T:
        """Run ``send(attempt)`` on the request's channels, one after another, until a provider answers.

        ``client`` is sent the place in a queue. Raises the ``ProviderError`` to show to the client, ``ShuttingDown``,
        ``NoHealthyChannel``, or another error of ``send`` or of fetching the prompt's media.
        """
        if self.broken_off:
            raise _make_shutdown_error()  # ``check_running``, without its call
        targets, loop = ctx.target_list, self.timer.loop
        async for attempt in (attempts := Attempts(self, ctx, client, int(self.clock()))):
            if attempt.target.place is not None:
                lower_reservation(ctx)
            self._attempts.add(attempt)
            ctx.attempts.append(attempt)
            attempt.began_at, began = loop.time(), monotonic()  # the loop's clock does not advance in a busy loop
            try:
                if attempt.target.endpoint.needs_inline_media:
                    await self._load_prompt_media(ctx, attempt)
                answer = await send(attempt)
            except ProviderError as raised:
                error = attempt.cancelled or raised
                mark_failed(attempt, error, loop.time())
                self.record_failure(attempt, error, targets.digest if error.may_be_prompt else None)
                attempts.note_failure(attempt, error)
            else:
                attempt.pending = False
                if attempt.output_limit or targets.affinity is not None:
                    self._learn(targets, attempt)
                return answer
            finally:
                ctx.upstream_s += monotonic() - began
                self._attempts.discard(attempt)
                self.load_balancer.release(attempt.slot)
                if attempt.response is not None:
                    attempt.response.close()  # the connection is closed unless the response was read to its end
            if attempt in self.drains.attempts:  # no further attempt for a disconnected client
                break
        raise attempts.error

    def _learn(self, targets: TargetList, attempt: Attempt) -> None:
        """Remember the model's output limit, if an answered attempt has shown one, and the conversation's home."""
        if attempt.output_limit and attempt.output_limit != attempt.target.limits.configured_output_tokens:
            attempt.target.state.learn_limit(attempt.target.model, attempt.output_limit)
        if targets.affinity is not None:
            targets.affinity.note_answered(attempt, self.load_balancer.now)

    async def _load_prompt_media(self, ctx: RequestContext, attempt: Attempt) -> None:
        """Fetch the media URLs in the prompt.

        Raises ``UnsupportedByProvider`` naming the field, ``ProviderTimeout``, ``RequestTooLarge`` or ``Overloaded``.
        """
        if self._prompt_media is not None:
            fetching = self._prompt_media.load(ctx, attempt)
            await attempt.wait_for(fetching, attempt.timeouts.total_s, self.timer)


# Not an asynchronous generator: the event loop would need an extra task to close a generator left unfinished.
@attrs.define(eq=False)
class Attempts:
    """An asynchronous iterator over the attempts of one request. Each attempt already holds a slot of its channel.

    After ``note_failure``, the next attempt waits for the retry budget and for the delay that the provider requested.
    If no channel is free, and one has a queue, the attempt waits for a place there; see ``queue_wait.py``.

    ``error``: the error for the client if no attempt succeeds.
    """

    _proxy: Proxy
    _ctx: RequestContext
    _client: ClientStream | None
    _now_s: int
    _last_failure: tuple[Attempt, ProviderError] | None = None
    _wait: "QueueWait | None" = None
    error: ProviderError = attrs.field(init=False)

    def __aiter__(self) -> "Attempts":
        return self

    async def __anext__(self) -> Attempt:
        ctx, last_failure = self._ctx, self._last_failure
        targets, shared_limits = ctx.target_list, self._proxy.load_balancer.shared
        if last_failure is not None and not await self._prepare_retry(*last_failure):
            raise StopAsyncIteration
        while True:
            try:
                attempt = (
                    targets.start(ctx.id[_PREFIX_CHARS:], self._now_s)
                    if last_failure is None
                    else targets.next(last_failure[0])
                )
            except NoHealthyChannel:
                if not targets.list_queued_targets():
                    raise
                attempt = None
            if attempt is None:
                if not targets.list_queued_targets():
                    raise StopAsyncIteration
                attempt = await self._await_place()
                if attempt is None:
                    await asyncio.sleep(0)
                    continue
            if shared_limits is None or await self._acquire_shared(shared_limits, attempt):
                return attempt

    async def _await_place(self) -> Attempt | None:
        """Wait in the queues of the full channels; return the attempt that was started in the place that became free.

        Returns None if the channels must be looked at again. Raises ``ShuttingDown``.
        """
        wait = self._wait = self._wait or load("proxy.queue_wait:QueueWait")(self._proxy, self._ctx, self._client)
        self._proxy.waiting += 1
        try:
            return await wait.start_attempt(self._ctx.id[_PREFIX_CHARS:], self._now_s)
        finally:
            self._proxy.waiting -= 1

    def note_failure(self, attempt: Attempt, error: ProviderError) -> None:
        before = None if self._last_failure is None else self.error
        self.error = choose_error(before, error, on_route=attempt.target.place is not None)
        self._last_failure = attempt, error

    async def _prepare_retry(self, failed: Attempt, error: ProviderError) -> bool:
        proxy, targets = self._proxy, self._ctx.target_list
        if not targets.prepare_retry(failed, error):
            return False
        loop = proxy.timer.loop
        ends_at = loop.time() + RETRY_WAIT_S
        proxy.waiting += 1
        try:
            while not (isinstance(error, UnsupportedByProvider) or proxy.load_balancer.may_retry()):
                if proxy.broken_off or loop.time() >= ends_at or not targets.is_any_open:
                    return False
                await asyncio.sleep(min(RETRY_CHECK_S * max(1.0, proxy.waiting / CROWDED_WAITS), ends_at - loop.time()))
            if targets.pause_s:
                await asyncio.sleep(targets.pause_s)
        finally:
            proxy.waiting -= 1
        return not proxy.broken_off

    async def _acquire_shared(self, shared_limits: "SharedChannelLimits", attempt: Attempt) -> bool:
        """Claim a slot of the limits shared with other gateways; return whether one was free.

        If none was, the attempt is undone, and its channel is excluded unless the request can wait in its queue. Raises
        ``ShuttingDown``.
        """
        proxy, is_allowed = self._proxy, False
        proxy.waiting += 1
        try:
            is_allowed = await shared_limits.acquire(attempt.slot)
            if proxy.broken_off:
                is_allowed = False
                raise _make_shutdown_error()
        finally:
            proxy.waiting -= 1
            if not is_allowed:
                proxy.load_balancer.release(attempt.slot)
        if not is_allowed:
            self._ctx.target_list.leave_out(attempt)
        return is_allowed


def mark_failed(attempt: Attempt, error: GatewayError, now_s: float) -> None:
    """Set ``failure`` and ``pending`` of an attempt that failed before its first byte. ``now_s`` is loop time."""
    took_s = now_s - attempt.began_at
    attempt.pending = attempt.pending and could_have_processed(error, took_s)
    place = attempt.target.place
    attempt.failure = FailedAttempt(
        attempt.channel.name,
        error.public_code or error.code,
        round(took_s * 1000),
        error.status,
        "" if place is None else find_cause(error) or "",
        0 if place is None else place.step + 1,
        attempt.target.model,
    )


def choose_error(before: ProviderError | None, error: ProviderError, *, on_route: bool = False) -> ProviderError:
    """Return the error for the client after another failed attempt: the first error that explains the failure.

    A provider's error, or a failure to reach the provider, ranks highest. A stale connection or exhausted resources of
    the gateway rank lower. An unsupported request, or an output limit that was lowered for the next attempt, ranks
    lowest. An error that permits no retry concerns the request itself and always wins. On a route (``on_route``), whose
    later steps are other models, that is an error after which no other step may follow, such as a cancellation.
    """
    is_final = find_cause(error) is None if on_route else not error.retryable
    if before is None or is_final or _rank(error) > _rank(before):
        return error
    return before


def _rank(error: ProviderError) -> int:
    if isinstance(error, UnsupportedByProvider | OutputLimitExceeded):
        return 0
    return 1 if isinstance(error, StaleConnection | ResourcesExhausted) else 2


def make_cancellation_error() -> RequestCancelled:
    """Return the error that the client of a cancelled request sees."""
    return RequestCancelled(
        "The request was cancelled by an operator, or a member of its account", phase="cancel", should_retry=False
    )


def _make_shutdown_error() -> ShuttingDown:
    return ShuttingDown("The gateway is shutting down", phase="shutdown")


def _log_failure(attempt: Attempt, error: ProviderError) -> None:
    """Log a failure of a channel. Rejections, which the client sees, cancellations and shutdowns are not logged."""
    if error.failure_scope == "nobody" and not isinstance(error, ProviderBadResponse | ResourcesExhausted):
        return
    log.warning(
        "attempt_failed",
        request_id=f"{ID_PREFIX}{attempt.translator.identity.id}",
        channel=attempt.channel.name,
        model=attempt.target.model,
        error=error.message,
        reason=mask(str(error.__cause__), attempt.channel.secrets) if error.__cause__ else error.phase,
    )
