"""One inference request under way: what its middlewares share, how it is cancelled, and how it is settled."""

import asyncio
import re
from time import monotonic
from typing import TypeVar

from aiohttp import web
from aiohttp.web_request import BaseRequest

from gateway.billing.abandoned import goes_on, reads_unknown
from gateway.billing.request_record import find_outcome
from gateway.domain.operation import Operation
from gateway.domain.request_log import Outcome
from gateway.errors import GatewayError
from gateway.proxy.drain import DrainedStream
from gateway.request_context import RequestContext
from gateway.server.client_ip import check_client_ip, find_client_ip
from gateway.server.context import CALLER, CONTEXT, SERVICES
from gateway.server.idempotency import HEADER, NAMELESS, find_name
from gateway.server.multipart import MultipartReader
from gateway.server.sessions import check_still_signed
from gateway.wording import mask_keys

_CLIENT_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}\Z", re.ASCII)


class ActiveInference:
    """What ends and settles one inference request; a ``proxy.active_requests.ActiveRequest``.

    Attributes:
        context: everything known about the request.
        form: the multipart body, whose files exist until it is closed; None if the body is JSON.
        idempotency_key: of the request; one that does nothing if it has none.
        task: runs the request; None once it has ended.
        cancelled: an operator or a member has cancelled the request.
        stopped: it was cancelled through its task, because no attempt was under way.
    """

    def __init__(self, request: web.Request, operation: Operation) -> None:
        self.request = request
        self.context = context = request[CONTEXT]
        self.services = services = request.app[SERVICES]
        headers = request.headers
        self.idempotency_key = find_name(request, operation) if HEADER in headers else NAMELESS
        self.loop = loop = asyncio.get_running_loop()
        self.task = asyncio.current_task()
        self.form: MultipartReader | None = None
        self.cancelled = False
        self.stopped = False
        self._drain: DrainedStream | None = None
        context.caller = request[CALLER]
        context.operation = operation
        context.started_ms = int(services.clock() * 1000)
        context.started_at = loop.time()
        client_request_id = headers.get("X-Request-Id")
        if client_request_id is not None and _CLIENT_REQUEST_ID.match(client_request_id):
            context.client_request_id = mask_keys(client_request_id)

    @property
    def address(self) -> str | None:
        return find_client_ip(self.request)

    def cancel(self) -> bool:
        """End the request, which is not settled yet; False if it was cancelled before."""
        if self.cancelled:
            return False
        self.cancelled = True
        if not self.services.proxy.cancel(self.context) and self.task is not None:
            self.stopped = self.task.cancel()
        return True

    def leave(self) -> bool:
        """Note that the client has disconnected; return whether the response is read to its end nevertheless."""
        ctx, services = self.context, self.services
        if ctx.reservation is None or ctx.record is not None or self.cancelled or not services.drain.open:
            return False
        rule, inference = services.billing.settlement.find_abandoned(), ctx.inference
        whole = goes_on(inference)
        if whole or rule == "drain" or (rule == "charge" and reads_unknown(inference)):
            self._drain = services.proxy.drain(ctx, whole=whole)
        return self._drain is not None

    async def note_body_read(self) -> None:
        """Check the caller again: the body may have taken minutes to arrive."""
        await check_still_signed(self.request)
        context = self.context
        context.read_at = monotonic()
        before = context.caller
        caller = self.services.auth.api_keys.refresh(before)
        if caller is not before:
            context.caller = caller
            check_client_ip(self.request, caller)

    def settle_stream(self, error: GatewayError | None) -> None:
        """Settle a request before the end of its stream is sent; ``error`` is the error that ended it, if one did."""
        self.settle("completed" if error is None else find_outcome(error), error)

    def settle(self, outcome: Outcome, error: GatewayError | None = None) -> None:
        """Leave the record, once. Nothing here waits, so that no cancellation can interrupt it."""
        context, services, drain = self.context, self.services, self._drain
        services.active_requests.calls.pop(context.id, None)
        if drain is not None:
            drain.end()
            context.first_byte_at = drain.first_byte_at  # the client received nothing that came later
        now, now_ms, left = self.loop.time(), int(services.clock() * 1000), drain is not None
        services.billing.settlement.settle(context, outcome, error, now=now, now_ms=now_ms, left=left)
        if context.attempts:
            attempt, made = context.attempts[-1], context.inference.made
            if made or attempt.response_id:
                tokens = _count_tokens(context)
                services.routing.response_owners.note(
                    attempt.response_id, context.caller.account.id, attempt.channel.name, made, tokens=tokens
                )


def _count_tokens(ctx: RequestContext) -> int:
    """Return what a response adds to the prompt of the next one, at most; 0: it is not known."""
    usage, inference = ctx.usage, ctx.inference
    known = usage.source == "upstream" and usage.rare is None and not inference.makes_media
    return usage.prompt_tokens + usage.completion_tokens if known else 0


INFERENCE = web.RequestKey("inference", ActiveInference)
A = TypeVar("A", bound=ActiveInference)


def get_active(request: web.Request, kind: type[A]) -> A:
    """Return ``request[INFERENCE]``, which the middlewares of the route have made as a ``kind``."""
    active = request[INFERENCE]
    if not isinstance(active, kind):
        raise TypeError(f"the route makes {type(active).__name__}, not {kind.__name__}")
    return active


def leave_request(request: BaseRequest) -> bool:
    """Note that the client of ``request`` has disconnected; return whether the request must not be cancelled."""
    if not isinstance(request, web.Request) or CALLER not in request or CONTEXT not in request:
        return False
    active = request.app[SERVICES].active_requests.calls.get(request[CONTEXT].id)
    return active is not None and active.leave()
