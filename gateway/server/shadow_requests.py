"""Copies of a route's requests for a shadow model. Their answers are compared with those of callers, and dropped.

A copy is sent once its request is answered completely, with its own account, reservation and row. It has one attempt,
and uses only spare places of channels. No request waits for it, but a shutdown does.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from weakref import WeakSet

import attrs
import structlog

from gateway.domain.account import Caller
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import OPERATIONS, Operation
from gateway.domain.route import Route, StepPlace
from gateway.errors import Conflict, GatewayError, InternalError
from gateway.proxy import forward
from gateway.request_context import CopyOrigin, RequestContext
from gateway.routing.router import Router
from gateway.server.context import Services
from gateway.server.internal_request import DiscardedStream, InternalRequest
from gateway.server.sampled_answer import SampledAnswer

KEY_NAME = "shadow"
"""The name of the key that is made for the account which pays for copies."""
_RESPONSES = "responses"

log = structlog.stdlib.get_logger(__name__)


class ShadowRequests:
    """Sends copies to shadow models. ``rng`` returns a random number from 0 to below 1."""

    def __init__(self, rng: Callable[[], float] = random.random) -> None:
        self.rng = rng
        self._samples: WeakSet[SampledAnswer] = WeakSet()
        self._running_counts: dict[tuple[str, int], int] = {}
        self._key_id = 0
        self._creation_lock = asyncio.Lock()
        self._problem = ""

    def draw(self, route: Route, operation: Operation) -> SampledAnswer | None:
        """Draw whether a request is copied. Return the sample that will hold its answer; None if no step copies it."""
        if not _is_copied(operation):
            return None
        draw = self.rng()
        shares = [step.shadow.share for step in route.steps if step.shadow is not None]
        return SampledAnswer(draw, self._samples) if draw < max(shares, default=0) else None

    def start(self, services: Services, ctx: RequestContext, place: StepPlace, sample: SampledAnswer) -> None:
        """Copy an answered request to a shadow model if it was drawn and may be copied, unless ``max_running`` run."""
        shadow = place.route.steps[place.step].shadow
        if shadow is None or sample.draw >= shadow.share or not services.drain.open or not _may_copy(ctx):
            return
        step = place.route.name, place.step
        running_count = self._running_counts.get(step, 0)
        if running_count >= shadow.max_running:
            return
        self._running_counts[step] = running_count + 1
        model = shadow.models[int(self.rng() * len(shadow.models))]
        services.drain.active_count += 1
        services.background.start(self._run(services, _copy(ctx.inference, model), step, sample))

    async def _run(
        self, services: Services, inference: InferenceRequest, step: tuple[str, int], sample: SampledAnswer
    ) -> None:
        try:
            caller = await self._find_caller(services)
            self._problem = ""
            await ShadowRequest(services, caller, inference, step[0], sample).run()
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

        Raises ``GatewayError`` if no key can be used, or none can be made.
        """
        api_keys, name = services.auth.api_keys, services.live_config.effective.config.routing.shadow_account
        known_caller = api_keys.find_caller(self._key_id)
        callers = (
            [known_caller]
            if known_caller is not None and known_caller.account.name == name
            else api_keys.find_callers(name)
        )
        if not callers:
            async with self._creation_lock:
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


class ShadowRequest(InternalRequest):
    """One copy. ``route``: the name of the route. ``answer``: that of the copied request."""

    def __init__(
        self, services: Services, caller: Caller, inference: InferenceRequest, route: str, answer: SampledAnswer
    ) -> None:
        super().__init__(services, caller, inference, CopyOrigin(shadow_route=route))
        self._answer = answer

    async def send(self) -> None:
        context, services = self.context, self.services
        current = services.routing.router
        parts = current.catalog, current.load_balancer, current.pricing
        plain_router = Router(*parts, models=current.models, routes={})  # a shadow model may have the name of a route
        context.target_list = targets = plain_router.route(context.caller, context.inference)
        targets.limit_attempts(1)
        targets.leave_room()
        targets.end_wait()  # a copy waits in no queue
        await services.billing.quota.admit(context, targets.rank())
        sample = SampledAnswer(0, WeakSet())
        if context.inference.stream:
            stream = sample.wrap(DiscardedStream())
            # Settled after the end mark, which no client waits for: only then is the answer whole.
            error = await forward.stream(services.proxy, context, stream, settle=self._note_end)
        else:
            answer, error = await forward.fetch(services.proxy, context), None
            sample.note_answer(answer.body, answer.media_type)
            self._note_end(None)
        try:
            if error is None:
                await self._note_agreement(sample)
        finally:  # the answer has arrived whole: neither a shutdown nor an error of the comparison makes it less
            self.settle_stream(error)

    def _note_end(self, error: GatewayError | None) -> None:
        self.ended_at = self._loop.time()
        if error is None and not self.context.inference.stream:
            self.context.first_byte_at = self.ended_at

    async def _note_agreement(self, sample: SampledAnswer) -> None:
        try:
            agreement = await self._answer.compare(sample)
        except Exception:
            log.exception("answers_not_compared", request_id=self.context.id)
            return
        if agreement is not None:
            self.context.copied_from = attrs.evolve(
                self.context.copied_from, agreement_ppm=agreement.words_ppm, agreed_on=",".join(agreement.parts)
            )


def _is_copied(operation: Operation) -> bool:
    return OPERATIONS[operation].conversation or operation == "completions"


def _may_copy(ctx: RequestContext) -> bool:
    """Return whether any provider can answer the request from its body alone: no files, no objects at a provider.

    A request with content that the gateway has loaded is not copied: the memory borrowed for that content is given back
    when the request ends.
    """
    inference = ctx.inference
    bound = bool(inference.channel or inference.foreign_objects or inference.continues or inference.compaction)
    is_whole = not bound and not inference.files and not inference.makes_media and ctx.loan is None
    return is_whole and _is_copied(inference.operation)


def _copy(inference: InferenceRequest, model: str) -> InferenceRequest:
    """Return the request for another model, of which no provider and no gateway keeps anything."""
    body = inference.body
    if inference.operation == _RESPONSES:
        body = {name: value for name, value in body.items() if name != "background"} | {"store": False}
    return attrs.evolve(inference, model=model, body=body, made=[], keep=None, affinity_key=None)
