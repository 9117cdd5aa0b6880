"""Settlement: turns the reservation of a finished request into a charge, and creates its record.

Nothing here awaits, so no cancellation can interrupt it. The database gets the record later, in one commit with others.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import structlog

from gateway.billing.abandoned import Abandoned, could_have_processed, find_least_usage
from gateway.billing.quota import QuotaService
from gateway.billing.write_queue import WriteQueue
from gateway.domain.balance import Charge, Reservation
from gateway.domain.charged_units import build_units
from gateway.domain.content_filter import is_block_code
from gateway.domain.operation import OPERATIONS
from gateway.domain.price import compute_cost_nanos
from gateway.domain.request_log import (
    INTERRUPTED_STATUS,
    SUCCESS_CODE,
    FailedAttempt,
    Outcome,
    RequestRecord,
    build_error,
    format_adapted_fields,
    format_attempts,
)
from gateway.domain.usage import Usage
from gateway.errors import GatewayError, ProviderError, ProviderRejected, RequestCancelled, ShuttingDown
from gateway.formats.usage.bounds import limit_usage
from gateway.formats.usage.detail_bounds import fill_details
from gateway.request_context import RequestContext
from gateway.routing.target import Attempt
from gateway.storage.journal import RequestJournal
from gateway.upstream.exhaustion import ResourcesExhausted
from gateway.wording import mask_name

if TYPE_CHECKING:  # only if answers are cached
    from gateway.billing.cache_use import CacheUse

log = structlog.stdlib.get_logger(__name__)

CLIENT_CLOSED_STATUS = 499
"""The recorded status if the client disconnected before the answer. No client ever receives this status."""
MAX_SERVED_CHARS = 200
NOTHING_CHARGED = Charge(0, 0)
_NO_HOLD = Reservation((), 0)
_STATUSES: Mapping[Outcome, int] = {"client_closed": CLIENT_CLOSED_STATUS, "interrupted": INTERRUPTED_STATUS}


class Settlement:
    """Settles requests. ``find_abandoned`` returns ``billing.abandoned``; ``ended`` gets records for the metrics."""

    def __init__(
        self,
        quota: QuotaService,
        journal: RequestJournal,
        write_queue: WriteQueue,
        *,
        find_abandoned: Callable[[], Abandoned],
        ended: deque[RequestRecord],
    ) -> None:
        self.find_abandoned = find_abandoned
        self.ended = ended
        self._quota = quota
        self._journal = journal
        self._write_queue = write_queue

    def settle(
        self,
        ctx: RequestContext,
        outcome: Outcome,
        error: GatewayError | None = None,
        *,
        now_s: float,
        now_ms: int,
        left: bool = False,
        cache: "CacheUse | None" = None,
    ) -> RequestRecord:
        """Settle a request once; return its record. ``now_s`` is loop time. ``left``: the client has disconnected."""
        if ctx.record is not None:
            return ctx.record
        if (reservation := ctx.reservation) is None:  # no provider was asked: nothing is charged
            return self._store_refused(ctx, build_record(ctx, outcome, error, now_s=now_s, now_ms=now_ms))
        inference, attempts, cost = ctx.inference, ctx.attempts, 0 if cache is None else cache.charge(ctx)
        paid = attempts[-1] if attempts else None
        if outcome != "completed" and self.find_abandoned() != "free":  # an attempt before the last may have cost money
            paid = _apply_minimum_usage(ctx, error, reservation) or paid
        usage = _complete_usage(ctx) if OPERATIONS[inference.operation].known_unit else ctx.usage
        if usage.prompt_tokens > inference.max_prompt_tokens or usage.completion_tokens > inference.max_output_tokens:
            usage = _cap_usage(ctx)
        if paid is not None:
            target = paid.target
            if target.find_price is None and usage.details is None:  # the usual case of ``charge``, inlined
                cost = compute_cost_nanos(target.price, usage, target.multiplier_ppm)
            else:
                cost = target.charge(paid.answered, usage, inference)
            if paid.performance is not None and outcome == "completed":
                paid.performance.note_end(usage, cost, now_s - paid.began_at, paid.slot.began + now_s - paid.began_at)
        charge = self._quota.end(ctx, reservation, cost, usage.prompt_tokens + usage.completion_tokens, now_ms / 1000)
        if left:  # how the rest of the answer ended does not matter: the client had left
            outcome, error = "client_closed", None
        record = build_record(ctx, outcome, error, now_s=now_s, now_ms=now_ms, charge=charge, paid=paid, cache=cache)
        ctx.record = record
        self._journal.record_end(record)
        self._write_queue.put(record)
        self.ended.append(record)
        return record

    def _store_refused(self, ctx: RequestContext, record: RequestRecord) -> RequestRecord:
        """Store the record of a refused request unless the database is behind: refusals must not crowd out charges."""
        ctx.record = record
        self.ended.append(record)
        if not self._write_queue.crowded and not self._journal.failing:
            self._write_queue.put(record)
        return record


def _complete_usage(ctx: RequestContext) -> Usage:
    """Return the usage of a request. Details that the provider did not report are derived from the operation."""
    if ctx.usage.used:
        ctx.usage = fill_details(ctx.usage, ctx.inference)
    return ctx.usage


def _cap_usage(ctx: RequestContext) -> Usage:
    """Return the usage, or the highest possible one if the provider reports more, which is logged.

    No token is shorter than a byte: the length of the body bounds the prompt, and the request's own limit the answer.
    """
    reported_usage = ctx.usage
    if not ctx.attempts or reported_usage.source != "upstream":
        return reported_usage
    target = ctx.attempts[-1].target
    ctx.usage = usage = limit_usage(reported_usage, ctx.inference, target.model, target.limits)
    if usage is not reported_usage:
        log.warning(
            "usage_implausible",
            request_id=ctx.id,
            channel=target.channel.name,
            model=target.model,
            reason=f"the provider says {reported_usage.prompt_tokens} and {reported_usage.completion_tokens} tokens",
            tokens=usage.prompt_tokens + usage.completion_tokens,
        )
    return usage


def _apply_minimum_usage(ctx: RequestContext, error: GatewayError | None, reservation: Reservation) -> Attempt | None:
    """Raise ``ctx.usage`` to the minimum for the last attempt that may have been processed.

    Return that attempt; None if there is none.
    """
    for attempt in reversed(ctx.attempts):
        if attempt.pending and (attempt.failure is not None or could_have_processed(error)):
            ctx.usage = find_least_usage(ctx.usage, attempt, ctx.inference, error, reservation.nanos)
            return attempt
    return None


def find_outcome(error: GatewayError) -> Outcome:
    """Return the outcome of a request that ended with ``error``."""
    if isinstance(error, ShuttingDown):
        return "interrupted"
    if isinstance(error, RequestCancelled):
        return "cancelled"
    if is_block_code(error.public_code):
        return "blocked"
    if isinstance(error, ProviderError) and not isinstance(error, ProviderRejected | ResourcesExhausted):
        return "failed"
    return "refused"


def build_record(
    ctx: RequestContext,
    outcome: Outcome,
    error: GatewayError | None,
    *,
    now_s: float,
    now_ms: int,
    charge: Charge = NOTHING_CHARGED,
    paid: Attempt | None = None,
    cache: "CacheUse | None" = None,
) -> RequestRecord:
    """Build the record of an ended request. ``now_s`` is loop time. ``ctx`` lacks ``inference`` if no body was read."""
    attempts, usage, account, key = ctx.attempts, ctx.usage, ctx.caller.account, ctx.caller.key
    model, stream = (mask_name(call.model), call.stream) if (call := getattr(ctx, "inference", None)) else ("", False)
    channel, served, tried, adapted, unpriced, place = None, model, "", "", False, None
    if attempts:
        last, target = attempts[-1], attempts[-1].target
        channel, served, place = last.channel.name, last.answered or target.model, target.place
        # A cost reported by the provider, or at the price of the model that answered, is charged even without a price.
        unpriced = target.unpriced and not charge.cost_nanos and not OPERATIONS[ctx.operation].counts_only
        tried = _build_trail(ctx, outcome, error, now_s) if len(attempts) > 1 or place is not None else ""
        adapted = format_adapted_fields(last.translator.adapted) if last.translator.adapted else ""
    first_byte_ms = None if ctx.first_byte_at is None else round((ctx.first_byte_at - ctx.started_at) * 1000)
    status = 200 if first_byte_ms is not None else error.status if error is not None else _STATUSES.get(outcome, 200)
    has_units, hold = usage.details is not None or usage.written_tokens or usage.size, ctx.reservation or _NO_HOLD
    total_ms, copied = round((now_s - ctx.started_at) * 1000), ctx.copied_from
    return RequestRecord(  # positional: this many keyword arguments would take twice as long as the record itself
        *(ctx.id, ctx.started_ms, now_ms, ctx.operation, account.id, account.name, key.id, key.name, model, channel),
        *(status, outcome, error.public_code if error else None, stream, len(attempts)),
        *(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.source, charge.cost_nanos),
        *(hold.nanos, charge.overrun_nanos, first_byte_ms, total_ms, ctx.client_request_id),
        *(tried, usage.images, usage.duration_ms, usage.characters, build_error(error.message) if error else ""),
        *(unpriced, ctx.batch.id, ctx.batch.multiplier_ppm, adapted, round(ctx.queued_s * 1000) if ctx.queued_s else 0),
        *("" if served == model else build_error(served[:MAX_SERVED_CHARS]), build_units(usage) if has_units else ""),
        *((copied.shadow_route or ctx.route) if place is None else place.route.name, copied.shadow_route != ""),
        _find_saved(paid, usage, cache) if cache is not None or usage.cached_tokens or has_units else 0,
        *(*ctx.attribution, hold.limit_charges, copied.replay_of),
        "" if cache is None else cache.result,
        *(copied.agreement_ppm, copied.agreed_on),
    )


def _find_saved(paid: Attempt | None, usage: Usage, cache: "CacheUse | None") -> int:
    """Return what the prompt cache has saved in the attempt that is charged, or the cache of answers, in nano-USD."""
    if cache is not None and cache.target is not None:
        return cache.saved_nanos
    return 0 if paid is None else paid.target.find_saved_nanos(paid.answered, usage)


def _build_trail(ctx: RequestContext, outcome: Outcome, error: GatewayError | None, now_s: float) -> str:
    """Format all attempts, and the steps that were passed over. The last attempt ended like the request or failed."""
    last, tried = ctx.attempts[-1], []
    if len(ctx.attempts) > 1 or last.failure is not None:  # the usual case takes no comprehension, and no sorting
        tried = [attempt.failure for attempt in ctx.attempts if attempt.failure is not None]
    if last.failure is None:
        code = error.public_code or error.code if error else SUCCESS_CODE if outcome == "completed" else outcome
        status = 0 if error is None else error.status
        step = 0 if last.target.place is None else last.target.place.step + 1
        took_ms = round((now_s - last.began_at) * 1000)
        tried.append(FailedAttempt(last.channel.name, code, took_ms, status, "", step, last.target.model))
    if last.target.place is not None and (len(tried) > 1 or ctx.target_list.passed):
        tried = ctx.target_list.sort_trail(tried)
    return format_attempts(tried)
