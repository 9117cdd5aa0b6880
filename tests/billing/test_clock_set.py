"""The machine's clock is set by days and by years, both ways: no quota is given twice, and the books agree."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.account import Caller
from gateway.domain.balance import QuotaPeriod, parse_day
from gateway.errors import QuotaExceeded, StoreUnavailable
from tests.support.billing_services import NOON, BillingServices, call_for, caller_of, capped, top_up

DAY_S = 86_400
CAP = 100
WAYS: Sequence[Sequence[int]] = (
    (1, 2, 0),
    (366, 367, 0),
    (-1, -2, 0),
    (-366, -367, 0),
    (1, 0, 2, 0),
    (31, 62, 31, 0, 62),
    (-40, 3, 366, 0, 366, -40),
)
"""Where the clock is set, in days from the first; the cap is spent wherever it has not been."""


async def spend_all(billing: BillingServices, caller: Caller) -> None:
    await billing.spend(caller, CAP)
    with pytest.raises(QuotaExceeded):
        await billing.admit(caller, call_for(1))


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "waiting"])
@pytest.mark.parametrize("crashes", [False, True], ids=["", "restart"])
@pytest.mark.parametrize("period", ["daily", "monthly"])
@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_a_cap_that_was_used_up_stays_so_however_the_clock_is_set(
    billing: BillingServices, way: Sequence[int], period: QuotaPeriod, crashes: bool, stored: bool
) -> None:
    caller, seen = caller_of(capped(CAP, period)), set()
    for days in (0, *way):
        await billing.set_clock(NOON + days * DAY_S)
        day = parse_day(billing.now)
        place = day.number if period == "daily" else day.month_number
        if place not in seen:
            await spend_all(billing, caller)
        seen.add(place)
        with pytest.raises(QuotaExceeded):
            await billing.admit(caller, call_for(1))
        if stored:
            await billing.flush.flush()
        if crashes:
            await billing.crash("charge")
        assert (await billing.accounting.reconcile())["problems"] == []


async def test_while_a_day_is_read_nothing_is_admitted_and_what_ends_is_counted(billing: BillingServices) -> None:
    caller = caller_of(capped(CAP, "daily"))
    await billing.spend(caller, 60)
    await billing.flush.flush()
    for days in (1, 2):
        await billing.set_clock(NOON + days * DAY_S)
        await billing.spend(caller, 1)
    running = await billing.admit(caller, call_for(10))
    billing.now = NOON
    async with billing.write_queue.writing:  # as while rows are on their way: the ledger is read after them
        with pytest.raises(StoreUnavailable, match="clock was set") as caught:
            await billing.admit(caller, call_for(1))
        assert caught.value.retry_after_s == 1
        await asyncio.sleep(0)
        billing.settle(running, 10)
        with pytest.raises(StoreUnavailable):
            await billing.quota.precheck(caller, lambda: False)
    await billing.accounting.close()
    with pytest.raises(QuotaExceeded):
        await billing.admit(caller, call_for(31))
    await billing.spend(caller, 30)
    assert (await billing.accounting.reconcile())["problems"] == []


async def test_a_day_that_cannot_be_read_is_read_when_the_store_is_back(billing: BillingServices) -> None:
    caller = caller_of(capped(CAP, "daily"))
    await billing.spend(caller, CAP)
    await billing.set_clock(NOON + DAY_S)
    await billing.spend(caller, 1)
    await billing.set_clock(NOON + 2 * DAY_S)
    await billing.spend(caller, 1)
    read = billing.disk.list_spending

    async def fail(*_: object) -> None:
        raise StoreUnavailable("not now")

    billing.disk.list_spending = fail  # type: ignore[method-assign,assignment]
    await billing.set_clock(NOON)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await billing.admit(caller, call_for(1))
        await billing.accounting.close()
    billing.disk.list_spending = read  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        await billing.admit(caller, call_for(1))
    await billing.accounting.close()
    with pytest.raises(QuotaExceeded):
        await billing.admit(caller, call_for(1))


async def test_a_credit_of_a_day_comes_back_with_it_once(billing: BillingServices) -> None:
    caller = caller_of(capped(CAP, "daily"))
    await billing.spend(caller, CAP)
    await billing.accounting.credit(caller.account, top_up("0.00000005"))
    for days in (1, 2, 3, 0):
        await billing.set_clock(NOON + days * DAY_S)
    await billing.spend(caller, 50)
    with pytest.raises(QuotaExceeded):
        await billing.admit(caller, call_for(1))
    assert (await billing.accounting.reconcile())["problems"] == []


async def test_midnight_is_no_reason_to_read_anything(billing: BillingServices) -> None:
    caller = caller_of(capped(CAP, "daily"))
    for days in range(40):
        billing.now = NOON + days * DAY_S
        await billing.spend(caller, CAP)
    assert billing.accounting._loading_task is None


@given(st.lists(st.tuples(st.sampled_from([-366, -31, -2, -1, 0, 1, 2, 3, 31, 366]), st.integers(0, 40)), max_size=12))
def test_whatever_is_done_at_whatever_time_the_books_agree(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]]
) -> None:
    async def scene() -> None:
        billing = BillingServices(tmp_path_factory.mktemp("clock"))
        caller = caller_of(capped(CAP, "daily"), capped(3 * CAP, "monthly"))
        try:
            for days, nanos in steps:
                await billing.set_clock(NOON + days * DAY_S)
                try:
                    await billing.spend(caller, nanos)
                except QuotaExceeded:
                    await billing.flush.flush()
                assert (await billing.accounting.reconcile())["problems"] == []
        finally:
            billing.close()

    asyncio.run(scene())
