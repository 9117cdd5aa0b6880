"""What every request passes on its way in and out: the log, the shape of errors, and the key."""

import asyncio
import os
import re
import time

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.domain.account import Caller
from gateway.domain.byte_range import RangeNotSatisfiable
from gateway.domain.ip_address import find_address
from gateway.domain.request_log import ID_PREFIX
from gateway.errors import (
    ClientDisconnected,
    GatewayError,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    RequestTooLarge,
)
from gateway.formats.error_body import MESSAGES_PATH, build_error
from gateway.formats.openai.rate_limit_headers import build_limits
from gateway.request_context import build_attempts
from gateway.server.admin.operation import PREFIX
from gateway.server.context import ROOMS, TRACE, Trace
from gateway.server.unserved_paths import find_hint, list_served

ANTHROPIC_PATHS = (MESSAGES_PATH, "/v1/models")
VERSION_HEADER = "anthropic-version"
"""What every client library of Anthropic's sends, and no other."""
PROBES = frozenset({"/healthz", "/readyz"})
_STATIC = "/console/static/"
"""Ten of these a page say nothing that the page's own line does not."""
_ID_MASK = 0xFF_FFFF_FFFF
_ID_BYTES = 7
_HOST = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?\Z", re.ASCII)

log = structlog.stdlib.get_logger("gateway.request")


@web.middleware
async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give the request its id, every fault of it its shape, and leave one line about it."""
    trace = request[TRACE] = Trace(make_request_id())
    began = time.monotonic()
    status = 499
    try:
        response = await handler(request)
        status = response.status
    except Exception as error:  # noqa: BLE001 - the last wall
        response = shape_error(error, request, trace)
        status = response.status
    finally:
        if request.path not in PROBES and not request.path.startswith(_STATIC):
            _log(request, trace, status, began)
    return response


def make_request_id() -> str:
    """``req_`` and 24 hexadecimal digits: ten of the time in milliseconds, fourteen that nobody can foresee.

    In the order of time the database adds them at one end of its index, not all over it. What cannot be foreseen is
    the boundary of a form towards a provider, too.
    """
    return f"{ID_PREFIX}{time.time_ns() // 1_000_000 & _ID_MASK:010x}{os.urandom(_ID_BYTES).hex()}"


def _log(request: web.Request, trace: Trace, status: int, began: float) -> None:
    row = trace.row
    fields: dict[str, object] = {
        "request_id": trace.id,
        "method": request.method,
        "path": request.path,
        "status": status,
        "total_ms": round((time.monotonic() - began) * 1000),
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


def shape_error(error: Exception, request: web.Request, trace: Trace) -> web.Response:
    """Whatever goes wrong before the first byte as the one error object; after it, the connection breaks.

    A bug is logged whole and shown as one bland sentence. Raises ``ConnectionError``.
    """
    if isinstance(error, ClientDisconnected):
        raise ConnectionResetError("the caller left") from None
    if isinstance(error, ConnectionError):
        raise error
    headers: dict[str, str] = {}
    if isinstance(error, GatewayError):
        fault = error
    elif isinstance(error, web.HTTPException):
        fault, headers = read_http_fault(error, request), _write_allow(error, request)
    else:
        fault = InternalError("Something went wrong inside the gateway")
    if isinstance(fault, InternalError):
        log.error("request_failed", request_id=trace.id, exc_info=error)
    if request.writer.output_size:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the answer had begun") from error
    return write_fault(fault, trace.id, headers, anthropic=speaks_anthropic(request))


def write_fault(
    fault: GatewayError,
    request_id: str,
    headers: dict[str, str] | None = None,
    *,
    anthropic: bool = False,
) -> web.Response:
    """A fault as a response, in the convention's language or in Anthropic's."""
    headers = headers or {}
    if anthropic:
        headers["request-id"] = request_id
    if fault.retry_after_s is not None:
        headers["Retry-After"] = str(fault.retry_after_s)
    if isinstance(fault, RangeNotSatisfiable) and fault.size is not None:
        headers["Content-Range"] = f"bytes */{fault.size}"
    if fault.should_retry is not None:
        headers["x-should-retry"] = "true" if fault.should_retry else "false"
    body = build_error(fault, request_id, anthropic=anthropic)
    return web.Response(body=body, status=fault.status, headers=headers, content_type="application/json")


def speaks_anthropic(request: web.Request) -> bool:
    """Whether a request is one of Anthropic's API: by its path, or by the headers of its client libraries."""
    path, headers = request.path, request.headers
    if path == MESSAGES_PATH or path.startswith(f"{MESSAGES_PATH}/"):
        return True
    told = VERSION_HEADER in headers or ("x-api-key" in headers and "Authorization" not in headers)
    return told and path.startswith("/v1/")


