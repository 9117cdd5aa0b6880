"""Sends the request of one line the way of every other: routing, quota, failover, settlement, one record."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import Any, Protocol

import attrs
import orjson
import structlog

from gateway.auth.api_keys import ApiKeyAuthenticator
from gateway.billing.quota import QuotaService
from gateway.billing.request_record import find_outcome
from gateway.billing.settlement import Settlement
from gateway.domain.account import Caller
from gateway.domain.batch import Batch, BatchLine, LineResult
from gateway.domain.inference_request import InferenceRequest, Operation
from gateway.domain.request_log import Outcome
from gateway.errors import (
    Conflict,
    GatewayError,
    InternalError,
    InvalidApiKey,
    InvalidRequest,
    NoHealthyChannel,
    RateLimited,
    StoreUnavailable,
)
from gateway.formats.error_body import build_error
from gateway.formats.openai.batches import build_answer_line, build_error_response, build_refused_line
from gateway.formats.openai.chat import parse_chat_call
from gateway.formats.openai.completions import parse_completions_call
from gateway.formats.openai.embeddings import parse_embeddings_call
from gateway.formats.openai.responses import parse_responses_call
from gateway.large_work import MAX_ON_LOOP, work_aside
from gateway.proxy import forward
from gateway.proxy.active_requests import ActiveRequests
from gateway.proxy.failover import Proxy
from gateway.request_context import RequestContext, make_request_id
from gateway.routing.response_owners import ResponseOwners
from gateway.routing.router import Router

_PARSERS: Mapping[Operation, Callable[[dict[str, Any]], InferenceRequest]] = {
    "chat": parse_chat_call,
    "completions": parse_completions_call,
    "embeddings": parse_embeddings_call,
    "responses": parse_responses_call,
}
CHANNEL_WAITS = 20
"""How often a line waits for a channel to recover before its error is the result, as it is at once of a request."""
LONGEST_WAIT_S = 30.0

Wait = Callable[[float], Awaitable[None]]
"""Sleeps for so many seconds; raises ``BatchStopped`` if no line may begin any more."""

log = structlog.stdlib.get_logger(__name__)


class BatchStopped(Exception):
    """The batch was cancelled or has expired, or the gateway shuts down: no further line begins."""


class Gate(Protocol):
    """Whether the gateway accepts work, and how much is inside: a shutdown waits for that."""

    open: bool
    inside: int


@attrs.frozen
class LineServices:
    """What requests of lines need. ``clock``: Unix seconds."""

    proxy: Proxy
    router: Router
    response_owners: ResponseOwners
    quota: QuotaService
    settlement: Settlement
    active_requests: ActiveRequests
    api_keys: ApiKeyAuthenticator
    gate: Gate
    clock: Callable[[], float]

    def find_caller(self, key_id: int) -> Caller:
        """Return the caller with that key as it is now. Raises the error of a key that cannot be used."""
        caller = self.api_keys.find_caller(key_id)
        if caller is None:
            raise InvalidApiKey("The API key of the batch was deleted", should_retry=False)
        caller.check_usable(self.clock())
        return caller

    def check_model(self, batch: Batch, line: BatchLine) -> GatewayError | None:
        """Return why the batch's key cannot have the line's model; None if it can, or the line is wrong otherwise."""
        try:
            self.router.route(self.find_caller(batch.key_id), _PARSERS[batch.operation](line.body))
        except InvalidRequest:
            return None
        except GatewayError as error:
            return error
        return None


class LineRequest:
    """The request of one line; a ``proxy.active_requests.ActiveRequest``.

    Attributes:
        context: everything known about the request.
    """

    def __init__(self, services: LineServices, batch: Batch, number: int, line: BatchLine) -> None:
        self._services = services
        self._batch = batch
        self._number = number
        self._line = line
        self._loop = asyncio.get_running_loop()
        self.context = context = RequestContext(make_request_id())
        context.operation = batch.operation
        context.started_ms = int(services.clock() * 1000)
        context.started_at = self._loop.time()
        context.read_at = monotonic()
        context.client_request_id = batch.id

    @property
    def address(self) -> None:
        return None

    def leave(self) -> bool:
        return False

    def cancel(self) -> bool:
        """End the attempt. Raises ``Conflict`` if none is under way."""
        if not self._services.proxy.cancel(self.context):
            raise Conflict("The request waits in its batch: cancel the batch", should_retry=False)
        return True

    async def admit(self, wait: Wait) -> LineResult | None:
        """Parse the request and reserve its money; return the result if it is refused.

        The rate limits are waited for, as long as ``wait`` does. Raises ``BatchStopped``; then nothing is left.
        """
        context, services = self.context, self._services
        try:
            context.caller = services.find_caller(self._batch.key_id)
        except GatewayError as fault:
            return self._refuse(fault)
        services.active_requests.calls[context.id] = self
        services.gate.inside += 1
        try:
            await self._parse()
            await self._reserve(wait)
        except GatewayError as fault:
            self._settle(find_outcome(fault), fault)
            return self._refuse(fault)
        except (BatchStopped, asyncio.CancelledError):
            self._unregister()
            raise
        except Exception:
            log.exception("request_failed", request_id=self.context.id)
            return self._fail()
        return None

    async def _parse(self) -> None:
        context, body, parse = self.context, self._line.body, _PARSERS[self._batch.operation]
        if len(orjson.dumps(body)) > MAX_ON_LOOP:
            call = attrs.evolve(await work_aside(parse, body), large=True)
        else:
            call = parse(body)
        if context.operation == "responses":
            call = await self._services.response_owners.prepare(call, context.caller.account.id, context.id)
        context.call = call

    async def _reserve(self, wait: Wait) -> None:
        context, services, call = self.context, self._services, self.context.call
        assert call is not None  # noqa: S101 - it was parsed before
        while True:
            try:
                context.route = route = services.router.route(context.caller, call)
                await services.quota.admit(context, route.rank())
            except (RateLimited, StoreUnavailable) as fault:
                await wait(min(fault.retry_after_s or 1, LONGEST_WAIT_S))
                context.caller = services.find_caller(self._batch.key_id)
            else:
                return

    async def send(self, wait: Wait) -> LineResult | None:
        """Send an admitted request and return its result; None if it was stopped while it waited for a channel."""
        try:
            answer = await self._fetch(wait)
        except GatewayError as fault:
            self._settle(find_outcome(fault), fault)
            return self._refuse(fault)
        except BatchStopped:
            self._settle("cancelled")
            return None
        except asyncio.CancelledError:
            self._settle("interrupted")
            raise
        except Exception:
            log.exception("request_failed", request_id=self.context.id)
            return self._fail()
        self.context.first_byte_at = self._loop.time()
        self._settle("completed")
        return build_answer_line(self._batch.id, self._number, self._line.custom_id, self.context.id, answer.body)

    async def _fetch(self, wait: Wait) -> forward.ProviderAnswer:
        """Return the answer. While no provider was asked, a channel that recovers is waited for."""
        for left in range(CHANNEL_WAITS, -1, -1):
            try:
                return await forward.fetch(self._services.proxy, self.context)
            except NoHealthyChannel as fault:
                if self.context.attempts or not left:
                    raise
                await wait(min(fault.retry_after_s or 1, LONGEST_WAIT_S))
        raise AssertionError

    def give_up(self) -> None:
        """Settle an admitted request that is not sent."""
        self._settle("cancelled")

    def _fail(self) -> LineResult:
        """Settle a request that a bug has ended."""
        bug = InternalError("Unexpected gateway error")
        self._settle("failed", bug)
        return self._refuse(bug)

    def _refuse(self, fault: GatewayError) -> LineResult:
        response = build_error_response(self.context.id, fault.status, build_error(fault, self.context.id, "openai"))
        return build_refused_line(self._batch.id, self._number, self._line.custom_id, response)

    def _settle(self, outcome: Outcome, fault: GatewayError | None = None) -> None:
        """Leave the record. Nothing here waits."""
        context, services = self.context, self._services
        self._unregister()
        now, now_ms = self._loop.time(), int(services.clock() * 1000)
        services.settlement.settle(context, outcome, fault, now=now, now_ms=now_ms)
        if context.attempts and (response_id := context.attempts[-1].response_id):
            channel = context.attempts[-1].channel.name
            services.response_owners.note(response_id, context.caller.account.id, channel)

    def _unregister(self) -> None:
        self._services.active_requests.calls.pop(self.context.id, None)
        self._services.gate.inside -= 1
