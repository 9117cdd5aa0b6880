"""Admin API: models and routes, what they can do, and their prices."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

import attrs

from gateway.domain.model_description import (
    FEATURES,
    KINDS,
    MODALITIES,
    Feature,
    Modality,
    ModelKind,
    find_common,
    list_known_properties,
)
from gateway.domain.route import ROUTE_OWNER
from gateway.errors import InvalidRequest
from gateway.frozen import frozen
from gateway.routing.model_describer import ModelDescriber
from gateway.routing.model_offers import Offer, RouteOffer, list_offers, list_route_offers
from gateway.routing.request_options import find_request_options
from gateway.routing.router import Router
from gateway.server.admin.answer import build_view
from gateway.server.admin.handler import AdminRequest, ListPage, Query, admin_operation
from gateway.server.admin.listing import Listing
from gateway.server.admin.settings import PriceAnswer, build_price_fields
from gateway.server.openapi import schema as s
from gateway.server.query import parse_number


@frozen(kw_only=True)
class ModelOptions:
    """What requests for a model can ask for. Lists of values are null as far as they are not known.

    Attributes:
        voices: suggestions; a provider's account may have others. Empty: the model itself is a voice.
        max_images: how many images one request can ask for.
        references: whether a video may start from an image.
        ignored_parameters: parameters of a chat that do not reach any provider.
        ignored_while_reasoning: further parameters that reach no provider in a request with a reasoning effort.
    """

    sizes: Sequence[str] | None
    seconds: Sequence[int] | None
    voices: Sequence[str] | None
    max_images: int | None
    edits: bool | None
    masks: bool | None
    references: bool | None
    ignored_parameters: Sequence[str]
    ignored_while_reasoning: Sequence[str]


@frozen(kw_only=True)
class ModelView:
    """A model that requests can name, or with ``route`` a route. Only a model asked for by name has ``options``."""

    id: str
    owned_by: str
    created: int
    channels: Sequence[str]
    price: PriceAnswer | None
    kind: ModelKind | None = None
    context_window: int | None = None
    max_output_tokens: int | None = None
    input_modalities: Sequence[Modality] | None = None
    output_modalities: Sequence[Modality] | None = None
    features: Sequence[Feature] | None = None
    deprecated_at: str | None = None
    route: bool = False
    options: ModelOptions | None = None


_LISTING = Listing[ModelView](
    find_id=lambda model: model.id,
    find_texts=lambda model: (model.id,),
    sort_keys={
        "id": lambda model: model.id,
        "kind": lambda model: model.kind,
        "context_window": lambda model: model.context_window,
    },
    searched_fields="the model's name",
)
_FILTERS: Mapping[str, Callable[[ModelView, str], bool]] = {
    "price": lambda model, wanted: (model.price is None) == (wanted == "none"),
    "kind": lambda model, kind: model.kind == kind,
    "modality": lambda model, modality: modality in {*(model.input_modalities or ()), *(model.output_modalities or ())},
    "feature": lambda model, feature: feature in (model.features or ()),
}
_FILTER_QUERY = (
    Query("price", "`none`: only models without a price; `set`: only models with one.", s.one_of("none", "set")),
    Query("kind", "Only models that are known to be of this kind.", s.one_of(*KINDS)),
    Query("modality", "Only models that are known to read or make this.", s.one_of(*MODALITIES)),
    Query("feature", "Only models that are known to have this feature.", s.one_of(*FEATURES)),
    Query("name", "Only the model of exactly this name, with its `options`: what requests for it can ask for."),
    Query("context", "Only models with at least this context window, in tokens.", s.COUNT),
)


@admin_operation(query=(*_FILTER_QUERY, *_LISTING.query))
async def list_models(request: AdminRequest) -> ListPage[ModelView]:
    """List models and routes; for a member those that a key of its account can call.

    `channels` are the channels that serve the model, best first; only administrators see them. `price` is the price at
    the first of them that has one, with its multiplier and, for a member, the multiplier of the account's first group;
    null: the model has no price, and `billing.unpriced` says who may use it. What the model can do is null as far as it
    is not known.

    A route hides a model of its name. It has the channels of all its steps, the price of the first of its models that
    has one, and the properties that hold for each of them. Its `options` are those that one of its models has.
    """
    asked_name = request.query.get("name")
    views, model_offers = _build_views(request, None if asked_name is None else {asked_name})
    if asked_name in views:  # the first look-up of a model writes some twenty requests
        options = await asyncio.to_thread(_build_options, request.services.routing.router, model_offers[asked_name])
        views[asked_name] = attrs.evolve(views[asked_name], options=options)
    return _LISTING.list_page(request, _filter(request, [views[name] for name in sorted(views)]))


def describe_models(request: AdminRequest, names: Collection[str]) -> Mapping[str, ModelView]:
    """Return the models and routes in ``names`` that ``GET /models`` lists, by name and without options."""
    return _build_views(request, names)[0]


def _build_views(
    request: AdminRequest, names: Collection[str] | None
) -> tuple[dict[str, ModelView], Mapping[str, Sequence[Offer]]]:
    """Return the models and routes that the actor may see, and their offers, by name; all, or those of ``names``."""
    services, is_operator = request.services, request.actor.scope is None
    router = services.routing.router
    describer = router.find_describer()
    routes = [route for route in router.routes.values() if names is None or route.name in names]
    of_routes = {share.model for route in routes for step in route.steps for share in step.models}
    account = None if is_operator else request.user.account
    offers = list_offers(
        services.routing.catalog, router.pricing, account, None if names is None else of_routes.union(names)
    )
    model_offers: dict[str, Sequence[Offer]] = {
        offer.listed.id: [offer] for offer in offers if names is None or offer.listed.id in names
    }
    views = {
        name: _build_model_view(offer, describer, shows_channels=is_operator) for name, (offer,) in model_offers.items()
    }
    for route_offer in list_route_offers(routes, offers):
        name = route_offer.route.name
        views[name] = _build_route_view(route_offer, describer, shows_channels=is_operator)
        model_offers[name] = route_offer.offers
    return views, model_offers


def _build_options(router: Router, offers: Sequence[Offer]) -> ModelOptions:
    options = find_request_options(router, [(offer.listed.id, offer.channels) for offer in offers])
    return build_view(
        ModelOptions,
        options.capability,
        max_images=options.capability.max_n,
        ignored_parameters=options.ignored,
        ignored_while_reasoning=options.ignored_while_reasoning,
    )


def _filter(request: AdminRequest, models: Sequence[ModelView]) -> list[ModelView]:
    """Return the models that pass the filters in the query. Raises ``InvalidRequest``."""
    query, min_context = request.query, parse_number(request.query, "context") or 0
    for parameter in _FILTER_QUERY:
        choices = parameter.schema.get("enum", ())
        if choices and parameter.name in query and query[parameter.name] not in choices:
            raise InvalidRequest(f"'{parameter.name}' must be one of {', '.join(choices)}", param=parameter.name)
    wanted_fields = {name: query[name] for name in _FILTERS if name in query}
    return [
        model
        for model in models
        if (model.context_window or 0) >= min_context
        and all(_FILTERS[name](model, value) for name, value in wanted_fields.items())
    ]


def _build_model_view(offer: Offer, describer: ModelDescriber, *, shows_channels: bool) -> ModelView:
    return ModelView(
        id=offer.listed.id,
        owned_by=offer.listed.owned_by,
        created=offer.listed.created_s,
        channels=[channel.name for channel in offer.channels] if shows_channels else [],
        price=_build_price(offer),
        **list_known_properties(describer.describe_offer(offer.listed.id, offer.channels)),
    )


def _build_route_view(route_offer: RouteOffer, describer: ModelDescriber, *, shows_channels: bool) -> ModelView:
    offers = route_offer.offers
    descriptions = [describer.describe_offer(offer.listed.id, offer.channels) for offer in offers]
    names = dict.fromkeys(channel.name for offer in offers for channel in offer.channels)
    return ModelView(
        id=route_offer.route.name,
        owned_by=ROUTE_OWNER,
        created=max(offer.listed.created_s for offer in offers),
        channels=list(names) if shows_channels else [],
        price=next((_build_price(offer) for offer in offers if offer.price is not None), None),
        route=True,
        **list_known_properties(find_common(descriptions, complete=True)),
    )


def _build_price(offer: Offer) -> PriceAnswer | None:
    return None if offer.price is None else PriceAnswer(**build_price_fields(offer.price, offer.multiplier_ppm))
