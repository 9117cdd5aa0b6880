"""Exports spans to an OTLP receiver over HTTP. Only this module imports OpenTelemetry; it needs the extra ``tracing``.

The SDK's batch processor keeps spans in a bounded queue and sends them in its own thread. If the receiver is slow or
unreachable, spans are dropped; requests never wait for the receiver.
"""

import asyncio
import contextlib
import threading
from collections.abc import Mapping

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from gateway import __version__
from gateway.observability.spans import FinishedSpan

TIMEOUT_S = 5.0
"""Timeout of one request to the receiver."""
CLOSE_TIMEOUT_S = 2.0
"""How long a stopping gateway waits for the last spans to be sent."""
_SERVICE = "model-gateway"
_SCOPE = InstrumentationScope("gateway", __version__)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class SpanExporter:
    """Sends finished spans to an OTLP receiver. ``headers`` are sent with each request."""

    def __init__(self, endpoint: str, headers: Mapping[str, str]) -> None:
        self._resource = Resource.create({"service.name": _SERVICE, "service.version": __version__})
        self._exporter = OTLPSpanExporter(
            endpoint=endpoint, headers=dict(headers), timeout=TIMEOUT_S, compression=Compression.Gzip
        )
        self._processor = BatchSpanProcessor(self._exporter)

    def export(self, span: FinishedSpan) -> None:
        parent = None
        if span.parent_id is not None:
            parent = SpanContext(span.trace_id, span.parent_id, is_remote=span.is_server, trace_flags=_SAMPLED)
        self._processor.on_end(
            ReadableSpan(
                span.name,
                SpanContext(span.trace_id, span.span_id, is_remote=False, trace_flags=_SAMPLED),
                parent,
                self._resource,
                span.attributes,
                kind=SpanKind.SERVER if span.is_server else SpanKind.CLIENT,
                status=Status(StatusCode.UNSET) if span.error is None else Status(StatusCode.ERROR, span.error),
                start_time=span.started_ns,
                end_time=span.ended_ns,
                instrumentation_scope=_SCOPE,
            )
        )

    def flush(self) -> None:
        self._processor.force_flush()

    async def close(self) -> None:
        """Send the remaining spans for at most ``CLOSE_TIMEOUT_S``. The daemon thread cannot keep the process alive."""
        loop, has_stopped = asyncio.get_running_loop(), asyncio.Event()

        def stop_exporter() -> None:
            self._processor.shutdown()  # type: ignore[no-untyped-call]
            with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
                loop.call_soon_threadsafe(has_stopped.set)

        threading.Thread(target=stop_exporter, daemon=True).start()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await has_stopped.wait()
        except TimeoutError:
            self._exporter.shutdown()  # type: ignore[no-untyped-call] # ends a pause between two attempts
