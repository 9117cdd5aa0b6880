"""Models as they are offered to people: who serves each, and what it costs."""

from collections.abc import Callable, Sequence

from gateway.domain.account import Account
from gateway.domain.channel import Channel
from gateway.domain.model_info import ModelInfo
from gateway.domain.price import ONE_PPM, Price
from gateway.frozen import frozen
from gateway.routing.model_catalog import ModelCatalog
from gateway.routing.pricing_policy import PricingPolicy


@frozen
class Offer:
    """A model, the channels that serve it, best first, and the price at the first of them that has one.

    ``multiplier_ppm`` is what that channel and the group ask of the price, in parts per million.
    """

    listed: ModelInfo
    channels: Sequence[Channel]
    price: Price | None = None
    multiplier_ppm: int = ONE_PPM


def list_offers(catalog: ModelCatalog, pricing: PricingPolicy, account: Account | None) -> list[Offer]:
    """Every model; for an account, those that a key of it could call, at what its first group pays."""
    is_open = _open_to(account)
    group = account.groups[0] if account is not None and account.groups else None
    offers = []
    for listed in catalog.list_models():
        serving = [channel for channel, _ in catalog.list_serving(listed.id) if is_open(channel)]
        offer = _price(listed, sorted(serving, key=lambda channel: -channel.priority), pricing, group)
        if account is None or (serving and (offer.price is not None or pricing.unpriced != "refuse")):
            offers.append(offer)
    return offers


def _open_to(account: Account | None) -> Callable[[Channel], bool]:
    """Whether a key of the account could use a channel: one of no group, or of any that the account may use."""
    if account is None or not account.groups:  # then it may use every group there is
        return lambda _: True
    groups = (None, *account.groups)
    return lambda channel: any(map(channel.serves, groups))


def _price(listed: ModelInfo, channels: Sequence[Channel], pricing: PricingPolicy, group: str | None) -> Offer:
    for channel in channels:
        price = pricing.find_price(listed.id, channel.upstream_model(listed.id), channel.provider)
        if price is not None:
            ppm = -(-channel.multiplier_ppm * pricing.find_multiplier(group) // ONE_PPM)
            return Offer(listed, channels, price, ppm)
    return Offer(listed, channels)
