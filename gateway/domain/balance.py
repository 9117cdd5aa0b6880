"""A spending cap, the purse it bounds, and the holds on it: integers of nano-USD, plain arithmetic, no clock.

For every purse, at every moment: ``spent >= 0``, ``held`` is the sum of its open holds, and
``spent + held <= limit + credit + overrun``. A hold resolves exactly once.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

import attrs

from gateway.domain.frozen import frozen
from gateway.domain.price import usd
from gateway.errors import QuotaExceeded

QuotaPeriod = Literal["none", "lifetime", "daily", "monthly"]

DAY_S = 86_400
_DECEMBER = 12
_FORBIDDEN, _TOO_MANY_REQUESTS = 403, 429


@attrs.frozen
class Quota:
    """A cap in nano-USD; ``period`` "none" means uncapped.

    ``status`` overrides the HTTP status of its exhaustion: 403 or 429, None for the period's own.
    """

    limit_nanos: int | None = None
    period: QuotaPeriod = "none"
    status: Literal[403, 429] | None = None

    @property
    def capped(self) -> bool:
        """Whether there is a cap at all."""
        return self.limit_nanos is not None and self.period != "none"


NO_QUOTA = Quota()


@attrs.frozen
class UtcDay:
    """A day in UTC and the month it lies in; seconds since 1970, ends exclusive."""

    start_s: int
    month_start_s: int
    month_end_s: int

    @property
    def end_s(self) -> int:
        """Where the next day begins."""
        return self.start_s + DAY_S

    @property
    def number(self) -> int:
        """Days since 1970."""
        return self.start_s // DAY_S

    @property
    def month_number(self) -> int:
        """The number of the month's first day."""
        return self.month_start_s // DAY_S

    @property
    def next_month_number(self) -> int:
        """The number of the next month's first day."""
        return self.month_end_s // DAY_S

    def holds(self, now_s: float) -> bool:
        """Whether ``now_s`` lies in it."""
        return self.start_s <= now_s < self.end_s


