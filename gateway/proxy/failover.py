"""Failover: attempts on one channel after another, until one answers.

Before the first byte has been sent to the client an error is raised, and the next attempt may succeed. After it the
stream ends with one error event and without its end mark; there is no retry (see ``proxy/stream.py``).
"""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TYPE_CHECKING, Protocol, TypeVar

import attrs
import structlog

from gateway.billing.abandoned import may_have_done
from gateway.deadlines import DeadlineTimer
from gateway.domain.request_log import ID_PREFIX, FailedAttempt
from gateway.errors import (
    GatewayError,
    OutputLimitExceeded,
    ProviderBadResponse,
    ProviderError,
    RequestCancelled,
    ShuttingDown,
    UnsupportedByProvider,
    drop_frames,
)
from gateway.formats.openai.errors import mask
from gateway.proxy.drain import DrainedStream, DrainService
from gateway.request_context import RequestContext
from gateway.routing.load_balancer import LoadBalancer
from gateway.routing.route import Route
from gateway.routing.target import Attempt
from gateway.upstream.exhaustion import ResourcesExhausted
from gateway.upstream.interface import HttpClient, StaleConnection

if TYPE_CHECKING:  # only gateways that share limits need it
    from gateway.cluster.limits.channels import SharedChannelLimits

log = structlog.stdlib.get_logger(__name__)

RETRY_WAIT_S = 1.0
"""How long a retry waits for the retry budget before its error becomes the answer."""
RETRY_CHECK_S = 0.01
"""How often a waiting retry checks the retry budget."""
CROWD = 20
"""Waiting retries that may check so often. With twice as many, each checks half as often, to spare the event loop."""

T = TypeVar("T")


class PromptMedia(Protocol):
    """Replaces addresses in the request of an attempt by what is there; see ``media/prompt_addresses.py``."""

    async def load(self, ctx: RequestContext, attempt: Attempt) -> None: ...


