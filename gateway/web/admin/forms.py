"""What the admin API's doors read from a request and how they answer."""

from typing import Any

import orjson
from aiohttp import web

from gateway.domain.fault import NotFound
from gateway.web.query import is_number


def write_json(value: Any, status: int = 200) -> web.Response:
    """JSON."""
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")


def write_listing(items: list[Any]) -> web.Response:
    """A list, in the convention's form."""
    return write_json({"object": "list", "data": items})


def read_id(request: web.Request) -> int:
    """The key's id in the path. Raises ``NotFound``."""
    text = request.match_info["id"]
    if not is_number(text):
        raise NotFound(f"No key has the id {text[:40]!r}")
    return int(text)
