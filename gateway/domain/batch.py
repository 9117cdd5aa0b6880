"""Batches: the requests of one file, which the gateway sends by itself within a day."""

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from gateway.domain.client_file import is_client_id
from gateway.domain.operation import Operation
from gateway.domain.price import ONE_PPM
from gateway.frozen import frozen

BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
ENDED: frozenset[BatchStatus] = frozenset({"failed", "completed", "expired", "cancelled"})
RUNNING: frozenset[BatchStatus] = frozenset({"validating", "in_progress"})
"""Lines may begin: the batch can be cancelled."""
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
MESSAGES_ENDPOINT = "/v1/messages"
"""Of the batches of Anthropic's API; no batch of OpenAI's API may use it."""


PREFIX, MESSAGES_PREFIX = "batch_", "msgbatch_"
"""Of the ids of batches in OpenAI's API and in Anthropic's."""


def is_batch_id(text: str) -> bool:
    """Return whether ``text`` has the form of a batch's id."""
    return is_client_id(text, PREFIX) or is_client_id(text, MESSAGES_PREFIX)


@frozen
class BatchFilter:
    """Which batches to list; None does not restrict.

    Attributes:
        prefix: of the id, which says whose API the batch was created with.
        live: whether to list only those that have not ended.
        after: a batch's id: only older ones.
        before: a batch's id: only newer ones, and the oldest of them first.
    """

    account_id: int | None = None
    prefix: str | None = None
    status: BatchStatus | None = None
    live: bool = False
    after: str | None = None
    before: str | None = None


@frozen
class BatchError:
    """What is wrong with a line of the input (``line`` counts from 1), or with the whole input."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@frozen
class BatchLine:
    """One checked line.

    ``body``: of the request, as the client wrote it. ``headers``: of Anthropic's API, by their names in lower case: the
    batch was created with them.
    """

    custom_id: str
    body: dict[str, Any] = attrs.field(repr=False)
    headers: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def model(self) -> str:
        return str(self.body["model"])


@frozen
class BatchTally:
    """Lines with a result, and the tokens that their answers report.

    ``cancelled``: failed lines that were not sent because the batch was cancelled. ``expired``: failed lines that were
    not sent because the batch has expired.
    """

    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cancelled: int = 0
    expired: int = 0

    def add(self, other: "BatchTally") -> "BatchTally":
        """Return the sum."""
        return BatchTally(
            *(mine + yours for mine, yours in zip(attrs.astuple(self), attrs.astuple(other), strict=True))
        )


@frozen
class LineResult:
    """The result of one line.

    ``line``: the line of the output file or the error file, with its end. ``tally``: what it adds to the batch's.
    ``in_output``: whether it is a line of the output file.
    """

    line: bytes = attrs.field(repr=False)
    tally: BatchTally
    in_output: bool


@frozen
class Batch:
    """One batch.

    Attributes:
        key_id: the key that pays.
        expires_ms: when the lines that have not begun end as expired, in Unix milliseconds.
        endpoint: one of ``ENDPOINTS``.
        kept_s: how long the files of results are kept, in seconds; None: as the setting says.
        multiplier_ppm: what the prices of its requests are multiplied with, in parts per million.
        total: lines with a request.
        claimed: how many of them may have been sent, from the first on: none of these is ever sent again.
        returned: claimed lines that a stop has kept from being sent.
        times: Unix seconds by the name of the field: ``in_progress_at``.
        model: of every line; None if they name several.
        moves: how often a node of a cluster has taken it over; each writes results of its own files.
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
    multiplier_ppm: int = ONE_PPM
    total: int = 0
    claimed: int = 0
    returned: tuple[int, ...] = ()
    tally: BatchTally = BatchTally()
    times: Mapping[str, int] = attrs.Factory(dict)
    errors: tuple[BatchError, ...] = ()
    model: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    moves: int = 0

    @property
    def operation(self) -> Operation:
        return "messages" if self.endpoint == MESSAGES_ENDPOINT else ENDPOINTS[self.endpoint]

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    def enter(self, status: BatchStatus, now_s: int) -> "Batch":
        """Return the batch in another status, with its time."""
        return attrs.evolve(self, status=status, times={**self.times, f"{status}_at": now_s})
