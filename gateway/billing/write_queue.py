"""The bounded queue of settled requests that are not yet in the database."""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from gateway.domain.request_log import RequestRecord
from gateway.errors import StoreUnavailable

ENOUGH = 1_000
"""So many rows do not wait for more: a larger commit would stall the event loop."""
MAX_WAITING = 20_000
"""The maximum number of rows, about 1 KB each, without those of the commit in progress. If the database is this far
behind, new requests are refused."""
_RETRY_AFTER_S = 5


class WriteQueue:
    """Settled requests that are not yet in the database. Rows are never dropped; new requests are refused instead.

    ``failing``: the database could not store the last batch, and has stored none since. ``writing`` is held while rows
    move from the queue to the database.
    """

    def __init__(self, most: int = MAX_WAITING) -> None:
        self._most = most
        self._rows: deque[RequestRecord] = deque()
        self._arrived = asyncio.Event()
        self._has_enough = asyncio.Event()
        self.failing = False
        self.writing = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def full(self) -> bool:
        return self.failing or len(self._rows) >= self._most

    @property
    def crowded(self) -> bool:
        """Whether optional work should wait: half of the queue is reserved for requests in progress."""
        return self.failing or 2 * len(self._rows) >= self._most

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
        waiting = len(self._rows)
        if waiting == 1:
            self._arrived.set()
        elif waiting == ENOUGH:
            self._has_enough.set()

    def put_back(self, rows: Sequence[RequestRecord]) -> None:
        """Put rows that could not be stored back at the front, in their order."""
        self._rows.extendleft(reversed(rows))
        self._arrived.set()

    async def wait(self) -> None:
        await self._arrived.wait()

    async def wait_for_more(self, timeout_s: float) -> None:
        """Wait until ``ENOUGH`` rows are to be stored, or all are, at most ``timeout_s`` seconds."""
        if len(self._rows) < ENOUGH:
            self._has_enough.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._has_enough.wait()

    def take(self, most: int) -> list[RequestRecord]:
        """Remove and return the oldest rows, at most ``most``."""
        if len(self._rows) > most:
            return [self._rows.popleft() for _ in range(most)]
        rows = list(self._rows)
        self._rows.clear()
        self._arrived.clear()
        self._has_enough.set()
        return rows

    def list_rows(self) -> Sequence[RequestRecord]:
        return tuple(self._rows)
