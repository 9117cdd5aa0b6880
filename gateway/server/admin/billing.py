"""Admin API: credits, and the reconciliation of balances."""

from collections.abc import Sequence
from typing import Literal

from gateway.answer_fields import Count, Moment
from gateway.domain.account_spec import CreditSpec
from gateway.frozen import frozen
from gateway.parsing import parse_spec
from gateway.server.admin.handler import AdminRequest, admin_operation
from gateway.server.admin.io import LIMIT_QUERY, parse_key_id, parse_limit, read_change


@frozen(kw_only=True)
class CreditView:
    """A credit to a balance."""

    sequence: int
    kind: Literal["top_up", "set", "orphan"]
    account_id: int
    key_id: int | None
    reference: str | None
    note: str | None
    at: Moment
    amount_usd: float


@frozen(kw_only=True)
class NewCreditView(CreditView):
    """A credit with the balance after it.

    ``added`` is false if the balance already has a credit with this reference; that credit is returned.
    """

    added: bool
    spent_usd: float
    credit_usd: float
    held_usd: float
    left_usd: float | None
    overrun_usd: float
    resets_at: Moment | None


@frozen(kw_only=True)
class Reconciliation:
    """Whether every balance is the sum of its ledger entries, and which limits are exceeded."""

    ok: bool
    problems: Sequence[str]
    overruns: Sequence[str]
    purses: Count
    charged_usd: float
    charged_nanos: int
    open_holds: int
    video_holds: Count
    held_usd: float
    video_held_usd: float
    waiting_rows: Count


@admin_operation(takes=CreditSpec, status=201)
async def credit_account(request: AdminRequest) -> NewCreditView:
    """Add credit to an account, or set the amount that it has left."""
    services, fields = request.services, await read_change(request)
    account = await services.auth.accounts.get_stored_account(request.match_info["name"], request.actor)
    return NewCreditView(
        **await services.billing.accounting.credit(account, parse_spec(fields, CreditSpec), request.actor)
    )


@admin_operation(takes=CreditSpec, status=201)
async def credit_key(request: AdminRequest) -> NewCreditView:
    """Add credit to an API key, or set the amount that it has left."""
    services, fields = request.services, await read_change(request)
    key = await services.auth.accounts.get_stored_key(parse_key_id(request), request.actor)
    subject = f"{(await services.auth.accounts.name_accounts()).get(key.account_id, '')}/{key.name}"
    spec = parse_spec(fields, CreditSpec)
    return NewCreditView(**await services.billing.accounting.credit(key, spec, request.actor, subject=subject))


@admin_operation(query=(LIMIT_QUERY,))
async def list_account_credits(request: AdminRequest) -> list[CreditView]:
    """List the newest credits of an account."""
    services = request.services
    account = await services.auth.accounts.get_stored_account(request.match_info["name"], request.actor)
    return [
        CreditView(**entry) for entry in await services.billing.accounting.list_credits(account, parse_limit(request))
    ]


@admin_operation(query=(LIMIT_QUERY,))
async def list_key_credits(request: AdminRequest) -> list[CreditView]:
    """List the newest credits of an API key."""
    services = request.services
    key = await services.auth.accounts.get_stored_key(parse_key_id(request), request.actor)
    return [CreditView(**entry) for entry in await services.billing.accounting.list_credits(key, parse_limit(request))]


@admin_operation()
async def get_audit(request: AdminRequest) -> Reconciliation:
    """Check that every balance is the sum of its ledger entries."""
    return Reconciliation(**await request.services.billing.accounting.reconcile())
