"""Makes the progress of a batch durable: lines are marked before they are sent, and results are stored afterwards.

One writer commits all changes of the batch since its last commit: thousands of lines cost few disk flushes.
"""

import asyncio
from collections.abc import Callable

import attrs
import structlog

from gateway.batches.result_files import ResultFiles
from gateway.domain.batch import RUNNING_STATUSES, Batch, LineResult
from gateway.errors import StoreUnavailable
from gateway.storage.batches import BatchRepository

RETRY_S = 5.0
_CLOSED_TEXT = "The batch does not run at the moment"

log = structlog.stdlib.get_logger(__name__)


class BatchGone(Exception):
    """The batch was deleted with its account."""


class BatchMoved(BatchGone):
    """Another node runs the batch or will run it: this node was declared dead."""


class BatchJournal:
    """The progress of one batch. ``on_cancelled`` is called if another node cancels the batch."""

    def __init__(
        self,
        batch: Batch,
        files: ResultFiles,
        store: BatchRepository,
        now_s: Callable[[], int],
        *,
        on_cancelled: Callable[[], None],
        retry_s: float = RETRY_S,
    ) -> None:
        self.batch = batch
        self._files = files
        self._store = store
        self._now_s = now_s
        self._retry_s = retry_s
        self._results: list[LineResult] = []
        self._commits: list[asyncio.Future[None]] = []
        self._has_changes = asyncio.Event()
        self._gone_error: BatchGone | None = None
        self._is_closed = False
        self._on_cancelled = on_cancelled

    def add(self, result: LineResult) -> None:
        self._results.append(result)
        self._has_changes.set()

    async def mark_sent(self, number: int) -> None:
        """Return once it is durable that the first ``number`` lines may have been sent.

        Raises ``BatchGone`` and ``StoreUnavailable`` as ``change`` does.
        """
        await self.change(
            lambda batch: attrs.evolve(
                batch,
                claimed=max(batch.claimed, number),
                returned=tuple(line_number for line_number in batch.returned if line_number != number),
            )
        )

    def mark_unsent(self, number: int) -> None:
        """Record with the next commit that a marked line was not sent."""
        self.batch = attrs.evolve(self.batch, returned=(*self.batch.returned, number))
        self._has_changes.set()

    async def change(self, edit: Callable[[Batch], Batch] = lambda batch: batch) -> None:
        """Change the batch. Returns once the change and all results so far are durable.

        Raises ``BatchGone``, and ``StoreUnavailable`` if the batch does not run.
        """
        if self._gone_error is not None:
            raise self._gone_error
        if self._is_closed:
            raise StoreUnavailable(_CLOSED_TEXT, retry_after_s=int(RETRY_S))
        self.batch = edit(self.batch)
        commit = asyncio.get_running_loop().create_future()
        self._commits.append(commit)
        self._has_changes.set()
        await commit

    def close(self) -> None:
        """Reject all changes that are not yet durable, and all later ones: ``run`` was cancelled."""
        self._is_closed = True
        for commit in self._commits:
            if not commit.done():
                commit.set_exception(StoreUnavailable(_CLOSED_TEXT, retry_after_s=int(RETRY_S)))

    async def run(self) -> None:
        while True:
            await self._has_changes.wait()
            self._has_changes.clear()
            results, self._results = self._results, []
            commits, self._commits = self._commits, []
            if self._gone_error is None:  # a deleted batch has no files to write to
                self._gone_error = await self._commit(results)
            for commit in commits:
                if commit.done():  # its line was cancelled
                    continue
                if self._gone_error is not None:
                    commit.set_exception(self._gone_error)
                else:
                    commit.set_result(None)

    async def _commit(self, results: list[LineResult]) -> BatchGone | None:
        """Write the results, then the row. After a failure, repeat what has failed.

        Returns the reason why this process no longer runs the batch, or None.
        """
        while True:
            try:
                if results:
                    await asyncio.to_thread(self._files.append, results)
                    tally = self.batch.tally
                    for result in results:
                        tally = tally.add(result.tally)
                    self.batch, results = attrs.evolve(self.batch, tally=tally), []
                return await self._save()
            except (OSError, StoreUnavailable) as error:
                log.warning("batch_not_saved", job=self.batch.id, error=str(error))
                await asyncio.sleep(self._retry_s)

    async def _save(self) -> BatchGone | None:
        while not await self._store.save_batch(self.batch):
            is_own = await self._store.is_own(self.batch.id)
            if not is_own:
                return BatchGone() if is_own is None else BatchMoved()
            await self._adopt_cancel()
        return None

    async def _adopt_cancel(self) -> None:
        row = await self._store.find_batch(self.batch.id, None)
        if row is not None and row.status == "cancelling" and self.batch.status in RUNNING_STATUSES:
            self.batch = self.batch.set_status("cancelling", self._now_s())
            self._on_cancelled()
