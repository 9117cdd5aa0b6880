"""Checks that few requests need: budgets in ``x-gateway-budget``, and rules of keys against loops."""

from functools import partial

from gateway.domain.attribution import BUDGET_HEADER, clean_name
from gateway.domain.price import usd
from gateway.domain.request_budget import parse_budget
from gateway.errors import InvalidRequest
from gateway.request_context import QUOTE_HEADER, SESSION_LEFT_HEADER
from gateway.server.active_inference import ActiveInference


async def check_request(active: ActiveInference) -> None:
    """Check a request with a budget, or of a key with ``loops``.

    Raises ``LoopDetected``, and the errors of ``apply_budget``.
    """
    if BUDGET_HEADER in active.request.headers:
        await apply_budget(active)
    if active.context.caller.key.loops is not None:
        await active.services.open_loop_guard().check(active.context)


def make_budget_refusal(reason: str) -> InvalidRequest:
    """Return the error for a budget at an endpoint that enforces none: silence would let the client rely on it."""
    return InvalidRequest(f"{BUDGET_HEADER}: {reason}", param=BUDGET_HEADER)


async def apply_budget(active: ActiveInference) -> None:
    """Put the budget in a request's header into force. A request without quota left stores no budget.

    Raises ``InvalidRequest``, ``BudgetExceeded``, ``SessionEnded``, ``QuotaExceeded`` and ``RateLimited``.
    """
    ctx, services, headers = active.context, active.services, active.request.headers
    budget = parse_budget(headers[BUDGET_HEADER])
    if QUOTE_HEADER in headers:
        raise InvalidRequest(f"{BUDGET_HEADER} and {QUOTE_HEADER} exclude each other", param=BUDGET_HEADER)
    if budget.session:
        ctx.attribution = ctx.attribution._replace(session=clean_name(budget.session))
    budgets, session = services.billing.limits.open_budgets(), ctx.attribution.session
    if session:
        caller = ctx.caller
        await services.billing.quota.precheck(caller, partial(services.routing.router.may_be_free, caller))
        await budgets.open_for(ctx, budget.limit_nanos)
    else:
        budgets.set_own(ctx, budget.limit_nanos)


def note_left(active: ActiveInference) -> None:
    """Set the header with what is left of the session's budget, minus what running requests have reserved."""
    ctx, budgets = active.context, active.services.billing.limits.budgets
    left_nanos = None if budgets is None else budgets.find_left_nanos(ctx)
    if left_nanos is not None:
        ctx.headers = {**(ctx.headers or {}), SESSION_LEFT_HEADER: usd(left_nanos)}
