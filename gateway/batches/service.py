"""The batches of all accounts: creates, lists, cancels and deletes them, and runs those that have not ended."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import attrs
import structlog

from gateway.background import TaskSet
from gateway.batches.journal import BatchGone
from gateway.batches.run import BatchDependencies, BatchRun
from gateway.domain.account import Caller
from gateway.domain.batch import (
    MESSAGES_ENDPOINT,
    MESSAGES_PREFIX,
    PREFIX,
    RUNNING_STATUSES,
    WINDOW_MS,
    Batch,
    BatchFilter,
    is_batch_id,
)
from gateway.domain.client_file import NewFile
from gateway.domain.keep_wish import KeepWish
from gateway.errors import Conflict, InvalidRequest, NotFound, RateLimited, StoreUnavailable
from gateway.formats.batches.anthropic import build_lines, keep_headers
from gateway.formats.batches.openai import NewBatch
from gateway.large_work import run_in_thread
from gateway.storage.file_folder import make_client_id

MAX_OPEN_BATCHES = 100
"""Maximum of open batches per account."""
RESTART_PAUSE_S = 10.0
CHECK_INTERVAL_S = 5.0
"""How often a node looks for batches that other nodes have released; nodes also wake each other."""
LOST_AFTER_S = 60.0
"""Default of ``lost_after_s``: longer than a restart takes."""
_CLOSE_TIMEOUT_S = 30.0
_REQUESTS_PER_STEP = 64
"""How many requests of a message batch are written to its file at a time."""

log = structlog.stdlib.get_logger(__name__)


class BatchService:
    """Creates, lists, runs, cancels and deletes batches.

    ``open`` continues the batches of an earlier process; in a cluster ``run_shared`` does.

    Attributes:
        wake_nodes: called when another node has to run or cancel a batch; None for a single gateway.
        lost_after_s: seconds that a cancelled or expired batch waits for the node that has its input. After that, any
            node ends the batch.
    """

    def __init__(self, services: BatchDependencies, *, wake_nodes: Callable[[], None] | None) -> None:
        self._services = services
        self._wake_nodes = wake_nodes
        self._runs: dict[str, BatchRun] = {}
        self._tasks = TaskSet()
        self._unreadable_since: dict[str, float] = {}
        """By batch: when this node first saw that no node runs it and that its input is on another node."""
        self._wake_event = asyncio.Event()
        self.lost_after_s = LOST_AFTER_S

    async def open(self) -> None:
        """Continue every batch that has not ended."""
        for batch in await self._services.store.list_unfinished():
            self._start(batch)

    def wake(self) -> None:
        """Check now for batches that other nodes have released or were asked to cancel."""
        self._wake_event.set()

    async def run_shared(self) -> None:
        """Run the batches that no other node of the cluster runs, forever."""
        while True:
            self._wake_event.clear()
            try:
                await self._claim_free()
                for batch_id in await self._services.store.list_cancelled():
                    if (run := self._runs.get(batch_id)) is not None and run.batch.status in RUNNING_STATUSES:
                        await run.cancel()
            except BatchGone:
                continue
            except StoreUnavailable as error:
                log.warning("batches_not_claimed", error=error.message)
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_INTERVAL_S):
                    await self._wake_event.wait()

    async def _claim_free(self) -> None:
        loop, free_batches = asyncio.get_running_loop(), await self._services.store.list_free()
        self._unreadable_since = {
            batch.id: self._unreadable_since[batch.id] for batch in free_batches if batch.id in self._unreadable_since
        }
        for batch in free_batches:
            if batch.id in self._runs or not self._services.lines.gate.open:
                continue
            if not await self._is_readable(batch):
                if batch.id not in self._unreadable_since:
                    self._unreadable_since[batch.id] = loop.time()
                    log.info("batch_not_claimed", job=batch.id, reason="its input file is at another node")
                must_end = batch.status == "cancelling" or batch.expires_ms <= self._services.clock() * 1000
                if not must_end or loop.time() - self._unreadable_since[batch.id] < self.lost_after_s:
                    continue
                log.warning("batch_input_lost", job=batch.id)
            claimed_batch = await self._services.store.claim_batch(batch)
            if claimed_batch is not None and claimed_batch.id not in self._runs:
                log.info("batch_claimed", job=batch.id)
                self._start(claimed_batch)

    async def _is_readable(self, batch: Batch) -> bool:
        """Return whether this node should run a batch: it has the input, or no node has, and the batch will fail."""
        files = self._services.files
        try:
            await files.folder.find(batch.input_file_id)
        except NotFound:
            return await files.store.find_file(batch.input_file_id, batch.account_id) is None
        return True

    async def close(self) -> None:
        for run in self._runs.values():
            run.close()
        await self._tasks.close(_CLOSE_TIMEOUT_S)

    def _start(self, batch: Batch) -> None:
        self._runs[batch.id] = BatchRun(self._services, batch)
        self._tasks.start(self._run(batch.id)).add_done_callback(_log_bug)

    async def _run(self, batch_id: str) -> None:
        """Run a batch to its end. After a disk or database error, restart it where it stopped."""
        try:
            while not await self._attempt(run := self._runs[batch_id]):
                await asyncio.sleep(RESTART_PAUSE_S)
                self._runs[batch_id] = BatchRun(self._services, run.batch)
        finally:
            del self._runs[batch_id]

    async def _attempt(self, run: BatchRun) -> bool:
        """Run a batch; return False after a disk or database error."""
        try:
            await run.run()
        except (OSError, StoreUnavailable) as error:
            log.warning("batch_failed", job=run.batch.id, error=str(error), restart_after_s=RESTART_PAUSE_S)
            return False
        return True

    async def create(self, new_batch: NewBatch, caller: Caller, keep_bodies: KeepWish = "") -> Batch:
        account_id = caller.account.id
        try:
            file = await self._services.files.get(new_batch.input_file_id, account_id)
        except NotFound as error:
            error.param = "input_file_id"
            raise
        if file.purpose != "batch":
            raise InvalidRequest("The input file must have the purpose 'batch'", param="input_file_id")
        await self._check_room(caller)
        batch = self._build_batch(make_client_id(PREFIX), new_batch.endpoint, new_batch.input_file_id, caller)
        return await self._add(
            attrs.evolve(batch, metadata=new_batch.metadata, kept_s=new_batch.kept_s, keep_bodies=keep_bodies)
        )

    async def create_messages(
        self, requests: Sequence[dict[str, Any]], headers: Mapping[str, str], caller: Caller, keep_bodies: KeepWish = ""
    ) -> Batch:
        """Store the requests of a message batch as a file, and start the batch.

        ``headers`` are Anthropic's headers of each request. Raises ``RateLimited`` if too many batches of the account
        have not ended, and ``RequestTooLarge`` if the account lacks room for the file.
        """
        await self._check_room(caller)
        batch_id, files = make_client_id(MESSAGES_PREFIX), self._services.files
        received_file, kept_headers = files.receive(), keep_headers(headers)
        try:
            for start in range(0, len(requests), _REQUESTS_PER_STEP):
                await received_file.write(
                    await run_in_thread(build_lines, requests[start : start + _REQUESTS_PER_STEP], kept_headers)
                )
            new_file = NewFile(f"{batch_id}_requests.jsonl", "batch")
            file = await files.add(new_file, caller, received_file.draft, received_file.size)
        finally:
            received_file.close()
        models = {request["params"]["model"] for request in requests}
        batch = self._build_batch(batch_id, MESSAGES_ENDPOINT, file.id, caller)
        model = models.pop() if len(models) == 1 else None
        checked_batch = attrs.evolve(batch, total=len(requests), model=model, keep_bodies=keep_bodies)
        return await self._add(checked_batch.set_status("in_progress", batch.created_ms // 1000))

    async def _check_room(self, caller: Caller) -> None:
        account_id = caller.account.id
        if self._wake_nodes is None:
            open_count = sum(run.batch.account_id == account_id for run in self._runs.values())
        else:
            open_count = len(
                await self._services.store.list_batches(BatchFilter(account_id, live=True), MAX_OPEN_BATCHES)
            )
        if open_count >= MAX_OPEN_BATCHES:
            raise RateLimited(f"{MAX_OPEN_BATCHES} batches of the account have not ended", retry_after_s=60)

    def _build_batch(self, batch_id: str, endpoint: str, file_id: str, caller: Caller) -> Batch:
        now_ms = int(self._services.clock() * 1000)
        return Batch(
            id=batch_id,
            account_id=caller.account.id,
            key_id=caller.key.id,
            created_ms=now_ms,
            expires_ms=now_ms + WINDOW_MS,
            endpoint=endpoint,
            input_file_id=file_id,
            multiplier_ppm=self._services.find_multiplier_ppm(),
        )

    async def _add(self, batch: Batch) -> Batch:
        is_local = self._wake_nodes is None or await self._is_readable(batch)
        await self._services.store.add_batch(batch, is_own=is_local)
        if is_local:
            self._start(batch)
        elif self._wake_nodes is not None:
            self._wake_nodes()
        return batch

    async def delete(self, batch: Batch) -> None:
        if not batch.ended or batch.id in self._runs:
            raise Conflict("Cancel the batch before you delete it", param="id", should_retry=False)
        files = self._services.files
        for file_id in (batch.input_file_id, batch.output_file_id, batch.error_file_id):
            file = await files.store.find_file(file_id, batch.account_id) if file_id is not None else None
            if file is not None:
                await files.remove(file)
        await self._services.store.delete_batch(batch.id)

    async def get(self, batch_id: str, account_id: int | None, prefix: str = "") -> Batch:
        """Return a batch. ``account_id`` None means a batch of any account.

        Raises ``NotFound`` if no batch has the id, the id lacks ``prefix`` or another account owns the batch.
        """
        store, is_known_id = self._services.store, is_batch_id(batch_id) and batch_id.startswith(prefix)
        batch = await store.find_batch(batch_id, account_id) if is_known_id else None
        if batch is None:
            raise NotFound(f"There is no batch with the id {batch_id[:64]!r}", param="batch_id", should_retry=False)
        return batch

    async def list_batches(self, batch_filter: BatchFilter, limit: int) -> Sequence[Batch]:
        return await self._services.store.list_batches(batch_filter, limit)

    async def sum_cost(self, batch_id: str) -> tuple[int, int]:
        return await self._services.store.sum_cost(batch_id)

    async def cancel(self, batch_id: str, account_id: int | None) -> Batch:
        batch, run = await self.get(batch_id, account_id), self._runs.get(batch_id)
        if run is None and self._wake_nodes is not None and await self._services.store.cancel_batch(batch_id):
            self._wake_nodes()
            return batch.set_status("cancelling", int(self._services.clock()))
        if batch.ended or run is None or run.batch.status == "finalizing":
            raise Conflict(f"The batch is {batch.status}", param="batch_id", should_retry=False)
        try:
            return await run.cancel()
        except BatchGone:
            raise NotFound("The batch was deleted", param="batch_id", should_retry=False) from None


def _log_bug(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("batch_failed", exc_info=error)
