"""The middlewares of the gateway. ``gateway/app.py`` lists their order and their paths."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

import attrs
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gateway.billing.settlement import find_outcome
from gateway.deferred import load
from gateway.domain.account import ApiKey, Caller, find_key_maker, is_key_shape
from gateway.domain.attribution import BUDGET_HEADER, NO_HEADERS
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.member import Forbidden, SignedOut, includes_rights
from gateway.domain.operation import OPERATIONS, Operation
from gateway.errors import (
    ClientDisconnected,
    GatewayError,
    InternalError,
    InvalidApiKey,
    InvalidRequest,
    NotFound,
    Overloaded,
    ProviderError,
    RateLimited,
    drop_frames,
)
from gateway.formats.wire.fields import has_unusual_names
from gateway.formats.wire.form import ReceivedForm
from gateway.large_work import MAX_ON_LOOP, run_in_thread
from gateway.log import MASKED
from gateway.media.prompt_files import FILE_ID_KEY, inline_files
from gateway.memory_budget import close_loan
from gateway.proxy.failover import make_cancellation_error
from gateway.request_context import QUOTE_HEADER, RequestContext, make_request_id
from gateway.server.active_inference import INFERENCE, ActiveInference
from gateway.server.client_ip import check_client_ip, find_client_ip, find_origin
from gateway.server.context import CALLER, CONTEXT, SERVICES, USER
from gateway.server.error_responses import GOOGLE_KEY_HEADER, convert_error, find_error_format, is_google_request
from gateway.server.multipart import MIB, MultipartReader
from gateway.server.query import is_number
from gateway.server.realtime_auth import REALTIME_PATH, find_secret_caller, list_protocol_keys
from gateway.server.request_body import read_arrived_json, read_sized_json
from gateway.server.sessions import COOKIE, KEY_HEADER, SAFE_METHODS, SECURE_COOKIE, find_signed_in_user
from gateway.wording import mask_keys, mask_name

PROBE_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
_KEY_HEADERS = ("Authorization", "x-api-key", GOOGLE_KEY_HEADER, "Sec-WebSocket-Protocol")
_KEY_HEADER_EXAMPLES: Mapping[str, str] = {"anthropic": "x-api-key: sk-…", "google": "x-goog-api-key: sk-…"}
"""The key header of each API's clients, as error messages show it. OpenAI's clients send ``Authorization``."""
_STATIC_PREFIX = "/console/static/"
_OPERATOR_PREFIXES = ("/admin/", "/console")
_ERROR_STATUS = 400
_VIDEOS_PATH = "/v1/videos"
_MEASURE_FUNCTION = "media.audio_duration:measure_audio"
_PREFERENCE_FUNCTION = "server.preference:apply_preference"
_CHECK_FUNCTION = "server.request_checks:check_request"
_NOTE_LEFT_FUNCTION = "server.request_checks:note_left"
_ADMIT_QUOTED_FUNCTION = "server.handlers.quotes:admit_quoted"
_NOT_STORED_WARNING = "store: the gateway does not keep completions: this one cannot be retrieved"

log = structlog.stdlib.get_logger("gateway.request", MASKED)


def with_middlewares(handler: Handler, middlewares: Iterable[Middleware]) -> Handler:
    """Wrap ``handler`` in ``middlewares``, listed from the outermost to the innermost."""
    for middleware in reversed(list(middlewares)):
        handler = partial(middleware, handler=handler)
    return handler


@web.middleware
async def request_context(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Assign a request id. At the end of a request, write one log line, except for probes and static files."""
    ctx = request[CONTEXT] = RequestContext(make_request_id())
    started_at = time.monotonic()
    status = 499
    try:
        response = await handler(request)
        status = response.status
    finally:
        # Not logged, to keep the log readable: probes come every few seconds, a console page loads ten static files.
        if request.path not in PROBE_PATHS and not request.path.startswith(_STATIC_PREFIX):
            _log_request(request, ctx, status, started_at)
    return response


