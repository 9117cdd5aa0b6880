"""Explain routing without side effects: channels that would serve a request, reasons of others, prices and quotas."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from gateway.billing.accounting import AccountingService
from gateway.domain.account import Account, ApiKey, Caller
from gateway.domain.capability import Capability
from gateway.domain.channel import Channel
from gateway.domain.circuit_breaker import CircuitBreaker
from gateway.domain.image import ImageRequest
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import OPERATIONS, Operation
from gateway.domain.price import NANOS_PER_USD, ONE_PPM, Price
from gateway.errors import GatewayError, ModelNotPriced
from gateway.frozen import frozen
from gateway.providers.registry import PROVIDERS
from gateway.routing.channel_state import AFTER_FAILURES, Obstacle
from gateway.routing.load_balancer import LoadBalancer
from gateway.routing.model_catalog import ModelCatalog
from gateway.routing.priced_fields import find_refused_variant
from gateway.routing.router import Router
from gateway.routing.target import Target

Fields = dict[str, Any]

UNRESTRICTED_CALLER = Caller(Account(id=0, name=""), ApiKey(id=0, account_id=0, name="", digest=b"", last4=""))
"""A caller with no restrictions and no group."""

_REASONS = {
    "cooling_down": "cooling down after failures",
    "recovering": "recovering: one request is testing it",
    "full": "at its maximum of concurrent requests",
    "rate": "at its maximum of requests per minute",
    "keys": "the provider limits the rate of its keys for this model",
    "refused": "failing: the provider refused its keys",
}
_NO_EDITS = "does not edit images"
_IMAGES: Mapping[str, ImageRequest] = {"images": ImageRequest(""), "image_edits": ImageRequest("", sources=1)}
"""The smallest image request of each image operation."""


@frozen
class RouteExplainer:
    """Explains routing decisions, based on the router's live state."""

    catalog: ModelCatalog
    load_balancer: LoadBalancer
    router: Router
    accounting: AccountingService
    clock: Callable[[], float]

    def explain(self, caller: Caller | None, model: str, operation: Operation) -> Fields:
        """Return all channels with their verdicts, usable ones first. Without ``caller``, assume no restrictions."""
        who = caller or UNRESTRICTED_CALLER
        targets = self.router.list_options(who, model, operation)
        with contextlib.suppress(ModelNotPriced):  # reported as each channel's reason
            targets, every = [], targets
            targets = self.router.keep_priced(every, who, model, operation)
        # Exclude channels that cannot edit images; other limits are visible in the channel's capability.
        unable = {target.channel.name for target in targets if OPERATIONS[operation].edits and not _edits(target)}
        targets = [target for target in targets if target.channel.name not in unable]
        statuses = [_ChannelStatus.of(target, who.account.id, self.load_balancer) for target in targets]
        usable = sorted((one for one in statuses if one.obstacle is None), key=_ChannelStatus.order)
        equals = [one for one in usable if one.order()[:2] == usable[0].order()[:2]]
        total = sum(one.weight for one in equals)
        lines = [
            self._describe(one, operation, rank, one.weight / total if one in equals else 0.0)
            for rank, one in enumerate(usable, 1)
        ]
        stuck = [one for one in statuses if one.obstacle is not None]
        tried = not usable and any(one.may_insist for one in stuck)
        lines += [self._describe(one, operation, None, 0.0, tried=tried) for one in stuck]
        taken = {target.channel.name for target in targets}
        lines += [
            _refuse(channel, _NO_EDITS if channel.name in unable else self._find_reason(channel, who, model, operation))
            for channel in self.catalog.channels
            if channel.name not in taken
        ]
        refused = self._find_refusal(who, InferenceRequest(operation, model, {}, image=_IMAGES.get(operation)))
        return {
            "model": model,
            "operation": operation,
            "key": caller and {"id": caller.key.id, "name": caller.key.name, "account": caller.account.name},
            "served": refused is None and (bool(usable) or tried or not targets),
            "refused": refused and {"code": refused.code, "message": refused.message},
            "channels": lines,
            "room": caller and self._describe_room(caller),
        }

    def _find_refusal(self, caller: Caller, inference: InferenceRequest) -> GatewayError | None:
        """Return the error that would refuse the request; None if the request would be routed."""
        try:
            caller.check_usable(self.clock())
            self.router.route(caller, inference)
        except GatewayError as error:
            return error
        return None

    def _describe(
        self, status: "_ChannelStatus", operation: Operation, rank: int | None, chance: float, *, tried: bool = False
    ) -> Fields:
        target, obstacle = status.target, status.obstacle
        channel, reason = target.channel, status.find_reason()
        if tried and status.may_insist:
            reason = f"{reason}; a few requests are sent all the same, because no other channel serves the model"
        return {
            **_name(channel),
            "rank": rank,
            "chance": round(chance, 3),
            "reason": reason if target.sure or reason else "untested: its list of models is not known yet",
            "wait_s": None if obstacle is None else round(obstacle[1], 1),
            "upstream_model": target.model,
            "api_format": target.endpoint.wire,
            "language": target.endpoint.wire,  # the field's name until 0.8
            "translated": target.endpoint.wire != OPERATIONS[operation].formats[0],
            "state": status.ill[0].state if status.ill else "closed",
            "share": round(status.share, 2),
            "running": target.state.running,
            "capability": _build_capability(target.capability),
            "price": _build_price(target.price),
            "price_multiplier": target.multiplier_ppm / ONE_PPM,
        }

    def _find_reason(self, channel: Channel, caller: Caller, model: str, operation: Operation) -> str:
        """Return the reason why routing excludes a channel."""
        if not channel.serving:
            held = "failing: its provider has not answered since the channel was added"
            return held if channel.status == "active" else "disabled"
        if not channel.serves(caller.key.group):
            return f"only for the groups {', '.join(channel.groups)}"
        serving = {serves.name for serves, _ in self.catalog.list_serving(model)}
        if channel.name not in serving:
            error = self.catalog.find_synced(channel).error if self.catalog.find_offer(channel) is None else None
            return (
                "does not offer the model" if error is None else f"failing: its list of models is not known ({error})"
            )
        theirs = channel.upstream_model(model)
        if PROVIDERS[channel.provider].find_endpoint(OPERATIONS[operation].formats, theirs) is None:
            return f"does not take {operation}"
        variant = find_refused_variant(channel, PROVIDERS[channel.provider], theirs)
        if variant is not None:
            return f"does not allow the variant {variant!r} (allow_fields)"
        return f'has no price for this (billing.unpriced is "{self.router.pricing.unpriced}")'

    def _describe_room(self, caller: Caller) -> Fields:
        owners = (("key", caller.key), ("account", caller.account))
        return {
            name: {
                **{field: value for field, value in self.accounting.describe(owner).items() if field in _ROOM},
                **attrs.asdict(owner.limits),
            }
            for name, owner in owners
        }


