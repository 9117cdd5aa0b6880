"""Admin API: models and their prices."""

from collections.abc import Sequence

from gateway.domain.model_description import Feature, Modality, ModelKind, list_known_properties
from gateway.frozen import frozen
from gateway.routing.model_offers import list_offers
from gateway.server.admin.handler import AdminRequest, admin_operation
from gateway.server.admin.settings import PriceAnswer, build_price_fields


@frozen(kw_only=True)
class ModelView:
    """A model that requests can name."""

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


@admin_operation()
async def list_models(request: AdminRequest) -> list[ModelView]:
    """List models; for a member those that a key of its account can call.

    `channels` are the channels that serve the model, best first; only administrators see them. `price` is the price at
    the first of them that has one, with its multiplier and, for a member, the multiplier of the account's first group;
    null: the model has no price, and `billing.unpriced` says who may use it. What the model can do is null as far as it
    is not known.
    """
    services, is_operator = request.services, request.actor.scope is None
    account = None if is_operator else request.user.account
    describer = services.routing.router.find_describer()
    return [
        ModelView(
            id=offer.listed.id,
            owned_by=offer.listed.owned_by,
            created=offer.listed.created_s,
            channels=[channel.name for channel in offer.channels] if is_operator else [],
            price=None if offer.price is None else PriceAnswer(**build_price_fields(offer.price, offer.multiplier_ppm)),
            **list_known_properties(describer.describe_offer(offer.listed.id, offer.channels)),
        )
        for offer in list_offers(services.routing.catalog, request.services.routing.router.pricing, account)
    ]
