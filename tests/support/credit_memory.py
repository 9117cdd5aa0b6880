"""The judge of credit leases in memory: what PostgreSQL's functions do, in plain Python, for tests of a node."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import attrs

from gateway.domain.balance import QuotaPeriod, UtcDay
from gateway.domain.credit import (
    BalanceId,
    CreditGrant,
    CreditRecalled,
    CreditRequest,
    CreditReturned,
    RecallAnswered,
    StoredLease,
)
from gateway.errors import StoreUnavailable
from gateway.events import Events


@attrs.define(eq=False)
class MemoryLease:
    start: int
    granted: int = 0
    posted: int = 0
    late: int = 0

    @property
    def outstanding(self) -> int:
        return self.granted - self.posted - self.late


@attrs.define(eq=False)
class MemoryBalance:
    """A balance; its amounts are those of ``credit_balances``, which has it unless ``limit`` is None.

    ``charged`` and ``credited`` are what the ledger has of each day.
    """

    period: QuotaPeriod
    limit: int | None
    start: int
    credit: int = 0
    settled: int = 0
    reserved: int = 0
    leases: dict[str, MemoryLease] = attrs.Factory(dict)
    charged: Counter[int] = attrs.Factory(Counter)
    credited: Counter[int] = attrs.Factory(Counter)

    @property
    def counted(self) -> int:
        """What is spent and set aside."""
        return self.settled + self.reserved + sum(max(lease.granted, lease.posted) for lease in self.leases.values())

    @property
    def room(self) -> int:
        return (self.limit or 0) + self.credit - self.counted

    def begin(self, start: int) -> None:
        """Begin a window: what nodes have outstanding comes along."""
        self.start = start
        self.settled = sum(nanos for day, nanos in self.charged.items() if day >= start)
        self.credit = sum(nanos for day, nanos in self.credited.items() if day >= start)
        for name, lease in self.leases.items():
            left = lease.outstanding
            self.leases[name] = MemoryLease(start, max(0, left), late=max(0, -left))


def find_start(period: QuotaPeriod, day: UtcDay) -> int:
    return {"daily": day.number, "monthly": day.month_number}.get(period, 0)


class MemoryCredit:
    """What all nodes share."""

    def __init__(self) -> None:
        self.balances: dict[BalanceId, MemoryBalance] = {}
        self.nodes: list[MemoryCreditAuthority] = []
        self.claimed: dict[BalanceId, str] = {}

    def open(self, balance: BalanceId, limit: int, day: UtcDay, period: QuotaPeriod = "lifetime") -> None:
        self.balances[balance] = MemoryBalance(period, limit, find_start(period, day))

    def turn(self, balance: BalanceId, day: UtcDay) -> MemoryBalance | None:
        """Return the balance in the window of ``day`` or a later one; None without a limit."""
        found = self.balances.get(balance)
        if found is None or found.limit is None:
            return None
        if (start := find_start(found.period, day)) > found.start:
            found.begin(start)
        return found

    def change_limit(
        self, balance: BalanceId, limit: int | None, day: UtcDay, period: QuotaPeriod | None = None
    ) -> None:
        found = self.balances[balance]
        found.limit, found.period = limit, period or found.period
        if limit is not None:
            found.begin(find_start(found.period, day))

    def add_credit(self, balance: BalanceId, nanos: int, day: UtcDay) -> None:
        self.balances[balance].credited[day.number] += nanos
        if (found := self.turn(balance, day)) is not None:
            found.credit = sum(some for number, some in found.credited.items() if number >= found.start)

    def post(self, node: str, day: UtcDay, amounts: Mapping[BalanceId, int]) -> None:
        for balance, nanos in amounts.items():
            if (found := self.balances.get(balance)) is None:
                continue
            limited = self.turn(balance, day) is not None
            found.charged[day.number] += nanos
            start = find_start(found.period, day)
            if (lease := found.leases.get(node)) is None:
                if limited and start == found.start:
                    found.leases[node] = MemoryLease(start, 0, nanos)
            elif start >= lease.start:
                lease.posted += nanos
            else:
                lease.late += nanos


class MemoryCreditAuthority:
    """A node's way to ``MemoryCredit``.

    Attributes:
        fails: before or after its work the next call is cut off; empty: none is.
        asked: every request so far.
        sizes: of how many balances each call took credit or gave it back.
    """

    def __init__(self, credit: MemoryCredit, node: str, live: int = 2, events: Events | None = None) -> None:
        self.credit, self.node, self.live = credit, node, live
        self.events = events or Events()
        self.fails = ""
        self.asked: list[CreditRequest] = []
        self.sizes: list[int] = []
        credit.nodes.append(self)

    async def take(self, credit_requests: Sequence[CreditRequest], day: UtcDay) -> Sequence[CreditGrant]:
        self._cut("before")
        self.asked += credit_requests
        self.sizes.append(len(credit_requests))
        grants = [self._grant(request, day) for request in credit_requests]
        self._cut("after")
        return grants

    def _grant(self, request: CreditRequest, day: UtcDay) -> CreditGrant:
        found = self.credit.turn(request.balance, day)
        if found is None:
            return CreditGrant(request.balance, False, 0, None, 0)
        lease, mended, granted, others, holders = found.leases.get(self.node), 0, 0, 0, 0
        if lease is not None and (lease.late or lease.posted > lease.granted):
            mended = max(0, -lease.outstanding)
            lease.granted, lease.late = max(lease.granted - lease.late, lease.posted), 0
        room = found.room
        if request.needed_nanos > 0 and room >= request.min_nanos:
            granted = min(room, max(request.needed_nanos, min(request.desired_nanos, int(room / (2 * self.live)))))
            found.leases.setdefault(self.node, MemoryLease(found.start)).granted += granted
        else:
            theirs = [max(0, each.outstanding) for name, each in found.leases.items() if name != self.node]
            others, holders = sum(theirs), sum(map(bool, theirs))
        own = found.leases.get(self.node)
        outstanding = 0 if own is None else own.outstanding
        left = room - granted
        return CreditGrant(request.balance, True, granted + mended, left, others, found.start, outstanding, holders)

    async def return_credit(self, amounts: Mapping[BalanceId, int], reported: Collection[BalanceId] = ()) -> None:
        self._cut("before")
        self.sizes += [len(amounts)] if amounts else []
        for balance, nanos in amounts.items():
            if (lease := self.credit.balances[balance].leases.get(self.node)) is not None:
                lease.granted -= nanos
        for node in self._others() if reported else ():
            node.events.publish(CreditReturned(reported))
            node.events.publish(RecallAnswered(self.node, reported))
        self._cut("after")

    async def report_kept(self, balances: Collection[BalanceId]) -> None:
        self._cut("before")
        for node in self._others():
            node.events.publish(RecallAnswered(self.node, balances))

    async def take_overdrafts(self, balances: Collection[BalanceId]) -> bool:
        self._cut("before")
        if any(each in self.credit.claimed for each in balances):
            return False
        self.credit.claimed |= dict.fromkeys(balances, self.node)
        return True

    async def end_overdrafts(self, balances: Collection[BalanceId]) -> None:
        self._cut("before")
        for each in balances:
            if self.credit.claimed.get(each) == self.node:
                del self.credit.claimed[each]

    async def recall(self, balances: Collection[BalanceId]) -> None:
        self._cut("before")
        for node in self._others():
            node.events.publish(CreditRecalled(balances))

    async def find_leases(self) -> Sequence[StoredLease]:
        self._cut("before")
        return [
            StoredLease(balance, lease.granted, lease.posted, lease.late)
            for balance, found in self.credit.balances.items()
            if (lease := found.leases.get(self.node)) is not None
        ]

    async def end_leases(self) -> None:
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