def parse_day(now_s: float) -> UtcDay:
    """The day in which ``now_s`` (Unix seconds) lies."""
    start_s = int(now_s // DAY_S) * DAY_S
    first = datetime.fromtimestamp(start_s, UTC).replace(day=1)
    december = first.month == _DECEMBER
    after = first.replace(year=first.year + 1, month=1) if december else first.replace(month=first.month + 1)
    return UtcDay(start_s, int(first.timestamp()), int(after.timestamp()))


@attrs.define
class SpendCounter:
    """What was spent and credited in one period. ``overrun_nanos``: what of it is above the cap, on record."""

    start_s: int = 0
    spent_nanos: int = 0
    credit_nanos: int = 0
    overrun_nanos: int = 0

    def add(self, spent_nanos: int, credit_nanos: int) -> None:
        """Count more of both."""
        self.spent_nanos += spent_nanos
        self.credit_nanos += credit_nanos


@attrs.define
class PeriodWindow:
    """The tally of the running day or month, and of the one before: clocks are set back, too."""

    current: SpendCounter = attrs.Factory(SpendCounter)
    previous: SpendCounter | None = None

    def at(self, start_s: int) -> SpendCounter:
        """The tally of the period that begins at ``start_s``."""
        if self.current.start_s != start_s:
            back = self.previous
            self.previous = self.current
            self.current = back if back is not None and back.start_s == start_s else SpendCounter(start_s)
        return self.current


Owner = Literal["key", "account"]


@attrs.define(eq=False)
class Balance:
    """What one key or one account has spent, holds and may spend. Days and months are counted whatever the cap.

    Which tallies a call is counted in is found once for a day and a quota: nobody but the purse turns its windows to
    another day.
    """

    owner: Owner
    quota: Quota = attrs.field(default=NO_QUOTA, init=False)
    held_nanos: int = 0
    lifetime: SpendCounter = attrs.Factory(SpendCounter)
    daily: PeriodWindow = attrs.Factory(PeriodWindow)
    monthly: PeriodWindow = attrs.Factory(PeriodWindow)
    _day: UtcDay | None = attrs.field(default=None, init=False)
    _cap_nanos: int | None = attrs.field(default=None, init=False)
    _today: SpendCounter = attrs.field(init=False)
    _month: SpendCounter = attrs.field(init=False)
    _capped: SpendCounter = attrs.field(init=False)
    """The tally of the period that the quota caps, of a lifetime where it caps none; those of ``_day``."""

    def __attrs_post_init__(self) -> None:
        self._today, self._month, self._capped = self.daily.current, self.monthly.current, self.lifetime

    def use(self, quota: Quota, day: UtcDay) -> None:
        """Go by ``quota`` from now on. What a lowered cap leaves above it is an overrun on record."""
        if quota is not self.quota:
            self.quota = quota
            self._cap_nanos = quota.limit_nanos if quota.capped else None
            self.turn_to(day)
            self._restate()

    def turn_to(self, day: UtcDay) -> tuple[SpendCounter, SpendCounter]:
        """Count in ``day`` from now on; returns its tally and that of its month."""
        self._day = day
        self._today, self._month = self.daily.at(day.start_s), self.monthly.at(day.month_start_s)
        before, period = self._capped, self.quota.period
        self._capped = self._today if period == "daily" else self._month if period == "monthly" else self.lifetime
        if self._capped is not before:
            self._recognise()  # holds come along into the new period, yesterday's credit does not
        return self._today, self._month

    def tally(self, day: UtcDay) -> SpendCounter:
        """The tally of the period that the quota caps; of a lifetime where it caps none."""
        if self._day is not day:
            self.turn_to(day)
        return self._capped

    def find_room(self, day: UtcDay) -> int | None:
        """What may still be held, in nano-USD; negative after an overrun, None where there is no cap."""
        cap = self._cap_nanos
        if cap is None:
            return None
        tally = self._capped if self._day is day else self.tally(day)
        return cap + tally.credit_nanos - tally.spent_nanos - self.held_nanos

    def find_reset(self, day: UtcDay) -> int | None:
        """When the capped period ends, in Unix seconds; None for a lifetime."""
        period = self.quota.period
        return day.end_s if period == "daily" else day.month_end_s if period == "monthly" else None

    def hold(self, nanos: int) -> None:
        """Set ``nanos`` aside."""
        self.held_nanos += nanos

    def restore(self, nanos: int, day: UtcDay) -> None:
        """The same for what was set aside before a start: what of it is above the cap by now is an overrun."""
        self.hold(nanos)
        self.tally(day)
        self._recognise()

    def settle(self, held_nanos: int, cost_nanos: int, day: UtcDay) -> int:
        """Spend ``cost_nanos`` and let go of what was held for it; returns what of it is an overrun."""
        if self._day is not day:
            self.turn_to(day)  # what is held comes along before it is let go of
        self.held_nanos -= held_nanos
        self.lifetime.spent_nanos += cost_nanos
        self._today.spent_nanos += cost_nanos
        self._month.spent_nanos += cost_nanos
        # What cost no more than was held for it leaves no more above the cap than is on record.
        return self._recognise() if cost_nanos > held_nanos else 0

    def add_credit(self, nanos: int, day: UtcDay) -> None:
        """Raise (or with a negative amount lower) what may be spent: for good, this month and today."""
        for tally in (self.lifetime, *self.turn_to(day)):
            tally.credit_nanos += nanos
        self._restate()

    def correct(self, spent_credited: Sequence[int], day: UtcDay) -> None:
        """Add what the ledger knows and memory did not: spent and credited in the month, spent and credited today."""
        today, month = self.turn_to(day)
        month.add(*spent_credited[:2])
        today.add(*spent_credited[2:])
        self._restate()

    def find_balance(self, day: UtcDay) -> int | None:
        """What is left of the cap, held or not, in nano-USD; None where there is no cap."""
        room = self.find_room(day)
        return None if room is None else room + self.held_nanos

    def _restate(self) -> None:
        """The cap is another: on record is what is above it now."""
        self._capped.overrun_nanos = 0
        self._recognise()

    def _recognise(self) -> int:
        """Put on record what is above the cap and not on record yet; returns it."""
        cap, tally = self._cap_nanos, self._capped
        if cap is None:
            return 0
        bound = cap + tally.credit_nanos + tally.overrun_nanos
        excess = max(0, tally.spent_nanos + self.held_nanos - bound)
        tally.overrun_nanos += excess
        return excess


@frozen
class Charge:
    """How a hold resolved: what was spent, and what of it was above a cap."""

    cost_nanos: int
    overrun_nanos: int


@attrs.define(eq=False)
class Reservation:
    """``nanos`` set aside in every purse of a call until it is known what the call cost.

    Attributes:
        left_nanos: what the purse with the least has left beside it when it is made; None: none of them has a cap.
        extra_nanos: what of ``nanos`` was set aside because it was there, and is more than the call had to have.
    """

    balances: Sequence[Balance]
    nanos: int
    charge: Charge | None = None
    left_nanos: int | None = None
    extra_nanos: int = 0

    @property
    def needed_nanos(self) -> int:
        """What the call had to have."""
        return self.nanos - self.extra_nanos

    def extend(self, nanos: int) -> None:
        """Set aside up to ``nanos`` in all, as far as every purse has it. Only right after the hold is made."""
        more = min(nanos - self.nanos, self.left_nanos or 0)
        if more > 0:
            for balance in self.balances:
                balance.held_nanos += more
            self.nanos += more
            self.extra_nanos = more

    def settle(self, cost_nanos: int, day: UtcDay) -> Charge:
        """Resolve it; a second attempt changes nothing and returns the first result."""
        if self.charge is None:
            overrun = 0
            for balance in self.balances:
                overrun = max(overrun, balance.settle(self.nanos, cost_nanos, day))
            self.charge = Charge(cost_nanos, overrun)
        return self.charge


def hold(balances: Sequence[Balance], nanos: int, day: UtcDay, now_s: float) -> Reservation:
    """Set ``nanos`` aside in every purse, or in none. A call that costs nothing always passes.

    Raises ``QuotaExceeded`` for the purse whose end is the more final: a lifetime before a month before a day.
    """
    left: int | None = None
    if nanos:
        for balance in balances:
            room = balance.find_room(day)
            if room is not None:
                if room < nanos:
                    raise _exhausted(_find_most_final(balances, nanos, day), nanos, day, now_s)
                left = room - nanos if left is None else min(left, room - nanos)
        for balance in balances:
            balance.held_nanos += nanos
    return Reservation(balances, nanos, None, left)


def _find_most_final(balances: Sequence[Balance], nanos: int, day: UtcDay) -> Balance:
    """Of those that are short of ``nanos``, of which there are, the first with the latest end."""
    rooms = [(balance, balance.find_room(day)) for balance in balances]
    return max(
        (balance for balance, room in rooms if room is not None and room < nanos), key=lambda it: _reset(it, day)
    )


def _reset(balance: Balance, day: UtcDay) -> float:
    reset = balance.find_reset(day)
    return float("inf") if reset is None else reset


def _exhausted(balance: Balance, nanos: int, day: UtcDay, now_s: float) -> QuotaExceeded:
    quota = balance.quota
    whose = "this API key" if balance.owner == "key" else "the account"
    available_nanos = balance.find_balance(day) or 0
    message = f"The {quota.period} quota of {whose} is used up"
    if available_nanos > 0:
        in_use = min(balance.held_nanos, available_nanos)
        held = f", ${usd(in_use)} of it held for running requests" if in_use else ""
        message = (
            f"The {quota.period} quota of {whose} does not cover this request: it may cost up to ${usd(nanos)}, "
            f"and ${usd(available_nanos)} is left{held}"
        )
    reset = balance.find_reset(day)
    status = quota.status or (_FORBIDDEN if reset is None else _TOO_MANY_REQUESTS)
    return QuotaExceeded(
        message,
        status=status,
        retry_after_s=None if reset is None else max(1, -int(-(reset - now_s) // 1)),
    )
