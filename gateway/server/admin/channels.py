"""Admin API: channels, an explanation of which channels serve a model, and a reload of the configuration."""

from collections.abc import Collection, Mapping, Sequence
from typing import get_args

import attrs
from aiohttp import web

from gateway.domain.channel import Channel
from gateway.domain.operation import Operation
from gateway.domain.route import BalanceStrategy, RequestTraits, Route
from gateway.errors import Conflict, InvalidRequest, NotFound
from gateway.formats.wire.fields import MAX_MODEL_CHARS
from gateway.frozen import frozen
from gateway.routing.channel_changes import order_channels as set_order
from gateway.routing.channel_health import Health
from gateway.routing.channel_order import ChannelOrder
from gateway.routing.channel_spec import ChannelSpec
from gateway.routing.channel_tester import ChannelTestResult
from gateway.routing.channels import Check
from gateway.routing.load_balancer import RetrySettings
from gateway.routing.model_catalog import ModelCatalog
from gateway.server.admin.answer import Deleted
from gateway.server.admin.asked import NODE_QUERY, ask_named_node
from gateway.server.admin.channel_view import ChannelDetails, ChannelView, build_channel_view
from gateway.server.admin.explanation import Explanation
from gateway.server.admin.handler import AdminRequest, ListPage, Query, admin_operation
from gateway.server.admin.io import read_change
from gateway.server.admin.listing import Listing
from gateway.server.admin.route_explain import RouteExplainer
from gateway.server.context import Services
from gateway.server.openapi import schema as s
from gateway.server.preference import PREFERENCES
from gateway.server.query import parse_flag, parse_number

_OPERATIONS: tuple[Operation, ...] = get_args(Operation)

_TRAITS = (("images", "has images"), ("tools", "has tools"), ("stream", "is a stream"))
DRY_RUN_QUERY = (
    Query("key", "The API key (an id); without it, a caller without restrictions.", s.COUNT),
    Query("operation", "The operation, by default `chat`.", s.one_of(*_OPERATIONS)),
    Query("prompt_tokens", "The length of the prompt, for the steps of a route.", s.COUNT),
    *(Query(name, f"`true`: the request {what}, for the steps of a route.", s.FLAG) for name, what in _TRAITS),
    Query(
        "prefer",
        "The caller's wish, as in the header `x-gateway-prefer`, if callers may have one.",
        s.one_of(*PREFERENCES),
    ),
)
"""The parameters that describe the request whose routing is explained."""
_EXPLAIN_QUERY = (
    Query("model", "The requested model, or route."),
    Query("fallback", "Explain as if this model were tried last, after all others."),
    *DRY_RUN_QUERY,
)

_CHECKS: tuple[Check, ...] = get_args(Check)
_ADD_QUERY = (
    Query(
        "check",
        "If the provider does not answer: `refuse` the channel (the default), or `hold` it, so that it gets no requests"
        " until the provider answers. `none`: the provider is not asked.",
        s.one_of(*_CHECKS),
    ),
    Query("request", "`true`: the check sends one real chat request of one token, too.", s.FLAG),
)
_TEST_QUERY = (
    Query("request", "`true`: send one real chat request of one token, too, and report its time.", s.FLAG),
    Query("model", "The model of that request, by default one that the channel names or lists."),
)


_HEALTHS: tuple[Health, ...] = get_args(Health)
_HEALTH_ORDER: tuple[Health, ...] = (
    "failing", "cooling_down", "recovering", "draining", "untested", "healthy", "disabled"
)  # fmt: skip
"""The values of a channel's health, the worst first."""
_LISTING = Listing[ChannelView](
    find_id=lambda channel: channel.name,
    find_texts=lambda channel: (
        channel.name,
        channel.provider,
        *channel.models,
        *channel.model_map,
        *channel.groups,
        *(text for key in channel.keys for text in (key.name, key.last4)),
    ),
    sort_keys={
        "name": lambda channel: channel.name,
        "health": lambda channel: _HEALTH_ORDER.index(channel.health),
        "priority": lambda channel: channel.priority,
        "offers": lambda channel: channel.offers,
        "success_ratio": lambda channel: channel.success_ratio,
        "first_byte_ms": lambda channel: None if channel.latency_ms is None else channel.latency_ms.p50,
    },
    searched_fields="its name, its provider, its groups, its configured models and aliases, or the names and the last"
    " four characters of its keys",
)
_FILTER_QUERY = (
    Query("health", "Only channels of this health.", s.one_of(*_HEALTHS)),
    Query("model", "Only channels that serve this model, or that have an alias for it."),
)


