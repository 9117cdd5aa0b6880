"""What the metrics cost a request: bounded in calls, printed in time. ``make test ARGS="tests/bench -n0 -s"`` shows it.

The request's own handler pays one ``append``, which ``test_request_steps.py`` does not even see; a job counts the
record later. Budget: 2 us a request.
"""

import time
from collections import Counter, deque
from functools import partial

import attrs
import pytest

from gateway.domain.request_log import RequestRecord
from gateway.observability.request_metrics import RequestMetrics
from tests.support.called_functions import list_called
from tests.support.request_records import ROW

RECORDS = 1_000
ROUNDS = 3
DONE = attrs.evolve(ROW, error_code=None, attempts=1)


@pytest.mark.parametrize(
    ("name", "record", "most"),
    [
        ("a completed stream", DONE, 5),
        ("a whole answer", attrs.evolve(DONE, stream=False), 3),
        ("a refusal", attrs.evolve(ROW, channel=None, outcome="refused", error_code="rate_limit_exceeded"), 3),
    ],
)
def test_a_record_is_counted_in_few_steps(name: str, record: RequestRecord, most: int) -> None:
    metrics = RequestMetrics(deque(), str, str)
    metrics.count(record)
    called = list_called(partial(metrics.count, record))
    best = min(_measure(metrics, record) for _ in range(ROUNDS))
    print(f"\n{name}: {best:.2f} us, {len(called)} calls of at most {most}", end="")
    assert len(called) <= most, Counter(called)


def _measure(metrics: RequestMetrics, record: RequestRecord) -> float:
    """The CPU time of a record, in us."""
    since = time.process_time()
    for _ in range(RECORDS):
        metrics.count(record)
    return (time.process_time() - since) * 1e6 / RECORDS
