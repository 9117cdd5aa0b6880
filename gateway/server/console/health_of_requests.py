"""Latency and error figures computed from the latest requests."""

from collections import Counter
from collections.abc import Iterable, Sequence

from gateway.domain.request_log import NON_FAILURES
from gateway.server.admin.requests import RequestView
from gateway.server.console.page import Data

SAMPLE_ROWS = 1000
"""Number of requests examined: the maximum page size of the admin API."""
_MAX_ERRORS = 6


def measure_speed(rows: Sequence[RequestView]) -> Data:
    """Return medians and 95th percentiles in milliseconds; None if no request completed."""
    completed = [row for row in rows if row.outcome == "completed"]
    return {
        "requests": len(rows),
        "latency": find_percentiles(row.total_ms for row in completed),
        "first_byte": find_percentiles(
            row.first_byte_ms for row in completed if row.stream and row.first_byte_ms is not None
        ),
    }


def find_percentiles(times_ms: Iterable[int]) -> dict[str, int | None]:
    """Return the median and the 95th percentile of ``times_ms`` as ``p50`` and ``p95``; both None without times."""
    sorted_values = sorted(times_ms)
    return {
        f"p{percent}": sorted_values[-(-len(sorted_values) * percent // 100) - 1] if sorted_values else None
        for percent in (50, 95)
    }


def count_errors(rows: Iterable[RequestView]) -> list[Data]:
    """Count failures by code and outcome; return at most ``_MAX_ERRORS``, the most frequent first."""
    counts = Counter((row.error_code or "", row.outcome) for row in rows if row.outcome not in NON_FAILURES)
    return [
        {"code": code, "outcome": outcome, "requests": count}
        for (code, outcome), count in counts.most_common(_MAX_ERRORS)
    ]
