"""Batches of requests for a sink, and the results of an attempt to deliver one."""

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

    ``cursor`` names a page of the request log, ``number`` the batch in the page. Both are the same after a restart.
    """

    cursor: str
    number: int
    entries: Sequence[SinkEntry]


@frozen
class SinkAnswer:
    """The answer of a receiver. ``refused`` is the number of requests that the receiver has rejected for good."""

    text: str
    refused: int = 0


class DeliveryFailed(Exception):
    """An attempt failed; another may succeed. ``retry_after_s`` is the pause that the receiver asked for, else 0."""

    def __init__(self, reason: str, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class BatchRefused(DeliveryFailed):
    """The receiver rejects this batch, because of one of its requests or because of its size."""


class Send(Protocol):
    """Makes one attempt to deliver a batch."""

    async def __call__(self, batch: SinkBatch) -> SinkAnswer:
        """Deliver ``batch``. Raises ``DeliveryFailed``, ``BatchRefused``."""
        ...
