"""Room 4: a call becomes a route: who may serve it, each at what price, and who is next when one fails."""

from collections.abc import Hashable
from functools import partial

from gateway.domain.account import Caller
from gateway.domain.api_format import WIRES
from gateway.domain.capability import UNKNOWN, Capability, Problem, find_capability, find_shared_problem
from gateway.domain.inference_request import InferenceRequest, Operation
from gateway.domain.model_info import ModelInfo
from gateway.domain.price import ONE_PPM
from gateway.domain.video import VideoJob
from gateway.errors import (
    GroupNotAllowed,
    InvalidRequest,
    ModelNotAllowed,
    NotFound,
)
from gateway.providers.base import Provider
from gateway.providers.registry import PRICED_FIELDS, PROVIDERS
from gateway.routing.load_balancer import LoadBalancer
from gateway.routing.model_catalog import ModelCatalog, model_not_found
from gateway.routing.priced_fields import find_refused_variant, keep_allowed, refuse_variant
from gateway.routing.pricing_policy import PricingPolicy
from gateway.routing.route import Route
from gateway.routing.target import Target
from gateway.routing.unsupported_operation import refuse_operation

_DESCRIBED = frozenset({"images", "image_edits", "videos", "video_remixes"})
"""What models differ in: it is looked up what they can do."""
_MOST_REMEMBERED = 4_096


