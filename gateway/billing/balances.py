"""The balances of API keys and accounts, kept in memory while the gateway runs."""

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NoReturn, cast

import attrs

from gateway.deferred import load
from gateway.domain.account import Caller
from gateway.domain.balance import AnyBalance, Balance, Charge, Owner, Reservation, UtcDay, parse_day, reserve_all
from gateway.domain.ledger import Spending
from gateway.domain.request_log import RequestRecord
from gateway.errors import QuotaExceeded, StoreUnavailable
from gateway.request_context import RequestContext

if TYPE_CHECKING:  # only if a limit is configured, or an account has a time zone
    from gateway.billing.limits import SpendingLimits
    from gateway.domain.account_zone import AccountZone


class Balances:
    """The balances of every API key and account, and their open reservations.

    The counters are in memory and change only on the event loop. A single process mostly admits requests without I/O.

    Attributes:
        reservations: the open reservations, including those of 0.
        load_day: starts to load the current day's spending from the ledger, and calls ``confirm`` afterwards. If it is
            None, the balances are assumed to be complete for every day.
        existing: the ids of the existing keys and accounts; None while unknown.
        limits: the limits beyond those of keys and accounts; None if there are none.
        zones: the time zones of the accounts that have one.
    """

    def __init__(self, clock: Callable[[], float], zones: "Mapping[int, AccountZone] | None" = None) -> None:
        self._clock = clock
        self.zones: dict[int, AccountZone] = dict(zones or {})
        self._day = self.parse_day(clock())
        self._known_days: tuple[int, ...] = (self._day.number,)
        self._latest_day = self._day.number
        self._known_starts: tuple[int, ...] = (self._day.since_s,)
        self._latest_s = 0
        """Entries of accounts with a time zone are before this moment, except those of the current day."""
        self._balances_by_owner: dict[Owner, dict[int, Balance]] = {"key": {}, "account": {}}
        self._pairs: dict[tuple[int, int], tuple[Balance, Balance]] = {}
        self._gone_balances: dict[AnyBalance, int] = {}
        """The balances of deleted keys and accounts, with their owners' ids. Dropped once nothing is reserved."""
        self.reservations: set[Reservation] = set()
        self._overdrafts: set[AnyBalance] = set()
        self.limits: SpendingLimits | None = None
        self.load_day: Callable[[], None] | None = None
        self.existing: Mapping[Owner, Collection[int]] | None = None

    @property
    def today(self) -> UtcDay:
        return self.day_at(self._clock())

    def day_at(self, now_s: float) -> UtcDay:
        """Return the UTC day of ``now_s``. Calls ``load_day`` if the balances may lack some of its spending."""
        day = self._day
        if not day.contains(now_s):
            day = self.parse_day(now_s)
            if self.load_day is None or self._knows(day):
                self._begin_day(day)
            else:  # what ends meanwhile is charged on this day, also if another one is read
                self._latest_day, self._latest_s = max(self._latest_day, day.number), max(self._latest_s, day.until_s)
                self.load_day()
        return day

    def parse_day(self, now_s: float) -> UtcDay:
        """Return the UTC day of ``now_s``, or its part around ``now_s`` in which no day of ``zones`` begins."""
        day = parse_day(now_s)
        if not self.zones:
            return day
        return cast("UtcDay", load("billing.zone_days:narrow_day")(day, set(self.zones.values()), now_s))

    def set_zone(self, account_id: int, key_ids: Iterable[int], zone: "AccountZone") -> None:
        """Let the quotas of an account and of its keys ``key_ids`` follow a time zone."""
        if self.zones.get(account_id) is zone:
            return
        self.zones[account_id] = zone
        self._day = day = self.parse_day(min(max(self._clock(), self._day.since_s), self._day.until_s - 1))
        self._known_starts = ()  # the windows of other moments may begin and end elsewhere now
        balances, keys = [self._balances_by_owner["account"].get(account_id)], self._balances_by_owner["key"]
        for balance in balances + [keys.get(key_id) for key_id in key_ids]:
            if balance is not None:
                balance.set_zone(zone, day)
        if self.load_day is not None:  # if the clock was set back, entries of later moments may be in other windows now
            self.load_day()

    def make_empty(self) -> "Balances":
        """Return balances without amounts for the existing owners and the time zones of this moment."""
        balances = Balances(self._clock, self.zones)
        balances.existing = self.existing
        return balances

    def confirm(self, *days: UtcDay, latest: int | None = None, latest_s: int = 0) -> None:
        """Record that the balances contain all spending of ``days``, of which the last is the current one.

        No spending is newer than the day ``latest``. Accounts with a time zone have no entry at ``latest_s`` (Unix
        seconds) or later, except on the current day.
        """
        if self._day.since_s != days[-1].since_s:  # requests may have ended on it while ``days`` were read
            latest_s = max(latest_s, self._day.until_s)
        self._latest_s = max(self._latest_s, latest_s)
        self._day, self._known_days = days[-1], tuple([day.number for day in days])
        self._known_starts = (self._day.since_s,)
        self._latest_day = max(self._latest_day, self._day.number, latest or 0)

    def _knows(self, day: UtcDay) -> bool:
        """Return whether the balances contain all spending of ``day``: the day is known, or has no spending yet."""
        if self.zones and not self._knows_windows(day):
            return False
        if day.number <= self._latest_day:
            return day.number in self._known_days
        return day.month_start_s == self._day.month_start_s or day.month_number > self._latest_day

    def _knows_windows(self, day: UtcDay) -> bool:
        """Return whether the balances of accounts with a time zone contain all spending of their windows at ``day``.

        Each window of a later day has the current day in it, or begins after it. If no entry is after the current day,
        the first kind is known and the second is empty.
        """
        if day.since_s in self._known_starts:
            return True
        return self._day.since_s in self._known_starts and self._latest_s <= self._day.until_s <= day.since_s

    def _begin_day(self, day: UtcDay) -> None:
        # A balance keeps only the counters of the last two days on which it was used, so older days become unknown.
        if day.number > self._latest_day:
            former_days = (self._day.number,) if self._day.number == self._latest_day else ()
            self._known_days, self._latest_day = (*former_days, day.number), day.number
        if day.since_s not in self._known_starts:
            self._known_starts = (self._day.since_s, day.since_s)
        self._latest_s = max(self._latest_s, self._day.until_s)
        self._day = day

    def _find_day(self, now_s: float) -> UtcDay:
        """Return the UTC day of ``now_s``. Raises ``StoreUnavailable`` while its spending is being read."""
        day = self.day_at(now_s)
        if day is not self._day:
            raise StoreUnavailable("The clock was set, and what was spent on this day is being read", retry_after_s=1)
        return day

    def add_spending(self, spending: Iterable[Spending], day: UtcDay) -> None:
        """Add the stored spending as of ``day``. A charge to a key also counts for its account."""
        for balance, spent in self._list_amounts(spending):
            today, month = balance.begin_day(day)
            balance.lifetime.add(spent.lifetime_nanos, spent.lifetime_credit_nanos)
            month.add(spent.month_nanos, spent.month_credit_nanos)
            today.add(spent.day_nanos, spent.day_credit_nanos)

    def add_earlier_spending(self, spending: Iterable[Spending], day: UtcDay) -> None:
        """Add the spending of ``day``, the day before the current one, in case the clock is set back."""
        next_day = parse_day(day.end_s)
        for balance, spent in self._list_amounts(spending):
            if balance.zone is not None:  # its days are others: what it spent is read if the clock is set back
                continue
            today, month = balance.begin_day(day)
            today.add(spent.day_nanos, spent.day_credit_nanos)
            if next_day.month_start_s != day.month_start_s:
                month.add(spent.month_nanos, spent.month_credit_nanos)

    def _list_amounts(self, spending: Iterable[Spending]) -> Iterator[tuple[Balance, Spending]]:
        """Yield each ``Spending``'s balances with the amounts to add. A key's credit does not count for its account."""
        for spent in spending:
            if self.is_gone("account", spent.account_id):
                continue
            account = self.find_balance("account", spent.account_id)
            if spent.key_id is None:
                yield account, spent
                continue
            if not self.is_gone("key", spent.key_id):
                yield self.find_balance("key", spent.key_id, spent.account_id), spent
            yield account, attrs.evolve(spent, lifetime_credit_nanos=0, month_credit_nanos=0, day_credit_nanos=0)

    def find_balance(self, owner: Owner, owner_id: int, account_id: int = 0) -> Balance:
        """Return the balance of a key or an account. ``account_id``: the account of a key that may be new here."""
        balances = self._balances_by_owner[owner]
        balance = balances.get(owner_id)
        if balance is None:
            balance = balances[owner_id] = self._make_balance(owner, owner_id)
            balance.zone = self.zones.get(owner_id if owner == "account" else account_id)
            if self.is_gone(owner, owner_id):  # a job of a deleted key, or a request that began before the deletion
                self._gone_balances[balance] = owner_id
        return balance

    def _make_balance(self, owner: Owner, owner_id: int) -> Balance:  # noqa: ARG002 - a leased balance has an id
        return Balance(owner)

    def list_balances(self, owner: Owner) -> list[tuple[int, Balance]]:
        return list(self._balances_by_owner[owner].items())

    def is_gone(self, owner: Owner, owner_id: int) -> bool:
        return self.existing is not None and owner_id not in self.existing[owner]

    def drop_gone(self, existing: Mapping[Owner, Collection[int]], gone: Mapping[Owner, Collection[int]]) -> None:
        """Drop the balances of deleted keys and accounts, ``gone``, once nothing is reserved on them.

        A running request keeps its balances and charges the account's. A balance whose owner is in neither mapping
        stays, because its key may be too new to be in ``existing``.
        """
        self.existing = existing
        for owner, balances in self._balances_by_owner.items():
            gone_balances: dict[AnyBalance, int] = {
                balances[owner_id]: owner_id for owner_id in gone[owner] if owner_id in balances
            }
            self._gone_balances |= gone_balances
            self._drop_idle(gone_balances)

    def _drop_idle(self, balances: Iterable[AnyBalance]) -> None:
        held_balances = {balance for reservation in self.reservations for balance in reservation.balances}
        dropped_balances = set[AnyBalance]()
        for balance in balances:
            owner_id = self._gone_balances.get(balance)
            if owner_id is None or balance.held_nanos or balance in held_balances or not isinstance(balance, Balance):
                continue
            del self._gone_balances[balance]
            if balance.owner != "limit" and self.is_gone(balance.owner, owner_id):
                self._drop(balance, owner_id)
                dropped_balances.add(balance)
        if dropped_balances:
            self._pairs = {ids: pair for ids, pair in self._pairs.items() if dropped_balances.isdisjoint(pair)}

    def _drop(self, balance: Balance, owner_id: int) -> None:
        if balance.owner != "limit":
            del self._balances_by_owner[balance.owner][owner_id]

    def note_credit(self, owner: Owner, owner_id: int, nanos: int) -> None:
        """Hook for clusters, called after a balance was credited in the store.

        Does nothing here, because ``Balance.add_credit`` has counted the credit. ``nanos`` is negative for a debit.
        """

    def reserve_now(self, caller: Caller, nanos: int, ctx: RequestContext | None = None) -> Reservation | None:
        """Reserve ``nanos`` in the balances of the key and its account, and in those of limits for the request ``ctx``.

        Return None if ``reserve`` has to be awaited instead: for sessions and subjects of limits that were not read
        yet, and in a cluster if this node has too little credit.

        Raises ``QuotaExceeded`` if a balance has too little left, ``StoreUnavailable`` while the day's spending is
        being loaded.
        """
        now_s = self._clock()
        day = self._day
        if not day.since_s <= now_s < day.until_s:
            day = self._find_day(now_s)
        pair = self._pairs.get((caller.key.id, caller.account.id))
        if pair is None or pair[0].quota is not caller.key.quota or pair[1].quota is not caller.account.quota:
            pair = self._open(caller, day)
        if self.limits is not None and ctx is not None:
            reservation = self.limits.reserve_now(ctx, pair, nanos, day, now_s)
            if reservation is None:
                return None
        else:
            reservation = reserve_all(pair, nanos, day, now_s)
        self.reservations.add(reservation)
        return reservation

    async def reserve(self, caller: Caller, nanos: int, ctx: RequestContext | None = None) -> Reservation:
        """Reserve after ``reserve_now`` has returned None. Raises the same errors, and ``SessionEnded``."""
        reservation = None
        while reservation is None:
            if self.limits is not None and ctx is not None:
                await self.limits.load(ctx)
            reservation = self.reserve_now(caller, nanos, ctx)
        return reservation

    async def extend(self, reservation: Reservation, nanos: int) -> bool:
        """Get ``nanos`` for a reservation if its own ``extend`` did not. Return whether this asked the store.

        A single process never asks. If less than ``nanos`` is left, the request may exceed a limit, and each
        balance allows only one such request at a time. If another one is running, this releases the reservation and
        raises ``QuotaExceeded``.
        """
        short_balances = reservation.list_short_balances(nanos, self.today)
        if not self._take_overdrafts(reservation, short_balances):
            self._raise_exceeded(reservation, short_balances, nanos)
        return False

    def _take_overdrafts(self, reservation: Reservation, short_balances: Collection[AnyBalance]) -> bool:
        """Let only this reservation exceed ``short_balances``. Return False if another one may exceed any of them."""
        if not self._overdrafts.isdisjoint(short_balances):
            return False
        self._overdrafts.update(short_balances)
        reservation.overdrafts = short_balances
        return True

    def _end_overdrafts(self, reservation: Reservation) -> None:
        self._overdrafts.difference_update(reservation.overdrafts)
        reservation.overdrafts = ()

    def _raise_exceeded(self, reservation: Reservation, short_balances: Collection[AnyBalance], nanos: int) -> NoReturn:
        """Release a reservation and raise ``QuotaExceeded``, because ``short_balances`` cannot cover ``nanos``."""
        self.release(reservation)
        whole_balances = self._list_whole(short_balances)
        room_nanos = [balance.find_room(self.today) or 0 for balance in whole_balances]
        try:
            reserve_all(
                whole_balances, max(nanos, min(room_nanos) + 1), self.today, self._clock()
            )  # there may be more by now
        except QuotaExceeded as error:
            error.room_nanos = 0  # no hint at a shorter answer: it would not shorten the prompt
            raise
        raise AssertionError

    def _list_whole(self, balances: Collection[AnyBalance]) -> list[AnyBalance]:
        """Return the balances with all nodes' shares. A single process has no others."""
        return list(balances)

    def check(self, caller: Caller) -> None:
        """Raise ``QuotaExceeded`` if a balance is used up even without its reservations.

        Raises ``StoreUnavailable`` while the day's spending is being loaded.
        """
        now_s = self._clock()
        day = self._find_day(now_s)
        balances = [(balance, balance.find_balance(day)) for balance in self._open(caller, day)]
        empty_balances = [
            balance for balance, available_nanos in balances if available_nanos is not None and available_nanos <= 0
        ]
        reserve_all(empty_balances, 1, day, now_s)  # raises if there is any

    def settle(self, reservation: Reservation, cost_nanos: int, now_s: float) -> Charge:
        """Turn a reservation into a charge. A second call returns the first charge."""
        self.reservations.discard(reservation)
        if reservation.overdrafts:
            self._end_overdrafts(reservation)
        day = self._day
        if not day.since_s <= now_s < day.until_s:
            day = self.day_at(now_s)
        charge = reservation.settle(cost_nanos, day, now_s)
        if self._gone_balances:
            self._drop_idle(reservation.balances)
        return charge

    def restore(
        self, account_id: int, key_id: int, nanos: int, request: RequestContext | RequestRecord | None = None
    ) -> Reservation:
        """Reserve ``nanos`` regardless of quotas, as for a job that an earlier process has started.

        ``request`` has the facts by which limits are found; without it, only key and account count.
        """
        pair = self.find_balance("key", key_id, account_id), self.find_balance("account", account_id)
        if self.limits is None or request is None:
            reservation = Reservation(pair, nanos)
        else:
            reservation = self.limits.make_reservation(request, pair, nanos, self._clock())
        for balance in reservation.balances:
            balance.restore(nanos, self.today)
        self.reservations.add(reservation)
        return reservation

    @asynccontextmanager
    async def hand_over(self, reservation: Reservation) -> AsyncIterator[None]:  # noqa: ARG002 - it stays here
        """Hand a reservation over to the job that the block stores. A single process keeps it."""
        yield

    def release(self, reservation: Reservation) -> None:
        self.settle(reservation, 0, self._clock())

    def _open(self, caller: Caller, day: UtcDay) -> tuple[Balance, Balance]:
        """Return the balances of the key and its account, with their current quotas applied."""
        key, account = caller.key, caller.account
        pair = self._pairs.get((key.id, account.id))
        if pair is None:
            pair = self.find_balance("key", key.id, account.id), self.find_balance("account", account.id)
            self._pairs[key.id, account.id] = pair
        key_balance, account_balance = pair
        if key_balance.quota is not key.quota:
            key_balance.set_quota(key.quota, day)
        if account_balance.quota is not account.quota:
            account_balance.set_quota(account.quota, day)
        return pair
