"""Writes settled requests and their charges to the database: group commit, with a short pause after each.

A commit costs about a millisecond of CPU before its first row. No request waits for it, because the rows are in the
journal until then. Without the pause, a busy gateway would commit rows one by one. After many rows the pause is longer:
with fifty rows per commit, each costs 31 us; with five hundred, 11.5 us (``tests/bench/test_ledger_cost.py``).
"""

import asyncio

import structlog

from gateway.billing.write_queue import WriteQueue
from gateway.errors import StoreUnavailable
from gateway.storage.journal import RequestJournal
from gateway.storage.ledger import LedgerRepository

BATCH = 2_000
"""The maximum number of rows per commit. A commit takes about twenty iterations of the event loop, each of tens of
milliseconds under load. With fewer rows the database would fall behind; with more, building them would stall the
loop."""
REST_S = 0.05
MANY = 25
LONG_REST_S = 0.25
"""The pause after a commit of ``MANY`` rows or more."""
RETRY_AFTER_S = 1.0

log = structlog.stdlib.get_logger(__name__)


class LedgerFlusher:
    """Moves rows from ``WriteQueue`` to the ledger."""

    def __init__(self, write_queue: WriteQueue, ledger: LedgerRepository, journal: RequestJournal) -> None:
        self._write_queue = write_queue
        self._ledger = ledger
        self._journal = journal

    async def run(self) -> None:
        """Store rows as they arrive, forever. If the database fails, the rows are retried; none is dropped."""
        while True:
            await self._write_queue.wait()
            busy = len(self._write_queue) >= MANY
            stored = await self.flush()
            await asyncio.sleep((LONG_REST_S if busy else REST_S) if stored else RETRY_AFTER_S)

    async def flush(self) -> bool:
        """Store batches until the queue is empty. Return False if the database failed; the rows are kept."""
        async with self._write_queue.writing:
            while rows := self._write_queue.take(BATCH):
                stored = False
                try:
                    await self._ledger.post(rows)
                    stored = True
                except StoreUnavailable as error:
                    if not self._write_queue.failing:
                        log.error("records_not_stored", rows=len(self._write_queue) + len(rows), error=error.message)  # noqa: TRY400
                    return False
                finally:
                    if not stored:  # for any reason: no new work until a batch is stored
                        self._write_queue.failing = True
                        self._write_queue.put_back(rows)
                self._journal.forget([row.id for row in rows])
                if self._write_queue.failing:
                    self._write_queue.failing = False
                    log.info("store_recovered", rows=len(rows))
        return True

    async def finish(self) -> None:
        """Store the remaining rows. A failure is logged; the journal keeps the rows for the next start."""
        if not await self.flush():
            log.error("records_not_flushed", rows=len(self._write_queue))
