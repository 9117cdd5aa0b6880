"""Settlement: turns the reservation of a finished request into a charge, and creates its record.

Nothing here awaits, so no cancellation can interrupt it. The database gets the record later, in one commit with others.
"""

from collections import deque
from collections.abc import Callable

import structlog

from gateway.billing.abandoned import Abandoned, find_least_usage, may_have_worked
from gateway.billing.quota import QuotaService
from gateway.billing.request_record import build_record
from gateway.billing.write_queue import WriteQueue
from gateway.domain.balance import Reservation
from gateway.domain.operation import OPERATIONS
from gateway.domain.price import cost_nanos
from gateway.domain.request_log import Outcome, RequestRecord
from gateway.domain.usage import Usage
from gateway.errors import GatewayError
from gateway.formats.usage.bounds import limit_usage
from gateway.formats.usage.detail_bounds import fill_details
from gateway.request_context import RequestContext
from gateway.routing.target import Attempt
from gateway.storage.journal import RequestJournal

log = structlog.stdlib.get_logger(__name__)


class Settlement:
    """Settles requests. ``find_abandoned`` returns the setting ``billing.abandoned``; ``ended`` is for the metrics."""

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
        now: float,
        now_ms: int,
        left: bool = False,
    ) -> RequestRecord:
        """Settle a request once, and return its record. ``now`` is loop time. ``left``: the client had disconnected."""
        if ctx.record is not None:
            return ctx.record
        if (reservation := ctx.reservation) is None:  # no provider was asked: nothing is charged
            return self._store_refused(ctx, build_record(ctx, outcome, error, now=now, now_ms=now_ms))
        inference, paid, cost = ctx.inference, ctx.attempts[-1] if ctx.attempts else None, 0
        if outcome != "completed" and self.find_abandoned() != "free":  # an attempt before the last may have cost money
            paid = _find_aborted(ctx, error, reservation) or paid
        usage = _complete_usage(ctx) if OPERATIONS[inference.operation].known_unit else ctx.usage
        # A provider's counts are not trusted without bounds: no token is shorter than a byte, so the length of the body
        # bounds the prompt, and the request's own limit bounds the answer. ``_cap_usage`` handles higher counts.
        if usage.prompt_tokens > inference.max_prompt_tokens or usage.completion_tokens > inference.max_output_tokens:
            usage = _cap_usage(ctx)
        if paid is not None:
            target = paid.target
            if target.find_price is None and usage.details is None:  # the usual case of ``charge``, inlined
                cost = cost_nanos(target.price, usage, target.multiplier_ppm)
            else:
                cost = target.charge(paid.answered, usage, inference)
        charge = self._quota.end(ctx, reservation, cost, usage.prompt_tokens + usage.completion_tokens, now_ms / 1000)
        if left:  # how the rest of the answer ended does not matter: the client had left
            outcome, error = "client_closed", None
        ctx.record = record = build_record(ctx, outcome, error, now=now, now_ms=now_ms, charge=charge)
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
    """Return the usage, or the highest possible one if the provider reports more, which is logged."""
    reported = ctx.usage
    if not ctx.attempts or reported.source != "upstream":
        return reported
    target = ctx.attempts[-1].target
    ctx.usage = usage = limit_usage(reported, ctx.inference, target.model)
    if usage is not reported:
        log.warning(
            "usage_implausible",
            request_id=ctx.id,
            channel=target.channel.name,
            model=target.model,
            reason=f"the provider says {reported.prompt_tokens} and {reported.completion_tokens} tokens",
            tokens=usage.prompt_tokens + usage.completion_tokens,
        )
    return usage


def _find_aborted(ctx: RequestContext, error: GatewayError | None, reservation: Reservation) -> Attempt | None:
    """Return the last attempt that may have been processed, or None. Raises ``ctx.usage`` to its minimum."""
    for attempt in reversed(ctx.attempts):
        if attempt.pending and (attempt.failure is not None or may_have_worked(error)):
            ctx.usage = find_least_usage(ctx.usage, attempt, ctx.inference, error, reservation.nanos)
            return attempt
    return None
