"""Forecasts: when a spending limit is reached. Plain arithmetic in nano-USD and Unix seconds, without a clock.

What is still to be spent in a window is estimated from the past: a future hour or day costs what the same hour or day
of the week has cost on average in the last seven weeks. With less than a week of history, the window is expected to go
on at the pace that it has had since its start.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Literal

from gateway.domain.account import Account, ApiKey
from gateway.domain.balance import DAY_S, Balance, UtcDay
from gateway.frozen import frozen

HOUR_S = 3_600
WEEK_S = 7 * DAY_S
HISTORY_WEEKS = 7
MAX_AHEAD_S = 366 * DAY_S
"""How far a limit without a window's end is forecast."""
_MIN_ELAPSED_SHARE = 100
"""The pace of a window is measured over at least one hundredth of it, because its first minutes say little."""

Basis = Literal["past_weeks", "this_window"]
"""The source of a forecast: the same hours or days of the last weeks, or the pace since the window began."""


@frozen
class LimitUse:
    """A spending limit, and what is spent of it in its current window.

    Attributes:
        name: the key or account that the limit or its subject belongs to: ``account acme``.
        limit_nanos: credits of the window included.
        ended_s: when the window ends, exclusive; None for a limit that never begins anew.
        account_id: the account whose hourly and daily sums are the history; None if there is no history.
        key_id: the key within that account; None for the whole account.
        limit_name: the limit; empty for the quota of a key or account.
        subject: the limit's subject within the account, ``user 'u-17'``; empty if that is the key or account itself.
    """

    name: str
    limit_nanos: int
    spent_nanos: int
    started_s: int
    ended_s: int | None
    account_id: int | None = None
    key_id: int | None = None
    limit_name: str = ""
    subject: str = ""

    @property
    def title(self) -> str:
        """The name of what the limit restricts: ``key acme/app``, ``user 'u-17' of the account acme (limit 'x')``."""
        title = f"{self.subject} of the {self.name}" if self.subject else self.name
        return f"{title} (limit {self.limit_name!r})" if self.limit_name else title

    @property
    def left_nanos(self) -> int:
        """The unspent part; negative after an overrun."""
        return self.limit_nanos - self.spent_nanos

    def rank(self, now_s: float) -> float:
        """Return the spent share of the limit, divided by the elapsed share of the window if there is one."""
        share = self.spent_nanos / self.limit_nanos if self.limit_nanos > 0 else float(self.spent_nanos > 0)
        if self.ended_s is None:
            return share
        return share * (self.ended_s - self.started_s) / max(now_s - self.started_s, 1)


@frozen
class HistorySlots:
    """The slots of the past to read: hours or days of ``slot_s`` seconds, numbered since 1970."""

    slot_s: int
    numbers: Sequence[int]


@frozen
class SpendingHistory:
    """The average costs of the hours or days of a week.

    ``averages`` begin with the slot whose number since 1970 is a multiple of the slots of a week.
    """

    slot_s: int
    averages: Sequence[int]

    def find_average(self, number: int) -> int:
        return self.averages[number % len(self.averages)]


@frozen
class Forecast:
    """When a limit is reached.

    Attributes:
        reached_s: when, in Unix seconds; None if the limit is not reached in this window, or within a year for a limit
            without windows.
        expected_nanos: the spending at the window's end if nothing was refused; None for a limit without windows.
    """

    basis: Basis
    reached_s: int | None
    expected_nanos: int | None


def measure_limit(name: str, owner: Account | ApiKey, balance: Balance, day: UtcDay) -> LimitUse | None:
    """Return the use of an account's or key's quota; None without a quota. The quota is that of ``owner``."""
    quota = owner.quota
    if quota.limit_nanos is None or not quota.capped:
        return None
    (today, month), local = balance.begin_day(day), balance.find_local_day(day)
    counter, started_s, ended_s = balance.lifetime, owner.created_ms // 1000, None
    if quota.period == "daily":
        counter, started_s, ended_s = today, local.start_s, local.end_s
    elif quota.period == "monthly":
        counter, started_s, ended_s = month, local.month_start_s, local.month_end_s
    account_id, key_id = (owner.id, None) if isinstance(owner, Account) else (owner.account_id, owner.id)
    return LimitUse(
        name, quota.limit_nanos + counter.credit_nanos, counter.spent_nanos, started_s, ended_s, account_id, key_id
    )