@frozen(kw_only=True)
class ReloadReport:
    """What a reload changed, and the settings that only a start reads."""

    changes: Sequence[str]
    needs_restart: Sequence[str]


@admin_operation(query=(*_FILTER_QUERY, *_LISTING.query, NODE_QUERY))
async def list_channels(request: AdminRequest) -> ListPage[ChannelView]:
    """List channels with their state, without secrets.

    Each node of a cluster has its own figures and circuits of a channel: those of the others have to be asked for.
    """
    health = request.query.get("health")
    if health is not None and health not in _HEALTHS:
        raise InvalidRequest(f"'health' must be one of {', '.join(_HEALTHS)}", param="health")
    views: list[ChannelView] | web.Response | None = await ask_named_node(request, list[ChannelView], "channels")
    if isinstance(views, web.Response):  # the other node's error
        return views  # type: ignore[return-value]
    wanted_names = _find_names(request.services.routing.catalog, request.query.get("model"))
    if views is None:
        views = await build_views(request.services, wanted_names)
    wanted = [view for view in views if wanted_names is None or view.name in wanted_names]
    return _LISTING.list_page(request, (view for view in wanted if health in {None, view.health}))


def _find_names(catalog: ModelCatalog, model: str | None) -> Collection[str] | None:
    """Return the names of the channels that serve ``model`` or have an alias for it; None (all) without a model."""
    if model is None:
        return None
    has_alias = (
        channel.name for channel in catalog.channels if any(mapped == model for _, mapped in channel.model_map)
    )
    return {*has_alias, *(channel.name for channel, _ in catalog.list_serving_channels(model))}


async def build_views(services: Services, wanted_names: Collection[str] | None = None) -> list[ChannelView]:
    """Describe all channels, or those of ``wanted_names``, with their live state at this node."""
    names, routing = await services.auth.accounts.name_accounts(), services.routing
    return [
        build_channel_view(channel, routing.catalog, routing.load_balancer, names)
        for channel in routing.catalog.channels
        if wanted_names is None or channel.name in wanted_names
    ]


async def build_view(services: Services, channel: Channel) -> ChannelView:
    """Describe a channel with its live state at this node."""
    names, routing = await services.auth.accounts.name_accounts(), services.routing
    return build_channel_view(channel, routing.catalog, routing.load_balancer, names)


@admin_operation(takes=ChannelSpec, query=_ADD_QUERY, status=201)
async def add_channel(request: AdminRequest) -> ChannelView:
    """Create a channel, which takes requests at once. Its provider is asked first."""
    check = next((name for name in _CHECKS if name == request.query.get("check", "refuse")), None)
    if check is None:
        raise InvalidRequest(f"'check' must be one of {', '.join(_CHECKS)}", param="check")
    services, fields = request.services, await read_change(request)
    channel = await services.routing.channels.add(
        fields, request.actor, check=check, request=parse_flag(request.query, "request")
    )
    return await build_view(services, channel)


@admin_operation(query=(NODE_QUERY,))
async def get_channel(request: AdminRequest) -> ChannelDetails:
    """Get a channel and the models that it offers."""
    name, routing = request.match_info["name"], request.services.routing
    if (answer := await ask_named_node(request, ChannelDetails, "channels", name)) is not None:
        return answer
    view = await build_view(request.services, channel := routing.channels.get(name))
    model_ids = [model.id for model in routing.catalog.find_offer(channel) or ()]
    return ChannelDetails(**attrs.asdict(view, recurse=False), offered=model_ids)


@admin_operation(takes=ChannelSpec, partly=True)
async def edit_channel(request: AdminRequest) -> ChannelView:
    """Change fields of a channel. Secrets that are not named stay."""
    services, fields = request.services, await read_change(request)
    edited = await services.routing.channels.edit(request.match_info["name"], fields, request.actor)
    return await build_view(services, edited)