class Router:
    """Finds who may serve a call, and at what price.

    Args:
        catalog: the channels and their models.
        switchboard: how the channels stand.
        tariff: what calls cost.

    Attributes:
        tariff: may be replaced; calls under way keep the prices they were routed with.
        models: what the configuration says that models can do; may be replaced too.
    """

    def __init__(self, catalog: ModelCatalog, switchboard: LoadBalancer, tariff: PricingPolicy) -> None:
        self._catalog = catalog
        self._switchboard = switchboard
        self.tariff = tariff
        self.models: tuple[Capability, ...] = ()
        self._known: dict[Hashable, list[Target]] = {}
        self._known_of = self._list_parts()

    def route(self, caller: Caller, call: InferenceRequest) -> Route:
        """Who may serve ``call``.

        Raises ``ModelNotAllowed``, ``GroupNotAllowed``, ``ModelNotFound`` where nobody serves the model,
        ``UnsupportedOperation`` where nobody serves it at this endpoint, or ``InvalidRequest`` where nobody can make of
        it what is asked for.
        """
        options = self._find_options(caller, call.model, call.operation)
        if not options:
            self._check_served(caller, call)
        if self.tariff.require_price and options:
            options = [option for option in options if option.price is not None]
            if not options:
                raise _no_price(call.model)
        if not PRICED_FIELDS.isdisjoint(call.body):
            options = keep_allowed(options, caller, call, catalog=self._catalog, tariff=self.tariff)
        if call.video is not None and call.video.remix_of is not None:
            options = _keep_original(options, call.video.remix_of)
        if call.channel:
            options = _keep_channel(options, call.channel)
        if call.image is not None or call.video is not None:
            options = _keep_able(options, call)
        if call.operation == "count_tokens":  # what nobody can count now is estimated
            now = self._switchboard.now
            account = caller.account.id
            options = [option for option in options if option.line.find_obstacle(option.place, account, now) is None]
        affinity_key = None if call.affinity_key is None else f"{caller.account.id}:{call.affinity_key}"
        return Route(options, call, self._switchboard, account=caller.account.id, affinity_key=affinity_key)

    def _find_options(self, caller: Caller, model: str, operation: Operation) -> list[Target]:
        """``list_options`` for a caller who may have them; not to be changed.

        Remembered while nothing that it is made of has been replaced. Raises what says that the caller may not.
        """
        state, lines, tariff, models = self._known_of
        if (
            state is not self._catalog.state
            or lines is not self._switchboard.lines
            or tariff is not self.tariff
            or models is not self.models
        ):
            self._known, self._known_of = {}, self._list_parts()
        key = caller.key
        place = (model, operation, key.group, key.models, caller.account.groups)
        options = self._known.get(place)
        if options is None:
            caller.check_group()
            caller.check_model(model)
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            options = self._known[place] = self.list_options(caller, model, operation)
        return options

    def _list_parts(self) -> tuple[object, object, object, object]:
        """What options are made of: other objects whenever it has changed."""
        return self._catalog.state, self._switchboard.lines, self.tariff, self.models

    def list_options(self, caller: Caller, model: str, operation: Operation) -> list[Target]:
        """Every channel that serves ``model`` to ``caller`` in a language in which ``operation`` can be said."""
        lines, wires = self._switchboard.lines, WIRES[operation]
        group_ppm = self.tariff.find_multiplier(caller.key.group)
        options = []
        for channel, sure in self._catalog.list_serving(model, caller):
            provider, theirs = PROVIDERS[channel.provider], channel.upstream_model(model)
            endpoint = provider.find_endpoint(wires, theirs)
            if endpoint is not None and find_refused_variant(channel, provider, theirs) is None:
                price = self.tariff.find_price(model, theirs, channel.provider)
                ppm = -(-channel.multiplier_ppm * group_ppm // ONE_PPM)
                able = self._find_capability(model, theirs, provider) if operation in _DESCRIBED else UNKNOWN
                other = partial(self.tariff.prices.find, provider=channel.provider) if provider.substitutes else None
                made = Target(lines[channel.name], endpoint, theirs, price, ppm, sure, able, find_price=other)
                options.append(made)
        return options

    def _find_capability(self, model: str, theirs: str, provider: Provider) -> Capability:
        """What the configuration says of a model, by the callers' name or by the provider's, over what is known."""
        known = provider.find_capability(theirs)
        said = find_capability(self.models, model, theirs)
        return said.over(known) if said else known or UNKNOWN

    def list_models(self, caller: Caller) -> list[ModelInfo]:
        """Every model and alias that this caller may use, sorted by id."""
        listed = self._catalog.list_models(caller) if caller.may_use_group else []
        if not self.tariff.require_price:
            return listed
        return [model for model in listed if self._has_price(model.id, caller)]

    def get_model(self, caller: Caller, model: str) -> ModelInfo:
        """One of ``list_models``. Raises ``ModelNotFound``."""
        for listed in self.list_models(caller):
            if listed.id == model:
                return listed
        raise model_not_found(model)

    def _has_price(self, model: str, caller: Caller) -> bool:
        return any(
            self.tariff.find_price(model, channel.upstream_model(model), channel.provider) is not None
            for channel, _ in self._catalog.list_serving(model, caller)
        )

    def _check_served(self, caller: Caller, call: InferenceRequest) -> None:
        """Why there is no option; for counting tokens, which the gateway can estimate itself, there need be none."""
        model = call.model
        if not self._catalog.list_serving(model):
            raise model_not_found(model)
        if self._catalog.list_serving(model, caller):
            if call.operation == "count_tokens" and self.list_options(caller, model, "messages"):
                if self.tariff.require_price and not self._has_price(model, caller):
                    raise _no_price(model)
                return
            serving = self._catalog.list_serving(model, caller)
            providers = [(PROVIDERS[channel.provider], channel.upstream_model(model)) for channel, _ in serving]
            for channel, _ in serving:
                theirs = channel.upstream_model(model)
                variant = find_refused_variant(channel, PROVIDERS[channel.provider], theirs)
                if variant is not None:
                    raise refuse_variant(model, variant)
            raise refuse_operation(model, call.operation, providers)
        group = caller.key.group
        whom = "API keys without a group" if group is None else f"the group {group!r} of this API key"
        raise GroupNotAllowed(f"The model {model!r} is not available to {whom}", param="model", should_retry=False)


def _keep_able(options: list[Target], call: InferenceRequest) -> list[Target]:
    """Those that can make what is asked for. Raises ``InvalidRequest``: what can be asked of none of them."""
    able, unable = [], []
    for option in options:
        problem = _find_problem(call, option.capability, fan_out=option.channel.fan_out)
        if problem is None:
            able.append(option)
        else:
            unable.append((option.capability, problem))
    shared = None if able else find_shared_problem(unable, partial(_find_problem, call))
    if shared is not None:
        param, reason = shared
        raise InvalidRequest(f"The model {call.model!r} cannot do this: {reason}", param=param)
    return able


def _find_problem(call: InferenceRequest, capability: Capability, *, fan_out: bool = False) -> Problem | None:
    if call.video is not None:
        return capability.find_video_problem(call.video)
    if call.image is not None:
        return capability.find_problem(call.image, edit=call.operation == "image_edits", fan_out=fan_out)
    return None


def _keep_channel(options: list[Target], channel: str) -> list[Target]:
    """The channel that made what the call continues: no other knows it. Raises ``NotFound`` if it is gone."""
    kept = [option for option in options if option.channel.name == channel]
    if not kept:
        raise NotFound("What this continues is gone: nobody who made it serves the model now", should_retry=False)
    return kept


def _keep_original(options: list[Target], original: VideoJob) -> list[Target]:
    """The channel that made a video: no other knows it. Raises ``InvalidRequest`` where it serves this no more."""
    kept = [
        option
        for option in options
        if option.channel.name == original.channel
        and option.channel.provider == original.provider
        and option.endpoint.wire == original.wire
    ]
    if not kept:
        raise InvalidRequest("The video cannot be made anew: nobody who made it serves its model now", param="video_id")
    return kept


def _no_price(model: str) -> ModelNotAllowed:
    return ModelNotAllowed(
        f"The model {model!r} has no price, and this gateway serves none without",
        param="model",
        should_retry=False,
    )
