"""Quota: may this caller make this request? If so, money is reserved and a permit of the rate limits is taken.

The balances of the key and its account are decided together, in memory and in one step on the event loop. No provider
is asked before that, and no reservation outlives its request.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import attrs

from gateway.billing.balances import Balances
from gateway.billing.request_record import build_start
from gateway.billing.write_queue import WriteQueue
from gateway.domain.account import Caller
from gateway.domain.balance import Charge, Reservation
from gateway.domain.inference_request import MAY_LIMIT, InferenceRequest
from gateway.domain.operation import OPERATIONS
from gateway.domain.output_limits import find_longest_answer
from gateway.domain.price import cost_nanos
from gateway.domain.rate_limit import RateLimiter
from gateway.domain.request_log import RequestStart
from gateway.domain.usage import CHARS_PER_TOKEN, estimate_tokens
from gateway.errors import GatewayError, QuotaExceeded, StoreUnavailable
from gateway.formats.openai.token_bounds import MAX_RESERVED_OUTPUT
from gateway.formats.provider_reads import NO_READS, ProviderReads, find_reads, searches
from gateway.formats.rare_bounds import ASKED_FOR, bound_rare
from gateway.formats.usage_bounds import bound_answer, bound_prompt
from gateway.large_work import work_aside
from gateway.request_context import RequestContext
from gateway.routing.target import Target
from gateway.storage.journal import RequestJournal

BREATH_S = 0.1
"""How long a request waits while the database is behind."""


class QuotaService:
    """Reserves money and takes permits.

    ``write_queue``: the records that wait for the database; while it is full, every request is refused. ``refresh``:
    returns the present caller of a request that has waited for the database, or raises what ``admit`` then raises.
    """

    def __init__(
        self,
        balances: Balances,
        counters: RateLimiter,
        journal: RequestJournal,
        write_queue: WriteQueue,
        *,
        refresh: Callable[[Caller], Caller],
    ) -> None:
        self._balances = balances
        self._counters = counters
        self._journal = journal
        self._write_queue = write_queue
        self._refresh = refresh

    @property
    def open_holds(self) -> int:
        """The number of open reservations, including those of nothing."""
        return len(self._balances.holds)

    async def peek(self, caller: Caller, serves_free: Callable[[], bool]) -> None:
        """Raise the error that ``admit`` is bound to raise, before a large body is read; nothing is reserved.

        Other reservations may be released by then. If no money is left, ``serves_free`` returns whether the request
        may be one that costs nothing.

        Raises ``QuotaExceeded``, ``RateLimited``, ``StoreUnavailable``: as ``admit`` does.
        """
        self._write_queue.check_room()
        try:
            self._balances.check(caller)
        except QuotaExceeded:
            if not serves_free():
                raise
        await self._counters.check(caller.subjects)

    async def check_rate(self, caller: Caller) -> None:
        """Raise ``RateLimited`` if the rate limits refuse another request; no permit is taken."""
        await self._counters.check(caller.subjects)

    def check_spare(self, caller: Caller, inference: InferenceRequest) -> None:
        """Raise ``RateLimited`` if ``inference`` would take what requests of low priority leave to others."""
        if subjects := caller.subjects:
            self._counters.check_spare(subjects, _count_tokens(inference))

    @asynccontextmanager
    async def enter(self, caller: Caller) -> AsyncIterator[None]:
        """Hold a permit for a request that costs nothing but asks a provider. Raises ``RateLimited``."""
        subjects = caller.subjects
        permit = await self._counters.take(subjects, 0) if subjects else None
        try:
            yield
        finally:
            if permit is not None:
                self._counters.give_back(permit, 0)

    async def admit(self, ctx: RequestContext, targets: Sequence[Target], *, journaled: bool = True) -> Reservation:
        """Reserve money, take a permit, note the start. Raises ``QuotaExceeded, RateLimited, StoreUnavailable``.

        The reservation covers the most that any target may cost. A video job is stored before: not ``journaled``.
        """
        inference, caller = ctx.inference, ctx.caller
        if self._write_queue.crowded:
            await self._wait_for_room()
        reserve, admitted, body, unit = 0, False, inference.body, OPERATIONS[inference.operation].known_unit
        varies = inference.choices > 1 or inference.image is not None or inference.video is not None  # by the channel
        whole = inference.plain and inference.max_output_tokens < MAX_RESERVED_OUTPUT  # the client's own limit
        reads = NO_READS if inference.plain else await _find_reads(caller, inference)
        buys_more = not inference.plain and (unit or not ASKED_FOR.isdisjoint(body))
        longer = reads is not NO_READS or not (whole or MAY_LIMIT.isdisjoint(body))
        for target in targets:
            bound = target.bound(inference) if varies else inference.need
            if buys_more or (target.price is not None and target.price.modal):
                bound = bound_rare(bound, inference, target.price)
            cost = target.find_most(bound) if target.named else cost_nanos(target.price, bound, target.multiplier_ppm)
            reserve = max(reserve, cost)
            longer = longer or searches(target.model) or (not whole and find_longest_answer(target.model) > 0)
        try:
            ctx.reservation = reservation = self._balances.hold_now(caller, reserve) or await self._hold(ctx, reserve)
            if longer and reservation.left_nanos is not None:
                await self._extend(ctx, reservation, targets, reads)
            if subjects := caller.subjects:
                tokens = _count_tokens(inference)
                permit = self._counters.take_now(subjects, tokens) or await self._counters.take(subjects, tokens)
                ctx.permit, ctx.rate_limits = permit, permit.limit_status
            if journaled:
                start = build_start(ctx, targets[0].state.channel.name if targets else None, reserve)
                self._journal.start_at_once(start) or await self._start(ctx, start)
            admitted = True
        except QuotaExceeded as error:
            _add_hint(error, inference, targets)
            raise
        finally:
            if not admitted:
                self.give_back(ctx)
        return reservation

    async def admit_part(self, ctx: RequestContext, target: Target, longest: InferenceRequest) -> None:
        """Like ``admit``, for a part of a session that has a place among the concurrent requests.

        ``longest``: the request with the most tokens that it may take, which are reserved as far as that is left.
        """
        inference, caller = ctx.inference, ctx.caller
        if self._write_queue.crowded:
            await self._wait_for_room()
        reserve = target.find_most(inference.need)
        admitted = False
        try:
            ctx.reservation = self._balances.hold_now(caller, reserve) or await self._hold(ctx, reserve)
            await self._reserve_most(ctx, ctx.reservation, target.find_most(longest.need))
            if subjects := caller.subjects:
                permit = await self._counters.take_part(subjects, estimate_tokens(inference.prompt_chars))
                ctx.permit, ctx.rate_limits = permit, permit.limit_status
            start = build_start(ctx, target.channel.name, reserve)
            self._journal.start_at_once(start) or await self._start(ctx, start)
            admitted = True
        finally:
            if not admitted:
                self.give_back(ctx)

    async def hold_part(self, ctx: RequestContext, most: int) -> None:
        """Reserve ``most`` nano-USD, as far as they are left, for what a provider may begin by itself.

        No permit is taken, and no start is noted: ``admit_begun`` follows, or ``give_back``. Raises as ``admit``.
        """
        least = min(most, 1)  # refused if nothing is left
        admitted = False
        try:
            ctx.reservation = self._balances.hold_now(ctx.caller, least) or await self._hold(ctx, least)
            await self._reserve_most(ctx, ctx.reservation, most)
            admitted = True
        finally:
            if not admitted:
                self.give_back(ctx)

    def admit_begun(self, ctx: RequestContext, channel: str) -> None:
        """Admit a request that the provider at ``channel`` has begun by itself: what it costs is charged in any case.

        No permit is taken, and nothing is reserved beside what ``hold_part`` has reserved: what exceeds a limit is
        recorded as an overrun.
        """
        if ctx.reservation is None:
            ctx.reservation = self._balances.restore(ctx.caller.account.id, ctx.caller.key.id, 0)
        with suppress(StoreUnavailable):  # the provider works on it nevertheless
            self._journal.start_soon(build_start(ctx, channel, 0))

    async def _extend(
        self, ctx: RequestContext, reservation: Reservation, targets: Sequence[Target], reads: ProviderReads
    ) -> None:
        """Reserve the cost of the longest prompts and answers that the request allows, as far as it is left."""
        most = max((_find_highest(ctx.inference, target, reads) for target in targets), default=0)
        await self._reserve_most(ctx, reservation, most)

    async def _reserve_most(self, ctx: RequestContext, reservation: Reservation, most: int) -> None:
        """Reserve ``most`` nano-USD, as far as they are left."""
        reservation.extend(most)
        if reservation.nanos < most:
            waited = await self._balances.extend(reservation, most)
            reservation.cover(most, self._balances.today)
            if waited:
                self._check_again(ctx)

    async def _hold(self, ctx: RequestContext, nanos: int) -> Reservation:
        """Reserve ``nanos`` as soon as the database has granted them; ``ctx`` has the reservation whatever follows."""
        ctx.reservation = reservation = await self._balances.hold(ctx.caller, nanos)
        self._check_again(ctx)
        return reservation

    async def _start(self, ctx: RequestContext, start: RequestStart) -> bool:
        """Return True once the start of a request is recorded in the database."""
        await self._journal.start(start)
        try:
            self._check_again(ctx)
        except GatewayError:
            self._journal.withdraw(start.id)
            raise
        return True

    def _check_again(self, ctx: RequestContext) -> None:
        """Raise the error that refuses a request which has waited for the database.

        After a cut the answer may come before the changes: only the fence says whether they have been read since.
        """
        self._write_queue.check_room()
        caller = self._refresh(ctx.caller)
        if caller is not ctx.caller:
            caller.check_group()
            caller.check_model(ctx.inference.model)

    async def _wait_for_room(self) -> None:
        """Wait for the database to catch up, unless it cannot. Raises ``StoreUnavailable``.

        A commit takes some twenty turns of the event loop: with a thousand requests at once, which leave it no rest,
        records would come faster than they are stored.
        """
        if self._write_queue.may_clear:
            await asyncio.sleep(BREATH_S)
        self._write_queue.check_room()

    def give_back(self, ctx: RequestContext) -> None:
        """Release the reservation and the permit of a request that is not sent."""
        self.leave(ctx)
        reservation, ctx.reservation = ctx.reservation, None
        if reservation is not None:
            self._balances.release(reservation)

    def leave(self, ctx: RequestContext, tokens: int = 0) -> None:
        """Give the permit back, once; the reservation stays."""
        if ctx.permit is not None:
            self._counters.give_back(ctx.permit, tokens)

    def end(self, ctx: RequestContext, reservation: Reservation, cost: int, tokens: int, now_s: float) -> Charge:
        """Give the permit of a request back and charge its ``reservation`` with ``cost`` nano-USD."""
        if ctx.permit is not None:
            self._counters.give_back(ctx.permit, tokens)
        return self._balances.settle(reservation, cost, now_s)


def _count_tokens(inference: InferenceRequest) -> int:
    """Return the tokens to take from a limit of tokens a minute: the prompt, and the answers if the client limits them.

    What the request did not use is given back at its end.
    """
    tokens = -(-inference.prompt_chars // CHARS_PER_TOKEN)  # a call less than ``estimate_tokens``, for every request
    # The client's own limit is in ``max_output_tokens`` then. ``allowed_output`` would take two calls more.
    if inference.plain and inference.max_output_tokens < MAX_RESERVED_OUTPUT:
        return tokens + inference.max_output_tokens * inference.choices
    return tokens if MAY_LIMIT.isdisjoint(inference.body) else tokens + inference.allowed_output * inference.choices


def _add_hint(error: QuotaExceeded, inference: InferenceRequest, targets: Sequence[Target]) -> None:
    """Add the highest limit of tokens with which the request fits into what is left, if one does."""
    usual = OPERATIONS[inference.operation].output_limit
    most = _find_fitting(inference, targets, error.room_nanos) if usual else 0
    if most:
        names = [name for name in (usual, "max_completion_tokens") if inference.body.get(name)] or [usual]
        error.message += f"; it fits with {' and '.join(names)} of at most {most}"


def _find_fitting(inference: InferenceRequest, targets: Sequence[Target], room_nanos: int) -> int:
    """Return the highest limit of tokens at which no target costs more than ``room_nanos``; 0: none."""

    def fits(limit: int) -> bool:
        inference_request = attrs.evolve(inference, max_output_tokens=-(-limit * tries // answers))
        return all(target.reserve(inference_request) <= room_nanos for target in targets)

    answers = inference.body.get("n") or 1
    tries = max(inference.body.get("best_of") or 1, answers)
    low, high = 0, inference.max_output_tokens
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


async def _find_reads(caller: Caller, inference: InferenceRequest) -> ProviderReads:
    """Return what a provider reads beside the text of a request; ``NO_READS`` if no limit depends on it."""
    if not OPERATIONS[inference.operation].prompt or not (caller.key.quota.capped or caller.account.quota.capped):
        return NO_READS
    return await work_aside(find_reads, inference) if inference.large else find_reads(inference)


def _find_highest(inference: InferenceRequest, target: Target, reads: ProviderReads) -> int:
    """Return the highest cost of ``inference``: the longest prompt that the provider can read, and the longest answers.

    An answer without a limit is as long as the model can make it, as far as that is known.
    """
    models = (target.model, *target.named)
    longest = 0 if MAY_LIMIT.isdisjoint(inference.body) else inference.allowed_output
    if not longest and OPERATIONS[inference.operation].output_limit:
        far = reads is not NO_READS or searches(target.model)
        longest = max(bound_answer(reads, model) if far else find_longest_answer(model) for model in models)
    prompt = max(bound_prompt(inference, reads, model) for model in models)
    highest = attrs.evolve(
        inference,
        max_prompt_tokens=prompt,
        max_output_tokens=max(longest, inference.max_output_tokens),
        max_cache_write_tokens=prompt if inference.max_cache_write_tokens else 0,
    )
    cost = target.reserve(highest)
    if reads is NO_READS:
        return cost
    return max(cost, target.find_most(target.bound(attrs.evolve(highest, sounds=True))))
