"""Copies of a route's requests for a shadow model. Their answers are read to the end and dropped.

A copy is sent once its request is answered completely, with its own account, reservation and row. It has one attempt,
uses only spare places of channels, and is not waited for, apart from a shutdown.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

import attrs
import structlog

from gateway.billing.settlement import find_outcome
from gateway.domain.account import Caller
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import OPERATIONS
from gateway.domain.request_log import Outcome
from gateway.domain.route import StepPlace
from gateway.errors import Conflict, GatewayError, InternalError
from gateway.memory_budget import close_loan
from gateway.proxy import forward
from gateway.request_context import RequestContext, make_request_id
from gateway.routing.router import Router
from gateway.server.context import Services

KEY_NAME = "shadow"
"""The name of the key that is made for the account which pays for copies."""
_RESPONSES = "responses"

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


class ShadowRequests:
    """Sends copies to shadow models. ``rng`` returns a random number from 0 to below 1."""

    def __init__(self, rng: Callable[[], float] = random.random) -> None:
        self.rng = rng
        self._running_counts: dict[tuple[str, int], int] = {}
        self._key_id = 0
        self._creating = asyncio.Lock()
        self._problem = ""

    def start(self, services: Services, ctx: RequestContext, place: StepPlace) -> None:
        """Start copying a random share of the answered requests to a shadow model, unless too many copies run."""
        shadow = place.route.steps[place.step].shadow
        if shadow is None or self.rng() >= shadow.share or not services.drain.open or not _may_copy(ctx):
            return
        step = place.route.name, place.step
        running_count = self._running_counts.get(step, 0)
        if running_count >= shadow.max_running:
            return
        self._running_counts[step] = running_count + 1
        model = shadow.models[int(self.rng() * len(shadow.models))]
        services.drain.active_count += 1
        services.background.start(self._run(services, _copy(ctx.inference, model), step))

    async def _run(self, services: Services, inference: InferenceRequest, step: tuple[str, int]) -> None:
        try:
            caller = await self._find_caller(services)
            self._problem = ""
            await ShadowRequest(services, caller, inference, step[0]).run()
        except GatewayError as error:
            if error.message != self._problem:  # once, and not for each copy
                self._problem = error.message
                log.warning("shadow_not_sent", error=error.message)
        except Exception:
            log.exception("shadow_failed")
        finally:
            self._running_counts[step] -= 1
            if not self._running_counts[step]:
                del self._running_counts[step]
            services.drain.active_count -= 1

    async def _find_caller(self, services: Services) -> Caller:
        """Return the account that pays, with the first of its keys that can be used; both are made if needed.

        Raises ``GatewayError`` if there is none and none can be made.
        """
        api_keys, name = services.auth.api_keys, services.live_config.effective.config.routing.shadow_account
        known = api_keys.find_caller(self._key_id)
        callers = [known] if known is not None and known.account.name == name else api_keys.find_callers(name)
        if not callers:
            async with self._creating:
                callers = api_keys.find_callers(name) or await self._create(services, name)
        problem: GatewayError | None = None
        for caller in callers:
            try:
                caller.check_usable(services.clock())
            except GatewayError as error:
                problem = error
            else:
                self._key_id = caller.key.id
                return caller
        self._key_id = 0
        raise problem or InternalError(f"The account {name!r} has no key")

    async def _create(self, services: Services, name: str) -> list[Caller]:
        with suppress(Conflict):  # an account without keys
            await services.auth.accounts.add_account({"name": name})
        await services.auth.accounts.add_key({"account": name, "name": KEY_NAME})
        return services.auth.api_keys.find_callers(name)


class ShadowRequest:
    """One copy; implements ``proxy.active_requests.ActiveRequest``. ``route``: the name of the route."""

    address = None

    def __init__(self, services: Services, caller: Caller, inference: InferenceRequest, route: str) -> None:
        self._services = services
        self._loop = asyncio.get_running_loop()
        self.context = context = RequestContext(make_request_id())
        context.caller = caller
        context.operation = inference.operation
        context.inference = inference
        context.shadow_route = route
        context.started_ms = int(services.clock() * 1000)
        context.started_at = self._loop.time()
        context.read_at = monotonic()

    def handle_disconnect(self) -> bool:
        return False

    def cancel(self) -> bool:
        return self._services.proxy.cancel(self.context)

    async def run(self) -> None:
        """Send the copy and settle it, however it ends."""
        self._services.active_requests.calls[self.context.id] = self
        try:
            await self._send()
        except GatewayError as fault:
            self._settle(find_outcome(fault), fault)
        except asyncio.CancelledError:
            self._settle("interrupted")
            raise
        except Exception:
            log.exception("request_failed", request_id=self.context.id)
            self._settle("failed", InternalError("Unexpected gateway error"))

    async def _send(self) -> None:
        context, services = self.context, self._services
        current = services.routing.router
        parts = current.catalog, current.load_balancer, current.pricing
        plain_router = Router(*parts, models=current.models, routes={})  # a shadow model may have the name of a route
        context.target_list = targets = plain_router.route(context.caller, context.inference)
        targets.limit_attempts(1)
        targets.leave_room()
        targets.end_wait()  # a copy waits in no queue
        await services.billing.quota.admit(context, targets.rank())
        if context.inference.stream:
            await forward.stream(services.proxy, context, DiscardedStream(), settle=self._settle_stream)
            return
        await forward.fetch(services.proxy, context)
        context.first_byte_at = self._loop.time()
        self._settle("completed")

    def _settle_stream(self, error: GatewayError | None) -> None:
        self._settle("completed" if error is None else find_outcome(error), error)

    def _settle(self, outcome: Outcome, error: GatewayError | None = None) -> None:
        context, services = self.context, self._services
        services.active_requests.calls.pop(context.id, None)
        now, now_ms = self._loop.time(), int(services.clock() * 1000)
        services.billing.settlement.settle(context, outcome, error, now_s=now, now_ms=now_ms)
        close_loan(context)


def _may_copy(ctx: RequestContext) -> bool:
    """Return whether another provider can answer the same request, with all that it needs.

    Content that the gateway has loaded for the caller counts in the caller's memory, which ends with its request.
    """
    inference = ctx.inference
    conversation = OPERATIONS[inference.operation].conversation or inference.operation == "completions"
    bound = bool(inference.channel or inference.foreign or inference.continues or inference.compaction)
    return conversation and not bound and not inference.files and not inference.makes_media and ctx.loan is None


def _copy(inference: InferenceRequest, model: str) -> InferenceRequest:
    """Return the request for another model, of which no provider and no gateway keeps anything."""
    body = inference.body
    if inference.operation == _RESPONSES:
        body = {name: value for name, value in body.items() if name != "background"} | {"store": False}
    return attrs.evolve(inference, model=model, body=body, made=[], keep=None, affinity_key=None)