def _log_request(request: web.Request, ctx: RequestContext, status: int, started_at: float) -> None:
    row, path, total_ms = ctx.record, request.path, round((time.monotonic() - started_at) * 1000)
    fields: dict[str, object] = {}
    if row is None:
        fields = {"request_id": ctx.id, "method": request.method, "path": mask_keys(path), "status": status}
        if status < _ERROR_STATUS and path.startswith(_OPERATOR_PREFIXES):
            # The console and the command line send many requests: only errors are logged at level "info".
            log.debug("request_served", **fields, total_ms=total_ms)
        else:
            log.info("request_served", **fields, total_ms=total_ms)
        return
    if row.overrun_nanos:
        fields["overrun_nanos"] = row.overrun_nanos
    if row.error_code:
        fields["code"] = mask_keys(row.error_code)
    if row.client_request_id:
        fields["client_request_id"] = row.client_request_id
    log.info(
        "request_settled",
        request_id=ctx.id,
        method=request.method,
        path=mask_name(path),
        status=status,
        total_ms=total_ms,
        **fields,
        account=mask_name(row.account),
        key=mask_name(row.key_name),
        model=row.model,
        channel=row.channel and mask_name(row.channel),
        outcome=row.outcome,
        first_byte_ms=row.first_byte_ms,
        tokens=row.prompt_tokens + row.completion_tokens,
        usage_source=row.usage_source,
        cost_nanos=row.cost_nanos,
        attempts=row.attempts,
    )


