"""Metrics in Prometheus format: families of samples, and their text.

The names follow Prometheus' rules: base units, the unit as a suffix, ``_total`` for counters. Metrics that
OpenTelemetry's conventions for generative AI define keep their names, with ``_`` for ``.``.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import isinf

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from gateway.observability.histogram import Histogram
from gateway.observability.request_metrics import OTHER_LABEL, RequestMetrics, RequestSums

_REQUEST_LABELS = ("operation", "model", "channel")
_GEN_AI_LABELS = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")
_LATENCIES = (
    ("gen_ai_server_time_to_first_token_seconds", "Time to the first byte, completed streams", "first_token"),
    ("gen_ai_server_time_per_output_token_seconds", "Time per token after the first", "output_token"),
    ("gen_ai_server_request_duration_seconds", "Duration of requests that a channel was asked for", "duration"),
)
ALWAYS_EXPORTED = (
    ("", "refused", "rate_limit_exceeded"),
    ("", "refused", "insufficient_quota"),
    ("", "refused", "overloaded"),
    ("", "failed", "internal_error"),
)
"""Errors (channel, outcome, code) that are reported as 0 before they first occur: a rate needs an earlier value."""


class Families(Collector):
    """A collector that returns the given families: an encoder reads metrics only from a collector."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def write_families(families: Iterable[Metric], accept: str) -> tuple[bytes, str]:
    """Return the text of ``families`` and its media type, in the format that the ``Accept`` header asks for."""
    encode, media_type = choose_encoder(accept)
    return encode(Families(families)), media_type


def list_request_families(metrics: RequestMetrics) -> Iterator[Metric]:
    """Yield the metrics of finished requests."""
    requests = CounterMetricFamily(
        "gateway_requests", "Finished requests; outcome is how they ended", labels=[*_REQUEST_LABELS, "outcome"]
    )
    for key, sums in metrics.sums.items():
        requests.add_metric(key, sums.requests)
    yield requests
    totals = _sum_outcomes(metrics)
    tokens = CounterMetricFamily(
        "gateway_tokens",
        "Tokens of finished requests; cached tokens are part of input",
        labels=[*_REQUEST_LABELS, "type"],
    )
    cost = CounterMetricFamily("gateway_cost_usd", "Cost of finished requests in US dollars", labels=_REQUEST_LABELS)
    saved = GaugeMetricFamily(  # no counter, because writing to a cache can cost more than is saved
        "gateway_cache_saved_usd", "US dollars that prompt caches have saved since the start", labels=_REQUEST_LABELS
    )
    retries = CounterMetricFamily(
        "gateway_retries", "Attempts after the first one of a request", labels=_REQUEST_LABELS
    )
    for labels, total in totals.items():
        tokens.add_metric((*labels, "input"), total.input_tokens)
        tokens.add_metric((*labels, "output"), total.output_tokens)
        tokens.add_metric((*labels, "cached"), total.cached_tokens)
        cost.add_metric(labels, total.cost_usd)
        saved.add_metric(labels, total.saved_usd)
        retries.add_metric(labels, total.retry_count)
    yield from (tokens, cost, saved, retries)
    yield _build_errors(metrics)
    yield from _list_latencies(metrics)


def _sum_outcomes(metrics: RequestMetrics) -> dict[tuple[str, str, str], RequestSums]:
    totals: dict[tuple[str, str, str], RequestSums] = {}
    for (operation, model, channel, _), sums in metrics.sums.items():
        total = totals.setdefault((operation, model, channel), RequestSums())
        total.retry_count += sums.retry_count
        total.input_tokens += sums.input_tokens
        total.output_tokens += sums.output_tokens
        total.cached_tokens += sums.cached_tokens
        total.cost_nanos += sums.cost_nanos
        total.saved_nanos += sums.saved_nanos
    return totals


def _build_errors(metrics: RequestMetrics) -> Metric:
    errors = CounterMetricFamily(
        "gateway_request_errors",
        f"Requests that ended with an error; code is {OTHER_LABEL!r} for one of a provider's own; "
        "no channel: none was asked",
        labels=["channel", "outcome", "code"],
    )
    for key in dict.fromkeys([*ALWAYS_EXPORTED, *metrics.errors]):
        errors.add_metric(key, metrics.errors[key])
    return errors


def _list_latencies(metrics: RequestMetrics) -> Iterator[Metric]:
    for name, words, latency_name in _LATENCIES:
        is_duration = latency_name == "duration"
        family = HistogramMetricFamily(
            name, words, labels=[*_GEN_AI_LABELS, "error_type"] if is_duration else _GEN_AI_LABELS
        )
        for (operation, provider, model, error), latencies in metrics.latencies.items():
            histogram: Histogram = getattr(latencies, latency_name)
            if is_duration:
                add_histogram(family, (operation, provider, model, error), histogram)
            elif not error:
                add_histogram(family, (operation, provider, model), histogram)
        yield family


def add_histogram(family: HistogramMetricFamily, labels: Sequence[str], histogram: Histogram) -> None:
    """Add the buckets and the sum of ``histogram`` to ``family``, as the metric with these ``labels``."""
    buckets = [
        ("+Inf" if isinf(upper_bound) else str(upper_bound), cumulative_count)
        for upper_bound, cumulative_count in histogram.accumulate()
    ]
    family.add_metric(labels, buckets, histogram.total)


def build_gauge(name: str, words: str, value: float) -> Metric:
    """Build a gauge without labels. ``words`` is its help text."""
    return GaugeMetricFamily(name, words, value=value)
