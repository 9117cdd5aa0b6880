"""A node's lease of credit from a shared balance, as the node sees it. Nano-USD and seconds, without a clock."""

import math
from collections.abc import Mapping, Sequence

import attrs

from gateway.domain.balance import AnyBalance, Balance, Quota, UtcDay
from gateway.domain.credit import BalanceId, CreditGrant, CreditRequest, LeaseClaim, StoredLease
from gateway.frozen import quick_frozen

_AVERAGE_S = 5.0
"""The time constant of the moving average of reservations per second."""
_AHEAD_S = 2.0
IDLE_S = 60.0
_MIN_REQUESTS, _MAX_REQUESTS = 4, 256
"""The bounds of a slice, in multiples of ``CreditDemand.large_nanos``."""
_COUNT_INTERVAL_S = 0.05
"""The minimum time between updates of the average, because updating it for every request is expensive."""


@attrs.define(eq=False)
class CreditDemand:
    """The rate at which a node reserves credit from one balance. Times are seconds of a monotonic clock.

    Attributes:
        large_nanos: the size of recent large reservations; each smaller reservation reduces it by up to an eighth.
        ahead_s: the earliest time of the next request for credit ahead of need.
        no_credit_until_s: until then the store is assumed to have no more credit, because it just granted none.
    """

    nanos_per_s: float = 0.0
    recent_nanos: int = 0
    large_nanos: int = 0
    slice_nanos: int = 0
    counted_s: float = float("-inf")
    at_s: float = 0.0
    ahead_s: float = 0.0
    no_credit_until_s: float = 0.0

    def record(self, nanos: int, now_s: float) -> None:
        self.at_s = now_s
        self.recent_nanos += nanos
        self.update_large(nanos)
        if now_s - self.counted_s >= _COUNT_INTERVAL_S:
            self.nanos_per_s, self.recent_nanos, self.counted_s = self._find_rate(now_s), 0, now_s
            self.slice_nanos = self.find_slice(now_s)

    def update_large(self, nanos: int) -> None:
        """Update ``large_nanos`` with a reservation, whether or not it succeeds."""
        self.large_nanos = max(nanos, self.large_nanos - self.large_nanos // 8)

    def find_slice(self, now_s: float) -> int:
        """Return the credit to request in advance: two seconds' reservations, but from 4 to 256 large ones."""
        ahead_nanos = int(self._find_rate(now_s) * _AHEAD_S)
        return min(max(ahead_nanos, _MIN_REQUESTS * self.large_nanos), _MAX_REQUESTS * self.large_nanos)

    def _find_rate(self, now_s: float) -> float:
        passed_s = max(0.0, now_s - self.counted_s)
        return self.nanos_per_s * math.exp(-passed_s / _AVERAGE_S) + self.recent_nanos / _AVERAGE_S


@quick_frozen
class CreditRefusal:
    """The store's answer when it had too little credit.

    Attributes:
        min_nanos: the amount that was requested; a request for less may still pass.
        left_nanos: the amount left after all reservations of all nodes.
        held_nanos: the outstanding amount of other nodes.
        day_number: the UTC day of the answer, which does not count on another day.
        until_s: the time until which the store is not asked again, in seconds of a monotonic clock.
        memory_s: how long that was, in seconds: it doubles with each further refusal.
    """

    min_nanos: int
    left_nanos: int
    held_nanos: int
    day_number: int
    until_s: float
    memory_s: float


@attrs.define(eq=False)
class LeasedBalance(Balance):
    """A balance of which this node may spend only the credit it was granted.

    The counters contain only this node's spending since its start; the store has the totals.

    Attributes:
        granted_nanos: all credit ever granted, minus the credit given back.
        used_nanos: all spending settled on this node.
        unlimited: the quota for which the store has answered that there is no limit; None if it has not.
        beyond_nanos: the maximum by which held and used amounts exceed the grant, because a provider charged more than
            was reserved, or a reservation is older than the limit.
        lease_unknown: whether the node does not know its lease, because the limit is new or an answer was lost.
    """

    owner_id: int = 0
    granted_nanos: int = 0
    used_nanos: int = 0
    beyond_nanos: int = 0
    unlimited: Quota | None = None
    lease_unknown: bool = False
    refusal: CreditRefusal | None = None
    demand: CreditDemand = attrs.Factory(CreditDemand)

    @property
    def id(self) -> BalanceId:
        return self.owner, self.owner_id

    @property
    def idle_s(self) -> float:
        """The time without a request after which all idle credit is given back, in seconds."""
        return IDLE_S

    @property
    def leased(self) -> bool:
        """Whether only granted credit may be spent."""
        return self.quota.capped and self.unlimited is not self.quota

    @property
    def room_nanos(self) -> int:
        """The granted credit that may still be reserved. Negative after an overrun."""
        return self.granted_nanos - self.used_nanos - self.held_nanos

    def covers(self, nanos: int) -> bool:
        """Return whether ``nanos`` may be reserved without asking the store."""
        return not self.leased or (not self.lease_unknown and self.room_nanos >= nanos)

    def set_quota(self, quota: Quota, day: UtcDay) -> None:
        """Apply ``quota`` from now on. Spending without a limit is not part of any lease."""
        if quota is self.quota:
            return
        old_leased = self.leased
        super().set_quota(quota, day)
        self.refusal = None
        if self.leased and not old_leased:
            self.beyond_nanos = max(0, -self.room_nanos)
            self.lease_unknown = self.lease_unknown or self.used_nanos != 0 or self.granted_nanos != 0

    def find_room(self, day: UtcDay) -> int | None:  # noqa: ARG002 - a lease has no period
        """Return the amount that may be reserved without asking the store; None if there is no limit.

        It is not above 0 while the node does not know its lease.
        """
        if not self.leased:
            return None
        return min(0, self.room_nanos) if self.lease_unknown else self.room_nanos

    def settle(self, held_nanos: int, cost_nanos: int, day: UtcDay) -> int:
        """Spend ``cost_nanos``, release the reservation of ``held_nanos``, and return the new excess over the grant."""
        old_overrun = max(0, -self.room_nanos)
        super().settle(held_nanos, cost_nanos, day)
        self.used_nanos += cost_nanos
        if cost_nanos < held_nanos:
            self.refusal = None
        if cost_nanos <= held_nanos:
            return 0
        overrun_nanos = max(0, -self.room_nanos - old_overrun)
        self.beyond_nanos += overrun_nanos
        return overrun_nanos if self.leased else 0

    def claim(self, unposted_nanos: int) -> LeaseClaim:
        """Give up the idle credit until ``resync``, and return what the store has to set aside for this node."""
        idle_nanos = max(0, self.room_nanos)
        self.lease_unknown = True
        return LeaseClaim(self.held_nanos + unposted_nanos, idle_nanos)

    def grant(self, nanos: int) -> None:
        """Add credit that the store has granted."""
        self.granted_nanos += nanos
        self.beyond_nanos = min(self.beyond_nanos, max(0, -self.room_nanos))

    def exceeds(self, outstanding_nanos: int) -> bool:
        """Return whether the node counts on more credit than the store has set aside for it (``outstanding_nanos``)."""
        return self.leased and not self.lease_unknown and self.granted_nanos - self.used_nanos > outstanding_nanos

    def build_request(self, min_nanos: int, needed_nanos: int, desired_nanos: int) -> CreditRequest:
        return CreditRequest(self.id, min_nanos, needed_nanos, desired_nanos)

    def is_outdated(self, request: CreditRequest) -> bool:  # noqa: ARG002 - the store has the limit
        """Return whether the limit was lowered after ``request`` was made. False here: the store knows the quota."""
        return False

    def note_answer(self, answer: CreditGrant) -> None:
        """Record the store's figures of the whole balance. Does nothing here: only a limit's balance needs them."""

    def detach(self, nanos: int) -> None:
        """Hand a reservation over to a durable job, under which the store counts it from now on."""
        self.held_nanos -= nanos
        self.granted_nanos -= nanos

    def return_credit(self, nanos: int) -> int:
        """Give back up to ``nanos`` of the room and return the amount.

        The amount must then be reported to the store.
        """
        given_nanos = max(0, min(nanos, self.room_nanos))
        self.granted_nanos -= given_nanos
        return given_nanos

    def resync(self, stored_lease: StoredLease | None, unposted_nanos: int) -> None:
        """Adopt the store's lease, ``stored_lease``, which is None if the store has no lease.

        ``unposted_nanos`` is the amount that this node has settled and the store does not know yet.
        """
        outstanding = 0 if stored_lease is None else stored_lease.outstanding_nanos
        self.granted_nanos = outstanding + self.used_nanos - unposted_nanos
        self.beyond_nanos = max(0, -self.room_nanos)
        self.lease_unknown = False

    def find_refusal(self, day: UtcDay, now_s: float) -> CreditRefusal | None:
        """Return the store's last refusal; None if there is none, or if it has expired."""
        refusal = self.refusal
        if refusal is None or now_s >= refusal.until_s or refusal.day_number != day.number:
            return None
        return refusal

    def describe(self, day: UtcDay) -> AnyBalance:
        """Return the whole balance as of the last refusal, with the reservations of all nodes."""
        total, refusal = Balance(self.owner), self.refusal
        total.set_quota(self.quota, day)
        left_nanos = self.room_nanos if refusal is None else refusal.left_nanos
        total.held_nanos = self.held_nanos + (0 if refusal is None else refusal.held_nanos)
        total.find_counter(day).spent_nanos = (self.quota.limit_nanos or 0) - total.held_nanos - left_nanos
        return total

    def _record_overrun(self) -> int:
        return 0  # the node does not know how much of the limit is left


def merge_requests(requested: Mapping[LeasedBalance, Sequence[int]], now_s: float) -> list[CreditRequest]:
    """Return the credit to request for each balance's waiting reservations. Balances with enough room are left out."""
    credit_requests = []
    for balance, amounts in requested.items():
        room = balance.room_nanos
        needed_nanos = sum(amounts) - room
        if needed_nanos > 0:
            min_nanos = max(1, min(amounts) - room)  # asked for 0, the store does not say who has credit
            credit_requests.append(
                balance.build_request(min_nanos, needed_nanos, needed_nanos + balance.demand.find_slice(now_s))
            )
    return credit_requests


def describe_lease(balance: LeasedBalance, node_nanos: int, stored_nanos: int) -> list[str]:
    """Return the problems of a lease, given the outstanding amounts that the node knows and that the store has."""
    name, problems = f"{balance.owner} {balance.owner_id}", []
    if balance.room_nanos + balance.beyond_nanos < 0:
        problems.append(f"{name}: this node has reserved {-balance.room_nanos} more than its lease (nano-USD)")
    if stored_nanos < node_nanos:
        problems.append(f"{name}: this node has {node_nanos} outstanding, the store {stored_nanos} (nano-USD)")
    return problems


def find_surplus(balance: LeasedBalance, now_s: float) -> int:
    """Return the idle credit to give back: all after ``idle_s`` without requests, otherwise what exceeds two slices."""
    if now_s - balance.demand.at_s >= balance.idle_s:
        return max(0, balance.room_nanos)
    return max(0, balance.room_nanos - 2 * balance.demand.find_slice(now_s))


def is_unused(balance: LeasedBalance, now_s: float) -> bool:
    """Return whether the node is done with a balance: no credit or reservation, and no request for some time."""
    return now_s - balance.demand.at_s >= balance.idle_s and balance.room_nanos <= 0 and not balance.held_nanos


def is_low(balance: LeasedBalance) -> bool:
    """Return whether to request credit in advance: less than half of the last slice is left."""
    return 2 * balance.room_nanos < balance.demand.slice_nanos
