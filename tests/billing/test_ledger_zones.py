"""Any order of calls, credits, crashes, midnights and changes of time zones: each cost counts in one day and month."""

import asyncio
import os
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Literal
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from typing_extensions import override

from gateway.domain.account import Caller
from gateway.domain.account_zone import AccountZone, LocalDay, change_zone, make_zone
from gateway.domain.balance import QuotaPeriod, UtcDay, parse_day
from gateway.errors import QuotaExceeded, StoreUnavailable
from tests.support.billing_services import ACCOUNT, BillingServices, SlowDisk, call_for, caller_of, capped, unix
from tests.support.ledger_machine import ANY, FOR_EVER, LedgerMachine, Place, pick

ZONES = (None, "Europe/Berlin", "Asia/Kathmandu", "Pacific/Auckland", "Pacific/Honolulu", "Australia/Lord_Howe")


class ZonedLedgerMachine(LedgerMachine):
    """The ledger's machine, with accounts whose time zones change."""

    def __init__(self) -> None:
        super().__init__()
        self.zones: dict[Place, AccountZone] = {}
        self.owners: dict[Place, Place] = {}

    @override
    def delete_a_key(self, index: int) -> None:
        """Keys stay: without the directory's list of deleted ones, their balances would be compared for ever."""

    @rule(index=ANY, name=st.sampled_from(ZONES))
    def change_a_zone(self, index: int, name: str | None) -> None:
        account = pick(["one", "other"], index)
        self.do(self.accounts.edit_account(account, {"timezone": name}))
        self.do(self.billing.accounting.close())
        for one in self.do(self.billing.disk.list_accounts()):
            self.zones["account", one.id] = AccountZone(one.zones or ((0, "UTC"),))

    def find_day(self, place: Place) -> UtcDay | LocalDay:
        if place[0] == "key" and place not in self.owners:
            self.owners[place] = "account", self.do(self.accounts.get_stored_key(place[1])).account_id
        zone = self.zones.get(self.owners.get(place, place))
        return parse_day(self.billing.now) if zone is None else zone.find_local_day(int(self.billing.now))

    @override
    def sum_up(self, place: Place, kind: str, period: QuotaPeriod) -> int:
        begin, end = 0, FOR_EVER
        if period in {"daily", "monthly"}:
            day = self.find_day(place)
            begin, end = (day.start_s, day.end_s) if period == "daily" else (day.month_start_s, day.month_end_s)
        return sum(
            movement.nanos
            for movement in self.movements
            if (movement.place, movement.kind) == (place, kind) and begin <= movement.at_s < end
        )

    @override
    def find_reset(self, place: Place) -> float:
        period = self.quotas[place][1]
        if period not in {"daily", "monthly"}:
            return FOR_EVER
        day = self.find_day(place)
        return day.end_s if period == "daily" else day.month_end_s

    @override
    def turn(self, now: float, *, looked: bool = True) -> None:
        self.do(self.billing.set_clock(now))

    @rule(index=ANY)
    def pass_local_midnight(self, index: int) -> None:
        place = pick(self.list_places(), index)
        self.turn(self.find_day(place).end_s)


