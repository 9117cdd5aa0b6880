"""What is delivered to a sink at once, and how that can end."""

from collections.abc import Sequence
from typing import Protocol

from gateway.domain.kept_body import BodyPart
from gateway.domain.request_log import RequestRecord
from gateway.frozen import frozen


@frozen
class SinkEntry:
    """A request: its row, and its bodies if they are delivered and kept."""

    row: RequestRecord
    bodies: Sequence[BodyPart] = ()


@frozen
class SinkBatch:
    """Requests to deliver in one attempt.

    ``cursor`` and ``number`` name the page of the request log, and the batch in it: the same after a restart.
    """

    cursor: str
    number: int
    entries: Sequence[SinkEntry]


@frozen
class SinkAnswer:
    """What a receiver answered. ``refused`` is the number of requests that it did not take, and never will."""

    text: str
    refused: int = 0


class DeliveryFailed(Exception):
    """An attempt failed; another may succeed. ``retry_after_s``: what the receiver asked for, in seconds; else 0."""

    def __init__(self, reason: str, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class BatchRefused(DeliveryFailed):
    """The receiver does not take this batch: one of its requests may be the reason, or its size."""


class Send(Protocol):
    """Makes one attempt to deliver a batch."""

    async def __call__(self, batch: SinkBatch) -> SinkAnswer:
        """Deliver ``batch``. Raises ``DeliveryFailed``, ``BatchRefused``."""
        ...
