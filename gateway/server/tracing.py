"""The tracing middleware. ``gateway/app.py`` adds it if tracing is on."""

from collections.abc import Awaitable
from time import time_ns

from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.observability.spans import build_spans
from gateway.observability.trace_context import RequestTrace, open_trace
from gateway.server.context import CONTEXT, SERVICES, TracingServices

_API_PREFIXES = ("/v1/", "/v1beta/")
_DISCONNECTED_STATUS = 499


@web.middleware
def trace_request(request: web.Request, handler: Handler) -> Awaitable[web.StreamResponse]:
    """Open a trace for each POST request to the public API. Not a coroutine: most requests are not sampled."""
    tracing = request.app[SERVICES].tracing
    if tracing is None:
        return handler(request)
    trace = None
    if request.method == "POST" and request.path.startswith(_API_PREFIXES):
        trace = open_trace(request[CONTEXT], request.headers, tracing.sample_ratio)
    if trace is not tracing.current.get():  # it may still be the trace of the connection's previous request
        tracing.current.set(trace)
    return handler(request) if trace is None or not trace.sampled else _export(request, handler, tracing, trace)


async def _export(
    request: web.Request, handler: Handler, tracing: TracingServices, trace: RequestTrace
) -> web.StreamResponse:
    status = _DISCONNECTED_STATUS
    try:
        response = await handler(request)
        status = response.status
    finally:
        for span in build_spans(trace, request.method, request.path, status, time_ns()):
            tracing.exporter.export(span)
    return response
