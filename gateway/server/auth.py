"""Who stands at a door of the admin API or the console: the bearer of a token, a member by its session, or nobody.

A session rides on a cookie, which a browser sends by itself. So what comes with one must come from a page of ours: the
browser's own word for it (``Sec-Fetch-Site``, or ``Origin``), and for a change a header that no other site can send.
"""

import asyncio
import hmac
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.auth.sessions import CurrentUser
from gateway.domain.account import ApiKey, Caller
from gateway.domain.audit_log import Actor
from gateway.domain.ip_address import is_inside
from gateway.domain.member import Forbidden, SignedOut, may
from gateway.errors import GatewayError, InvalidApiKey, InvalidRequest, NotFound, Overloaded
from gateway.server.admin.operation import OPERATIONS, AdminOperation
from gateway.server.context import ACTOR, CALLER, OFFICE, ROOMS, SESSIONS, SIGNED
from gateway.server.middlewares import ANTHROPIC_PATHS, VERSION_HEADER, check_address, find_caller_address, find_peer
from gateway.server.query import is_number

COOKIE, SECURE_COOKIE = "gateway_session", "__Host-gateway_session"
"""A browser takes the second name only over TLS, for the whole host and for no other."""
CONSOLE_HEADER = "X-Gateway-Console"
"""On everything that a page of ours sends but what a browser fetches by itself. A page of another site cannot."""
KEY_HEADER = "X-Gateway-Key"
"""The id of the key that a call of a page of ours is made with."""
_LOOKED_AT = "/v1/videos"
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
MAX_CHANGE = 1024 * 1024
"""Bytes of the body of a change: what the public API takes is for pictures, and unpacked takes its room in memory."""


async def authenticate(request: web.Request) -> None:
    """On a path of the public API: who calls? Raises the fault of a key that will not do."""
    try:
        rooms = request.app[ROOMS]
        if not rooms.gate.open:
            raise Overloaded("The gateway is shutting down", retry_after_s=5)
        shown = _find_authorization(request)
        if shown is None and (COOKIE in request.cookies or SECURE_COOKIE in request.cookies):
            caller = await _find_console_caller(request)
        else:
            caller = rooms.directory.authenticate(shown)
        if caller.networks:
            check_address(request, caller)
        request[CALLER] = caller
    except GatewayError as fault:
        if request.match_info.route.resource is None:  # what is not there is not there for anybody
            return
        if isinstance(fault, InvalidApiKey):
            await _slow_down(request)
        raise


async def _slow_down(request: web.Request) -> None:
    """Have who shows an unknown key wait, if its address has shown many; who shows none has guessed nothing."""
    if "Authorization" in request.headers or "x-api-key" in request.headers:
        await request.app[ROOMS].unknown_keys.note(find_caller_address(request))


def _find_authorization(request: web.Request) -> str | None:
    """What the caller shows; a client of Anthropic's API, on its paths or with its version, ``x-api-key``.

    Raises ``InvalidRequest`` for two keys: which of them is to pay, nobody here can know.
    """
    headers = request.headers
    shown = headers.getall("Authorization", ())
    key = headers.get("x-api-key")
    if key and not (request.path.startswith(ANTHROPIC_PATHS) or VERSION_HEADER in headers):
        key = None
    if len(shown) > 1 or (key and len({*headers.getall("x-api-key"), *map(_find_token, shown)}) > 1):
        raise InvalidRequest("The request shows more than one API key; one is expected", should_retry=False)
    if shown:
        return shown[0]
    return f"Bearer {key}" if key else None


def _find_token(authorization: str) -> str:
    return authorization.partition(" ")[2].strip()


async def _find_console_caller(request: web.Request) -> Caller:
    """A member's own page calls the public API: with the key it names, or to look at its account's videos with none.

    Raises ``SignedOut``, ``Forbidden``, ``NotFound`` or the fault of a key that will not do.
    """
    signed = await find_signed(request)
    if signed is None:
        raise SignedOut("The console's session is over: sign in again", should_retry=False)
    rooms, named = request.app[ROOMS], request.headers.get(KEY_HEADER)
    if named is None:
        if request.method not in SAFE or not request.path.startswith(_LOOKED_AT):
            raise Forbidden(f"Name the key that is to pay, by its id, in the header {KEY_HEADER}", should_retry=False)
        request[SIGNED] = signed
        return Caller(signed.account, ApiKey(0, signed.account.id, "console", b"", ""))
    if not may(signed.member.role, "member"):
        raise Forbidden("A viewer makes no calls", should_retry=False)
    caller = rooms.directory.find_caller(int(named)) if is_number(named) else None
    if caller is None or caller.account.id != signed.account.id:
        raise NotFound(f"Your account has no key with the id {named[:20]!r}", param=KEY_HEADER)
    caller.check_usable(rooms.clock())
    request[SIGNED] = signed
    return caller


