"""``GET /v1/realtime``: a WebSocket session with a speech-to-speech model."""

from functools import partial

import attrs
from aiohttp import web

from gateway.deferred import load
from gateway.domain.attribution import BUDGET_HEADER
from gateway.errors import InvalidRequest, ProviderError
from gateway.formats.errors.openai import parse_retry_after
from gateway.formats.errors.vendor import parse_worded_error
from gateway.formats.realtime.events import build_session_inference
from gateway.providers.base import EndpointRequest
from gateway.routing.target import Attempt
from gateway.server.active_inference import get_active
from gateway.server.context import SERVICES, Services
from gateway.server.middlewares import settle_request, with_middlewares
from gateway.server.realtime_auth import BETA_HEADER, find_beta, find_session, list_protocols
from gateway.server.realtime_session import ActiveRealtime, RealtimeSession, SessionMeters
from gateway.upstream.frame_meter import FrameMeter
from gateway.upstream.websocket import CLOSE_S, HEARTBEAT_S, MAX_FRAME_BYTES, HandshakeRefused, ProviderSocket


async def _relay_session(request: web.Request) -> web.StreamResponse:
    """Connect the client to a provider of the model, and relay frames until the session ends.

    The client's handshake is answered after the provider's: until then, other channels can be tried.
    """
    active, services, client = get_active(request, ActiveRealtime), request.app[SERVICES], _open_socket(request)
    ctx, (model, settings) = active.context, find_session(request)
    ctx.inference = inference = build_session_inference(model)
    active.note_parsed()
    router = services.routing.router
    ctx.target_list = router.route(ctx.caller, inference)
    if BUDGET_HEADER in request.headers:
        await load("server.request_checks:apply_budget")(active)
    await services.billing.quota.precheck(ctx.caller, partial(router.may_be_free, ctx.caller), ctx)
    beta, account = find_beta(request), ctx.caller.account.id

    async def serve(attempt: Attempt) -> None:
        timeout_s = min(attempt.timeouts.first_byte_s, attempt.timeouts.total_s)
        meters = SessionMeters(FrameMeter(account), FrameMeter(account))
        connecting = _connect(services, attempt, beta, meters.provider)
        provider = await attempt.wait_for(connecting, timeout_s, services.proxy.timer)
        try:
            attempt.check()
            services.routing.load_balancer.record_success(attempt.slot)
            await client.prepare(request)
            meters.client.attach(request.transport)
            ctx.first_byte_at = active.loop.time()
            active.session = session = RealtimeSession(
                active, attempt, inference, client=client, provider=provider, meters=meters
            )
            attempt.client = session
            await session.run(settings)
        finally:
            active.session = attempt.client = None
            await provider.close()
            meters.close()

    async with services.billing.quota.enter(ctx.caller):
        await services.proxy.with_failover(ctx, serve)
    return client


serve_session = with_middlewares(_relay_session, [partial(settle_request, operation="realtime", kind=ActiveRealtime)])
"""``_relay_session`` wrapped in the middleware that settles the request."""


def _open_socket(request: web.Request) -> web.WebSocketResponse:
    """Return the client's WebSocket before its handshake. Raises ``InvalidRequest`` if the request is no upgrade."""
    socket = web.WebSocketResponse(
        protocols=list_protocols(request),
        heartbeat=HEARTBEAT_S,
        timeout=CLOSE_S,
        compress=False,
        max_msg_size=MAX_FRAME_BYTES,
        decode_text=False,
    )
    if not socket.can_prepare(request).ok:
        raise InvalidRequest(
            "This endpoint is a WebSocket: connect to it with ws:// or wss://, for example by the 'realtime.connect' "
            "of OpenAI's client libraries",
            should_retry=False,
        )
    return socket


async def _connect(services: Services, attempt: Attempt, beta: str | None, meter: FrameMeter) -> ProviderSocket:
    headers = () if beta is None else ((BETA_HEADER, beta),)
    http_request = attempt.access.address(EndpointRequest(None, method="GET", headers=headers), attempt.identity.now_s)
    plain_headers = {
        name: value for name, value in http_request.headers.items() if name not in {"Accept", "Accept-Encoding"}
    }
    try:
        return await services.websockets.connect(attrs.evolve(http_request, headers=plain_headers), meter)
    except HandshakeRefused as refusal:
        raise _parse_refusal(services, attempt, refusal) from None


def _parse_refusal(services: Services, attempt: Attempt, refusal: HandshakeRefused) -> ProviderError:
    retry_after_s = parse_retry_after(refusal.headers.get("Retry-After"), services.clock())
    path = attempt.target.endpoint.path.partition("?")[0]
    return parse_worded_error(
        refusal.status, refusal.body, attempt.channel.secrets, provider_retry_after_s=retry_after_s, path=path
    )
