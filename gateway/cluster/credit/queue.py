"""Requests that wait for credit, in the order of their arrival."""

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

import attrs

from gateway.cluster.credit.recalls import Recalls
from gateway.domain.balance import Reservation
from gateway.domain.credit import BalanceId, CreditGrant
from gateway.domain.leased_balance import LeasedBalance
from gateway.errors import GatewayError

_Answers = Mapping[BalanceId, CreditGrant]

MIN_RECALL_ROUNDS = 2
"""How often nodes with idle credit are asked, at least, before a refusal: they may be granted more meanwhile."""


@attrs.define(eq=False)
class WaitingRequest:
    """A request that waits until all of its balances have room.

    Attributes:
        reserve: makes the reservation; None if a balance is short.
        answer: the reservation; None if the store has too little.
        partial: any amount granted by the store is useful.
        recalling: ask other nodes for their idle credit before a refusal; otherwise ask only the store, once.
        recall_count: how often other nodes were asked for their idle credit for this request.
        refused_s: when the store first had too little; infinite before.
        due_s: the earliest time to ask the store again.
    """

    balances: Sequence[LeasedBalance]
    nanos: int
    reserve: Callable[[], Reservation | None]
    answer: asyncio.Future[Reservation | None]
    partial: bool = False
    recalling: bool = True
    recall_count: int = 0
    refused_s: float = math.inf
    due_s: float = 0.0

    @property
    def short_balances(self) -> list[LeasedBalance]:
        return [balance for balance in self.balances if not balance.covers(self.nanos)]


@attrs.define
class Verdict:
    """The decisions that follow from the store's answers.

    Attributes:
        refused_requests: the requests that get no credit.
        short_balances: for each balance that refused requests, the nano-USD of the smallest of them.
        recalled_balances: the balances to recall from other nodes, with the number of nodes that have idle credit.
    """

    refused_requests: list[WaitingRequest] = attrs.Factory(list)
    short_balances: dict[LeasedBalance, int] = attrs.Factory(dict)
    recalled_balances: dict[LeasedBalance, int] = attrs.Factory(dict)

    def refuse(self, request: WaitingRequest, balances: Iterable[LeasedBalance]) -> None:
        self.refused_requests.append(request)
        for balance in balances:
            self.short_balances[balance] = min(request.nanos, self.short_balances.get(balance, request.nanos))


class CreditQueue:
    """The waiting requests. ``pauses_s``: the waits for answers after each recall, before a refusal."""

    def __init__(self, pauses_s: Sequence[float], recalls: Recalls) -> None:
        self._pauses_s = pauses_s
        self._recalls = recalls
        self._requests: list[WaitingRequest] = []

    def put(self, request: WaitingRequest) -> None:
        self._requests.append(request)

    @property
    def awaits_unknown_lease(self) -> bool:
        """Whether a request waits for a balance whose lease is unknown to the node."""
        return any(
            balance.leased and balance.lease_unknown for request in self.list_waiting() for balance in request.balances
        )

    def list_awaited_balances(self) -> set[LeasedBalance]:
        return {balance for request in self.list_waiting() for balance in request.balances}

    def find_next_s(self) -> float | None:
        return min((request.due_s for request in self.list_waiting()), default=None)

    def serve(self) -> None:
        """Make every reservation that the balances have room for, oldest first."""
        for request in self.list_waiting():
            try:
                reservation = request.reserve()
            except GatewayError as error:
                request.answer.set_exception(error)
                continue
            if reservation is not None:
                request.answer.set_result(reservation)
        self._requests = list(self.list_waiting())

    def list_waiting(self) -> Iterator[WaitingRequest]:
        return (request for request in self._requests if not request.answer.done())

    def list_due(self, now_s: float) -> list[WaitingRequest]:
        return [request for request in self.list_waiting() if request.due_s <= now_s]

    def resume(self, balances: AbstractSet[LeasedBalance]) -> None:
        """Let requests that wait for ``balances`` ask the store now: it may have more, or other nodes have answered."""
        for request in self.list_waiting():
            if not balances.isdisjoint(request.balances):
                request.due_s = 0.0

    def make_verdict(
        self, requests: Iterable[WaitingRequest], answers: _Answers, *, asked_s: float, now_s: float
    ) -> Verdict:
        """Decide what the answers of the store, which was asked at ``asked_s``, mean for ``requests``.

        While other nodes have idle credit, the balances are recalled and refused requests wait until a later ``due_s``.
        If all credit came back after ``asked_s``, they ask the store again.
        """
        verdict = Verdict()
        for request in requests:
            if request.answer.done():
                continue
            if not request.recalling:
                verdict.refused_requests.append(request)
                continue
            refusing_balances = [balance for balance in request.short_balances if _is_refused(answers.get(balance.id))]
            if not refusing_balances:
                continue
            request.refused_s = min(request.refused_s, now_s)
            holder_counts = {balance: answers[balance.id].holders for balance in refusing_balances}
            answered_s = self._find_answered_s(request, refusing_balances)
            if asked_s < answered_s < math.inf:
                request.due_s = 0.0
                continue
            is_last = answered_s <= asked_s or request.recall_count == len(self._pauses_s)
            if is_last or not all(holder_counts.values()):
                verdict.refuse(request, refusing_balances)
                continue
            next_s = max(map(self._recalls.find_next_s, refusing_balances))
            if next_s > now_s:
                request.due_s = next_s
                continue
            request.due_s = now_s + self._pauses_s[request.recall_count]
            request.recall_count += 1
            verdict.recalled_balances |= holder_counts
        return verdict

    def _find_answered_s(self, request: WaitingRequest, refusing_balances: Iterable[LeasedBalance]) -> float:
        """Return when the other nodes had returned their idle credit, after enough recalls; infinity before."""
        if request.recall_count < MIN_RECALL_ROUNDS:
            return math.inf
        return max(self._recalls.find_answered_s(balance, request.refused_s) for balance in refusing_balances)


def collect_reservations(requests: Iterable[WaitingRequest]) -> dict[LeasedBalance, list[int]]:
    """Return, for each balance with a known lease, the amounts in nano-USD that ``requests`` wait for.

    The amount of a ``partial`` request is split, because the store may grant less than all of it.
    """
    reserved_nanos: defaultdict[LeasedBalance, list[int]] = defaultdict(list)
    for request in requests:
        for balance in request.balances:
            if balance.leased and not balance.lease_unknown:
                # A request that accepts any amount needs at least one nano-USD.
                reserved_nanos[balance] += [1, request.nanos - 1] if request.partial else [request.nanos]
    return reserved_nanos


def _is_refused(answer: CreditGrant | None) -> bool:
    return answer is not None and answer.limited and not answer.granted_nanos
