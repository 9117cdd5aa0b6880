"""The judge of credit leases in memory: what PostgreSQL's functions do, in plain Python, for tests of a node."""

from collections.abc import Callable, Collection, Mapping, Sequence

import attrs

from gateway.domain.balance import QuotaPeriod, UtcDay
from gateway.domain.credit import BalanceId, CreditGrant, CreditWant, StoredLease
from gateway.errors import StoreUnavailable


@attrs.define(eq=False)
class MemoryLease:
    start: int
    granted: int = 0
    posted: int = 0
    late: int = 0


@attrs.define(eq=False)
class MemoryBalance:
    """A balance with a limit; its amounts are those of ``credit_balances``."""

    period: QuotaPeriod
    limit: int
    start: int
    credit: int = 0
    settled: int = 0
    reserved: int = 0
    leases: dict[str, MemoryLease] = attrs.Factory(dict)

    @property
    def counted(self) -> int:
        """What is spent and set aside."""
        return self.settled + self.reserved + sum(lease.granted for lease in self.leases.values())

    @property
    def room(self) -> int:
        return self.limit + self.credit - self.counted


def find_start(period: QuotaPeriod, day: UtcDay) -> int:
    return {"daily": day.number, "monthly": day.month_number}.get(period, 0)


class MemoryCredit:
    """What all nodes share."""

    def __init__(self) -> None:
        self.balances: dict[BalanceId, MemoryBalance] = {}
        self.nodes: list[MemoryCreditAuthority] = []

    def open(self, balance: BalanceId, limit: int, day: UtcDay, period: QuotaPeriod = "lifetime") -> None:
        self.balances[balance] = MemoryBalance(period, limit, find_start(period, day))

    def turn(self, balance: BalanceId, day: UtcDay) -> MemoryBalance | None:
        found = self.balances.get(balance)
        if found is not None and (start := find_start(found.period, day)) > found.start:
            found.start, found.settled, found.credit = start, 0, 0
            self._renew(found)
        return found

    def change_limit(self, balance: BalanceId, limit: int, day: UtcDay) -> None:
        found = self.turn(balance, day)
        assert found is not None
        found.limit = limit
        found.settled += sum(lease.posted for lease in found.leases.values())
        self._renew(found)

    def add_credit(self, balance: BalanceId, nanos: int, day: UtcDay) -> None:
        found = self.turn(balance, day)
        assert found is not None
        found.credit += nanos

    def _renew(self, found: MemoryBalance) -> None:
        """Take what nodes have outstanding along into a window."""
        for name, lease in found.leases.items():
            outstanding = lease.granted - lease.posted - lease.late
            found.leases[name] = MemoryLease(found.start, max(0, outstanding), late=max(0, -outstanding))

    def post(self, node: str, day: UtcDay, amounts: Mapping[BalanceId, int]) -> None:
        for balance, nanos in amounts.items():
            found = self.turn(balance, day)
            if found is None:
                continue
            start = find_start(found.period, day)
            if (lease := found.leases.get(node)) is None:
                if start == found.start:
                    found.leases[node] = MemoryLease(start, 0, nanos)
            elif start >= lease.start:
                lease.posted += nanos
            else:
                lease.late += nanos


class MemoryCreditAuthority:
    """A node's way to ``MemoryCredit``.

    Attributes:
        fails: before or after its work the next call is cut off; empty: none is.
        asked: every want so far.
    """

    def __init__(self, credit: MemoryCredit, node: str, live: int = 2) -> None:
        self.credit, self.node, self.live = credit, node, live
        self.recalled: Callable[[Collection[BalanceId]], None] = lambda _: None
        self.returned: Callable[[Collection[BalanceId]], None] = lambda _: None
        self.fails = ""
        self.asked: list[CreditWant] = []
        credit.nodes.append(self)

    async def take(self, wants: Sequence[CreditWant], day: UtcDay) -> Sequence[CreditGrant]:
        self._cut("before")
        self.asked += wants
        grants = [self._grant(want, day) for want in wants]
        self._cut("after")
        return grants

    def _grant(self, want: CreditWant, day: UtcDay) -> CreditGrant:
        found = self.credit.turn(want.balance, day)
        if found is None:
            return CreditGrant(want.balance, False, 0, None, 0, 0)
        lease, mended, granted, others = found.leases.get(self.node), 0, 0, 0
        if lease is not None and (lease.late or lease.posted > lease.granted):
            mended = max(0, lease.posted + lease.late - lease.granted)
            lease.granted, lease.late = max(lease.granted - lease.late, lease.posted), 0
        room = found.room
        if want.need_nanos > 0 and room >= want.least_nanos:
            granted = min(room, max(want.need_nanos, min(want.want_nanos, int(room / (2 * self.live)))))
            found.leases.setdefault(self.node, MemoryLease(found.start)).granted += granted
        else:
            theirs = [each for name, each in found.leases.items() if name != self.node]
            others = sum(each.granted - each.posted - each.late for each in theirs)
        return CreditGrant(want.balance, True, granted + mended, room - granted, others, found.start)

    async def give_back(self, amounts: Mapping[BalanceId, int], recalled: Collection[BalanceId] = ()) -> None:
        self._cut("before")
        for balance, nanos in amounts.items():
            if (lease := self.credit.balances[balance].leases.get(self.node)) is not None:
                lease.granted -= nanos
        for node in self._others() if recalled else ():
            node.returned(recalled)
        self._cut("after")

    async def recall(self, balances: Collection[BalanceId]) -> None:
        self._cut("before")
        for node in self._others():
            node.recalled(balances)

    async def find_leases(self) -> Sequence[StoredLease]:
        self._cut("before")
        return [
            StoredLease(balance, lease.granted, lease.posted, lease.late)
            for balance, found in self.credit.balances.items()
            if (lease := found.leases.get(self.node)) is not None
        ]

    async def fold(self) -> None:
        self._cut("before")
        for found in self.credit.balances.values():
            if (lease := found.leases.pop(self.node, None)) is not None:
                found.settled += lease.posted

    def _others(self) -> "list[MemoryCreditAuthority]":
        return [node for node in self.credit.nodes if node is not self]

    def _cut(self, moment: str) -> None:
        if self.fails == moment:
            self.fails = ""
            raise StoreUnavailable("the connection was cut")
