"""Model offers for display: the channels that serve each model, and its price."""

from collections.abc import Callable, Collection, Iterable, Sequence

import attrs

from gateway.domain.account import Account
from gateway.domain.channel import Channel
from gateway.domain.model_info import ModelInfo
from gateway.domain.price import ONE_PPM, Price
from gateway.domain.route import Route
from gateway.frozen import frozen
from gateway.routing.model_catalog import ModelCatalog
from gateway.routing.pricing_policy import PricingPolicy


@frozen
class Offer:
    """A model with its channels, highest priority first.

    ``price`` is that of the first channel that has one; None if none has. ``multiplier_ppm`` is that channel's
    multiplier times the group's.
    """

    listed: ModelInfo
    channels: Sequence[Channel]
    price: Price | None = None
    multiplier_ppm: int = ONE_PPM


@frozen
class RouteOffer:
    """A route with the offers of its models, in the order of its steps, each with the channels of its step."""

    route: Route
    offers: Sequence[Offer]


def list_offers(
    catalog: ModelCatalog, pricing: PricingPolicy, account: Account | None, names: Collection[str] | None = None
) -> list[Offer]:
    """Return an offer for every model, or for those of ``names``.

    For an account, only models that its keys may use have one, at the price of its first group.
    """
    is_open = _open_to(account)
    group = account.groups[0] if account is not None and account.groups else None
    offers = []
    for model_info in catalog.list_models():
        if names is not None and model_info.id not in names:
            continue
        serving_channels = [channel for channel, _ in catalog.list_serving_channels(model_info.id) if is_open(channel)]
        offer = _build_offer(
            model_info, sorted(serving_channels, key=lambda channel: -channel.priority), pricing, group
        )
        if account is None or (serving_channels and (offer.price is not None or pricing.unpriced != "refuse")):
            offers.append(offer)
    return offers


def list_route_offers(routes: Iterable[Route], offers: Iterable[Offer]) -> list[RouteOffer]:
    """Return the routes of which at least one step has a model among ``offers``, with a channel that the step uses."""
    offers_by_model = {offer.listed.id: offer for offer in offers}
    route_offers = [
        RouteOffer(
            route,
            [
                attrs.evolve(offer, channels=step_channels)
                for step in route.steps
                for share in step.models
                if (offer := offers_by_model.get(share.model)) is not None
                and (step_channels := [channel for channel in offer.channels if step.uses(channel.name)])
            ],
        )
        for route in routes
    ]
    return [route_offer for route_offer in route_offers if route_offer.offers]


def _open_to(account: Account | None) -> Callable[[Channel], bool]:
    """Return a predicate: whether a channel serves any key that the account may have.

    Such a key is without a group or in one of the account's groups.
    """
    if account is None or not account.groups:  # without groups, the account may use every group
        return lambda _: True
    groups = (None, *account.groups)
    return lambda channel: any(map(channel.serves, groups))


def _build_offer(
    model_info: ModelInfo, channels: Sequence[Channel], pricing: PricingPolicy, group: str | None
) -> Offer:
    for channel in channels:
        price = pricing.find_price(model_info.id, channel.upstream_model(model_info.id), channel.provider)
        if price is not None:
            ppm = -(-channel.multiplier_ppm * pricing.find_multiplier(group) // ONE_PPM)
            return Offer(model_info, channels, price, ppm)
    return Offer(model_info, channels)
