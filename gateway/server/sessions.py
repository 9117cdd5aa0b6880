"""Sessions of console members: cookie, protection against cross-site request forgery (CSRF), and site of passkeys.

A browser attaches the cookie automatically. A request with the cookie must therefore come from a page of this gateway:
``Sec-Fetch-Site`` or ``Origin`` must confirm this, and a change also needs a header that no other site can send.
"""

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aiohttp import web

from gateway.domain.ip_address import is_inside
from gateway.domain.member import Forbidden, SignedOut
from gateway.domain.passkey import RelyingParty, find_relying_party, is_localhost
from gateway.server.client_ip import find_origin, find_peer, is_secure
from gateway.server.context import SERVICES, USER

if TYPE_CHECKING:  # sign-in is imported when the first member signs in
    from gateway.auth.sessions import CurrentUser

COOKIE, SECURE_COOKIE = "gateway_session", "__Host-gateway_session"
"""Names of the session cookie. A browser accepts the ``__Host-`` name only over TLS, and for this host only."""
CONSOLE_HEADER = "X-Gateway-Console"
"""The header that every console script sends. A page of another site cannot send it."""
KEY_HEADER = "X-Gateway-Key"
"""The header with the id of the API key that a console page uses for an API request."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


async def find_signed_in_user(request: web.Request) -> "CurrentUser | None":
    """Return the signed-in member; None without a valid session. Raises ``Forbidden`` for a page of another site."""
    reference = find_reference(request)
    if reference is None:
        return None
    check_own_page(request)
    return await request.app[SERVICES].auth.sessions.find(reference)


async def check_still_signed_in(request: web.Request) -> "CurrentUser | None":
    """Return the member as stored now; None if the request was made without a session.

    Raises ``SignedOut`` if the session has ended since the request began. This does not extend the session.
    """
    if USER not in request:
        return None
    user = await request.app[SERVICES].auth.sessions.find(find_reference(request) or "", records_use=False)
    if user is None:
        raise SignedOut("The console session has ended: sign in again", should_retry=False)
    return user


def find_reference(request: web.Request) -> str | None:
    """Return the session reference in the cookie, without checking whether it is valid; None if there is no cookie."""
    return request.cookies.get(_name_cookie(request)) or None


def set_cookie(request: web.Request, response: web.StreamResponse, reference: str) -> None:
    """Set the session cookie, which is limited to this host and to same-site requests and ends with the browser."""
    _write_cookie(request, response, reference)


def clear_cookie(request: web.Request, response: web.StreamResponse) -> None:
    """Delete the session cookie."""
    _write_cookie(request, response, "", max_age=0)


def _write_cookie(request: web.Request, response: web.StreamResponse, value: str, max_age: int | None = None) -> None:
    secure = is_secure(request) or None
    response.set_cookie(
        _name_cookie(request), value, path="/", httponly=True, samesite="Strict", secure=secure, max_age=max_age
    )


def _name_cookie(request: web.Request) -> str:
    return SECURE_COOKIE if is_secure(request) else COOKIE


def get_signed_in_user(request: web.Request) -> "CurrentUser":
    """Return the signed-in member. Raises ``Forbidden`` if the actor is the bearer of the admin token."""
    if USER not in request:
        raise Forbidden("Only a member who is signed in can do this", should_retry=False)
    return request[USER]


def check_own_page(request: web.Request) -> None:
    """Raise ``Forbidden`` for a browser's request from another site, or a change without a header of the console."""
    fetch_site = request.headers.get("Sec-Fetch-Site")
    is_safe = request.method in SAFE_METHODS
    if fetch_site is not None:
        is_own_site = fetch_site == "same-origin" or (is_safe and fetch_site == "none")
    else:
        origin = request.headers.get("Origin")
        is_own_site = origin is None or _is_own_origin(request, origin)
    if is_own_site and not is_safe:
        is_own_site = CONSOLE_HEADER in request.headers or KEY_HEADER in request.headers
    if not is_own_site:
        raise Forbidden("This request did not come from a page of this console", should_retry=False)


def _is_own_origin(request: web.Request, origin: str) -> bool:
    """Return whether ``origin`` is this gateway's. A request over TLS must come from a page loaded over TLS."""
    try:
        origin_url = urlsplit(origin)
    except ValueError:
        return False
    base_url = urlsplit(request.app[SERVICES].http.base_url)
    host = origin_url.netloc.lower()
    if host and host == base_url.netloc.lower():
        return origin_url.scheme == base_url.scheme
    # Without TLS here, a proxy missing from the configuration may still terminate TLS: accept both schemes.
    schemes = {"https"} if is_secure(request) else {"http", "https"}
    return bool(host) and host == request.host.lower() and origin_url.scheme in schemes


def find_site(request: web.Request) -> RelyingParty | None:
    """Return the site that passkeys are bound to; None if browsers allow no passkeys at the gateway's address.

    Without ``server.base_url``, ``Host`` is used only if it names this machine or a trusted proxy sent it: a client
    must not choose the name that a passkey is created for.
    """
    http = request.app[SERVICES].http
    if http.base_url:
        return find_relying_party(http.base_url)
    site = find_relying_party(f"{'https' if is_secure(request) else 'http'}://{_find_host(request)}")
    is_trusted = site is not None and (is_localhost(site.id) or is_inside(find_peer(request), http.trusted_proxies))
    return site if is_trusted else None


def _find_host(request: web.Request) -> str:
    return find_origin(request).partition("://")[2]
