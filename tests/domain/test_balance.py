"""A cap: what fits under it, what is above it, when it begins anew, and who is told."""

from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.balance import (
    DAY_S,
    UNLIMITED_QUOTA,
    Balance,
    Charge,
    Owner,
    PeriodWindow,
    Quota,
    QuotaPeriod,
    Reservation,
    UtcDay,
    parse_day,
    reserve_all,
)
from gateway.errors import QuotaExceeded
from tests.support.table_rows import table_rows

NOON = datetime(2027, 5, 15, 12, tzinfo=UTC)
TODAY = parse_day(NOON.timestamp())
TOMORROW = parse_day(TODAY.end_s)
NEXT_MONTH = parse_day(TODAY.month_end_s)
PERIODS: tuple[QuotaPeriod, ...] = ("lifetime", "daily", "monthly")
MOMENTS = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


def balance_of(
    limit: int | None = None, period: QuotaPeriod = "lifetime", owner: Owner = "key", **more: Any
) -> Balance:
    balance = Balance(owner)
    balance.set_quota(Quota(limit, period if limit is not None else "none", **more), TODAY)
    return balance


def hold(balances: list[Balance], nanos: int, day: UtcDay = TODAY, now_s: float | None = None) -> Reservation:
    return reserve_all(balances, nanos, day, day.start_s + 43_200 if now_s is None else now_s)


def spend(balance: Balance, nanos: int, day: UtcDay = TODAY) -> int:
    """Spend without having held; returns the overrun."""
    return balance.settle(0, nanos, day)


def refuse(balances: list[Balance], nanos: int, day: UtcDay = TODAY, now_s: float | None = None) -> QuotaExceeded:
    held = [balance.held_nanos for balance in balances]
    with pytest.raises(QuotaExceeded) as caught:
        hold(balances, nanos, day, now_s)
    assert [balance.held_nanos for balance in balances] == held
    return caught.value


# days and months


@given(MOMENTS)
def test_a_day_and_its_month_are_the_calendars(moment: datetime) -> None:
    day = parse_day(moment.timestamp())
    start = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    first = start.replace(day=1)
    following = (first + timedelta(days=32)).replace(day=1)
    assert (day.start_s, day.end_s) == (start.timestamp(), (start + timedelta(days=1)).timestamp())
    assert (day.month_start_s, day.month_end_s) == (first.timestamp(), following.timestamp())
    generation = datetime(1970, 1, 1, tzinfo=UTC)
    assert (day.number, day.month_number, day.next_month_number) == (
        (start - generation).days,
        (first - generation).days,
        (following - generation).days,
    )


@given(MOMENTS)
def test_a_day_holds_its_first_moment_and_not_its_end(moment: datetime) -> None:
    day = parse_day(moment.timestamp())
    assert day.contains(moment.timestamp())
    assert day.contains(day.start_s)
    assert day.contains(day.end_s - 0.001)
    assert not day.contains(day.end_s)
    assert not day.contains(day.start_s - 0.001)
    assert parse_day(day.end_s).start_s == day.end_s


@table_rows(
    ("year", "month", "day", "month_days"),
    [
        (2027, 12, 31, 31), (2028, 1, 1, 31), (2028, 2, 29, 29), (2028, 2, 1, 29), (2027, 2, 28, 28),
        (2000, 2, 29, 29), (2100, 2, 28, 28), (2027, 4, 30, 30),
    ],
)  # fmt: skip
def test_months_have_their_length(year: int, month: int, day: int, month_days: int) -> None:
    read = parse_day(datetime(year, month, day, 23, 59, 59, tzinfo=UTC).timestamp())
    assert read.month_end_s - read.month_start_s == month_days * DAY_S
    assert datetime.fromtimestamp(read.month_start_s, UTC).day == datetime.fromtimestamp(read.month_end_s, UTC).day == 1


def test_a_window_keeps_the_period_it_runs_in_and_the_one_before() -> None:
    window = PeriodWindow()
    window.get_counter(1).spent_nanos = 10
    window.get_counter(2).spent_nanos = 20
    assert [window.get_counter(start).spent_nanos for start in (2, 1, 2, 1)] == [20, 10, 20, 10]
    window.get_counter(2)
    assert window.get_counter(3).spent_nanos == 0
    assert window.get_counter(2).spent_nanos == 20


# what fits


