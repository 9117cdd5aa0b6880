"""Routing: the channels that may serve a request, each with its price, and the models that a caller may use."""

from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from gateway.deferred import defer_function
from gateway.domain.account import Caller
from gateway.domain.api_format import Wire
from gateway.domain.capability import UNKNOWN_CAPABILITY, Capability, Problem, find_capability, find_shared_problem
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.model_description import NamedDescription, find_configured_description
from gateway.domain.model_info import ModelInfo
from gateway.domain.model_limits import find_limits
from gateway.domain.operation import OPERATIONS, Operation
from gateway.domain.price import ONE_PPM
from gateway.domain.route import ROUTE_OWNER, Route
from gateway.domain.video import VideoJob
from gateway.errors import GatewayError, GroupNotAllowed, InvalidRequest, ModelNotAllowed, NotFound, ProviderError
from gateway.formats.wire.fields import PLAIN_NAMES
from gateway.providers.base import Endpoint, Provider
from gateway.providers.priced_fields import PRICED_FIELDS, check_spelling
from gateway.providers.registry import PROVIDERS
from gateway.routing.compacting_endpoint import find_compacting_target
from gateway.routing.load_balancer import LoadBalancer
from gateway.routing.losses import rate_losses
from gateway.routing.model_catalog import ModelCatalog, make_model_not_found
from gateway.routing.priced_fields import find_refused_variant, keep_allowed_targets, keep_allowing, refuse_variant
from gateway.routing.pricing_policy import PricingPolicy, pays_for
from gateway.routing.target import Target
from gateway.routing.target_list import TargetList
from gateway.routing.unsupported_operation import refuse_chat_model, refuse_operation
from gateway.wording import did_you_mean, fold_name

if TYPE_CHECKING:
    from gateway.routing.affinity import ConversationMemory
    from gateway.routing.model_describer import DescribedModel, ModelDescriber

_MEDIA_WITH_CAPABILITIES = frozenset({"image", "video"})
"""Media whose models differ in capabilities, which are therefore looked up."""
_PRICED_FIELDS_BY_FOLDED_NAME = {fold_name(name): name for name in sorted(PRICED_FIELDS)}
_MAX_CACHED_LISTS = 4_096

# Imported when a request names a route: most gateways have none.
_list_step_targets = defer_function("routing.step_list:list_step_targets")
_make_step_list = defer_function("routing.step_list:make_step_list")
_make_memory = defer_function("routing.affinity:ConversationMemory")
_keep_conversation = defer_function("routing.affinity:keep_conversation")
# Imported when a client asks for models.
_make_source = defer_function("routing.model_describer:DescriptionSource")
_make_describer = defer_function("routing.model_describer:ModelDescriber")
_check_route_served = defer_function("routing.step_list:check_route_served")


