"""Keeps the credit of this node: requests credit, refills ahead of need, and returns idle credit.

One statement runs at a time; requests that arrive meanwhile share the next one (natural batching). Requests wait for
the worker, which talks to the store, so a disconnecting client cannot interrupt a statement.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import structlog

from gateway.cluster.credit.queue import CreditQueue, Verdict, WaitingRequest, collect_reservations
from gateway.cluster.credit.recalls import Recalls
from gateway.cluster.membership.times import TIMES
from gateway.domain.balance import DAY_S, Reservation, UtcDay
from gateway.domain.credit import (
    BalanceId,
    CreditAuthority,
    CreditGrant,
    CreditRecalled,
    CreditRequest,
    CreditReturned,
    LeaseClaim,
    RecallAnswered,
)
from gateway.domain.leased_balance import (
    CreditRefusal,
    LeasedBalance,
    describe_lease,
    find_surplus,
    is_unused,
    merge_requests,
)
from gateway.errors import StoreUnavailable
from gateway.events import Events

RECALL_PAUSES_S = (0.1, 0.1, 0.2, 0.4, 0.8)
"""How long to wait after each recall for nodes that do not answer, in seconds."""
RETRY_S = 0.1
SWEEP_INTERVAL_S = 5.0
BALANCES_PER_STATEMENT = 500
"""Balances per statement, because a statement has a time limit."""
_AHEAD_INTERVAL_S, _NO_CREDIT_PAUSE_S = 0.1, 1.0
_MIN_REFUSAL_S, _MAX_REFUSAL_S = 0.25, 5.0

FindUnposted = Callable[[], AbstractAsyncContextManager[Callable[[], Mapping[BalanceId, int]]]]
"""Blocks the flush of rows, and returns the function that adds up settled charges that are not stored."""

StoreClaims = Callable[[Mapping[BalanceId, LeaseClaim]], Awaitable[None]]
"""Makes these claims the node's leases."""

log = structlog.stdlib.get_logger(__name__)


