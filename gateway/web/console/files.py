"""The console's own files: style, scripts and its sign. Read once, and known again by their digest."""

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType

import attrs
from aiohttp import web

from gateway.web.console.pages import HEADERS, ROOT

_KINDS: Mapping[str, str] = MappingProxyType(
    {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml", "png": "image/png"},
)
_DIGEST = 20


@attrs.frozen
class File:
    """A file and what it is sent with."""

    body: bytes
    media_type: str
    etag: str


def hang_files(app: web.Application) -> None:
    """Under ``/console/static``."""
    app.router.add_get(ROOT + "/static/{name}", get_file)


async def get_file(request: web.Request) -> web.Response:
    """One of them. A browser asks again each time, and is told that it has it: no page runs with an old script."""
    file = read_files().get(request.match_info["name"])
    if file is None:
        raise web.HTTPNotFound
    headers = {**HEADERS, "ETag": file.etag, "Cache-Control": "no-cache"}
    if file.etag in request.headers.get("If-None-Match", ""):
        return web.Response(status=304, headers=headers)
    return web.Response(body=file.body, headers=headers, content_type=file.media_type, charset="utf-8")


@cache
def read_files() -> Mapping[str, File]:
    """Every file by its name."""
    found = {}
    for path in (files("gateway.web.console") / "static").iterdir():
        kind = _KINDS.get(path.name.rpartition(".")[2])
        if kind is not None:
            body = path.read_bytes()
            found[path.name] = File(body, kind, f'"{hashlib.sha256(body).hexdigest()[:_DIGEST]}"')
    return MappingProxyType(found)
