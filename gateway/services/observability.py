"""Opens the metrics of finished requests and, if ``[tracing] endpoint`` is set, tracing with OpenTelemetry."""

from collections import deque
from contextlib import AsyncExitStack

from gateway.config.extras import describe_missing_extra
from gateway.config.loader import ConfigError
from gateway.config.observability_schema import TracingSection
from gateway.domain.request_log import RequestRecord
from gateway.log import add_processor
from gateway.observability.request_metrics import ModelNames, RequestMetrics
from gateway.routing.load_balancer import LoadBalancer
from gateway.routing.router import Router
from gateway.server.context import TracingServices


def open_tracing(section: TracingSection, stack: AsyncExitStack) -> TracingServices | None:
    """Open the exporter of spans, and let log lines name their trace. Return None if tracing is off.

    Raises ``ConfigError`` if the extra is missing.
    """
    if not section.endpoint:
        return None
    tracing = _build_tracing(section)
    stack.push_async_callback(tracing.exporter.close)
    stack.callback(add_processor(tracing.current.add_log_fields))
    return tracing


def _build_tracing(section: TracingSection) -> TracingServices:
    try:
        from gateway.observability.span_export import SpanExporter  # noqa: PLC0415 - only if tracing is on
    except ImportError as error:
        raise ConfigError([describe_missing_extra("tracing.endpoint", "tracing")]) from error
    return TracingServices(SpanExporter(section.traces_url, section.parse_headers()), section.sample_ratio)


def open_metrics(ended_requests: deque[RequestRecord], load_balancer: LoadBalancer, router: Router) -> RequestMetrics:
    """Open the metrics. A job started by ``gateway.services`` updates them with the records in ``ended_requests``."""

    def find_provider(channel: str) -> str:
        state = load_balancer.channels.get(channel)
        return "" if state is None else state.channel.provider

    return RequestMetrics(ended_requests, ModelNames(router).find_label, find_provider)
