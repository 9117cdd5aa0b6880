"""One visit to one provider: opened, then read or pumped, then closed."""

import asyncio
from collections.abc import Callable

from gateway.dialects.openai_error import read_fault, read_retry_after
from gateway.domain.call import Call
from gateway.domain.fault import UpstreamError, UpstreamFault, UpstreamTimeout
from gateway.flow.routing import Attempt
from gateway.upstream.port import Reply, Upstream

MAX_ERROR_BYTES = 64 * 1024
_EVENT_STREAM = "text/event-stream"
_OK = range(200, 300)


class Visit:
    """A visit can be broken off from outside at any time, in whatever phase it is.

    Args:
        clock: Unix seconds.
    """

    __slots__ = ("_broken", "_clock", "_reply", "_scope")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._reply: Reply | None = None
        self._scope: asyncio.Timeout | None = None
        self._broken: UpstreamFault | None = None

    async def open(self, upstream: Upstream, attempt: Attempt, call: Call) -> Reply:
        """Send, and pass the headers. Raises an ``UpstreamFault`` for anything but a good answer of the right type."""
        timeouts = attempt.channel.timeouts
        patience = min(timeouts.first_byte_s, timeouts.total_s) if call.stream else timeouts.total_s
        try:
            async with asyncio.timeout(patience) as self._scope:
                reply = self._reply = await upstream.send(attempt.plan(call))
                if reply.status not in _OK:
                    raw = await reply.read(MAX_ERROR_BYTES)
                    rest_s = read_retry_after(reply.headers.get("Retry-After"), self._clock())
                    raise read_fault(reply.status, raw, attempt.channel.secrets, rest_s=rest_s)
                if call.stream:
                    await _check_type(reply, attempt)
        except TimeoutError:
            raise self._broken or UpstreamTimeout("The provider took too long to answer", phase="headers") from None
        finally:
            self._scope = None
        return reply

    def break_off(self, fault: UpstreamFault) -> None:
        """End the visit with ``fault``, wherever it stands."""
        self._broken = fault
        if self._scope is not None:
            self._scope.reschedule(asyncio.get_running_loop().time())
        elif self._reply is not None:
            self._reply.abort(fault)

    def close(self) -> None:
        """Done, one way or another: what was not read to its end is broken."""
        if self._reply is not None:
            self._reply.close()


async def _check_type(reply: Reply, attempt: Attempt) -> None:
    """A stream was asked for. Raises what the provider sent instead, as an error."""
    if reply.headers.get("Content-Type", _EVENT_STREAM).lower().startswith(_EVENT_STREAM):
        return
    raw = await reply.read(MAX_ERROR_BYTES)
    if raw.lstrip().startswith(b"{"):
        # A JSON error with status 200 is judged as the failure it is; its words are worth keeping.
        raise read_fault(500, raw, attempt.channel.secrets)
    raise UpstreamError("The provider did not answer with an event stream")
