"""The admin API's paths. Every one needs the token of the data folder."""

import asyncio
import hmac
from typing import Any

import attrs
from aiohttp import web
from aiohttp.typedefs import Handler

from gateway import __version__
from gateway.domain.fault import InvalidApiKey
from gateway.domain.price import NANOS_PER_USD
from gateway.domain.request import RequestFilter, StoredRequest
from gateway.web.admin.channels import CHANNEL_DOORS
from gateway.web.admin.forms import read_id, write_json, write_listing
from gateway.web.admin.money import MONEY_DOORS
from gateway.web.admin.videos import VIDEO_DOORS
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
        ("GET", "/requests", list_requests),
        *CHANNEL_DOORS,
        *MONEY_DOORS,
        *VIDEO_DOORS,
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


async def list_requests(request: web.Request) -> web.Response:
    """Request rows: ``limit`` (50), ``after`` (a sequence), ``key`` (an id), ``model``, ``channel``, ``status``."""
    query = request.query
    wanted = RequestFilter(
        key_id=read_number(query, "key"),
        model=query.get("model"),
        channel=query.get("channel"),
        status=read_number(query, "status"),
        after=read_number(query, "after"),
    )
    limit = min(read_number(query, "limit") or 50, MAX_LISTED)
    stored = await request.app[OFFICE].requests.list_requests(wanted, limit)
    return write_listing([_write_request(item) for item in stored])


def _write_request(stored: StoredRequest) -> dict[str, Any]:
    fields = attrs.asdict(stored.row)
    return {"sequence": stored.sequence, **fields, "cost_usd": stored.row.cost_nanos / NANOS_PER_USD}
