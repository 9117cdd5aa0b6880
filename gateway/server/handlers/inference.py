"""The handler of inference requests, which the middlewares have already parsed and admitted."""

from time import monotonic

from aiohttp import web

from gateway.deferred import load
from gateway.domain.price import usd
from gateway.proxy import forward
from gateway.proxy.client_stream import ClientStream
from gateway.server.active_inference import CACHE_CONTROL, INFERENCE
from gateway.server.responses import SMALL_BODY_BYTES, BufferedResponse, EventStreamResponse, LargeResponse

_ANSWER_FUNCTION = "server.cached_answers:answer_from_cache"
_OPEN_FUNCTION = "server.recorded_stream:open_recorded"


async def forward_inference(
    request: web.Request, open_stream: type[EventStreamResponse] = EventStreamResponse, *, in_background: bool = False
) -> web.StreamResponse:
    """Answer a request that is parsed and has its cost reserved: from the cache, or with a provider's answer.

    ``open_stream`` sends a stream to the client. The stream of a request ``in_background`` goes on without a reader.
    """
    active = request[INFERENCE]
    ctx, services, inference = active.context, active.services, active.context.inference
    has_cache_wish = active.has_rare_headers and CACHE_CONTROL in request.headers
    if services.live_config.caches or ctx.caller.key.cache_ttl_s or has_cache_wish:
        cached_response: web.StreamResponse | None = await load(_ANSWER_FUNCTION)(request, active, open_stream)
        if cached_response is not None:
            return cached_response
    images = None if inference.image is None else services.media.images
    if inference.stream:
        client_stream = open_stream(request)
        stream = forward.stream if images is None else images.fetch_stream
        sent_stream: ClientStream = client_stream
        if in_background or active.names_resumable or ctx.caller.key.resumable:
            sent_stream = load(_OPEN_FUNCTION)(active, client_stream, in_background=in_background)
        if active.exchange is not None or active.recorder is not None or active.sample is not None:
            sent_stream = active.wrap_stream(sent_stream)
        await stream(services.proxy, ctx, sent_stream, settle=active.settle_stream)
        return client_stream.response
    fetch = forward.fetch if images is None else images.fetch
    answer = await fetch(services.proxy, ctx)
    ctx.first_byte_at = active.loop.time()
    active.settle("completed")
    row, body = ctx.record, answer.body
    overhead_s = monotonic() - ctx.read_at - ctx.upstream_s - ctx.queued_s
    services.metrics.overheads.append(overhead_s)
    headers = {"x-gateway-overhead-ms": f"{overhead_s * 1000:.2f}", "Content-Type": answer.media_type}
    if row is not None and not row.unpriced:  # without a price the cost is unknown
        headers["x-gateway-cost-usd"] = usd(row.cost_nanos)
    if active.exchange is not None or active.recorder is not None or active.sample is not None:
        active.note_answer(body, answer.media_type)
    if active.idempotency_key.is_named:
        await active.idempotency_key.keep(body, answer.media_type)
    return (BufferedResponse if len(body) <= SMALL_BODY_BYTES else LargeResponse)(request, body, headers)
