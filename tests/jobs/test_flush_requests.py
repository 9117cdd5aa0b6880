"""Request rows reach the store: once, in order, whatever the store does."""

import asyncio
from collections.abc import Callable, Sequence

import attrs
import pytest

from gateway.domain.fault import StoreUnavailable
from gateway.domain.request import RequestFilter, RequestRow
from gateway.flow.settlement import RowQueue
from gateway.jobs.flush_requests import BATCH, RETRY_AFTER_S, FlushRequests
from gateway.store.memory import MemoryStore
from tests.jobs.loop import run_hurried
from tests.store.test_contract import ROW


class MoodyLog(MemoryStore):
    """A store that fails as ``moods`` say, one a commit, and is well when they are used up."""

    def __init__(self, *moods: Callable[[], BaseException] | None) -> None:
        super().__init__()
        self._moods = list(moods)
        self.batches: list[int] = []
        self.asked_at: list[float] = []
        self.asked = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def add_requests(self, rows: Sequence[RequestRow]) -> None:
        self.asked_at.append(asyncio.get_running_loop().time())
        self.batches.append(len(rows))
        self.asked.set()
        await self.gate.wait()
        mood = self._moods.pop(0) if self._moods else None
        if mood is not None:
            raise mood()
        await super().add_requests(rows)

    async def ids(self) -> list[str]:
        return [stored.row.id for stored in await self.list_requests(RequestFilter(), 10**6)]


def unavailable() -> StoreUnavailable:
    return StoreUnavailable("not now")


def put(queue: RowQueue, first: int, last: int) -> list[str]:
    for number in range(first, last):
        queue.put(attrs.evolve(ROW, id=f"req_{number}"))
    return [f"req_{number}" for number in range(first, last)]


async def test_what_is_queued_is_stored_in_order() -> None:
    queue, log = RowQueue(), MoodyLog()
    expected = put(queue, 0, 5)
    assert await FlushRequests(queue, log).flush()
    assert await log.ids() == expected
    assert len(queue) == 0
    assert log.batches == [5]


async def test_a_long_queue_is_stored_batch_by_batch() -> None:
    queue, log = RowQueue(), MoodyLog()
    expected = put(queue, 0, 2 * BATCH + 3)
    assert await FlushRequests(queue, log).flush()
    assert await log.ids() == expected
    assert log.batches == [BATCH, BATCH, 3]


async def test_nothing_queued_asks_nothing_of_the_store() -> None:
    log = MoodyLog(unavailable)
    assert await FlushRequests(RowQueue(), log).flush()
    assert log.batches == []


async def test_a_store_that_fails_keeps_every_row_in_order() -> None:
    queue, log = RowQueue(), MoodyLog(unavailable, None, unavailable)
    flush = FlushRequests(queue, log)
    expected = put(queue, 0, BATCH + 5)
    assert not await flush.flush()
    assert len(queue) == BATCH + 5
    expected += put(queue, BATCH + 5, BATCH + 8)
    assert not await flush.flush()
    assert len(queue) == 8
    assert await flush.flush()
    assert await log.ids() == expected


@pytest.mark.parametrize("error", [OverflowError, RuntimeError, asyncio.CancelledError])
async def test_a_failure_that_nobody_foresaw_drops_no_row(error: type[BaseException]) -> None:
    queue, log = RowQueue(), MoodyLog(error)
    flush = FlushRequests(queue, log)
    expected = put(queue, 0, 3)
    with pytest.raises(error):
        await flush.flush()
    assert len(queue) == 3
    assert await flush.flush()
    assert await log.ids() == expected


async def test_a_flush_that_is_cancelled_in_the_middle_drops_no_row() -> None:
    queue, log = RowQueue(), MoodyLog()
    flush = FlushRequests(queue, log)
    expected = put(queue, 0, 3)
    log.gate.clear()
    task = asyncio.create_task(flush.flush())
    await log.asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    log.gate.set()
    assert await flush.flush()
    assert await log.ids() == expected


async def test_rows_that_come_during_a_commit_wait_for_the_next() -> None:
    queue, log = RowQueue(), MoodyLog()
    log.gate.clear()
    flush = FlushRequests(queue, log)
    job = asyncio.create_task(flush.run())
    expected = put(queue, 0, 1)
    await log.asked.wait()
    expected += put(queue, 1, 8)
    log.gate.set()
    assert await flush.flush()
    assert log.batches == [1, 7]
    assert await log.ids() == expected
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job


def test_a_store_that_failed_is_asked_again_after_a_pause() -> None:
    async def main() -> None:
        queue, log = RowQueue(), MoodyLog(unavailable, unavailable)
        job = asyncio.create_task(FlushRequests(queue, log).run())
        expected = put(queue, 0, 3)
        await asyncio.sleep(10 * RETRY_AFTER_S)
        assert await log.ids() == expected
        assert len(log.asked_at) == 3
        pauses = [later - earlier for earlier, later in zip(log.asked_at, log.asked_at[1:], strict=False)]
        assert all(RETRY_AFTER_S <= pause < 2 * RETRY_AFTER_S for pause in pauses)
        expected += put(queue, 3, 4)
        await asyncio.sleep(0.1)
        assert await log.ids() == expected
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)

    run_hurried(main())
