"""The admin API's part about channels: made, changed, tested, explained; and the configuration read again."""

from typing import Any, get_args

from aiohttp import web

from gateway.dialects.openai_fields import MAX_MODEL_LENGTH
from gateway.domain.call import Operation
from gateway.domain.fault import Conflict, InvalidRequest, NotFound
from gateway.web.admin.doors import Door
from gateway.web.admin.forms import write_json, write_listing
from gateway.web.body import read_json
from gateway.web.keys import OFFICE, ROOMS
from gateway.web.query import read_number

_OPERATIONS: tuple[Operation, ...] = get_args(Operation)


async def list_channels(request: web.Request) -> web.Response:
    """Every channel, without its secrets, and how it stands."""
    return write_listing(request.app[OFFICE].fleet.list_channels())


async def add_channel(request: web.Request) -> web.Response:
    """A new channel, live at once."""
    return write_json(await request.app[OFFICE].fleet.add(await read_json(request)), 201)


async def get_channel(request: web.Request) -> web.Response:
    """One channel and the models it offers."""
    office = request.app[OFFICE]
    channel = office.fleet.get(request.match_info["name"])
    offer = office.catalog.find_offer(channel) or ()
    return write_json({**office.fleet.describe(channel), "offered": [listed.id for listed in offer]})


async def edit_channel(request: web.Request) -> web.Response:
    """Change fields of a channel; what is secret and not named stays."""
    fields = await read_json(request)
    return write_json(await request.app[OFFICE].fleet.edit(request.match_info["name"], fields))


async def delete_channel(request: web.Request) -> web.Response:
    """Remove a channel; calls under way finish."""
    name = request.match_info["name"]
    await request.app[OFFICE].fleet.delete(name)
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


async def list_models(request: web.Request) -> web.Response:
    """Every model, with the channels that serve it."""
    catalog = request.app[OFFICE].catalog
    return write_listing(
        [
            {
                "id": listed.id,
                "owned_by": listed.owned_by,
                "created": listed.created_s,
                "channels": [
                    channel.name
                    for channel, _ in sorted(catalog.list_serving(listed.id), key=lambda item: -item[0].priority)
                ],
            }
            for listed in catalog.list_models()
        ],
    )


async def explain(request: web.Request) -> web.Response:
    """Who would serve ``model``: for ``key`` (an id; default: anybody), as ``operation`` (chat)."""
    query, office = request.query, request.app[OFFICE]
    model = query.get("model", "")
    if not 0 < len(model) <= MAX_MODEL_LENGTH:
        raise InvalidRequest("'model' must be the name of a model", param="model")
    operation = next((known for known in _OPERATIONS if known == query.get("operation", "chat")), None)
    if operation is None:
        raise InvalidRequest(f"'operation' must be one of {', '.join(_OPERATIONS)}", param="operation")
    key_id = read_number(query, "key")
    caller = None if key_id is None else request.app[ROOMS].directory.find_caller(key_id)
    if key_id is not None and caller is None:
        raise NotFound(f"No key has the id {key_id}", param="key")
    return write_json(office.explainer.explain(caller, model, operation))


async def reload(request: web.Request) -> web.Response:
    """Read the configuration again: applied whole or not at all."""
    report: dict[str, Any] = await request.app[OFFICE].reload()
    return write_json(report)


CHANNEL_DOORS: tuple[Door, ...] = (
    Door("GET", "/channels", list_channels),
    Door("POST", "/channels", add_channel),
    Door("GET", "/channels/{name}", get_channel),
    Door("PATCH", "/channels/{name}", edit_channel),
    Door("DELETE", "/channels/{name}", delete_channel),
    Door("POST", "/channels/{name}/test", test_channel),
    Door("POST", "/channels/{name}/sync", sync_channel),
    Door("GET", "/models", list_models),
    Door("GET", "/explain", explain),
    Door("POST", "/reload", reload),
)
