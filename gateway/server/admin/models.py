"""Admin API: models and their prices."""

from collections.abc import Sequence

from gateway.domain.model_description import Feature, Modality, ModelKind, find_common, list_known_properties
from gateway.domain.route import ROUTE_OWNER
from gateway.frozen import frozen
from gateway.routing.model_describer import ModelDescriber
from gateway.routing.model_offers import Offer, RouteOffer, list_offers, list_route_offers
from gateway.server.admin.handler import AdminRequest, admin_operation
from gateway.server.admin.settings import PriceAnswer, build_price_fields


@frozen(kw_only=True)
class ModelView:
    """A model that requests can name, or with ``route`` a route."""

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


@admin_operation()
async def list_models(request: AdminRequest) -> list[ModelView]:
    """List models and routes; for a member those that a key of its account can call.

    `channels` are the channels that serve the model, best first; only administrators see them. `price` is the price at
    the first of them that has one, with its multiplier and, for a member, the multiplier of the account's first group;
    null: the model has no price, and `billing.unpriced` says who may use it. What the model can do is null as far as it
    is not known.

    A route hides a model of its name. It has the channels of all its steps, the price of the first of its models that
    has one, and the properties that hold for each of them.
    """
    services, is_operator = request.services, request.actor.scope is None
    account = None if is_operator else request.user.account
    router = services.routing.router
    describer = router.find_describer()
    offers = list_offers(services.routing.catalog, router.pricing, account)
    views = {offer.listed.id: _build_model_view(offer, describer, shows_channels=is_operator) for offer in offers}
    for route_offer in list_route_offers(router.routes.values(), offers):
        name = route_offer.route.name
        views[name] = _build_route_view(route_offer, describer, shows_channels=is_operator)
    return [views[name] for name in sorted(views)]


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
