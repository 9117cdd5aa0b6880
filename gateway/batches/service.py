"""The batches of all accounts: created, listed and cancelled; those that have not ended run."""

import asyncio
from collections.abc import Sequence

import structlog

from gateway.background import TaskSet
from gateway.batches.journal import BatchGone
from gateway.batches.run import BatchRun, BatchServices
from gateway.domain.account import Caller
from gateway.domain.batch import WINDOW_MS, Batch
from gateway.domain.client_file import is_client_id
from gateway.errors import Conflict, InvalidRequest, NotFound, RateLimited, StoreUnavailable
from gateway.formats.openai.batches import NewBatch
from gateway.storage.file_folder import make_client_id

MAX_OPEN = 100
"""Batches of one account that have not ended."""
RESTART_S = 10.0
_CLOSE_S = 30.0
_PREFIX = "batch_"

log = structlog.stdlib.get_logger(__name__)


class Batches:
    """The service. ``open`` continues what an earlier process left."""

    def __init__(self, services: BatchServices) -> None:
        self._services = services
        self._runs: dict[str, BatchRun] = {}
        self._tasks = TaskSet()

    async def open(self) -> None:
        """Continue every batch that has not ended. Raises ``StoreUnavailable``."""
        for batch in await self._services.store.list_unfinished():
            self._start(batch)

    async def close(self) -> None:
        """Stop every batch; its running lines may finish."""
        for run in self._runs.values():
            run.close()
        await self._tasks.close(_CLOSE_S)

    def _start(self, batch: Batch) -> None:
        self._runs[batch.id] = BatchRun(self._services, batch)
        self._tasks.start(self._run(batch.id)).add_done_callback(_log_bug)

    async def _run(self, batch_id: str) -> None:
        """Run a batch to its end. After an error of the disk or the database it begins anew where it was."""
        try:
            while not await self._attempt(run := self._runs[batch_id]):
                await asyncio.sleep(RESTART_S)
                self._runs[batch_id] = BatchRun(self._services, run.batch)
        finally:
            del self._runs[batch_id]

    async def _attempt(self, run: BatchRun) -> bool:
        """Run a batch; return False if the disk or the database has failed."""
        try:
            await run.run()
        except (OSError, StoreUnavailable) as error:
            log.warning("batch_failed", job=run.batch.id, error=str(error), restart_after_s=RESTART_S)
            return False
        return True

    async def create(self, new: NewBatch, caller: Caller) -> Batch:
        """Store and start a batch. Raises ``NotFound``, ``InvalidRequest``, ``RateLimited``."""
        account_id = caller.account.id
        try:
            file = await self._services.files.get(new.input_file_id, account_id)
        except NotFound as error:
            error.param = "input_file_id"
            raise
        if file.purpose != "batch":
            raise InvalidRequest("The input file must have the purpose 'batch'", param="input_file_id")
        if sum(run.batch.account_id == account_id for run in self._runs.values()) >= MAX_OPEN:
            raise RateLimited(f"{MAX_OPEN} batches of the account have not ended", retry_after_s=60)
        now_ms = int(self._services.clock() * 1000)
        batch = Batch(
            id=make_client_id(_PREFIX),
            account_id=account_id,
            key_id=caller.key.id,
            created_ms=now_ms,
            expires_ms=now_ms + WINDOW_MS,
            endpoint=new.endpoint,
            input_file_id=new.input_file_id,
            metadata=new.metadata,
            kept_s=new.kept_s,
        )
        await self._services.store.add_batch(batch)
        self._start(batch)
        return batch

    async def get(self, batch_id: str, account_id: int) -> Batch:
        """Return a batch of the account. Raises ``NotFound`` for every other."""
        store = self._services.store
        found = await store.find_batch(batch_id, account_id) if is_client_id(batch_id, _PREFIX) else None
        if found is None:
            raise NotFound(f"There is no batch with the id {batch_id[:64]!r}", param="batch_id", should_retry=False)
        return found

    async def list_batches(self, account_id: int, limit: int, after: str | None) -> Sequence[Batch]:
        """Return batches of the account, the newest first."""
        return await self._services.store.list_batches(account_id, limit, after)

    async def cancel(self, batch_id: str, account_id: int) -> Batch:
        """Cancel a batch: the lines that run may finish. Raises ``NotFound``, ``Conflict``, ``StoreUnavailable``."""
        batch, run = await self.get(batch_id, account_id), self._runs.get(batch_id)
        if batch.ended or run is None or run.batch.status == "finalizing":
            raise Conflict(f"The batch is {batch.status}", param="batch_id", should_retry=False)
        try:
            return await run.cancel()
        except BatchGone:
            raise NotFound("The batch was deleted", param="batch_id", should_retry=False) from None


def _log_bug(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("batch_failed", exc_info=error)
