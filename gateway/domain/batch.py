"""Batches: the requests of one file, which the gateway sends on its own within a day."""

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
ENDED_STATES: frozenset[BatchStatus] = frozenset({"failed", "completed", "expired", "cancelled"})
RUNNING_STATUSES: frozenset[BatchStatus] = frozenset({"validating", "in_progress"})
"""The statuses in which new lines may begin, and the batch can be cancelled."""
WINDOW = "24h"
WINDOW_MS = 24 * 3_600 * 1000
MAX_LINES = 50_000
"""Maximum number of lines per batch, as at OpenAI."""
MAX_ERRORS = 100
"""Maximum number of errors that the validation of a batch reports."""
ENDPOINTS: Mapping[str, Operation] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/embeddings": "embeddings",
    "/v1/responses": "responses",
}
"""Endpoints that a batch may use."""
MESSAGES_ENDPOINT = "/v1/messages"
"""The endpoint of batches of Anthropic's API. No batch of OpenAI's API may use it."""
PREFIX, MESSAGES_PREFIX = "batch_", "msgbatch_"
"""The prefixes of batch ids in OpenAI's and in Anthropic's API."""


def is_batch_id(text: str) -> bool:
    """Return whether ``text`` has the form of a batch id."""
    return is_client_id(text, PREFIX) or is_client_id(text, MESSAGES_PREFIX)


@frozen
class BatchFilter:
    """A filter for batches. None does not restrict. ``live``: only batches that have not ended.

    ``prefix`` is the prefix of the id, which shows the API of the batch. ``after`` and ``before`` are ids of batches:
    with ``after`` only older batches are listed, and with ``before`` only newer ones, the oldest first. ``search`` is
    a text that the id or the model of a batch contains, in any case.
    """

    account_id: int | None = None
    prefix: str | None = None
    status: BatchStatus | None = None
    live: bool = False
    after: str | None = None
    before: str | None = None
    search: str = ""


@frozen
class BatchError:
    """An error in a line of the input (``line`` counts from 1), or in the whole input."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@frozen
class BatchLine:
    """One checked line: its body as written, the Anthropic headers of the batch, and its own ``keep_bodies``."""

    custom_id: str
    body: dict[str, Any] = attrs.field(repr=False)
    headers: Mapping[str, str] = attrs.field(factory=dict)
    keep_bodies: Literal["", "yes", "no"] = ""

    @property
    def model(self) -> str:
        return str(self.body["model"])


@frozen
class BatchTally:
    """The numbers of lines with a result, and their tokens.

    ``cancelled`` and ``expired`` count lines that were never sent.
    """

    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cancelled: int = 0
    expired: int = 0

    def add(self, other_tally: "BatchTally") -> "BatchTally":
        return BatchTally(
            *(
                own_count + other_count
                for own_count, other_count in zip(attrs.astuple(self), attrs.astuple(other_tally), strict=True)
            )
        )


@frozen
class LineResult:
    """The result of one line.

    ``line`` is the line to write. If ``in_output`` is true, it belongs to the output file, otherwise to the error file.
    """

    line: bytes = attrs.field(repr=False)
    tally: BatchTally
    in_output: bool


@frozen
class Batch:
    """One batch.

    Attributes:
        expires_ms: when the lines that have not begun expire, in Unix milliseconds.
        kept_s: how long the result files are kept, in seconds; None if the setting decides.
        multiplier_ppm: the price multiplier for its requests, in parts per million.
        claimed: the number of lines, from the first on, that may have been sent. They are not sent again, except those
            in ``returned``.
        returned: the numbers of claimed lines that were not sent because the gateway stopped.
        times: Unix seconds by field name, such as ``in_progress_at``.
        model: the model of every line; None if the lines name several, or were not checked yet.
        keep_bodies: whether the client that created the batch wants the bodies of its requests kept.
        moves: how often a cluster node has taken the batch over; each node writes result files of its own.
        output_file_id, error_file_id: set when the files are about to be created; None if there is nothing to write.
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
    keep_bodies: Literal["", "yes", "no"] = ""

    @property
    def operation(self) -> Operation:
        return "messages" if self.endpoint == MESSAGES_ENDPOINT else ENDPOINTS[self.endpoint]

    @property
    def ended(self) -> bool:
        return self.status in ENDED_STATES

    def set_status(self, status: BatchStatus, now_s: int) -> "Batch":
        """Return the batch in another status, with the time of the change."""
        return attrs.evolve(self, status=status, times={**self.times, f"{status}_at": now_s})
