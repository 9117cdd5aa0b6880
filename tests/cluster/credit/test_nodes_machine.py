"""S5: any order of requests, lost answers, crashes, midnights and credits: three nodes never spend too much.

Limits are changed, removed and set again, and change their period meanwhile.
"""

import asyncio
import os
from collections import Counter
from typing import Literal

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.domain.account import Caller
from gateway.domain.balance import DAY_S, UNLIMITED_QUOTA, OwnerId, QuotaPeriod, Reservation
from gateway.errors import GatewayError, StoreUnavailable
from tests.support.billing_services import ACCOUNT, KEY, capped
from tests.support.credit_cluster import MemoryNode
from tests.support.credit_memory import MemoryCredit

NAMES = ("a", "b", "c")
LIMITS: dict[OwnerId, int] = {("account", 1): 400, ("key", 7): 300, ("key", 8): 150}
DAILY: tuple[OwnerId, ...] = (("account", 1), ("key", 8))
SHARED = attrs.evolve(ACCOUNT, quota=capped(400, "daily"))
CALLERS = [
    Caller(SHARED, attrs.evolve(KEY, quota=capped(300))),
    Caller(SHARED, attrs.evolve(KEY, id=8, quota=capped(150, "daily"))),
    Caller(SHARED, attrs.evolve(KEY, id=9)),
]
NODES = st.integers(0, len(NAMES) - 1)
ANY = st.integers(0, 10**6)


@attrs.frozen(eq=False)
class Request:
    node: MemoryNode
    caller: Caller
    nanos: int
    task: "asyncio.Task[Reservation]"


def _list_balances(caller: Caller) -> tuple[OwnerId, OwnerId]:
    return ("account", caller.account.id), ("key", caller.key.id)


class CreditMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.credit = MemoryCredit()
        self.nodes = [MemoryNode(self.credit, name, live=3) for name in NAMES]
        for balance, limit in LIMITS.items():
            period = "daily" if balance in DAILY else "lifetime"
            self.credit.open(balance, limit, self.nodes[0].balances.today, period)  # type: ignore[arg-type]
        self.callers = list(CALLERS)
        self.ceilings = dict(LIMITS)
        self.removed: set[OwnerId] = set()
        self.requests: list[Request] = []
        self.spent: dict[OwnerId, Counter[int]] = {balance: Counter() for balance in LIMITS}

    @rule(node=NODES, caller=st.integers(0, 2), nanos=st.integers(1, 60))
    def begin(self, node: int, caller: int, nanos: int) -> None:
        self.loop.run_until_complete(self._begin(self.nodes[node], self.callers[caller], nanos))

    async def _begin(self, node: MemoryNode, caller: Caller, nanos: int) -> None:
        self.requests.append(Request(node, caller, nanos, node.begin(caller, nanos)))
        await asyncio.sleep(0)

    @rule(node=NODES, passed_s=st.sampled_from([0.0, 0.06, 0.3, 70.0]))
    def step(self, node: int, passed_s: float) -> None:
        self.nodes[node].pulse += passed_s
        self.loop.run_until_complete(self._step(self.nodes[node]))

    async def _step(self, node: MemoryNode) -> None:
        try:
            await node.step()
        except StoreUnavailable:
            node.keeper.reread_leases()
            for _ in range(3):  # what was served before runs on
                await asyncio.sleep(0)

    @rule(which=ANY, part=st.one_of(st.floats(0, 1), st.just(3.0)))
    def settle(self, which: int, part: float) -> None:
        ready = [request for request in self.requests if request.task.done() and not request.task.cancelled()]
        if not ready:
            return
        request = ready[which % len(ready)]
        self.requests.remove(request)
        error = request.task.exception()
        if error is not None:
            assert isinstance(error, GatewayError)
            return
        cost = int(request.nanos * part)
        request.node.settle(request.caller, request.task.result(), cost)
        for balance in _list_balances(request.caller):
            if balance in LIMITS:
                self.ceilings[balance] += max(0, cost - request.nanos)
                self.spent[balance][self.nodes[0].balances.today.number] += cost

    @rule(which=ANY)
    def leave(self, which: int) -> None:
        waiting = [request for request in self.requests if not request.task.done()]
        if waiting:
            self._cancel([waiting[which % len(waiting)]])

    @rule(node=NODES)
    def post(self, node: int) -> None:
        self.nodes[node].post()

    @rule(node=NODES, moment=st.sampled_from(["before", "after"]))
    def lose(self, node: int, moment: Literal["before", "after"]) -> None:
        self.nodes[node].authority.fails = moment

    @rule(node=NODES)
    def crash(self, node: int) -> None:
        """The journal has what was settled; what was reserved is gone with the process."""
        old = self.nodes[node]
        self._cancel([request for request in self.requests if request.node is old and not request.task.done()])
        self.requests = [request for request in self.requests if request.node is not old]
        self.credit.nodes.remove(old.authority)
        old.post()
        self.nodes[node] = new = MemoryNode(self.credit, old.name, live=3)
        new.now, new.pulse = old.now, old.pulse
        self.loop.run_until_complete(new.authority.end_leases())

    @rule()
    def turn(self) -> None:
        for node in self.nodes:
            node.now += DAY_S

    @rule(balance=st.sampled_from(list(LIMITS)), nanos=st.integers(-100, 200), node=NODES)
    def credit_some(self, balance: OwnerId, nanos: int, node: int) -> None:
        self.credit.add_credit(balance, nanos, self.nodes[0].balances.today)
        self.nodes[node].balances.note_credit(*balance, nanos)
        self._set_ceiling(balance)

    @rule(
        balance=st.sampled_from(list(LIMITS)),
        limit=st.one_of(st.integers(0, 500), st.none()),
        period=st.sampled_from(["daily", "monthly", "lifetime"]),
    )
    def change_limit(self, balance: OwnerId, limit: int | None, period: QuotaPeriod) -> None:
        """The nodes hear of it with the next request."""
        self.credit.change_limit(balance, limit, self.nodes[0].balances.today, period)
        self.removed |= {balance} if limit is None else set()
        quota = UNLIMITED_QUOTA if limit is None else capped(limit, period)
        for number, caller in enumerate(self.callers):
            if balance[0] == "account":
                self.callers[number] = attrs.evolve(caller, account=attrs.evolve(caller.account, quota=quota))
            elif caller.key.id == balance[1]:
                self.callers[number] = attrs.evolve(caller, key=attrs.evolve(caller.key, quota=quota))
        self._set_ceiling(balance)

    @rule(node=NODES)
    def lose_a_node(self, node: int) -> None:
        """One that had posted everything was held for dead, and its leases were released; it comes back."""
        found = self.nodes[node]
        if not any(found.unposted.values()) and not found.balances.reservations:
            fails, found.authority.fails = found.authority.fails, ""
            self.loop.run_until_complete(found.authority.end_leases())
            found.authority.fails = fails
            found.keeper.distrust_leases()

    def _set_ceiling(self, balance: OwnerId) -> None:
        """What was granted under a higher limit may still be spent, and what was admitted without one."""
        found = self.credit.balances[balance]
        if found.limit is not None:
            self.ceilings[balance] = max(found.limit + found.credit, found.counted) + self._sum_beside(balance)

    def _sum_beside(self, balance: OwnerId) -> int:
        """Return what is in no lease: nodes admitted it without a limit, or will if they have not heard of one."""
        beside = 0
        for node in self.nodes:
            own, lease = node.find(balance), self.credit.balances[balance].leases.get(node.name)
            known = own.held_nanos + node.unposted[balance]
            if not own.leased:
                known += sum(
                    request.nanos
                    for request in self.requests
                    if request.node is node and not request.task.done() and balance in _list_balances(request.caller)
                )
            beside += max(0, known - max(0, 0 if lease is None else lease.outstanding))
        return beside

    def _cancel(self, requests: list[Request]) -> None:
        async def cancel() -> None:
            for request in requests:
                request.task.cancel()
            await asyncio.gather(*(request.task for request in requests), return_exceptions=True)

        self.loop.run_until_complete(cancel())
        self.requests = [request for request in self.requests if request not in requests]

    @invariant()
    def no_more_is_spent_than_the_limits_allow(self) -> None:
        for balance in LIMITS:
            found = self.credit.balances.get(balance)
            if found is None or found.limit is None:
                continue
            beside = self._sum_beside(balance)
            known, limit = found.counted + beside, found.limit + found.credit + beside
            self.ceilings[balance] = max(limit, min(self.ceilings[balance], known))
            assert known <= self.ceilings[balance]
            assert sum(nanos for day, nanos in self.spent[balance].items() if day >= found.start) <= known

    @invariant()
    def no_node_has_more_than_the_store_has_set_aside_for_it(self) -> None:
        for node in self.nodes:
            for balance in LIMITS:
                own, lease = node.find(balance), self.credit.balances[balance].leases.get(node.name)
                outstanding = 0 if lease is None else lease.outstanding
                if own.lease_unknown:  # nothing is reserved before its lease is read back
                    continue
                if own.leased:
                    assert own.room_nanos + own.beyond_nanos >= 0
                assert outstanding >= own.granted_nanos - own.used_nanos + node.unposted[balance]

    def teardown(self) -> None:
        """At the end each node and the store agree to the nano-USD, and all credit comes back."""
        try:
            self._finish()
        finally:
            self.loop.close()

    def _finish(self) -> None:
        self._cancel([request for request in self.requests if not request.task.done()])
        for request in self.requests:
            if not request.task.cancelled() and request.task.exception() is None:
                request.node.settle(request.caller, request.task.result(), 0)
        for node in self.nodes:
            node.authority.fails = ""
            self.loop.run_until_complete(self._step(node))
            node.post()
            for balance in LIMITS:
                own, lease = node.find(balance), self.credit.balances[balance].leases.get(node.name)
                outstanding = 0 if lease is None else lease.outstanding
                assert own.held_nanos == 0
                if own.leased and not own.lease_unknown:
                    here = own.granted_nanos - own.used_nanos
                    # What is posted without a limit and a lease is in no lease.
                    assert here <= outstanding if balance in self.removed else here == outstanding
            self.loop.run_until_complete(node.authority.end_leases())
        assert not any(found.leases for found in self.credit.balances.values())


TestCredit = CreditMachine.TestCase
TestCredit.settings = settings(
    max_examples=int(os.environ.get("EXAMPLES", "40")), stateful_step_count=40, deadline=None
)
