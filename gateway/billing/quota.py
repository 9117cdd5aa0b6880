"""Admission of requests: checks quotas and rate limits, reserves money and takes a rate limit permit.

The balances of the key and its account are checked together, in one step on the event loop, before any provider is
asked. A reservation ends with its request, or with the job that the request has begun.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress

import attrs

from gateway.billing.balances import Balances
from gateway.billing.write_queue import WriteQueue
from gateway.domain.account import Caller
from gateway.domain.balance import Charge, Reservation
from gateway.domain.inference_request import OUTPUT_LIMIT_FIELDS, InferenceRequest
from gateway.domain.model_limits import find_limits
from gateway.domain.operation import OPERATIONS
from gateway.domain.price import compute_cost_nanos, usd
from gateway.domain.rate_limit import RateLimiter, SubjectUse
from gateway.domain.request_log import RequestStart
from gateway.domain.usage import CHARS_PER_TOKEN, estimate_tokens
from gateway.errors import GatewayError, QuotaExceeded, StoreUnavailable
from gateway.formats.references.provider_reads import NO_READS, ProviderReads, find_reads, searches
from gateway.formats.usage.bounds import bound_answer, bound_prompt
from gateway.formats.usage.detail_bounds import PRICED_REQUEST_FIELDS, bound_details
from gateway.formats.usage.token_bounds import MAX_RESERVED_OUTPUT
from gateway.large_work import run_in_thread
from gateway.request_context import RequestContext
from gateway.routing.target import Target
from gateway.storage.journal import RequestJournal

PAUSE_S = 0.1
"""How long a request waits while the database is behind, in seconds."""


class QuotaService:
    """Reserves money and takes permits.

    ``write_queue`` has the records that wait for the database; while it is full, every request is refused. ``refresh``
    returns the current state of a caller whose request has waited for the database.

    ``admit`` raises ``QuotaExceeded``, ``SessionEnded``, ``RateLimited``, ``StoreUnavailable``, ``Overloaded`` if rate
    limits that several gateways share cannot be read, and, after a wait for the database, the errors of
    ``_check_again``; nothing is reserved then.
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
    def open_reservations(self) -> int:
        return len(self._balances.reservations)

    async def precheck(
        self, caller: Caller, serves_free: Callable[[], bool], ctx: RequestContext | None = None
    ) -> None:
        """Raise the error that ``admit`` would certainly raise, before a large body is read. Nothing is reserved.

        Reservations do not count, because they may be released by then. ``serves_free`` returns whether the request
        may be free; it is only called if no money is left. ``ctx`` has what the limits of users, sessions, tags and
        models need of the request; without it, they are not checked.

        Raises ``QuotaExceeded``, ``SessionEnded``, ``RateLimited``, ``StoreUnavailable``, ``Overloaded`` as ``admit``.
        """
        self._write_queue.check_room()
        try:
            self._balances.check(caller)
            if ctx is not None and self._balances.limits is not None:
                await self._balances.limits.check_left(ctx, self._balances.today)
        except QuotaExceeded:
            if not serves_free():
                raise
        await self._counters.check(caller.subjects)

    async def check_rate(self, caller: Caller) -> None:
        await self._counters.check(caller.subjects)

    async def list_use(self, caller: Caller) -> Sequence[SubjectUse]:
        """Return what the key and its account have used of their rate limits; those without limits are left out."""
        return await self._counters.list_use(caller.subjects) if caller.subjects else ()

    def check_low_priority(self, caller: Caller, inference: InferenceRequest) -> None:
        """Raise ``RateLimited`` if a low-priority ``inference`` would use the reserve for other requests.

        Raises ``Overloaded`` as ``admit`` does.
        """
        if subjects := caller.subjects:
            self._counters.check_spare(subjects, _count_tokens(inference))

    @asynccontextmanager
    async def enter(self, caller: Caller) -> AsyncIterator[None]:
        """Hold a permit during a provider request that costs nothing. Raises ``RateLimited``, ``Overloaded``."""
        subjects = caller.subjects
        permit = await self._counters.take(subjects, 0) if subjects else None
        try:
            yield
        finally:
            if permit is not None:
                self._counters.release(permit, 0)

    async def admit(self, ctx: RequestContext, targets: Sequence[Target], *, journaled: bool = True) -> Reservation:
        """Reserve the highest cost at any affordable target, take a permit, and record the start if ``journaled``."""
        inference, caller = ctx.inference, ctx.caller
        if self._write_queue.crowded or (ctx.attribution.session and self._balances.limits is not None):
            await self._prepare(ctx)
        most, is_admitted, body, is_plain = 0, False, inference.body, inference.plain
        varies = inference.choices > 1 or (not is_plain and _makes_visual_media(inference))  # with the channel
        is_bounded = is_plain and inference.max_output_tokens < MAX_RESERVED_OUTPUT  # the client's own limit
        reads = NO_READS if is_plain else await self._find_reads(caller, inference)
        buys_more = not is_plain and _buys_more(inference)
        may_rise = not (is_bounded or (reads is NO_READS and OUTPUT_LIMIT_FIELDS.isdisjoint(body)))
        for target in targets:
            price, bound = target.price, target.bound(inference) if varies else inference.need
            if buys_more or (price is not None and price.modal):
                bound = bound_details(bound, inference, price)
            cost = target.find_most(bound) if target.named else compute_cost_nanos(price, bound, target.multiplier_ppm)
            most = max(most, cost)
            may_rise = may_rise or searches(target.model) or (not is_bounded and target.limits.max_output_tokens > 0)
        try:
            reservation = self._balances.reserve_now(caller, most, ctx) or await self._reserve(ctx, most)
            ctx.reservation = reservation
            if may_rise and reservation.left_nanos is not None:
                await self._extend(ctx, reservation, targets, reads)
            limits = self._balances.limits
            if subjects := caller.subjects if limits is None else limits.list_subjects(ctx):
                tokens = _count_tokens(inference)
                permit = self._counters.take_now(subjects, tokens) or await self._counters.take(subjects, tokens)
                ctx.permit, ctx.rate_limits = permit, permit.limit_status
            if journaled:
                start = build_start(ctx, targets[0].state.channel.name if targets else None, most)
                self._journal.start_at_once(start) or await self._record_start(ctx, start)
            is_admitted = True
        except QuotaExceeded as error:
            affordable = _keep_affordable(error, ctx, targets)
        else:
            return reservation
        finally:
            if not is_admitted:
                self.release(ctx)
        return await self.admit(ctx, affordable, journaled=journaled)

    async def record_start(self, ctx: RequestContext, start: RequestStart) -> None:
        """Record the start of a request that was admitted with ``journaled=False``.

        Raises the errors of ``_check_again`` if the caller may no longer send the request.
        """
        self._journal.start_at_once(start) or await self._record_start(ctx, start)

    async def admit_part(self, ctx: RequestContext, target: Target, longest: InferenceRequest) -> None:
        """Admit a part of a session that already counts as a concurrent request. ``longest`` has its maximum tokens.

        Raises the errors of ``admit``; nothing is reserved then.
        """
        inference, caller = ctx.inference, ctx.caller
        await self._prepare(ctx)
        nanos = target.find_most(inference.need)
        is_admitted = False
        try:
            ctx.reservation = self._balances.reserve_now(caller, nanos, ctx) or await self._reserve(ctx, nanos)
            await self._raise_reservation(ctx, ctx.reservation, target.find_most(longest.need))
            limits = self._balances.limits
            if subjects := caller.subjects if limits is None else limits.list_subjects(ctx):
                permit = await self._counters.take_part(subjects, estimate_tokens(inference.prompt_chars))
                ctx.permit, ctx.rate_limits = permit, permit.limit_status
            start = build_start(ctx, target.channel.name, nanos)
            self._journal.start_at_once(start) or await self._record_start(ctx, start)
            is_admitted = True
        finally:
            if not is_admitted:
                self.release(ctx)

    async def hold(self, ctx: RequestContext, nanos: int) -> Reservation:
        """Reserve ``nanos`` for a later request, see ``admit_held``. No permit is taken, and no start is recorded.

        Raises ``QuotaExceeded``, ``SessionEnded``, and the errors of ``_check_again``; nothing is reserved then.
        """
        self._write_queue.check_room()
        await self._check_session(ctx)
        is_held = False
        try:
            reservation = self._balances.reserve_now(ctx.caller, nanos, ctx) or await self._reserve(ctx, nanos)
            is_held = True
            return reservation
        finally:
            if not is_held:
                self.release(ctx)
            ctx.reservation = None

    async def find_coverable(self, ctx: RequestContext, amounts: Iterable[int]) -> int:
        """Return the highest of ``amounts`` in nano-USD that could be reserved now, by reserving it; -1 if none could.

        A node of a cluster asks the database and the other nodes for credit, as for a request. Nothing stays reserved.
        Raises ``SessionEnded``, and the errors of ``_check_again``.
        """
        for nanos in sorted(amounts, reverse=True):
            with suppress(QuotaExceeded):
                self._balances.release(await self.hold(ctx, nanos))
                return nanos
        return -1

    async def admit_held(self, ctx: RequestContext, targets: Sequence[Target], reservation: Reservation) -> None:
        """Admit a request whose cost ``hold`` has reserved. A refused request leaves ``reservation`` as it was.

        Raises ``QuoteNotValid``, and the errors of ``admit``; of ``QuotaExceeded`` only ``BudgetExceeded``.
        """
        self._write_queue.check_room()
        await self._check_session(ctx)
        limits = self._balances.limits
        if limits is not None:
            limits.check_held(ctx, reservation)
        is_admitted = False
        try:
            if subjects := ctx.caller.subjects if limits is None else limits.list_subjects(ctx):
                permit = await self._counters.take(subjects, _count_tokens(ctx.inference))
                ctx.permit, ctx.rate_limits = permit, permit.limit_status
            ctx.reservation = reservation
            start = build_start(ctx, targets[0].channel.name if targets else None, reservation.nanos)
            self._journal.start_at_once(start) or await self._record_start(ctx, start)
            is_admitted = True
        finally:
            if not is_admitted:
                ctx.reservation = None
                self.release_permit(ctx)

    async def reserve_up_to(self, ctx: RequestContext, most: int) -> None:
        """Reserve up to ``most`` nano-USD for work that a provider may begin by itself.

        No permit is taken, and no start is recorded. Call ``admit_begun`` or ``release`` afterwards. Raises
        ``QuotaExceeded``, ``SessionEnded``, and the errors of ``_check_again``.
        """
        await self._check_session(ctx)
        least = min(most, 1)  # refused if nothing is left
        is_admitted = False
        try:
            ctx.reservation = self._balances.reserve_now(ctx.caller, least, ctx) or await self._reserve(ctx, least)
            await self._raise_reservation(ctx, ctx.reservation, most)
            is_admitted = True
        finally:
            if not is_admitted:
                self.release(ctx)

    async def _check_session(self, ctx: RequestContext) -> None:
        """Raise ``SessionEnded`` if the request's session was ended.

        Raises ``BudgetExceeded`` if the budget of the session was deleted and cannot be opened again.
        """
        if self._balances.limits is not None:
            await self._balances.limits.check_session(ctx)

    def admit_begun(self, ctx: RequestContext, channel: str) -> None:
        """Admit a request that the provider began by itself. Nothing more is reserved: an excess becomes an overrun."""
        if ctx.reservation is None:
            ctx.reservation = self._balances.restore(ctx.caller.account.id, ctx.caller.key.id, 0, ctx)
        with suppress(StoreUnavailable):  # refusing would be useless: the provider already works on the request
            self._journal.start_soon(build_start(ctx, channel, 0))

    async def _find_reads(self, caller: Caller, inference: InferenceRequest) -> ProviderReads:
        """Return the content that a provider reads besides the text; ``NO_READS`` without a quota, limit or prompt."""
        limited = caller.capped or self._balances.limits is not None
        if not limited or not OPERATIONS[inference.operation].prompt:
            return NO_READS
        return await run_in_thread(find_reads, inference) if inference.large else find_reads(inference)

    async def _extend(
        self, ctx: RequestContext, reservation: Reservation, targets: Sequence[Target], reads: ProviderReads
    ) -> None:
        """Reserve the cost of the longest prompts and answers the request allows, as far as the balances allow."""
        most = max((find_highest(ctx.inference, target, reads) for target in targets), default=0)
        await self._raise_reservation(ctx, reservation, most)

    async def _raise_reservation(self, ctx: RequestContext, reservation: Reservation, most: int) -> None:
        reservation.extend(most)
        if reservation.nanos < most:
            waited = await self._balances.extend(reservation, most)
            reservation.extend_each(most, self._balances.today)
            if waited:
                self._check_again(ctx)

    async def _reserve(self, ctx: RequestContext, nanos: int) -> Reservation:
        """Reserve ``nanos`` after asking the database. ``ctx`` gets the reservation before any check raises."""
        ctx.reservation = reservation = await self._balances.reserve(ctx.caller, nanos, ctx)
        self._check_again(ctx)
        return reservation

    async def _record_start(self, ctx: RequestContext, start: RequestStart) -> bool:
        """Record the start of a request in the journal, and then return True.

        If ``_check_again`` raises, the start is withdrawn.
        """
        await self._journal.start(start)
        try:
            self._check_again(ctx)
        except GatewayError:
            self._journal.withdraw(start.id)
            raise
        return True

    def _check_again(self, ctx: RequestContext) -> None:
        """Check that the caller may still send the request after the wait for the database.

        Raises ``StoreUnavailable``, ``InvalidApiKey``, ``KeyDisabled``, ``KeyExpired``, ``GroupNotAllowed`` and
        ``ModelNotAllowed``.
        """
        self._write_queue.check_room()
        caller = self._refresh(ctx.caller)
        if caller is not ctx.caller:
            caller.check_group()
            caller.check_model(ctx.inference.model)

    async def _prepare(self, ctx: RequestContext) -> None:
        """Wait for the database if it is behind, and check the session. Raises the errors of ``_check_session``."""
        if self._write_queue.crowded:
            await self._wait_for_room()
        await self._check_session(ctx)

    async def _wait_for_room(self) -> None:
        """Give the database time to catch up, unless it is failing. Raises ``StoreUnavailable``.

        A commit takes about twenty iterations of the event loop. A thousand concurrent requests would otherwise create
        records faster than they can be stored.
        """
        if self._write_queue.can_recover:
            await asyncio.sleep(PAUSE_S)
        self._write_queue.check_room()

    def release(self, ctx: RequestContext) -> None:
        self.release_permit(ctx)
        reservation, ctx.reservation = ctx.reservation, None
        if reservation is not None:
            self._balances.release(reservation)

    def release_permit(self, ctx: RequestContext, tokens: int = 0) -> None:
        """Give the permit back; the reservation stays. A second call changes nothing."""
        if ctx.permit is not None:
            self._counters.release(ctx.permit, tokens)

    def end(self, ctx: RequestContext, reservation: Reservation, cost: int, tokens: int, now_s: float) -> Charge:
        """Give back a request's permit and charge ``cost`` nano-USD to its ``reservation``."""
        if ctx.permit is not None:
            self._counters.release(ctx.permit, tokens)
        return self._balances.settle(reservation, cost, now_s)