@table_rows("period", PERIODS)
def test_the_last_nano_fits_and_one_more_does_not(period: QuotaPeriod) -> None:
    balance = balance_of(100, period)
    spend(balance, 40)
    hold([balance], 30)
    assert balance.find_room(TODAY) == 30
    refuse([balance], 31)
    made = hold([balance], 30)
    assert balance.find_room(TODAY) == 0
    refuse([balance], 1)
    made.settle(29, TODAY)
    assert balance.find_room(TODAY) == 1
    hold([balance], 1)


@table_rows("quota", [UNLIMITED_QUOTA, Quota(5, "none"), Quota(None, "daily"), Quota(None, "lifetime")])
def test_without_a_cap_anything_fits_and_there_is_no_room_to_speak_of(quota: Quota) -> None:
    balance = Balance("key")
    balance.set_quota(quota, TODAY)
    assert not quota.capped
    assert hold([balance], 10**18).settle(10**18, TODAY) == Charge(10**18, 0)
    assert (balance.find_room(TODAY), balance.find_balance(TODAY)) == (None, None)


@table_rows("period", PERIODS)
def test_a_cap_of_nothing_lets_only_what_is_free_pass(period: QuotaPeriod) -> None:
    balance = balance_of(0, period)
    refuse([balance], 1)
    assert hold([balance], 0).nanos == 0
    spend(balance, 50)
    assert hold([balance], 0).settle(0, TODAY) == Charge(0, 0)


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 60))
def test_both_balances_have_room_or_nothing_is_held(one: int, other: int, nanos: int) -> None:
    balances = [balance_of(one, "daily"), balance_of(other, "lifetime", "account")]
    if nanos <= min(one, other):
        hold(balances, nanos)
        assert [balance.held_nanos for balance in balances] == [nanos, nanos]
    else:
        refuse(balances, nanos)


@table_rows("period", PERIODS)
def test_a_period_counts_its_own_spending_alone(period: QuotaPeriod) -> None:
    balance = balance_of(100, period)
    spend(balance, 60)
    rooms = [balance.find_room(day) for day in (TODAY, TOMORROW, NEXT_MONTH)]
    assert rooms == {"lifetime": [40, 40, 40], "daily": [40, 100, 100], "monthly": [40, 40, 100]}[period]


@given(st.sampled_from(PERIODS), st.sampled_from(PERIODS))
def test_days_and_months_are_counted_whatever_the_cap_was(before: QuotaPeriod, after: QuotaPeriod) -> None:
    balance = balance_of(1_000, before)
    spend(balance, 1, parse_day(TODAY.month_start_s - 1))
    spend(balance, 20, parse_day(TODAY.start_s - 1))
    spend(balance, 300, TODAY)
    balance.set_quota(Quota(1_000, after), TODAY)
    assert balance.find_counter(TODAY).spent_nanos == {"lifetime": 321, "monthly": 320, "daily": 300}[after]


def test_a_clock_that_is_set_back_over_midnight_finds_the_day_as_it_was() -> None:
    balance = balance_of(100, "daily")
    spend(balance, 70, TODAY)
    spend(balance, 20, TOMORROW)
    assert [balance.find_room(day) for day in (TODAY, TOMORROW, TODAY)] == [30, 80, 30]


# settling


def test_a_hold_resolves_once_and_the_second_answer_is_the_first() -> None:
    balances = [balance_of(100), balance_of(100, "daily", "account")]
    made = hold(balances, 50)
    first = made.settle(30, TODAY)
    assert made.settle(45, TOMORROW) is first
    assert first == Charge(30, 0)
    assert [(balance.held_nanos, balance.lifetime.spent_nanos) for balance in balances] == [(0, 30), (0, 30)]


@table_rows(("cost", "overrun"), [(49, 0), (50, 0), (51, 1), (90, 40)])
def test_what_is_spent_beyond_the_cap_is_on_record(cost: int, overrun: int) -> None:
    balance = balance_of(100)
    spend(balance, 50)
    assert hold([balance], 50).settle(cost, TODAY) == Charge(cost, overrun)
    assert balance.find_counter(TODAY).overrun_nanos == overrun
    assert balance.find_room(TODAY) == 50 - cost


def test_an_overrun_is_recorded_once_and_only_its_increase_is_the_next_ones() -> None:
    balance = balance_of(100)
    assert [spend(balance, 130), spend(balance, 5), spend(balance, 0)] == [30, 5, 0]
    balance.add_credit(40, TODAY)
    assert (balance.find_counter(TODAY).overrun_nanos, balance.find_room(TODAY)) == (0, 5), "it is covered now"
    assert spend(balance, 35) == 30, "nor does what was covered hide the next one"


