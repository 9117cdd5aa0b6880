"""Console pages: access, data and response headers.

Pages show data of the admin API: ``ask_admin_api`` calls its handlers in the same process and with the viewer's rights.
Pages only read; for changes, their scripts call the admin API.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import quote

import attrs
from aiohttp import web
from aiohttp.typedefs import Handler

from gateway import __version__
from gateway.auth.sessions import CurrentUser
from gateway.deferred import load
from gateway.domain.member import Forbidden, Role, includes_rights
from gateway.errors import GatewayError, NotFound
from gateway.server.admin.handler import AdminRequest
from gateway.server.admin.nodes import NodeView
from gateway.server.admin.operation import OPERATIONS, check_access
from gateway.server.admin.prefix import PREFIX
from gateway.server.client_ip import find_client_ip
from gateway.server.console.headers import HEADERS
from gateway.server.console.language import ENGLISH, LANGUAGE, find_language, read_catalogue
from gateway.server.console.rendering import build_environment
from gateway.server.console.routes import ROOT, Page, find_parent, mark
from gateway.server.console.static_files import find_static
from gateway.server.context import ACTOR, SERVICES, USER
from gateway.server.error_responses import parse_http_error
from gateway.server.path_prefix import prefix_links
from gateway.server.sessions import find_signed_in_user

Data = dict[str, Any]
Load = Callable[[web.Request], Awaitable[Data]]


async def show_page(page: Page, request: web.Request) -> web.StreamResponse:
    """Serve a page, or a page about the error. Without a session, a page that needs one redirects to the sign-in."""
    load_data: Load = load(page.load)
    try:
        if page.needs is not None:
            await _check_access(page.needs, request)
        data = await load_data(request)
    except GatewayError as error:
        return format_fault_page(request, error)
    except web.HTTPRedirection as elsewhere:
        return web.Response(status=elsewhere.status, headers={**HEADERS, "Location": elsewhere.headers["Location"]})
    page = attrs.evolve(page, part=data.get("part", page.part))  # an end user is not found where a tag is
    return render(request, page.template, {**data, "page": page})


async def _check_access(role: Role, request: web.Request) -> None:
    user = await find_signed_in_user(request)
    if user is None:
        next_url = quote(str(request.rel_url), safe="")
        raise web.HTTPSeeOther(f"{request.app[SERVICES].http.path_prefix}{ROOT}/sign-in?next={next_url}")
    set_signed_in(request, user)
    if not includes_rights(user.member.role, role):
        raise Forbidden(f"This page is for a role that may do more ({role}) than yours ({user.member.role})")


def set_signed_in(request: web.Request, user: CurrentUser) -> None:
    """Set the member and the actor of the request."""
    request[USER] = user
    request[ACTOR] = user.act(find_client_ip(request) or "")


async def ask_admin_api(request: web.Request, path: str, **query: Any) -> Any:
    """Return the admin API's answer to ``GET path`` for the viewer, with ``query`` as the only parameters.

    Parameters in braces in ``path`` take their values from the page's URL. Raises ``Forbidden`` if the viewer's role
    may not use the operation, ``NotFound`` if another node answers with an error, and the errors of the operation.
    """
    operation = request.app[OPERATIONS]["GET", PREFIX + path]
    user = request[USER]
    check_access(user.member, operation.access)
    values = {name: str(value) for name, value in query.items() if value not in {None, ""}}
    answer = await operation.handler.function(AdminRequest(request, values))
    if isinstance(answer, web.StreamResponse):
        raise NotFound(f"Another node has no such answer: its status is {answer.status}")
    return answer


async def list_live_nodes(request: web.Request) -> list[NodeView]:
    """Return the nodes whose state a page can show; empty for a single process. Only for administrators."""
    nodes: list[NodeView] = await ask_admin_api(request, "/nodes")
    return [node for node in nodes if node.state == "live"]


def render(request: web.Request, template: str, data: Mapping[str, Any], status: int = 200) -> web.Response:
    """Render a page of the console."""
    user, page = request.get(USER), data.get("page")
    values = {
        "me": None if user is None else user.member,
        "account": None if user is None else user.account,
        "query": request.query,
        "clustered": request.app[SERVICES].storage.node is not None,
        "parent": None if page is None else find_parent(page),
        **data,
    }
    environment = build_environment(request[LANGUAGE], version=__version__, root=ROOT, static=find_static)
    text = environment.get_template(template).render(values)
    body = prefix_links(text.encode(), request.app[SERVICES].http.path_prefix)
    return web.Response(body=body, status=status, headers=HEADERS, content_type="text/html", charset="utf-8")


def format_fault_page(request: web.Request, error: GatewayError) -> web.Response:
    """Render a page about an error."""
    page = Page("", "fault.html", mark("Error"), needs=None)
    return render(request, "fault.html", {"page": page, "fault": error}, error.status)


@web.middleware
async def console_pages(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Choose the page's language, and answer 404 and 405 below ``/console`` with a page instead of JSON."""
    request[LANGUAGE] = language = find_language(request)
    if language != ENGLISH:
        await asyncio.to_thread(read_catalogue, language)  # the first call would block streams
    try:
        return await handler(request)
    except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as error:
        return format_fault_page(request, parse_http_error(error, request))
