"""Admin API: credits, and the reconciliation of balances."""

from gateway.domain.account_spec import CreditSpec
from gateway.parsing import parse_spec
from gateway.server.admin.accounts import STANDING
from gateway.server.admin.handler import AdminRequest, Fields, admin_operation
from gateway.server.admin.io import LIMIT, parse_key_id, parse_limit, read_change
from gateway.server.openapi import schema as s

_CREDIT = s.record(
    sequence=s.INTEGER,
    at=s.MOMENT,
    kind=s.one_of("top_up", "set", "orphan"),
    account_id=s.INTEGER,
    key_id=s.maybe(s.INTEGER),
    amount_usd=s.NUMBER,
    reference=s.maybe(s.TEXT),
    note=s.maybe(s.TEXT),
)
_CREDITED = s.extend(_CREDIT, added=s.FLAG, **STANDING["properties"])
"""``added`` is false if the balance already has a credit with this reference; that credit is returned."""
_AUDIT = s.record(
    ok=s.FLAG,
    problems=s.array(s.TEXT),
    purses=s.COUNT,
    charged_usd=s.NUMBER,
    charged_nanos=s.INTEGER,
    open_holds=s.INTEGER,
    video_holds=s.COUNT,
    held_usd=s.NUMBER,
    video_held_usd=s.NUMBER,
    waiting_rows=s.COUNT,
)


@admin_operation(takes=CreditSpec, answer=_CREDITED, status=201)
async def credit_account(request: AdminRequest) -> Fields:
    """Add credit to an account, or set the amount that it has left."""
    services, fields = request.services, await read_change(request)
    account = await services.auth.accounts.get_account_noun(request.match_info["name"], request.actor)
    return await services.billing.accounting.credit(account, parse_spec(fields, CreditSpec), request.actor)


@admin_operation(takes=CreditSpec, answer=_CREDITED, status=201)
async def credit_key(request: AdminRequest) -> Fields:
    """Add credit to an API key, or set the amount that it has left."""
    services, fields = request.services, await read_change(request)
    key = await services.auth.accounts.get_key_noun(parse_key_id(request), request.actor)
    subject = f"{(await services.auth.accounts.name_accounts()).get(key.account_id, '')}/{key.name}"
    spec = parse_spec(fields, CreditSpec)
    return await services.billing.accounting.credit(key, spec, request.actor, subject=subject)


@admin_operation(query=(LIMIT,), answer=s.listing(_CREDIT))
async def list_account_credits(request: AdminRequest) -> list[Fields]:
    """List the newest credits of an account."""
    services = request.services
    account = await services.auth.accounts.get_account_noun(request.match_info["name"], request.actor)
    return await services.billing.accounting.list_credits(account, parse_limit(request))


@admin_operation(query=(LIMIT,), answer=s.listing(_CREDIT))
async def list_key_credits(request: AdminRequest) -> list[Fields]:
    """List the newest credits of an API key."""
    services = request.services
    key = await services.auth.accounts.get_key_noun(parse_key_id(request), request.actor)
    return await services.billing.accounting.list_credits(key, parse_limit(request))


@admin_operation(answer=_AUDIT)
async def get_audit(request: AdminRequest) -> Fields:
    """Check that every balance is the sum of its ledger entries."""
    return await request.services.billing.accounting.reconcile()