def list_history_slots(use: LimitUse, now_s: float) -> HistorySlots:
    """Return what to read for a forecast: the same hours of the last seven weeks for a window of up to a day.

    For a longer window, these are the days of the last seven weeks.
    """
    if use.ended_s is not None and use.ended_s - use.started_s <= DAY_S:
        hours = range(use.started_s // HOUR_S, -(-use.ended_s // HOUR_S))
        week_hours = WEEK_S // HOUR_S
        weeks = range(1, HISTORY_WEEKS + 1)
        return HistorySlots(HOUR_S, sorted(hour - week * week_hours for week in weeks for hour in hours))
    today = int(now_s) // DAY_S
    return HistorySlots(DAY_S, range(today - HISTORY_WEEKS * WEEK_S // DAY_S, today))


def build_history(slot_s: int, costs: Mapping[int, int], now_s: float) -> SpendingHistory | None:
    """Return the average cost of each slot of a week since the day of the first cost; None after less than a week.

    ``costs`` are those of the slots of ``list_history_slots``, by number. Missing slots cost nothing.
    """
    spent_slots = [number for number, nanos in costs.items() if nanos > 0]
    if not spent_slots:
        return None
    first = min(spent_slots) * slot_s // DAY_S * DAY_S // slot_s
    running, week_slots = int(now_s) // slot_s, WEEK_S // slot_s
    if running - first < week_slots:
        return None
    averages = []
    for position in range(week_slots):
        latest = running - 1 - (running - 1 - position) % week_slots
        slots = range(latest, max(latest - HISTORY_WEEKS * week_slots, first - 1), -week_slots)
        averages.append(sum(costs.get(slot, 0) for slot in slots) // len(slots))
    return SpendingHistory(slot_s, averages)


def forecast(use: LimitUse, history: SpendingHistory | None, now_s: float) -> Forecast:
    """Return when ``use`` reaches its limit: by ``history``, or at the pace of the window if that is None."""
    end_s = float(now_s + MAX_AHEAD_S) if use.ended_s is None else float(use.ended_s)
    basis: Basis = "this_window" if history is None else "past_weeks"
    pieces = _continue_window(use, now_s, end_s) if history is None else _repeat_weeks(history, now_s, end_s)
    spent_nanos = use.spent_nanos
    reached_s = int(now_s) if use.left_nanos <= 0 else None
    for piece_s, until_s, nanos in pieces:
        if reached_s is None and nanos > 0 and spent_nanos + nanos >= use.limit_nanos:
            share = (use.limit_nanos - spent_nanos) / nanos
            reached_s = int(piece_s + (until_s - piece_s) * share)
        spent_nanos += nanos
    return Forecast(basis, reached_s, None if use.ended_s is None else spent_nanos)


def _continue_window(use: LimitUse, now_s: float, end_s: float) -> Iterator[tuple[float, float, int]]:
    """Yield the rest of the window at the pace since its start: begin, end and cost."""
    length_s = HOUR_S * _MIN_ELAPSED_SHARE if use.ended_s is None else use.ended_s - use.started_s
    elapsed_s = max(now_s - use.started_s, length_s / _MIN_ELAPSED_SHARE)
    if now_s < end_s:
        yield now_s, end_s, int(use.spent_nanos * (end_s - now_s) / elapsed_s)


def _repeat_weeks(history: SpendingHistory, now_s: float, end_s: float) -> Iterator[tuple[float, float, int]]:
    """Yield the slots from ``now_s`` to ``end_s`` at the average cost of the past: begin, end and cost."""
    slot_s, begin_s = history.slot_s, now_s
    number = int(now_s // slot_s)
    while begin_s < end_s:
        until_s = min(float((number + 1) * slot_s), end_s)
        yield begin_s, until_s, int(history.find_average(number) * (until_s - begin_s) / slot_s)
        begin_s, number = until_s, number + 1


def is_burning(use: LimitUse, hour_nanos: int, now_s: int, factor: float) -> bool:
    """Return whether the pace of the last hour uses up what is left in less than 1 / ``factor`` of the window's rest.

    False for a limit without windows, and for one that is used up already.
    """
    if use.ended_s is None or use.left_nanos <= 0:
        return False
    return hour_nanos * (use.ended_s - now_s) > factor * use.left_nanos * HOUR_S


def compute_anomaly_bound(same_hours: Sequence[int], factor: float, min_nanos: int) -> int:
    """Return the cost above which an hour is an anomaly. ``same_hours`` are the costs of that hour on earlier days.

    The bound is ``factor`` times the median, and at least ``min_nanos``. If the median is 0, most of the days had no
    spending at this hour: then the bound is ``factor`` times the highest cost, and at least ten times ``min_nanos``.
    """
    middle = median(same_hours) if same_hours else 0
    if middle > 0:
        return max(min_nanos, int(factor * middle))
    return max(10 * min_nanos, int(factor * max(same_hours, default=0)))
