"""When a limit is reached: by the weeks before, by the window alone, and that neither contradicts itself."""

from datetime import UTC, datetime
from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.account import Account, ApiKey
from gateway.domain.balance import DAY_S, Balance, Quota, QuotaPeriod, parse_day
from gateway.domain.forecast import (
    HISTORY_WEEKS,
    HOUR_S,
    MAX_AHEAD_S,
    WEEK_S,
    LimitUse,
    SpendingHistory,
    build_history,
    compute_anomaly_bound,
    forecast,
    is_burning,
    list_history_slots,
    measure_limit,
)
from tests.support.table_rows import table_rows

USD = 10**9


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


MONDAY = at("2026-11-30")
"""The last day of its month."""


def day_use(spent_usd: float, limit_usd: float = 10, day_s: int = MONDAY) -> LimitUse:
    return LimitUse("key acme/app", int(limit_usd * USD), int(spent_usd * USD), day_s, day_s + DAY_S, 1, 2)


def month_use(spent_usd: float, limit_usd: float, start: str, end: str) -> LimitUse:
    return LimitUse("account acme", int(limit_usd * USD), int(spent_usd * USD), at(start), at(end), 1)


def weekdays(now_s: int, usd_by_weekday: dict[int, float], weeks: int = HISTORY_WEEKS) -> SpendingHistory | None:
    """The history of daily costs by weekday, 0 a Monday, in the last ``weeks`` weeks."""
    today = now_s // DAY_S
    days = range(today - 7 * weeks, today)
    costs = {day: int(usd_by_weekday.get((day + 3) % 7, 0) * USD) for day in days}
    return build_history(DAY_S, costs, now_s)