def test_of_two_balances_the_larger_overrun_is_the_charges() -> None:
    balances = [balance_of(10), balance_of(4, "daily", "account"), balance_of()]
    assert hold(balances, 0).settle(12, TODAY) == Charge(12, 8)
    assert [balance.find_counter(TODAY).overrun_nanos for balance in balances] == [2, 8, 0]


def test_one_call_may_take_what_others_hold_and_that_is_an_overrun() -> None:
    balance = balance_of(100)
    other = hold([balance], 60)
    assert hold([balance], 40).settle(50, TODAY) == Charge(50, 10)
    assert other.settle(60, TODAY) == Charge(60, 0)
    assert balance.find_counter(TODAY).overrun_nanos == 10


@table_rows(("wanted", "held"), [(5, 10), (10, 10), (30, 30), (200, 70)])
def test_a_hold_is_extended_as_far_as_the_smaller_balance_has_it(wanted: int, held: int) -> None:
    roomy, tight, open_ = balance_of(100), balance_of(70), balance_of(owner="account")
    made = hold([roomy, tight, open_], 10)
    assert made.left_nanos == 60
    made.extend(wanted)
    assert (made.nanos, made.nanos - made.extra_nanos) == (held, 10)
    assert [balance.held_nanos for balance in (roomy, tight, open_)] == [held] * 3
    assert made.settle(3, TODAY).overrun_nanos == 0
    assert [balance.held_nanos for balance in (roomy, tight, open_)] == [0] * 3


def test_a_key_that_has_too_little_does_not_let_its_account_run_over() -> None:
    """Twenty keys with a limit of 10 would spend 20 times the cost of a request that 10 do not cover."""
    account, keys = balance_of(90, owner="account"), [balance_of(10) for _ in range(20)]
    made = []
    for key in keys:
        if account.find_room(TODAY):
            made.append(hold([key, account], 2))
            made[-1].extend(40)
            made[-1].extend_each(40, TODAY)
    assert [each.nanos for each in made] == [10, 10, 10]
    assert [key.held_nanos for key in keys[:4]] == [10, 10, 10, 0]
    assert account.held_nanos == 90
    assert [each.settle(40, TODAY).overrun_nanos for each in made] == [30, 30, 30]
    assert (account.held_nanos, account.find_counter(TODAY).spent_nanos, account.find_counter(TODAY).overrun_nanos) == (
        0,
        120,
        30,
    )


def test_without_a_cap_nothing_more_is_held() -> None:
    made = hold([balance_of(), balance_of(owner="account")], 10)
    assert made.left_nanos is None
    made.extend(100)
    assert made.nanos == 10


def test_a_hold_over_midnight_is_spent_on_the_day_it_ends() -> None:
    balance = balance_of(100, "daily")
    made = hold([balance], 80)
    assert (balance.find_room(TOMORROW), balance.find_room(TODAY)) == (20, 20)
    made.settle(70, TOMORROW)
    assert (balance.find_room(TOMORROW), balance.find_room(TODAY)) == (30, 100)


def test_a_hold_over_the_end_of_the_month_is_spent_in_the_month_it_ends() -> None:
    balance = balance_of(100, "monthly")
    made = hold([balance], 80)
    made.settle(70, NEXT_MONTH)
    assert (balance.find_room(NEXT_MONTH), balance.find_counter(NEXT_MONTH).spent_nanos) == (30, 70)
    assert balance.lifetime.spent_nanos == 70


def test_what_yesterdays_credit_let_through_is_above_todays_cap_and_on_record() -> None:
    balance = balance_of(100, "daily")
    balance.add_credit(50, TODAY)
    hold([balance], 150)
    assert balance.find_room(TOMORROW) == -50
    assert balance.find_counter(TOMORROW).overrun_nanos == 50


# changing a cap, and credits


def test_a_lowered_cap_leaves_an_overrun_on_record_and_no_room() -> None:
    balance = balance_of(100)
    spend(balance, 50)
    made = hold([balance], 40)
    balance.set_quota(Quota(30, "lifetime"), TODAY)
    assert (balance.find_room(TODAY), balance.find_counter(TODAY).overrun_nanos) == (-60, 60)
    refuse([balance], 1)
    assert made.settle(40, TODAY) == Charge(40, 0)
    balance.set_quota(Quota(91, "lifetime"), TODAY)
    hold([balance], 1)


