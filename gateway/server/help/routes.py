"""Serve ``GET /help`` and the pages below it without sign-in: they contain nothing private."""
# ruff: noqa: PLC0415 - loads the renderer only at the first request for a page.

import asyncio

from aiohttp import web

from gateway.server.console.headers import HEADERS
from gateway.server.context import SERVICES
from gateway.server.path_prefix import prefix_links
from gateway.server.responses import write_answer


async def get_page(request: web.Request) -> web.StreamResponse:
    """Serve a page. Raises ``HTTPNotFound``."""
    from gateway.server.help.pages import build_pages

    pages = await asyncio.to_thread(build_pages)  # the first call takes too long for the event loop
    body = pages.get(request.match_info.get("page", "").strip("/") or "index")
    if body is None:
        raise web.HTTPNotFound
    body = prefix_links(body, request.app[SERVICES].http.path_prefix)
    return write_answer(request, body, {**HEADERS, "Content-Type": "text/html; charset=utf-8"})
