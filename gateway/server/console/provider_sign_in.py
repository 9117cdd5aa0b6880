"""Sign-in at an identity provider: redirect the browser there, and handle its return with a code.

The session cookie is ``SameSite=Strict``: a browser does not send it with a navigation from the provider's site, nor
after a redirect of that navigation. The callback is therefore protected by its state and its own cookie, and responds
with a page of this gateway that continues automatically.
"""

from aiohttp import web

from gateway.errors import GatewayError
from gateway.server.admin.sessions import build_client_info
from gateway.server.console.headers import HEADERS
from gateway.server.console.page import render
from gateway.server.console.routes import Page, mark
from gateway.server.console.sign_in import find_next
from gateway.server.provider_flow import (
    begin_flow,
    clear_flow_cookie,
    find_flow_cookie,
    get_provider_sign_in,
    set_flow_cookie,
)
from gateway.server.sessions import set_cookie

_SIGNED_IN_PAGE = Page("", "signed_in.html", mark("Signed in"), needs=None)
_FAILED_PAGE = Page("", "sign_in_failed.html", mark("Sign-in failed"), needs=None)


async def begin(request: web.Request) -> web.StreamResponse:
    """Redirect the browser to the provider."""
    try:
        flow = await begin_flow(request, find_next(request))
    except GatewayError as error:
        return _render_failure(request, error)
    response = web.Response(status=303, headers={**HEADERS, "Location": flow.url})
    set_flow_cookie(request, response, flow)
    return response


async def finish(request: web.Request) -> web.StreamResponse:
    """Sign in or link the member that the provider has authenticated. If this fails, a page shows why."""
    cookie = find_flow_cookie(request)
    try:
        service, visitor = get_provider_sign_in(request), build_client_info(request)
        flow, new_session = await service.finish(request.match_info["provider"], request.query, cookie, visitor)
    except GatewayError as error:
        response = _render_failure(request, error)
    else:
        response = render(request, _SIGNED_IN_PAGE.template, {"page": _SIGNED_IN_PAGE, "next": flow.next})
        if new_session is not None:
            set_cookie(request, response, new_session.reference)
    if cookie:
        clear_flow_cookie(request, response)
    return response


def _render_failure(request: web.Request, error: GatewayError) -> web.Response:
    return render(request, _FAILED_PAGE.template, {"page": _FAILED_PAGE, "fault": error}, error.status)
