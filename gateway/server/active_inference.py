"""One inference request under way: what its middlewares share, how it is cancelled, and how it is settled."""

import asyncio
import re
from time import monotonic

import attrs
from aiohttp import web
from aiohttp.web_request import BaseRequest

from gateway.domain.inference_request import InferenceRequest, Operation
from gateway.domain.request_log import Ending
from gateway.errors import GatewayError, ProviderError, ProviderRejected, RequestCancelled, ShuttingDown
from gateway.proxy.drain import DrainedStream
from gateway.request_context import Arrival, Delivery, Outcome
from gateway.server.client_ip import check_client_ip, find_client_ip
from gateway.server.context import CALLER, CONTEXT, SERVICES
from gateway.server.idempotency import find_name
from gateway.server.multipart import MultipartReader
from gateway.server.sessions import check_still_signed
from gateway.upstream.exhaustion import ResourcesExhausted

_CLIENT_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}\Z", re.ASCII)


class ActiveInference:
    """What ends and settles one inference request; a ``proxy.active_requests.ActiveRequest``.

    Attributes:
        context: everything known about the request.
        form: the multipart body, whose files exist until it is closed; None if the body is JSON.
        idempotency_key: of the request; one that does nothing if it has none.
        task: runs the request; None once it has ended.
        cancelled: an operator or a member has cancelled the request.
        stopped: it was cancelled by way of its task, because no attempt was under way.
    """

    def __init__(self, request: web.Request, operation: Operation) -> None:
        self.request = request
        self.context = context = request[CONTEXT]
        self.services = services = request.app[SERVICES]
        self.idempotency_key = find_name(request, operation)
        self.loop = loop = asyncio.get_running_loop()
        self.task = asyncio.current_task()
        self.form: MultipartReader | None = None
        self.cancelled = False
        self.stopped = False
        self._drain: DrainedStream | None = None
        context.arrival = Arrival(
            context.id,
            request[CALLER],
            operation,
            started_ms=int(services.clock() * 1000),
            started_at=loop.time(),
            client_request_id=_find_client_request_id(request),
        )

    @property
    def arrival(self) -> Arrival:
        return self.context.arrival

    @property
    def call(self) -> InferenceRequest | None:
        return self.context.call

    @property
    def delivery(self) -> Delivery | None:
        return self.context.grant.delivery if self.context.grant else None

    @property
    def address(self) -> str | None:
        return find_client_ip(self.request)

    def cancel(self) -> bool:
        """End the request, which is not settled yet; False if it was cancelled before."""
        if self.cancelled:
            return False
        self.cancelled = True
        if not self.services.proxy.cancel(self.context.id) and self.task is not None:
            self.stopped = self.task.cancel()
        return True

    def leave(self) -> bool:
        """Note that the client has disconnected; return whether the response is read to its end nevertheless."""
        grant, services = self.context.grant, self.services
        if grant is None or grant.row is not None or self.cancelled or not services.drain.open:
            return False
        if services.billing.settlement.find_abandoned() == "drain":
            self._drain = services.proxy.drain(grant, self.context.id)
        return self._drain is not None

    async def note_body_read(self) -> None:
        """Check the caller again: the body may have taken minutes to arrive."""
        await check_still_signed(self.request)
        context = self.context
        context.read_at = monotonic()
        before = context.arrival.caller
        caller = self.services.auth.api_keys.refresh(before)
        if caller is not before:
            context.arrival = attrs.evolve(context.arrival, caller=caller)
            check_client_ip(self.request, caller)

    def settle_stream(self, fault: GatewayError | None) -> None:
        """Settle a request before the end of its stream is sent; ``fault`` is the error that ended it, if one did."""
        self.settle("completed" if fault is None else find_ending(fault), fault)

    def settle(self, ending: Ending, fault: GatewayError | None = None) -> None:
        """Leave the record, once. Nothing here waits, so that no cancellation can interrupt it."""
        context, grant = self.context, self.context.grant
        self.services.active_requests.calls.pop(context.id, None)
        outcome = Outcome(ending, self.loop.time(), int(self.services.clock() * 1000), fault)
        settlement = self.services.billing.settlement
        if grant is None:
            context.record = settlement.refuse(context.arrival, context.call, outcome)
            return
        delivery, drain = grant.delivery, self._drain
        if drain is not None:
            drain.end()
            delivery.first_byte_at = drain.first_byte_at  # the client received nothing that came later
        context.record = settlement.settle(context.arrival, grant, outcome, left=drain is not None)
        if delivery.response_id and delivery.option is not None:
            channel, account = delivery.option.line.channel.name, context.arrival.caller.account
            self.services.routing.response_owners.note(delivery.response_id, account.id, channel)


INFERENCE = web.RequestKey("inference", ActiveInference)


def leave_request(request: BaseRequest) -> bool:
    """Note that the client of ``request`` has disconnected; return whether the request must not be cancelled."""
    if not isinstance(request, web.Request) or CALLER not in request or CONTEXT not in request:
        return False
    active = request.app[SERVICES].active_requests.calls.get(request[CONTEXT].id)
    return active is not None and active.leave()


def _find_client_request_id(request: web.Request) -> str | None:
    request_id = request.headers.get("X-Request-Id")
    return request_id if request_id is not None and _CLIENT_REQUEST_ID.match(request_id) else None


def find_ending(fault: GatewayError) -> Ending:
    """Return how a request ended that ``fault`` has ended."""
    if isinstance(fault, ShuttingDown | RequestCancelled):
        return "interrupted"
    if isinstance(fault, ProviderError) and not isinstance(fault, ProviderRejected | ResourcesExhausted):
        return "upstream_failed"
    return "refused"
