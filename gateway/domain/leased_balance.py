"""A node's own side of the credit that it has of one balance: arithmetic in nano-USD and seconds, without a clock."""

import math
from collections.abc import Mapping, Sequence

import attrs

from gateway.domain.balance import Balance, Quota, UtcDay
from gateway.domain.credit import BalanceId, CreditWant, StoredLease
from gateway.frozen import quick_frozen

_AVERAGE_S = 5.0
"""The time constant of the average of what is reserved a second."""
_AHEAD_S = 2.0
IDLE_S = 60.0
_FEWEST, _MOST = 4, 256
"""The bounds of a slice, in requests like a large one of late."""
_COUNTED_EVERY_S = 0.05
"""The average is brought up to date this often, and not with every request."""


@attrs.define(eq=False)
class CreditDemand:
    """How fast a node reserves credit of one balance. Times are seconds of a monotonic clock.

    Attributes:
        nanos_per_s: the average as of ``counted_s``.
        recent_nanos: what was reserved since then.
        large_nanos: a large reservation of late: an eighth less with each smaller one.
        slice_nanos: what ``find_slice`` has returned at ``counted_s``.
        at_s: when the last reservation was made.
        ahead_s: no more is asked for ahead before.
        no_credit_until_s: until then the store is taken to have nothing more; it has just granted nothing.
    """

    nanos_per_s: float = 0.0
    recent_nanos: int = 0
    large_nanos: int = 0
    slice_nanos: int = 0
    counted_s: float = float("-inf")
    at_s: float = 0.0
    ahead_s: float = 0.0
    no_credit_until_s: float = 0.0

    def note(self, nanos: int, now_s: float) -> None:
        """Count a reservation."""
        self.at_s = now_s
        self.recent_nanos += nanos
        self.enlarge(nanos)
        if now_s - self.counted_s >= _COUNTED_EVERY_S:
            self.nanos_per_s, self.recent_nanos, self.counted_s = self._find_rate(now_s), 0, now_s
            self.slice_nanos = self.find_slice(now_s)

    def enlarge(self, nanos: int) -> None:
        """Count a reservation that may not be made."""
        self.large_nanos = max(nanos, self.large_nanos - self.large_nanos // 8)

    def find_slice(self, now_s: float) -> int:
        """Return what to ask for beyond what requests need: two seconds' reservations, from 4 to 256 of a large one."""
        ahead = int(self._find_rate(now_s) * _AHEAD_S)
        return min(max(ahead, _FEWEST * self.large_nanos), _MOST * self.large_nanos)

    def _find_rate(self, now_s: float) -> float:
        passed_s = max(0.0, now_s - self.counted_s)
        return self.nanos_per_s * math.exp(-passed_s / _AVERAGE_S) + self.recent_nanos / _AVERAGE_S


@quick_frozen
class CreditRefusal:
    """What the store answered when it had too little.

    Attributes:
        least_nanos: what was asked for; a request for less may still pass.
        left_nanos: what is left beside everything that is reserved anywhere.
        held_nanos: what other nodes have.
        day_number: the day of the answer.
        until_s: until then it is not asked again.
        memory_s: how long the answer is remembered.
    """

    least_nanos: int
    left_nanos: int
    held_nanos: int
    day_number: int
    until_s: float
    memory_s: float


@attrs.define(eq=False)
class LeasedBalance(Balance):
    """A balance of which this node may spend what it was granted, and not what the limit leaves.

    Its counters are what this node has spent since its start; only the store knows the rest.

    Attributes:
        owner_id: the id of the key or account.
        granted_nanos: all that was ever granted and not given back.
        used_nanos: all that was settled here.
        unlimited: the quota for which the store has answered that it knows no limit; None: it has not.
        beyond_nanos: at most so much more is held and used than was granted: a provider charged more than was reserved,
            or a reservation is older than the limit.
        lease_unknown: the node does not know its lease: the limit is new, or an answer was lost.
        refusal: the store's last answer, if that was too little.
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
    def leased(self) -> bool:
        """Whether only granted credit may be spent."""
        return self.quota.capped and self.unlimited is not self.quota

    @property
    def room_nanos(self) -> int:
        """What of the granted credit may still be reserved. Negative after an overrun."""
        return self.granted_nanos - self.used_nanos - self.held_nanos

    def covers(self, nanos: int) -> bool:
        """Return whether ``nanos`` may be reserved at once."""
        return not self.leased or (not self.lease_unknown and self.room_nanos >= nanos)

    def use(self, quota: Quota, day: UtcDay) -> None:
        """Apply ``quota`` from now on. What was spent without a limit is not in any lease."""
        if quota is self.quota:
            return
        before = self.leased
        super().use(quota, day)
        self.refusal = None
        if self.leased and not before:
            self.beyond_nanos = max(0, -self.room_nanos)
            self.lease_unknown = self.lease_unknown or self.used_nanos != 0 or self.granted_nanos != 0

    def find_room(self, day: UtcDay) -> int | None:  # noqa: ARG002 - a lease has no period
        """Return what may be reserved without another question to the store. None without a quota."""
        if not self.leased:
            return None
        return min(0, self.room_nanos) if self.lease_unknown else self.room_nanos

    def settle(self, held_nanos: int, cost_nanos: int, day: UtcDay) -> int:
        """Spend ``cost_nanos``, release what was reserved for it, and return what of it is above the grant."""
        before = max(0, -self.room_nanos)
        super().settle(held_nanos, cost_nanos, day)
        self.used_nanos += cost_nanos
        if cost_nanos < held_nanos:
            self.refusal = None
        if cost_nanos <= held_nanos:
            return 0
        beyond = max(0, -self.room_nanos - before)
        self.beyond_nanos += beyond
        return beyond if self.leased else 0

    def grant(self, nanos: int) -> None:
        """Add what the store has granted."""
        self.granted_nanos += nanos
        self.beyond_nanos = min(self.beyond_nanos, max(0, -self.room_nanos))

    def exceeds(self, outstanding_nanos: int) -> bool:
        """Return whether the node has more than its lease, of which the store has so much outstanding.

        What it settles and posts meanwhile only makes its share smaller.
        """
        return self.leased and not self.lease_unknown and self.granted_nanos - self.used_nanos > outstanding_nanos

    def detach(self, nanos: int) -> None:
        """Hand a reservation over to a durable job: the store counts it there from now on."""
        self.held_nanos -= nanos
        self.granted_nanos -= nanos

    def release(self, nanos: int) -> int:
        """Give up to ``nanos`` of the room back; return how much. The store is to be asked next."""
        given = max(0, min(nanos, self.room_nanos))
        self.granted_nanos -= given
        return given

    def resync(self, stored: StoredLease | None, unposted_nanos: int) -> None:
        """Take over what the store has, None for nothing, after an answer was lost.

        ``unposted_nanos`` is what was settled here and is not in the store.
        """
        outstanding = 0 if stored is None else stored.outstanding_nanos
        self.granted_nanos = outstanding + self.used_nanos - unposted_nanos
        self.beyond_nanos = max(0, -self.room_nanos)
        self.lease_unknown = False

    def find_refusal(self, day: UtcDay, now_s: float) -> CreditRefusal | None:
        """Return the store's last answer, if that was too little and is not old."""
        refusal = self.refusal
        if refusal is None or now_s >= refusal.until_s or refusal.day_number != day.number:
            return None
        return refusal

    def describe(self, day: UtcDay) -> Balance:
        """Return the whole balance as of the last refusal: what is left, and what is reserved anywhere."""
        whole, refusal = Balance(self.owner), self.refusal
        whole.use(self.quota, day)
        left = self.room_nanos if refusal is None else refusal.left_nanos
        whole.held_nanos = self.held_nanos + (0 if refusal is None else refusal.held_nanos)
        whole.tally(day).spent_nanos = (self.quota.limit_nanos or 0) - whole.held_nanos - left
        return whole

    def _recognise(self) -> int:
        return 0  # the node does not know the limit's room


def merge_wants(requested: Mapping[LeasedBalance, Sequence[int]], now_s: float) -> list[CreditWant]:
    """Return what to ask for the reservations that wait for each balance; nothing for those that have room for all."""
    wants = []
    for balance, amounts in requested.items():
        room = balance.room_nanos
        need = sum(amounts) - room
        if need > 0:
            least = max(1, min(amounts) - room)  # of nothing, the store does not say who has some
            wants.append(CreditWant(balance.id, least, need, need + balance.demand.find_slice(now_s)))
    return wants


def describe_lease(balance: LeasedBalance, known_nanos: int, stored_nanos: int) -> list[str]:
    """Return what is wrong with a lease of which the node knows and the store has so much outstanding."""
    name, problems = f"{balance.owner} {balance.owner_id}", []
    if balance.room_nanos + balance.beyond_nanos < 0:
        problems.append(f"{name}: this node has reserved {-balance.room_nanos} more than its lease (nano-USD)")
    if stored_nanos < known_nanos:
        problems.append(f"{name}: this node has {known_nanos} outstanding, the store {stored_nanos} (nano-USD)")
    return problems


def find_surplus(balance: LeasedBalance, now_s: float) -> int:
    """Return how much idle credit is too much: all after a minute without requests, and what is above two slices."""
    if now_s - balance.demand.at_s >= IDLE_S:
        return max(0, balance.room_nanos)
    return max(0, balance.room_nanos - 2 * balance.demand.find_slice(now_s))


def is_over(balance: LeasedBalance, now_s: float) -> bool:
    """Return whether the node has no credit of a balance that it has not used for a minute."""
    return now_s - balance.demand.at_s >= IDLE_S and balance.room_nanos <= 0 and not balance.held_nanos


def is_low(balance: LeasedBalance) -> bool:
    """Return whether to ask for more ahead: less than half a slice of late is left."""
    return 2 * balance.room_nanos < balance.demand.slice_nanos
