"""A request that the gateway itself sends for a caller: with that caller's checks, and a row of its own."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from time import monotonic

import structlog

from gateway.billing.settlement import find_outcome
from gateway.domain.account import Caller
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.request_log import Outcome
from gateway.errors import GatewayError, InternalError
from gateway.memory_budget import close_loan
from gateway.request_context import CopyOrigin, RequestContext, make_request_id
from gateway.server.context import Services

log = structlog.stdlib.get_logger(__name__)


class DiscardedStream:
    """Implements ``proxy.client_stream.ClientStream`` without a client."""

    full = False

    def open(self, media_type: str, data: bytes) -> None: ...

    def write(self, data: bytes, framed: bytes | None = None) -> bool:  # noqa: ARG002 - the interface's
        return False

    async def drain(self) -> None: ...

    def add_doc_url(self, error: GatewayError) -> None: ...

    def wake(self) -> None: ...

    def discard_writes(self, max_bytes: int, give_up: Callable[[], None]) -> None: ...

    async def finish(self, data: bytes) -> None: ...

    def abort(self) -> None: ...


class InternalRequest(ABC):
    """One request of the gateway itself; implements ``proxy.active_requests.ActiveRequest``.

    ``ended_at``: when the answer was complete, in loop time, if the settlement comes later; else None.
    """

    address = None

    def __init__(
        self, services: Services, caller: Caller, inference: InferenceRequest, copied_from: CopyOrigin
    ) -> None:
        self.services = services
        self._loop = asyncio.get_running_loop()
        self.context = context = RequestContext(make_request_id())
        context.caller = caller
        context.operation = inference.operation
        context.inference = inference
        context.copied_from = copied_from
        context.started_ms = int(services.clock() * 1000)
        context.started_at = self._loop.time()
        context.read_at = monotonic()
        self.ended_at: float | None = None

    def handle_disconnect(self) -> bool:
        return False

    def cancel(self) -> bool:
        return self.services.proxy.cancel(self.context)

    @abstractmethod
    async def send(self) -> None:
        """Admit the request, send it, and settle it if it is answered."""

    async def run(self) -> None:
        """Send the request and settle it, however it ends."""
        self.services.active_requests.calls[self.context.id] = self
        try:
            await self.send()
        except GatewayError as fault:
            self._settle(find_outcome(fault), fault)
        except asyncio.CancelledError:
            self._settle("interrupted")
            raise
        except Exception:
            log.exception("request_failed", request_id=self.context.id)
            self._settle("failed", InternalError("Unexpected gateway error"))

    def settle_answered(self) -> None:
        """Settle a request whose answer has arrived whole."""
        self.context.first_byte_at = self._loop.time()
        self._settle("completed")

    def settle_stream(self, error: GatewayError | None) -> None:
        """Settle a request whose stream ends with ``error``, or without one."""
        self._settle("completed" if error is None else find_outcome(error), error)

    def _settle(self, outcome: Outcome, error: GatewayError | None = None) -> None:
        context, services = self.context, self.services
        services.active_requests.calls.pop(context.id, None)
        now, now_ms = self.ended_at or self._loop.time(), int(services.clock() * 1000)
        services.billing.settlement.settle(context, outcome, error, now_s=now, now_ms=now_ms)
        close_loan(context)
