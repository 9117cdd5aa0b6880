"""Keeps the credit of this node: requests credit, refills ahead of need, and returns idle credit.

One statement runs at a time; requests that arrive meanwhile share the next one (natural batching). Only the worker
talks to the store, so a disconnecting client cannot interrupt a statement.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import structlog

from gateway.cluster.credit.queue import CreditQueue, Verdict, WaitingRequest, collect
from gateway.cluster.credit.recalls import Recalls
from gateway.cluster.membership.times import TIMES
from gateway.domain.balance import DAY_S, Reservation, UtcDay
from gateway.domain.credit import (
    BalanceId,
    CreditAuthority,
    CreditGrant,
    CreditRecalled,
    CreditReturned,
    CreditWant,
    LeaseClaim,
    RecallAnswered,
)
from gateway.domain.leased_balance import (
    CreditRefusal,
    LeasedBalance,
    describe_lease,
    find_surplus,
    is_unused,
    merge_wants,
)
from gateway.errors import StoreUnavailable
from gateway.events import Events

PAUSES_S = (0.1, 0.1, 0.2, 0.4, 0.8)
"""How long to wait after each recall for nodes that do not answer, in seconds."""
RETRY_S = 0.1
SWEEP_S = 5.0
SLICE = 500
"""Balances per statement, because a statement has a time limit."""
_AHEAD_EVERY_S, _DRY_S = 0.1, 1.0
_SHORT_MEMORY_S, _LONG_MEMORY_S = 0.25, 5.0

FindUnposted = Callable[[], AbstractAsyncContextManager[Callable[[], Mapping[BalanceId, int]]]]
"""Blocks the flush of rows, and returns the function that adds up settled charges that are not stored."""

StoreClaims = Callable[[Mapping[BalanceId, LeaseClaim]], Awaitable[None]]
"""Makes these claims the node's leases."""

log = structlog.stdlib.get_logger(__name__)


