"""The balances of one node of a cluster: the node spends credit granted by the store, and asks for more when needed."""

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, cast

from gateway.billing.balances import Balances
from gateway.cluster.credit.keeper import CreditKeeper
from gateway.domain.account import Caller
from gateway.domain.balance import AnyBalance, Balance, Charge, Owner, Reservation, UtcDay, reserve_all
from gateway.domain.leased_balance import LeasedBalance, is_low
from gateway.errors import StoreUnavailable
from gateway.request_context import RequestContext

if TYPE_CHECKING:  # only if there are limits
    from gateway.domain.leased_limit_balance import LeasedLimitBalance
    from gateway.domain.limit_balance import LimitReservation
    from gateway.domain.request_budget import OwnBalance

BalancePair = tuple[LeasedBalance, LeasedBalance]
_PAIR_SIZE = 2


class LeasedBalances(Balances):
    """The balances of a node in a cluster."""

    def __init__(self, clock: Callable[[], float], keeper: CreditKeeper) -> None:
        super().__init__(clock)
        self._credit_keeper = keeper

    def _knows(self, day: UtcDay) -> bool:  # noqa: ARG002 - the store knows every day
        return True

    def reserve_now(self, caller: Caller, nanos: int, ctx: RequestContext | None = None) -> Reservation | None:
        now_s = self._clock()
        day = self._day
        if not day.start_s <= now_s < day.end_s:
            day = self._find_day(now_s)
        pair = self._find_pair(caller)
        if self.limits is None or ctx is None:
            return self._reserve_locally(pair, nanos, day, now_s)
        if not self.limits.knows_session(ctx):
            return None
        balances = (*pair, *self._list_limit_balances(ctx, now_s))
        return self._reserve_locally(balances, nanos, day, now_s, self.limits.find_own_balance(ctx))

    async def reserve(self, caller: Caller, nanos: int, ctx: RequestContext | None = None) -> Reservation:
        """Reserve ``nanos`` as soon as the store has granted the credit.

        Raises ``QuotaExceeded``, ``SessionEnded``.
        """
        own: OwnBalance | None = None
        balances: Sequence[LeasedBalance] = self._find_pair(caller)
        if self.limits is not None and ctx is not None:
            await self.limits.check_session(ctx)
            own = self.limits.find_own_balance(ctx)
            balances = (*self._find_pair(caller), *self._list_limit_balances(ctx, self._clock()))

        def reserve() -> Reservation | None:  # under the quotas of the latest request, not of this one
            now_s = self._clock()
            self._begin_windows(balances)
            return self._reserve_locally(balances, nanos, self._find_day(now_s), now_s, own)

        reservation = None
        while reservation is None:
            self._raise_if_refused(balances, nanos)
            reservation = await self._credit_keeper.wait(balances, nanos, reserve, release=self.release)
        self._begin_windows(balances)
        reservation.left_nanos = self._compute_room_nanos(reservation.balances)  # other requests were served meanwhile
        return reservation

    def _list_limit_balances(self, ctx: RequestContext, now_s: float) -> "Sequence[LeasedLimitBalance]":
        """Return the balances of a request's subjects of limits; empty without limits."""
        balances = self.limits.list_balances(ctx, now_s) if self.limits is not None else ()
        return cast("Sequence[LeasedLimitBalance]", balances)

    async def extend(self, reservation: Reservation, nanos: int) -> bool:
        """Raise a reservation to ``nanos`` by credit of the store and idle credit of other nodes.

        Return False, without a wait, if there was nothing to do. With too little credit the request may exceed a
        limit: only one such request per balance runs at a time in the whole cluster. Raises ``QuotaExceeded`` if
        another request does, ``StoreUnavailable`` if that is unknown.
        """
        now_s = self._credit_keeper.now()
        balances = [
            balance for balance in reservation.balances if isinstance(balance, LeasedBalance) and balance.leased
        ]
        if not balances:
            return await super().extend(reservation, nanos)
        if nanos <= reservation.nanos:
            return False
        self._begin_windows(balances)
        reservation.shrink()  # until it gets all, or is the only one: two requests must not wait for each other
        if not any(now_s < balance.demand.no_credit_until_s for balance in balances):
            with suppress(StoreUnavailable):
                await self._wait_for(reservation, balances, nanos, recalling=False)
        self._begin_windows(balances)
        if short_balances := reservation.list_short_balances(nanos, self._day):
            await self._extend_exclusively(reservation, short_balances, nanos)
        self._extend_locally(reservation, nanos)
        return True

    async def _extend_exclusively(
        self, reservation: Reservation, short_balances: Sequence[AnyBalance], nanos: int
    ) -> None:
        leased_balances = [balance for balance in short_balances if isinstance(balance, LeasedBalance)]
        if self._take_overdrafts(reservation, short_balances):
            if not leased_balances:
                return
            if await self._credit_keeper.take_overdrafts([balance.id for balance in leased_balances]):
                with suppress(StoreUnavailable):  # the request has enough credit anyway
                    await self._wait_for(reservation, leased_balances, nanos, is_alone=True)
                return
        super()._end_overdrafts(reservation)  # another request, perhaps of another node, has the overdraft
        if not self._list_refusing_balances(leased_balances, nanos - reservation.nanos):
            await self._wait_for(reservation, leased_balances, nanos)
        if reservation.list_short_balances(nanos, self._day):
            self._raise_exceeded(reservation, short_balances, nanos)

    async def _wait_for(
        self,
        reservation: Reservation,
        balances: Sequence[LeasedBalance],
        nanos: int,
        *,
        is_alone: bool = False,
        recalling: bool = True,
    ) -> None:
        """Wait until the balances have room for ``nanos`` in total, or the store has no more.

        ``is_alone``: the request is the only one that may exceed the balances. Its reservation takes all free credit
        meanwhile, since other nodes ask for it.
        """

        def try_extend() -> Reservation | None:
            self._begin_windows(balances)
            if is_alone:
                self._extend_locally(reservation, nanos)
            missing_nanos = nanos - reservation.nanos
            return reservation if all(balance.covers(missing_nanos) for balance in balances) else None

        missing_nanos = nanos - reservation.nanos
        await self._credit_keeper.wait(
            balances, missing_nanos, try_extend, release=None, partial=is_alone, recalling=recalling
        )

    def _end_overdrafts(self, reservation: Reservation) -> None:
        self._credit_keeper.end_overdrafts(
            [balance.id for balance in reservation.overdrafts if isinstance(balance, LeasedBalance)]
        )
        super()._end_overdrafts(reservation)

    def _list_whole(self, balances: Collection[AnyBalance]) -> list[AnyBalance]:
        return [balance.describe(self._day) if isinstance(balance, LeasedBalance) else balance for balance in balances]

    def check(self, caller: Caller) -> None:
        now_s = self._clock()
        day, at_s = self._find_day(now_s), self._credit_keeper.now()
        refusing_balances = [
            balance for balance in self._find_pair(caller) if balance.leased and balance.find_refusal(day, at_s)
        ]
        whole_balances = [balance.describe(day) for balance in refusing_balances]
        reserve_all([balance for balance in whole_balances if (balance.find_balance(day) or 0) <= 0], 1, day, now_s)

    def note_credit(self, owner: Owner, owner_id: int, nanos: int) -> None:
        """Note a credit entry, which is a debit if ``nanos`` is negative.

        After a credit all nodes forget the store's last refusal. After a debit they return idle credit.
        """
        balance = self.find_balance(owner, owner_id)
        if isinstance(balance, LeasedBalance):
            balance.refusal = None
            if nanos < 0:
                self._credit_keeper.recall(balance)
            else:
                self._credit_keeper.announce_credit(balance)

    @asynccontextmanager
    async def hand_over(self, reservation: Reservation) -> AsyncIterator[None]:
        """Hand a reservation over to the job that the block stores. If the block fails, the leases are read again."""
        balances = [balance for balance in reservation.balances if isinstance(balance, LeasedBalance)]
        async with self._credit_keeper.correction_lock:
            for balance in balances:
                balance.detach(reservation.nanos)
            is_stored = False
            try:
                yield
                is_stored = True
            finally:
                if not is_stored:
                    for balance in balances:
                        balance.hold(reservation.nanos)
                        balance.lease_unknown = True  # also one that the keeper has dropped since
                    self._credit_keeper.reread_leases()
        self.reservations.discard(reservation)
        reservation.charge = Charge(0, 0)
        reservation.end_use()
        if self._gone_balances:
            self._drop_idle(balances)

    def _reserve_locally(
        self, balances: Sequence[LeasedBalance], nanos: int, day: UtcDay, now_s: float, own: "OwnBalance | None" = None
    ) -> Reservation | None:
        """Reserve in the balances of a key, its account and subjects of limits; return None if one lacks credit.

        ``own``: the balance of a request with a budget of its own. Raises ``QuotaExceeded`` if that has too little.
        """
        if own is not None and own.find_room(day) < nanos:
            reserve_all((own,), nanos, day, now_s)  # raises before credit is asked for
        if nanos:
            for balance in balances:
                if not balance.covers(nanos):
                    return None
        reservation: Reservation
        if len(balances) > _PAIR_SIZE:
            reservation = self._reserve_under_limits(balances, nanos, day, now_s, own)
        else:
            all_balances: Sequence[AnyBalance] = balances if own is None else (*balances, own)
            reservation = reserve_all(all_balances, nanos, day, now_s)
        self.reservations.add(reservation)
        if nanos:
            self._record_demand(balances, nanos)
        return reservation

    @staticmethod
    def _reserve_under_limits(
        balances: Sequence[LeasedBalance], nanos: int, day: UtcDay, now_s: float, own: "OwnBalance | None"
    ) -> "LimitReservation":
        from gateway.domain.limit_balance import LimitReservation  # noqa: PLC0415 - only with limits

        limit_balances = cast("Sequence[LeasedLimitBalance]", balances[_PAIR_SIZE:])
        all_balances: Sequence[AnyBalance] = balances
        if own is not None:
            all_balances = (*balances[:_PAIR_SIZE], own, *limit_balances)
        reservation = cast("LimitReservation", reserve_all(all_balances, nanos, day, now_s, LimitReservation))
        reservation.use(limit_balances)
        # The budget of a session has no cap in its book: another header tells what is left of it.
        known_balances = [
            balance
            for balance in limit_balances
            if balance.store_nanos is not None and balance.book.cap_nanos is not None
        ]
        reservation.limit_left_nanos = min([balance.left_nanos for balance in known_balances], default=None)
        soft_balances = [balance for balance in known_balances if balance.left_nanos <= balance.book.soft_left_nanos]
        if soft_balances:
            reservation.soft_limit = min(soft_balances, key=lambda balance: balance.left_nanos).book.limit.name
        return reservation

    def _begin_windows(self, balances: Iterable[LeasedBalance]) -> None:
        """Begin the present window of each limit, so that credit of a raise that has ended can no longer be spent."""
        limit_balances = [cast("LeasedLimitBalance", balance) for balance in balances if balance.owner == "limit"]
        if limit_balances:
            from gateway.domain.limit_balance import begin_windows  # noqa: PLC0415 - only with limits

            begin_windows([balance.book for balance in limit_balances], self._clock())

    def _extend_locally(self, reservation: Reservation, nanos: int) -> None:
        reservation.left_nanos = self._compute_room_nanos(reservation.balances)
        reservation.extend(nanos)

    def _compute_room_nanos(self, balances: Iterable[AnyBalance]) -> int | None:
        """Return the amount that all ``balances`` still have room for; None if nothing limits them."""
        amounts = [
            0 if isinstance(balance, LeasedBalance) and balance.lease_unknown else balance.find_room(self._day)
            for balance in balances
            if balance.leased or not isinstance(balance, LeasedBalance)
        ]
        return min([nanos for nanos in amounts if nanos is not None], default=None)

    def _raise_if_refused(self, balances: Sequence[LeasedBalance], nanos: int) -> None:
        now_s = self._clock()
        day = self._find_day(now_s)
        refusing_balances = self._list_refusing_balances(balances, nanos)
        reserve_all([balance.describe(day) for balance in refusing_balances], nanos, day, now_s)

    def _list_refusing_balances(self, balances: Iterable[LeasedBalance], nanos: int) -> list[LeasedBalance]:
        day, at_s = self._day, self._credit_keeper.now()
        return [
            balance
            for balance in balances
            if balance.leased
            and (refusal := balance.find_refusal(day, at_s)) is not None
            and nanos >= refusal.min_nanos
        ]

    def _record_demand(self, balances: Sequence[LeasedBalance], nanos: int) -> None:
        at_s = self._credit_keeper.now()
        for balance in balances:
            if balance.leased:
                balance.demand.record(nanos, at_s)
                if is_low(balance):
                    self._credit_keeper.ask_ahead(balance)

    def _find_pair(self, caller: Caller) -> BalancePair:
        """Return the balances with their current quotas. Idle credit of a changed quota goes back to the store."""
        pair = self._pairs.get((caller.key.id, caller.account.id))
        if pair is None or pair[0].quota is not caller.key.quota or pair[1].quota is not caller.account.quota:
            former_quotas = [] if pair is None else [balance.quota for balance in pair]
            pair = self._open(caller, self._day)
            for balance, quota in zip(cast("BalancePair", pair), former_quotas, strict=False):
                if balance.quota != quota:
                    self._credit_keeper.return_idle(balance)
        return cast("BalancePair", pair)

    def _drop(self, balance: Balance, owner_id: int) -> None:
        if isinstance(balance, LeasedBalance) and balance.leased:
            self._credit_keeper.return_idle(balance)
        super()._drop(balance, owner_id)

    def _make_balance(self, owner: Owner, owner_id: int) -> Balance:
        return LeasedBalance(owner, owner_id=owner_id)
