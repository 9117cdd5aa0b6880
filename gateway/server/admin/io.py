"""Parse admin API requests and build their responses."""

from contextlib import suppress
from typing import Any

import orjson
from aiohttp import web

from gateway.errors import NotFound, StoreUnavailable
from gateway.server.admin.handler import Query
from gateway.server.context import SERVICES
from gateway.server.openapi import schema as s
from gateway.server.query import is_number, parse_number
from gateway.server.request_body import read_json
from gateway.server.sessions import check_still_signed
from gateway.storage.nodes import await_in_force

LISTED, MAX_LISTED = 50, 1000
LIMIT = Query("limit", f"Page size, {LISTED} by default and at most {MAX_LISTED}.", s.COUNT)
OF_ACCOUNT = Query("account", "Only this account (a name).")
_IN_FORCE = s.explain(
    s.record(nodes=s.COUNT, of=s.COUNT, ms=s.COUNT),
    "Only in the answer to a change, and only in a cluster: the change is in force at so many nodes `of` those that "
    "live. The answer waits for them, up to 500 `ms`. A node that cannot apply a change takes no requests after 10 s.",
)


def allow_in_force(shape: s.Shape) -> s.Shape:
    """Return the answer of a change: in a cluster it says at how many of its nodes the change is in force.

    The answer waits ``ms`` milliseconds for them, 500 at the most. The others apply it within seconds.
    """
    return s.allow(shape, in_force=_IN_FORCE)


def respond_json(value: Any, status: int = 200) -> web.Response:
    """Respond with JSON."""
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")


async def respond_change(request: web.Request, fields: dict[str, Any], status: int = 200) -> web.Response:
    """Respond to a change of what every node holds in memory. In a cluster the answer says where it is in force."""
    storage = request.app[SERVICES].storage
    if storage.node is not None:
        with suppress(StoreUnavailable):  # the change is stored
            found = await await_in_force(storage.database)
            fields = {**fields, "in_force": {"nodes": found.nodes, "of": found.total, "ms": found.ms}}
    return respond_json(fields, status)


def respond_list(items: list[Any]) -> web.Response:
    """Respond with a list, in the form of the OpenAI API."""
    return respond_json({"object": "list", "data": items})


async def read_change(request: web.Request) -> dict[str, Any]:
    """Read the JSON object of a change.

    A body may take a minute to arrive, so check afterwards that the session goes on.

    Raises:
        SignedOut: the session has ended.
        InvalidRequest: as ``read_json`` does.
    """
    fields = await read_json(request)
    await check_still_signed(request)
    return fields


async def read_fields(request: web.Request) -> dict[str, Any]:
    """Do the same for a request that may have no body: return an empty object for it."""
    return await read_change(request) if request.body_exists else {}


def parse_limit(request: web.Request) -> int:
    """Return the requested page size, by default 50. Raises ``InvalidRequest``."""
    return min(parse_number(request.query, "limit") or LISTED, MAX_LISTED)


def parse_key_id(request: web.Request) -> int:
    """Return the key id in the path. Raises ``NotFound``."""
    text = request.match_info["id"]
    if not is_number(text):
        raise NotFound(f"No key has the id {text[:40]!r}")
    return int(text)
