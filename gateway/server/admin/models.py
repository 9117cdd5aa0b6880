"""The admin API's list of models, and what they cost whoever asks."""

from aiohttp import web

from gateway.billing.price_spec import build_price
from gateway.routing.model_offers import list_offers
from gateway.server.admin.io import write_listing
from gateway.server.admin.operation import AdminOperation
from gateway.server.admin.settings import PRICE
from gateway.server.auth import get_signed
from gateway.server.context import ACTOR, OFFICE, ROOMS
from gateway.server.openapi import schema as s

MODEL = s.record(id=s.TEXT, owned_by=s.TEXT, created=s.INTEGER, channels=s.array(s.TEXT), price=s.maybe(PRICE))


async def list_models(request: web.Request) -> web.Response:
    """Every model; of a member, those that a key of its account could call.

    `channels` are those that serve it, best first; only administrators see them. `price` is what it costs at the first
    of them that has one: times what that asks and, for a member, what the first of its account's groups pays.
    """
    office, inside = request.app[OFFICE], request[ACTOR].scope is None
    account = None if inside else get_signed(request).account
    return write_listing(
        [
            {
                "id": offer.listed.id,
                "owned_by": offer.listed.owned_by,
                "created": offer.listed.created_s,
                "channels": [channel.name for channel in offer.channels] if inside else [],
                "price": None if offer.price is None else build_price(offer.price, offer.multiplier_ppm),
            }
            for offer in list_offers(office.catalog, request.app[ROOMS].router.tariff, account)
        ],
    )


MODEL_DOORS: tuple[AdminOperation, ...] = (
    AdminOperation("GET", "/models", list_models, "viewer", answer=s.listing(MODEL)),
)
