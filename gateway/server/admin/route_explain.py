"""Explain routing without side effects: which channels would serve a request, why others not, prices and quotas."""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs

from gateway.billing.accounting import AccountingService
from gateway.billing.price_spec import build_price
from gateway.domain.account import Account, ApiKey, Caller
from gateway.domain.capability import Capability
from gateway.domain.channel import Channel
from gateway.domain.circuit_breaker import CircuitBreaker
from gateway.domain.image import ImageRequest
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import OPERATIONS, Operation
from gateway.domain.price import ONE_PPM, Price
from gateway.domain.route import BalanceStrategy, RequestTraits, Route, RouteStep, add_fallback
from gateway.errors import GatewayError, InvalidRequest, ModelNotFound, ModelNotPriced, NoHealthyChannel
from gateway.frozen import frozen
from gateway.providers.registry import PROVIDERS
from gateway.routing.channel_health import list_measured_models
from gateway.routing.channel_state import FAILURE_OBSTACLES, ChannelState, Obstacle
from gateway.routing.load_balancer import LoadBalancer
from gateway.routing.model_catalog import ModelCatalog
from gateway.routing.priced_fields import find_refused_variant
from gateway.routing.router import Router
from gateway.routing.selection import Candidate
from gateway.routing.target import Target
from gateway.routing.target_list import build_candidate
from gateway.server.admin.answer import build_view
from gateway.server.admin.balance_explain import NO_PROSPECT, Prospect, find_prospects
from gateway.server.admin.explanation import (
    NO_LINES,
    ChannelLines,
    ChannelOption,
    ExplainedAffinity,
    ExplainedQueue,
    ExplainedStep,
    Explanation,
    KeyName,
    PriceSummary,
    Refusal,
    Remaining,
    RemainingOfCaller,
    UnusedChannel,
)
from gateway.server.admin.step_explain import NO_PROMPT, StepWalk

Fields = dict[str, Any]

UNRESTRICTED_CALLER = Caller(Account(id=0, name=""), ApiKey(id=0, account_id=0, name="", digest=b"", last4=""))
"""A caller with no restrictions and no group."""

_REASONS_BY_OBSTACLE = {
    "cooling_down": "cooling down after failures",
    "recovering": "recovering: one request is testing it",
    "full": "at its maximum number of concurrent requests",
    "rate": "at its maximum number of requests per minute",
    "keys": "the keys of the channel are rate-limited for this model",
    "refused": "failing: the provider refused its keys",
}
_EDITS_REFUSED = "does not edit images"
_REFUSALS_OF_STEPS = (InvalidRequest, NoHealthyChannel)
_REFUSALS_BEFORE_FALLBACK = (*_REFUSALS_OF_STEPS, ModelNotFound, ModelNotPriced)
"""Errors of a model that do not refuse a request which has a fallback: the steps have their own reasons."""
_NOT_IN_STEP = "not one of the channels of the step"
_SMALLEST_IMAGE_REQUESTS: Mapping[str, ImageRequest] = {
    "images": ImageRequest(""),
    "image_edits": ImageRequest("", sources=1),
}
"""The smallest image request of each image operation."""


