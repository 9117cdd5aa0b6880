"""The admin API's paths; who may walk them is in their doors."""

from typing import Any

import attrs
from aiohttp import web

from gateway import __version__
from gateway.domain.declaration import AccountSpec, KeySpec
from gateway.domain.price import NANOS_PER_USD
from gateway.domain.request import RequestFilter, StoredRequest
from gateway.web.admin.channels import CHANNEL_DOORS
from gateway.web.admin.doors import Door
from gateway.web.admin.forms import read_id, write_json, write_listing
from gateway.web.admin.money import MONEY_DOORS
from gateway.web.admin.videos import VIDEO_DOORS
from gateway.web.body import read_json
from gateway.web.keys import OFFICE
from gateway.web.query import read_number

MAX_LISTED = 1000


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


def list_doors() -> tuple[Door, ...]:
    """Every operation of the admin API."""
    return (
        Door("GET", "/status", get_status),
        Door("GET", "/accounts", list_accounts),
        Door("POST", "/accounts", add_account, takes=AccountSpec, status=201),
        Door("GET", "/accounts/{name}", get_account),
        Door("PATCH", "/accounts/{name}", edit_account, takes=AccountSpec, partly=True),
        Door("DELETE", "/accounts/{name}", delete_account),
        Door("GET", "/keys", list_keys),
        Door("POST", "/keys", add_key, takes=KeySpec, status=201),
        Door("GET", "/keys/{id}", get_key),
        Door("PATCH", "/keys/{id}", edit_key, takes=KeySpec, partly=True),
        Door("DELETE", "/keys/{id}", delete_key),
        Door("GET", "/requests", list_requests),
        *CHANNEL_DOORS,
        *MONEY_DOORS,
        *VIDEO_DOORS,
    )
