"""Rows of requests with an end user, a session and tags, for tests of their sums."""

from typing import Any

import attrs

from gateway.domain.request_log import RequestRecord
from gateway.storage.database import Database
from tests.support.request_records import charge, read_ms

NOON_MS = read_ms("2026-03-15 12:00")
DAY_MS = 86_400_000
TODAY = NOON_MS // DAY_MS


def ask(name: object, cost: int = 1, *, days: int = 0, key: int = 11, **values: Any) -> RequestRecord:
    """A row that was settled at noon, ``days`` later."""
    unattributed = {"end_user": "", "session": "", "tags": ""}
    return attrs.evolve(charge(name, cost, at_ms=NOON_MS + days * DAY_MS, key=key), **{**unattributed, **values})


def restart(database: Database, max_values: int) -> None:
    """Forget what the process knows of stored values."""
    database.bound_subjects(lambda: max_values)
