"""``POST /v1/quote``: what a request may cost and, with ``hold_s``, a hold of that amount. No provider is asked.

The body is that of the request. ``endpoint`` in the query is the request's path, like the ``endpoint`` of a batch.
"""

from functools import partial
from typing import Any

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gateway.billing.quotes import MAX_HOLD_S, Hold, Quote, TargetQuote, apply_quote, make_quote
from gateway.domain.attribution import BUDGET_HEADER
from gateway.domain.member import includes_rights
from gateway.domain.operation import Operation
from gateway.domain.price import NANOS_PER_USD
from gateway.domain.usage import estimate_tokens
from gateway.errors import InvalidRequest, NoHealthyChannel
from gateway.formats.references.provider_reads import ProviderReads, find_reads
from gateway.formats.videos.openai_request import parse_videos_form, parse_videos_inference
from gateway.large_work import run_in_thread
from gateway.memory_budget import close_loan
from gateway.request_context import QUOTE_HEADER, RequestContext
from gateway.routing.target import Target
from gateway.server.active_inference import INFERENCE, ActiveInference, get_active
from gateway.server.context import USER
from gateway.server.google_api import parse_method_path
from gateway.server.handlers.video_create import parse_video
from gateway.server.idempotency import NO_IDEMPOTENCY_KEY
from gateway.server.middlewares import parse_request, quota, with_middlewares
from gateway.server.query import parse_number
from gateway.server.request_checks import make_budget_refusal
from gateway.server.routes import list_parsers

DEFAULT_ENDPOINT = "/v1/chat/completions"
VIDEOS_ENDPOINT = "/v1/videos"
_MAX_SHOWN_CHARS = 80


class QuotedInference(ActiveInference):
    """The request that is quoted. It is neither sent nor recorded.

    ``left_nanos`` is what it may still reserve, in nano-USD; None if nothing limits it.
    """

    def __init__(self, request: web.Request, operation: Operation, hold_s: int) -> None:
        super().__init__(request, operation)
        self.idempotency_key = NO_IDEMPOTENCY_KEY  # the header is for the request itself
        self.hold_s = hold_s
        self.quote: Quote | None = None
        self.hold: Hold | None = None
        self.left_nanos: int | None = None


async def post_quote(request: web.Request) -> web.StreamResponse:
    """``POST /v1/quote?endpoint=/v1/chat/completions&hold_s=30``: quote a request. Raises the errors of the request."""
    if BUDGET_HEADER in request.headers:
        raise make_budget_refusal("a quote takes no budget; name a session that has one")
    hold_s = parse_number(request.query, "hold_s") or 0
    if hold_s > MAX_HOLD_S:
        raise InvalidRequest(f"'hold_s' must be at most {MAX_HOLD_S}", param="hold_s")
    operation, parsing_middleware = _find_endpoint(request.query.get("endpoint", DEFAULT_ENDPOINT))
    if operation == "videos":
        if hold_s:
            raise InvalidRequest("'hold_s' is not available for videos: quote without a hold", param="hold_s")
        handler = with_middlewares(_answer, [parsing_middleware, _route_video])
    else:
        handler = with_middlewares(_answer, [parsing_middleware, partial(quota, admit=_quote_targets)])
    active = request[INFERENCE] = QuotedInference(request, operation, hold_s)
    try:
        return await handler(request)
    finally:
        if active.context.loan is not None:
            close_loan(active.context)
        active.task = None  # as in ``settle_request``
        del request[INFERENCE]


def _find_endpoint(endpoint: str) -> tuple[Operation, Middleware]:
    """Return the operation of a path, and the middleware that parses its body. Raises ``InvalidRequest``."""
    for path, operation, parsing_middleware in list_parsers():
        if endpoint == f"/v1{path}":
            return operation, parsing_middleware
    if endpoint == VIDEOS_ENDPOINT:
        return "videos", partial(parse_video, parse_json=parse_videos_inference, parse_fields=parse_videos_form)
    method_parts = parse_method_path(endpoint)
    if method_parts is not None:
        model, operation, parse = method_parts
        return operation, partial(parse_request, parse=partial(parse, model=model))
    raise InvalidRequest(
        f"'endpoint' must be the path of an inference request, such as {DEFAULT_ENDPOINT}, "
        f"not {endpoint[:_MAX_SHOWN_CHARS]!r}",
        param="endpoint",
    )


async def _route_video(request: web.Request, handler: Handler) -> web.StreamResponse:
    active = request[INFERENCE]
    ctx, services = active.context, active.services
    services.videos.submitter.check(ctx.inference)
    ctx.target_list = services.routing.router.route(ctx.caller, ctx.inference)
    await _quote_targets(active)
    return await handler(request)