class Proxy:
    """Makes attempts until one answers, and keeps those that are under way so that they can be ended.

    Args:
        load_balancer: gets the outcome of every attempt: a success with the first event of a stream, or with the whole
            answer.
        clock: Unix seconds.
        prompt_media: fetches what prompts name by address, for providers that take data alone; None: nothing does.

    Attributes:
        broken_off: a shutdown has ended all attempts.
        drains: attempts whose clients have left.
        timer: for timeouts.
        waiting: requests that wait for their next attempt.
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
        """Attempts under way, and requests that wait for their next."""
        return len(self._attempts) + self.waiting

    def abort(self) -> None:
        """End every attempt, because the gateway shuts down."""
        self.broken_off = True
        for attempt in list(self._attempts):
            attempt.abort(_make_shutdown_error())

    def _find_attempt(self, ctx: RequestContext) -> Attempt | None:
        """Return the attempt of a request that is under way."""
        return ctx.attempts[-1] if ctx.attempts and ctx.attempts[-1] in self._attempts else None

    def cancel(self, ctx: RequestContext) -> bool:
        """End the attempt of a request, without another one after it. Return False if there is none at this moment."""
        attempt = self._find_attempt(ctx)
        if attempt is None:
            return False
        attempt.cancel(make_cancelled())
        return True

    def drain(self, ctx: RequestContext, *, whole: bool = False) -> DrainedStream | None:
        """Read the answer to its end although the client has left; ``whole``: as long as a client might.

        None if no provider works on the request, if some of its images have not been requested yet, or if there are too
        many drains.
        """
        attempt = self._find_attempt(ctx)
        if attempt is None or not attempt.pending or self.broken_off:
            return None
        image = attempt.translator.inference.image
        if image is not None and 0 < attempt.images < image.count:
            return None
        return self.drains.begin(attempt, attempt.timeouts.total_s, ctx.first_byte_at, whole=whole)

    def record_failure(self, attempt: Attempt, error: ProviderError, prompt: int | None = None) -> None:
        """Record a failed attempt and log what the client does not see. ``prompt``: a digest of the prompt."""
        self.load_balancer.record_failure(attempt.lease, error, prompt)
        _log_failure(attempt, error)
        drop_frames(error)

    async def with_failover(self, ctx: RequestContext, send: Callable[[Attempt], Awaitable[T]]) -> T:
        """Run ``send(attempt)`` on one channel of the route after another until one answers.

        Raises ``ProviderError``, as the client should see it, or ``NoHealthyChannel`` if no channel is free at first.
        """
        if self.broken_off:
            raise _make_shutdown_error()
        route, loop = ctx.route, asyncio.get_running_loop()
        attempts = Attempts(self, route, ctx.id.removeprefix(ID_PREFIX), int(self.clock()))
        async for attempt in attempts:
            self._attempts.add(attempt)
            ctx.attempts.append(attempt)
            attempt.began_at, began = loop.time(), monotonic()  # the loop's clock does not advance in a busy loop
            try:
                if attempt.target.endpoint.fetches:
                    await self._load_prompt_media(ctx, attempt)
                answer = await send(attempt)
            except ProviderError as raised:
                error = attempt.cancelled or raised
                mark_failed(attempt, error, loop.time())
                self.record_failure(attempt, error, route.digest if error.may_be_prompt else None)
                attempts.note_failure(attempt, error)
            else:
                attempt.pending = False
                if attempt.output_limit:
                    attempt.target.state.learn_limit(attempt.target.model, attempt.output_limit)
                return answer
            finally:
                ctx.upstream_s += monotonic() - began
                self._attempts.discard(attempt)
                self.load_balancer.end(attempt.lease)
                if attempt.response is not None:
                    attempt.response.close()  # the connection is closed unless the response was read to its end
            if attempt in self.drains.attempts:  # the client has left: nothing is tried for it again
                break
        raise attempts.error

    async def _load_prompt_media(self, ctx: RequestContext, attempt: Attempt) -> None:
        """Fetch what the prompt names by address. Raises ``UnsupportedByProvider`` naming the field."""
        if self._prompt_media is not None:
            fetching = self._prompt_media.load(ctx, attempt)
            await attempt.wait_for(fetching, attempt.timeouts.total_s, self.timer)


# No asynchronous generator: the event loop closes one that an answer leaves behind in a task of its own.
@attrs.define(eq=False)
class Attempts:
    """The attempts of one request in their order. Each has its place on a channel when it is returned.

    After a failure, which ``note_failure`` reports, the next one waits for the retry budget, and as long as the
    provider has asked for. The sequence ends when no attempt may follow.

    ``error``: the error that the client sees if no other attempt answers; set by ``note_failure``.
    """

    _proxy: Proxy
    _route: Route
    _answer_id: str
    _now_s: int
    _failed: tuple[Attempt, ProviderError] | None = None
    error: ProviderError = attrs.field(init=False)

    def __aiter__(self) -> "Attempts":
        return self

    async def __anext__(self) -> Attempt:
        route, failed, shared = self._route, self._failed, self._proxy.load_balancer.shared
        if failed is not None and not await self._may_follow(*failed):
            raise StopAsyncIteration
        while True:
            attempt = route.start(self._answer_id, self._now_s) if failed is None else route.next(failed[0])
            if attempt is None:
                raise StopAsyncIteration
            if shared is None or await self._claim(shared, attempt):
                return attempt

    def note_failure(self, attempt: Attempt, error: ProviderError) -> None:
        """Note that an attempt has failed, so that another one may follow."""
        self.error = error if self._failed is None else choose_error(self.error, error)
        self._failed = attempt, error

    async def _may_follow(self, failed: Attempt, error: ProviderError) -> bool:
        """Return whether another attempt may follow, once the retry budget allows it."""
        proxy, route = self._proxy, self._route
        if not route.may_retry(failed, error):
            return False
        loop = asyncio.get_running_loop()
        until = loop.time() + RETRY_WAIT_S
        proxy.waiting += 1
        try:
            while not (isinstance(error, UnsupportedByProvider) or proxy.load_balancer.may_retry()):
                if proxy.broken_off or loop.time() >= until or not route.is_open:
                    return False
                await asyncio.sleep(min(RETRY_CHECK_S * max(1.0, proxy.waiting / CROWD), until - loop.time()))
            if route.pause_s:
                await asyncio.sleep(route.pause_s)
        finally:
            proxy.waiting -= 1
        return not proxy.broken_off

    async def _claim(self, shared: "SharedChannelLimits", attempt: Attempt) -> bool:
        """Return whether other gateways leave room for the attempt. If not, the route leaves out its channel."""
        proxy, allowed = self._proxy, False
        proxy.waiting += 1
        try:
            allowed = await shared.claim(attempt.lease)
            if proxy.broken_off:
                allowed = False
                raise _make_shutdown_error()
        finally:
            proxy.waiting -= 1
            if not allowed:
                proxy.load_balancer.end(attempt.lease)
        if not allowed:
            self._route.leave_out(attempt)
        return allowed


def mark_failed(attempt: Attempt, error: GatewayError, now: float) -> None:
    """Set the outcome of an attempt that failed before its first byte, at ``now`` (loop time)."""
    took_s = now - attempt.began_at
    attempt.pending = attempt.pending and may_have_done(error, took_s)
    attempt.failure = FailedAttempt(attempt.channel.name, error.public_code or error.code, round(took_s * 1000))


def choose_error(before: ProviderError | None, error: ProviderError) -> ProviderError:
    """Return the error that the client sees after one more failed attempt: the first that tells a cause.

    That is a provider's answer, or why it was not reached. Less is an attempt in which nothing was sent, a limit of
    output tokens that was then lowered, a connection that the provider had closed before, and a lack of the gateway's
    own. An error after which no attempt may follow concerns the request itself, and always comes first.
    """
    if before is None or not error.retryable or _rank(error) > _rank(before):
        return error
    return before


def _rank(error: ProviderError) -> int:
    if isinstance(error, UnsupportedByProvider | OutputLimitExceeded):
        return 0
    return 1 if isinstance(error, StaleConnection | ResourcesExhausted) else 2


def make_cancelled() -> RequestCancelled:
    """Return the error that the client of a cancelled request sees."""
    return RequestCancelled(
        "The request was cancelled by an operator, or a member of its account", phase="cancel", should_retry=False
    )


def _make_shutdown_error() -> ShuttingDown:
    return ShuttingDown("The gateway is shutting down", phase="shutdown")


def _log_failure(attempt: Attempt, error: ProviderError) -> None:
    """Log which channel failed, and how; neither a rejection, which the client sees, nor a shutdown."""
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