@frozen
class _ChannelStatus:
    """The state of one channel for a request: its obstacle, and its circuit breakers that are not closed."""

    target: Target
    obstacle: tuple[Obstacle, float] | None
    ill: list[CircuitBreaker]
    share: float
    may_insist: bool

    @classmethod
    def of(cls, target: Target, account: int, load_balancer: LoadBalancer) -> "_ChannelStatus":
        """Return the current state. Account 0 (no account) gets the state that the latest request observed."""
        state, now = target.state, load_balancer.now
        account = account or state.find_witness(target.endpoint_key)
        obstacle = state.find_obstacle(target.endpoint_key, account, now)
        may_insist = obstacle is not None and obstacle[0] in AFTER_FAILURES
        return cls(
            target,
            obstacle,
            state.list_ill(target.endpoint_key, account),
            state.find_share(target.endpoint_key, account, now, load_balancer.settings.rules),
            may_insist and state.find_insisting_s(target.endpoint_key, account, now) is not None,
        )

    @property
    def weight(self) -> float:
        return self.target.channel.weight * self.share

    def order(self) -> tuple[bool, int, float]:
        """Return the sort key: routing tries the lowest first."""
        target = self.target
        return not target.sure, -target.channel.priority, (target.state.running + 1) / self.weight

    def find_reason(self) -> str | None:
        """Return the reason why the channel would not serve now; None if it would."""
        if self.obstacle is None:
            return None
        reason = _REASONS[self.obstacle[0]]
        breaker_reason = next((breaker.reason for breaker in self.ill if breaker.reason), None)
        circuit = self.obstacle[0] in {"cooling_down", "recovering"}
        return f"{reason} ({breaker_reason})" if breaker_reason and circuit else reason


_ROOM = frozenset({"left_usd", "held_usd", "resets_at"})


def _name(channel: Channel) -> Fields:
    return {
        "channel": channel.name,
        "provider": channel.provider,
        "priority": channel.priority,
        "weight": channel.weight,
    }


def _refuse(channel: Channel, reason: str) -> Fields:
    return {**_name(channel), "rank": None, "chance": 0.0, "reason": reason}


def _edits(target: Target) -> bool:
    """Return whether the target edits images. A target with unknown capability counts as able."""
    return target.capability.edits is not False


def _find_usd(nanos: int | None) -> float | None:
    return None if nanos is None else nanos / NANOS_PER_USD


def _build_capability(able: Capability) -> Fields | None:
    """Return the known capabilities of the model; None if nothing is known."""
    known = {name: value for name, value in attrs.asdict(able).items() if value is not None and name != "name"}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in known.items()} or None


def _build_price(price: Price | None) -> Fields | None:
    """Return the price in dollars per million tokens, image, second and million characters; None without a price."""
    if price is None:
        return None
    return {
        "model": price.model,
        "input_usd_per_million": price.input_nanos_per_million / NANOS_PER_USD,
        "cached_input_usd_per_million": _find_usd(price.cached_input_nanos_per_million),
        "cache_write_usd_per_million": _find_usd(price.cache_write_nanos_per_million),
        "cache_write_long_usd_per_million": _find_usd(price.cache_write_long_nanos_per_million),
        "output_usd_per_million": price.output_nanos_per_million / NANOS_PER_USD,
        "usd_per_image": price.image_nanos / NANOS_PER_USD,
        "usd_per_second": price.second_nanos / NANOS_PER_USD,
        "usd_per_million_characters": price.character_nanos_per_million / NANOS_PER_USD,
        "audio_input_usd_per_million": _find_usd(price.audio_input_nanos_per_million),
        "cached_audio_input_usd_per_million": _find_usd(price.cached_audio_input_nanos_per_million),
        "audio_output_usd_per_million": _find_usd(price.audio_output_nanos_per_million),
        "tiers": len(price.tiers),
    }
