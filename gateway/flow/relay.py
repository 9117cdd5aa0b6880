"""Room 5: an attempt becomes bytes. Streams are pushed through untouched; whole answers are read and checked.

Before the first byte a fault is raised and the next attempt may do better. After it the fault is one error event in
the stream, which then ends without its end mark: no retry, and no exception but the caller's own leaving.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from gateway.dialects.openai_chat import read_chat_answer
from gateway.dialects.openai_embeddings import read_embeddings_answer
from gateway.dialects.openai_error import mask
from gateway.dialects.sse import KEEPALIVE
from gateway.domain.call import Call
from gateway.domain.fault import ShuttingDown, UpstreamFault, UpstreamRefused
from gateway.domain.usage import Usage
from gateway.flow.admission import Grant
from gateway.flow.outlet import Outlet
from gateway.flow.pulse import Pulse
from gateway.flow.record import Delivery
from gateway.flow.routing import Attempt
from gateway.flow.stream import Stream
from gateway.flow.visit import Visit
from gateway.upstream.port import Upstream

log = structlog.stdlib.get_logger(__name__)

MAX_ANSWER_BYTES = 64 * 1024 * 1024

T = TypeVar("T")


class Relay:
    """Makes attempts until one answers. It knows every visit under way, so that a shutdown can end them.

    Attributes:
        broken_off: a shutdown has ended what was under way.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._visits: set[Visit] = set()
        self.broken_off = False

    @property
    def running(self) -> int:
        """Visits under way."""
        return len(self._visits)

    def break_off(self) -> None:
        """End every visit: the gateway shuts down."""
        self.broken_off = True
        for visit in list(self._visits):
            visit.break_off(ShuttingDown("The gateway is shutting down", phase="shutdown"))

    async def answer(self, grant: Grant, attempts: list[Attempt]) -> bytes:
        """A whole JSON answer. Raises the last attempt's ``UpstreamFault``."""

        async def read(visit: Visit, attempt: Attempt) -> bytes:
            reply = await visit.open(self._upstream, attempt, grant.call)
            raw = await reply.read(MAX_ANSWER_BYTES)
            body, grant.delivery.usage = _read_answer(raw, grant.call, attempt.channel.secrets)
            return body

        return await self._try_each(grant.delivery, attempts, read)

    async def stream(
        self,
        grant: Grant,
        attempts: list[Attempt],
        outlet: Outlet,
        request_id: str,
        *,
        settle: Callable[[UpstreamFault | None], None],
    ) -> UpstreamFault | None:
        """A streamed answer into ``outlet``; ``settle`` is called before its end mark is written.

        Returns the fault that ended it after the first byte, if one did.
        Raises the last attempt's ``UpstreamFault`` where nothing was sent, ``ClientGone`` where the caller left.
        """

        async def push(visit: Visit, attempt: Attempt) -> UpstreamFault | None:
            pulse = Pulse(
                attempt.channel.timeouts,
                expire=visit.break_off,
                keep_alive=lambda: outlet.write(KEEPALIVE),
            )
            try:
                reply = await visit.open(self._upstream, attempt, grant.call)
                stream = Stream(reply, grant, outlet, pulse, secrets=attempt.channel.secrets)
                fault = await stream.run(request_id, settle)
                if fault is not None:
                    _log_failure(attempt, fault)
                return fault
            finally:
                pulse.stop()

        return await self._try_each(grant.delivery, attempts, push)

    async def _try_each(
        self,
        delivery: Delivery,
        attempts: list[Attempt],
        make: Callable[[Visit, Attempt], Awaitable[T]],
    ) -> T:
        last = attempts[-1]
        for attempt in attempts:
            visit = Visit()
            self._visits.add(visit)
            delivery.attempts += 1
            delivery.attempt = attempt
            began = asyncio.get_running_loop().time()
            try:
                return await make(visit, attempt)
            except UpstreamFault as fault:
                _log_failure(attempt, fault)
                if attempt is last or not fault.retryable:
                    raise
            finally:
                delivery.upstream_s += asyncio.get_running_loop().time() - began
                self._visits.discard(visit)
                visit.close()
        raise AssertionError("route() gives at least one attempt")


def _log_failure(attempt: Attempt, fault: UpstreamFault) -> None:
    """What the caller is not told: which channel failed, and how. A refusal is the caller's matter, a stop ours."""
    if isinstance(fault, ShuttingDown) or (isinstance(fault, UpstreamRefused) and not fault.retryable):
        return
    log.warning(
        "attempt_failed",
        channel=attempt.channel.name,
        model=attempt.model,
        error=fault.message,
        reason=mask(str(fault.__cause__), attempt.channel.secrets) if fault.__cause__ else fault.phase,
    )


def _read_answer(raw: bytes, call: Call, secrets: tuple[str, ...]) -> tuple[bytes, Usage]:
    """The bytes for the caller and the usage. Raises ``UpstreamError`` where it is no answer."""
    if call.operation == "chat":
        return raw, read_chat_answer(raw, call.prompt_chars, secrets)
    return read_embeddings_answer(raw, call, secrets)