@frozen
class RouteExplainer:
    """Explains routing decisions, based on the router's live state.

    ``traits`` are what the steps of a route may depend on, and the length of the prompt. ``preferred_balance`` is the
    caller's wish, which precedes the balance of the settings and of steps; None without one.
    """

    catalog: ModelCatalog
    load_balancer: LoadBalancer
    router: Router
    accounting: AccountingService
    clock: Callable[[], float]
    traits: RequestTraits = NO_PROMPT
    preferred_balance: BalanceStrategy | None = None

    def explain(
        self,
        caller: Caller | None,
        model: str,
        operation: Operation,
        *,
        fallback: str | None = None,
        draft: Route | None = None,
    ) -> Explanation:
        """Explain where a request would be sent, and why not elsewhere. Without ``caller``, assume no restrictions.

        ``fallback``: the model of a last step after those of ``model``. ``draft``: a route that replaces the one of its
        name.
        """
        asking_caller = caller or UNRESTRICTED_CALLER
        route = self.router.routes.get(model) if draft is None else draft
        route = route if fallback is None else add_fallback(route, model, fallback)
        channel_lines = NO_LINES if route is not None else self.list_channels(asking_caller, model, operation)
        room = None if caller is None else self._find_room(caller)
        steps = None if route is None else self._walk(asking_caller, route, operation, room)
        refusal = self._find_refusal(
            asking_caller, InferenceRequest(operation, model, {}, image=_SMALLEST_IMAGE_REQUESTS.get(operation))
        )
        is_changed = fallback is not None or draft is not None
        if steps is not None and isinstance(refusal, _REFUSALS_BEFORE_FALLBACK if is_changed else _REFUSALS_OF_STEPS):
            refusal = None  # the request without content, or now: the steps have their reasons
        served = channel_lines.served if steps is None else any(step.verdict == "first" for step in steps)
        return Explanation(
            model=model,
            operation=operation,
            key=None if caller is None else KeyName(caller.key.id, caller.key.name, caller.account.name),
            served=refusal is None and served,
            refused=None if refusal is None else Refusal(refusal.code, refusal.message),
            balance=self._find_balance(None),
            prefers=self.load_balancer.settings.allow_prefer,
            channels=channel_lines.lines,
            steps=steps,
            affinity=self._explain_affinity(asking_caller, [model] if route is None else route.models, operation),
            room=room,
        )

    def _walk(
        self, caller: Caller, route: Route, operation: Operation, room: RemainingOfCaller | None
    ) -> Sequence[ExplainedStep]:
        list_channels = partial(self.list_channels, caller, operation=operation)
        return StepWalk(list_channels, operation, self.traits, _find_left_usd(room)).explain(route)

    def _explain_affinity(self, caller: Caller, models: Sequence[str], operation: Operation) -> ExplainedAffinity:
        settings = self.load_balancer.settings
        targets = [target for model in models for target in self.router.list_options(caller, model, operation)]
        has_choice = OPERATIONS[operation].conversation and (
            len(targets) > 1 or any(len(target.state.keys) > 1 for target in targets)
        )
        return ExplainedAffinity(settings.affinity, settings.affinity_s, has_choice)

    def _find_balance(self, step: RouteStep | None) -> BalanceStrategy:
        own_balance = None if step is None else step.balance
        return self.preferred_balance or own_balance or self.load_balancer.settings.balance

    def _find_prospects(self, candidates: Sequence[Candidate[Target]], step: RouteStep | None) -> list[Prospect]:
        return find_prospects(self.load_balancer, candidates, self._find_balance(step), streams=self.traits.stream)

    def list_channels(
        self, caller: Caller, model: str, operation: Operation, step: RouteStep | None = None
    ) -> ChannelLines:
        """Return all channels with their verdicts for a model, usable ones first. Those outside ``step`` are unused."""
        targets = self.router.list_options(caller, model, operation)
        with contextlib.suppress(ModelNotPriced):  # reported as each channel's reason
            targets, all_targets = [], targets
            targets = self.router.keep_priced_targets(all_targets, caller, model, operation)
        # Exclude channels that cannot edit images; other limits are visible in the channel's capability.
        unable = {target.channel.name for target in targets if OPERATIONS[operation].edits and not _edits(target)}
        unused_reasons = dict.fromkeys(unable, _EDITS_REFUSED)
        if step is not None:
            unused_reasons |= {
                channel.name: _NOT_IN_STEP for channel in self.catalog.channels if not step.uses(channel.name)
            }
        targets = [target for target in targets if target.channel.name not in unused_reasons]
        statuses = [_ChannelStatus.of(target, caller.account.id, self.load_balancer) for target in targets]
        usable_statuses = sorted((status for status in statuses if status.obstacle is None), key=_ChannelStatus.order)
        equal_statuses = [status for status in usable_statuses if status.order()[:2] == usable_statuses[0].order()[:2]]
        candidates = [build_candidate(status.target, status.share) for status in equal_statuses]
        prospects = self._find_prospects(candidates, step)
        lines: list[ChannelOption | UnusedChannel] = [
            self._describe(status, operation, rank, prospects[rank - 1] if rank <= len(prospects) else NO_PROSPECT)
            for rank, status in enumerate(usable_statuses, 1)
        ]
        stuck_statuses = [status for status in statuses if status.obstacle is not None]
        waits_s = [status.obstacle[1] for status in stuck_statuses if status.obstacle is not None and status.may_wait]
        is_served = bool(usable_statuses or waits_s)
        is_tried = not is_served and any(status.may_insist for status in stuck_statuses)
        lines += [self._describe(status, operation, None, NO_PROSPECT, tried=is_tried) for status in stuck_statuses]
        lines += self._list_unused(caller, model, operation, targets, known_reasons=unused_reasons)
        obstacles = frozenset(status.obstacle[0] for status in stuck_statuses if status.obstacle is not None)
        wait_s = 0.0 if usable_statuses else min(waits_s, default=0.0)
        return ChannelLines(lines, targets, obstacles, served=is_served or is_tried or not targets, wait_s=wait_s)

    def _list_unused(
        self,
        caller: Caller,
        model: str,
        operation: Operation,
        targets: Iterable[Target],
        *,
        known_reasons: Mapping[str, str],
    ) -> list[UnusedChannel]:
        """Return the channels without a target, each with the reason in ``known_reasons``, else the one found here."""
        used_names = {target.channel.name for target in targets}
        serving_names = {channel.name for channel, _ in self.catalog.list_serving_channels(model)}
        return [
            _refuse(
                channel,
                known_reasons.get(channel.name)
                or self._find_reason(channel, caller, model, operation, offers=channel.name in serving_names),
            )
            for channel in self.catalog.channels
            if channel.name not in used_names
        ]

    def _find_refusal(self, caller: Caller, inference: InferenceRequest) -> GatewayError | None:
        try:
            caller.check_usable(self.clock())
            self.router.route(caller, inference)
        except GatewayError as error:
            return error
        return None

    def _describe(
        self,
        status: "_ChannelStatus",
        operation: Operation,
        rank: int | None,
        prospect: Prospect,
        *,
        tried: bool = False,
    ) -> ChannelOption:
        target, obstacle = status.target, status.obstacle
        channel, reason = target.channel, status.find_reason()
        if tried and status.may_insist:
            reason = f"{reason}; a few requests are sent all the same, because no other channel serves the model"
        return build_view(
            ChannelOption,
            channel,
            channel=channel.name,
            rank=rank,
            chance=round(prospect.chance, 3),
            score=prospect.score,
            reason=reason if target.is_certain or reason else "untested: its list of models is not known yet",
            wait_s=None if obstacle is None else round(obstacle[1], 1),
            upstream_model=target.model,
            api_format=target.endpoint.wire,
            language=target.endpoint.wire,
            translated=target.endpoint.wire != OPERATIONS[operation].formats[0],
            state=status.tripped_breakers[0].state if status.tripped_breakers else "closed",
            share=round(status.share, 2),
            running=target.state.running,
            capability=_build_capability(target.capability),
            price=None if target.price is None else build_price_summary(target.price),
            price_multiplier=target.multiplier_ppm / ONE_PPM,
            queue=_build_queue(target.state, 0.0 if obstacle is None else obstacle[1]),
            measured=[
                view
                for key in target.state.keys
                for view in list_measured_models(key, self.load_balancer.now)
                if view.model == target.model
            ],
        )

    def _find_reason(self, channel: Channel, caller: Caller, model: str, operation: Operation, *, offers: bool) -> str:
        """Return why a channel gets no request for ``model``. ``offers``: whether the channel has that model at all."""
        if not channel.serving:
            held_reason = "failing: its provider has not answered since the channel was added"
            return held_reason if channel.status == "active" else "disabled"
        if not channel.serves(caller.key.group):
            return f"allowed groups: {', '.join(channel.groups)}"
        if not offers:
            error = self.catalog.find_sync_status(channel).error if self.catalog.find_offer(channel) is None else None
            return (
                "does not offer the model" if error is None else f"failing: its list of models is not known ({error})"
            )
        upstream_model = channel.upstream_model(model)
        if PROVIDERS[channel.provider].find_endpoint(OPERATIONS[operation].formats, upstream_model) is None:
            return f"does not support {operation}"
        variant = find_refused_variant(channel, PROVIDERS[channel.provider], upstream_model)
        if variant is not None:
            return f"does not allow the variant {variant!r} (allow_fields)"
        return f'has no price for this request (billing.unpriced is "{self.router.pricing.unpriced}")'

    def _find_room(self, caller: Caller) -> RemainingOfCaller:
        return RemainingOfCaller(self._find_remaining(caller.key), self._find_remaining(caller.account))

    def _find_remaining(self, owner: ApiKey | Account) -> Remaining:
        figures = self.accounting.describe(owner)
        return Remaining(
            held_usd=figures["held_usd"],
            left_usd=figures["left_usd"],
            resets_at=figures["resets_at"],
            **attrs.asdict(owner.limits),
        )


