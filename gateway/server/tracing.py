"""The middleware that traces requests. ``gateway/app.py`` adds it if tracing is on."""

from collections.abc import Awaitable
from time import time_ns

from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.observability.spans import build_spans
from gateway.observability.trace_context import RequestTrace, open_trace
from gateway.server.context import CONTEXT, SERVICES, TracingServices

_API = ("/v1/", "/v1beta/")
_LEFT_STATUS = 499


@web.middleware
def trace_request(request: web.Request, handler: Handler) -> Awaitable[web.StreamResponse]:
    """Give a request of the public API its trace, and export its spans when it has ended, if it is sampled.

    It is no coroutine of its own, so that a request that is not sampled has none between its middlewares.
    """
    tracing = request.app[SERVICES].tracing
    if tracing is None:
        return handler(request)
    trace = None
    if request.method == "POST" and request.path.startswith(_API):
        trace = open_trace(request[CONTEXT], request.headers, tracing.sample_ratio)
    if trace is not tracing.current.get():  # of an earlier request of the connection
        tracing.current.set(trace)
    return handler(request) if trace is None or not trace.sampled else _export(request, handler, tracing, trace)


async def _export(
    request: web.Request, handler: Handler, tracing: TracingServices, trace: RequestTrace
) -> web.StreamResponse:
    status = _LEFT_STATUS
    try:
        response = await handler(request)
        status = response.status
    finally:
        for span in build_spans(trace, request.method, request.path, status, time_ns()):
            tracing.exporter.export(span)
    return response
