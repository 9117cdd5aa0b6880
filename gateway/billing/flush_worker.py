"""Writes rows and their charges to the store: group commit, with a short rest between two of them.

A commit costs about a millisecond of CPU before its first row, and nobody waits for it: the journal has the rows until
then. Without the rest a busy gateway would commit rows one by one. After many at once it rests for longer: fifty rows a
commit cost 31 us each, five hundred 11.5 (``tests/bench/test_ledger_cost.py``).
"""

import asyncio

import structlog

from gateway.billing.write_queue import WriteQueue
from gateway.errors import StoreUnavailable
from gateway.storage.journal import RequestJournal
from gateway.storage.ledger import LedgerRepository

BATCH = 2_000
"""Rows of a commit at most. It takes some twenty turns of the event loop whatever it holds, and with many callers a
turn takes tens of milliseconds: with fewer rows the store would fall behind. With more, the loop would stand still for
longer while they are put together."""
REST_S = 0.05
MANY = 25
LONG_REST_S = 0.25
"""After a commit of ``MANY`` rows or more."""
RETRY_AFTER_S = 1.0

log = structlog.stdlib.get_logger(__name__)


class LedgerFlusher:
    """The job between ``WriteQueue`` and ``Ledger``.

    Args:
        outbox: rows of requests that have ended.
        ledger: where they are stored.
        journal: told what is stored.
    """

    def __init__(self, outbox: WriteQueue, ledger: LedgerRepository, journal: RequestJournal) -> None:
        self._outbox = outbox
        self._ledger = ledger
        self._journal = journal

    async def run(self) -> None:
        """Store rows as they come, for ever. A store that fails is asked again; no row is dropped."""
        while True:
            await self._outbox.wait()
            busy = len(self._outbox) >= MANY
            stored = await self.flush()
            await asyncio.sleep((LONG_REST_S if busy else REST_S) if stored else RETRY_AFTER_S)

    async def flush(self) -> bool:
        """Store one batch after another until none is left. False where the store failed; the rows are kept."""
        async with self._outbox.writing:
            while rows := self._outbox.take(BATCH):
                stored = False
                try:
                    await self._ledger.post(rows)
                    stored = True
                except StoreUnavailable as fault:
                    if not self._outbox.failing:
                        log.error("records_not_stored", rows=len(self._outbox) + len(rows), error=fault.message)  # noqa: TRY400
                    return False
                finally:
                    if not stored:  # for whatever reason: no new work until a batch is stored
                        self._outbox.failing = True
                        self._outbox.put_back(rows)
                self._journal.forget([row.id for row in rows])
                if self._outbox.failing:
                    self._outbox.failing = False
                    log.info("store_recovered", rows=len(rows))
        return True

    async def finish(self) -> None:
        """Store what is left. What cannot be stored is said; the journal has it for the next start, if it could."""
        if not await self.flush():
            log.error("records_not_flushed", rows=len(self._outbox))
