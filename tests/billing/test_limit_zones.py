"""Limits in the time zones of many accounts: what is looked up for each, and what a change of a zone makes new."""

from decimal import Decimal

import pytest
from typing_extensions import override

from gateway.billing.limit_filler import list_counting_starts
from gateway.billing.limit_spec import LimitSpec
from gateway.billing.limit_subjects import find_spending, list_highest
from gateway.billing.limits import SpendingLimits
from gateway.billing.write_queue import WriteQueue
from gateway.domain.account_zone import AccountZone
from gateway.domain.limit_window import Window
from gateway.storage.limit_counters import LimitCounters
from gateway.storage.limit_fills import LimitFill, LimitFillRepository
from tests.support.billing_services import NOON
from tests.support.repositories import LazyDatabase

TOKYO, NEW_YORK = ((0, "Asia/Tokyo"),), ((0, "America/New_York"),)
DAY_S, HOUR_S = 86_400, 3_600


class CountedZone(AccountZone):
    """A time zone that counts how many windows are looked up in it."""

    lookups = 0

    @override
    def find(self, window: Window, now_s: float) -> tuple[int, int]:
        self.lookups += 1
        return super().find(window, now_s)


@pytest.fixture
def database() -> LazyDatabase:
    return LazyDatabase()


@pytest.fixture
def spending(database: LazyDatabase) -> SpendingLimits:
    """Two limits of each key, by day."""
    spending = SpendingLimits(LimitCounters(database), WriteQueue(), lambda: NOON)
    specs = [LimitSpec(name, of="key", usd=Decimal(1), window="day") for name in ("one", "two")]
    spending.replace([spec.limit() for spec in specs])
    return spending


async def test_a_look_at_one_key_asks_once_for_a_zone_of_many_accounts_and_makes_nothing(
    database: LazyDatabase, spending: SpendingLimits
) -> None:
    zone, first, other = CountedZone(TOKYO), *spending.limits
    for account_id in range(1, 51):
        spending.set_zone(account_id, [1_000 + account_id], zone)
    assert zone.lookups == 0
    fills = [LimitFill(limit.counter, (), None, int(NOON), 1) for limit in spending.limits]
    await LimitFillRepository(database).put(fills, [])
    starts = await list_counting_starts(database, spending, NOON, [first])
    assert list(starts) == [first.counter]
    assert zone.lookups == 1
    assert (
        spending.find_earliest_start(first, NOON + 1) == spending.find_earliest_start(other, NOON) == NOON - 21 * HOUR_S
    )
    assert zone.lookups == 1, "one window of a kind is looked up as long as it holds"
    (line,) = await find_spending(spending, first, LimitCounters(database), NOON, ["1001"])
    assert (line.start_s, line.resets_s) == (NOON - 21 * HOUR_S, NOON + 3 * HOUR_S)
    await list_highest(spending, first, LimitCounters(database), NOON, 5)
    assert len(spending.list_books()) == len(spending.limits)
    assert spending.find_earliest_start(first, NOON + 3 * HOUR_S) == NOON - 12 * HOUR_S  # that of the other accounts


def test_the_filler_hears_of_another_zone_and_of_no_zone_that_is_the_same(spending: SpendingLimits) -> None:
    limit = spending.limits[0]
    for periods, differs, start_s in (
        (TOKYO, True, NOON - 21 * HOUR_S),
        (TOKYO, False, NOON - 21 * HOUR_S),
        (NEW_YORK, True, NOON - 12 * HOUR_S),
    ):
        spending.changed.clear()
        spending.set_zone(1, [7], AccountZone(periods))
        assert spending.changed.is_set() is differs
        assert spending.find_earliest_start(limit, NOON) == start_s
    spending.changed.clear()
    spending.drop_account(1)
    assert spending.changed.is_set()


def test_a_day_is_found_once_for_all_its_moments() -> None:
    zone = CountedZone(TOKYO)
    days = [zone.find_local_day(int(NOON) + second) for second in (0, 1, 3 * HOUR_S - 1)]
    assert days[0] is days[1] is days[2]
    assert zone.lookups == 2  # the day and the month
    assert zone.find_local_day(int(NOON) + 3 * HOUR_S).start_s == days[0].end_s
    assert zone.find_local_day(int(NOON)) == days[0]
