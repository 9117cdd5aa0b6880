"""The bodies that are in memory: those of running requests, and those that wait to be written."""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Protocol

import attrs

from gateway.domain.kept_body import BodyOwner, BodyPart
from gateway.frozen import quick_frozen

MAX_WAITING_BYTES = 64 * 1024 * 1024
MAX_BATCH_BYTES = 4 * 1024 * 1024
"""Bytes of bodies that are written before their rows are stored in one commit."""
MAX_BATCH_REQUESTS = 200


class OpenRequest(Protocol):
    """Collects the bodies of a request that has not ended."""

    def drop_bodies_of(self, covers: Callable[[int, str], bool]) -> None:
        """Keep nothing if ``covers`` returns True for the account's id and the end user of the request."""


@attrs.define(eq=False)
class WaitingMemory:
    """The memory of bodies that wait to be written, and of bodies of running requests, in bytes."""

    limit: int = MAX_WAITING_BYTES
    used: int = 0


@quick_frozen
class WaitingBodies:
    """The bodies of a request that wait to be written.

    Attributes:
        size: how much memory they take, in bytes.
        build: returns the bodies; it runs in the writer's thread.
        is_held: whether they are shown only if the request fails, which is not known yet.
    """

    owner: BodyOwner
    size: int
    build: Callable[[], Sequence[BodyPart]]
    is_held: bool = False


class WaitingQueue:
    """The bodies that wait to be written, in order."""

    def __init__(self) -> None:
        self._queue: deque[WaitingBodies] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def has_full_batch(self) -> bool:
        return len(self._queue) >= MAX_BATCH_REQUESTS or self._bytes > MAX_BATCH_BYTES

    def add(self, waiting: WaitingBodies) -> None:
        self._queue.append(waiting)
        self._bytes += waiting.size

    def list_next_accounts(self) -> set[int]:
        """Return the accounts of the next batch, and perhaps of later ones."""
        return {waiting.owner.account_id for waiting in islice(self._queue, MAX_BATCH_REQUESTS)}

    def take_batch(self) -> list[WaitingBodies]:
        batch: list[WaitingBodies] = []
        size = 0
        while self._queue and size < MAX_BATCH_BYTES and len(batch) < MAX_BATCH_REQUESTS:
            batch.append(self._queue.popleft())
            size += batch[-1].size
        self._bytes -= size
        return batch

    def drop(self, covers: Callable[[BodyOwner], bool]) -> int:
        """Drop the bodies of the owners for which ``covers`` returns True; return their size in bytes."""
        kept = [waiting for waiting in self._queue if not covers(waiting.owner)]
        dropped_bytes = self._bytes - sum(waiting.size for waiting in kept)
        self._queue = deque(kept)
        self._bytes -= dropped_bytes
        return dropped_bytes
