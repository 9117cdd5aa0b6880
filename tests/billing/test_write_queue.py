"""The outbox: what is settled is kept in its order, and there is room for new work or there is none."""

import asyncio

import pytest

from gateway.billing.quota import QuotaService
from gateway.billing.rate_limiter import InMemoryRateLimiter
from gateway.billing.write_queue import MAX_WAITING, WriteQueue
from gateway.domain.rate_limit import Limits
from gateway.errors import StoreUnavailable
from tests.support.billing_services import BillingServices, call_for, caller_of
from tests.support.request_records import make_rows


async def test_it_gives_rows_in_their_order_and_never_more_than_asked() -> None:
    outbox, rows = WriteQueue(), make_rows(1, 2, 3)
    for row in rows:
        outbox.put(row)
    assert len(outbox) == 3
    assert outbox.look() == tuple(rows)
    assert outbox.take(2) == rows[:2]
    assert outbox.look() == (rows[2],)
    assert outbox.take(2) == rows[2:]
    assert outbox.take(2) == []
    assert outbox.look() == ()


async def test_rows_put_back_come_first_and_in_their_old_order() -> None:
    outbox, rows = WriteQueue(), make_rows(1, 2, 3, 4)
    for row in rows[:3]:
        outbox.put(row)
    taken = outbox.take(2)
    outbox.put(rows[3])
    outbox.put_back(taken)
    assert outbox.look() == tuple(rows)
    assert outbox.take(10) == rows


async def test_who_waits_for_a_row_wakes_with_the_first_and_waits_again_after_the_last() -> None:
    outbox, (row,) = WriteQueue(), make_rows(1)
    waiting = asyncio.create_task(outbox.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    outbox.put(row)
    async with asyncio.timeout(1):
        await waiting
    outbox.put_back(outbox.take(1))
    async with asyncio.timeout(1):
        await outbox.wait()
    outbox.take(1)
    waiting = asyncio.create_task(outbox.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()


async def test_nobody_waits_while_rows_are_left() -> None:
    outbox = WriteQueue()
    for row in make_rows(1, 2):
        outbox.put(row)
    outbox.take(1)
    async with asyncio.timeout(1):
        await outbox.wait()


async def test_when_as_many_rows_wait_as_may_there_is_no_room_for_new_work() -> None:
    outbox = WriteQueue(most=3)
    for row in make_rows(1, 2):
        outbox.put(row)
    outbox.check_room()
    assert not outbox.full
    outbox.put(*make_rows(3))
    assert outbox.full
    with pytest.raises(StoreUnavailable) as caught:
        outbox.check_room()
    assert caught.value.status == 503
    assert caught.value.retry_after_s
    outbox.take(1)
    outbox.check_room()


async def test_calls_that_run_already_are_taken_in_whatever_waits() -> None:
    """What was settled is never dropped, also above the bound and while the store fails."""
    outbox, rows = WriteQueue(most=2), make_rows(*range(6))
    outbox.failing = True
    for row in rows:
        outbox.put(row)
    outbox.put_back(outbox.take(4))
    assert outbox.take(10) == rows


async def test_while_the_store_fails_there_is_no_room_though_nothing_waits() -> None:
    outbox = WriteQueue()
    outbox.failing = True
    with pytest.raises(StoreUnavailable):
        outbox.check_room()
    outbox.failing = False
    outbox.check_room()


async def test_twenty_thousand_rows_are_its_bound() -> None:
    outbox, (row,) = WriteQueue(), make_rows(1)
    for _ in range(MAX_WAITING - 1):
        outbox.put(row)
    outbox.check_room()
    outbox.put(row)
    with pytest.raises(StoreUnavailable):
        outbox.check_room()


async def test_nothing_is_held_for_a_call_that_waits_for_a_busy_store(billing: BillingServices) -> None:
    caller, outbox, counters = (
        caller_of(limits=Limits(max_concurrency=1)),
        WriteQueue(most=2),
        InMemoryRateLimiter(lambda: 0.0),
    )
    outbox.put(make_rows(1)[0])
    admission = QuotaService(billing.bank, counters, billing.journal, outbox)
    waiting = asyncio.create_task(admission.admit(billing.arrive(caller, call_for(1)), []))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert not billing.bank.holds
    await counters.check(caller.subjects)  # nobody is at its only place
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not billing.bank.holds
    await counters.check(caller.subjects)
