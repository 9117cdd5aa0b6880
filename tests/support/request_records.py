"""Request rows for tests: one with a value in every field, and others made from it."""

from datetime import UTC, datetime
from typing import Any

import attrs

from gateway.domain.request_log import RequestRecord

ROW = RequestRecord(
    id="req_0",
    started_ms=1_750_000_000_123,
    settled_ms=1_750_000_000_128,
    operation="chat",
    account_id=3,
    account="acme",
    key_id=5,
    key_name="laptop",
    model="m",
    channel="up",
    status=200,
    outcome="completed",
    error_code="upstream_error",
    stream=True,
    attempts=2,
    prompt_tokens=100_000_000,
    completion_tokens=2,
    cached_tokens=3,
    usage_source="estimate",
    cost_nanos=2**52 + 1,
    reserved_nanos=2**62,
    overrun_nanos=7,
    first_byte_ms=4,
    total_ms=5,
    client_request_id="theirs-1",
    tried="down=upstream_timeout:12,up=ok:3",
    images=4,
    duration_ms=36_000_000,
    characters=100_000,
    error="The provider broke off its answer",
    route="fast",
    end_user="u-17",
    session="run-42",
    tags="feature=search,team=web",
    queued_ms=6,
    limit_charges='[["each user|user|day|UTC","3:u-17",1749945600]]',
)
"""Its cost is no float's, and its hold is as large as they come."""


def make_row(name: object, **values: Any) -> RequestRecord:
    """``ROW`` with the id ``req_{name}`` and other ``values``."""
    return attrs.evolve(ROW, id=f"req_{name}", **values)


def make_rows(*names: object, **values: Any) -> list[RequestRecord]:
    """One row a name."""
    return [make_row(name, **values) for name in names]


def read_ms(text: str) -> int:
    """``2026-03-01 00:00:00.000`` in UTC, in Unix milliseconds."""
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


NOON_MS = read_ms("2026-03-15 12:00")


def charge(name: object, cost: int, *, at_ms: int = NOON_MS, key: int = 11, model: str = "m") -> RequestRecord:
    """A row of the key ``key``, which is of the account with the number of its tens."""
    return make_row(
        name,
        settled_ms=at_ms,
        account_id=key // 10,
        key_id=key,
        model=model,
        prompt_tokens=100,
        completion_tokens=10,
        cached_tokens=1,
        cost_nanos=cost,
    )


def refuse(row: RequestRecord) -> RequestRecord:
    """The row of a call that was refused before a provider was asked."""
    return attrs.evolve(row, attempts=0, channel=None, outcome="refused", status=403, cost_nanos=0, reserved_nanos=0)