async def _quote_targets(active: ActiveInference) -> None:
    """Quote the targets of a request in the order of attempts, and hold the highest cost if the query has ``hold_s``.

    Raises ``InvalidRequest`` if a cost cannot be held because only the provider's answer tells it, ``RateLimited`` for
    too many holds, and the errors of ``QuotaService.hold``.
    """
    request, ctx = active.request, active.context
    quoted_inference = get_active(request, QuotedInference)
    try:
        targets = ctx.target_list.rank()
    except NoHealthyChannel:
        targets = ctx.target_list.targets
    quote = quoted_inference.quote = make_quote(ctx.inference, targets, await _find_reads(ctx))
    quoted_inference.left_nanos = await _find_left_nanos(active, quote)
    if not quoted_inference.hold_s:
        return
    if quote.max_nanos is None:
        raise InvalidRequest("'hold_s': only the provider's answer tells what this request costs", param="hold_s")
    billing = active.services.billing
    holds = billing.open_holds()
    holds.check_room(ctx.caller.key.id)
    reservation = await billing.quota.hold(ctx, quote.max_nanos)
    quoted_inference.hold = holds.open(ctx.caller.key.id, quote, reservation, quoted_inference.hold_s)


async def _find_reads(ctx: RequestContext) -> ProviderReads:
    inference = ctx.inference
    return await run_in_thread(find_reads, inference) if inference.large else find_reads(inference)


async def _find_left_nanos(active: ActiveInference, quote: Quote) -> int | None:
    """Return what the request may still reserve, in nano-USD; None if nothing limits it.

    A node of a cluster returns the highest quoted cost that it may reserve, or -1 if there is none, because other nodes
    hold part of what is left. Raises the errors of ``QuotaService.find_coverable``.
    """
    ctx, billing = active.context, active.services.billing
    caller, accounting, limits = ctx.caller, billing.accounting, billing.balances.limits
    if billing.keeper is not None and (caller.capped or limits is not None):
        costs = {quoted.max_nanos for quoted in quote.targets if quoted.max_nanos is not None}
        return await billing.quota.find_coverable(ctx, costs)
    amounts_left = [] if limits is None else [await limits.find_left_nanos(ctx, billing.balances.today)]
    if caller.capped:
        await accounting.refresh(caller.key, caller.account)
        balance, day = accounting.find_stricter(caller.key, caller.account)
        amounts_left.append(balance.find_room(day))
    return min([nanos for nanos in amounts_left if nanos is not None], default=None)


async def _answer(request: web.Request) -> web.StreamResponse:
    active = get_active(request, QuotedInference)
    quote, hold, inference = active.quote, active.hold, active.context.inference
    if quote is None:
        raise TypeError("the request was not quoted")
    body: dict[str, Any] = {
        "object": "quote",
        "endpoint": request.query.get("endpoint", DEFAULT_ENDPOINT),
        "model": inference.model,
        "max_usd": _to_usd(quote.max_nanos),
        "targets": [_describe(active, quoted) for quoted in quote.targets],
        "quote_id": None if hold is None else hold.id,
        "hold_s": active.hold_s,
    }
    return web.Response(body=orjson.dumps(body), content_type="application/json")


def _describe(active: QuotedInference, quoted: TargetQuote) -> dict[str, Any]:
    target, ctx = quoted.target, active.context
    user = active.request.get(USER)
    sees_channels = user is not None and includes_rights(user.member.role, "administrator")
    return {
        "model": ctx.inference.model if target.place is None else target.place.model,
        **({"channel": target.channel.name} if sees_channels else {}),
        "max_usd": _to_usd(quoted.max_nanos),
        "likely_usd": _to_usd(quoted.likely_nanos),
        "estimated_prompt_tokens": estimate_tokens(ctx.inference.prompt_chars),
        "obstacles": _list_obstacles(active, quoted),
    }


def _list_obstacles(active: QuotedInference, quoted: TargetQuote) -> list[dict[str, Any]]:
    """Return why the target could not serve the request now: codes, each with the seconds to wait if known."""
    obstacles: list[dict[str, Any]] = []
    obstacle = _find_channel_obstacle(active, quoted.target)
    if obstacle is not None:
        obstacles.append(obstacle)
    left_nanos = active.left_nanos
    if left_nanos is not None and quoted.max_nanos is not None and quoted.max_nanos > left_nanos:
        obstacles.append({"code": "insufficient_quota", "wait_s": None})
    return obstacles


def _find_channel_obstacle(active: QuotedInference, target: Target) -> dict[str, Any] | None:
    load_balancer = active.services.routing.load_balancer
    obstacle = target.state.find_obstacle(target.endpoint_key, active.context.caller.account.id, load_balancer.now)
    return None if obstacle is None else {"code": obstacle[0], "wait_s": round(obstacle[1], 1)}


def _to_usd(nanos: int | None) -> float | None:
    return None if nanos is None else nanos / NANOS_PER_USD


async def admit_quoted(active: ActiveInference) -> None:
    """Admit a request at the prices of its quote, with what the quote holds.

    A refused request leaves the hold to the next one. Raises ``QuoteNotValid``, and the errors of ``admit_held``.
    """
    ctx, billing = active.context, active.services.billing
    holds = billing.open_holds()
    hold = holds.take(active.request.headers[QUOTE_HEADER], ctx.caller.key.id)
    is_admitted = False
    try:
        apply_quote(hold, ctx.inference, ctx.target_list, await _find_reads(ctx))
        await billing.quota.admit_held(ctx, ctx.target_list.rank(), hold.reservation)
        is_admitted = True
    finally:
        if not is_admitted:
            holds.put_back(hold)
