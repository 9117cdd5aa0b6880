"""The row that every request leaves behind, and the port that stores it."""

from collections.abc import Sequence
from typing import Literal, Protocol

import attrs

from gateway.domain.usage import UsageSource

Ending = Literal["completed", "refused", "upstream_failed", "client_closed", "interrupted", "failed"]
"""How a request ended: answered whole; refused by a check; the provider failed; the caller left; the gateway was
stopped under it; a bug of ours."""


@attrs.frozen
class RequestRow:
    """One request, written once when it has ended. Times are Unix milliseconds and durations milliseconds.

    ``first_byte_ms`` is from the request's arrival to the first byte towards the caller, None where none was sent.
    ``error_code`` is the public code of the fault, None where there was none. ``settled_ms`` decides the day on which
    the cost was spent. ``reserved_nanos`` was held while it ran; ``overrun_nanos`` of the cost are above a cap.
    A field that is added needs a default: the journal of the version before does not have it.
    """

    id: str
    started_ms: int
    settled_ms: int
    operation: str
    account_id: int
    account: str
    key_id: int
    key_name: str
    model: str
    channel: str | None
    status: int
    ending: Ending
    error_code: str | None
    stream: bool
    attempts: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    usage_source: UsageSource
    cost_nanos: int
    reserved_nanos: int
    overrun_nanos: int
    first_byte_ms: int | None
    total_ms: int
    client_request_id: str | None = None


@attrs.frozen
class RequestFilter:
    """Which rows to list; None does not restrict. ``after`` is a row's sequence: only later ones."""

    key_id: int | None = None
    model: str | None = None
    status: int | None = None
    after: int | None = None


@attrs.frozen
class StoredRequest:
    """A row with its place in the order of writing."""

    sequence: int
    row: RequestRow


class RequestLog(Protocol):
    """Where request rows are found, in the order they were written; ``domain/ledger.py`` has the port that writes."""

    async def list_requests(self, wanted: RequestFilter, limit: int) -> Sequence[StoredRequest]:
        """The newest ``limit`` rows that match, oldest of them first; with ``after``, the oldest ones after it."""
        ...
