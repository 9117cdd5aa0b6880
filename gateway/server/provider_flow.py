"""Begin sign-ins at an identity provider: the redirect URI, and the cookie that binds a flow to its browser."""

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aiohttp import web

from gateway.auth.sessions import CurrentUser
from gateway.auth.sign_in_flow import FLOW_S
from gateway.config.exposure import is_loopback
from gateway.errors import InvalidRequest, NotFound
from gateway.server.client_ip import find_origin, is_secure
from gateway.server.context import SERVICES

if TYPE_CHECKING:  # imports Authlib, an optional dependency
    from gateway.auth.provider_sign_in import BegunFlow, ProviderSignIn

CALLBACK_PATH = "/console/sign-in/{provider}/callback"
_COOKIE, _SECURE_COOKIE = "gateway_sign_in", "__Host-gateway_sign_in"
_COOKIE_STATE_CHARS = 12
"""Characters of the state in the cookie's name, which give each browser tab its own cookie."""


async def begin_flow(request: web.Request, return_path: str, user: CurrentUser | None = None) -> "BegunFlow":
    """Begin a sign-in at the provider in the request's path. ``user`` is the member to link, if any.

    The browser opens ``return_path`` afterwards. Raises ``NotFound``, ``InvalidRequest``, ``ProviderBadResponse``.
    """
    name = request.match_info["provider"]
    service = get_provider_sign_in(request)
    return await service.begin(name, _find_own_origin(request) + CALLBACK_PATH.format(provider=name), return_path, user)


def get_provider_sign_in(request: web.Request) -> "ProviderSignIn":
    """Return the sign-in service. Raises ``NotFound`` if no provider is configured."""
    service = request.app[SERVICES].sign_in
    if service is None:
        raise NotFound("There is no such sign-in provider")
    return service


def set_flow_cookie(request: web.Request, response: web.StreamResponse, flow: "BegunFlow") -> None:
    """Set the cookie that binds the flow to the browser."""
    _set_cookie(request, response, flow.flow.state, flow.cookie, FLOW_S)


def find_flow_cookie(request: web.Request) -> str:
    """Return the cookie of the flow in the query's ``state``; empty without such a cookie."""
    return request.cookies.get(_name_cookie(request, request.query.get("state", "")), "")


def clear_flow_cookie(request: web.Request, response: web.StreamResponse) -> None:
    """Delete the cookie of the flow in the query's ``state``."""
    _set_cookie(request, response, request.query.get("state", ""), "", 0)


def _find_own_origin(request: web.Request) -> str:
    """Return the origin to which the provider redirects the browser.

    This is ``base_url``. Without ``base_url``, ``Host`` is used only if it names this machine: a client can forge it.
    Raises ``InvalidRequest`` for another ``Host``.
    """
    base_url = request.app[SERVICES].http.base_url
    if base_url:
        return base_url
    origin = find_origin(request)
    if not is_loopback(urlsplit(origin).hostname or ""):
        raise InvalidRequest("Set server.base_url to sign in with a provider from another machine")
    return origin


def _set_cookie(request: web.Request, response: web.StreamResponse, state: str, value: str, max_age: int) -> None:
    name, secure = _name_cookie(request, state), is_secure(request) or None
    response.set_cookie(name, value, path="/", httponly=True, samesite="Lax", secure=secure, max_age=max_age)


def _name_cookie(request: web.Request, state: str) -> str:
    name = _SECURE_COOKIE if is_secure(request) else _COOKIE
    return f"{name}_{state[:_COOKIE_STATE_CHARS]}"
