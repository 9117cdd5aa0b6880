"""A batch whose input only a lost node has ends when it is cancelled or has expired, and waits for its node before."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.batches.run import BatchDependencies
from gateway.batches.service import BatchService
from gateway.batches.slots import LineSlots
from gateway.domain.account import Account
from gateway.domain.batch import Batch, BatchStatus
from gateway.domain.client_file import ClientFile, FileRules
from gateway.domain.price import ONE_PPM
from gateway.media.client_files import ClientFiles
from gateway.storage.batches import BatchRepository
from gateway.storage.client_files import ClientFileRepository
from gateway.storage.file_folder import FileFolder, make_client_id
from tests.support.repositories import Repositories

NOW_S = 1_000.0


async def open_batches(folder: Path) -> tuple[BatchService, BatchRepository, ClientFile]:
    """The batches of a node that does not have the bytes of the only file."""
    books = Repositories()
    account = await books.add_account(Account(0, "acme"))
    rows, store = ClientFileRepository(books.database), BatchRepository(books.database, lambda: "b:1")
    file = ClientFile(make_client_id("file-"), account.id, 1, "lines.jsonl", "batch", 9, 0, None)
    await rows.add_file(file, 0)
    files = ClientFiles(rows, FileFolder(folder), FileRules, lambda: NOW_S, lambda: NOW_S)  # type: ignore[arg-type]
    lines: Any = SimpleNamespace(gate=SimpleNamespace(open=True))
    services = BatchDependencies(store, files, lines, LineSlots(lambda: 1), 1_000, lambda: ONE_PPM, lambda: NOW_S)
    return BatchService(services, wake_nodes=None), store, file


async def add_batch(store: BatchRepository, file: ClientFile, status: BatchStatus, left_s: float) -> Batch:
    now_ms = int(NOW_S * 1000)
    batch = Batch(
        make_client_id("batch_"), file.account_id, 1, now_ms, now_ms + int(left_s * 1000), "/v1/embeddings", file.id
    )
    batch = batch.set_status(status, int(NOW_S))
    await store.add_batch(batch, is_own=False)
    return batch


@pytest.mark.parametrize(
    ("status", "left_s", "end"),
    [("cancelling", 60, "cancelled"), ("in_progress", 0, "expired"), ("validating", 0, "expired")],
)
async def test_a_batch_without_its_input_ends(tmp_path: Path, status: BatchStatus, left_s: float, end: str) -> None:
    batches, store, file = await open_batches(tmp_path)
    waiting = await add_batch(store, file, "in_progress", 60)
    batch = await add_batch(store, file, status, left_s)
    batches.lost_after_s = 0.0
    looking = asyncio.create_task(batches.run_shared())
    async with asyncio.timeout(5):
        while not (found := await batches.get(batch.id, file.account_id)).ended:
            batches.wake()
            await asyncio.sleep(0.01)
        await batches._tasks.wait()
    looking.cancel()
    assert (found.status, found.errors) == (end, ())
    assert [left.id for left in await store.list_free()] == [waiting.id]
    await batches.delete(found)
    await batches.close()


async def test_a_node_that_restarts_comes_before_others(tmp_path: Path) -> None:
    """It may have results of the batch, too."""
    batches, store, file = await open_batches(tmp_path)
    batch = await add_batch(store, file, "cancelling", 60)
    for _ in range(3):
        await batches._claim_free()
    assert [left.id for left in await store.list_free()] == [batch.id]
    await batches.close()
