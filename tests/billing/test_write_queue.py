"""The outbox: what is settled is kept in its order, and there is room for new work or there is none."""

import asyncio

import pytest

from gateway.billing.quota import QuotaService
from gateway.billing.rate_limiter import InMemoryRateLimiter
from gateway.billing.write_queue import MAX_QUEUED, WriteQueue
from gateway.domain.rate_limit import Limits
from gateway.errors import StoreUnavailable
from tests.support.billing_services import BillingServices, call_for, caller_of
from tests.support.request_records import make_rows


async def test_it_gives_rows_in_their_order_and_never_more_than_asked() -> None:
    write_queue, rows = WriteQueue(), make_rows(1, 2, 3)
    for row in rows:
        write_queue.put(row)
    assert len(write_queue) == 3
    assert write_queue.list_rows() == tuple(rows)
    assert write_queue.take(2) == rows[:2]
    assert write_queue.list_rows() == (rows[2],)
    assert write_queue.take(2) == rows[2:]
    assert write_queue.take(2) == []
    assert write_queue.list_rows() == ()


async def test_rows_put_back_come_first_and_in_their_old_order() -> None:
    write_queue, rows = WriteQueue(), make_rows(1, 2, 3, 4)
    for row in rows[:3]:
        write_queue.put(row)
    taken = write_queue.take(2)
    write_queue.put(rows[3])
    write_queue.put_back(taken)
    assert write_queue.list_rows() == tuple(rows)
    assert write_queue.take(10) == rows


async def test_who_waits_for_a_row_wakes_with_the_first_and_waits_again_after_the_last() -> None:
    write_queue, (row,) = WriteQueue(), make_rows(1)
    waiting = asyncio.create_task(write_queue.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    write_queue.put(row)
    async with asyncio.timeout(1):
        await waiting
    write_queue.put_back(write_queue.take(1))
    async with asyncio.timeout(1):
        await write_queue.wait()
    write_queue.take(1)
    waiting = asyncio.create_task(write_queue.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()


async def test_nobody_waits_while_rows_are_left() -> None:
    write_queue = WriteQueue()
    for row in make_rows(1, 2):
        write_queue.put(row)
    write_queue.take(1)
    async with asyncio.timeout(1):
        await write_queue.wait()


async def test_when_as_many_rows_wait_as_may_there_is_no_room_for_new_work() -> None:
    write_queue = WriteQueue(max_rows=3)
    for row in make_rows(1, 2):
        write_queue.put(row)
    write_queue.check_room()
    room = not write_queue.full
    write_queue.put(*make_rows(3))
    assert (room, write_queue.full) == (True, True)
    with pytest.raises(StoreUnavailable) as caught:
        write_queue.check_room()
    assert caught.value.status == 503
    assert caught.value.retry_after_s
    write_queue.take(1)
    write_queue.check_room()


async def test_calls_that_run_already_are_taken_in_whatever_waits() -> None:
    """What was settled is never dropped, also above the bound and while the store fails."""
    write_queue, rows = WriteQueue(max_rows=2), make_rows(*range(6))
    write_queue.failing = True
    for row in rows:
        write_queue.put(row)
    write_queue.put_back(write_queue.take(4))
    assert write_queue.take(10) == rows


async def test_while_the_store_fails_there_is_no_room_though_nothing_waits() -> None:
    write_queue = WriteQueue()
    write_queue.failing = True
    with pytest.raises(StoreUnavailable):
        write_queue.check_room()
    write_queue.failing = False
    write_queue.check_room()


async def test_twenty_thousand_rows_are_its_bound() -> None:
    write_queue, (row,) = WriteQueue(), make_rows(1)
    for _ in range(MAX_QUEUED - 1):
        write_queue.put(row)
    write_queue.check_room()
    write_queue.put(row)
    with pytest.raises(StoreUnavailable):
        write_queue.check_room()


async def test_nothing_is_held_for_a_call_that_waits_for_a_busy_store(billing: BillingServices) -> None:
    caller, write_queue, counters = (
        caller_of(limits=Limits(max_concurrency=1)),
        WriteQueue(max_rows=2),
        InMemoryRateLimiter(lambda: 0.0),
    )
    write_queue.put(make_rows(1)[0])
    quota = QuotaService(billing.balances, counters, billing.journal, write_queue, refresh=lambda caller: caller)
    waiting = asyncio.create_task(quota.admit(billing.arrive(caller, call_for(1)), []))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert not billing.balances.reservations
    await counters.check(caller.subjects)  # nobody is at its only place
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not billing.balances.reservations
    await counters.check(caller.subjects)
