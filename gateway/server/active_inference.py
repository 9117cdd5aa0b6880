"""The state of one active inference request, which its middlewares share, with its cancellation and settlement."""

import asyncio
import re
from contextlib import ExitStack
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from aiohttp import web
from aiohttp.web_request import BaseRequest

from gateway.billing.abandoned import continues_in_background, reads_unmeasured
from gateway.billing.settlement import find_outcome
from gateway.deferred import load
from gateway.domain.attribution import BUDGET_HEADER, FIELDS, HEADERS, UNATTRIBUTED, find_attribution
from gateway.domain.operation import Operation
from gateway.domain.request_log import Outcome
from gateway.errors import GatewayError
from gateway.proxy.client_stream import ClientStream
from gateway.proxy.drain import DrainedStream
from gateway.request_context import QUOTE_HEADER, RESUMABLE_HEADER, RequestContext
from gateway.server.client_ip import check_client_ip, find_client_ip
from gateway.server.context import CALLER, CONTEXT, SERVICES
from gateway.server.idempotency import HEADER, NO_IDEMPOTENCY_KEY, find_name
from gateway.server.multipart import MultipartReader
from gateway.server.sessions import check_still_signed_in
from gateway.wording import mask_keys

if TYPE_CHECKING:  # only if bodies, streams or answers are kept
    from gateway.billing.cache_use import CacheUse
    from gateway.server.answer_recorder import AnswerRecorder
    from gateway.server.kept_exchange import KeptExchange
    from gateway.server.recorded_stream import RecordedStream
    from gateway.server.sampled_answer import SampledAnswer

_CLIENT_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}\Z", re.ASCII)
_REQUEST_ID_HEADER = "X-Request-Id"
CACHE_CONTROL = "Cache-Control"
_RARE_HEADERS = HEADERS | {
    name.lower() for name in (HEADER, _REQUEST_ID_HEADER, BUDGET_HEADER, QUOTE_HEADER, RESUMABLE_HEADER, CACHE_CONTROL)
}


