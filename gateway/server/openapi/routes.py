"""``GET /openapi.json`` and ``GET /docs``: open to anyone, for there is nothing in them but what the gateway is."""
# ruff: noqa: PLC0415 - a gateway that nobody asks for its document does without what writes it.

import asyncio
import hashlib
from functools import cache

import attrs
from aiohttp import web

from gateway.server.console.page import HEADERS
from gateway.server.context import ROOMS
from gateway.server.middlewares import find_origin
from gateway.server.stream_response import write_answer

_DIGEST = 20
_NOWHERE = "http://127.0.0.1:8080"
"""Where a caller's own word for the gateway's address is none."""


@attrs.frozen
class BuiltDocument:
    """The document in bytes."""

    body: bytes
    etag: str


def add_docs(app: web.Application) -> None:
    """The document, and the page of it."""
    app.router.add_get("/openapi.json", get_openapi)
    app.router.add_get("/docs", get_docs)


async def get_openapi(request: web.Request) -> web.StreamResponse:
    """The OpenAPI document."""
    written = await asyncio.to_thread(_build_document)  # the first time it takes longer than others may wait
    headers = {"ETag": written.etag, "Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
    if written.etag in request.headers.get("If-None-Match", ""):
        return web.Response(status=304, headers=headers)
    return write_answer(request, written.body, {**headers, "Content-Type": "application/json"})


@cache
def _build_document() -> BuiltDocument:
    from gateway.server.openapi.document import write_document

    body = write_document()
    return BuiltDocument(body, f'"{hashlib.sha256(body).hexdigest()[:_DIGEST]}"')


async def get_docs(request: web.Request) -> web.StreamResponse:
    """The page."""
    from gateway.server.openapi.docs_page import build_page

    address = request.app[ROOMS].base_url or find_origin(request) or _NOWHERE
    page = await asyncio.to_thread(build_page, address)
    return write_answer(request, page, {**HEADERS, "Content-Type": "text/html; charset=utf-8"})
