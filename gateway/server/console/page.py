"""Console pages: access, data and response headers.

A page shows what the admin API answers: ``ask`` calls its handlers in the same process and with the same rights. Pages
change nothing; their scripts call the admin API for that.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import aiohttp_jinja2
import attrs
import orjson
from aiohttp import web
from aiohttp.typedefs import Handler
from jinja2 import Environment

from gateway import __version__
from gateway.auth.sessions import CurrentUser
from gateway.domain.member import Forbidden, Role, may
from gateway.errors import GatewayError
from gateway.server.admin.operation import OPERATIONS, PREFIX
from gateway.server.client_ip import find_client_ip
from gateway.server.console.language import ENGLISH, LANGUAGE, LANGUAGES, find_language, mark, read_catalogue
from gateway.server.console.rendering import build_environment
from gateway.server.context import ACTOR, SERVICES, SIGNED
from gateway.server.error_responses import parse_http_error
from gateway.server.path_prefix import prefix_links
from gateway.server.sessions import find_signed

ROOT = "/console"
HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Content-Security-Policy": (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
            "media-src 'self' data: blob:; connect-src 'self'; font-src 'self'; form-action 'self'; "
            "frame-ancestors 'none'; base-uri 'none'"
        ),
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
        "Cache-Control": "no-store",
    },
)
"""No content from elsewhere, no inline scripts, and no page in a frame."""

_ENVIRONMENTS: Mapping[str, web.AppKey[Environment]] = MappingProxyType(
    {language: web.AppKey(f"console_{language}", Environment) for language in LANGUAGES},
)
Data = dict[str, Any]
Load = Callable[[web.Request], Awaitable[Data]]


@attrs.frozen
class Page:
    """One page.

    Attributes:
        path: below ``/console``.
        template: gets what ``load`` returns, ``page``, ``me`` (the member), ``account``, ``query`` and ``clustered``
            (whether the gateway is a node of a cluster).
        title: in the browser's tab; in English.
        load: returns the page's data.
        needs: the least role that may see it; None: anyone, signed in or not.
        part: the menu entry; empty for the page's own name.
    """

    path: str
    template: str
    title: str
    load: Load
    needs: Role | None = "viewer"
    part: str = ""


async def load_nothing(request: web.Request) -> Data:  # noqa: ARG001 - as every page's
    """Load nothing, for a page without data."""
    return {}


def register_pages(app: web.Application, pages: Iterable[Page], static: Callable[[], str]) -> None:
    """Add a route for every page; ``static`` returns the base address of the console's static files."""
    for language, key in _ENVIRONMENTS.items():
        app[key] = build_environment(language, version=__version__, root=ROOT, static=static)
    for page in pages:
        app.router.add_get(page.path, partial(_show, page))


async def _show(page: Page, request: web.Request) -> web.StreamResponse:
    try:
        if page.needs is not None:
            await _check_access(page.needs, request)
        found = await page.load(request)
    except GatewayError as error:
        return format_fault_page(request, error)
    except web.HTTPRedirection as elsewhere:
        return web.Response(status=elsewhere.status, headers={**HEADERS, "Location": elsewhere.headers["Location"]})
    return render(request, page.template, {**found, "page": page})


async def _check_access(needs: Role, request: web.Request) -> None:
    signed = await find_signed(request)
    if signed is None:
        wanted = quote(str(request.rel_url), safe="")
        raise web.HTTPSeeOther(f"{request.app[SERVICES].http.path_prefix}{ROOT}/sign-in?next={wanted}")
    sign(request, signed)
    if not may(signed.member.role, needs):
        raise Forbidden(f"This page is for a role that may do more ({needs}) than yours ({signed.member.role})")


def sign(request: web.Request, signed: CurrentUser) -> None:
    """Set the member and the actor of the request."""
    request[SIGNED] = signed
    request[ACTOR] = signed.act(find_client_ip(request) or "")


async def ask(request: web.Request, path: str, **query: Any) -> Any:
    """Return the admin API's answer to ``GET path`` for the viewer, with only this query.

    Parameters in ``path`` are in braces and take their values from the page's own address.

    Raises:
        GatewayError: as the operation does, ``Forbidden`` included.
    """
    operation = request.app[OPERATIONS]["GET", PREFIX + path]
    signed = request[SIGNED]
    if operation.access != "anyone" and not may(signed.member.role, operation.access):
        raise Forbidden(f"This needs the role {operation.access!r}; yours is {signed.member.role!r}")
    values = {name: str(value) for name, value in query.items() if value not in {None, ""}}
    page_request = request.clone(rel_url=request.rel_url.with_path(PREFIX + path).with_query(values))
    answer = await operation.handler(page_request)
    if not isinstance(answer, web.Response) or not isinstance(answer.body, bytes):
        raise TypeError(f"{path} has no answer that a page could show")
    return orjson.loads(answer.body)


async def list_live_nodes(request: web.Request) -> list[Data]:
    """Return the nodes that a page can show the state of; none if the gateway is alone. Only administrators ask."""
    nodes: list[Data] = (await ask(request, "/nodes"))["data"]
    return [node for node in nodes if node["state"] == "live"]


def render(request: web.Request, template: str, found: Mapping[str, Any], status: int = 200) -> web.Response:
    """Render a page of the console."""
    signed = request.get(SIGNED)
    values = {
        "me": None if signed is None else signed.member,
        "account": None if signed is None else signed.account,
        "query": request.query,
        "clustered": request.app[SERVICES].storage.node is not None,
        **found,
    }
    response = aiohttp_jinja2.render_template(
        template, request, values, app_key=_ENVIRONMENTS[request[LANGUAGE]], status=status
    )
    response.headers.update(HEADERS)
    if isinstance(response.body, bytes):
        response.body = prefix_links(response.body, request.app[SERVICES].http.path_prefix)
    return response


def format_fault_page(request: web.Request, error: GatewayError) -> web.Response:
    """Render a page about an error."""
    page = Page("", "fault.html", mark("Error"), load_nothing, None)
    return render(request, "fault.html", {"page": page, "fault": error}, error.status)


@web.middleware
async def console_pages(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Choose the page's language, and answer 404 and 405 below ``/console`` with a page, not with the error object."""
    request[LANGUAGE] = language = find_language(request)
    if language != ENGLISH:
        await asyncio.to_thread(read_catalogue, language)  # the first time, parsing would block running streams
    try:
        return await handler(request)
    except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as error:
        return format_fault_page(request, parse_http_error(error, request))