def _count_tokens(inference: InferenceRequest) -> int:
    """Return the tokens to take from the limit per minute: the prompt's, and the answers' if they are limited."""
    tokens = -(-inference.prompt_chars // CHARS_PER_TOKEN)  # ``estimate_tokens``, inlined for speed
    # ``max_output_tokens`` is then the client's own limit. ``allowed_output`` would take two more calls.
    if inference.plain and inference.max_output_tokens < MAX_RESERVED_OUTPUT:
        return tokens + inference.max_output_tokens * inference.choices
    return (
        tokens
        if OUTPUT_LIMIT_FIELDS.isdisjoint(inference.body)
        else tokens + inference.allowed_output * inference.choices
    )


def _makes_visual_media(inference: InferenceRequest) -> bool:
    return inference.image is not None or inference.video is not None


def _buys_more(inference: InferenceRequest) -> bool:
    """Return whether the request may be charged for more than tokens."""
    return bool(OPERATIONS[inference.operation].known_unit) or not PRICED_REQUEST_FIELDS.isdisjoint(inference.body)


def _keep_affordable(error: QuotaExceeded, ctx: RequestContext, targets: Sequence[Target]) -> Sequence[Target]:
    """Return the targets of a route that the caller can afford. Raises ``error``, with a hint, if there is none."""
    on_route = bool(targets) and targets[0].place is not None
    affordable = ctx.target_list.keep_affordable(error.room_nanos) if on_route else ()
    if not affordable:
        _add_hint(error, ctx.inference, targets)
        if on_route:
            _name_step(error, ctx.inference, targets)
        raise error
    return affordable


def _name_step(error: QuotaExceeded, inference: InferenceRequest, targets: Sequence[Target]) -> None:
    """Add the cheapest step of the route to the message of ``error``, and why it does not get the request."""
    costs = [(target.find_reservation(inference), target.place) for target in targets]
    cost, place = min(costs, key=lambda one: one[0])
    if place is not None:
        reason = f"may cost up to ${usd(cost)}" if cost > error.room_nanos else "is not tried for the cause 'budget'"
        error.message += f"; step {place.step + 1} of the route {place.route.name!r}, its cheapest, {reason}"


def _add_hint(error: QuotaExceeded, inference: InferenceRequest, targets: Sequence[Target]) -> None:
    """Add the highest output limit that the remaining money covers, if there is one, to the message of ``error``."""
    usual = OPERATIONS[inference.operation].output_limit
    most = _find_fitting(inference, targets, error.room_nanos) if usual else 0
    if most:
        names = [name for name in (usual, "max_completion_tokens") if inference.body.get(name)] or [usual]
        error.message += f"; it fits with {' and '.join(names)} of at most {most}"


def _find_fitting(inference: InferenceRequest, targets: Sequence[Target], room_nanos: int) -> int:
    """Return the highest output limit at which no target costs more than ``room_nanos``; 0 if there is none."""

    def fits(limit: int) -> bool:
        inference_request = attrs.evolve(inference, max_output_tokens=-(-limit * try_count // answer_count))
        return all(target.find_reservation(inference_request) <= room_nanos for target in targets)

    answer_count = inference.body.get("n") or 1
    try_count = max(inference.body.get("best_of") or 1, answer_count)
    low, high = 0, inference.max_output_tokens
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def find_highest(inference: InferenceRequest, target: Target, reads: ProviderReads) -> int:
    """Return the highest cost of ``inference`` in nano-USD, with the longest possible prompt and answers."""
    limits_by_model = {target.model: target.limits}
    for model in target.named:
        limits_by_model[model] = find_limits(model)
    longest = 0 if OUTPUT_LIMIT_FIELDS.isdisjoint(inference.body) else inference.allowed_output
    if not longest and OPERATIONS[inference.operation].output_limit:
        far = reads is not NO_READS or searches(target.model)
        longest = max(
            bound_answer(reads, model, limits) if far else limits.max_output_tokens
            for model, limits in limits_by_model.items()
        )
    prompt = max(bound_prompt(inference, reads, model, limits) for model, limits in limits_by_model.items())
    highest = attrs.evolve(
        inference,
        max_prompt_tokens=prompt,
        max_output_tokens=max(longest, inference.max_output_tokens),
        max_cache_write_tokens=prompt if inference.max_cache_write_tokens else 0,
    )
    cost = target.find_reservation(highest)
    if reads is NO_READS:
        return cost
    return max(cost, target.find_most(target.bound(attrs.evolve(highest, sounds=True))))


def build_start(ctx: RequestContext, channel: str | None, reserved_nanos: int) -> RequestStart:
    """Build the journal entry of a request about to be sent to ``channel``: all that remains after a crash."""
    account, key, inference, copied_from = ctx.caller.account, ctx.caller.key, ctx.inference, ctx.copied_from
    return RequestStart(
        ctx.id,
        ctx.started_ms,
        ctx.operation,
        account.id,
        account.name,
        key.id,
        key.name,
        inference.model,
        channel,
        inference.stream,
        reserved_nanos,
        ctx.client_request_id,
        ctx.batch.id,
        ctx.batch.multiplier_ppm,
        copied_from.shadow_route or ctx.route,
        copied_from.shadow_route != "",
        *ctx.attribution,
        copied_from.replay_of,
    )
