"""The admin API's paths. Every one needs the token of the data folder."""

import asyncio
import hmac
from typing import Any

import attrs
from aiohttp import web
from aiohttp.typedefs import Handler

from gateway import __version__
from gateway.domain.channel import Channel
from gateway.domain.fault import InvalidApiKey, NotFound, UpstreamFault
from gateway.domain.price import NANOS_PER_USD
from gateway.domain.request import RequestFilter, StoredRequest
from gateway.flow.models import Catalog
from gateway.web.admin.forms import read_id, write_json, write_listing
from gateway.web.admin.money import MONEY_DOORS
from gateway.web.body import read_json
from gateway.web.keys import OFFICE
from gateway.web.query import read_number

PREFIX = "/admin/v1"
MAX_LISTED = 1000
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


def add_admin_routes(app: web.Application) -> None:
    """Everything under ``/admin/v1``."""
    add = app.router.add_route
    for method, path, door in (
        ("GET", "/status", get_status),
        ("GET", "/accounts", list_accounts),
        ("POST", "/accounts", add_account),
        ("GET", "/accounts/{name}", get_account),
        ("PATCH", "/accounts/{name}", edit_account),
        ("DELETE", "/accounts/{name}", delete_account),
        ("GET", "/keys", list_keys),
        ("POST", "/keys", add_key),
        ("GET", "/keys/{id}", get_key),
        ("PATCH", "/keys/{id}", edit_key),
        ("DELETE", "/keys/{id}", delete_key),
        ("GET", "/channels", list_channels),
        ("GET", "/channels/{name}", get_channel),
        ("POST", "/channels/{name}/test", test_channel),
        ("GET", "/models", list_models),
        ("GET", "/requests", list_requests),
        *MONEY_DOORS,
    ):
        add(method, PREFIX + path, door)


