"""Old batches are deleted, and so is what a batch of a deleted account has left; one that goes on stays."""

from pathlib import Path

from gateway.batches.result_files import ResultFiles
from gateway.domain.account import Account
from gateway.domain.batch import Batch, BatchFilter, BatchStatus
from gateway.formats.batches.openai import build_unsent_line
from gateway.storage.batches import BatchRepository, find_no_process
from gateway.storage.client_files import ClientFileRepository
from gateway.storage.file_folder import FileFolder, make_client_id
from tests.support.repositories import Repositories

OLD_MS = 1_000


def make_batch(account_id: int, status: BatchStatus, created_ms: int = OLD_MS) -> Batch:
    return Batch(make_client_id("batch_"), account_id, 1, created_ms, created_ms, "/v1/embeddings", "file-1", status)


async def test_old_batches_that_have_ended_are_deleted() -> None:
    books = Repositories()
    store, account = BatchRepository(books.database, find_no_process), await books.add_account(Account(0, "acme"))
    old, young = make_batch(account.id, "completed"), make_batch(account.id, "completed", OLD_MS + 1)
    running = make_batch(account.id, "cancelling")
    for batch in (old, young, running):
        await store.add_batch(batch)
    assert await store.sweep_batches(OLD_MS + 1) == 1
    assert await store.list_batches(BatchFilter(account.id), 9) == [running, young]


async def test_results_stay_while_their_batch_runs(tmp_path: Path) -> None:
    books = Repositories()
    store, account = BatchRepository(books.database, find_no_process), await books.add_account(Account(0, "acme"))
    later = FileFolder(tmp_path / "files", clock=lambda: 4e9)  # everything is old
    running, ended = make_batch(account.id, "in_progress"), make_batch(account.id, "completed")
    for batch in (running, ended):
        await store.add_batch(batch)
        ResultFiles(later, batch.id).append([build_unsent_line(batch.id, 1, "a", "interrupted", "It was.")])
    files = ClientFileRepository(books.database)
    assert (await later.sweep(await files.list_used_ids())).files == 1
    kept = ResultFiles(later, running.id)
    assert list(later.path.iterdir()) == [kept.errors.path]  # type: ignore[attr-defined]
    assert kept.recover()[0] == {"a"}


async def test_results_that_a_crash_has_cut_are_read_to_the_last_whole_line(tmp_path: Path) -> None:
    batch = make_batch(1, "in_progress")
    results = ResultFiles(FileFolder(tmp_path / "files"), batch.id)
    lines = [build_unsent_line(batch.id, number, f"c{number}", "interrupted", "It was.") for number in (1, 2)]
    results.append(lines)
    whole = results.errors.path.read_bytes()  # type: ignore[attr-defined]
    for cut in range(len(lines[0].line), len(whole)):
        results.errors.path.write_bytes(whole[:cut])  # type: ignore[attr-defined]
        again = ResultFiles(FileFolder(tmp_path / "files"), batch.id)
        done, tally = again.recover()
        assert (done, tally.failed) == ({"c1"}, 1)
        again.append(lines[1:])
        assert results.errors.path.read_bytes() == whole  # type: ignore[attr-defined]
