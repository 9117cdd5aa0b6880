"""Room 3: may this caller make this call? The answer is a Grant, the third parcel.

Money is decided in memory, in one go on the event loop, over the key and its account together; nothing is asked of a
provider before it, and nothing that was set aside outlives its call.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import attrs

from gateway.billing.balances import Balances
from gateway.billing.write_queue import WriteQueue
from gateway.domain.account import Caller
from gateway.domain.balance import Charge, Reservation
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.rate_limit import RateLimiter, RateLimitPermit
from gateway.domain.usage import estimate_tokens
from gateway.errors import QuotaExceeded
from gateway.request_context import Arrival, Grant, build_interrupted
from gateway.routing.target import Target
from gateway.storage.journal import RequestJournal

BREATH_S = 0.1
"""How much later a call is made while the store is behind."""


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
