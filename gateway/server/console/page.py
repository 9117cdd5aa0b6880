"""How a page is made: who may see it, what it shows, and what it is sent with.

A page shows what the admin API answers: it asks the same doors (``ask``), with the same rights, in the same process.
Nothing is changed by a page; its scripts call the admin API for that.
"""

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
from jinja2 import PackageLoader, StrictUndefined

from gateway import __version__
from gateway.auth.sessions import CurrentUser
from gateway.domain.member import Forbidden, Role, may
from gateway.errors import GatewayError
from gateway.server.admin.operation import OPERATIONS, PREFIX
from gateway.server.auth import find_signed
from gateway.server.console.filters import FILTERS
from gateway.server.context import ACTOR, SIGNED
from gateway.server.middlewares import find_caller_address, read_http_fault

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
"""Nothing from elsewhere, nothing written into the page that runs, and no page inside another's."""

Data = dict[str, Any]
Load = Callable[[web.Request], Awaitable[Data]]


@attrs.frozen
class Page:
    """One page.

    Attributes:
        path: below ``/console``.
        template: what it is written with; it has what ``load`` found, ``page``, ``me`` (the member), ``account`` and
            ``query``.
        title: in the browser's tab.
        load: finds what it shows.
        needs: the least role that may see it; None: anyone, signed in or not.
        part: of the menu; its own name where it is empty.
    """

    path: str
    template: str
    title: str
    load: Load
    needs: Role | None = "viewer"
    part: str = ""


async def load_nothing(request: web.Request) -> Data:  # noqa: ARG001 - as every page's
    """For a page that shows nothing but itself."""
    return {}


def register_pages(app: web.Application, pages: Iterable[Page], static: Callable[[], str]) -> None:
    """Put every page in its place; ``static`` finds the address that the console's own files are below."""
    env = aiohttp_jinja2.setup(
        app,
        loader=PackageLoader("gateway.server.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        default_helpers=False,
        filters=FILTERS,
    )
    env.globals.update(version=__version__, root=ROOT, static=static)
    for page in pages:
        app.router.add_get(ROOT + page.path, partial(_show, page))


async def _show(page: Page, request: web.Request) -> web.StreamResponse:
    try:
        if page.needs is not None:
            await _let_see(page.needs, request)
        found = await page.load(request)
    except GatewayError as fault:
        return format_fault_page(request, fault)
    except web.HTTPRedirection as elsewhere:
        return web.Response(status=elsewhere.status, headers={**HEADERS, "Location": elsewhere.headers["Location"]})
    return render(request, page.template, {**found, "page": page})


async def _let_see(needs: Role, request: web.Request) -> None:
    signed = await find_signed(request)
    if signed is None:
        wanted = quote(str(request.rel_url), safe="")
        raise web.HTTPSeeOther(f"{ROOT}/sign-in?next={wanted}")
    sign(request, signed)
    if not may(signed.member.role, needs):
        raise Forbidden(f"This page is for a role that may do more ({needs}) than yours ({signed.member.role})")


def sign(request: web.Request, signed: CurrentUser) -> None:
    """Note who sees the page."""
    request[SIGNED] = signed
    request[ACTOR] = signed.act(find_caller_address(request) or "")


async def ask(request: web.Request, path: str, **query: Any) -> Any:
    """What the admin API answers to ``GET path``, for whoever sees the page, with just this query.

    ``path`` is a door's, with its parameters' names in braces: their values are those of the page's own address.
    Raises the fault that the door raises, ``Forbidden`` too.
    """
    door = request.app[OPERATIONS]["GET", PREFIX + path]
    signed = request[SIGNED]
    if door.access != "anyone" and not may(signed.member.role, door.access):
        raise Forbidden(f"This needs the role {door.access!r}; yours is {signed.member.role!r}")
    told = {name: str(value) for name, value in query.items() if value not in {None, ""}}
    asked = request.clone(rel_url=request.rel_url.with_path(PREFIX + path).with_query(told))
    answer = await door.handler(asked)
    if not isinstance(answer, web.Response) or not isinstance(answer.body, bytes):
        raise TypeError(f"{path} has no answer that a page could show")
    return orjson.loads(answer.body)


def render(request: web.Request, template: str, found: Mapping[str, Any], status: int = 200) -> web.Response:
    """A page of the console."""
    signed = request.get(SIGNED)
    told = {
        "me": None if signed is None else signed.member,
        "account": None if signed is None else signed.account,
        "query": request.query,
        **found,
    }
    response = aiohttp_jinja2.render_template(template, request, told, status=status)
    response.headers.update(HEADERS)
    return response


def format_fault_page(request: web.Request, fault: GatewayError) -> web.Response:
    """A page that says what went wrong."""
    page = Page("", "fault.html", "Sorry", load_nothing, None)
    return render(request, "fault.html", {"page": page, "fault": fault}, fault.status)


async def shape_faults(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Below ``/console`` what is not there is a page, and not the error object."""
    try:
        return await handler(request)
    except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as error:
        return format_fault_page(request, read_http_fault(error, request))