class CreditKeeper:
    """The leases of this node.

    Args:
        events: what the other nodes do, as ``authority`` publishes it.
        advance_clock: advances the node's clock to a time (Unix seconds) if it is behind: the credit of a window must
            be spent in that window.

    Attributes:
        now: seconds of a monotonic clock.
        correction_lock: locked while leases are read again. A job's reservation leaves its lease under this lock, too.
    """

    def __init__(
        self,
        authority: CreditAuthority,
        events: Events,
        find_unposted_charges: FindUnposted,
        *,
        today: Callable[[], UtcDay],
        now: Callable[[], float],
        advance_clock: Callable[[float], object],
        pauses_s: Sequence[float] = RECALL_PAUSES_S,
        wait_s: float = TIMES.credit_wait_s,
    ) -> None:
        self._authority = authority
        self._find_unposted = find_unposted_charges
        self._today = today
        self.now = now
        self._recalls = Recalls()
        self._queue = CreditQueue(pauses_s, self._recalls)
        self._balances: dict[BalanceId, LeasedBalance] = {}
        self._low_balances: set[LeasedBalance] = set()
        self._recalled_balances: set[LeasedBalance] = set()
        self._returned_nanos: Counter[BalanceId] = Counter()
        self._ended_subjects: list[BalanceId] = []
        self._balances_to_recall: set[BalanceId] = set()
        self._balances_to_announce: set[BalanceId] = set()
        self._overdraft_requests: list[tuple[Collection[BalanceId], asyncio.Future[bool]]] = []
        self._overdrafts_to_end: set[BalanceId] = set()
        self._wake = asyncio.Event()
        self._next_sweep_s = now() + SWEEP_INTERVAL_S
        self._leases_unknown = False
        self.correction_lock = asyncio.Lock()
        self.wait_s = wait_s
        self._advance_clock = advance_clock
        events.subscribe(CreditRecalled, self._handle_recall)
        events.subscribe(CreditReturned, self._handle_return)
        events.subscribe(RecallAnswered, self._handle_answer)

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
            release: releases the reservation of a request that no longer waits for it. None for a request that
                wants more: it keeps what it has.
            partial: whether any amount that the store has is accepted.
            recalling: whether other nodes are asked to return their idle credit.

        Raises:
            StoreUnavailable: the store does not answer in time, or the node has lost touch with it.
            GatewayError: an error of ``reserve``.
        """
        answer: asyncio.Future[Reservation | None] = asyncio.get_running_loop().create_future()
        self._add_balances(balances, nanos)
        request = WaitingRequest(balances, nanos, reserve, answer, partial, recalling)
        self._queue.put(request)
        self._wake.set()
        try:
            async with asyncio.timeout(self.wait_s):
                return await answer
        except TimeoutError:
            self._log_unanswered(request)
            self._discard_answer(answer, release)
            raise StoreUnavailable("The gateway's store does not answer", retry_after_s=2) from None
        except asyncio.CancelledError:
            self._discard_answer(answer, release)
            raise

    def _add_balances(self, balances: Iterable[LeasedBalance], nanos: int) -> None:
        """Let answers of the store reach ``balances``.

        Raises ``StoreUnavailable`` if they reach another object with the id of one of them.
        """
        for balance in balances:
            if self._balances.setdefault(balance.id, balance) is not balance:
                log.error("credit_balance_not_known", error=_describe(balance))
                raise StoreUnavailable("The credit of this request is not known", retry_after_s=2)
            balance.demand.update_large(nanos)

    def _log_unanswered(self, request: WaitingRequest) -> None:
        """Log what is known of a request that has waited in vain."""
        wait_s = round(request.due_s - self.now(), 3)
        reason = f"asked again in {wait_s} s, {request.recall_count} recalls, leases unknown: {self._leases_unknown}"
        log.error(
            "credit_not_answered", reason=reason, error="; ".join([_describe(each) for each in request.short_balances])
        )

    async def take_overdrafts(self, balances: Collection[BalanceId]) -> bool:
        """Get overdrafts of ``balances`` until ``end_overdrafts``; return False if another node has one."""
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._overdraft_requests.append((balances, answer))
        self._wake.set()
        try:
            async with asyncio.timeout(self.wait_s):
                return await answer
        except TimeoutError:
            raise StoreUnavailable("The gateway's store does not answer", retry_after_s=2) from None

    def end_waits(self) -> None:
        """Refuse every waiting request, because the node has lost touch with the store."""
        answers: list[asyncio.Future[Any]] = [request.answer for request in self._queue.list_waiting()]
        for answer in (*answers, *(answer for _, answer in self._overdraft_requests)):
            if not answer.done():
                answer.set_exception(StoreUnavailable("The gateway has lost touch with its store", retry_after_s=2))

    def end_overdrafts(self, balances: Iterable[BalanceId]) -> None:
        self._overdrafts_to_end.update(balances)
        self._wake.set()

    def find(self, balance: BalanceId) -> LeasedBalance | None:
        """Return the balance of this id; None if the node has no credit of it, and has not asked for some lately."""
        return self._balances.get(balance)

    def ask_ahead(self, balance: LeasedBalance) -> None:
        if balance not in self._low_balances and self.now() >= max(
            balance.demand.ahead_s, balance.demand.no_credit_until_s
        ):
            self._balances[balance.id] = balance
            self._low_balances.add(balance)
            self._wake.set()

    def return_idle(self, balance: LeasedBalance) -> None:
        """Give back the idle credit of a balance, because its limit has changed or its owner was deleted."""
        if nanos := balance.return_credit(balance.room_nanos):
            self._returned_nanos[balance.id] += nanos
            self._wake.set()

    def recall(self, balance: LeasedBalance) -> None:
        """Give back the idle credit of a balance that was reduced, and ask the other nodes to do the same."""
        self._balances[balance.id] = balance
        self._balances_to_recall.add(balance.id)
        self.return_idle(balance)
        self._wake.set()

    def announce_credit(self, balance: LeasedBalance) -> None:
        """Announce that a refused balance has more credit: every node may ask for it again."""
        self._balances_to_announce.add(balance.id)
        self._queue.resume({balance})
        self._wake.set()

    def reread_leases(self) -> None:
        self._leases_unknown = True
        self._wake.set()

    def distrust_leases(self) -> None:
        """Read the leases again, and spend nothing from them until then, because the store may have ended them."""
        for balance in self._balances.values():
            balance.lease_unknown = True
        self.reread_leases()

    async def restore_leases(self, store: StoreClaims) -> None:
        """Let ``store`` set this node's leases anew: the store was replaced by one that may lack the last changes.

        Until the leases are read again, nothing more is spent.
        """
        async with self.correction_lock, self._find_unposted() as add_up:
            unposted_nanos = add_up()
            leased_balances = [balance for balance in self._balances.values() if balance.leased]
            await store({balance.id: balance.claim(unposted_nanos.get(balance.id, 0)) for balance in leased_balances})
            self._returned_nanos.clear()
        self.reread_leases()

    async def check(self) -> Sequence[str]:
        """Describe errors in the leases: more held than granted, or less set aside in the store than granted here."""
        async with self.correction_lock, self._find_unposted() as add_up:
            stored_nanos = {lease.balance: lease.outstanding_nanos for lease in await self._authority.find_leases()}
            unposted_nanos = {} if self._leases_unknown else add_up()
            problems = []
            for balance in () if self._leases_unknown else self._balances.values():
                if balance.leased and not balance.lease_unknown:
                    node_nanos = balance.granted_nanos - balance.used_nanos + unposted_nanos.get(balance.id, 0)
                    store_nanos = stored_nanos.get(balance.id, 0)
                    problems += describe_lease(balance, node_nanos + self._returned_nanos[balance.id], store_nanos)
        return problems

    async def run(self) -> None:
        while True:
            await self._sleep()
            try:
                await self.step()
            except StoreUnavailable as error:
                if not self._leases_unknown:
                    log.warning("credit_unknown", error=error.message)
                self._leases_unknown = True
                await asyncio.sleep(RETRY_S)

    async def step(self) -> None:
        """Do the pending work. After ``StoreUnavailable`` the work may or may not have taken effect in the store."""
        self._wake.clear()
        if self._leases_unknown or self._queue.awaits_unknown_lease:
            await self._read_leases()
        self._queue.serve()
        await self._return_credit()
        await self._update_overdrafts()
        now_s = self.now()
        due_requests = self._queue.list_due(now_s)
        requested_nanos = collect_reservations(due_requests)
        credit_requests = merge_requests(requested_nanos, now_s)
        credit_requests += self._collect_ahead({request.balance for request in credit_requests}, now_s)
        if not credit_requests:
            return
        answers: dict[BalanceId, CreditGrant] = {}
        for start in range(0, len(credit_requests), BALANCES_PER_STATEMENT):
            answers |= await self._take_credit(credit_requests[start : start + BALANCES_PER_STATEMENT])
            self._queue.serve()
        verdict = self._queue.make_verdict(due_requests, answers, asked_s=now_s, now_s=self.now())
        await self._apply_verdict(verdict, answers)

    async def _take_credit(self, credit_requests: Sequence[CreditRequest]) -> dict[BalanceId, CreditGrant]:
        requests = {request.balance: request for request in credit_requests}
        quotas = {balance_id: self._balances[balance_id].quota for balance_id in requests}
        grants = await self._authority.take(credit_requests, self._today())
        self._advance_clock(max((grant.since_day for grant in grants), default=0) * DAY_S)
        for grant in grants:
            balance = self._balances[grant.balance]
            balance.note_answer(grant)
            if not grant.limited:
                balance.unlimited = quotas[grant.balance]
            elif grant.granted_nanos:
                balance.grant(grant.granted_nanos)
                balance.refusal = None
            else:
                balance.demand.no_credit_until_s = self.now() + _NO_CREDIT_PAUSE_S
            if grant.limited and balance.is_outdated(requests[grant.balance]):
                self.return_idle(balance)
            if grant.limited and balance.exceeds(grant.outstanding_nanos):
                known_nanos = balance.granted_nanos - balance.used_nanos
                problems = describe_lease(balance, known_nanos, grant.outstanding_nanos)
                log.warning("credit_exceeds_lease", reason="; ".join(problems))
                balance.lease_unknown = True
                self.reread_leases()
        return {grant.balance: grant for grant in grants}

    def _collect_ahead(self, requested_ids: Collection[BalanceId], now_s: float) -> list[CreditRequest]:
        low_balances, self._low_balances = self._low_balances, set()
        credit_requests = []
        for balance in low_balances:
            missing_nanos = balance.demand.find_slice(now_s) - balance.room_nanos
            if balance.id not in requested_ids and balance.leased and not balance.lease_unknown and missing_nanos > 0:
                balance.demand.ahead_s = now_s + _AHEAD_INTERVAL_S
                credit_requests.append(balance.build_request(1, 1, missing_nanos))
        return credit_requests

    async def _apply_verdict(self, verdict: Verdict, answers: Mapping[BalanceId, CreditGrant]) -> None:
        now_s, day = self.now(), self._today()
        for balance, nanos in verdict.short_balances.items():
            answer, former_refusal = answers[balance.id], balance.refusal
            memory_s = _MIN_REFUSAL_S if former_refusal is None else min(2 * former_refusal.memory_s, _MAX_REFUSAL_S)
            left_nanos = min((answer.room_nanos or 0) + balance.room_nanos, nanos - 1)
            balance.refusal = CreditRefusal(
                nanos, left_nanos, answer.others_nanos, day.number, now_s + memory_s, memory_s
            )
        for request in verdict.refused_requests:
            if not request.answer.done():
                request.answer.set_result(None)
        if verdict.recalled_balances:
            self._recalls.note_sent(verdict.recalled_balances, now_s)
            await self._authority.recall([balance.id for balance in verdict.recalled_balances])

    async def _return_credit(self) -> None:
        """Give back recalled credit, and from time to time idle credit: first in memory, then in the store."""
        recalled_balances, self._recalled_balances = self._recalled_balances, set()
        returned_balances: set[BalanceId] = set()
        kept_balances: set[BalanceId] = set()
        for balance in recalled_balances:
            nanos = balance.return_credit(balance.room_nanos)
            self._returned_nanos[balance.id] += nanos
            (returned_balances if nanos else kept_balances).add(balance.id)
        now_s = self.now()
        if now_s >= self._next_sweep_s:
            self._next_sweep_s = now_s + SWEEP_INTERVAL_S
            self._sweep(now_s)
        amounts, self._returned_nanos = +self._returned_nanos, Counter()
        balances, self._ended_subjects = [*amounts, *self._ended_subjects], []  # the latter with 0
        for start in range(0, len(balances), BALANCES_PER_STATEMENT):
            batch = balances[start : start + BALANCES_PER_STATEMENT]
            await self._authority.return_credit(
                {balance_id: amounts[balance_id] for balance_id in batch}, returned_balances.intersection(batch)
            )
        if kept_balances:
            await self._authority.report_kept(kept_balances)
        if announced_balances := set(self._balances_to_announce):
            await self._authority.return_credit({}, announced_balances)
            self._balances_to_announce -= announced_balances
        if balances_to_recall := set(self._balances_to_recall):
            await self._authority.recall(balances_to_recall)
            self._balances_to_recall -= balances_to_recall

    async def _update_overdrafts(self) -> None:
        """End overdrafts in the store, and take those that requests wait for."""
        if overdrafts_to_end := set(self._overdrafts_to_end):
            await self._authority.end_overdrafts(overdrafts_to_end)
            self._overdrafts_to_end -= overdrafts_to_end
        while self._overdraft_requests:
            balances, answer = self._overdraft_requests[0]
            is_taken = not answer.done() and await self._authority.take_overdrafts(balances)
            del self._overdraft_requests[0]
            if not answer.done():
                answer.set_result(is_taken)
            elif is_taken:  # the client has disconnected meanwhile
                await self._authority.end_overdrafts(balances)

    def _sweep(self, now_s: float) -> None:
        for balance in self._balances.values():
            if nanos := balance.return_credit(find_surplus(balance, now_s)):
                self._returned_nanos[balance.id] += nanos
        used_balances = (
            self._queue.list_awaited_balances() | self._low_balances | self._find_balances(self._returned_nanos)
        )
        unused_ids = [
            balance_id
            for balance_id, balance in self._balances.items()
            if balance not in used_balances and is_unused(balance, now_s)
        ]
        for balance_id in unused_ids:
            balance = self._balances.pop(balance_id)
            if balance_id[0] == "limit":
                self._ended_subjects.append(balance_id)
                if balance.room_nanos < 0:  # the store may end the lease: what is spent must not be asked for again
                    balance.lease_unknown = True
        self._recalls.sweep(now_s)

    async def _read_leases(self) -> None:
        """Copy every lease from the store. Meanwhile no row is stored and no job takes its credit."""
        async with self.correction_lock, self._find_unposted() as add_up:
            stored_leases = {lease.balance: lease for lease in await self._authority.find_leases()}
            unposted_nanos = add_up()
            for balance in self._balances.values():
                self._returned_nanos.pop(balance.id, None)  # the store has this credit, and so does the node again
                balance.resync(stored_leases.get(balance.id), unposted_nanos.get(balance.id, 0))
        self._leases_unknown = False

    async def _sleep(self) -> None:
        next_s = self._queue.find_next_s()
        until_s = min(self._next_sweep_s, self._next_sweep_s if next_s is None else next_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, until_s - self.now())):
                await self._wake.wait()

    def _handle_recall(self, event: CreditRecalled) -> None:
        self._recalled_balances |= self._find_balances(event.balances)
        self._wake.set()

    def _handle_return(self, event: CreditReturned) -> None:
        balances = self._find_balances(event.balances)
        for balance in balances:
            balance.refusal = None
        self._queue.resume(balances)
        self._wake.set()

    def _handle_answer(self, answer: RecallAnswered) -> None:
        balances, now_s = self._find_balances(answer.balances), self.now()
        if answered_balances := {
            balance for balance in balances if self._recalls.note_answer(balance, answer.node, now_s)
        }:
            self._queue.resume(answered_balances)
            self._wake.set()

    def _find_balances(self, balances: Iterable[BalanceId]) -> set[LeasedBalance]:
        return {self._balances[balance_id] for balance_id in balances if balance_id in self._balances}

    @staticmethod
    def _discard_answer(
        answer: "asyncio.Future[Reservation | None]", release: Callable[[Reservation], object] | None
    ) -> None:
        """Cancel an ``answer`` that no request waits for any more; release the reservation if one was made."""
        if release is not None and answer.done() and not answer.cancelled() and answer.exception() is None:
            reservation = answer.result()
            if reservation is not None:
                release(reservation)
        answer.cancel()


def _describe(balance: LeasedBalance) -> str:
    amounts = f"granted {balance.granted_nanos}, used {balance.used_nanos}, held {balance.held_nanos} (nano-USD)"
    return f"{balance.owner} {balance.owner_id}: {amounts}, lease unknown: {balance.lease_unknown}"
