"""Admin API: create, change, test and explain channels, and reload the configuration."""

from typing import Any, get_args

from gateway.domain.channel import Origin
from gateway.domain.circuit_breaker import State
from gateway.domain.operation import Operation
from gateway.errors import Conflict, InvalidRequest, NotFound
from gateway.formats.openai.fields import MAX_MODEL_LENGTH
from gateway.routing.channel_health import Health
from gateway.routing.channel_order import ChannelOrder
from gateway.routing.channel_spec import ChannelSpec
from gateway.routing.channels import Check
from gateway.server.admin.asked import NODE, ask_named_node
from gateway.server.admin.handler import AdminRequest, Fields, Query, admin_operation
from gateway.server.admin.io import read_change
from gateway.server.admin.route_explain import RouteExplainer
from gateway.server.context import Services
from gateway.server.openapi import schema as s
from gateway.server.query import parse_number

_OPERATIONS: tuple[Operation, ...] = get_args(Operation)

_CIRCUIT = s.record(
    model=s.maybe(s.TEXT),
    api_format=s.maybe(s.TEXT),
    language=s.maybe(s.TEXT),
    account=s.maybe(s.INTEGER),
    account_name=s.maybe(s.TEXT),
    state=s.one_of(*get_args(State)),
    cooldown_s=s.maybe(s.NUMBER),
    trips=s.COUNT,
    reason=s.maybe(s.TEXT),
)
"""Requests of one kind that a channel or a key of it refuses; ``account`` is null if that holds for all accounts."""
_CHANNEL_KEY = s.record(
    number=s.COUNT,
    last4=s.TEXT,
    state=s.one_of(*get_args(State)),
    cooldown_s=s.NUMBER,
    reason=s.maybe(s.TEXT),
    circuits=s.array(_CIRCUIT),
    limited_models=s.array(s.TEXT),
)
_CHANNEL = s.record(
    name=s.TEXT,
    provider=s.TEXT,
    status=s.one_of("active", "disabled"),
    origin=s.one_of(*get_args(Origin)),
    declared=s.FLAG,
    base_url=s.TEXT,
    key_count=s.COUNT,
    models=s.array(s.TEXT),
    sync=s.FLAG,
    model_map=s.table(s.TEXT),
    groups=s.array(s.TEXT),
    priority=s.INTEGER,
    weight=s.COUNT,
    max_concurrency=s.maybe(s.COUNT),
    rpm=s.maybe(s.COUNT),
    connect_timeout_s=s.NUMBER,
    first_byte_timeout_s=s.NUMBER,
    idle_timeout_s=s.NUMBER,
    total_timeout_s=s.NUMBER,
    has_proxy=s.FLAG,
    header_names=s.array(s.TEXT),
    price_multiplier=s.NUMBER,
    fan_out=s.FLAG,
    pass_urls=s.FLAG,
    owned_by=s.maybe(s.TEXT),
    allow_fields=s.array(s.TEXT),
    created_at=s.maybe(s.MOMENT),
    offers=s.maybe(s.COUNT),
    matches_globs=s.FLAG,
    synced_at=s.maybe(s.MOMENT),
    sync_error=s.maybe(s.TEXT),
    models_added=s.array(s.TEXT),
    models_removed=s.array(s.TEXT),
    came=s.array(s.TEXT),
    went=s.array(s.TEXT),
    changed_at=s.maybe(s.MOMENT),
    health=s.one_of(*get_args(Health)),
    health_reason=s.maybe(s.TEXT),
    last_tested_at=s.maybe(s.MOMENT),
    test_ms=s.maybe(s.COUNT),
    on_hold=s.FLAG,
    held=s.FLAG,
    state=s.one_of(*get_args(State)),
    running=s.COUNT,
    share=s.NUMBER,
    cooldown_s=s.maybe(s.NUMBER),
    trips=s.COUNT,
    reason=s.maybe(s.TEXT),
    circuits=s.array(_CIRCUIT),
    latency_ms=s.maybe(s.record(p50=s.COUNT, p95=s.COUNT, p99=s.COUNT)),
    success_ratio=s.maybe(s.NUMBER),
    calls=s.COUNT,
    failures=s.COUNT,
    keys=s.array(_CHANNEL_KEY),
)
_TESTED = s.record(
    name=s.TEXT,
    ok=s.FLAG,
    error=s.maybe(s.TEXT),
    models=s.maybe(s.COUNT),
    request=s.maybe(s.record(model=s.TEXT, ok=s.FLAG, error=s.maybe(s.TEXT), ms=s.maybe(s.COUNT))),
    keys=s.array(s.record(last4=s.TEXT, ok=s.FLAG, error=s.maybe(s.TEXT), models=s.maybe(s.COUNT))),
)
_REFUSED = s.record(
    channel=s.TEXT,
    provider=s.TEXT,
    priority=s.INTEGER,
    weight=s.COUNT,
    rank=s.maybe(s.COUNT),
    chance=s.NUMBER,
    reason=s.maybe(s.TEXT),
)
_PRICE = s.record(
    model=s.TEXT,
    input_usd_per_million=s.NUMBER,
    cached_input_usd_per_million=s.maybe(s.NUMBER),
    cache_write_usd_per_million=s.maybe(s.NUMBER),
    cache_write_long_usd_per_million=s.maybe(s.NUMBER),
    output_usd_per_million=s.NUMBER,
    usd_per_image=s.NUMBER,
    usd_per_second=s.NUMBER,
    usd_per_million_characters=s.NUMBER,
    audio_input_usd_per_million=s.maybe(s.NUMBER),
    cached_audio_input_usd_per_million=s.maybe(s.NUMBER),
    audio_output_usd_per_million=s.maybe(s.NUMBER),
    tiers=s.COUNT,
)
_OPTION = s.extend(
    _REFUSED,
    wait_s=s.maybe(s.NUMBER),
    upstream_model=s.TEXT,
    api_format=s.TEXT,
    language=s.TEXT,
    translated=s.FLAG,
    state=s.one_of(*get_args(State)),
    share=s.NUMBER,
    running=s.COUNT,
    capability=s.maybe(s.table(s.ANYTHING)),
    price=s.maybe(_PRICE),
    price_multiplier=s.NUMBER,
)
_ROOM = s.record(
    held_usd=s.NUMBER,
    left_usd=s.maybe(s.NUMBER),
    resets_at=s.maybe(s.MOMENT),
    rpm=s.maybe(s.COUNT),
    tpm=s.maybe(s.COUNT),
    max_concurrency=s.maybe(s.COUNT),
    burst=s.maybe(s.COUNT),
)
_EXPLAINED = s.record(
    model=s.TEXT,
    operation=s.one_of(*_OPERATIONS),
    key=s.maybe(s.record(id=s.INTEGER, name=s.TEXT, account=s.TEXT)),
    served=s.FLAG,
    refused=s.maybe(s.record(code=s.TEXT, message=s.TEXT)),
    channels=s.array(s.either(_OPTION, _REFUSED)),
    room=s.maybe(s.record(key=_ROOM, account=_ROOM)),
)
_EXPLAIN_QUERY = (
    Query("model", "The requested model."),
    Query("key", "The API key (an id); without it, a caller without restrictions.", s.COUNT),
    Query("operation", "The operation, by default `chat`.", s.one_of(*_OPERATIONS)),
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


@admin_operation(query=(NODE,), answer=s.listing(_CHANNEL))
async def list_channels(request: AdminRequest) -> Any:
    """List all channels with their state, without secrets.

    Each node of a cluster has its own figures and circuits of a channel: those of the others have to be asked for.
    """
    if (answer := await ask_named_node(request, "channels")) is not None:
        return answer
    services = request.services
    return await _name_accounts(services, services.routing.channels.list_channels())


async def _name_accounts(services: Services, channels: list[Fields]) -> list[Fields]:
    """Add the accounts' names to the circuits of channels and their keys."""
    parts = [part for channel in channels for part in (channel, *channel.get("keys", ()))]
    circuits = [circuit for part in parts for circuit in part.get("circuits", ())]
    own = any(circuit["account"] is not None for circuit in circuits)
    names = await services.auth.accounts.name_accounts() if own else {}
    for circuit in circuits:
        circuit["account_name"] = names.get(circuit["account"])
    return channels


async def _name_accounts_of(services: Services, channel: Fields) -> Fields:
    (named,) = await _name_accounts(services, [channel])
    return named


@admin_operation(takes=ChannelSpec, query=_ADD_QUERY, answer=_CHANNEL, status=201)
async def add_channel(request: AdminRequest) -> Fields:
    """Create a channel, which takes requests at once. Its provider is asked first."""
    check = next((known for known in _CHECKS if known == request.query.get("check", "refuse")), None)
    if check is None:
        raise InvalidRequest(f"'check' must be one of {', '.join(_CHECKS)}", param="check")
    services, fields = request.services, await read_change(request)
    added = await services.routing.channels.add(fields, request.actor, check=check, request=_asks_request(request))
    return await _name_accounts_of(services, added)


@admin_operation(query=(NODE,), answer=s.extend(_CHANNEL, offered=s.array(s.TEXT)))
async def get_channel(request: AdminRequest) -> Any:
    """Get a channel and the models that it offers."""
    if (answer := await ask_named_node(request, "channels", request.match_info["name"])) is not None:
        return answer
    services = request.services
    channel = services.routing.channels.get(request.match_info["name"])
    offer = services.routing.catalog.find_offer(channel) or ()
    described = {**services.routing.channels.describe(channel), "offered": [listed.id for listed in offer]}
    return await _name_accounts_of(services, described)


@admin_operation(takes=ChannelSpec, partly=True, answer=_CHANNEL)
async def edit_channel(request: AdminRequest) -> Fields:
    """Change fields of a channel. Secrets that are not named stay."""
    services, fields = request.services, await read_change(request)
    edited = await services.routing.channels.edit(request.match_info["name"], fields, request.actor)
    return await _name_accounts_of(services, edited)


@admin_operation(answer=s.record(name=s.TEXT, deleted=s.FLAG))
async def delete_channel(request: AdminRequest) -> Fields:
    """Delete a channel; active requests finish."""
    name = request.match_info["name"]
    await request.services.routing.channels.delete(name, request.actor)
    return {"name": name, "deleted": True}


@admin_operation(query=_TEST_QUERY, answer=_TESTED)
async def test_channel(request: AdminRequest) -> Fields:
    """Test a channel: ask the provider for its models with every key.

    With `request`, send one real chat request of one token, too, which the provider charges.
    """
    channels, model = request.services.routing.channels, request.query.get("model") or None
    channel = channels.get(request.match_info["name"])
    return await channels.test(channel, request=_asks_request(request), model=model)


def _asks_request(request: AdminRequest) -> bool:
    requested = request.query.get("request", "false")
    if requested not in {"true", "false"}:
        raise InvalidRequest("'request' must be true or false", param="request")
    return requested == "true"


@admin_operation(answer=_CHANNEL)
async def sync_channel(request: AdminRequest) -> Fields:
    """Synchronise a channel's models with the provider's list. If that fails, ``sync_error`` has the reason."""
    services = request.services
    channels = services.routing.channels
    channel = channels.get(request.match_info["name"])
    if not channel.sync:
        raise InvalidRequest(f"The channel {channel.name!r} does not synchronise its models", param="sync")
    if channel.status != "active":
        raise Conflict(f"The channel {channel.name!r} is disabled; its provider is not asked")
    await channels.sync(channel)
    return await _name_accounts_of(services, channels.describe(channel))


@admin_operation(takes=ChannelOrder, answer=s.listing(_CHANNEL))
async def order_channels(request: AdminRequest) -> list[Fields]:
    """Set the order in which channels are tried. Stored channels get new priorities for it."""
    services, fields = request.services, await read_change(request)
    return await _name_accounts(services, await services.routing.channels.order(fields, request.actor))


@admin_operation(query=_EXPLAIN_QUERY, answer=_EXPLAINED)
async def explain(request: AdminRequest) -> Fields:
    """Explain which channels would serve a model, and why others would not."""
    query, services = request.query, request.services
    model = query.get("model", "")
    if not 0 < len(model) <= MAX_MODEL_LENGTH:
        raise InvalidRequest("'model' must be the name of a model", param="model")
    operation = next((known for known in _OPERATIONS if known == query.get("operation", "chat")), None)
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
        routing.catalog, routing.load_balancer, routing.router, services.billing.accounting, services.clock
    )
    return explainer.explain(caller, model, operation)


@admin_operation(answer=s.record(changes=s.array(s.TEXT), needs_restart=s.array(s.TEXT)))
async def reload(request: AdminRequest) -> Fields:
    """Reload the configuration files, all or nothing."""
    report: dict[str, Any] = await request.services.admin.reloader.reload(request.actor)
    return report
