"""Failures by cause in the database, written with their rows; ``traffic_series.py`` reads them."""

from collections.abc import Iterable
from typing import Any

from gateway.domain.failures import sum_failures
from gateway.domain.request_log import RequestRecord
from gateway.storage.bulk import BulkAddition
from gateway.storage.schema import failure_hours

ADD_FAILURES = BulkAddition(failure_hours, ("requests",))


def list_additions(rows: Iterable[RequestRecord], sign: int = 1) -> list[tuple[Any, ...]]:
    """Return what ``ADD_FAILURES`` inserts to count failed rows; with the sign -1, to reverse that."""
    return [(*key, sign * count) for key, count in sum_failures(rows).items()]