class CreditKeeper:
    """The leases of this node.

    Args:
        events: what the other nodes do, as ``authority`` publishes it.
        reach: advances the node's clock to a time (Unix seconds) if it is behind, so that the credit of a window is
            spent in that window.

    Attributes:
        now: seconds of a monotonic clock.
        correcting: locked while leases are read again. A job's reservation leaves its lease under this lock, too.
    """

    def __init__(
        self,
        authority: CreditAuthority,
        events: Events,
        find_unposted: FindUnposted,
        *,
        today: Callable[[], UtcDay],
        now: Callable[[], float],
        reach: Callable[[float], object],
        pauses_s: Sequence[float] = PAUSES_S,
        wait_s: float = TIMES.credit_wait_s,
    ) -> None:
        self._authority = authority
        self._find_unposted = find_unposted
        self._today = today
        self.now = now
        self._recalls = Recalls()
        self._queue = CreditQueue(pauses_s, self._recalls)
        self._known: dict[BalanceId, LeasedBalance] = {}
        self._low: set[LeasedBalance] = set()
        self._recalled: set[LeasedBalance] = set()
        self._returns: Counter[BalanceId] = Counter()
        self._to_recall: set[BalanceId] = set()
        self._credited: set[BalanceId] = set()
        self._wanted_overdrafts: list[tuple[Collection[BalanceId], asyncio.Future[bool]]] = []
        self._ended_overdrafts: set[BalanceId] = set()
        self._wake = asyncio.Event()
        self._sweep_s = now() + SWEEP_S
        self._lost = False
        self.correcting = asyncio.Lock()
        self.wait_s = wait_s
        self._reach = reach
        events.subscribe(CreditRecalled, self._note_recalled)
        events.subscribe(CreditReturned, self._note_returned)
        events.subscribe(RecallAnswered, self._note_answered)

    async def wait(
        self,
        balances: Sequence[LeasedBalance],
        nanos: int,
        reserve: Callable[[], Reservation | None],
        *,
        release: Callable[[Reservation], object] | None,
        partial: bool = False,
        recalling: bool = True,
    ) -> Reservation | None:
        """Return the reservation that ``reserve`` makes once credit is granted; None if the store has too little.

        Args:
            balances: those that ``reserve`` reserves from.
            nanos: the amount.
            reserve: makes the reservation; None if a balance is short.
            release: releases the reservation of a request that no longer waits for it. None for a request that wants
                more: it keeps what it has.
            partial: accept any amount that the store has.
            recalling: other nodes return their idle credit.

        Raises:
            StoreUnavailable: the store does not answer in time.
        """
        answer: asyncio.Future[Reservation | None] = asyncio.get_running_loop().create_future()
        for balance in balances:
            self._known[balance.id] = balance
            balance.demand.update_large(nanos)
        self._queue.put(WaitingRequest(balances, nanos, reserve, answer, partial, recalling))
        self._wake.set()
        try:
            async with asyncio.timeout(self.wait_s):
                return await answer
        except TimeoutError:
            self._discard(answer, release)
            raise StoreUnavailable("The gateway's store does not answer", retry_after_s=2) from None
        except asyncio.CancelledError:
            self._discard(answer, release)
            raise

    async def take_overdrafts(self, balances: Collection[BalanceId]) -> bool:
        """Get overdrafts of ``balances`` until ``end_overdrafts``; return False if another node has one."""
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._wanted_overdrafts.append((balances, answer))
        self._wake.set()
        try:
            async with asyncio.timeout(self.wait_s):
                return await answer
        except TimeoutError:
            raise StoreUnavailable("The gateway's store does not answer", retry_after_s=2) from None

    def end_waits(self) -> None:
        """Refuse every waiting request, because the node has lost touch with the store."""
        waiting: list[asyncio.Future[Any]] = [request.answer for request in self._queue.list_waiting()]
        for answer in (*waiting, *(answer for _, answer in self._wanted_overdrafts)):
            if not answer.done():
                answer.set_exception(StoreUnavailable("The gateway has lost touch with its store", retry_after_s=2))

    def end_overdrafts(self, balances: Iterable[BalanceId]) -> None:
        self._ended_overdrafts.update(balances)
        self._wake.set()

    def ask_ahead(self, balance: LeasedBalance) -> None:
        if balance not in self._low and self.now() >= max(balance.demand.ahead_s, balance.demand.no_credit_until_s):
            self._known[balance.id] = balance
            self._low.add(balance)
            self._wake.set()

    def return_idle(self, balance: LeasedBalance) -> None:
        """Return the idle credit of a balance whose limit has changed."""
        if given := balance.return_credit(balance.room_nanos):
            self._returns[balance.id] += given
            self._wake.set()

    def recall(self, balance: LeasedBalance) -> None:
        """Return the idle credit of a balance that was reduced, and ask the other nodes to do the same."""
        self._known[balance.id] = balance
        self._to_recall.add(balance.id)
        self.return_idle(balance)
        self._wake.set()

    def announce_credit(self, balance: LeasedBalance) -> None:
        """Announce that a refused balance has more credit: every node may ask for it again."""
        self._credited.add(balance.id)
        self._queue.resume({balance})
        self._wake.set()

    def reread_leases(self) -> None:
        self._lost = True
        self._wake.set()

    def distrust_leases(self) -> None:
        """Like ``reread_leases``, but spend nothing from the leases until then: the store may have ended them."""
        for balance in self._known.values():
            balance.lease_unknown = True
        self.reread_leases()

    async def restore_leases(self, store: StoreClaims) -> None:
        """Let ``store`` set this node's leases anew: the store was replaced by one that may lack the last changes.

        Until they are read again, nothing more is spent.
        """
        async with self.correcting, self._find_unposted() as add_up:
            unposted = add_up()
            leased = [balance for balance in self._known.values() if balance.leased]
            await store({each.id: each.claim(unposted.get(each.id, 0)) for each in leased})
            self._returns.clear()
        self.reread_leases()

    async def check(self) -> Sequence[str]:
        """Return errors in the leases: more held than granted, or less set aside in the store than granted here."""
        async with self.correcting, self._find_unposted() as add_up:
            stored = {lease.balance: lease.outstanding_nanos for lease in await self._authority.find_leases()}
            unposted = {} if self._lost else add_up()
            problems = []
            for balance in () if self._lost else self._known.values():
                if balance.leased and not balance.lease_unknown:
                    here = balance.granted_nanos - balance.used_nanos + unposted.get(balance.id, 0)
                    there = stored.get(balance.id, 0)
                    problems += describe_lease(balance, here + self._returns[balance.id], there)
        return problems

    async def run(self) -> None:
        while True:
            await self._sleep()
            try:
                await self.step()
            except StoreUnavailable as error:
                if not self._lost:
                    log.warning("credit_unknown", error=error.message)
                self._lost = True
                await asyncio.sleep(RETRY_S)

    async def step(self) -> None:
        """Do the pending work. Raises ``StoreUnavailable``: it may or may not have taken effect in the store."""
        self._wake.clear()
        if self._lost or self._queue.awaits_unknown_lease:
            await self._read_back()
        self._queue.serve()
        await self._return_credit()
        await self._update_overdrafts()
        now_s = self.now()
        due = self._queue.list_due(now_s)
        requested = collect(due)
        wants = merge_wants(requested, now_s)
        wants += self._collect_ahead({want.balance for want in wants}, now_s)
        if not wants:
            return
        answers: dict[BalanceId, CreditGrant] = {}
        for first in range(0, len(wants), SLICE):
            answers |= await self._take(wants[first : first + SLICE])
            self._queue.serve()
        await self._apply(self._queue.judge(due, answers, self.now()), answers)

    async def _take(self, wants: Sequence[CreditWant]) -> dict[BalanceId, CreditGrant]:
        quotas = {want.balance: self._known[want.balance].quota for want in wants}
        grants = await self._authority.take(wants, self._today())
        self._reach(max((grant.since_day for grant in grants), default=0) * DAY_S)
        for grant in grants:
            balance = self._known[grant.balance]
            if not grant.limited:
                balance.unlimited = quotas[grant.balance]
            elif grant.granted_nanos:
                balance.grant(grant.granted_nanos)
                balance.refusal = None
            else:
                balance.demand.no_credit_until_s = self.now() + _DRY_S
            if grant.limited and balance.exceeds(grant.outstanding_nanos):
                known_nanos = balance.granted_nanos - balance.used_nanos
                problems = describe_lease(balance, known_nanos, grant.outstanding_nanos)
                log.warning("credit_exceeds_lease", reason="; ".join(problems))
                balance.lease_unknown = True
                self.reread_leases()
        return {grant.balance: grant for grant in grants}

    def _collect_ahead(self, requested: Collection[BalanceId], now_s: float) -> list[CreditWant]:
        low, self._low = self._low, set()
        wants = []
        for balance in low:
            more = balance.demand.find_slice(now_s) - balance.room_nanos
            if balance.id not in requested and balance.leased and not balance.lease_unknown and more > 0:
                balance.demand.ahead_s = now_s + _AHEAD_EVERY_S
                wants.append(CreditWant(balance.id, 1, 1, more))
        return wants

    async def _apply(self, verdict: Verdict, answers: Mapping[BalanceId, CreditGrant]) -> None:
        now_s, day = self.now(), self._today()
        for balance, nanos in verdict.short.items():
            answer, before = answers[balance.id], balance.refusal
            memory_s = _SHORT_MEMORY_S if before is None else min(2 * before.memory_s, _LONG_MEMORY_S)
            left = min((answer.room_nanos or 0) + balance.room_nanos, nanos - 1)
            balance.refusal = CreditRefusal(nanos, left, answer.others_nanos, day.number, now_s + memory_s, memory_s)
        for request in verdict.refused:
            if not request.answer.done():
                request.answer.set_result(None)
        if verdict.recalled:
            self._recalls.note_sent(verdict.recalled, now_s)
            await self._authority.recall([each.id for each in verdict.recalled])

    async def _return_credit(self) -> None:
        """Return recalled credit, and from time to time idle credit: first in memory, then in the store."""
        recalled, self._recalled = self._recalled, set()
        returned: set[BalanceId] = set()
        kept: set[BalanceId] = set()
        for balance in recalled:
            given = balance.return_credit(balance.room_nanos)
            self._returns[balance.id] += given
            (returned if given else kept).add(balance.id)
        now_s = self.now()
        if now_s >= self._sweep_s:
            self._sweep_s = now_s + SWEEP_S
            self._sweep(now_s)
        amounts, self._returns = +self._returns, Counter()
        places = list(amounts)
        for first in range(0, len(places), SLICE):
            some = places[first : first + SLICE]
            await self._authority.return_credit({each: amounts[each] for each in some}, returned.intersection(some))
        if kept:
            await self._authority.report_kept(kept)
        if credited := set(self._credited):
            await self._authority.return_credit({}, credited)
            self._credited -= credited
        if called_in := set(self._to_recall):
            await self._authority.recall(called_in)
            self._to_recall -= called_in

    async def _update_overdrafts(self) -> None:
        """End overdrafts in the store, and take those that requests wait for."""
        if ended := set(self._ended_overdrafts):
            await self._authority.end_overdrafts(ended)
            self._ended_overdrafts -= ended
        while self._wanted_overdrafts:
            balances, answer = self._wanted_overdrafts[0]
            taken = not answer.done() and await self._authority.take_overdrafts(balances)
            del self._wanted_overdrafts[0]
            if not answer.done():
                answer.set_result(taken)
            elif taken:  # the client has disconnected meanwhile
                await self._authority.end_overdrafts(balances)

    def _sweep(self, now_s: float) -> None:
        for balance in self._known.values():
            if given := balance.return_credit(find_surplus(balance, now_s)):
                self._returns[balance.id] += given
        wanted = self._queue.find_balances() | self._low | self._find(self._returns)
        self._known = {
            number: each for number, each in self._known.items() if each in wanted or not is_unused(each, now_s)
        }
        self._recalls.sweep(now_s)

    async def _read_back(self) -> None:
        """Copy every lease from the store. Meanwhile no row is stored and no job takes its credit."""
        async with self.correcting, self._find_unposted() as add_up:
            stored = {lease.balance: lease for lease in await self._authority.find_leases()}
            unposted = add_up()
            for balance in self._known.values():
                self._returns.pop(balance.id, None)  # the store has this credit, and so does the node again
                balance.resync(stored.get(balance.id), unposted.get(balance.id, 0))
        self._lost = False

    async def _sleep(self) -> None:
        next_s = self._queue.find_next_s()
        until_s = min(self._sweep_s, self._sweep_s if next_s is None else next_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, until_s - self.now())):
                await self._wake.wait()

    def _note_recalled(self, recalled: CreditRecalled) -> None:
        self._recalled |= self._find(recalled.balances)
        self._wake.set()

    def _note_returned(self, returned: CreditReturned) -> None:
        found = self._find(returned.balances)
        for balance in found:
            balance.refusal = None
        self._queue.resume(found)
        self._wake.set()

    def _note_answered(self, answer: RecallAnswered) -> None:
        found = self._find(answer.balances)
        if complete := {each for each in found if self._recalls.note_answer(each, answer.node)}:
            self._queue.resume(complete)
            self._wake.set()

    def _find(self, balances: Iterable[BalanceId]) -> set[LeasedBalance]:
        return {self._known[each] for each in balances if each in self._known}

    @staticmethod
    def _discard(answer: "asyncio.Future[Reservation | None]", release: Callable[[Reservation], object] | None) -> None:
        """Release the reservation of a request that no longer waits."""
        if release is not None and answer.done() and not answer.cancelled() and answer.exception() is None:
            reservation = answer.result()
            if reservation is not None:
                release(reservation)
        answer.cancel()