# On a busy machine the histories take longer than 60 s.
TestTheBooksOfZones = pytest.mark.timeout(400)(ZonedLedgerMachine.TestCase)
TestTheBooksOfZones.settings = settings(
    max_examples=max(1, int(os.environ.get("EXAMPLES", "12")) // 4),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],  # to shrink a history takes longer than a test may
)


@pytest.fixture
def machine() -> Iterator[ZonedLedgerMachine]:
    """The machine for a history in a fixed order; its books must agree at the end, too."""
    machine = ZonedLedgerMachine()
    yield machine
    machine.teardown()


def test_a_credit_of_a_later_moment_counts_in_the_window_that_begins_at_a_change(machine: ZonedLedgerMachine) -> None:
    """A history that the machine has found."""
    steps: list[Callable[[], None]] = [
        lambda: machine.open_accounts(limits=(27, 12), periods=("lifetime", "lifetime")),
        lambda: machine.top_up(index=6245, nanos=25, reference=None),
        lambda: machine.set_balance(index=358, nanos=24, reference="a"),
        lambda: machine.next_day(looked=False),
        lambda: machine.set_balance(index=340780, nanos=2, reference=None),
        lambda: machine.change_a_cap(index=227125, limit=4, period="none"),
        lambda: machine.set_balance(index=18, nanos=23, reference=None),
        machine.flush,
        lambda: machine.set_the_clock_back(seconds=10139),
        lambda: machine.top_up(index=84005, nanos=9, reference="a"),
        lambda: machine.change_a_zone(index=689, name="Australia/Lord_Howe"),
        lambda: machine.pass_local_midnight(index=299),
    ]
    for step in steps:
        step()
        machine.the_books_agree()


@pytest.mark.parametrize("crashes", [False, True], ids=["", "restart"])
@pytest.mark.parametrize("period", ["daily", "monthly"])
@pytest.mark.parametrize("back_s", [3_600, 86_000], ids=["same day", "day before"])
def test_what_was_spent_later_than_the_clock_says_counts_in_every_window_to_come(
    machine: ZonedLedgerMachine, back_s: int, period: Literal["daily", "monthly"], crashes: bool
) -> None:
    """The clock was set back, and the zone changes twice: windows begin between now and what was spent."""

    def check() -> None:
        machine.the_books_agree()
        if crashes:
            machine.crash("release")
            machine.the_books_agree()

    machine.open_accounts(limits=(30, 30), periods=(period, period))
    machine.turn(unix("2027-12-31T23:40"))
    for index, cost in ((0, 9), (1, 12)):  # the second call costs more than its quota has left: an overrun
        machine.admit(index=index, nanos=5)
        machine.settle(index=0, cost=cost)
        machine.top_up(index=index * 2, nanos=-3, reference=None)
        machine.top_up(index=index * 2 + 1, nanos=4, reference=None)
        machine.admit(index=index, nanos=2)
    check()
    machine.set_the_clock_back(seconds=back_s)
    check()
    machine.change_a_zone(index=1, name="Pacific/Auckland")
    check()
    for index in (3, 2, 0, 3):
        machine.pass_local_midnight(index=index)
        check()
        machine.change_a_zone(index=0, name="Europe/Berlin")
        check()
    machine.set_the_clock_back(seconds=86_400)
    check()
    machine.pass_local_midnight(index=1)
    check()


def at(text: str, zone: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def zone_caller(billing: BillingServices, caller: Caller, name: str | None) -> None:
    """Give the caller's account a time zone, as the service of accounts does."""
    zone = billing.balances.zones.get(ACCOUNT.id)
    periods = change_zone(() if zone is None else zone.periods, name, billing.now)
    billing.balances.set_zone(ACCOUNT.id, [caller.key.id], make_zone(periods))


@pytest.mark.parametrize("crashes", [False, True], ids=["", "restart"])
@pytest.mark.parametrize(("day", "hours"), [("2027-03-28", 23), ("2027-10-31", 25), ("2027-06-15", 24)])
async def test_a_daily_quota_is_given_at_each_midnight_of_the_zone(
    billing: BillingServices, day: str, hours: int, crashes: bool
) -> None:
    caller, start_s = caller_of(capped(100, "daily")), at(f"{day}T00:00", "Europe/Berlin")
    billing.balances.zones[ACCOUNT.id] = make_zone(((0, "Europe/Berlin"),))
    await billing.set_clock(start_s - 1)
    await billing.spend(caller, 100)
    for moment_s, ends_s in ((start_s, start_s + hours * 3_600), (start_s + hours * 3_600, None)):
        await billing.set_clock(moment_s)
        await billing.spend(caller, 100)
        with pytest.raises(QuotaExceeded) as caught:
            await billing.admit(caller, call_for(1))
        if ends_s is not None:
            assert caught.value.retry_after_s == hours * 3_600
            await billing.set_clock(ends_s - 1)
            await billing.flush.flush()
            if crashes:
                await billing.crash("charge")
            with pytest.raises(QuotaExceeded):
                await billing.admit(caller, call_for(1))
        assert (await billing.accounting.reconcile())["problems"] == []


async def test_a_change_gives_no_quota_twice_and_keeps_what_is_reserved(billing: BillingServices) -> None:
    caller = caller_of(capped(100, "daily"))
    await billing.set_clock(unix("2027-06-15T10:00"))
    await billing.spend(caller, 40)
    running = await billing.admit(caller, call_for(60))
    zone_caller(billing, caller, "Pacific/Honolulu")  # its midnight is ten hours later
    for moment in ("2027-06-15T10:05", "2027-06-16T09:59:59"):
        await billing.set_clock(unix(moment))
        with pytest.raises(QuotaExceeded):
            await billing.admit(caller, call_for(1))
    billing.settle(running, 50)
    await billing.spend(caller, 10)
    assert (await billing.accounting.reconcile())["problems"] == []
    await billing.set_clock(unix("2027-06-16T10:00"))
    await billing.spend(caller, 100)
    assert (await billing.accounting.reconcile())["problems"] == []


async def test_a_clock_that_is_set_back_over_a_local_midnight_finds_what_was_spent(billing: BillingServices) -> None:
    caller, midnight_s = caller_of(capped(100, "daily")), at("2027-06-15T00:00", "Europe/Berlin")
    billing.balances.zones[ACCOUNT.id] = make_zone(((0, "Europe/Berlin"),))
    for moment_s in (midnight_s - 60, midnight_s, midnight_s + 86_400):
        await billing.set_clock(moment_s)
        await billing.spend(caller, 100)
    await billing.flush.flush()
    for crashes in (False, True):
        if crashes:
            await billing.crash("release")
        for moment_s in (midnight_s + 86_400, midnight_s, midnight_s - 60, midnight_s):
            await billing.set_clock(moment_s)
            with pytest.raises(QuotaExceeded):
                await billing.admit(caller, call_for(1))
            assert (await billing.accounting.reconcile())["problems"] == []


async def test_a_zone_that_changes_while_a_day_is_read_decides_what_is_read(tmp_path: Path) -> None:
    disk = SlowDisk()
    billing, caller = BillingServices(tmp_path, disk=disk), caller_of(capped(100, "daily"))
    for day, nanos in ((14, 30), (15, 100), (16, 1), (17, 1)):
        await billing.set_clock(unix(f"2027-06-{day}T20:00"))
        await billing.spend(caller, nanos)
    await billing.flush.flush()
    billing.now = unix("2027-06-15T13:00")
    disk.go.clear()
    with pytest.raises(StoreUnavailable):
        await billing.admit(caller, call_for(1))
    await disk.waiting.wait()
    billing.balances.set_zone(ACCOUNT.id, [caller.key.id], make_zone(((0, "Asia/Kathmandu"),)))  # 5:45 hours earlier
    report = asyncio.create_task(billing.accounting.reconcile())  # waits until the ledger has been read
    await asyncio.sleep(0)
    disk.go.set()
    assert (await report)["problems"] == []
    await billing.spend(caller, 70)
    with pytest.raises(QuotaExceeded):
        await billing.admit(caller, call_for(1))
    assert (await billing.accounting.reconcile())["problems"] == []
    billing.close()
