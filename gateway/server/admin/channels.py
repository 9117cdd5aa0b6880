"""The admin API's part about channels: made, changed, tested, explained; and the configuration read again."""

from typing import Any, get_args

from aiohttp import web

from gateway.domain.channel import Origin
from gateway.domain.circuit_breaker import State
from gateway.domain.inference_request import Operation
from gateway.errors import Conflict, InvalidRequest, NotFound
from gateway.formats.openai.fields import MAX_MODEL_LENGTH
from gateway.routing.channel_order import ChannelOrder
from gateway.routing.channel_spec import ChannelSpec
from gateway.server.admin.io import read_change, write_json, write_listing
from gateway.server.admin.operation import AdminOperation, Query
from gateway.server.context import ACTOR, OFFICE, ROOMS
from gateway.server.openapi.schema import (
    ANYTHING,
    COUNT,
    FLAG,
    INTEGER,
    MOMENT,
    NUMBER,
    TEXT,
    array,
    either,
    extend,
    listing,
    maybe,
    one_of,
    record,
    table,
)
from gateway.server.query import parse_number

_OPERATIONS: tuple[Operation, ...] = get_args(Operation)

_CIRCUIT = record(
    model=maybe(TEXT),
    language=maybe(TEXT),
    account=maybe(INTEGER),
    state=one_of(*get_args(State)),
    cooldown_s=maybe(NUMBER),
    trips=COUNT,
    reason=maybe(TEXT),
)
"""Calls of one kind that a channel, or a key of it, does not take; ``account`` null: nobody's."""
_CHANNEL_KEY = record(
    last4=TEXT,
    state=one_of(*get_args(State)),
    cooldown_s=NUMBER,
    reason=maybe(TEXT),
    circuits=array(_CIRCUIT),
    limited_models=array(TEXT),
)
_CHANNEL = record(
    name=TEXT,
    provider=TEXT,
    status=one_of("active", "disabled"),
    origin=one_of(*get_args(Origin)),
    declared=FLAG,
    base_url=TEXT,
    key_count=COUNT,
    models=array(TEXT),
    sync=FLAG,
    model_map=table(TEXT),
    groups=array(TEXT),
    priority=INTEGER,
    weight=COUNT,
    max_concurrency=maybe(COUNT),
    rpm=maybe(COUNT),
    connect_timeout_s=NUMBER,
    first_byte_timeout_s=NUMBER,
    idle_timeout_s=NUMBER,
    total_timeout_s=NUMBER,
    has_proxy=FLAG,
    header_names=array(TEXT),
    price_multiplier=NUMBER,
    fan_out=FLAG,
    pass_urls=FLAG,
    owned_by=maybe(TEXT),
    allow_fields=array(TEXT),
    created_at=maybe(MOMENT),
    offers=maybe(COUNT),
    synced_at=maybe(MOMENT),
    sync_error=maybe(TEXT),
    came=array(TEXT),
    went=array(TEXT),
    changed_at=maybe(MOMENT),
    state=one_of(*get_args(State)),
    running=COUNT,
    share=NUMBER,
    cooldown_s=maybe(NUMBER),
    trips=COUNT,
    reason=maybe(TEXT),
    circuits=array(_CIRCUIT),
    latency_ms=maybe(record(p50=COUNT, p95=COUNT, p99=COUNT)),
    success_ratio=maybe(NUMBER),
    calls=COUNT,
    failures=COUNT,
    keys=array(_CHANNEL_KEY),
)
_TESTED = record(
    name=TEXT,
    ok=FLAG,
    error=maybe(TEXT),
    models=maybe(COUNT),
    keys=array(record(last4=TEXT, ok=FLAG, error=maybe(TEXT), models=maybe(COUNT))),
)
_REFUSED = record(
    channel=TEXT, provider=TEXT, priority=INTEGER, weight=COUNT, rank=maybe(COUNT), chance=NUMBER, reason=maybe(TEXT)
)
_PRICE = record(
    model=TEXT,
    input_usd_per_million=NUMBER,
    cached_input_usd_per_million=maybe(NUMBER),
    cache_write_usd_per_million=maybe(NUMBER),
    cache_write_long_usd_per_million=maybe(NUMBER),
    output_usd_per_million=NUMBER,
    usd_per_image=NUMBER,
    usd_per_second=NUMBER,
    usd_per_million_characters=NUMBER,
    tiers=COUNT,
)
_OPTION = extend(
    _REFUSED,
    wait_s=maybe(NUMBER),
    upstream_model=TEXT,
    language=TEXT,
    translated=FLAG,
    state=one_of(*get_args(State)),
    share=NUMBER,
    running=COUNT,
    capability=maybe(table(ANYTHING)),
    price=maybe(_PRICE),
    price_multiplier=NUMBER,
)
_ROOM = record(
    held_usd=NUMBER,
    left_usd=maybe(NUMBER),
    resets_at=maybe(MOMENT),
    rpm=maybe(COUNT),
    tpm=maybe(COUNT),
    max_concurrency=maybe(COUNT),
)
_EXPLAINED = record(
    model=TEXT,
    operation=one_of(*_OPERATIONS),
    key=maybe(record(id=INTEGER, name=TEXT, account=TEXT)),
    served=FLAG,
    refused=maybe(record(code=TEXT, message=TEXT)),
    channels=array(either(_OPTION, _REFUSED)),
    room=maybe(record(key=_ROOM, account=_ROOM)),
)
_EXPLAIN_QUERY = (
    Query("model", "The model that would be asked for."),
    Query("key", "For this key (an id); else for anybody.", COUNT),
    Query("operation", "As what it would be called; `chat` where it is not said.", one_of(*_OPERATIONS)),
)