@frozen
class _ChannelStatus:
    """The state of one channel for a request: its obstacle, and its circuit breakers that are not closed."""

    target: Target
    obstacle: tuple[Obstacle, float] | None
    tripped_breakers: list[CircuitBreaker]
    share: float
    may_insist: bool
    may_wait: bool

    @classmethod
    def of(cls, target: Target, account_id: int, load_balancer: LoadBalancer) -> "_ChannelStatus":
        """Return the current status of a target for the requests of an account.

        With ``account_id`` 0, that is an account whose requests fail there, if there is one.
        """
        state, now = target.state, load_balancer.now
        account_id = account_id or state.find_affected_account(target.endpoint_key)
        obstacle = state.find_obstacle(target.endpoint_key, account_id, now)
        may_insist = obstacle is not None and obstacle[0] in FAILURE_OBSTACLES
        return cls(
            target,
            obstacle,
            state.list_failing(target.endpoint_key, account_id),
            state.find_share(target.endpoint_key, account_id, now, load_balancer.settings.rules),
            may_insist and state.find_insisting_s(target.endpoint_key, account_id, now) is not None,
            obstacle is not None and obstacle[0] == "full" and _has_room(target, account_id, now),
        )

    @property
    def weight(self) -> float:
        return self.target.channel.weight * self.share

    def order(self) -> tuple[bool, int, float]:
        """Return the sort key: routing tries the lowest first."""
        target = self.target
        return not target.is_certain, -target.channel.priority, (target.state.running + 1) / self.weight

    def find_reason(self) -> str | None:
        if self.obstacle is None:
            return None
        if self.may_wait:
            return "at capacity: the request waits in the queue"
        reason = _REASONS_BY_OBSTACLE[self.obstacle[0]]
        breaker_reason = next((breaker.reason for breaker in self.tripped_breakers if breaker.reason), None)
        is_circuit = self.obstacle[0] in {"cooling_down", "recovering"}
        return f"{reason} ({breaker_reason})" if breaker_reason and is_circuit else reason


