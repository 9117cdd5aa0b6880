"""Nodes of a cluster as far as money goes: balances, keeper and the rows that are not stored, over any authority."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from gateway.cluster.credit.balances import LeasedBalances
from gateway.cluster.credit.keeper import RECALL_PAUSES_S, CreditKeeper
from gateway.domain.account import Caller
from gateway.domain.balance import OwnerId, Reservation
from gateway.domain.credit import BalanceId
from gateway.domain.leased_balance import LeasedBalance
from tests.support.billing_services import NOON
from tests.support.credit_memory import MemoryCredit, MemoryCreditAuthority


class MemoryNode:
    """A node over ``MemoryCredit``. ``now`` is its clock (Unix seconds), ``pulse`` its monotonic one."""

    def __init__(self, credit: MemoryCredit, name: str, live: int = 2) -> None:
        self.now, self.pulse = NOON, 1_000.0
        self.credit, self.name = credit, name
        self.authority = MemoryCreditAuthority(credit, name, live)
        self.unposted: Counter[BalanceId] = Counter()
        self.posting = asyncio.Lock()
        self.keeper = CreditKeeper(
            self.authority,
            self.authority.events,
            self._find_unposted,
            today=lambda: self.balances.today,
            now=lambda: self.pulse,
            pauses_s=RECALL_PAUSES_S,
            advance_clock=lambda _: None,
        )
        self.balances = LeasedBalances(lambda: self.now, self.keeper)

    @asynccontextmanager
    async def _find_unposted(self) -> AsyncIterator[Callable[[], Mapping[BalanceId, int]]]:
        async with self.posting:
            yield lambda: self.unposted

    def find(self, balance: OwnerId) -> LeasedBalance:
        found = self.balances.find_balance(*balance)
        assert isinstance(found, LeasedBalance)
        return found

    def begin(self, caller: Caller, nanos: int) -> "asyncio.Task[Reservation]":
        """A request that wants a reservation."""
        return asyncio.ensure_future(self.hold(caller, nanos))

    async def hold(self, caller: Caller, nanos: int) -> Reservation:
        """As admission does it."""
        return self.balances.reserve_now(caller, nanos) or await self.balances.reserve(caller, nanos)

    async def step(self) -> None:
        """Let what is ready run, then the keeper once, and then those that it has answered."""
        await asyncio.sleep(0)
        await self.keeper.step()
        for _ in range(3):
            await asyncio.sleep(0)

    def settle(self, caller: Caller, reservation: Reservation, nanos: int) -> None:
        self.balances.settle(reservation, nanos, self.now)
        self.unposted.update({("key", caller.key.id): nanos, ("account", caller.account.id): nanos})

    def post(self) -> None:
        """The flush."""
        self.credit.post(self.name, self.balances.today, self.unposted)
        self.unposted.clear()
