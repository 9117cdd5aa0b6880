"""Builds the records of a request: the journal entry before it is sent, and the row when it has ended."""

from collections.abc import Mapping

from gateway.domain.balance import Charge
from gateway.domain.charged_units import build_units
from gateway.domain.content_filter import is_block_code
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import OPERATIONS
from gateway.domain.request_log import (
    ANSWERED,
    INTERRUPTED_STATUS,
    FailedAttempt,
    Outcome,
    RequestRecord,
    RequestStart,
    build_adapted,
    build_error,
    build_tried,
)
from gateway.errors import GatewayError, ProviderError, ProviderRejected, RequestCancelled, ShuttingDown
from gateway.request_context import RequestContext
from gateway.upstream.exhaustion import ResourcesExhausted
from gateway.wording import mask_name

CLIENT_CLOSED_STATUS = 499
"""The recorded status if the client disconnected before the answer. No client ever receives this status."""
MAX_SERVED_CHARS = 200
NOTHING_CHARGED = Charge(0, 0)
_STATUS: Mapping[Outcome, int] = {"client_closed": CLIENT_CLOSED_STATUS, "interrupted": INTERRUPTED_STATUS}


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
    now: float,
    now_ms: int,
    charge: Charge = NOTHING_CHARGED,
) -> RequestRecord:
    """Build the record of an ended request. ``now`` is loop time. ``ctx`` lacks ``inference`` if no body was read."""
    inference: InferenceRequest | None = getattr(ctx, "inference", None)  # saves the call of ``ctx.parsed``
    attempts, usage, account, key = ctx.attempts, ctx.usage, ctx.caller.account, ctx.caller.key
    model, stream = (mask_name(inference.model), inference.stream) if inference else ("", False)
    channel, served, tried, adapted, unpriced = None, model, "", "", False
    if attempts:
        last = attempts[-1]
        target, channel = last.target, last.channel.name
        served = last.answered or target.model
        # A cost reported by the provider, or at the price of the model that answered, is charged even without a price.
        unpriced = target.unpriced and not charge.cost_nanos and not OPERATIONS[ctx.operation].counts_only
        tried = _build_trail(ctx, outcome, error, now) if len(attempts) > 1 else ""
        adapted = build_adapted(last.translator.adapted) if last.translator.adapted else ""
    first_byte_ms = None if ctx.first_byte_at is None else round((ctx.first_byte_at - ctx.started_at) * 1000)
    status = 200 if first_byte_ms is not None else error.status if error is not None else _STATUS.get(outcome, 200)
    units = usage.details is not None or usage.written_tokens or usage.size
    reserved = ctx.reservation.nanos if ctx.reservation is not None else 0
    # Positional, because passing this many keyword arguments takes twice as long as building the record.
    return RequestRecord(
        *(ctx.id, ctx.started_ms, now_ms, ctx.operation, account.id),
        *(account.name, key.id, key.name, model, channel),
        *(status, outcome, error.public_code if error else None, stream, len(attempts)),
        *(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.source, charge.cost_nanos),
        *(reserved, charge.overrun_nanos, first_byte_ms, round((now - ctx.started_at) * 1000), ctx.client_request_id),
        *(tried, usage.images, usage.duration_ms, usage.characters, build_error(error.message) if error else ""),
        *(unpriced, ctx.batch.id, ctx.batch.multiplier_ppm, adapted),
        *("" if served == model else build_error(served[:MAX_SERVED_CHARS]), build_units(usage) if units else ""),
    )


def _build_trail(ctx: RequestContext, outcome: Outcome, error: GatewayError | None, now: float) -> str:
    """Format all attempts of a request with several. The last attempt ended like the request, unless it failed."""
    tried = [attempt.failure for attempt in ctx.attempts if attempt.failure is not None]
    last = ctx.attempts[-1]
    if last.failure is None:
        code = error.public_code or error.code if error else ANSWERED if outcome == "completed" else outcome
        tried.append(FailedAttempt(last.channel.name, code, round((now - last.began_at) * 1000)))
    return build_tried(tried)


def build_start(ctx: RequestContext, channel: str | None, reserved_nanos: int) -> RequestStart:
    """Build the journal entry of a request about to be sent to ``channel``: all that remains after a crash."""
    account, key, inference = ctx.caller.account, ctx.caller.key, ctx.inference
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
    )