def test_the_same_cap_again_changes_nothing() -> None:
    balance = balance_of(100)
    spend(balance, 130)
    before = attrs.evolve(balance.find_counter(TODAY))
    balance.set_quota(Quota(100, "lifetime"), TODAY)
    assert balance.find_counter(TODAY) == before


@table_rows("period", PERIODS)
def test_a_credit_is_for_its_period(period: QuotaPeriod) -> None:
    balance = balance_of(100, period)
    balance.add_credit(11, TODAY)
    rooms = [balance.find_room(day) for day in (TODAY, TOMORROW, NEXT_MONTH)]
    assert rooms == {"lifetime": [111, 111, 111], "daily": [111, 100, 100], "monthly": [111, 111, 100]}[period]


def test_money_that_is_taken_away_leaves_what_is_held_above_the_cap() -> None:
    balance = balance_of(100)
    hold([balance], 80)
    balance.add_credit(-30, TODAY)
    assert (balance.find_room(TODAY), balance.find_balance(TODAY), balance.find_counter(TODAY).overrun_nanos) == (
        -10,
        70,
        10,
    )


def test_a_balance_is_what_is_left_held_or_not() -> None:
    balance = balance_of(100)
    spend(balance, 25)
    hold([balance], 70)
    assert (balance.find_balance(TODAY), balance.find_room(TODAY)) == (75, 5)


STEPS = st.lists(
    st.tuples(st.sampled_from(["hold", "settle", "credit", "limit", "roll"]), st.integers(-40, 120)), max_size=40
)


@given(st.sampled_from(PERIODS), st.integers(0, 100), STEPS)
def test_at_every_moment_what_is_spent_and_held_is_covered(
    period: QuotaPeriod, limit: int, steps: list[tuple[str, int]]
) -> None:
    balance, day, held = balance_of(limit, period), TODAY, list[Reservation]()
    for step, amount in steps:
        if step == "hold" and amount >= 0 and amount <= (balance.find_room(day) or 0):
            held.append(hold([balance], amount, day))
        elif step == "settle" and held and amount >= 0:
            held.pop().settle(amount, day)
        elif step == "credit":
            balance.add_credit(amount, day)
        elif step == "limit":
            limit = max(0, amount)
            balance.set_quota(Quota(limit, period), day)
        elif step == "roll":
            day = parse_day(day.end_s)
        tally = balance.find_counter(day)
        assert tally.spent_nanos >= 0
        assert balance.held_nanos == sum(made.nanos for made in held)
        assert tally.spent_nanos + balance.held_nanos <= limit + tally.credit_nanos + tally.overrun_nanos


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["hold", "settle", "credit", "quota"]),
            st.integers(-40, 120),
            st.sampled_from([TODAY, TOMORROW]),
            st.sampled_from(PERIODS),
        ),
        max_size=40,
    )
)
def test_whatever_the_order_of_days_and_quotas_its_sums_are_those_of_its_calls(
    steps: list[tuple[str, int, UtcDay, QuotaPeriod]],
) -> None:
    balance, quota, held = balance_of(50, "daily"), Quota(50, "daily"), list[Reservation]()
    sums = {(start, what): 0 for start in (0, TODAY.start_s, TOMORROW.start_s) for what in ("spent", "credit")}
    for step, amount, moment, period in steps:
        day = attrs.evolve(moment)  # as good as the one before, and another object
        if step == "hold" and 0 <= amount <= (balance.find_room(day) or 0):
            held.append(hold([balance], amount, day))
        elif step == "settle" and held and amount >= 0:
            tally, made = balance.find_counter(day), held.pop()
            covered = (quota.limit_nanos or 0) + tally.credit_nanos + tally.overrun_nanos
            above = max(0, tally.spent_nanos + amount + balance.held_nanos - made.nanos - covered)
            assert made.settle(amount, day) == Charge(amount, above)
            sums[0, "spent"] += amount
            sums[day.start_s, "spent"] += amount
        elif step == "credit":
            balance.add_credit(amount, day)
            sums[0, "credit"] += amount
            sums[day.start_s, "credit"] += amount
        elif step == "quota":
            quota = Quota(max(0, amount), period)
            balance.set_quota(quota, day)
        start = day.start_s if quota.period == "daily" else 0  # both days are of one month
        left = (quota.limit_nanos or 0) + sums[start, "credit"] - sums[start, "spent"]
        assert (balance.find_balance(day), balance.held_nanos) == (left, sum(made.nanos for made in held))
        assert (balance.find_room(day) or 0) + balance.find_counter(day).overrun_nanos >= 0