async def list_channels(request: web.Request) -> web.Response:
    """Every channel, without its secrets, and how it stands."""
    return write_listing(request.app[OFFICE].fleet.list_channels())


async def add_channel(request: web.Request) -> web.Response:
    """A new channel, live at once."""
    return write_json(await request.app[OFFICE].fleet.add(await read_change(request), request[ACTOR]), 201)


async def get_channel(request: web.Request) -> web.Response:
    """One channel and the models it offers."""
    office = request.app[OFFICE]
    channel = office.fleet.get(request.match_info["name"])
    offer = office.catalog.find_offer(channel) or ()
    return write_json({**office.fleet.describe(channel), "offered": [listed.id for listed in offer]})


async def edit_channel(request: web.Request) -> web.Response:
    """Change fields of a channel; what is secret and not named stays."""
    fields = await read_change(request)
    return write_json(await request.app[OFFICE].fleet.edit(request.match_info["name"], fields, request[ACTOR]))


async def delete_channel(request: web.Request) -> web.Response:
    """Remove a channel; calls under way finish."""
    name = request.match_info["name"]
    await request.app[OFFICE].fleet.delete(name, request[ACTOR])
    return write_json({"name": name, "deleted": True})


async def test_channel(request: web.Request) -> web.Response:
    """Ask the provider for its models, now, with every key."""
    fleet = request.app[OFFICE].fleet
    return write_json(await fleet.test(fleet.get(request.match_info["name"])))


async def sync_channel(request: web.Request) -> web.Response:
    """Take in the provider's list of models, now. The channel says in ``sync_error`` why that failed, if it did."""
    fleet = request.app[OFFICE].fleet
    channel = fleet.get(request.match_info["name"])
    if not channel.sync:
        raise InvalidRequest(f"The channel {channel.name!r} does not synchronise its models", param="sync")
    if channel.status != "active":
        raise Conflict(f"The channel {channel.name!r} is disabled; its provider is not asked")
    await fleet.sync(channel)
    return write_json(fleet.describe(channel))


async def order_channels(request: web.Request) -> web.Response:
    """Ask the channels in this order, each only where those before it cannot: stored ones get priorities for it."""
    fields = await read_change(request)
    return write_listing(await request.app[OFFICE].fleet.order(fields, request[ACTOR]))


async def explain(request: web.Request) -> web.Response:
    """Who would serve a model, and why the others would not."""
    query, office = request.query, request.app[OFFICE]
    model = query.get("model", "")
    if not 0 < len(model) <= MAX_MODEL_LENGTH:
        raise InvalidRequest("'model' must be the name of a model", param="model")
    operation = next((known for known in _OPERATIONS if known == query.get("operation", "chat")), None)
    if operation is None:
        raise InvalidRequest(f"'operation' must be one of {', '.join(_OPERATIONS)}", param="operation")
    key_id = parse_number(query, "key")
    caller = None if key_id is None else request.app[ROOMS].directory.find_caller(key_id)
    if key_id is not None and caller is None:
        raise NotFound(f"No key has the id {key_id}", param="key")
    return write_json(office.explainer.explain(caller, model, operation))


async def reload(request: web.Request) -> web.Response:
    """Read the configuration again: applied whole or not at all."""
    report: dict[str, Any] = await request.app[OFFICE].reload(request[ACTOR])
    return write_json(report)


CHANNEL_DOORS: tuple[AdminOperation, ...] = (
    AdminOperation("GET", "/channels", list_channels, answer=listing(_CHANNEL)),
    AdminOperation("POST", "/channels", add_channel, takes=ChannelSpec, answer=_CHANNEL, status=201),
    AdminOperation("POST", "/channels/order", order_channels, takes=ChannelOrder, answer=listing(_CHANNEL)),
    AdminOperation("GET", "/channels/{name}", get_channel, answer=extend(_CHANNEL, offered=array(TEXT))),
    AdminOperation("PATCH", "/channels/{name}", edit_channel, takes=ChannelSpec, partly=True, answer=_CHANNEL),
    AdminOperation("DELETE", "/channels/{name}", delete_channel, answer=record(name=TEXT, deleted=FLAG)),
    AdminOperation("POST", "/channels/{name}/test", test_channel, answer=_TESTED),
    AdminOperation("POST", "/channels/{name}/sync", sync_channel, answer=_CHANNEL),
    AdminOperation("GET", "/explain", explain, query=_EXPLAIN_QUERY, answer=_EXPLAINED),
    AdminOperation("POST", "/reload", reload, answer=record(changes=array(TEXT), needs_restart=array(TEXT))),
)
