"""What the journal has promised is durable; what it cannot keep is refused and does not wait for ever."""

import asyncio
from pathlib import Path
from typing import Any

import attrs
import pytest
from sqlalchemy import update

from gateway.batches.journal import BatchGone, BatchJournal, BatchMoved
from gateway.batches.result_files import ResultFiles
from gateway.domain.account import Account
from gateway.domain.batch import Batch, LineResult
from gateway.errors import StoreUnavailable
from gateway.formats.batches.openai import build_answer_line, build_unsent_line
from gateway.storage.batches import BatchRepository, find_no_process
from gateway.storage.file_folder import FileFolder, make_client_id
from gateway.storage.schema import batches
from tests.support.repositories import Repositories


def refuse_cancel() -> None:
    """No other node cancels the batch of these tests."""
    raise AssertionError("cancelled by another node")


async def open_journal(folder: Path) -> tuple[BatchJournal, BatchRepository, ResultFiles]:
    books = Repositories()
    account = await books.add_account(Account(0, "acme"))
    store, batch_id = BatchRepository(books.database, find_no_process), make_client_id("batch_")
    batch = Batch(batch_id, account.id, 1, 1, 2, "/v1/embeddings", "file-1", "in_progress", total=9)
    await store.add_batch(batch)
    files = ResultFiles(FileFolder(folder), batch.id)
    return BatchJournal(batch, files, store, lambda: 7, on_cancelled=refuse_cancel, retry_s=0), store, files


def make_result(batch: Batch, number: int) -> LineResult:
    return build_unsent_line(batch.id, number, f"c{number}", "interrupted", "It was.")


async def test_a_claim_and_the_results_before_it_are_durable_together(tmp_path: Path) -> None:
    journal, store, files = await open_journal(tmp_path / "files")
    writer: Any = asyncio.create_task(journal.run())
    journal.add(make_result(journal.batch, 1))
    await asyncio.gather(*(journal.mark_sent(number) for number in (2, 4, 3)))
    writer.cancel()
    stored = await store.find_batch(journal.batch.id, journal.batch.account_id)
    assert stored is not None
    assert (stored.claimed, stored.tally.failed) == (4, 1)
    assert files.recover()[0] == {"c1"}


async def test_a_commit_that_fails_is_repeated_and_writes_nothing_twice(tmp_path: Path) -> None:
    journal, _, files = await open_journal(tmp_path / "files")
    files.errors.path.mkdir()  # type: ignore[attr-defined]  # the output can be written, the errors cannot
    writer: Any = asyncio.create_task(journal.run())
    journal.add(build_answer_line(journal.batch.id, 1, "c1", "req_1", b"{}"))
    journal.add(make_result(journal.batch, 2))
    claim = asyncio.create_task(journal.mark_sent(2))
    async with asyncio.timeout(5):
        while not files.output.path.exists():  # type: ignore[attr-defined]  # noqa: ASYNC110 - another thread writes it
            await asyncio.sleep(0.001)
        assert not claim.done()
        files.errors.path.rmdir()  # type: ignore[attr-defined]
        await claim
    writer.cancel()
    assert (journal.batch.tally.completed, journal.batch.tally.failed) == (1, 1)
    assert [len(file.path.read_bytes().splitlines()) for file in (files.output, files.errors)] == [1, 1]  # type: ignore[attr-defined]


async def test_of_a_deleted_batch_no_line_is_claimed_and_no_result_written(tmp_path: Path) -> None:
    """Its files are deleted as soon as that is known; lines under way end after it."""
    journal, _, files = await open_journal(tmp_path / "files")
    journal.batch = attrs.evolve(journal.batch, id=make_client_id("batch_"))
    writer: Any = asyncio.create_task(journal.run())
    for number in (1, 2):
        with pytest.raises(BatchGone):
            await journal.mark_sent(number)
        journal.add(make_result(journal.batch, number))
        await asyncio.sleep(0)
    with pytest.raises(BatchGone):
        await journal.mark_sent(3)
    writer.cancel()
    assert not files.errors.path.exists()  # type: ignore[attr-defined]


async def test_a_journal_that_has_stopped_refuses_instead_of_waiting(tmp_path: Path) -> None:
    journal, _, _ = await open_journal(tmp_path / "files")
    waiting = asyncio.create_task(journal.mark_sent(1))
    await asyncio.sleep(0)
    journal.close()
    async with asyncio.timeout(5):
        for claim in (waiting, journal.mark_sent(2)):
            with pytest.raises(StoreUnavailable):
                await claim


async def test_a_node_that_was_declared_dead_changes_nothing_of_a_batch_that_another_runs(tmp_path: Path) -> None:
    _, alone, _ = await open_journal(tmp_path / "files")
    database, folder = alone._database, FileFolder(tmp_path / "files")
    (batch,) = await alone.list_unfinished()
    stores = [BatchRepository(database, lambda name=name: name) for name in ("a:1", "b:1")]  # type: ignore[misc]
    first = await stores[0].claim_batch(batch)
    assert first is not None
    assert await stores[1].claim_batch(batch) is None, "another node has it"
    files = ResultFiles(folder, batch.id, moves=first.moves)
    before = BatchJournal(first, files, stores[0], lambda: 7, on_cancelled=refuse_cancel)
    writer: Any = asyncio.create_task(before.run())
    before.add(make_result(batch, 1))
    await before.mark_sent(2)

    await database.change(update(batches).values(owner=""))  # as the leader does
    (left,) = await stores[1].list_free()
    taken = await stores[1].claim_batch(left)
    assert taken is not None
    later = ResultFiles(folder, batch.id, moves=taken.moves)
    later.copy_former()
    before.add(make_result(batch, 2))
    for _ in range(2):
        with pytest.raises(BatchMoved):
            await before.mark_sent(3)
    files.append([make_result(batch, 5)])  # however late
    later.copy_former()
    assert later.recover()[0] == {"c1"}
    assert await stores[1].save_batch(attrs.evolve(taken, claimed=4))
    writer.cancel()
    (stored,) = await alone.list_unfinished()
    assert (stored.claimed, stored.moves) == (4, 2)


async def test_a_batch_that_was_cancelled_at_another_node_claims_on_as_cancelled(tmp_path: Path) -> None:
    _, alone, _ = await open_journal(tmp_path / "files")
    store = BatchRepository(alone._database, lambda: "a:1")
    (batch,) = await alone.list_unfinished()
    mine = await store.claim_batch(batch)
    assert mine is not None
    heard: list[str] = []
    files = ResultFiles(FileFolder(tmp_path / "files"), batch.id)
    journal = BatchJournal(mine, files, store, lambda: 7, on_cancelled=lambda: heard.append("cancelled"))
    writer: Any = asyncio.create_task(journal.run())
    assert await alone.cancel_batch(batch.id)
    assert not await alone.cancel_batch(batch.id)
    assert await store.list_cancelled() == [batch.id]
    await journal.mark_sent(3)
    writer.cancel()
    found = await store.find_batch(batch.id, None)
    assert found is not None
    assert (found.status, found.claimed, dict(found.times)["cancelling_at"], heard) == (
        "cancelling",
        3,
        7,
        ["cancelled"],
    )
