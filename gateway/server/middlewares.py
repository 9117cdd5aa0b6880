"""The middlewares of the gateway. ``gateway/app.py`` lists in which order they run, and on which paths.

Each is an aiohttp middleware: it takes the request and the next handler, and returns the response.
"""

import time
from collections.abc import Iterable
from functools import partial

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gateway.domain.account import ApiKey, Caller
from gateway.domain.member import Forbidden, SignedOut, may
from gateway.errors import GatewayError, InvalidApiKey, InvalidRequest, NotFound, Overloaded
from gateway.request_context import make_request_id
from gateway.server.client_ip import check_client_ip, find_client_ip
from gateway.server.context import CALLER, ROOMS, SIGNED, TRACE, Trace
from gateway.server.error_responses import ANTHROPIC_PATHS, VERSION_HEADER, convert_error
from gateway.server.query import is_number
from gateway.server.sessions import COOKIE, KEY_HEADER, SAFE, SECURE_COOKIE, find_signed

PROBES = frozenset({"/healthz", "/readyz"})
_STATIC = "/console/static/"
_VIDEOS = "/v1/videos"

log = structlog.stdlib.get_logger("gateway.request")


def with_middlewares(handler: Handler, middlewares: Iterable[Middleware]) -> Handler:
    """Wrap ``handler`` in ``middlewares``, the outermost first."""
    for middleware in reversed(list(middlewares)):
        handler = partial(middleware, handler=handler)
    return handler


@web.middleware
async def request_context(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give the request an id, and write one log line when it has ended."""
    trace = request[TRACE] = Trace(make_request_id())
    started_at = time.monotonic()
    status = 499
    try:
        response = await handler(request)
        status = response.status
    finally:
        # Probes come every few seconds, and a console page loads ten static files.
        if request.path not in PROBES and not request.path.startswith(_STATIC):
            _log_request(request, trace, status, started_at)
    return response


def _log_request(request: web.Request, trace: Trace, status: int, started_at: float) -> None:
    row = trace.row
    fields: dict[str, object] = {
        "request_id": trace.id,
        "method": request.method,
        "path": request.path,
        "status": status,
        "total_ms": round((time.monotonic() - started_at) * 1000),
    }
    if row is None:
        log.info("request_served", **fields)
        return
    if row.overrun_nanos:
        fields["overrun_nanos"] = row.overrun_nanos
    if row.error_code:
        fields["code"] = row.error_code
    if row.client_request_id:
        fields["client_request_id"] = row.client_request_id
    log.info(
        "request_settled",
        **fields,
        account=row.account,
        key=row.key_name,
        model=row.model,
        channel=row.channel,
        ending=row.ending,
        first_byte_ms=row.first_byte_ms,
        tokens=row.prompt_tokens + row.completion_tokens,
        usage_source=row.usage_source,
        cost_nanos=row.cost_nanos,
        attempts=row.attempts,
    )


@web.middleware
async def error_responses(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every exception with the error object, in the API format of the client."""
    try:
        return await handler(request)
    except Exception as error:  # noqa: BLE001 - every bug ends here
        return convert_error(error, request, request[TRACE].id)


@web.middleware
async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Find the caller of a request to the public API, by its API key or by the session of a console page.

    A request whose path or method is not served goes on without a caller: 404 and 405 need no key.
    """
    try:
        request[CALLER] = await _find_caller(request)
    except GatewayError as fault:
        if request.match_info.route.resource is not None:
            if isinstance(fault, InvalidApiKey):
                await delay_unknown_key(request)
            raise
    return await handler(request)


async def _find_caller(request: web.Request) -> Caller:
    services = request.app[ROOMS]
    if not services.gate.open:
        raise Overloaded("The gateway is shutting down", retry_after_s=5)
    authorization = _find_authorization(request)
    if authorization is None and (COOKIE in request.cookies or SECURE_COOKIE in request.cookies):
        caller = await _find_console_caller(request)
    else:
        caller = services.directory.authenticate(authorization)
    if caller.networks:
        check_client_ip(request, caller)
    return caller


async def delay_unknown_key(request: web.Request) -> None:
    """Delay the refusal of an unknown key if the client's address has sent many of them."""
    if "Authorization" in request.headers or "x-api-key" in request.headers:
        await request.app[ROOMS].unknown_keys.note(find_client_ip(request))


def _find_authorization(request: web.Request) -> str | None:
    """Return the credentials of a request; clients of the Anthropic API send ``x-api-key`` instead.

    Raises ``InvalidRequest`` if it carries two different keys: it is not clear which one pays.
    """
    headers = request.headers
    authorizations = headers.getall("Authorization", ())
    key = headers.get("x-api-key")
    if key and not (request.path.startswith(ANTHROPIC_PATHS) or VERSION_HEADER in headers):
        key = None
    if len(authorizations) > 1 or (key and len({*headers.getall("x-api-key"), *map(_parse_token, authorizations)}) > 1):
        raise InvalidRequest("The request shows more than one API key; one is expected", should_retry=False)
    if authorizations:
        return authorizations[0]
    return f"Bearer {key}" if key else None


def _parse_token(authorization: str) -> str:
    return authorization.partition(" ")[2].strip()


async def _find_console_caller(request: web.Request) -> Caller:
    """Return the caller of a console page: the API key that it names, or none to view the account's videos.

    Raises ``SignedOut``, ``Forbidden``, ``NotFound``, or the error of a key that cannot be used.
    """
    signed = await find_signed(request)
    if signed is None:
        raise SignedOut("The console's session is over: sign in again", should_retry=False)
    services, key_id = request.app[ROOMS], request.headers.get(KEY_HEADER)
    if key_id is None:
        if request.method not in SAFE or not request.path.startswith(_VIDEOS):
            raise Forbidden(f"Name the key that is to pay, by its id, in the header {KEY_HEADER}", should_retry=False)
        request[SIGNED] = signed
        return Caller(signed.account, ApiKey(0, signed.account.id, "console", b"", ""))
    if not may(signed.member.role, "member"):
        raise Forbidden("A viewer makes no calls", should_retry=False)
    caller = services.directory.find_caller(int(key_id)) if is_number(key_id) else None
    if caller is None or caller.account.id != signed.account.id:
        raise NotFound(f"Your account has no key with the id {key_id[:20]!r}", param=KEY_HEADER)
    caller.check_usable(services.clock())
    request[SIGNED] = signed
    return caller