async def let_in(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Into ``/admin/v1`` whom its door lets in. A change that was begun comes into force whoever still waits for it."""
    resource = request.match_info.route.resource
    door = None if resource is None else request.app[OPERATIONS].get((request.method, resource.canonical))
    await _identify(request, door)
    return await _carry_out(request, handler)


async def _carry_out(request: web.Request, handler: Handler) -> web.StreamResponse:
    if request.method in SAFE:
        return await handler(request)
    # A key that was disabled in the store must not go on being used because a connection broke.
    office = request.app[OFFICE]
    task = asyncio.get_running_loop().create_task(_run(handler, request.clone(client_max_size=MAX_CHANGE)))
    office.changes.add(task)
    task.add_done_callback(office.changes.discard)
    return await asyncio.shield(task)


async def _run(handler: Handler, request: web.Request) -> web.StreamResponse:
    return await handler(request)


async def _identify(request: web.Request, door: AdminOperation | None) -> None:
    """Note who acts. Raises where the door is not for them, or nobody is known."""
    address = find_caller_address(request) or ""
    access = "viewer" if door is None else door.access
    if "Authorization" in request.headers:
        try:
            check_token(request)
        except InvalidApiKey:
            await _slow_down(request)
            raise
        request[ACTOR] = Actor("token", address=address)
        return
    if access == "anyone":
        check_own_page(request)
        return
    signed = await find_signed(request)
    if signed is None:
        raise SignedOut("Sign in first, or send the token in the data folder's admin.token", should_retry=False)
    if not may(signed.member.role, access):
        raise Forbidden(f"This needs the role {access!r}; yours is {signed.member.role!r}", should_retry=False)
    request[SIGNED] = signed
    request[ACTOR] = signed.act(address)


def check_token(request: web.Request) -> None:
    """Raise ``InvalidApiKey`` if what is shown is not the admin token; ``InvalidRequest`` if two are."""
    shown = request.headers.getall("Authorization", ("",))
    if len(shown) > 1:
        raise InvalidRequest("The request shows more than one token; one is expected", should_retry=False)
    scheme, _, token = shown[0].partition(" ")
    expected = request.app[OFFICE].token
    if scheme.lower() != "bearer" or not hmac.compare_digest(_bytes(token.strip()), _bytes(expected)):
        raise InvalidApiKey("The admin API needs the token in the data folder's admin.token", should_retry=False)


def _bytes(header: str) -> bytes:
    # aiohttp hands on bytes of a header that are no UTF-8 as lone surrogates.
    return header.encode("utf-8", "surrogateescape")


async def find_signed(request: web.Request) -> CurrentUser | None:
    """Who is signed in, where the request comes from a page of ours. Raises ``Forbidden`` where it does not."""
    reference = find_reference(request)
    if reference is None:
        return None
    check_own_page(request)
    return await request.app[SESSIONS].find(reference)


async def check_still_signed(request: web.Request) -> None:
    """Raise ``SignedOut`` where whoever began a long answer by their session may not have the rest of it.

    That a page still listens does not keep its session from running out.
    """
    if SIGNED in request and await request.app[SESSIONS].find(find_reference(request) or "", used=False) is None:
        raise SignedOut("The console's session is over: sign in again", should_retry=False)


def find_reference(request: web.Request) -> str | None:
    """Of the session that the caller's browser sends, good or not."""
    return request.cookies.get(_name_cookie(request)) or None


def set_cookie(request: web.Request, response: web.StreamResponse, reference: str) -> None:
    """Have the caller's browser send that reference, until it is closed: to this host, from its own pages alone."""
    _put_cookie(request, response, reference)


def clear_cookie(request: web.Request, response: web.StreamResponse) -> None:
    """Have the caller's browser forget what it sent."""
    _put_cookie(request, response, "", max_age=0)


def _put_cookie(request: web.Request, response: web.StreamResponse, value: str, max_age: int | None = None) -> None:
    secure = is_secure(request) or None
    response.set_cookie(
        _name_cookie(request), value, path="/", httponly=True, samesite="Strict", secure=secure, max_age=max_age
    )


def _name_cookie(request: web.Request) -> str:
    return SECURE_COOKIE if is_secure(request) else COOKIE


def get_signed(request: web.Request) -> CurrentUser:
    """Who is signed in, for what only a member can do. Raises ``Forbidden`` for the bearer of a token."""
    if SIGNED not in request:
        raise Forbidden("Only a member who is signed in can do this", should_retry=False)
    return request[SIGNED]


def check_own_page(request: web.Request) -> None:
    """Raise ``Forbidden`` where a request that a browser has made was not made by a page of ours.

    Who is no browser says neither where it comes from nor has a session that another could use.
    """
    site = request.headers.get("Sec-Fetch-Site")
    safe = request.method in SAFE
    if site is not None:
        ours = site == "same-origin" or (safe and site == "none")
    else:
        origin = request.headers.get("Origin")
        ours = origin is None or _is_own(request, origin)
    if ours and not safe:
        ours = CONSOLE_HEADER in request.headers or KEY_HEADER in request.headers
    if not ours:
        raise Forbidden("This request did not come from a page of this console", should_retry=False)


def _is_own(request: web.Request, origin: str) -> bool:
    """Whether ``origin`` is a page of this host. A page that came without TLS may be anybody's on the way."""
    try:
        read = urlsplit(origin)
    except ValueError:
        return False
    base = urlsplit(request.app[ROOMS].base_url)
    host = read.netloc.lower()
    if host and host == base.netloc.lower():
        return read.scheme == base.scheme
    # A proxy that nobody named may speak TLS for us.
    schemes = {"https"} if is_secure(request) else {"http", "https"}
    return bool(host) and host == request.host.lower() and read.scheme in schemes


def is_secure(request: web.Request) -> bool:
    """Whether the caller's browser speaks TLS, to us or to a proxy that we believe."""
    if request.secure:
        return True
    rooms = request.app[ROOMS]
    base = urlsplit(rooms.base_url)
    if base.scheme == "https" and base.netloc.lower() == request.host.lower():
        return True
    told = request.headers.get("X-Forwarded-Proto", "").lower() == "https"
    return told and is_inside(find_peer(request), rooms.trusted_proxies)
