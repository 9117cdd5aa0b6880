"""Finished requests as sums and histograms: what is counted, and how many combinations of labels there can be."""

from collections import deque
from typing import Any

import attrs
import pytest

from gateway.domain.request_log import RequestRecord
from gateway.observability import request_metrics
from gateway.observability.histogram import Histogram
from gateway.observability.request_metrics import MAX_LABEL_SETS, MAX_LATENCIES, OTHER_LABEL, RequestMetrics
from tests.support.request_records import ROW
from tests.support.table_rows import table_rows

DONE = attrs.evolve(
    ROW, error_code=None, attempts=1, prompt_tokens=10, completion_tokens=5, cached_tokens=4, cost_nanos=2 * 10**9,
    first_byte_ms=200, total_ms=1_000,
)  # fmt: skip


def count(*records: RequestRecord, models: frozenset[str] = frozenset({"m"})) -> RequestMetrics:
    """Metrics of these records, with ``models`` known."""
    ended = deque(records)
    metrics = RequestMetrics(ended, lambda model: model if model in models else OTHER_LABEL, {"up": "mistral"}.get)  # type: ignore[arg-type]
    while ended:
        metrics.count_batch()
    return metrics


def find_counts(histogram: Histogram) -> dict[float, int]:
    return dict(histogram.accumulate())


def test_a_value_on_a_bound_belongs_to_the_bucket_below() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 2.0):
        histogram.observe(value)
    assert list(histogram.accumulate()) == [(0.1, 2), (1.0, 3), (float("inf"), 4)]
    assert histogram.total == pytest.approx(2.65)


def test_requests_are_summed_by_operation_model_channel_and_outcome() -> None:
    metrics = count(DONE, DONE, attrs.evolve(DONE, outcome="client_closed", attempts=3))
    done, left = metrics.sums["chat", "m", "up", "completed"], metrics.sums["chat", "m", "up", "client_closed"]
    assert (done.requests, done.input_tokens, done.output_tokens, done.cached_tokens) == (2, 20, 10, 8)
    assert (done.cost_usd, done.retry_count) == (4.0, 0)
    assert (left.requests, left.retry_count) == (1, 2)


def test_a_completed_stream_has_three_latencies() -> None:
    (key, latencies), = count(DONE).latencies.items()  # fmt: skip
    assert key == ("chat", "mistral_ai", "m", "")
    assert latencies.first_token.total == pytest.approx(0.2)
    assert latencies.output_token.total == pytest.approx(0.8 / 4)
    assert latencies.duration.total == pytest.approx(1.0)


@table_rows(
    ("change", "observed"),
    [
        ({"stream": False}, (0, 0, 1)),
        ({"outcome": "client_closed"}, (0, 0, 1)),
        ({"outcome": "failed", "error_code": "upstream_timeout", "first_byte_ms": None}, (0, 0, 1)),
        ({"completion_tokens": 1}, (1, 0, 1)),
        ({"completion_tokens": 0}, (1, 0, 1)),
    ],
)
def test_only_a_completed_stream_says_when_its_tokens_came(
    change: dict[str, Any], observed: tuple[int, int, int]
) -> None:
    (latencies,) = count(attrs.evolve(DONE, **change)).latencies.values()
    parts = latencies.first_token, latencies.output_token, latencies.duration
    assert tuple(find_counts(part)[float("inf")] for part in parts) == observed


def test_a_refused_request_has_no_latency_and_an_error() -> None:
    refused = attrs.evolve(DONE, channel=None, outcome="refused", error_code="rate_limit_exceeded", attempts=0)
    metrics = count(refused, refused)
    assert metrics.sums["chat", "m", "", "refused"].requests == 2
    assert metrics.errors == {("", "refused", "rate_limit_exceeded"): 2}
    assert not metrics.latencies


def test_a_code_of_a_providers_own_is_no_label() -> None:
    metrics = count(*(attrs.evolve(DONE, outcome="failed", error_code=f"theirs-{one}") for one in range(50)))
    assert metrics.errors == {("up", "failed", OTHER_LABEL): 50}
    assert [key[3] for key in metrics.latencies] == [OTHER_LABEL]
    assert not metrics._known_sums, "what a provider chooses is not kept"


def test_model_names_that_clients_make_up_are_one_label() -> None:
    metrics = count(*(attrs.evolve(DONE, model=f"guess-{one}") for one in range(5_000)))
    assert metrics.sums["chat", OTHER_LABEL, "up", "completed"].requests == 5_000
    assert len(metrics.sums) == len(metrics.latencies) == 1
    assert not metrics._known_sums, "what a client chooses is not kept"


def test_the_combinations_of_labels_are_bounded() -> None:
    names = [f"m{number}" for number in range(MAX_LABEL_SETS + 500)]
    metrics = count(*(attrs.evolve(DONE, model=name) for name in names * 2), models=frozenset(names))
    assert len(metrics.sums) == MAX_LABEL_SETS + 1
    assert len(metrics.latencies) == MAX_LATENCIES + 1
    assert metrics.sums["chat", OTHER_LABEL, "", "completed"].requests == 1_000
    assert sum(sums.requests for sums in metrics.sums.values()) == len(names) * 2
    assert len(metrics._known_sums) <= MAX_LABEL_SETS


async def test_records_are_counted_in_batches() -> None:
    ended = deque([DONE] * (request_metrics.BATCH_RECORDS + 1))
    metrics = RequestMetrics(ended, str, str)
    metrics.count_batch()
    assert len(ended) == 1
    await metrics.count_all()
    assert not ended
    assert metrics.sums["chat", "m", "up", "completed"].requests == request_metrics.BATCH_RECORDS + 1
