"""Admin API: check a channel before it is added, change its keys one by one, and set the weights of channels."""

from collections.abc import Callable, Sequence

from gateway.answer_fields import Count
from gateway.domain.channel import Channel
from gateway.domain.model_name import is_glob
from gateway.errors import NotFound
from gateway.frozen import frozen
from gateway.parsing import parse_spec
from gateway.providers.registry import PROVIDERS
from gateway.routing.channel_changes import ChannelWeights, change_keys, check_draft, set_weights
from gateway.routing.channel_keys import ChannelKeySpec, add_key, edit_key, find_key, remove_key
from gateway.routing.channel_spec import ChannelSpec
from gateway.routing.channel_tester import Answer
from gateway.routing.channels import find_field
from gateway.routing.pricing_policy import PricingPolicy
from gateway.server.admin.channel_view import ChannelView
from gateway.server.admin.channels import build_view, build_views
from gateway.server.admin.handler import AdminRequest, Query, admin_operation
from gateway.server.admin.io import read_change
from gateway.server.admin.settings import PriceAnswer, build_price_fields

_LAST4_QUERY = Query(
    "last4",
    "The last four characters of the key (empty for a short key), as the channel shows them. If the key with this "
    "number is another one, nothing is changed.",
)


@frozen(kw_only=True)
class OfferedModel:
    """A model of the provider, by the name that clients use. ``price`` is null without one."""

    id: str
    price: PriceAnswer | None


@frozen(kw_only=True)
class ChannelCheck:
    """What the provider of a channel that is not added yet has answered.

    ``asked`` is false if the provider has no model list: then nothing can be tested for free, and ``models`` are those
    that the gateway knows. ``param`` is the field that the ``error`` is about.
    """

    ok: bool
    asked: bool
    error: str | None
    param: str | None
    test_ms: Count
    models: Sequence[OfferedModel]


@admin_operation(takes=ChannelSpec)
async def check_channel(request: AdminRequest) -> ChannelCheck:
    """Check a channel without adding it: ask its provider for its models, which is free."""
    draft, answer = await check_draft(request.services.routing.channels, await read_change(request))
    return ChannelCheck(
        ok=answer.passes,
        asked=answer.requested,
        error=None if answer.error is None else answer.error.message,
        param=None if answer.error is None else find_field(answer.error),
        test_ms=answer.took_ms,
        models=_list_models(request, draft, answer),
    )


def _list_models(request: AdminRequest, draft: Channel, answer: Answer) -> list[OfferedModel]:
    """Return the listed models with their prices; of a provider without a list those that the gateway knows."""
    pricing = request.services.routing.router.pricing
    listed_ids = {model.id for model in answer.listing or ()}
    models = []
    for model_id in sorted(listed_ids if answer.requested else _list_known_models(draft.provider, pricing)):
        price = pricing.find_price(model_id, draft.upstream_model(model_id), draft.provider)
        fields = None if price is None else build_price_fields(price, draft.multiplier_ppm)
        models.append(OfferedModel(id=model_id, price=None if fields is None else PriceAnswer(**fields)))
    return models


def _list_known_models(slug: str, pricing: PricingPolicy) -> set[str]:
    """Return the models that the gateway's description of a provider and the price lists name exactly."""
    provider = PROVIDERS[slug]
    patterns = {capability.name for capability in provider.capabilities}
    patterns |= {pattern for endpoint in provider.endpoints for pattern in endpoint.models}
    patterns |= {price.model for price in pricing.prices.list_prices() if price.provider == slug}
    return {pattern for pattern in patterns if not is_glob(pattern)}


@admin_operation(takes=ChannelWeights)
async def weigh_channels(request: AdminRequest) -> list[ChannelView]:
    """Set the weights of several channels together: all of them, or none."""
    await set_weights(request.services.routing.channels, await read_change(request), request.actor)
    return await build_views(request.services)


@admin_operation(takes=ChannelKeySpec, status=201)
async def add_channel_key(request: AdminRequest) -> ChannelView:
    """Add a provider's key to a channel. It is tested at once; the outcome is its `health`."""
    spec = parse_spec(await read_change(request), ChannelKeySpec)

    def change(channel: Channel) -> tuple[Channel, str]:
        return add_key(channel, spec), spec.key or ""

    return await _change_keys(request, change, "channel.key_added")


@admin_operation(takes=ChannelKeySpec, partly=True, query=(_LAST4_QUERY,))
async def edit_channel_key(request: AdminRequest) -> ChannelView:
    """Name, disable, enable or replace a key of a channel, by its number. Requests that run with it finish.

    At least one key of a channel that has keys has to stay enabled: 409 otherwise.
    """
    fields = await read_change(request)
    spec, number, last4 = parse_spec(fields, ChannelKeySpec), _parse_number(request), request.query.get("last4")

    def change(channel: Channel) -> tuple[Channel, str]:
        key = find_key(channel, number, last4)
        return edit_key(channel, key, spec, frozenset(fields)), (spec.key or key) if "key" in fields else key

    return await _change_keys(request, change, "channel.key_edited")


@admin_operation(query=(_LAST4_QUERY,))
async def remove_channel_key(request: AdminRequest) -> ChannelView:
    """Remove a key of a channel, by its number. Requests that run with it finish; the last key stays: 409."""
    number, last4 = _parse_number(request), request.query.get("last4")

    def change(channel: Channel) -> tuple[Channel, str]:
        key = find_key(channel, number, last4)
        return remove_key(channel, key), key

    return await _change_keys(request, change, "channel.key_removed")


async def _change_keys(
    request: AdminRequest, change: Callable[[Channel], tuple[Channel, str]], action: str
) -> ChannelView:
    services, name = request.services, request.match_info["name"]
    channel = await change_keys(services.routing.channels, name, change, action, request.actor)
    return await build_view(services, channel)


def _parse_number(request: AdminRequest) -> int:
    """Return the number of the key in the path. Raises ``NotFound`` if the path has no number."""
    number = request.match_info["number"]
    if not (number.isascii() and number.isdigit() and len(number) <= 4):  # noqa: PLR2004 - up to channel_keys.MAX_KEYS
        raise NotFound(f"There is no key {number[:16]!r}")
    return int(number)
