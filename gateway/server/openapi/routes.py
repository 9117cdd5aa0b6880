"""Serve ``GET /openapi.json`` and ``GET /docs`` to anyone: they contain nothing private."""
# ruff: noqa: PLC0415 - loads the generator only at the first request for the document.

import asyncio
import hashlib
from functools import cache

from aiohttp import web

from gateway.frozen import frozen
from gateway.server.client_ip import find_origin
from gateway.server.console.headers import HEADERS
from gateway.server.context import SERVICES
from gateway.server.path_prefix import prefix_links
from gateway.server.responses import write_answer

_DIGEST_CHARS = 20
_EXAMPLE_ORIGIN = "http://127.0.0.1:8080"
"""The address in the examples if the address by which the client reaches the gateway is unknown."""


@frozen
class BuiltDocument:
    """The serialized document with its entity tag."""

    body: bytes
    etag: str


async def get_openapi(request: web.Request) -> web.StreamResponse:
    """Serve the OpenAPI document."""
    document = await asyncio.to_thread(_build_document)  # the first call takes too long for the event loop
    headers = {"ETag": document.etag, "Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
    if document.etag in request.headers.get("If-None-Match", ""):
        return web.Response(status=304, headers=headers)
    return write_answer(request, document.body, {**headers, "Content-Type": "application/json"})


@cache
def _build_document() -> BuiltDocument:
    from gateway.server.openapi.document import serialize_document

    body = serialize_document()
    return BuiltDocument(body, f'"{hashlib.sha256(body).hexdigest()[:_DIGEST_CHARS]}"')


async def get_docs(request: web.Request) -> web.StreamResponse:
    """Serve the page that shows the document, with the address of this gateway in its examples."""
    from gateway.server.openapi.docs_page import build_page

    address = request.app[SERVICES].http.base_url or find_origin(request) or _EXAMPLE_ORIGIN
    page = await asyncio.to_thread(build_page, address)
    page = prefix_links(page, request.app[SERVICES].http.path_prefix)
    return write_answer(request, page, {**HEADERS, "Content-Type": "text/html; charset=utf-8"})