@admin_operation()
async def delete_channel(request: AdminRequest) -> Deleted:
    """Delete a channel; active requests finish."""
    name = request.match_info["name"]
    await request.services.routing.channels.delete(name, request.actor)
    return Deleted(name)


@admin_operation(query=_TEST_QUERY)
async def test_channel(request: AdminRequest) -> ChannelTestResult:
    """Test a channel: ask the provider for its models with every key.

    With `request`, send one real chat request of one token, too, which the provider charges.
    """
    channels, model = request.services.routing.channels, request.query.get("model") or None
    channel = channels.get(request.match_info["name"])
    return await channels.test(channel, request=parse_flag(request.query, "request"), model=model)


@admin_operation()
async def sync_channel(request: AdminRequest) -> ChannelView:
    """Synchronize a channel's models with the provider's list. If that fails, ``sync_error`` has the reason."""
    services = request.services
    channels = services.routing.channels
    channel = channels.get(request.match_info["name"])
    if not channel.sync:
        raise InvalidRequest(f"The channel {channel.name!r} does not synchronize its models", param="sync")
    if channel.status != "active":
        raise Conflict(f"The channel {channel.name!r} is disabled; its provider is not asked")
    await channels.sync(channel)
    return await build_view(services, channels.get(channel.name))


@admin_operation(takes=ChannelOrder)
async def order_channels(request: AdminRequest) -> list[ChannelView]:
    """Set the order in which channels are tried. Stored channels get new priorities for it."""
    await set_order(request.services.routing.channels, await read_change(request), request.actor)
    return await build_views(request.services)


@admin_operation(query=_EXPLAIN_QUERY)
async def explain(request: AdminRequest) -> Explanation:
    """Explain which channels would serve a model, and why others would not.

    For a route, `steps` has the same of each model of each step, and whether a request would be sent to the step.
    Nothing is sent.
    """
    query = request.query
    model = query.get("model", "")
    fallback = query.get("fallback")
    for name, value in (("model", model), ("fallback", fallback)):
        if value is not None and not 0 < len(value) <= MAX_MODEL_CHARS:
            raise InvalidRequest(f"'{name}' must be the name of a model", param=name)
    return await build_explanation(request, model, fallback=fallback)


async def build_explanation(
    request: AdminRequest, model: str, *, fallback: str | None = None, draft: Route | None = None
) -> Explanation:
    """Explain the request to ``model`` that the query describes, as ``RouteExplainer.explain`` does.

    Raises ``InvalidRequest``, and ``NotFound`` for an unknown key.
    """
    query, services = request.query, request.services
    operation = next((name for name in _OPERATIONS if name == query.get("operation", "chat")), None)
    if operation is None:
        raise InvalidRequest(f"'operation' must be one of {', '.join(_OPERATIONS)}", param="operation")
    key_id = parse_number(query, "key")
    caller = None if key_id is None else request.services.auth.api_keys.find_caller(key_id)
    if key_id is not None and caller is None:
        raise NotFound(f"No key has the id {key_id}", param="key")
    if caller is not None:
        await services.billing.accounting.refresh(caller.key, caller.account)
    routing = services.routing
    explainer = RouteExplainer(
        routing.catalog,
        routing.load_balancer,
        routing.router,
        services.billing.accounting,
        services.clock,
        RequestTraits(
            parse_number(query, "prompt_tokens") or 0, **{name: parse_flag(query, name) for name, _ in _TRAITS}
        ),
        _parse_preference(query, routing.load_balancer.settings),
    )
    return explainer.explain(caller, model, operation, fallback=fallback, draft=draft)


def _parse_preference(query: Mapping[str, str], settings: RetrySettings) -> BalanceStrategy | None:
    """Return the balance that the request would prefer; None without a preference. Raises ``InvalidRequest``."""
    value = query.get("prefer")
    if not value:
        return None
    if not settings.allow_prefer:
        raise InvalidRequest("Callers cannot choose the balance: routing.allow_prefer is false", param="prefer")
    if value not in PREFERENCES:
        raise InvalidRequest(f"'prefer' must be one of {', '.join(PREFERENCES)}", param="prefer")
    return PREFERENCES[value]


@admin_operation()
async def reload(request: AdminRequest) -> ReloadReport:
    """Reload the configuration files, all or nothing."""
    return ReloadReport(**await request.services.admin.reloader.reload(request.actor))