@web.middleware
async def error_responses(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Convert exceptions to error responses in the client's API format. Raises the errors of ``convert_error``."""
    try:
        return await handler(request)
    except Exception as error:  # noqa: BLE001 - every bug ends here
        try:
            return convert_error(error, request, request[CONTEXT].id)
        finally:
            drop_frames(error)


@web.middleware
async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Identify the caller by its API key, by a secret or token made with one, or by a console session.

    A request that gets 404 or 405 needs none of these, and may have no caller.
    """
    try:
        request[CALLER] = await _find_caller(request)
    except GatewayError as gateway_error:
        if request.match_info.route.resource is not None:
            if isinstance(gateway_error, InvalidApiKey):
                await delay_unknown_key(request)
            raise
    return await handler(request)


async def _find_caller(request: web.Request) -> Caller:
    services = request.app[SERVICES]
    if not services.drain.open and not _reads_stream(request):
        raise Overloaded("The gateway is shutting down", retry_after_s=5)
    authorization = _find_authorization(request)
    for protocol_key in list_protocol_keys(request) if request.path == REALTIME_PATH else ():
        if authorization is not None and _parse_token(authorization) != _parse_token(protocol_key):
            raise _make_ambiguous_key_error()
        authorization = protocol_key
    if authorization is None and (COOKIE in request.cookies or SECURE_COOKIE in request.cookies):
        caller = await _find_console_caller(request)
    else:
        try:
            caller = services.auth.api_keys.authenticate(authorization)
        except InvalidApiKey:
            secret_caller = await find_secret_caller(request, authorization)
            if secret_caller is None:
                raise _make_key_error(request, authorization) from None
            caller = secret_caller
    if caller.networks:
        check_client_ip(request, caller)
    return caller


def _reads_stream(request: web.Request) -> bool:
    """Return whether a request is about a stream that may still run while the gateway shuts down."""
    path = request.path
    return path.startswith("/v1/streams/") or (request.method == "GET" and path.startswith("/v1/responses/"))


async def delay_unknown_key(request: web.Request) -> None:
    """Delay the response to an unknown key if the client's address has sent many. Raises ``RateLimited``."""
    if any(name in request.headers for name in _KEY_HEADERS) or "key" in request.query:
        await request.app[SERVICES].auth.unknown_keys.delay_request(find_client_ip(request))


def _find_authorization(request: web.Request) -> str | None:
    """Return the credentials of a request as a value of ``Authorization``; None if the request has none.

    They may also be in ``x-api-key``, in ``x-goog-api-key``, or in ``key`` in the query of a request of Google's API.

    Raises ``InvalidRequest`` for two different keys: either could pay. If a token is present, other values that do not
    look like a key are ignored: a proxy may have added them.
    """
    headers = request.headers
    authorizations = headers.getall("Authorization", ())
    keys = [*headers.getall("x-api-key", ()), *headers.getall(GOOGLE_KEY_HEADER, ())]
    if "?" in request.raw_path and is_google_request(request):
        keys += request.query.getall("key", ())
    if len(authorizations) > 1:
        raise _make_ambiguous_key_error()
    if authorizations:
        keys = list(filter(is_key_shape, keys))
    if not keys:
        return authorizations[0] if authorizations else None
    secrets = {*filter(None, [*keys, *map(_parse_token, authorizations)])}
    if len(secrets) > 1:
        raise _make_ambiguous_key_error()
    return f"Bearer {secrets.pop()}" if secrets else None


def _name_key(request: web.Request, secret: str) -> str:
    for name in _KEY_HEADERS:
        if any(value and secret in value for value in request.headers.getall(name, ())):
            return f"the header '{name}'"
    return "'key' in the query"


def _make_key_error(request: web.Request, authorization: str | None) -> InvalidApiKey:
    """Return the error for missing, malformed or unknown credentials.

    Its message names the place of the credentials, or the header in which to send them.
    """
    if authorization is None:
        header_example = _KEY_HEADER_EXAMPLES.get(find_error_format(request), "Authorization: Bearer sk-…")
        return InvalidApiKey(f"No API key: send '{header_example}'", should_retry=False)
    scheme, _, secret = authorization.partition(" ")
    secret = secret.strip()
    key_name = _name_key(request, secret)
    if scheme.lower() != "bearer" or not secret:
        message = f"Malformed API key in {key_name}: 'Authorization: Bearer sk-…' is expected"
    elif (maker := find_key_maker(secret)) is not None:
        message = f"The key in {key_name} looks like {maker} key. Use a key of this gateway."
    else:
        message = f"The key in {key_name} is not a key of this gateway"
    return InvalidApiKey(message, should_retry=False)


def _make_ambiguous_key_error() -> InvalidRequest:
    return InvalidRequest("The request has more than one API key; send one", should_retry=False)


def _parse_token(authorization: str) -> str:
    return authorization.partition(" ")[2].strip()


async def _find_console_caller(request: web.Request) -> Caller:
    """Return the caller of a console page's request: the API key that the page names.

    Sets ``request[USER]``. Requests that only read the account's videos get a placeholder key. Raises ``SignedOut``,
    ``Forbidden``, ``NotFound``, or the error of a key that cannot be used.
    """
    user = await find_signed_in_user(request)
    if user is None:
        raise SignedOut("The console session has ended: sign in again", should_retry=False)
    services, key_id = request.app[SERVICES], request.headers.get(KEY_HEADER)
    if key_id is None:
        if request.method not in SAFE_METHODS or not request.path.startswith(_VIDEOS_PATH):
            raise Forbidden(f"Send the id of the API key that pays in the header {KEY_HEADER}", should_retry=False)
        request[USER] = user
        return Caller(user.account, ApiKey(0, user.account.id, "console", b"", ""))
    if not includes_rights(user.member.role, "member"):
        raise Forbidden("Viewers cannot send requests", should_retry=False)
    caller = services.auth.api_keys.find_caller(int(key_id)) if is_number(key_id) else None
    if caller is None or caller.account.id != user.account.id:
        raise NotFound(f"Your account has no key with the id {key_id[:20]!r}", param=KEY_HEADER)
    caller.check_usable(services.clock())
    request[USER] = user
    return caller


# The middlewares of inference routes. They share ``request[INFERENCE]``.


async def settle_request(
    request: web.Request, handler: Handler, operation: Operation, kind: type[ActiveInference] = ActiveInference
) -> web.StreamResponse:
    """Register the request as active, and settle it however it ends. ``handler`` settles a successful one."""
    active = request[INFERENCE] = kind(request, operation)
    services = active.services
    services.drain.active_count += 1
    services.active_requests.calls[active.context.id] = active
    try:
        return await handler(request)
    except GatewayError as gateway_error:
        if isinstance(gateway_error, RateLimited):
            active.context.rate_limits = gateway_error.limit_status
        active.settle(find_outcome(gateway_error), gateway_error)
        raise
    except (asyncio.CancelledError, ClientDisconnected):
        if active.stopped and active.task is not None and not active.task.uncancel():
            cancelled = make_cancellation_error()
            active.settle(find_outcome(cancelled), cancelled)
            raise cancelled from None
        if active.cancelled:
            active.settle("cancelled", make_cancellation_error())
        else:
            active.settle("interrupted" if services.proxy.broken_off else "client_closed")
        raise
    except Exception as error:
        internal_error = InternalError("Unexpected gateway error")
        active.settle("failed", internal_error)
        raise internal_error from error
    finally:
        if active.idempotency_key.is_named:
            active.idempotency_key.release()
        if active.context.loan is not None:
            close_loan(active.context)
        has_collectors = active.exchange is not None or active.recorded is not None or active.recorder is not None
        if has_collectors and not active.outlives_client:
            active.close_collectors()
        services.drain.active_count -= 1
        active.task = None  # the task references its exception, and with it the request
        del request[INFERENCE]  # breaks a reference cycle: request and body are freed without the garbage collector


async def parse_request(
    request: web.Request, handler: Handler, parse: Callable[[dict[str, Any]], InferenceRequest]
) -> web.StreamResponse:
    """Read a JSON body, parse it into ``ctx.inference``, and return the answer of ``handler``."""
    active, size = request[INFERENCE], 0
    ctx = active.context
    arrived_json = read_arrived_json(request, FILE_ID_KEY, active.exchange)
    if arrived_json is not None:  # the body came with the headers, so the caller needs no second check
        body, may_name_files = arrived_json
        ctx.read_at = time.monotonic()
    else:
        limit = _find_limit(request, ctx.operation)
        body, size, may_name_files = await read_sized_json(request, limit, FILE_ID_KEY, exchange=active.exchange)
        await active.note_body_read()
    if active.idempotency_key.is_named:
        await active.idempotency_key.record_body(body)
    if may_name_files:
        services, limit = request.app[SERVICES], request.client_max_size
        loan = services.memory.lend(ctx)
        size = await inline_files(services.files.files, ctx.caller.account.id, body, loan, size=size, limit=limit)
    if "store" in body and body["store"] is True and ctx.operation == "chat":
        ctx.warn(_NOT_STORED_WARNING)
    if size > MAX_ON_LOOP:
        ctx.inference = attrs.evolve(await run_in_thread(parse, body), large=True)
    else:
        ctx.inference = parse(body)
    active.note_parsed()
    return await handler(request)


def _find_limit(request: web.Request, operation: Operation) -> int:
    limit = request.client_max_size
    return max(limit // 4, MIB) if OPERATIONS[operation].text_body else limit


async def parse_form(
    request: web.Request, handler: Handler, parse: Callable[[ReceivedForm], InferenceRequest]
) -> web.StreamResponse:
    """Parse a multipart body into ``ctx.inference``; return the answer of ``handler``. Then close the form's files."""
    active, services = request[INFERENCE], request.app[SERVICES]
    active.form = reader = open_form(request)
    try:
        services.media.images.check_room()
        await services.billing.quota.precheck(
            active.context.caller, partial(services.routing.router.may_be_free, active.context.caller)
        )
        form = await reader.read()
        if active.exchange is not None:
            active.exchange.note_form(form)
        await active.note_body_read()
        await active.idempotency_key.record_form(form)
        inference = parse(form)
        active.context.inference = await load(_MEASURE_FUNCTION)(inference) if inference.image is None else inference
        active.note_parsed()
        return await handler(request)
    finally:
        if active.form is not None:
            active.form.close()


def open_form(request: web.Request) -> MultipartReader:
    """Return the reader of a multipart body, whose files exist until it is closed."""
    services = request.app[SERVICES]
    return MultipartReader(
        request, services.media.spool, services.http.form_limits, account_id=request[CALLER].account.id
    )


async def replay_response(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Repeat the stored response if the request's ``Idempotency-Key`` was answered before; else call ``handler``."""
    active = request[INFERENCE]
    if active.idempotency_key.is_named:
        replayed_response = await active.idempotency_key.begin_or_replay(active.context.inference)
        if replayed_response is not None:
            active.settle("completed")
            return replayed_response
    return await handler(request)


async def quota(
    request: web.Request, handler: Handler, admit: Callable[[ActiveInference], Awaitable[None]] | None = None
) -> web.StreamResponse:
    """Find the channels that may serve the request, reserve the highest cost among them, and call ``handler``.

    ``admit``, if given, replaces the reservation. A request with a quote uses what the quote has reserved.
    """
    active = request[INFERENCE]
    ctx, services = active.context, active.services
    inference, caller = ctx.inference, ctx.caller
    if inference.image is not None:
        services.media.images.check(inference)
        ctx.inference = inference = attrs.evolve(inference, origin=services.http.base_url or find_origin(request))
    if not inference.plain and (ctx.operation == "responses" or has_unusual_names(inference.body)):
        owners = services.routing.response_owners
        ctx.inference = inference = await owners.prepare(inference, caller.account.id, ctx.id, ctx)
    has_rare_headers = active.has_rare_headers
    ctx.target_list = targets = services.routing.router.route(caller, inference)
    if admit is None and (caller.key.loops is not None or (has_rare_headers and BUDGET_HEADER in request.headers)):
        await load(_CHECK_FUNCTION)(active)
    if targets.has_choice and OPERATIONS[ctx.operation].conversation:
        services.routing.router.keep_conversation(
            targets, inference, request.headers if has_rare_headers else NO_HEADERS
        )
    if targets.load_balancer.settings.allow_prefer:
        load(_PREFERENCE_FUNCTION)(targets, request.headers)
    if admit is None and not (has_rare_headers and QUOTE_HEADER in request.headers):
        await services.billing.quota.admit(ctx, targets.rank())
    else:
        await (admit or load(_ADMIT_QUOTED_FUNCTION))(active)
    if ctx.attribution.session and services.billing.limits.budgets is not None:
        load(_NOTE_LEFT_FUNCTION)(active)
    try:
        return await handler(request)
    except ProviderError as gateway_error:
        if not gateway_error.lacks_path:
            raise
        raise services.routing.router.explain(
            gateway_error, caller, inference, ctx.attempts[-1].target
        ) from gateway_error