@web.middleware
async def check_admin(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let only the bearer of the admin token into ``/admin/v1``."""
    if request.path.startswith(PREFIX):
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        expected = request.app[OFFICE].token
        if scheme.lower() != "bearer" or not hmac.compare_digest(_bytes(token.strip()), _bytes(expected)):
            raise InvalidApiKey("The admin API needs the token in the data folder's admin.token", should_retry=False)
        if request.method not in _SAFE:
            # What was begun comes into force also where its caller does not wait for it: a key that was disabled in
            # the store must not go on being used because a connection broke.
            office = request.app[OFFICE]
            task = asyncio.get_running_loop().create_task(_run(handler, request))
            office.changes.add(task)
            task.add_done_callback(office.changes.discard)
            return await asyncio.shield(task)
    return await handler(request)


async def _run(handler: Handler, request: web.Request) -> web.StreamResponse:
    return await handler(request)


def _bytes(header: str) -> bytes:
    # aiohttp hands on bytes of a header that are no UTF-8 as lone surrogates.
    return header.encode("utf-8", "surrogateescape")


async def get_status(request: web.Request) -> web.Response:
    """What runs here."""
    office = request.app[OFFICE]
    channels = office.catalog.channels
    return write_json({"version": __version__, "channels": len(channels), "models": len(office.catalog.list_models())})


async def list_accounts(request: web.Request) -> web.Response:
    """Every account."""
    return write_listing(await request.app[OFFICE].administration.list_accounts())


async def add_account(request: web.Request) -> web.Response:
    """A new account."""
    return write_json(await request.app[OFFICE].administration.add_account(await read_json(request)), 201)


async def get_account(request: web.Request) -> web.Response:
    """One account."""
    return write_json(await request.app[OFFICE].administration.get_account(request.match_info["name"]))


async def edit_account(request: web.Request) -> web.Response:
    """Change fields of an account."""
    fields = await read_json(request)
    return write_json(await request.app[OFFICE].administration.edit_account(request.match_info["name"], fields))


async def delete_account(request: web.Request) -> web.Response:
    """Remove an account and its keys."""
    name = request.match_info["name"]
    await request.app[OFFICE].administration.delete_account(name)
    return write_json({"name": name, "deleted": True})


async def list_keys(request: web.Request) -> web.Response:
    """Every key."""
    return write_listing(await request.app[OFFICE].administration.list_keys())


async def add_key(request: web.Request) -> web.Response:
    """A new key, with its secret this once."""
    return write_json(await request.app[OFFICE].administration.add_key(await read_json(request)), 201)


async def get_key(request: web.Request) -> web.Response:
    """One key."""
    return write_json(await request.app[OFFICE].administration.get_key(read_id(request)))


async def edit_key(request: web.Request) -> web.Response:
    """Change fields of a key."""
    fields = await read_json(request)
    return write_json(await request.app[OFFICE].administration.edit_key(read_id(request), fields))


async def delete_key(request: web.Request) -> web.Response:
    """Remove a key."""
    key_id = read_id(request)
    await request.app[OFFICE].administration.delete_key(key_id)
    return write_json({"id": key_id, "deleted": True})


async def list_channels(request: web.Request) -> web.Response:
    """Every channel, without its keys."""
    catalog = request.app[OFFICE].catalog
    return write_listing([_write_channel(channel, catalog) for channel in catalog.channels])


async def get_channel(request: web.Request) -> web.Response:
    """One channel and the models it offers."""
    catalog = request.app[OFFICE].catalog
    channel = _get_channel(request)
    offer = catalog.find_offer(channel) or ()
    return write_json({**_write_channel(channel, catalog), "offered": [listed.id for listed in offer]})


async def test_channel(request: web.Request) -> web.Response:
    """Ask the provider for its models, now."""
    channel = _get_channel(request)
    try:
        listing = await request.app[OFFICE].fetch(channel)
    except UpstreamFault as fault:
        return write_json({"name": channel.name, "ok": False, "error": fault.message, "models": None})
    return write_json({"name": channel.name, "ok": True, "error": None, "models": len(listing)})


def _get_channel(request: web.Request) -> Channel:
    name = request.match_info["name"]
    for channel in request.app[OFFICE].catalog.channels:
        if channel.name == name:
            return channel
    raise NotFound(f"No channel is called {name[:64]!r}")


def _write_channel(channel: Channel, catalog: Catalog) -> dict[str, Any]:
    offer = catalog.find_offer(channel)
    return {
        "name": channel.name,
        "provider": channel.provider,
        "base_url": channel.base_url,
        "origin": channel.origin,
        "api_keys": len(channel.api_keys),
        "models": list(channel.models),
        "offers": None if offer is None else len(offer),
        "sync": channel.sync,
        "model_map": dict(channel.model_map),
        "groups": list(channel.groups),
        "priority": channel.priority,
        "weight": channel.weight,
        "max_concurrency": channel.max_concurrency,
        "rpm": channel.rpm,
        "price_multiplier": channel.multiplier_ppm / 1_000_000,
        "timeouts": attrs.asdict(channel.timeouts),
        "proxy": channel.proxy is not None,
        "declared": channel.origin == "file",
    }


async def list_models(request: web.Request) -> web.Response:
    """Every model, with the channels that serve it."""
    catalog = request.app[OFFICE].catalog
    return write_listing(
        [
            {
                "id": listed.id,
                "owned_by": listed.owned_by,
                "created": listed.created_s,
                "channels": [channel.name for channel in catalog.rank(listed.id)],
            }
            for listed in catalog.list_models()
        ],
    )


async def list_requests(request: web.Request) -> web.Response:
    """Request rows: ``limit`` (50), ``after`` (a sequence), ``key`` (an id), ``model``, ``status``."""
    query = request.query
    wanted = RequestFilter(
        key_id=read_number(query, "key"),
        model=query.get("model"),
        status=read_number(query, "status"),
        after=read_number(query, "after"),
    )
    limit = min(read_number(query, "limit") or 50, MAX_LISTED)
    stored = await request.app[OFFICE].requests.list_requests(wanted, limit)
    return write_listing([_write_request(item) for item in stored])


def _write_request(stored: StoredRequest) -> dict[str, Any]:
    fields = attrs.asdict(stored.row)
    return {"sequence": stored.sequence, **fields, "cost_usd": stored.row.cost_nanos / NANOS_PER_USD}