class ActiveInference:
    """An active inference request. Implements ``proxy.active_requests.ActiveRequest``.

    Attributes:
        form: the multipart body, whose files exist until the form is closed; None if the body is JSON.
        has_rare_headers: whether a header names an end user, a session, tags, a budget, a quote, a request id, an
            idempotency key or the use of caches, or says whether the stream can be taken up again. Most requests have
            none of them, so a single check of all names saves one check for each.
        task: runs the request; None once the request has ended.
        cancelled: whether an operator or a member has cancelled the request.
        stopped: whether the task itself was cancelled, because no attempt was in progress.
        exchange: collects the bodies of the request; None if they are not kept.
        outlives_client: whether a task goes on with the request after the handler, and closes its collectors.
        names_resumable: whether a header says if the stream can be taken up again.
        recorded: the client's stream if it can be taken up again; else None.
        cache_use: how the request uses the cache of answers; None if it does not.
        recorder: takes the provider's answer for equal requests; None if they may not have it.
        sample: holds the answer for the comparison with that of a shadow model; None if no copy is sent to one.
    """

    form: MultipartReader | None = None
    exchange: "KeptExchange | None" = None
    recorded: "RecordedStream | None" = None
    names_resumable = False
    cache_use: "CacheUse | None" = None
    recorder: "AnswerRecorder | None" = None
    sample: "SampledAnswer | None" = None
    cancelled = stopped = outlives_client = False

    def __init__(self, request: web.Request, operation: Operation) -> None:
        self.request = request
        self.context = context = request[CONTEXT]
        self.services = services = request.app[SERVICES]
        headers = request.headers
        self.has_rare_headers = has_rare_headers = not _RARE_HEADERS.isdisjoint(map(str.lower, headers))
        self.idempotency_key = find_name(request, operation) if has_rare_headers else NO_IDEMPOTENCY_KEY
        self.loop = loop = services.proxy.timer.loop
        self.task = asyncio.current_task(loop)
        self._drain: DrainedStream | None = None
        context.caller = request[CALLER]
        context.operation = operation
        context.started_ms = int(services.clock() * 1000)
        context.started_at = loop.time()
        if has_rare_headers:
            self.names_resumable = RESUMABLE_HEADER in headers
            client_request_id = headers.get(_REQUEST_ID_HEADER)
            if client_request_id is not None and _CLIENT_REQUEST_ID.match(client_request_id):
                context.client_request_id = mask_keys(client_request_id)
        keep_rule = context.caller.key.keep_bodies or services.live_config.keep_bodies
        if keep_rule is not None:
            self.exchange = load("server.kept_exchange:open_exchange")(context, services, headers, keep_rule)

    @property
    def address(self) -> str | None:
        return find_client_ip(self.request)

    def cancel(self) -> bool:
        if self.cancelled:
            return False
        self.cancelled = True
        if not self.services.proxy.cancel(self.context) and self.task is not None:
            self.stopped = self.task.cancel()
        return True

    def wrap_stream(self, stream: ClientStream) -> ClientStream:
        """Return ``stream``, wrapped for each collector of the request: collectors get all that the client is sent."""
        for collector in (self.exchange, self.sample, self.recorder):
            if collector is not None:
                stream = collector.wrap(stream)
        return stream

    def note_answer(self, body: bytes, media_type: str) -> None:
        for collector in (self.exchange, self.recorder, self.sample):
            if collector is not None:
                collector.note_answer(body, media_type)

    def close_collectors(self) -> None:
        """Close what keeps the bodies, the stream or the answer of the request, after its settlement.

        All are closed, also if one fails: others may be waiting for the answer or the end of the stream.
        """
        if self.recorder is None and self.recorded is None:
            if self.exchange is not None:
                self.exchange.close()
            return
        with ExitStack() as stack:
            for collector in (self.recorder, self.recorded, self.exchange):  # the last one is closed first
                if collector is not None:
                    stack.callback(collector.close)
        self.recorded = None  # the two refer to each other

    def handle_disconnect(self) -> bool:
        ctx, services = self.context, self.services
        if self.recorded is not None and self.recorded.detach():
            return True
        if ctx.reservation is None or ctx.record is not None or self.cancelled or not services.drain.open:
            return False
        rule, inference = services.billing.settlement.find_abandoned(), ctx.inference
        must_finish = continues_in_background(inference) or (self.recorder is not None and self.recorder.is_awaited)
        if must_finish or rule == "drain" or (rule == "charge" and reads_unmeasured(inference)):
            self._drain = services.proxy.drain(ctx, whole=must_finish)
        return self._drain is not None

    def note_parsed(self) -> None:
        """Note the route that the body names, for whom the request is made, and whether its answer may be sampled.

        Raises ``InvalidRequest`` for malformed tags.
        """
        context, routes = self.context, self.services.routing.router.routes
        inference, key = context.inference, context.caller.key
        if routes and inference.model in routes:
            context.route = inference.model
            for step in routes[inference.model].steps:  # no call if none has a shadow
                if step.shadow is not None:
                    self.sample = self.services.open_copy_sender().draw(routes[inference.model], inference.operation)
                    break
        headers = self.request.headers
        names_subject = self.has_rare_headers and not HEADERS.isdisjoint(map(str.lower, headers))
        if names_subject or key.user or key.tags or not FIELDS.isdisjoint(inference.body):
            rules = self.services.live_config.attribution
            context.attribution = find_attribution(headers, inference.body, rules, key.user, key.tags)

    async def note_body_read(self) -> None:
        """Check the caller again after the body, which may have taken minutes to arrive.

        Raises ``SignedOut``, ``InvalidApiKey``, ``KeyDisabled``, ``KeyExpired`` or ``IpNotAllowed``.
        """
        await check_still_signed_in(self.request)
        context = self.context
        context.read_at = monotonic()
        earlier_caller = context.caller
        caller = self.services.auth.api_keys.refresh(earlier_caller)
        if caller is not earlier_caller:
            context.caller = caller
            check_client_ip(self.request, caller)

    def settle_stream(self, error: GatewayError | None) -> None:
        """Settle a request before the end of its stream is sent. ``error`` is the one that ended the stream, if any."""
        self.settle("completed" if error is None else find_outcome(error), error)

    def settle(self, outcome: Outcome, error: GatewayError | None = None) -> None:
        """Charge and record the request, once. The method has no ``await``, so a cancellation cannot interrupt it.

        The request leaves the active requests. What it has made is recorded as its account's, and its copy for a shadow
        model is sent.
        """
        context, services, drain = self.context, self.services, self._drain
        services.active_requests.calls.pop(context.id, None)
        if drain is not None:
            drain.end()
            context.first_byte_at = drain.first_byte_at  # the client received nothing after it disconnected
        if self.exchange is not None:
            self.exchange.error = error
        if self.recorder is not None:
            self.recorder.note_outcome(outcome)
        now, now_ms, has_left = self.loop.time(), int(services.clock() * 1000), drain is not None
        has_left = has_left or (self.recorded is not None and self.recorded.was_given_up)
        services.billing.settlement.settle(
            context, outcome, error, now_s=now, now_ms=now_ms, left=has_left, cache=self.cache_use
        )
        attribution = context.attribution
        if attribution is not UNATTRIBUTED and attribution.session and services.billing.limits.budgets is not None:
            load("server.request_checks:note_left")(self)
        if context.caller.key.loops is not None:
            services.open_loop_guard().note_end(context.id, context.record)
        if context.attempts:
            attempt, made_content = context.attempts[-1], context.inference.made
            if made_content or attempt.response_id:
                tokens = _count_tokens(context)
                services.routing.response_owners.record_owner(
                    attempt.response_id, context.caller.account.id, attempt.channel.name, made_content, tokens=tokens
                )
            place = attempt.target.place
            if self.sample is not None and place is not None and outcome == "completed":
                services.open_copy_sender().start(services, context, place, self.sample)


def _count_tokens(ctx: RequestContext) -> int:
    """Return the most tokens that a conversation up to this response adds to the next prompt; 0 if unknown."""
    usage, inference = ctx.usage, ctx.inference
    is_known = usage.source == "upstream" and usage.details is None and not inference.makes_media
    return usage.prompt_tokens + usage.completion_tokens if is_known else 0


INFERENCE = web.RequestKey("inference", ActiveInference)
A = TypeVar("A", bound=ActiveInference)


def get_active(request: web.Request, kind: type[A]) -> A:
    """Return ``request[INFERENCE]`` as a ``kind``. Raises ``TypeError`` if the route created another class."""
    active = request[INFERENCE]
    if not isinstance(active, kind):
        raise TypeError(f"the route makes {type(active).__name__}, not {kind.__name__}")
    return active


def leave_request(request: BaseRequest) -> bool:
    """Handle the disconnected client of ``request``. Return whether the request must continue."""
    if not isinstance(request, web.Request) or CALLER not in request or CONTEXT not in request:
        return False
    active = request.app[SERVICES].active_requests.calls.get(request[CONTEXT].id)
    return active is not None and active.handle_disconnect()