def test_mondays_look_like_mondays() -> None:
    now_s = at("2026-11-01")  # a Sunday
    history = weekdays(now_s, {0: 4, 1: 2, 2: 2, 3: 2, 4: 2})
    assert history is not None
    assert [history.find_average(now_s // DAY_S + ahead) // USD for ahead in range(9)] == [0, 4, 2, 2, 2, 2, 0, 0, 4]
    month = month_use(0, 100, "2026-11-01", "2026-12-01")
    result = forecast(month, history, now_s)
    # Five Mondays and four of each other working day: 20 + 4 * 8.
    assert (result.basis, result.reached_s, result.expected_nanos) == ("past_weeks", None, 52 * USD)
    (reached_s,) = {forecast(attrs.evolve(month, limit_nanos=14 * USD), history, now_s).reached_s}
    assert reached_s == at("2026-11-09 12:00")  # a week of 12, and half a Monday


def test_a_day_repeats_the_hours_of_its_weekday() -> None:
    now_s = at("2026-11-30 12:30")
    slots = list_history_slots(day_use(0), now_s)
    assert slots.slot_s == HOUR_S
    assert len(slots.numbers) == len(set(slots.numbers)) == HISTORY_WEEKS * 24
    assert {datetime.fromtimestamp(number * HOUR_S, UTC).weekday() for number in slots.numbers} == {0}
    assert max(slots.numbers) * HOUR_S == at("2026-11-23 23:00")
    costs = {number: USD for number in slots.numbers if 12 <= number % 24 < 18}
    history = build_history(slots.slot_s, costs, now_s)
    result = forecast(day_use(3), history, now_s)
    assert result.expected_nanos == int(8.5 * USD)
    assert result.reached_s is None
    assert forecast(day_use(3, 6), history, now_s).reached_s == at("2026-11-30 15:30")


@table_rows(
    "first_cost, basis",
    [
        ("2026-11-29", "this_window"),
        ("2026-11-24", "this_window"),
        ("2026-11-23", "past_weeks"),
        ("2026-10-12", "past_weeks"),
    ],
)
def test_less_than_a_week_of_history_is_said(first_cost: str, basis: str) -> None:
    now_s = at("2026-11-30 06:00")
    history = build_history(DAY_S, {at(first_cost) // DAY_S: USD}, now_s)
    month = month_use(29.25, 30, "2026-11-01", "2026-12-01")
    result = forecast(month, history, now_s)
    assert result.basis == basis
    if basis == "this_window":  # one dollar a day goes on
        assert result.expected_nanos == 30 * USD
        assert result.reached_s == at("2026-12-01")


def test_the_average_counts_only_from_the_first_cost_on() -> None:
    now_s = at("2026-11-30 06:00")
    monday = MONDAY // DAY_S
    history = build_history(DAY_S, {monday - 14: 6 * USD, monday - 7: 2 * USD}, now_s)
    assert history is not None
    assert history.find_average(monday) == 4 * USD
    assert history.find_average(monday + 1) == 0
    assert build_history(DAY_S, {}, now_s) is None
    assert build_history(DAY_S, {monday - 7: 0}, now_s) is None


@table_rows("month, expected", [("2026-02", 28), ("2028-02", 29), ("2026-11", 30), ("2026-12", 31)])
def test_a_month_is_as_long_as_the_calendar_says(month: str, expected: int) -> None:
    now_s = at(f"{month}-01 00:00")
    account = Account(1, "acme", quota=Quota(100 * USD, "monthly"))
    use = measure_limit("account acme", account, Balance("account"), parse_day(now_s))
    assert use is not None
    result = forecast(use, weekdays(now_s, dict.fromkeys(range(7), 1.0)), now_s)
    assert result.expected_nanos == expected * USD


@table_rows(
    "period, started, ended",
    [
        ("daily", "2026-11-30 00:00", "2026-12-01 00:00"),
        ("monthly", "2026-11-01 00:00", "2026-12-01 00:00"),
        ("lifetime", "2026-01-01 00:00", None),
    ],
)
def test_a_quota_is_measured_with_its_credits_and_its_period(
    period: QuotaPeriod, started: str, ended: str | None
) -> None:
    day = parse_day(at("2026-11-30 12:00"))
    balance = Balance("key")
    key = ApiKey(2, 1, "app", b"", "1234", created_ms=at("2026-01-01") * 1000)
    assert measure_limit("key acme/app", key, balance, day) is None
    key = attrs.evolve(key, quota=Quota(10 * USD, period))
    balance.settle(0, 3 * USD, day)
    balance.add_credit(5 * USD, day)
    balance.hold(USD)
    use = measure_limit("key acme/app", key, balance, day)
    ended_s = None if ended is None else at(ended)
    assert use == LimitUse("key acme/app", 15 * USD, 3 * USD, at(started), ended_s, 1, 2)
    assert use.left_nanos == 12 * USD


def test_a_limit_without_windows_is_forecast_for_a_year() -> None:
    now_s = at("2026-11-30")
    use = LimitUse("key acme/app", 100 * USD, 30 * USD, at("2026-11-20"), None, 1, 2)
    by_itself = forecast(use, None, now_s)
    assert (by_itself.basis, by_itself.expected_nanos) == ("this_window", None)
    assert by_itself.reached_s is not None
    assert abs(by_itself.reached_s - (now_s + 70 * DAY_S / 3)) < 60  # three dollars a day
    history = weekdays(now_s, dict.fromkeys(range(7), 0.5))
    assert forecast(use, history, now_s).reached_s == now_s + 140 * DAY_S
    assert forecast(attrs.evolve(use, limit_nanos=1000 * USD), history, now_s).reached_s is None


def test_the_first_minutes_of_a_window_say_little() -> None:
    # A dollar in the first minute of a day is not sixty dollars an hour.
    result = forecast(day_use(1, 1000), None, MONDAY + 60)
    assert result.expected_nanos is not None
    assert result.expected_nanos < 101 * USD


COSTS = st.integers(0, 50 * USD)


@st.composite
def moments(draw: Any) -> tuple[LimitUse, SpendingHistory | None, int]:
    """A limit in a window of an hour to a quarter, or without windows, with its history, and a moment in it."""
    length_s = draw(st.sampled_from([HOUR_S, 5 * HOUR_S, DAY_S, WEEK_S, 28 * DAY_S, 31 * DAY_S, 92 * DAY_S, None]))
    started_s = draw(st.integers(0, 2**31)) // HOUR_S * HOUR_S
    now_s = started_s + draw(st.integers(0, (length_s or WEEK_S) - 1))
    ended_s = None if length_s is None else started_s + length_s
    use = LimitUse("x", draw(st.integers(0, 5000 * USD)), draw(st.integers(0, 5000 * USD)), started_s, ended_s)
    slot_s = HOUR_S if length_s is not None and length_s <= DAY_S else DAY_S
    averages = draw(st.lists(COSTS, min_size=7, max_size=7)) * (DAY_S // slot_s)
    return use, draw(st.none() | st.just(SpendingHistory(slot_s, averages))), now_s


@given(moments())
def test_a_limit_is_reached_within_its_window_exactly_if_more_is_expected(
    moment: tuple[LimitUse, SpendingHistory | None, int],
) -> None:
    use, history, now_s = moment
    result = forecast(use, history, now_s)
    end_s = now_s + MAX_AHEAD_S if use.ended_s is None else use.ended_s
    assert result.reached_s is None or now_s <= result.reached_s <= end_s
    if use.spent_nanos >= use.limit_nanos:
        assert result.reached_s == now_s
    if result.expected_nanos is not None:
        assert result.expected_nanos >= use.spent_nanos
        assert (result.reached_s is not None) == (result.expected_nanos >= use.limit_nanos)


@given(moments(), st.integers(0, 100 * USD))
def test_a_higher_limit_is_reached_no_sooner_and_more_spending_no_later(
    moment: tuple[LimitUse, SpendingHistory | None, int], more_nanos: int
) -> None:
    use, history, now_s = moment
    never = float("inf")

    def reach(limit_use: LimitUse) -> float:
        reached_s = forecast(limit_use, history, now_s).reached_s
        return never if reached_s is None else reached_s

    assert reach(attrs.evolve(use, limit_nanos=use.limit_nanos + more_nanos)) >= reach(use)
    assert reach(attrs.evolve(use, spent_nanos=use.spent_nanos + more_nanos)) <= reach(use)


@given(st.dictionaries(st.integers(-49, -1), COSTS), st.integers(0, DAY_S - 1))
def test_an_average_is_between_the_lowest_and_the_highest_of_its_weekday(costs: dict[int, int], second: int) -> None:
    today = MONDAY // DAY_S
    history = build_history(DAY_S, {today + back: nanos for back, nanos in costs.items()}, MONDAY + second)
    first = min((back for back, nanos in costs.items() if nanos), default=0)
    assert (history is None) == (first > -7)
    if history is not None:
        for ahead in range(7):
            same = [costs.get(back, 0) for back in range(ahead - 49, 0, 7) if back >= first]
            assert min(same) <= history.find_average(today + ahead) <= max(same)


@table_rows(
    "spent, hour_usd, now, expected",
    [
        # Of ten dollars, at noon: twelve hours are left, so what is left must not go within three.
        (4, 2.1, "12:00", True),
        (4, 2.0, "12:00", False),
        (4, 1.0, "12:00", False),
        (9, 0.4, "12:00", True),
        (9, 0.3, "12:00", False),
        (4, 2.1, "23:00", False),
        (4, 25, "23:00", True),
        (10, 5, "12:00", False),
        (12, 5, "12:00", False),
        (0, 0, "12:00", False),
    ],
)
def test_a_pace_burns_if_it_uses_up_the_rest_in_a_quarter_of_the_time(
    spent: float, hour_usd: float, now: str, *, expected: bool
) -> None:
    now_s = at(f"2026-11-30 {now}")
    assert is_burning(day_use(spent), int(hour_usd * USD), now_s, 4) is expected
    assert not is_burning(attrs.evolve(day_use(spent), ended_s=None), int(hour_usd * USD), now_s, 4)


@table_rows(
    "same_hours, bound_usd",
    [
        ([], 10),
        ([0] * 14, 10),
        ([0] * 12 + [20, 20], 100),
        ([0] * 7 + [1] * 7, 2.5),
        ([0.1] * 14, 1),
        ([0.3] * 14, 1.5),
        ([3] * 13 + [900], 15),
    ],
)
def test_an_anomaly_is_far_above_the_median_and_above_a_floor(same_hours: list[float], bound_usd: float) -> None:
    costs = [int(usd * USD) for usd in same_hours]
    assert compute_anomaly_bound(costs, 5, USD) == int(bound_usd * USD)
