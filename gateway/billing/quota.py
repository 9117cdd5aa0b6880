"""Room 3: may this caller make this call? The answer is a Grant, the third parcel.

Money is decided in memory, in one go on the event loop, over the key and its account together; nothing is asked of a
provider before it, and nothing that was set aside outlives its call.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager

import attrs

from gateway.billing.write_queue import WriteQueue
from gateway.domain.account import Caller
from gateway.domain.balance import Balance, Charge, Owner, Reservation, UtcDay, hold, parse_day
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.ledger import Spending
from gateway.domain.rate_limit import RateLimiter, RateLimitPermit
from gateway.domain.request_log import RequestRecord
from gateway.domain.usage import estimate_tokens
from gateway.errors import QuotaExceeded, StoreUnavailable
from gateway.request_context import Arrival, Delivery, build_interrupted
from gateway.routing.target import Target
from gateway.storage.journal import RequestJournal

BREATH_S = 0.1
"""How much later a call is made while the store is behind."""


@attrs.define(eq=False)
class Grant:
    """Leave to call: what is held for it, and its turn at the rate limits. ``row``: how it was settled, once it was."""

    call: InferenceRequest
    hold: Reservation
    turn: RateLimitPermit | None = None
    delivery: Delivery = attrs.Factory(Delivery)
    row: RequestRecord | None = None


class Balances:
    """The purses of every key and account, and the holds that are open on them.

    Args:
        clock: Unix seconds.

    Attributes:
        load_day: has the running day read from the ledger, and calls ``confirm``; None: memory is believed.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._day = parse_day(clock())
        self._known: tuple[int, ...] = (self._day.number,)
        self._latest = self._day.number
        self._keys: dict[int, Balance] = {}
        self._accounts: dict[int, Balance] = {}
        self._pairs: dict[tuple[int, int], tuple[Balance, Balance]] = {}
        self.holds: set[Reservation] = set()
        self.load_day: Callable[[], None] | None = None

    @property
    def today(self) -> UtcDay:
        """The running day."""
        return self.day_at(self._clock())

    def day_at(self, now_s: float) -> UtcDay:
        """The day of a moment, in Unix seconds; of moments near to each other it is read once.

        If the purses may not know all that was spent on it, ``load_day`` is called until ``confirm`` is.
        """
        day = self._day
        if not day.holds(now_s):
            day = parse_day(now_s)
            if self.load_day is None or self._knows(day):
                self._turn_to(day)
            else:
                self.load_day()
        return day

    def confirm(self, *days: UtcDay, latest: int | None = None) -> None:
        """The purses know all that was spent on ``days``, the last of which is today. ``latest``: see ``_latest``."""
        self._day, self._known = days[-1], tuple([day.number for day in days])
        self._latest = max(self._latest, self._day.number, latest or 0)

    def _knows(self, day: UtcDay) -> bool:
        """Whether the purses know all that was spent on a day: it is one of the last two, or nothing can have been."""
        if day.number <= self._latest:
            return day.number in self._known
        return day.month_start_s == self._day.month_start_s or day.month_number > self._latest

    def _turn_to(self, day: UtcDay) -> None:
        # A purse knows the last two days on which it was used: of three there is one that it may have forgotten.
        if day.number > self._latest:
            before = (self._day.number,) if self._day.number == self._latest else ()
            self._known, self._latest = (*before, day.number), day.number
        self._day = day

    def _find_day(self, now_s: float) -> UtcDay:
        """The day of a moment. Raises ``StoreUnavailable`` while what was spent on it is being read."""
        day = self.day_at(now_s)
        if day is not self._day:
            raise StoreUnavailable("The clock was set, and what was spent on this day is being read", retry_after_s=1)
        return day

    def load(self, spending: Iterable[Spending], day: UtcDay) -> None:
        """Take in what the store knows, as of ``day``. A key's charges are its account's, too."""
        for balance, line in self._split(spending):
            today, month = balance.turn_to(day)
            balance.lifetime.add(line.lifetime_nanos, line.lifetime_credit_nanos)
            month.add(line.month_nanos, line.month_credit_nanos)
            today.add(line.day_nanos, line.day_credit_nanos)

    def load_before(self, spending: Iterable[Spending], day: UtcDay) -> None:
        """Take in what was spent on ``day``, the one before that which ``load`` is of: clocks are set back, too."""
        next_day = parse_day(day.end_s)
        for balance, line in self._split(spending):
            today, month = balance.turn_to(day)
            today.add(line.day_nanos, line.day_credit_nanos)
            if next_day.month_start_s != day.month_start_s:
                month.add(line.month_nanos, line.month_credit_nanos)

    def _split(self, spending: Iterable[Spending]) -> Iterator[tuple[Balance, Spending]]:
        """Every purse that a line is of, with what of the line is the purse's."""
        for line in spending:
            account = self.find_balance("account", line.account_id)
            if line.key_id is None:
                yield account, line
                continue
            yield self.find_balance("key", line.key_id), line
            yield account, attrs.evolve(line, lifetime_credit_nanos=0, month_credit_nanos=0, day_credit_nanos=0)

    def find_balance(self, owner: Owner, owner_id: int) -> Balance:
        """The purse of a key or an account."""
        balances = self._keys if owner == "key" else self._accounts
        balance = balances.get(owner_id)
        if balance is None:
            balance = balances[owner_id] = Balance(owner)
        return balance

    def list_balances(self, owner: Owner) -> list[tuple[int, Balance]]:
        """Every purse that was ever used, with its owner's id."""
        return list((self._keys if owner == "key" else self._accounts).items())

    def hold(self, caller: Caller, nanos: int) -> Reservation:
        """Set ``nanos`` aside in the purses of the key and of its account. Raises as ``check`` does."""
        now_s = self._clock()
        day = self._day
        if not day.holds(now_s):
            day = self._find_day(now_s)
        made = hold(self._open(caller, day), nanos, day, now_s)
        self.holds.add(made)
        return made

    def check(self, caller: Caller) -> None:
        """Raise ``QuotaExceeded`` if a purse has nothing left at all, be it held or not; ``StoreUnavailable``."""
        now_s = self._clock()
        day = self._find_day(now_s)
        balances = [(balance, balance.find_balance(day)) for balance in self._open(caller, day)]
        empty = [
            balance for balance, available_nanos in balances if available_nanos is not None and available_nanos <= 0
        ]
        hold(empty, 1, day, now_s)  # in any of these there is no room for it

    def settle(self, made: Reservation, cost_nanos: int, now_s: float) -> Charge:
        """Resolve a hold; what was resolved before stays as it is."""
        self.holds.discard(made)
        return made.settle(cost_nanos, self.day_at(now_s))

    def restore(self, account_id: int, key_id: int, nanos: int) -> Reservation:
        """What an earlier process has held for a job that goes on: it is held, whatever the caps are by now."""
        made = Reservation((self.find_balance("key", key_id), self.find_balance("account", account_id)), nanos)
        for balance in made.balances:
            balance.restore(nanos, self.today)
        self.holds.add(made)
        return made

    def release(self, made: Reservation) -> None:
        """Resolve a hold at no cost."""
        self.holds.discard(made)
        made.settle(0, self.today)

    def _open(self, caller: Caller, day: UtcDay) -> tuple[Balance, Balance]:
        """The purses of the key and of its account, under their quotas of this moment."""
        key, account = caller.key, caller.account
        pair = self._pairs.get((key.id, account.id))
        if pair is None:
            pair = self.find_balance("key", key.id), self.find_balance("account", account.id)
            self._pairs[key.id, account.id] = pair
        mine, shared = pair
        if mine.quota is not key.quota:
            mine.use(key.quota, day)
        if shared.quota is not account.quota:
            shared.use(account.quota, day)
        return pair