# who is told, and what


def test_the_more_final_end_is_told_a_lifetime_before_a_month_before_a_day() -> None:
    day, month, life = balance_of(0, "daily"), balance_of(0, "monthly", "account"), balance_of(0, "lifetime", "account")
    assert "monthly quota of the account" in refuse([day, month], 1).message
    assert "monthly quota of the account" in refuse([month, day], 1).message
    assert "lifetime quota of the account" in refuse([day, life], 1).message
    assert "lifetime quota of the account" in refuse([life, month], 1).message


def test_of_two_that_end_together_the_key_is_told() -> None:
    message = refuse([balance_of(0, "daily"), balance_of(0, "daily", "account")], 1).message
    assert message == "The daily quota of this API key is used up"


def test_a_balance_with_room_is_not_told_however_final_it_is() -> None:
    assert (
        "daily quota of this API key"
        in refuse([balance_of(0, "daily"), balance_of(5, "lifetime", "account")], 5).message
    )


def test_on_the_last_day_of_a_month_both_end_together_and_the_key_is_told() -> None:
    last = parse_day(TODAY.month_end_s - 1)
    error = refuse([balance_of(0, "daily"), balance_of(0, "monthly", "account")], 1, last, last.end_s - 10)
    assert ("this API key" in error.message, error.retry_after_s) == (True, 10)


@table_rows(
    ("period", "status", "expected"),
    [
        ("lifetime", None, 403), ("lifetime", 429, 429), ("lifetime", 403, 403),
        ("daily", None, 429), ("daily", 403, 403), ("monthly", None, 429), ("monthly", 403, 403),
    ],
)  # fmt: skip
def test_a_lifetime_is_forbidden_a_period_too_many_and_the_status_may_be_set(
    period: QuotaPeriod, status: Any, expected: int
) -> None:
    error = refuse([balance_of(0, period, status=status)], 1)
    assert (error.status, error.public_code, error.should_retry) == (expected, "insufficient_quota", False)
    assert (error.retry_after_s is None) == (period == "lifetime")


@table_rows(
    ("period", "now", "seconds"),
    [
        ("daily", "2027-05-15T00:00:00", DAY_S),
        ("daily", "2027-05-15T23:59:59", 1),
        ("daily", "2027-05-15T23:59:58.000001", 2),
        ("daily", "2027-05-15T23:59:59.999999", 1),
        ("daily", "2027-12-31T23:00:00", 3_600),
        ("daily", "2028-02-29T12:00:00", 12 * 3_600),
        ("monthly", "2027-05-01T00:00:00", 31 * DAY_S),
        ("monthly", "2027-12-01T00:00:00", 31 * DAY_S),
        ("monthly", "2027-12-31T23:59:59.500000", 1),
        ("monthly", "2028-02-01T00:00:00", 29 * DAY_S),
        ("monthly", "2028-02-28T12:00:00", 36 * 3_600),
        ("monthly", "2027-02-28T12:00:00", 12 * 3_600),
        ("monthly", "2028-02-29T23:59:59", 1),
    ],
)
def test_the_wait_that_is_told_is_to_the_second_of_the_reset(period: QuotaPeriod, now: str, seconds: int) -> None:
    now_s = datetime.fromisoformat(f"{now}Z").timestamp()
    day = parse_day(now_s)
    balance = balance_of(0, period)
    error = refuse([balance], 1, day, now_s)
    assert error.retry_after_s == seconds
    reset = balance.find_reset(day)
    assert reset is not None
    assert seconds - 1 < reset - now_s <= seconds


def test_what_is_used_up_is_told_so_and_what_does_not_suffice_how_much_there_is() -> None:
    balance = balance_of(5_000_000)
    assert refuse([balance], 7_500_000).message == (
        "The lifetime quota of this API key does not cover this request: it may cost up to $0.0075, and $0.005 is left"
    )
    hold([balance], 4_000_000)
    assert refuse([balance], 7_500_000).message.endswith(
        "it may cost up to $0.0075, and $0.005 is left, $0.004 of it held for running requests"
    )
    hold([balance], 1_000_000)
    assert refuse([balance], 1).message.endswith("$0.005 is left, $0.005 of it held for running requests")
    spend(balance, 5_000_000)
    assert refuse([balance], 1).message == "The lifetime quota of this API key is used up"
