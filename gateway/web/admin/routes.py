"""The admin API's paths. Every one needs the token of the data folder."""

import hmac
from typing import Any

import attrs
import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from gateway import __version__
from gateway.domain.channel import Channel
from gateway.domain.fault import InvalidApiKey, InvalidRequest, NotFound, UpstreamFault
from gateway.domain.price import NANOS_PER_USD
from gateway.domain.request import RequestFilter, StoredRequest
from gateway.flow.models import Catalog
from gateway.web.body import read_json
from gateway.web.keys import OFFICE

PREFIX = "/admin/v1"
MAX_LISTED = 1000


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
    return await handler(request)


def _bytes(header: str) -> bytes:
    # aiohttp hands on bytes of a header that are no UTF-8 as lone surrogates.
    return header.encode("utf-8", "surrogateescape")


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")


def _listing(items: list[Any]) -> web.Response:
    return _json({"object": "list", "data": items})


async def get_status(request: web.Request) -> web.Response:
    """What runs here."""
    office = request.app[OFFICE]
    channels = office.catalog.channels
    return _json({"version": __version__, "channels": len(channels), "models": len(office.catalog.list_models())})


async def list_accounts(request: web.Request) -> web.Response:
    """Every account."""
    return _listing(await request.app[OFFICE].administration.list_accounts())


async def add_account(request: web.Request) -> web.Response:
    """A new account."""
    return _json(await request.app[OFFICE].administration.add_account(await read_json(request)), 201)


async def get_account(request: web.Request) -> web.Response:
    """One account."""
    return _json(await request.app[OFFICE].administration.get_account(request.match_info["name"]))


async def edit_account(request: web.Request) -> web.Response:
    """Change fields of an account."""
    fields = await read_json(request)
    return _json(await request.app[OFFICE].administration.edit_account(request.match_info["name"], fields))


async def delete_account(request: web.Request) -> web.Response:
    """Remove an account and its keys."""
    name = request.match_info["name"]
    await request.app[OFFICE].administration.delete_account(name)
    return _json({"name": name, "deleted": True})


async def list_keys(request: web.Request) -> web.Response:
    """Every key."""
    return _listing(await request.app[OFFICE].administration.list_keys())


async def add_key(request: web.Request) -> web.Response:
    """A new key, with its secret this once."""
    return _json(await request.app[OFFICE].administration.add_key(await read_json(request)), 201)


async def get_key(request: web.Request) -> web.Response:
    """One key."""
    return _json(await request.app[OFFICE].administration.get_key(_read_id(request)))


async def edit_key(request: web.Request) -> web.Response:
    """Change fields of a key."""
    fields = await read_json(request)
    return _json(await request.app[OFFICE].administration.edit_key(_read_id(request), fields))


async def delete_key(request: web.Request) -> web.Response:
    """Remove a key."""
    key_id = _read_id(request)
    await request.app[OFFICE].administration.delete_key(key_id)
    return _json({"id": key_id, "deleted": True})


def _read_id(request: web.Request) -> int:
    text = request.match_info["id"]
    if not (text.isascii() and text.isdigit() and len(text) < 19):  # noqa: PLR2004 - the digits of a 64-bit integer
        raise NotFound(f"No key has the id {text[:40]!r}")
    return int(text)


async def list_channels(request: web.Request) -> web.Response:
    """Every channel, without its keys."""
    catalog = request.app[OFFICE].catalog
    return _listing([_write_channel(channel, catalog) for channel in catalog.channels])


async def get_channel(request: web.Request) -> web.Response:
    """One channel and the models it offers."""
    catalog = request.app[OFFICE].catalog
    channel = _get_channel(request)
    offer = catalog.find_offer(channel) or ()
    return _json({**_write_channel(channel, catalog), "offered": [listed.id for listed in offer]})


async def test_channel(request: web.Request) -> web.Response:
    """Ask the provider for its models, now."""
    channel = _get_channel(request)
    try:
        listing = await request.app[OFFICE].fetch(channel)
    except UpstreamFault as fault:
        return _json({"name": channel.name, "ok": False, "error": fault.message, "models": None})
    return _json({"name": channel.name, "ok": True, "error": None, "models": len(listing)})


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
    return _listing(
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
        key_id=_read_number(query.get("key"), "key"),
        model=query.get("model"),
        status=_read_number(query.get("status"), "status"),
        after=_read_number(query.get("after"), "after"),
    )
    limit = min(_read_number(query.get("limit"), "limit") or 50, MAX_LISTED)
    stored = await request.app[OFFICE].requests.list_requests(wanted, limit)
    return _listing([_write_request(item) for item in stored])


def _read_number(text: str | None, name: str) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):  # noqa: PLR2004
        raise InvalidRequest(f"'{name}' must be a whole number", param=name)
    return int(text)


def _write_request(stored: StoredRequest) -> dict[str, Any]:
    fields = attrs.asdict(stored.row)
    return {"sequence": stored.sequence, **fields, "cost_usd": stored.row.cost_nanos / NANOS_PER_USD}
