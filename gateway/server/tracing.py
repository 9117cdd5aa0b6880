"""The middleware that traces requests. ``gateway/app.py`` adds it if tracing is on."""

from time import time_ns

from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.observability.spans import build_spans
from gateway.observability.trace_context import open_trace
from gateway.server.context import CONTEXT, SERVICES

_API = ("/v1/", "/v1beta/")
_LEFT_STATUS = 499


@web.middleware
async def trace_request(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give a request of the public API its trace, and export its spans when it has ended, if it is sampled."""
    tracing = request.app[SERVICES].tracing
    if tracing is None:
        return await handler(request)
    trace = None
    if request.method == "POST" and request.path.startswith(_API):
        trace = open_trace(request[CONTEXT], request.headers, tracing.sample_ratio)
    tracing.current.set(trace)
    if trace is None or not trace.sampled:
        return await handler(request)
    status = _LEFT_STATUS
    try:
        response = await handler(request)
        status = response.status
    finally:
        for span in build_spans(trace, request.method, request.path, status, time_ns()):
            tracing.exporter.export(span)
    return response