def _has_room(target: Target, account_id: int, now: float) -> bool:
    """Return whether a request may wait in the channel's queue.

    The queue must have room, and nothing but occupied places may keep the channel from serving the request.
    """
    state = target.state
    if state.queue is None or not state.queue.has_room(is_batch=False):
        return False
    return state.find_obstacle_beyond_places(target.endpoint_key, account_id, now) is None


def _build_queue(state: ChannelState, wait_s: float) -> ExplainedQueue | None:
    """Describe a channel's queue, in which a request would wait ``wait_s`` seconds. None without a queue."""
    queue = state.queue
    if queue is None:
        return None
    return ExplainedQueue(
        places=queue.places,
        waiting=len(queue),
        length=queue.settings.length,
        expected_wait_s=round(wait_s, 1),
        loaded_model=queue.loaded_model,
    )


def _refuse(channel: Channel, reason: str) -> UnusedChannel:
    return build_view(UnusedChannel, channel, channel=channel.name, reason=reason)


def _find_left_usd(room: RemainingOfCaller | None) -> float | None:
    """Return the dollars left to a key or to its account, whichever is less; None if neither is limited."""
    left = [] if room is None else [owner.left_usd for owner in (room.key, room.account) if owner.left_usd is not None]
    return min(left, default=None)


def _edits(target: Target) -> bool:
    """Return whether the target edits images. A target with unknown capability counts as able."""
    return target.capability.edits is not False


def _build_capability(capability: Capability) -> Fields | None:
    known_fields = {
        name: value for name, value in attrs.asdict(capability).items() if value is not None and name != "name"
    }
    return {name: list(value) if isinstance(value, tuple) else value for name, value in known_fields.items()} or None


def build_price_summary(price: Price) -> PriceSummary:
    """Return the rates of a price, without a multiplier, and the number of its tiers."""
    fields = build_price(price) | {"tiers": len(price.tiers)}
    return PriceSummary(**{field.name: fields[field.name] for field in attrs.fields(PriceSummary)})
