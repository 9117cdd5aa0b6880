"""Rows reach the ledger: once, in order, whatever the store does, and the journal knows of them until then."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.billing.flush_worker import COMMIT_DELAY_S, MAX_ROWS, RETRY_AFTER_S, LedgerFlusher
from gateway.billing.write_queue import FULL_BATCH_ROWS, WriteQueue
from gateway.domain.request_log import RequestRecord
from gateway.errors import StoreUnavailable
from gateway.storage.database import Database
from gateway.storage.journal import RequestJournal
from gateway.storage.ledger import LedgerRepository
from gateway.storage.open import open_database
from gateway.storage.request_log import RequestLogRepository
from tests.support.journal_entries import begin, find
from tests.support.ledger_balances import read_ids, read_totals
from tests.support.repositories import Repositories
from tests.support.request_records import make_row
from tests.support.stores import copy_template
from tests.support.worker_loop import run_hurried


class UnreliableStore(Repositories):
    """A store that fails as ``moods`` say, one a commit, and is well when they are used up."""

    def __init__(self, *moods: Callable[[], BaseException] | None) -> None:
        super().__init__()
        self._moods = list(moods)
        self.batches: list[int] = []
        self.asked_at: list[float] = []
        self.asked = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def post(self, rows: Sequence[RequestRecord]) -> None:
        self.asked_at.append(asyncio.get_running_loop().time())
        self.batches.append(len(rows))
        self.asked.set()
        await self.gate.wait()
        mood = self._moods.pop(0) if self._moods else None
        if mood is not None:
            raise mood()
        await super().post(rows)


def unavailable() -> StoreUnavailable:
    return StoreUnavailable("not now")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "requests.journal"


@pytest.fixture
def journal(path: Path) -> Iterator[RequestJournal]:
    """One that is written anew each time it is told that something is stored."""
    opened = RequestJournal(path, rotate_bytes=-1)
    yield opened
    opened.close()


def put(write_queue: WriteQueue, journal: RequestJournal, first: int, last: int) -> list[str]:
    """Calls that have ended: noted, and on their way."""
    rows = [make_row(number, cost_nanos=1) for number in range(first, last)]
    for row in rows:
        journal.record_end(row)
        write_queue.put(row)
    return [row.id for row in rows]


async def test_what_is_put_is_stored_in_order_and_forgotten(path: Path, journal: RequestJournal) -> None:
    write_queue, store = WriteQueue(), UnreliableStore()
    expected = put(write_queue, journal, 0, 5)
    assert list(find(path)) == expected
    with capture_logs() as reported:
        assert await LedgerFlusher(write_queue, store, journal).flush()
    assert reported == []
    assert await read_ids(store) == expected
    assert len(write_queue) == 0
    assert store.batches == [5]
    assert find(path) == {}


async def test_what_is_stored_is_charged(journal: RequestJournal) -> None:
    write_queue, store = WriteQueue(), UnreliableStore(unavailable)
    put(write_queue, journal, 0, 5)
    flush = LedgerFlusher(write_queue, store, journal)
    assert not await flush.flush()
    assert await read_totals(store) == set()
    assert await flush.flush()
    assert await read_totals(store) == {(3, 5, 5, 5, 5)}


async def test_a_long_queue_is_stored_batch_by_batch(journal: RequestJournal) -> None:
    write_queue, store = WriteQueue(), UnreliableStore()
    expected = put(write_queue, journal, 0, 2 * MAX_ROWS + 3)
    assert await LedgerFlusher(write_queue, store, journal).flush()
    assert await read_ids(store) == expected
    assert store.batches == [MAX_ROWS, MAX_ROWS, 3]


async def test_nothing_put_asks_nothing_of_the_store(journal: RequestJournal) -> None:
    store, write_queue = UnreliableStore(unavailable), WriteQueue()
    assert await LedgerFlusher(write_queue, store, journal).flush()
    assert store.batches == []
    assert not write_queue.failing


async def test_a_store_that_fails_keeps_every_row_in_order(journal: RequestJournal) -> None:
    write_queue, store = WriteQueue(), UnreliableStore(unavailable, None, unavailable)
    flush = LedgerFlusher(write_queue, store, journal)
    expected = put(write_queue, journal, 0, MAX_ROWS + 5)
    assert not await flush.flush()
    assert len(write_queue) == MAX_ROWS + 5
    expected += put(write_queue, journal, MAX_ROWS + 5, MAX_ROWS + 8)
    assert not await flush.flush()
    assert len(write_queue) == 8
    assert await flush.flush()
    assert await read_ids(store) == expected


async def test_only_what_is_stored_is_forgotten(path: Path, journal: RequestJournal) -> None:
    """A batch that was stored before the store failed, and not the one that it refused, nor a call that still runs."""
    write_queue, store = WriteQueue(), UnreliableStore(unavailable, None, unavailable)
    flush = LedgerFlusher(write_queue, store, journal)
    journal.start_at_once(begin(make_row("running")))
    expected = put(write_queue, journal, 0, MAX_ROWS + 2)
    assert not await flush.flush()
    assert find(path) == {"req_running": False, **dict.fromkeys(expected, True)}
    assert not await flush.flush()
    assert find(path) == {"req_running": False, **dict.fromkeys(expected[MAX_ROWS:], True)}
    assert await flush.flush()
    assert find(path) == {"req_running": False}


async def test_nothing_is_forgotten_while_its_commit_runs(path: Path, journal: RequestJournal) -> None:
    write_queue, store = WriteQueue(), UnreliableStore()
    store.gate.clear()
    expected = put(write_queue, journal, 0, 3)
    task = asyncio.create_task(LedgerFlusher(write_queue, store, journal).flush())
    await store.asked.wait()
    assert list(find(path)) == expected
    store.gate.set()
    assert await task
    assert find(path) == {}


async def test_while_the_store_refuses_there_is_no_room_and_once_it_takes_a_batch_there_is(
    journal: RequestJournal,
) -> None:
    write_queue, store = WriteQueue(), UnreliableStore(unavailable, unavailable)
    flush = LedgerFlusher(write_queue, store, journal)
    write_queue.check_room()
    put(write_queue, journal, 0, 2)
    with capture_logs() as reported:
        for _ in range(2):
            assert not await flush.flush()
            assert write_queue.failing
            with pytest.raises(StoreUnavailable):
                write_queue.check_room()
        put(write_queue, journal, 2, 5)
        assert await flush.flush()
    assert not write_queue.failing
    write_queue.check_room()
    assert [(line["event"], line["rows"]) for line in reported] == [("records_not_stored", 2), ("store_recovered", 5)]


async def test_one_batch_that_is_stored_ends_the_refusal_though_the_next_fails_again(journal: RequestJournal) -> None:
    write_queue, store = WriteQueue(), UnreliableStore(unavailable, None, unavailable)
    flush = LedgerFlusher(write_queue, store, journal)
    put(write_queue, journal, 0, MAX_ROWS + 1)
    with capture_logs() as reported:
        assert not await flush.flush()
        assert not await flush.flush()
    assert write_queue.failing
    assert [(line["event"], line["rows"]) for line in reported] == [
        ("records_not_stored", MAX_ROWS + 1),
        ("store_recovered", MAX_ROWS),
        ("records_not_stored", 1),
    ]


@pytest.mark.parametrize("error", [OverflowError, RuntimeError, asyncio.CancelledError])
async def test_a_failure_that_nobody_foresaw_drops_no_row(
    path: Path, journal: RequestJournal, error: type[BaseException]
) -> None:
    write_queue, store = WriteQueue(), UnreliableStore(error)
    flush = LedgerFlusher(write_queue, store, journal)
    expected = put(write_queue, journal, 0, 3)
    with pytest.raises(error):
        await flush.flush()
    assert len(write_queue) == 3
    assert list(find(path)) == expected
    assert await flush.flush()
    assert await read_ids(store) == expected


async def test_a_flush_that_is_cancelled_in_the_middle_drops_no_row(journal: RequestJournal) -> None:
    write_queue, store = WriteQueue(), UnreliableStore()
    flush = LedgerFlusher(write_queue, store, journal)
    expected = put(write_queue, journal, 0, 3)
    store.gate.clear()
    task = asyncio.create_task(flush.flush())
    await store.asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    store.gate.set()
    assert await flush.flush()
    assert await read_ids(store) == expected


async def test_rows_that_come_during_a_commit_wait_for_the_next(journal: RequestJournal) -> None:
    write_queue, store = WriteQueue(), UnreliableStore()
    store.gate.clear()
    flush = LedgerFlusher(write_queue, store, journal, commit_delay_s=0)
    job = asyncio.create_task(flush.run())
    expected = put(write_queue, journal, 0, 1)
    await store.asked.wait()
    expected += put(write_queue, journal, 1, 8)
    store.gate.set()
    assert await flush.flush()
    assert store.batches == [1, 7]
    assert await read_ids(store) == expected
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job


async def test_who_holds_the_outbox_sees_no_row_on_its_way(journal: RequestJournal) -> None:
    """What the audit leans on: a row is in the outbox or in the store, and in no third place."""
    write_queue, store = WriteQueue(), UnreliableStore()
    flush = LedgerFlusher(write_queue, store, journal)
    expected = put(write_queue, journal, 0, 3)
    store.gate.clear()
    task = asyncio.create_task(flush.flush())
    await store.asked.wait()
    assert write_queue.writing.locked()
    store.gate.set()
    async with write_queue.writing:
        assert await read_ids(store) == expected
        expected += put(write_queue, journal, 3, 5)
        again = asyncio.create_task(flush.flush())
        await asyncio.sleep(0)
        assert [row.id for row in write_queue.list_rows()] == expected[3:]
        assert await read_ids(store) == expected[:3]
    assert await task
    assert await again
    assert await read_ids(store) == expected


def test_rows_wait_for_others_until_one_has_waited_long_or_they_are_many_or_are_read(path: Path) -> None:
    async def main() -> None:
        write_queue, store, journal = WriteQueue(), UnreliableStore(), RequestJournal(path)
        flusher, after = LedgerFlusher(write_queue, store, journal), list[int]()

        async def note_commit() -> None:
            after.append(len(store.batches))

        job = asyncio.create_task(flusher.run(note_commit))
        for first in (0, 100):
            await asyncio.sleep(10 * COMMIT_DELAY_S)
            for number in range(first, first + 10):
                put(write_queue, journal, number, number + 1)
                await asyncio.sleep(COMMIT_DELAY_S / 20)
            assert len(write_queue) == 10
            await asyncio.sleep(COMMIT_DELAY_S)
            assert store.batches[-1] == 10
        assert (store.batches, after) == ([10, 10], [1, 2])

        put(write_queue, journal, 1_000, 1_000 + FULL_BATCH_ROWS)
        await asyncio.sleep(COMMIT_DELAY_S / 20)
        assert store.batches[2:] == [FULL_BATCH_ROWS]

        put(write_queue, journal, 10_000, 10_001)
        await asyncio.sleep(0)
        await asyncio.gather(*(flusher.store_waiting() for _ in range(3)))
        assert store.batches[3:] == [1]
        put(write_queue, journal, 20_000, 20_001)  # the job, awake because of the row before, lets these wait, too
        await asyncio.sleep(COMMIT_DELAY_S / 2)
        assert (store.batches[4:], len(after)) == ([], 4)
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)
        journal.close()

    run_hurried(main())


async def test_a_reader_does_not_wait_for_a_store_that_hangs(path: Path) -> None:
    write_queue, store, journal = WriteQueue(), UnreliableStore(), RequestJournal(path)
    flusher = LedgerFlusher(write_queue, store, journal)
    store.gate.clear()
    expected = put(write_queue, journal, 0, 2)
    read = asyncio.create_task(flusher.store_waiting())
    await store.asked.wait()
    read.cancel()  # the reader has left, its commit goes on
    await asyncio.gather(read, return_exceptions=True)
    assert not write_queue.failing
    store.gate.set()
    await flusher.store_waiting()
    assert await read_ids(store) == expected
    journal.close()


def test_a_store_that_failed_is_asked_again_after_a_pause(path: Path) -> None:
    async def main() -> None:
        write_queue, store, journal = WriteQueue(), UnreliableStore(unavailable, unavailable), RequestJournal(path)
        job = asyncio.create_task(LedgerFlusher(write_queue, store, journal).run())
        expected = put(write_queue, journal, 0, 3)
        await asyncio.sleep(10 * RETRY_AFTER_S)
        assert await read_ids(store) == expected
        assert len(store.asked_at) == 3
        assert all(RETRY_AFTER_S <= later - earlier < 2 * RETRY_AFTER_S for earlier, later in pairwise(store.asked_at))
        assert not write_queue.failing
        expected += put(write_queue, journal, 3, 4)
        await asyncio.sleep(COMMIT_DELAY_S + 0.1)
        assert await read_ids(store) == expected
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)
        journal.close()

    run_hurried(main())


@pytest.fixture
async def database(tmp_path: Path, template_path: Path) -> AsyncIterator[Database]:
    opened = await open_database(f"sqlite:///{await copy_template(template_path, tmp_path)}")
    yield opened
    await opened.close()


@pytest.mark.parametrize("steps", [0, 1, 2, 5, 10, 20, 40])
async def test_a_commit_whose_caller_is_cancelled_is_made_once(
    database: Database, journal: RequestJournal, path: Path, steps: int
) -> None:
    """Stored, charged and forgotten once, however far it had come."""
    write_queue, ledger = WriteQueue(), LedgerRepository(database)
    flush = LedgerFlusher(write_queue, ledger, journal)
    expected = put(write_queue, journal, 0, 3)
    task = asyncio.create_task(flush.flush())
    for _ in range(steps):
        await asyncio.sleep(0.0005 if steps > 2 else 0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    expected += put(write_queue, journal, 3, 4)
    assert await flush.flush()
    assert await read_ids(RequestLogRepository(database)) == expected
    assert await read_totals(ledger) == {(3, 5, 4, 4, 4)}
    assert len(write_queue) == 0
    assert find(path) == {}