def read_http_fault(error: web.HTTPException, request: web.Request) -> GatewayError:
    """What aiohttp refused, as a fault with its status."""
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(list_served(request))
        return MethodNotAllowed(f"{request.method} is not allowed on this path; it takes {allowed}")
    if isinstance(error, web.HTTPNotFound):
        meant = find_hint(request)
        hint = f"; did you mean {meant}?" if meant else ""
        return NotFound(f"There is nothing at {request.method} {request.path[:200]}{hint}", should_retry=False)
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return RequestTooLarge(f"The request body is larger than {request.app[ROOMS].max_body_mb} MB")
    fault = InvalidRequest(error.reason or "The request is not valid")
    fault.status = error.status
    return fault


def _write_allow(error: web.HTTPException, request: web.Request) -> dict[str, str]:
    return {"Allow": ",".join(list_served(request))} if isinstance(error, web.HTTPMethodNotAllowed) else {}


def check_address(request: web.Request, caller: Caller) -> None:
    """Raise ``IpNotAllowed`` where the key may not be used from where the request comes."""
    if caller.networks:
        caller.check_address(find_caller_address(request))


def find_caller_address(request: web.Request) -> str | None:
    """The address that the caller called from; None where it cannot be told."""
    trusted = request.app[ROOMS].trusted_proxies
    return find_address(find_peer(request), request.headers.getall("X-Forwarded-For", ()), trusted)


def find_peer(request: web.Request) -> str | None:
    """The address of the other end of the connection: a caller's, or a proxy's."""
    return None if request.transport is None else find_peer_address(request.transport)


def find_peer_address(transport: asyncio.BaseTransport) -> str | None:
    """The address of the other end; None if it has none."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) and peer else None


def find_origin(request: web.Request) -> str:
    """The gateway's address as its caller wrote it; empty where that is none."""
    return f"{request.scheme}://{request.host.lower()}" if _HOST.match(request.host) else ""


async def sign_response(request: web.Request, response: web.StreamResponse) -> None:
    """Signal before every response that aiohttp writes: what all of them say, and the server's name off it."""
    headers = response.headers
    headers.popall("Server", None)
    if request.path.startswith(PREFIX):  # a refusal too: a proxy may keep a 404 that says nothing of it
        headers.setdefault("Cache-Control", "no-store")
        headers["X-Content-Type-Options"] = "nosniff"
    signature = write_signature(request)
    if "Vary" in signature and "Vary" in headers:
        signature["Vary"] = f"{headers['Vary']}, {signature['Vary']}"
    headers.update(signature)


def write_signature(request: web.Request) -> dict[str, str]:
    """The headers of every answer: the request's id, the caller's rate limits, the attempts that it took."""
    trace = request.get(TRACE) or Trace(make_request_id())
    headers = {"X-Request-Id": trace.id}
    if request.path.startswith(ANTHROPIC_PATHS):
        headers["request-id"] = trace.id
    if trace.more is not None:
        headers |= trace.more
    delivery, standing = trace.delivery, trace.standing
    if delivery is not None and delivery.attempts:
        headers |= build_attempts(delivery)
    if standing is not None:
        headers |= build_limits(standing)
    return headers
