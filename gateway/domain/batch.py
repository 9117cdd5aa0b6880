"""Batches: the requests of one file, which the gateway sends by itself within a day."""

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from gateway.domain.inference_request import Operation

BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
ENDED: frozenset[BatchStatus] = frozenset({"failed", "completed", "expired", "cancelled"})
WINDOW = "24h"
WINDOW_MS = 24 * 3_600 * 1000
MAX_LINES = 50_000
"""Of one batch, as OpenAI's."""
MAX_ERRORS = 100
"""Errors that the validation of one batch reports."""
ENDPOINTS: Mapping[str, Operation] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/embeddings": "embeddings",
    "/v1/responses": "responses",
}
"""Endpoints that a batch may use."""


@attrs.frozen
class BatchError:
    """What is wrong with a line of the input (``line`` counts from 1), or with the whole input."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@attrs.frozen
class BatchLine:
    """One checked line. ``body``: of the request, as the client wrote it."""

    custom_id: str
    body: dict[str, Any] = attrs.field(repr=False)

    @property
    def model(self) -> str:
        return str(self.body["model"])


@attrs.frozen
class BatchTally:
    """Lines with a result, and the tokens that their answers report."""

    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    def add(self, other: "BatchTally") -> "BatchTally":
        """Return the sum."""
        return BatchTally(
            *(mine + yours for mine, yours in zip(attrs.astuple(self), attrs.astuple(other), strict=True))
        )


@attrs.frozen
class LineResult:
    """The result of one line.

    Attributes:
        line: the line of the output file or the error file, with its end.
        tally: what it adds to the batch's; ``completed`` tells which of the two files.
    """

    line: bytes = attrs.field(repr=False)
    tally: BatchTally

    @property
    def completed(self) -> bool:
        return bool(self.tally.completed)


@attrs.frozen
class Batch:
    """One batch.

    Attributes:
        key_id: the key that pays.
        expires_ms: when the lines that have not begun end as expired, in Unix milliseconds.
        endpoint: one of ``ENDPOINTS``.
        kept_s: how long the files of results are kept, in seconds; None: as the setting says.
        total: lines with a request.
        claimed: how many of them may have been sent, from the first on: none of these is ever sent again.
        times: Unix seconds by the name of the field: ``in_progress_at``.
        model: of every line; None if they name several.
        output_file_id, error_file_id: set when the files are about to be made; None if there is nothing to write.
    """

    id: str
    account_id: int
    key_id: int
    created_ms: int
    expires_ms: int
    endpoint: str
    input_file_id: str
    status: BatchStatus = "validating"
    metadata: Mapping[str, str] | None = None
    kept_s: int | None = None
    total: int = 0
    claimed: int = 0
    tally: BatchTally = BatchTally()
    times: Mapping[str, int] = attrs.Factory(dict)
    errors: tuple[BatchError, ...] = ()
    model: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None

    @property
    def operation(self) -> Operation:
        return ENDPOINTS[self.endpoint]

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    def enter(self, status: BatchStatus, now_s: int) -> "Batch":
        """Return the batch in another status, with its time."""
        return attrs.evolve(self, status=status, times={**self.times, f"{status}_at": now_s})
