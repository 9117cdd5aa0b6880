"""The console's own files: style, scripts and its sign. Read once, and known again by their digest.

Pages name them below a digest of them all, where a browser may keep them for good: after an upgrade their addresses are
others, also those by which scripts import one another.
"""

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType

import attrs
from aiohttp import web

from gateway.server.console.page import HEADERS, ROOT

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


def register_static_files(app: web.Application) -> None:
    """Under ``/console/static``."""
    app.router.add_get(ROOT + "/static/{name:(?:[0-9a-f]+/)?[^/]+}", get_file)


async def get_file(request: web.Request) -> web.Response:
    """One of them. Where it is asked for by another digest or none, a browser asks again each time."""
    build, _, name = request.match_info["name"].rpartition("/")
    file = read_files().get(name)
    if file is None:
        raise web.HTTPNotFound
    kept = "public, max-age=31536000, immutable" if build == find_build() else "no-cache"
    headers = {**HEADERS, "ETag": file.etag, "Cache-Control": kept}
    if file.etag in request.headers.get("If-None-Match", ""):
        return web.Response(status=304, headers=headers)
    return web.Response(body=file.body, headers=headers, content_type=file.media_type, charset="utf-8")


@cache
def read_files() -> Mapping[str, File]:
    """Every file by its name."""
    found = {}
    for path in (files("gateway.server.console") / "static").iterdir():
        kind = _KINDS.get(path.name.rpartition(".")[2])
        if kind is not None:
            body = path.read_bytes()
            found[path.name] = File(body, kind, f'"{hashlib.sha256(body).hexdigest()[:_DIGEST]}"')
    return MappingProxyType(found)


@cache
def find_build() -> str:
    """The digest of them all."""
    tags = "".join(file.etag for _, file in sorted(read_files().items(), key=lambda item: item[0]))
    return hashlib.sha256(tags.encode()).hexdigest()[:_DIGEST]


def find_static() -> str:
    """The address that pages name them below."""
    return f"{ROOT}/static/{find_build()}"