class QuotaService:
    """Grants calls.

    Args:
        bank: the purses.
        counters: the rate limits.
        journal: told of every call before it is made.
        outbox: where rows wait for the store; while it is stopped up, nothing is admitted.
    """

    def __init__(self, bank: Balances, counters: RateLimiter, journal: RequestJournal, outbox: WriteQueue) -> None:
        self._bank = bank
        self._counters = counters
        self._journal = journal
        self._outbox = outbox

    @property
    def open_holds(self) -> int:
        """Calls that money is held for, be it none."""
        return len(self._bank.holds)

    async def peek(self, caller: Caller, serves_free: Callable[[], bool]) -> None:
        """Raise what ``admit`` is bound to raise, before a call is read that may be large; nothing is taken or held.

        Money that is held for other calls may be free again by then. ``serves_free`` tells, where there is none left,
        whether this may be a call that costs nothing.

        Raises ``QuotaExceeded``, ``RateLimited`` or ``StoreUnavailable``.
        """
        self._outbox.check_room()
        try:
            self._bank.check(caller)
        except QuotaExceeded:
            if not serves_free():
                raise
        await self._counters.check(caller.subjects)

    async def check_rate(self, caller: Caller) -> None:
        """Raise ``RateLimited`` where the next call would be one too many; nothing is taken."""
        await self._counters.check(caller.subjects)

    @asynccontextmanager
    async def enter(self, caller: Caller) -> AsyncIterator[None]:
        """A turn at the rate limits for what costs nothing but asks a provider. Raises ``RateLimited``."""
        subjects = caller.subjects
        turn = await self._counters.take(subjects, 0) if subjects else None
        try:
            yield
        finally:
            if turn is not None:
                self._counters.give_back(turn, 0)

    async def admit(self, arrival: Arrival, call: InferenceRequest, options: Sequence[Target]) -> Grant:
        """Set the money aside, take a turn, and note that the call is about to be made.

        Raises as ``open`` does.
        """
        grant = await self.open(arrival, call, options)
        noted = False
        try:
            first = options[0] if options else None
            self._journal.start(build_interrupted(arrival, call, first, grant.hold.needed_nanos))
            noted = True
        finally:
            if not noted:
                self.give_back(grant)
        return grant

    async def open(self, arrival: Arrival, call: InferenceRequest, options: Sequence[Target]) -> Grant:
        """The same for a call that is noted elsewhere.

        ``options`` are all that may serve it, the likeliest first: what is held covers the dearest of them, and is
        held once, however many are tried. If the caller has a cap, what the call may cost by the output that it allows
        is held too, as far as it is there: else calls that run at the same time could each spend what is left.

        Raises ``QuotaExceeded``, ``RateLimited`` or ``StoreUnavailable``; then nothing is held.
        """
        if self._outbox.crowded:
            await self._wait_for_room()
        reserve = 0
        for option in options:
            bound = option.bound(call)
            reserve = max(reserve, option.find_most(bound) if option.named else option.cost(bound))
        held = self._bank.hold(arrival.caller, reserve)
        if held.left_nanos and call.max_output_tokens:
            _extend(held, call, options)
        subjects = arrival.caller.subjects
        if not subjects:
            return Grant(call, held)
        turn: RateLimitPermit | None = None
        try:
            tokens = estimate_tokens(call.prompt_chars)
            turn = self._counters.take_now(subjects, tokens) or await self._counters.take(subjects, tokens)
        finally:
            if turn is None:
                self._bank.release(held)
        return Grant(call, held, turn)

    async def _wait_for_room(self) -> None:
        """Let the store catch up, unless it cannot. Raises ``StoreUnavailable``.

        A commit takes some twenty turns of the event loop: with a thousand callers at once, who leave it no rest, rows
        would come faster than they are stored.
        """
        if not self._outbox.failing:
            await asyncio.sleep(BREATH_S)
        self._outbox.check_room()

    def give_back(self, grant: Grant) -> None:
        """The call is not made: its turn and what was held for it are free again."""
        self.leave(grant)
        self._bank.release(grant.hold)

    def leave(self, grant: Grant, tokens: int = 0) -> None:
        """Its turn has ended; what is held for it stays held."""
        if grant.turn is not None:
            self._counters.give_back(grant.turn, tokens)
            grant.turn = None

    def end(self, grant: Grant, cost_nanos: int, tokens: int, now_s: float) -> Charge:
        """A granted call is over: what was held for it becomes what it cost, and its turn ends."""
        self.leave(grant, tokens)
        return self._bank.settle(grant.hold, cost_nanos, now_s)


def _extend(held: Reservation, call: InferenceRequest, options: Sequence[Target]) -> None:
    """Hold what ``call`` may cost if its answers are as long as it allows, as far as that is left."""
    allowed = call.allowed_output
    if allowed > call.max_output_tokens:
        longest = attrs.evolve(call, max_output_tokens=allowed)
        held.extend(max((option.find_most(option.bound(longest)) for option in options), default=0))
