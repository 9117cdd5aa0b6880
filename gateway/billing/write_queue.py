"""Rows on their way to the store: put without waiting, taken in batches, and bounded."""

import asyncio
from collections import deque
from collections.abc import Sequence

from gateway.domain.request_log import RequestRecord
from gateway.errors import StoreUnavailable

MAX_WAITING = 20_000
"""Rows, of about 1 KB each, beside those of the commit under way. A store that is this far behind has to catch up
before there is new work."""
_RETRY_AFTER_S = 5


class WriteQueue:
    """What the store does not have yet. No settled call is ever dropped; new calls are refused instead.

    Attributes:
        failing: the store has refused the last batch, and no later one has been stored.
        writing: held by whoever moves rows from here to the store.
    """

    def __init__(self, most: int = MAX_WAITING) -> None:
        self._most = most
        self._rows: deque[RequestRecord] = deque()
        self._arrived = asyncio.Event()
        self.failing = False
        self.writing = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def full(self) -> bool:
        """Whether there is no room for new work."""
        return self.failing or len(self._rows) >= self._most

    @property
    def crowded(self) -> bool:
        """Whether what can be done without should stay out: half of the room is for calls that were made."""
        return self.failing or 2 * len(self._rows) >= self._most

    def check_room(self) -> None:
        """Raise ``StoreUnavailable`` where there is no room for new work."""
        if self.full:
            raise StoreUnavailable(
                "The gateway cannot record requests at the moment, and makes none that it cannot record",
                retry_after_s=_RETRY_AFTER_S,
            )

    def put(self, row: RequestRecord) -> None:
        """Add a row."""
        self._rows.append(row)
        if len(self._rows) == 1:
            self._arrived.set()

    def put_back(self, rows: Sequence[RequestRecord]) -> None:
        """Rows that could not be stored go to the front again, in their order."""
        self._rows.extendleft(reversed(rows))
        self._arrived.set()

    async def wait(self) -> None:
        """Until there is a row."""
        await self._arrived.wait()

    def take(self, most: int) -> list[RequestRecord]:
        """The oldest rows, ``most`` of them at the most."""
        if len(self._rows) > most:
            return [self._rows.popleft() for _ in range(most)]
        rows = list(self._rows)
        self._rows.clear()
        self._arrived.clear()
        return rows

    def look(self) -> Sequence[RequestRecord]:
        """Every row that waits now."""
        return tuple(self._rows)
