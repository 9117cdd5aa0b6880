"""What the admin API's doors read from a request and how they answer."""

from typing import Any

import orjson
from aiohttp import web

from gateway.errors import NotFound
from gateway.server.admin.operation import Query
from gateway.server.auth import check_still_signed
from gateway.server.openapi import schema as s
from gateway.server.query import is_number, parse_number
from gateway.server.request_body import read_json

LISTED, MAX_LISTED = 50, 1000
LIMIT = Query(
    "limit", f"How many at the most: {LISTED} where it is not said, and never more than {MAX_LISTED}.", s.COUNT
)
OF_ACCOUNT = Query("account", "Only of this account (a name).")


def write_json(value: Any, status: int = 200) -> web.Response:
    """JSON."""
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")


def write_listing(items: list[Any]) -> web.Response:
    """A list, in the convention's form."""
    return write_json({"object": "list", "data": items})


async def read_change(request: web.Request) -> dict[str, Any]:
    """The JSON object of a change. A body may take a minute: whose session ends meanwhile changes nothing any more.

    Raises ``SignedOut``, and as ``parse_json`` does.
    """
    fields = await read_json(request)
    await check_still_signed(request)
    return fields


async def read_fields(request: web.Request) -> dict[str, Any]:
    """The same of a request that may as well have no body: then an empty one."""
    return await read_change(request) if request.body_exists else {}


def read_limit(request: web.Request) -> int:
    """How many are to be listed: ``limit``, or 50. Raises ``InvalidRequest``."""
    return min(parse_number(request.query, "limit") or LISTED, MAX_LISTED)


def read_id(request: web.Request) -> int:
    """The key's id in the path. Raises ``NotFound``."""
    text = request.match_info["id"]
    if not is_number(text):
        raise NotFound(f"No key has the id {text[:40]!r}")
    return int(text)
