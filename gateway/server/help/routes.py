"""Serve ``GET /help`` and the pages below it without sign-in: they contain nothing private."""
# ruff: noqa: PLC0415 - loads the renderer only at the first request for a page.

import asyncio
import html

from aiohttp import web

from gateway.server.client_ip import find_public_url
from gateway.server.console.headers import HEADERS
from gateway.server.context import SERVICES
from gateway.server.path_prefix import prefix_links
from gateway.server.responses import write_answer


async def get_page(request: web.Request) -> web.StreamResponse:
    """Serve a page, or the results of ``/help?q=…``. Raises ``HTTPNotFound``.

    Examples get the address of this gateway.
    """
    from gateway.server.help.pages import DOCUMENTED_ADDRESS, build_pages

    name = request.match_info.get("page", "").strip("/") or "index"
    if name == "index" and "q" in request.query:
        body: bytes | None = await asyncio.to_thread(_build_results, request.query["q"])
    else:
        body = (await asyncio.to_thread(build_pages)).get(name)  # the first call takes too long for the event loop
    if body is None:
        raise web.HTTPNotFound
    if address := find_public_url(request):
        body = body.replace(DOCUMENTED_ADDRESS.encode(), html.escape(address).encode())
    body = prefix_links(body, request.app[SERVICES].http.path_prefix)
    return write_answer(request, body, {**HEADERS, "Content-Type": "text/html; charset=utf-8"})


def _build_results(query: str) -> bytes:
    from gateway.server.help.pages import list_pages, load_template
    from gateway.server.help.search import MAX_QUERY_CHARS, find_sections

    matches = find_sections(list_pages(), query)
    return load_template("help_results.html").render(query=query[:MAX_QUERY_CHARS], matches=matches).encode()
