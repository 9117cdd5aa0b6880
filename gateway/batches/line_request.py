"""Sends one line's request like any other request: routing, quota, failover, settlement, one record."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import Any, Protocol

import attrs
import structlog

from gateway import errors
from gateway.auth.api_keys import ApiKeyAuthenticator
from gateway.billing.quota import QuotaService, build_start
from gateway.billing.settlement import Settlement, find_outcome
from gateway.billing.step_reservation import keep_reserved
from gateway.domain import exact_json
from gateway.domain.account import Caller
from gateway.domain.attribution import AttributionRules, find_attribution
from gateway.domain.batch import Batch, BatchLine, LineResult
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.keep_wish import KeepWish
from gateway.domain.operation import Operation
from gateway.domain.request_log import Outcome, RequestStart
from gateway.error_status import find_page
from gateway.formats.batches.lines import find_line_format
from gateway.formats.batches.openai import build_error_response
from gateway.formats.chat.anthropic.request import parse_messages_inference
from gateway.formats.chat.openai.chat import parse_chat_inference
from gateway.formats.chat.openai.completions import parse_completions_inference
from gateway.formats.chat.responses.responses import parse_responses_inference
from gateway.formats.embeddings.openai import parse_embeddings_inference
from gateway.formats.errors.body import build_error
from gateway.frozen import frozen
from gateway.large_work import MAX_ON_LOOP, run_in_thread
from gateway.media.client_files import ClientFiles
from gateway.media.prompt_files import FILE_ID_KEY, inline_files
from gateway.memory_budget import RETRY_S, MemoryBudget, close_loan, estimate_memory
from gateway.proxy import forward
from gateway.proxy.active_requests import ActiveRequests
from gateway.proxy.body_collector import BodyCollector
from gateway.proxy.failover import Proxy
from gateway.request_context import BatchShare, RequestContext, make_request_id
from gateway.routing.response_owners import ResponseOwners
from gateway.routing.router import Router
from gateway.routing.target_list import TargetList

_TEMPORARY_ERRORS = (errors.RateLimited, errors.Overloaded, errors.StoreUnavailable, errors.NoHealthyChannel)
"""After these errors a reservation is tried again. ``Overloaded`` comes if the store of shared rate limits is away."""
_PARSERS: Mapping[Operation, Callable[[dict[str, Any]], InferenceRequest]] = {
    "chat": parse_chat_inference,
    "completions": parse_completions_inference,
    "embeddings": parse_embeddings_inference,
    "messages": parse_messages_inference,
    "responses": parse_responses_inference,
}
MAX_CHANNEL_WAITS = 20
"""How often a line waits for a channel to recover before it fails. Other requests fail at once."""
MAX_WAIT_S = 30.0
QUOTA_CHECK_S = 0.2
"""Interval at which a line checks whether other lines have released money that they did not need."""

WaitFunction = Callable[[float], Awaitable[None]]
"""Sleeps for the given seconds. Raises ``BatchStopped`` if lines may no longer begin."""

log = structlog.stdlib.get_logger(__name__)


class BatchStopped(Exception):
    """The batch was cancelled or has expired, or the gateway shuts down: no further line begins."""


class KeepRules(Protocol):
    """Gives the rule by which bodies are kept for keys without a rule of their own; None: they are not kept."""

    @property
    def keep_bodies(self) -> str | None: ...


class Gate(Protocol):
    """Tells whether the gateway accepts work, and counts running requests: a shutdown waits for them."""

    open: bool
    active_count: int


@frozen
class LineServices:
    """Dependencies of the lines' requests.

    Attributes:
        address: the address of the gateway, if configured.
        find_attribution_rules: returns what is stored of the end users, sessions and tags of requests.
        open_exchange: returns what collects the bodies of a request under a rule; None if they are not kept.
    """

    proxy: Proxy
    router: Router
    response_owners: ResponseOwners
    quota: QuotaService
    settlement: Settlement
    active_requests: ActiveRequests
    api_keys: ApiKeyAuthenticator
    gate: Gate
    files: ClientFiles
    max_body_bytes: int
    clock: Callable[[], float]
    memory: MemoryBudget
    address: str
    find_attribution_rules: Callable[[], AttributionRules]
    keep_rules: KeepRules
    open_exchange: Callable[[RequestContext, KeepWish, str], BodyCollector | None]

    def find_caller(self, key_id: int) -> Caller:
        """Return the current caller with that key.

        Raises ``InvalidApiKey`` if the key was deleted, ``KeyDisabled`` or ``KeyExpired``.
        """
        caller = self.api_keys.find_caller(key_id)
        if caller is None:
            raise errors.InvalidApiKey("The API key of the batch was deleted", should_retry=False)
        caller.check_usable(self.clock())
        return caller

    def check_model(self, batch: Batch, line: BatchLine) -> errors.GatewayError | None:
        """Return the error if the batch's key must not use the line's model; None if it may or the line is invalid."""
        try:
            self.router.route(self.find_caller(batch.key_id), _PARSERS[batch.operation](line.body))
        except errors.InvalidRequest:
            return None
        except errors.GatewayError as error:
            return error
        return None


class LineRequest:
    """The request of one line; implements ``proxy.active_requests.ActiveRequest``."""

    def __init__(self, services: LineServices, batch: Batch, number: int, line: BatchLine) -> None:
        self._services = services
        self._batch = batch
        self._number = number
        self._line = line
        self._format = find_line_format(batch.endpoint)
        self._loop = asyncio.get_running_loop()
        self._waits_left = MAX_CHANNEL_WAITS
        self._start: RequestStart | None = None
        self.exchange: BodyCollector | None = None
        self.context = context = RequestContext(make_request_id())
        context.operation = batch.operation
        context.started_ms = int(services.clock() * 1000)
        context.started_at = self._loop.time()
        context.read_at = monotonic()
        context.client_request_id = batch.id
        context.batch = BatchShare(batch.id, batch.multiplier_ppm)

    @property
    def address(self) -> None:
        return None

    def handle_disconnect(self) -> bool:
        return False

    def cancel(self) -> bool:
        if not self._services.proxy.cancel(self.context):
            raise errors.Conflict("The request waits in its batch: cancel the batch", should_retry=False)
        return True

    async def admit(self, wait: WaitFunction, others_run: Callable[[], bool]) -> LineResult | None:
        """Parse the request and reserve its money. Returns None, or the result of a refused request.

        Waits for memory, rate limits, channels and the database, and for money as long as other lines run
        (``others_run``). Raises ``BatchStopped``; nothing is reserved then.
        """
        context, services = self.context, self._services
        try:
            context.caller = services.find_caller(self._batch.key_id)
        except errors.GatewayError as fault:
            return self._build_refused_result(fault)
        services.active_requests.calls[context.id] = self
        services.gate.active_count += 1
        rule = context.caller.key.keep_bodies or services.keep_rules.keep_bodies
        if rule is not None:
            self.exchange = services.open_exchange(context, self._line.keep_bodies or self._batch.keep_bodies, rule)
        try:
            await self._parse_when_possible(wait)
            await self._reserve(wait, others_run)
        except errors.GatewayError as fault:
            self._settle(find_outcome(fault), fault)
            return self._build_refused_result(fault)
        except (BatchStopped, asyncio.CancelledError):
            self._unregister()
            self._close_exchange(None)
            raise
        except Exception:
            log.exception("request_failed", request_id=self.context.id)
            return self._fail()
        return None

    async def _parse_when_possible(self, wait: WaitFunction) -> None:
        """Parse the request once there is memory for the data that it loads."""
        while True:
            try:
                return await self._parse()
            except errors.Overloaded:
                close_loan(self.context)
                await wait(RETRY_S)

    async def _parse(self) -> None:
        context, body, parse = self.context, self._line.body, _PARSERS[self._batch.operation]
        body_bytes, services = exact_json.dumps(body), self._services
        size, memory_loan = len(body_bytes), services.memory.lend(context)
        if self.exchange is not None:
            self.exchange.note_request(body_bytes)  # before the files that it names are loaded into it
        memory_loan.take(min(estimate_memory(body_bytes), memory_loan.room), "The line")
        if FILE_ID_KEY in body_bytes:
            account_id, limit_bytes = context.caller.account.id, services.max_body_bytes
            size = await inline_files(services.files, account_id, body, memory_loan, size=size, limit=limit_bytes)
        inference = attrs.evolve(await run_in_thread(parse, body), large=True) if size > MAX_ON_LOOP else parse(body)
        if headers := self._line.headers:
            inference = attrs.evolve(
                inference, features=headers.get("anthropic-beta"), version=headers.get("anthropic-version")
            )
        key = context.caller.key
        context.attribution = find_attribution({}, body, services.find_attribution_rules(), key.user, key.tags)
        context.inference = await services.response_owners.prepare(
            inference, context.caller.account.id, context.id, context
        )

    async def _reserve(self, wait: WaitFunction, others_run: Callable[[], bool]) -> None:
        """Reserve the money. Other requests go first: a line leaves the last slots of channels and limits free."""
        context, services, inference = self.context, self._services, self.context.inference
        while True:
            try:
                context.route = services.router.find_route_name(inference.model)
                context.target_list = targets = self._find_targets(inference)
                targets.leave_room()
                services.quota.check_low_priority(context.caller, inference)
                ranked_targets = targets.rank()
                # ``send`` records the start, once the line's mark is durable: a line without a mark is sent again after
                # a crash, and must not be on record twice.
                reservation = await services.quota.admit(context, ranked_targets, journaled=False)
                channel = ranked_targets[0].channel.name if ranked_targets else None
                self._start = build_start(context, channel, reservation.nanos - reservation.extra_nanos)
            except _TEMPORARY_ERRORS as fault:
                await self._await_channel(fault, wait)
                context.caller = services.find_caller(self._batch.key_id)
            except errors.QuotaExceeded:
                if not others_run():
                    raise
                await wait(QUOTA_CHECK_S)
                context.caller = services.find_caller(self._batch.key_id)
            else:
                return

    def _find_targets(self, inference: InferenceRequest) -> TargetList:
        targets = self._services.router.route(self.context.caller, inference)
        targets.multiply_prices(self._batch.multiplier_ppm)
        return targets

    async def _await_channel(self, error: errors.GatewayError, wait: WaitFunction) -> None:
        """Wait as long as ``error`` asks, at most ``MAX_WAIT_S``. Raises ``error`` if channels have failed too often.

        Waits for a free slot of a channel are not counted.
        """
        if isinstance(error, errors.NoHealthyChannel) and not self.context.target_list.busy:
            if not self._waits_left:
                raise error
            self._waits_left -= 1
        await wait(min(error.retry_after_s or 1, MAX_WAIT_S))

    async def send(self, wait: WaitFunction) -> LineResult | None:
        """Record the start of an admitted request, send the request and return its result.

        Returns None if the batch stopped while the request waited for the database or for a channel.
        """
        try:
            if self._start is not None:
                await self._record_start(self._start, wait)
            answer = await self._fetch(wait)
        except errors.GatewayError as fault:
            self._settle(find_outcome(fault), fault)
            return self._build_refused_result(fault)
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
        if self.exchange is not None:
            self.exchange.note_answer(answer.body, answer.media_type)
        self._settle("completed")
        line_parts = self._batch.id, self._number, self._line.custom_id, self.context.id, answer.body
        if len(answer.body) > MAX_ON_LOOP:
            return await run_in_thread(self._format.build_answer, *line_parts)
        return self._format.build_answer(*line_parts)

    async def _record_start(self, start: RequestStart, wait: WaitFunction) -> None:
        while True:
            try:
                return await self._services.quota.record_start(self.context, start)
            except errors.StoreUnavailable as fault:
                await self._await_channel(fault, wait)

    async def _fetch(self, wait: WaitFunction) -> forward.ProviderAnswer:
        context, services = self.context, self._services
        while True:
            try:
                context.target_list.leave_room()
                return await forward.fetch(services.proxy, context)
            except errors.NoHealthyChannel as fault:
                await self._await_channel(fault, wait)
            except errors.ProviderRateLimited as fault:
                if not self._waits_left:
                    raise
                self._waits_left -= 1
                await wait(min(fault.provider_retry_after_s or 1, MAX_WAIT_S))
            # The former list has ended its wait in queues, and a route's steps are behind it.
            context.target_list = self._find_targets(context.inference)
            keep_reserved(context)

    def give_up(self) -> None:
        """Settle an admitted request that will not be sent."""
        self._settle("cancelled")

    def _fail(self) -> LineResult:
        bug = errors.InternalError("Unexpected gateway error")
        self._settle("failed", bug)
        return self._build_refused_result(bug)

    def _build_refused_result(self, error: errors.GatewayError) -> LineResult:
        error.doc_url = find_page(error.public_code, self._services.address)
        body = build_error(error, self.context.id, self._format.errors)
        response = build_error_response(self.context.id, error.status, body)
        return self._format.build_refused(self._batch.id, self._number, self._line.custom_id, response)

    def _settle(self, outcome: Outcome, error: errors.GatewayError | None = None) -> None:
        """Settle the request and write its record. This never waits."""
        context, services = self.context, self._services
        self._unregister()
        now_s, now_ms = self._loop.time(), int(services.clock() * 1000)
        services.settlement.settle(context, outcome, error, now_s=now_s, now_ms=now_ms)
        if context.attempts:
            attempt, created_ids = context.attempts[-1], context.inference.made
            if attempt.response_id or created_ids:
                services.response_owners.record_owner(
                    attempt.response_id, context.caller.account.id, attempt.channel.name, created_ids
                )
        self._close_exchange(error)

    def _close_exchange(self, error: errors.GatewayError | None) -> None:
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.error = error
            exchange.close()

    def _unregister(self) -> None:
        self._services.active_requests.calls.pop(self.context.id, None)
        self._services.gate.active_count -= 1
        close_loan(self.context)