class Router:
    """Finds the channels for a request with their prices, and lists the models that a caller may use.

    A running request keeps its prices if they are replaced.
    """

    def __init__(
        self,
        catalog: ModelCatalog,
        load_balancer: LoadBalancer,
        pricing: PricingPolicy,
        *,
        models: tuple[Capability, ...],
        routes: Mapping[str, Route],
        descriptions: tuple[NamedDescription, ...] = (),
    ) -> None:
        self.catalog = catalog
        self.load_balancer = load_balancer
        self.pricing = pricing
        self.models = models
        self.routes = routes
        self.descriptions = descriptions
        self._describer: ModelDescriber | None = None
        self._conversations: ConversationMemory | None = None
        self._cached_targets: dict[Hashable, list[Target]] = {}
        self._cache_sources = self._list_parts()

    def route(self, caller: Caller, inference: InferenceRequest) -> TargetList:
        """Return the targets of a request.

        Raises:
            ModelNotAllowed, GroupNotAllowed: the caller may not use the model.
            ModelNotPriced: the model has no price at any channel, and the caller may only use priced models.
            ModelNotFound: no channel serves the model.
            UnsupportedOperation: no channel serves the model at this endpoint.
            InvalidRequest: no channel can do, or allows, what the request asks for; or a field is misspelt.
            NotFound: the request contains an id of something stored at a provider, and no channel allows such ids; or
                the channel of the continued response no longer serves the model.
        """
        targets = options = self._find_options(caller, inference.model, inference.operation)
        if not options:
            self._check_served(caller, inference)
        if not inference.plain or inference.channel:  # a plain chat asks for nothing that a channel could lack
            targets = self._keep_serving(targets, caller, inference)
        targets, graded = rate_losses(targets, inference) if len(targets) > 1 else (targets, False)
        state = inference, self.load_balancer
        account_id, session = caller.account.id, inference.affinity_key
        affinity_key = None if session is None or state[1].settings.affinity == "off" else f"{account_id}:{session}"
        place = options[0].place if options else None
        if place is not None:
            step_arguments = {"route": place.route, "options": options, "affinity_key": affinity_key, "graded": graded}
            steps: TargetList = _make_step_list(targets, *state, account_id=account_id, **step_arguments)
            return steps
        return TargetList(targets, *state, account_id=account_id, affinity_key=affinity_key, graded=graded)

    def _keep_serving(self, targets: list[Target], caller: Caller, inference: InferenceRequest) -> list[Target]:
        """Keep the channels that can and may do what the request asks for. Raises errors as ``route``."""
        if inference.compaction:
            targets = [able for target in targets if (able := find_compacting_target(target, inference)) is not None]
        if not inference.body.keys() <= PLAIN_NAMES:
            check_spelling(inference.body, _PRICED_FIELDS_BY_FOLDED_NAME)
        if inference.features or inference.operation == "responses" or not PRICED_FIELDS.isdisjoint(inference.body):
            targets = keep_allowed_targets(targets, caller, inference, catalog=self.catalog, pricing=self.pricing)
        if inference.channel:
            targets = _keep_channel(targets, inference.channel)
        if inference.foreign_objects:
            targets = keep_allowing(targets, inference.foreign_objects)
        if inference.image is not None or inference.video is not None:
            targets = _keep_able_targets(targets, inference)
        if OPERATIONS[inference.operation].counts_only:
            targets = self._keep_available(targets, caller)
        return targets

    def find_route_name(self, model: str) -> str:
        """Return ``model`` if it is the name of a route, else an empty text."""
        return model if model in self.routes else ""

    def keep_conversation(self, targets: TargetList, inference: InferenceRequest, headers: Mapping[str, str]) -> None:
        """Prefer the target that answered the request's conversation last; see ``affinity.py``."""
        if self._conversations is None:
            self._conversations = _make_memory()
        _keep_conversation(self._conversations, targets, inference, headers)

    def _keep_available(self, targets: list[Target], caller: Caller) -> list[Target]:
        """Keep the channels that could count tokens now. Without one the gateway estimates."""
        now_s, account_id = self.load_balancer.now, caller.account.id
        return [
            target for target in targets if target.state.find_obstacle(target.endpoint_key, account_id, now_s) is None
        ]

    def explain(
        self, error: ProviderError, caller: Caller, inference: InferenceRequest, target: Target
    ) -> GatewayError:
        """Return the error for a request whose path the provider lacks.

        If the model is probably a chat model, the error names models for this operation; otherwise ``error`` itself is
        returned.
        """
        models = (
            model_info.id
            for model_info in self.list_models(caller)
            if self.list_options(caller, model_info.id, inference.operation)
        )
        return refuse_chat_model(inference.model, inference.operation, target.price, models) or error

    def _find_options(self, caller: Caller, model: str, operation: Operation) -> list[Target]:
        """Return the targets that a caller may use. The list is cached and must not be changed.

        Raises ``GroupNotAllowed``, ``ModelNotAllowed``, ``ModelNotPriced``.
        """
        state, channels, pricing, models, routes, descriptions = self._cache_sources
        if (
            state is not self.catalog.state
            or channels is not self.load_balancer.channels
            or pricing is not self.pricing
            or models is not self.models
            or routes is not self.routes
            or descriptions is not self.descriptions
        ):
            self._cached_targets, self._cache_sources = {}, self._list_parts()
        key = caller.key
        limited = caller.capped or (self.pricing.limited_keys is not None and self.pricing.is_limited(key.name))
        cache_key = (model, operation, key.group, key.models, caller.account.groups, limited)
        targets = self._cached_targets.get(cache_key)
        if targets is None:
            caller.check_group()
            self._check_allowed(caller, model)
            if len(self._cached_targets) >= _MAX_CACHED_LISTS:
                self._cached_targets.clear()
            if model in self.routes:
                targets = _list_step_targets(self, self.routes[model], caller, operation)
            else:
                targets = self.keep_priced_targets(
                    self.list_options(caller, model, operation), caller, model, operation
                )
            self._cached_targets[cache_key] = targets
        return targets

    def _check_allowed(self, caller: Caller, model: str) -> None:
        try:
            caller.check_model(model)
        except ModelNotAllowed as error:
            error.message += did_you_mean(model, (model_info.id for model_info in self.list_models(caller)))
            raise

    def keep_priced_targets(
        self, targets: list[Target], caller: Caller, model: str, operation: Operation
    ) -> list[Target]:
        """Keep the channels at which ``caller`` may use the model: those with a price, if the caller needs one.

        Counting tokens is free, so it needs a price only if every unpriced model is refused. Raises ``ModelNotPriced``
        if the caller needs a price and no channel has one.
        """
        is_free_count = OPERATIONS[operation].counts_only and self.pricing.unpriced != "refuse"
        if is_free_count or not self.pricing.refuses_unpriced(caller):
            return targets
        priced_targets = [target for target in targets if not target.unpriced]
        if targets and not priced_targets:
            self.pricing.check_priced(caller, model)
        return priced_targets

    def _list_parts(self) -> tuple[object, ...]:
        """Return the objects that the targets depend on. Each is replaced, never changed in place."""
        parts = self.catalog.state, self.load_balancer.channels, self.pricing
        return *parts, self.models, self.routes, self.descriptions

    def list_options(self, caller: Caller, model: str, operation: Operation) -> list[Target]:
        """List every channel that serves ``model`` to ``caller`` in an API format that supports ``operation``.

        Channels that do not allow the variant in the model's name are left out.
        """
        channels, facts = self.load_balancer.channels, OPERATIONS[operation]
        needs_capability = facts.media in _MEDIA_WITH_CAPABILITIES
        group_ppm = self.pricing.find_multiplier(caller.key.group)
        options = []
        for channel, is_certain in self.catalog.list_serving_channels(model, caller):
            provider, upstream_model = PROVIDERS[channel.provider], channel.upstream_model(model)
            endpoint = _find_endpoint(provider, facts.formats, upstream_model, channels[channel.name].missing)
            if endpoint is not None and find_refused_variant(channel, provider, upstream_model) is None:
                price = self.pricing.find_price(model, upstream_model, channel.provider)
                ppm = -(-channel.multiplier_ppm * group_ppm // ONE_PPM)
                capability = (
                    self.find_capability(model, upstream_model, provider) if needs_capability else UNKNOWN_CAPABILITY
                )
                find_other_price = (
                    partial(self.pricing.prices.find, provider=channel.provider) if provider.substitutes else None
                )
                unpriced = not pays_for(price, operation)
                target = Target(
                    *(channels[channel.name], endpoint, upstream_model, price, ppm, is_certain, capability, unpriced),
                    find_price=find_other_price,
                    reports_cost=provider.reports_cost,
                    limits=find_limits(
                        upstream_model, find_configured_description(self.descriptions, model, upstream_model)
                    ),
                )
                options.append(target)
        return options

    def find_capability(self, model: str, upstream_model: str, provider: Provider) -> Capability:
        built_in = provider.find_capability(upstream_model)
        configured = find_capability(self.models, model, upstream_model)
        return configured.fill_from(built_in) if configured else built_in or UNKNOWN_CAPABILITY

    def list_models(self, caller: Caller) -> list[ModelInfo]:
        """Return the models, aliases and routes that a caller may use, sorted by id."""
        models = self.catalog.list_models(caller) if caller.may_use_group else []
        if self.routes:
            models = self._add_routes(models, caller)
        if not self.pricing.refuses_unpriced(caller):
            return models
        return [model for model in models if self._has_price(model.id, caller)]

    def _add_routes(self, models_without_routes: list[ModelInfo], caller: Caller) -> list[ModelInfo]:
        """Add the routes, which hide models of the same name. A route is as old as its newest model."""
        models = {model.id: model for model in models_without_routes}
        routes = [route for route in self.routes.values() if caller.may_use(route.name)]
        for route in routes:
            ages = [models[name].created_s for name in route.models if name in models]
            models[route.name] = ModelInfo(route.name, max(ages, default=0), ROUTE_OWNER)
        return [models[name] for name in sorted(models)]

    def get_model(self, caller: Caller, model: str) -> ModelInfo:
        """Return one model of ``list_models`` by id. Raises ``ModelNotFound``."""
        for model_info in self.list_models(caller):
            if model_info.id == model:
                return model_info
        raise make_model_not_found(model, self.list_models(caller))

    async def describe_models(self, caller: Caller, models: Sequence[ModelInfo]) -> "list[DescribedModel]":
        """Return ``models``, which ``caller`` may use, with what they can do and what they cost."""
        return await self.find_describer().describe_all(caller, models)

    def find_describer(self) -> "ModelDescriber":
        """Return the describer of models, with the settings in force."""
        source = _make_source(self.pricing, self.routes, self.descriptions)
        if self._describer is None:
            self._describer = _make_describer(self.catalog, source)
        self._describer.use(source)
        return self._describer

    def may_be_free(self, caller: Caller) -> bool:
        """Return whether any request of ``caller`` may cost nothing."""
        return self.pricing.may_be_free(caller, frozenset(channel.provider for channel in self.catalog.channels))

    def _has_price(self, model: str, caller: Caller) -> bool:
        if (route := self.routes.get(model)) is not None:
            return any(self._has_listed_price(name, caller) for name in route.models)
        return self._has_listed_price(model, caller)

    def _has_listed_price(self, model: str, caller: Caller) -> bool:
        return any(
            self.pricing.find_price(model, channel.upstream_model(model), channel.provider) is not None
            for channel, _ in self.catalog.list_serving_channels(model, caller)
        )

    def _check_served(self, caller: Caller, inference: InferenceRequest) -> None:
        """Raise the error for a request that no channel serves, unless the gateway can estimate a token count."""
        if (route := self.routes.get(inference.model)) is not None:
            _check_route_served(self, route, caller, inference)
        else:
            self.check_model_served(caller, inference)

    def check_model_served(self, caller: Caller, inference: InferenceRequest) -> None:
        """Raise the error for a model, not a route, that no channel serves, as ``route`` does.

        No error is raised if the gateway can estimate the requested token count.
        """
        model = inference.model
        if not self.catalog.list_serving_channels(model):
            raise make_model_not_found(model, self.list_models(caller))
        if self.catalog.list_serving_channels(model, caller):
            if OPERATIONS[inference.operation].counts_only and self.list_options(caller, model, "messages"):
                if self.pricing.unpriced == "refuse" and not self._has_price(model, caller):
                    self.pricing.check_priced(caller, model)
                return
            serving_channels = self.catalog.list_serving_channels(model, caller)
            providers = [
                (PROVIDERS[channel.provider], channel.upstream_model(model)) for channel, _ in serving_channels
            ]
            for channel, _ in serving_channels:
                upstream_model = channel.upstream_model(model)
                variant = find_refused_variant(channel, PROVIDERS[channel.provider], upstream_model)
                if variant is not None:
                    raise refuse_variant(model, variant)
            raise refuse_operation(model, inference.operation, providers)
        group = caller.key.group
        keys_text = "API keys without a group" if group is None else f"the group {group!r} of this API key"
        raise GroupNotAllowed(f"The model {model!r} is not available to {keys_text}", param="model", should_retry=False)


def _find_endpoint(
    provider: Provider, wires: tuple[Wire, ...], model: str, missing: frozenset[Wire]
) -> Endpoint | None:
    if missing:
        wires = tuple(wire for wire in wires if wire not in missing)
    return provider.find_endpoint(wires, model)


def _keep_able_targets(targets: list[Target], inference: InferenceRequest) -> list[Target]:
    """Keep the channels that can serve the request as it is. Raises ``InvalidRequest`` if none of them can."""
    if inference.video is not None and inference.video.remix_of is not None:
        targets = _keep_original(targets, inference.video.remix_of)
    able_targets, refused_targets = [], []
    for target in targets:
        problem = _find_problem(inference, target.capability, fan_out=target.channel.fan_out)
        if problem is None:
            able_targets.append(target)
        else:
            refused_targets.append((target.capability, problem))
    shared_problem = None if able_targets else find_shared_problem(refused_targets, partial(_find_problem, inference))
    if shared_problem is not None:
        param, reason = shared_problem
        raise InvalidRequest(f"The model {inference.model!r} cannot do this: {reason}", param=param)
    return able_targets


def _find_problem(inference: InferenceRequest, capability: Capability, *, fan_out: bool = False) -> Problem | None:
    if inference.video is not None:
        return capability.find_video_problem(inference.video)
    if inference.image is not None:
        return capability.find_problem(inference.image, edit=OPERATIONS[inference.operation].edits, fan_out=fan_out)
    return None


def _keep_channel(targets: list[Target], channel: str) -> list[Target]:
    """Keep the channel of the response that the request continues. Raises ``NotFound`` if it is gone."""
    channel_targets = [target for target in targets if target.channel.name == channel]
    if not channel_targets:
        raise NotFound("The channel that made the continued response no longer serves the model", should_retry=False)
    return channel_targets


def _keep_original(targets: list[Target], original: VideoJob) -> list[Target]:
    """Keep the original video's channel, with its own model if possible. Raises ``InvalidRequest`` if it is gone."""
    original_targets = [
        target
        for target in targets
        if target.channel.name == original.channel
        and target.channel.provider == original.provider
        and target.endpoint.wire == original.wire
    ]
    original_targets = [
        target for target in original_targets if target.model == original.upstream_model
    ] or original_targets
    if not original_targets:
        raise InvalidRequest("The video cannot be made anew: nobody who made it serves its model now", param="video_id")
    return original_targets
