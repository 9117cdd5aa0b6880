"""Admin API: models and their prices."""

from gateway.billing.price_spec import build_price
from gateway.routing.model_offers import list_offers
from gateway.server.admin.handler import AdminRequest, Fields, admin_operation
from gateway.server.admin.settings import PRICE
from gateway.server.openapi import schema as s

MODEL = s.record(id=s.TEXT, owned_by=s.TEXT, created=s.INTEGER, channels=s.array(s.TEXT), price=s.maybe(PRICE))


@admin_operation(answer=s.listing(MODEL))
async def list_models(request: AdminRequest) -> list[Fields]:
    """List models; for a member those that a key of its account can call.

    `channels` are the channels that serve the model, best first; only administrators see them. `price` is the price at
    the first of them that has one, with its multiplier and, for a member, the multiplier of the account's first group;
    null: the model has no price, and `billing.unpriced` says who may use it.
    """
    services, inside = request.services, request.actor.scope is None
    account = None if inside else request.signed.account
    return [
        {
            "id": offer.listed.id,
            "owned_by": offer.listed.owned_by,
            "created": offer.listed.created_s,
            "channels": [channel.name for channel in offer.channels] if inside else [],
            "price": None if offer.price is None else build_price(offer.price, offer.multiplier_ppm),
        }
        for offer in list_offers(services.routing.catalog, request.services.routing.router.pricing, account)
    ]
