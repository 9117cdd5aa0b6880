"""The console's static files, read once and served under a digest of all files.

Browsers may cache them forever: an upgrade changes all URLs, including those of imported scripts.
"""

import gzip
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from aiohttp import web

from gateway.frozen import frozen
from gateway.server.console.headers import HEADERS
from gateway.server.console.language import read_catalogue_bytes, write_script
from gateway.server.console.routes import ROOT

_MEDIA_TYPES_BY_SUFFIX: Mapping[str, str] = {
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
    "png": "image/png",
}
_DIGEST_CHARS = 20
_GZIP = re.compile(r"(?:^|[,\s])gzip(?:\s*;\s*q=(?:1|0?\.0*[1-9])\S*)?\s*(?:,|$)")


@frozen
class StaticFile:
    """A file with its media type and entity tag. ``compressed_body`` is ``body`` in the coding gzip."""

    body: bytes
    compressed_body: bytes
    media_type: str
    etag: str


async def get_file(request: web.Request) -> web.Response:
    """Serve a static file.

    Under a different digest, or without a digest, browsers must revalidate the file. Raises ``HTTPNotFound``.
    """
    build, _, name = request.match_info["name"].rpartition("/")
    file = read_files().get(name) or read_messages(name)
    if file is None:
        raise web.HTTPNotFound
    cache_control = "public, max-age=31536000, immutable" if build == find_build() else "no-cache"
    headers = {**HEADERS, "ETag": file.etag, "Cache-Control": cache_control, "Vary": "Accept-Encoding"}
    if file.etag in request.headers.get("If-None-Match", ""):
        return web.Response(status=304, headers=headers)
    body = file.body
    if _GZIP.search(request.headers.get("Accept-Encoding", "")):
        headers["Content-Encoding"], body = "gzip", file.compressed_body
    return web.Response(body=body, headers=headers, content_type=file.media_type, charset="utf-8")


@cache
def read_files() -> Mapping[str, StaticFile]:
    """Return all static files by name."""
    files_by_name = {}
    for path in (files("gateway.server.console") / "static").iterdir():
        media_type = _MEDIA_TYPES_BY_SUFFIX.get(path.name.rpartition(".")[2])
        if media_type is not None:
            files_by_name[path.name] = _build_file(path.read_bytes(), media_type)
    return files_by_name


@cache
def read_messages(name: str) -> StaticFile | None:
    """Return the script with a language's messages; None if ``name`` is no such script."""
    script = write_script(name)
    return None if script is None else _build_file(script, _MEDIA_TYPES_BY_SUFFIX["js"])


def _build_file(body: bytes, media_type: str) -> StaticFile:
    etag = f'W/"{hashlib.sha256(body).hexdigest()[:_DIGEST_CHARS]}"'  # weak: both codings have it
    return StaticFile(body, gzip.compress(body, mtime=0), media_type, etag)


@cache
def find_build() -> str:
    """Return the digest of all files, and of the catalogues from which the scripts' messages are generated."""
    tags = "".join(file.etag for _, file in sorted(read_files().items(), key=lambda item: item[0]))
    return hashlib.sha256(tags.encode() + read_catalogue_bytes()).hexdigest()[:_DIGEST_CHARS]


def find_static() -> str:
    """Return the base URL of the static files."""
    return f"{ROOT}/static/{find_build()}"
