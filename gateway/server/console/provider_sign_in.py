"""Sign-in by a provider: the browser is sent there, and comes back with a code.

The session's cookie is ``SameSite=Strict``: a browser neither sends it along with a navigation from the provider's site
nor on a redirect of that navigation. The callback is therefore guarded by its state and a cookie of its own, and it
answers a page of this gateway that goes on by itself.
"""

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aiohttp import web

from gateway.auth.sessions import CurrentUser
from gateway.auth.sign_in_flow import FLOW_S
from gateway.config.exposure import is_loopback
from gateway.domain.member import SignedOut
from gateway.errors import GatewayError, InvalidRequest, NotFound
from gateway.server.admin.sessions import build_client_info
from gateway.server.client_ip import find_origin
from gateway.server.console.language import mark
from gateway.server.console.page import HEADERS, ROOT, Page, format_fault_page, load_nothing, render
from gateway.server.console.sign_in import find_next
from gateway.server.context import SERVICES
from gateway.server.sessions import find_signed, is_secure, set_cookie

if TYPE_CHECKING:  # it imports Authlib, which is an extra
    from gateway.auth.provider_sign_in import ProviderSignIn

_COOKIE, _SECURE_COOKIE = "gateway_sign_in", "__Host-gateway_sign_in"
_MARK = 12
"""Characters of the state in the cookie's name, so that two tabs have two cookies."""
_PATH = "/sign-in/{provider}"
_PAGE = Page("/signed-in", "signed_in.html", mark("Signed in"), load_nothing, None)


def add_provider_sign_in(app: web.Application) -> None:
    """Add the routes; without a provider they answer 404."""
    app.router.add_get(_PATH, begin, allow_head=False)
    app.router.add_get(f"{_PATH}/callback", finish, allow_head=False)


async def begin(request: web.Request) -> web.StreamResponse:
    """Send the browser to the provider. With ``link``, the member who is signed in gets a new identity."""
    try:
        name = request.match_info["provider"]
        signed = await _find_signed(request) if "link" in request.query else None
        redirect_uri = f"{_find_own_origin(request)}{ROOT}/sign-in/{name}/callback"
        begun = await _get_service(request).begin(name, redirect_uri, find_next(request), signed)
    except GatewayError as error:
        return format_fault_page(request, error)
    response = web.Response(status=303, headers={**HEADERS, "Location": begun.url})
    _put_cookie(request, response, begun.flow.state, begun.cookie, FLOW_S)
    return response


async def finish(request: web.Request) -> web.StreamResponse:
    """Sign in the member whom the provider sends back."""
    state = request.query.get("state", "")
    cookie = request.cookies.get(_name_cookie(request, state), "")
    try:
        service, visitor = _get_service(request), build_client_info(request)
        flow, entry = await service.finish(request.match_info["provider"], request.query, cookie, visitor)
    except GatewayError as error:
        response = format_fault_page(request, error)
    else:
        response = render(request, _PAGE.template, {"page": _PAGE, "next": flow.next})
        if entry is not None:
            set_cookie(request, response, entry.reference)
    if cookie:
        _put_cookie(request, response, state, "", 0)
    return response


def _get_service(request: web.Request) -> "ProviderSignIn":
    service = request.app[SERVICES].sign_in
    if service is None:
        raise NotFound("There is no such sign-in provider")
    return service


async def _find_signed(request: web.Request) -> CurrentUser:
    signed = await find_signed(request)
    if signed is None:
        raise SignedOut("Sign in first", should_retry=False)
    return signed


def _find_own_origin(request: web.Request) -> str:
    """Return the origin that the provider sends the browser to.

    It is ``base_url``. Without one, ``Host`` counts only if it is this machine: anyone can write one.
    """
    base_url = request.app[SERVICES].http.base_url
    if base_url:
        return base_url
    origin = find_origin(request)
    if not is_loopback(urlsplit(origin).hostname or ""):
        raise InvalidRequest("Set server.base_url to sign in with a provider from another machine")
    return origin


def _put_cookie(request: web.Request, response: web.StreamResponse, state: str, value: str, max_age: int) -> None:
    name, secure = _name_cookie(request, state), is_secure(request) or None
    response.set_cookie(name, value, path="/", httponly=True, samesite="Lax", secure=secure, max_age=max_age)


def _name_cookie(request: web.Request, state: str) -> str:
    name = _SECURE_COOKIE if is_secure(request) else _COOKIE
    return f"{name}_{state[:_MARK]}"
