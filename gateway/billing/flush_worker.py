"""Writes settled requests and their charges to the database: group commit.

A commit costs some milliseconds of CPU before its first row. No request waits for it, because the rows are in the
journal until then. So a row waits for others, up to a second. An administrator's request that reads rows has the
waiting ones stored first (``store_waiting``).

With fifty rows per commit, each costs 31 us; with five hundred, 11.5 us (``tests/bench/test_ledger_cost.py``).
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from gateway.billing.write_queue import WriteQueue
from gateway.errors import StoreUnavailable
from gateway.storage.journal import RequestJournal
from gateway.storage.ledger import LedgerRepository

MAX_ROWS = 2_000
"""The maximum number of rows per commit. A commit takes about twenty iterations of the event loop, each of tens of
milliseconds under load. With fewer rows the database would fall behind; with more, building them would stall the
loop."""
COMMIT_DELAY_S = 1.0
"""How long a row waits for others. A power failure loses the rows that wait; the end of the process does not."""
NODE_COMMIT_DELAY_S = 0.05
"""How long a row waits on a node of a cluster, whose stored charges limit what other nodes may spend."""
RETRY_AFTER_S = 1.0
MAX_WAIT_S = 2.0
"""How long a reader waits for rows to be stored: a slow database must not stop it."""

log = structlog.stdlib.get_logger(__name__)


class LedgerFlusher:
    """Moves rows from ``WriteQueue`` to the ledger. ``commit_delay_s``: how long a row waits for others."""

    def __init__(
        self,
        write_queue: WriteQueue,
        ledger: LedgerRepository,
        journal: RequestJournal,
        *,
        commit_delay_s: float = COMMIT_DELAY_S,
    ) -> None:
        self._commit_delay_s = commit_delay_s
        self._storing_tasks = set[asyncio.Task[bool]]()
        self._write_queue = write_queue
        self._ledger = ledger
        self._journal = journal

    async def run(self, on_commit: Callable[[], Awaitable[None]] | None = None) -> None:
        """Store rows as they arrive, forever. If the database fails, the rows are retried; none is dropped.

        ``on_commit`` runs after each commit, and after each failure.
        """
        while True:
            await self._write_queue.wait()
            if not self._write_queue.failing:
                await self._write_queue.wait_for_more(self._commit_delay_s)
            is_stored = await self._store_batch()
            if on_commit is not None:
                await on_commit()
            if not is_stored:
                await asyncio.sleep(RETRY_AFTER_S)

    async def store_waiting(self) -> None:
        """Store the waiting rows, at most ``MAX_ROWS``, before a read. Wait for that no longer than ``MAX_WAIT_S``."""
        if self._write_queue or self._write_queue.writing.locked():
            task = asyncio.get_running_loop().create_task(self._store_batch())
            self._storing_tasks.add(task)
            task.add_done_callback(self._storing_tasks.discard)
            await asyncio.wait({task}, timeout=MAX_WAIT_S)

    async def flush(self) -> bool:
        """Store batches until the queue is empty. Return False if the database failed; the rows are kept."""
        while self._write_queue or self._write_queue.writing.locked():
            if not await self._store_batch():
                return False
        return True

    async def _store_batch(self) -> bool:
        """Store up to ``MAX_ROWS`` of the waiting rows in one commit. Return False if the database failed."""
        async with self._write_queue.writing:
            rows = self._write_queue.take(MAX_ROWS)
            if not rows:
                return True
            is_stored = False
            try:
                await self._ledger.post(rows)
                is_stored = True
            except StoreUnavailable as error:
                if not self._write_queue.failing:
                    log.error("records_not_stored", rows=len(self._write_queue) + len(rows), error=error.message)  # noqa: TRY400
                return False
            finally:
                if not is_stored:  # for any reason: no new work until a batch is stored
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
