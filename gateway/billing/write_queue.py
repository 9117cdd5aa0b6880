"""The bounded queue of settled requests that are not yet in the database."""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from gateway.domain.request_log import RequestRecord
from gateway.errors import StoreUnavailable

FULL_BATCH_ROWS = 1_000
"""The number of rows that do not wait for more: a larger commit would stall the event loop."""
MAX_QUEUED = 20_000
"""The maximum number of rows, about 1 KB each, without those of the commit in progress. If the database is this far
behind, new requests are refused."""
_RETRY_AFTER_S = 5


class WriteQueue:
    """Settled requests that are not yet in the database. Rows are never dropped; new requests are refused instead.

    Attributes:
        failing: whether the database could not store the last batch.
        writing: a lock that is held while rows move from the queue to the database.
    """

    def __init__(self, max_rows: int = MAX_QUEUED) -> None:
        self._max_rows = max_rows
        self._rows: deque[RequestRecord] = deque()
        self._arrived = asyncio.Event()
        self._has_enough = asyncio.Event()
        self.failing = False
        self.writing = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def full(self) -> bool:
        return self.failing or len(self._rows) >= self._max_rows

    @property
    def crowded(self) -> bool:
        """Whether optional work should wait: half of the queue is reserved for requests in progress."""
        return self.failing or 2 * len(self._rows) >= self._max_rows

    @property
    def can_recover(self) -> bool:
        """Whether a full queue may soon have room again."""
        return not self.failing

    def check_room(self) -> None:
        if self.full:
            raise StoreUnavailable(
                "The gateway cannot record requests at the moment, and makes none that it cannot record",
                retry_after_s=_RETRY_AFTER_S,
            )

    def put(self, row: RequestRecord) -> None:
        self._rows.append(row)
        queued_rows = len(self._rows)
        if queued_rows == 1:
            self._arrived.set()
        elif queued_rows == FULL_BATCH_ROWS:
            self._has_enough.set()

    def put_back(self, rows: Sequence[RequestRecord]) -> None:
        """Put taken rows back at the front, in their order, because they could not be stored."""
        self._rows.extendleft(reversed(rows))
        self._arrived.set()

    async def wait(self) -> None:
        await self._arrived.wait()

    async def wait_for_more(self, timeout_s: float) -> None:
        """Wait until ``FULL_BATCH_ROWS`` rows are in the queue, or it is emptied; at most ``timeout_s`` seconds."""
        if len(self._rows) < FULL_BATCH_ROWS:
            self._has_enough.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._has_enough.wait()

    def take(self, max_rows: int) -> list[RequestRecord]:
        """Remove and return the oldest rows, at most ``max_rows``."""
        if len(self._rows) > max_rows:
            return [self._rows.popleft() for _ in range(max_rows)]
        rows = list(self._rows)
        self._rows.clear()
        self._arrived.clear()
        self._has_enough.set()
        return rows

    def list_rows(self) -> Sequence[RequestRecord]:
        return tuple(self._rows)
