"""Quotas, balances and reservations: plain arithmetic in nano-USD, without a clock.

Invariants of every balance, checked by ``billing/reconcile.py``: ``spent >= 0``; ``held`` is the sum of the open
reservations; ``spent + held <= limit + credit + overrun``. A reservation is settled exactly once.
"""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, Protocol

import attrs

from gateway.domain.price import usd
from gateway.errors import QuotaExceeded
from gateway.frozen import frozen, quick_frozen

if TYPE_CHECKING:  # only if an account has a time zone
    from gateway.domain.account_zone import AccountZone, LocalDay

QuotaPeriod = Literal["none", "lifetime", "daily", "monthly"]

DAY_S = 86_400
_DECEMBER = 12
_FORBIDDEN, _TOO_MANY_REQUESTS = 403, 429


@frozen
class Quota:
    """A spending limit in nano-USD.

    ``status`` is the HTTP status of ``QuotaExceeded``; None means 403 for a lifetime quota, and 429 otherwise.
    """

    limit_nanos: int | None = None
    period: QuotaPeriod = "none"
    status: Literal[403, 429] | None = None

    @property
    def capped(self) -> bool:
        return self.limit_nanos is not None and self.period != "none"


UNLIMITED_QUOTA = Quota()


@frozen
class UtcDay:
    """A UTC day and its month, in Unix seconds; ends are exclusive.

    From ``since_s`` to ``until_s`` no day begins in the time zone of any account: the whole day if all have UTC.
    """

    start_s: int
    month_start_s: int
    month_end_s: int
    since_s: int = attrs.field(kw_only=True, eq=False, repr=False)
    end_s: int = attrs.field(init=False, eq=False, repr=False)
    until_s: int = attrs.field(kw_only=True, eq=False, repr=False)

    @since_s.default
    def _find_since_s(self) -> int:
        return self.start_s

    @end_s.default
    def _find_end_s(self) -> int:
        return self.start_s + DAY_S

    @until_s.default
    def _find_until_s(self) -> int:
        return self.end_s

    @property
    def number(self) -> int:
        """Days since 1970."""
        return self.start_s // DAY_S

    @property
    def month_number(self) -> int:
        """The ``number`` of the month's first day."""
        return self.month_start_s // DAY_S

    @property
    def next_month_number(self) -> int:
        """The ``number`` of the next month's first day."""
        return self.month_end_s // DAY_S

    def contains(self, now_s: float) -> bool:
        return self.since_s <= now_s < self.until_s


