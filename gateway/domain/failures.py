"""Failures by cause: the requests that failed or were refused, summed by hour and day with their traffic."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from gateway.domain.request_log import RequestRecord
from gateway.domain.traffic import HOUR_MS, SPANS, find_summed_model


class FailureKey(NamedTuple):
    """The key of a sum of failures.

    ``span`` is the length of the sum's period in hours, ``hour`` its first hour, counted in UTC since 1970. ``code`` is
    empty if the failures have none.
    """

    span: int
    hour: int
    account_id: int
    key_id: int
    model: str
    channel: str
    outcome: str
    code: str


def sum_failures(rows: Iterable[RequestRecord]) -> dict[FailureKey, int]:
    """Return the numbers of failures to add to the sums, in a fixed order against deadlocks.

    All rows must have failed.
    """
    counts: Counter[FailureKey] = Counter()
    for row in rows:
        hour = row.settled_ms // HOUR_MS
        cause = (find_summed_model(row), row.channel or "", row.outcome, row.error_code or "")
        for span in SPANS:
            counts[FailureKey(span, hour // span * span, row.account_id, row.key_id, *cause)] += 1
    return dict(sorted(counts.items()))