def parse_day(now_s: float) -> UtcDay:
    """Return the UTC day of ``now_s`` (Unix seconds)."""
    start_s = int(now_s // DAY_S) * DAY_S
    first = datetime.fromtimestamp(start_s, UTC).replace(day=1)
    december = first.month == _DECEMBER
    next_start = first.replace(year=first.year + 1, month=1) if december else first.replace(month=first.month + 1)
    return UtcDay(start_s, int(first.timestamp()), int(next_start.timestamp()))


@attrs.define
class SpendCounter:
    """The amounts spent and credited in one period. ``overrun_nanos`` is the recorded excess over the limit."""

    start_s: int = 0
    spent_nanos: int = 0
    credit_nanos: int = 0
    overrun_nanos: int = 0

    def add(self, spent_nanos: int, credit_nanos: int) -> None:
        self.spent_nanos += spent_nanos
        self.credit_nanos += credit_nanos


@attrs.define
class PeriodWindow:
    """The counters of the current and the previous day or month. The previous ones are for a clock set back."""

    current: SpendCounter = attrs.Factory(SpendCounter)
    previous: SpendCounter | None = None

    def get_counter(self, start_s: int) -> SpendCounter:
        if self.current.start_s != start_s:
            earlier_counter = self.previous
            self.previous = self.current
            self.current = (
                earlier_counter
                if earlier_counter is not None and earlier_counter.start_s == start_s
                else SpendCounter(start_s)
            )
        return self.current


Owner = Literal["key", "account"]
OwnerId = tuple[Owner, int]
BalanceOwner = Literal["key", "account", "limit"]
"""The kind of a balance's owner. A ``limit`` is a limit's subject, which has such a balance only on a node of a
cluster."""


class AnyBalance(Protocol):
    """What a reservation needs of a balance: that of a key, an account, a subject of a limit, a session or a request.

    Attributes:
        held_nanos: the sum of the open reservations.
    """

    held_nanos: int

    @property
    def leased(self) -> bool: ...

    def find_room(self, day: UtcDay) -> int | None: ...

    def find_balance(self, day: UtcDay) -> int | None: ...

    def find_reset(self, day: UtcDay) -> int | None: ...

    def restore(self, nanos: int, day: UtcDay) -> None: ...

    def settle(self, held_nanos: int, cost_nanos: int, day: UtcDay) -> int: ...

    def name_limit(self) -> str:
        """Name the limit and its owner for the caller, without an article."""
        ...

    def describe_spending(self, day: UtcDay) -> str:
        """Return the end of a refusal's message; empty if there is nothing to add."""
        ...

    def find_status(self, day: UtcDay) -> int:
        """Return the HTTP status of a refusal."""
        ...

    def complete_error(self, error: QuotaExceeded) -> QuotaExceeded:
        """Return ``error``, or in its place a more specific one with this balance's amounts."""
        ...


@attrs.define(eq=False)
class Balance:
    """The balance of one API key or account: spent and reserved amounts in nano-USD, and the quota.

    Spending is always counted per day, month and lifetime, so the quota's period can change. The counters of the
    current day are cached, so settling a request needs no calendar arithmetic. Only this class moves its windows to
    another day. ``zone`` decides when days and months begin; None: UTC.
    """

    owner: BalanceOwner
    quota: Quota = attrs.field(default=UNLIMITED_QUOTA, init=False)
    held_nanos: int = 0
    lifetime: SpendCounter = attrs.Factory(SpendCounter)
    daily: PeriodWindow = attrs.Factory(PeriodWindow)
    monthly: PeriodWindow = attrs.Factory(PeriodWindow)
    zone: "AccountZone | None" = attrs.field(default=None, init=False)
    _day: UtcDay | None = attrs.field(default=None, init=False)
    _cap_nanos: int | None = attrs.field(default=None, init=False)
    _today: SpendCounter = attrs.field(init=False)
    _month: SpendCounter = attrs.field(init=False)
    _capped_counter: SpendCounter = attrs.field(init=False)
    """The counter of the period that the quota limits (lifetime if none), on ``_day``."""

    def __attrs_post_init__(self) -> None:
        self._today, self._month, self._capped_counter = self.daily.current, self.monthly.current, self.lifetime

    @property
    def leased(self) -> bool:
        """Whether the balance is one gateway's part of a limit shared by several."""
        return False

    def set_quota(self, quota: Quota, day: UtcDay) -> None:
        """Apply ``quota`` from now on. An excess over a lowered limit becomes an overrun."""
        if quota is not self.quota:
            self.quota = quota
            self._cap_nanos = quota.limit_nanos if quota.capped else None
            self.begin_day(day)
            self._recount_overrun()

    def set_zone(self, zone: "AccountZone", day: UtcDay) -> None:
        """Let days and months begin in another time zone. What is spent and reserved stays."""
        if zone is not self.zone:
            self.zone = zone
            self.begin_day(day)

    def find_local_day(self, day: UtcDay) -> "UtcDay | LocalDay":
        """Return the owner's own day, from which quotas count, at the beginning of ``day``."""
        return day if self.zone is None else self.zone.find_local_day(day.since_s)

    def begin_day(self, day: UtcDay) -> tuple[SpendCounter, SpendCounter]:
        """Switch to ``day``. Return the counters of the owner's day and of its month."""
        self._day = day
        local = self.find_local_day(day)
        self._today, self._month = self.daily.get_counter(local.start_s), self.monthly.get_counter(local.month_start_s)
        old_counter, period = self._capped_counter, self.quota.period
        self._capped_counter = (
            self._today if period == "daily" else self._month if period == "monthly" else self.lifetime
        )
        if self._capped_counter is not old_counter:
            self._record_overrun()  # the new period has the reservations but not yesterday's credit: it may be exceeded
        return self._today, self._month

    def find_counter(self, day: UtcDay) -> SpendCounter:
        """Return the counter of the period that the quota limits, or the lifetime counter."""
        if self._day is not day:
            self.begin_day(day)
        return self._capped_counter

    def find_room(self, day: UtcDay) -> int | None:
        """Return the amount that may still be reserved, in nano-USD; None if there is no quota.

        The amount can be negative.
        """
        cap = self._cap_nanos
        if cap is None:
            return None
        counter = self._capped_counter if self._day is day else self.find_counter(day)
        return cap + counter.credit_nanos - counter.spent_nanos - self.held_nanos

    def find_reset(self, day: UtcDay) -> int | None:
        """Return when the quota's period ends, in Unix seconds; None unless the period is a day or a month."""
        period, local = self.quota.period, self.find_local_day(day)
        return local.end_s if period == "daily" else local.month_end_s if period == "monthly" else None

    def hold(self, nanos: int) -> None:
        self.held_nanos += nanos

    def restore(self, nanos: int, day: UtcDay) -> None:
        """Reserve ``nanos`` again after a restart. An excess over the current limit becomes an overrun."""
        self.hold(nanos)
        self.find_counter(day)
        self._record_overrun()

    def settle(self, held_nanos: int, cost_nanos: int, day: UtcDay) -> int:
        """Spend ``cost_nanos``, release the reservation of ``held_nanos``, and return the new overrun."""
        if self._day is not day:
            self.begin_day(day)  # the reservation moves to the new period before it is released
        self.held_nanos -= held_nanos
        self.lifetime.spent_nanos += cost_nanos
        self._today.spent_nanos += cost_nanos
        self._month.spent_nanos += cost_nanos
        # A cost within the reservation cannot raise the overrun.
        return self._record_overrun() if cost_nanos > held_nanos else 0

    def add_credit(self, nanos: int, day: UtcDay) -> None:
        """Add a credit for the lifetime, this month and today. A negative amount lowers the balance."""
        for counter in (self.lifetime, *self.begin_day(day)):
            counter.credit_nanos += nanos
        self._recount_overrun()

    def correct(self, spent_credited: Sequence[int], day: UtcDay) -> None:
        """Add amounts that only the ledger has: spent and credited this month, then spent and credited today."""
        today, month = self.begin_day(day)
        month.add(*spent_credited[:2])
        today.add(*spent_credited[2:])
        self._recount_overrun()

    def find_balance(self, day: UtcDay) -> int | None:
        """Return the unspent part of the quota, reservations included, in nano-USD; None if there is no quota."""
        room = self.find_room(day)
        return None if room is None else room + self.held_nanos

    def name_limit(self) -> str:
        return f"{self.quota.period} quota of {'this API key' if self.owner == 'key' else 'the account'}"

    def describe_spending(self, day: UtcDay) -> str:  # noqa: ARG002 - a limit's balance needs it
        return ""

    def find_status(self, day: UtcDay) -> int:
        is_permanent = self.find_reset(day) is None
        return self.quota.status or (_FORBIDDEN if is_permanent else _TOO_MANY_REQUESTS)

    def complete_error(self, error: QuotaExceeded) -> QuotaExceeded:
        return error

    def _recount_overrun(self) -> None:
        """Recompute the overrun after the limit has changed."""
        self._capped_counter.overrun_nanos = 0
        self._record_overrun()

    def _record_overrun(self) -> int:
        """Record and return the excess over the limit that is not recorded as overrun yet."""
        cap, counter = self._cap_nanos, self._capped_counter
        if cap is None:
            return 0
        limit = cap + counter.credit_nanos + counter.overrun_nanos
        excess = max(0, counter.spent_nanos + self.held_nanos - limit)
        counter.overrun_nanos += excess
        return excess


@quick_frozen
class Charge:
    """The result of a settled reservation: the cost, and the part of it above a limit."""

    cost_nanos: int
    overrun_nanos: int


@attrs.define(eq=False)
class Reservation:
    """An amount reserved in every balance of a request until its cost is known.

    Attributes:
        charge: the result of ``settle``; None while the reservation is open.
        left_nanos: the remaining amount of the tightest balance after this reservation; None if there is no quota, or
            the reservation is of 0.
        extra_nanos: the part of ``nanos`` added by ``extend`` beyond the request's minimum.
        beyond: for each balance, the amount that ``extend_each`` has reserved in addition to ``nanos``.
        overdrafts: balances with less left than the request may cost. Each allows only one such request at a time.
        max_cost_nanos: the most that is charged, because a quote has promised it; None: the cost is charged in full.
        limit_left_nanos: what was left of the strictest limit besides key and account after this reservation; None if
            there is no such limit.
        limit_charges: what the settled cost counts for besides key and account (``domain/limit.py``).
    """

    balances: Sequence[AnyBalance]
    nanos: int
    charge: Charge | None = None
    left_nanos: int | None = None
    extra_nanos: int = 0
    beyond: tuple[int, ...] = ()
    overdrafts: Collection[AnyBalance] = ()
    max_cost_nanos: int | None = None
    limit_charges: str = ""
    limit_left_nanos: int | None = None

    @property
    def soft_limit(self) -> str:
        """The name of a limit whose soft share is passed; empty if there is none."""
        return ""

    def extend(self, nanos: int) -> None:
        """Raise a new reservation to at most ``nanos`` in total, limited by the tightest balance."""
        extra_nanos = min(nanos - self.nanos, self.left_nanos or 0)
        if extra_nanos > 0:
            for balance in self.balances:
                balance.held_nanos += extra_nanos
            self.nanos += extra_nanos
            self.extra_nanos += extra_nanos

    def shrink(self) -> None:
        """Release the amount that ``extend`` has added."""
        for balance in self.balances:
            balance.held_nanos -= self.extra_nanos
        self.nanos -= self.extra_nanos
        self.extra_nanos = 0

    def lower(self, nanos: int) -> None:
        """Lower an open reservation to ``nanos``, if it is higher. What ``extend`` has added stays."""
        reduction_nanos = self.nanos - self.extra_nanos - nanos
        if reduction_nanos > 0 and self.charge is None:
            for balance in self.balances:
                balance.held_nanos -= reduction_nanos
            self.nanos -= reduction_nanos

    def lower_extra(self, nanos: int) -> None:
        """Lower an open reservation to ``nanos`` in total, but by no more than ``extend`` has added."""
        reduction_nanos = min(self.nanos - nanos, self.extra_nanos)
        if reduction_nanos > 0 and self.charge is None:
            for balance in self.balances:
                balance.held_nanos -= reduction_nanos
            self.nanos -= reduction_nanos
            self.extra_nanos -= reduction_nanos

    def list_short_balances(self, nanos: int, day: UtcDay) -> list[AnyBalance]:
        """Return the balances with too little left to reserve ``nanos`` in total."""
        missing_nanos = nanos - self.nanos
        credit_left = [(balance, balance.find_room(day)) for balance in self.balances]
        return [balance for balance, room in credit_left if room is not None and room < missing_nanos]

    def extend_each(self, nanos: int, day: UtcDay) -> None:
        """Raise the reservation to ``nanos`` in each balance separately, by no more than that balance has left."""
        missing_nanos = max(0, nanos - self.nanos)
        credit_left = [balance.find_room(day) for balance in self.balances]
        self.beyond = tuple([0 if room is None else min(missing_nanos, max(0, room)) for room in credit_left])
        for balance, extra_nanos in zip(self.balances, self.beyond, strict=True):
            balance.held_nanos += extra_nanos

    def list_charges(self, now_s: float) -> str:  # noqa: ARG002 - limits have windows
        """Return the ``limit_charges`` of a cost that will be settled at ``now_s``; empty here."""
        return ""

    def end_use(self) -> None:
        """End the use of the balances without a settlement. Does nothing here: only limits count users."""

    def forget_windows(self) -> None:
        """Make limits read their spending again, because the windows of the cost are unknown. Does nothing here."""

    def settle(self, cost_nanos: int, day: UtcDay, now_s: float = 0.0) -> Charge:  # noqa: ARG002 - limits have windows
        """Charge ``cost_nanos``. A second call changes nothing and returns the first result."""
        if self.charge is None:
            overrun = 0
            if self.max_cost_nanos is not None:
                cost_nanos = min(cost_nanos, self.max_cost_nanos)
            if self.beyond:
                for balance, extra_nanos in zip(self.balances, self.beyond, strict=True):
                    balance.held_nanos -= extra_nanos
            for balance in self.balances:
                overrun = max(overrun, balance.settle(self.nanos, cost_nanos, day))
            self.charge = Charge(cost_nanos, overrun)
        return self.charge


def reserve_all(
    balances: Sequence[AnyBalance],
    nanos: int,
    day: UtcDay,
    now_s: float,
    reservation_class: type[Reservation] = Reservation,
) -> Reservation:
    """Reserve ``nanos`` in every balance or in none.

    Raises ``QuotaExceeded`` if a balance has too little left; of several, for the one whose period ends last.
    """
    left_nanos: int | None = None
    if nanos:
        for balance in balances:
            room = balance.find_room(day)
            if room is not None:
                if room < nanos:
                    raise _make_quota_error(balances, nanos, day, now_s)
                left_nanos = room - nanos if left_nanos is None else min(left_nanos, room - nanos)
        for balance in balances:
            balance.held_nanos += nanos
    return reservation_class(balances, nanos, None, left_nanos)


def _find_last_to_reset(balances: Sequence[AnyBalance], nanos: int, day: UtcDay) -> AnyBalance:
    """Return the balance whose period ends last among those with less than ``nanos`` left. There must be one."""
    available = [(balance, balance.find_room(day)) for balance in balances]
    return max(
        (balance for balance, room in available if room is not None and room < nanos),
        key=lambda balance: _find_reset_s(balance, day),
    )


def _find_reset_s(balance: AnyBalance, day: UtcDay) -> float:
    reset = balance.find_reset(day)
    return float("inf") if reset is None else reset


def _make_quota_error(balances: Sequence[AnyBalance], nanos: int, day: UtcDay, now_s: float) -> QuotaExceeded:
    balance = _find_last_to_reset(balances, nanos, day)
    available_nanos = balance.find_balance(day) or 0
    message = f"The {balance.name_limit()} is used up"
    if available_nanos > 0:
        in_use = min(balance.held_nanos, available_nanos)
        held_text = f", ${usd(in_use)} of it held for running requests" if in_use else ""
        message = (
            f"The {balance.name_limit()} does not cover this request: it may cost up to ${usd(nanos)}, "
            f"and ${usd(available_nanos)} is left{held_text}"
        )
    free_nanos = [nanos for nanos in (candidate.find_room(day) for candidate in balances) if nanos is not None]
    reset = balance.find_reset(day)
    return balance.complete_error(
        QuotaExceeded(
            message + balance.describe_spending(day),
            status=balance.find_status(day),
            retry_after_s=None if reset is None else max(1, -int(-(reset - now_s) // 1)),
            room_nanos=min(free_nanos),
        )
    )
