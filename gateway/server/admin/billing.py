"""Admin API: credits, and the reconciliation of balances."""

from aiohttp import web

from gateway.domain.account_spec import CreditSpec
from gateway.parsing import parse_spec
from gateway.server.admin.accounts import STANDING
from gateway.server.admin.handler import admin_operation
from gateway.server.admin.io import LIMIT, parse_key_id, parse_limit, read_change, respond_json, respond_list
from gateway.server.context import ACTOR, SERVICES
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
async def credit_account(request: web.Request) -> web.Response:
    """Add credit to an account, or set the amount that it has left."""
    services, fields = request.app[SERVICES], await read_change(request)
    account = await services.auth.accounts.get_account_noun(request.match_info["name"], request[ACTOR])
    credited = await services.billing.accounting.credit(account, parse_spec(fields, CreditSpec), request[ACTOR])
    return respond_json(credited, 201)


@admin_operation(takes=CreditSpec, answer=_CREDITED, status=201)
async def credit_key(request: web.Request) -> web.Response:
    """Add credit to an API key, or set the amount that it has left."""
    services, fields = request.app[SERVICES], await read_change(request)
    key = await services.auth.accounts.get_key_noun(parse_key_id(request), request[ACTOR])
    subject = f"{(await services.auth.accounts.name_accounts()).get(key.account_id, '')}/{key.name}"
    spec = parse_spec(fields, CreditSpec)
    return respond_json(await services.billing.accounting.credit(key, spec, request[ACTOR], subject=subject), 201)


@admin_operation(query=(LIMIT,), answer=s.listing(_CREDIT))
async def list_account_credits(request: web.Request) -> web.Response:
    """List the newest credits of an account."""
    services = request.app[SERVICES]
    account = await services.auth.accounts.get_account_noun(request.match_info["name"], request[ACTOR])
    return respond_list(await services.billing.accounting.list_credits(account, parse_limit(request)))


@admin_operation(query=(LIMIT,), answer=s.listing(_CREDIT))
async def list_key_credits(request: web.Request) -> web.Response:
    """List the newest credits of an API key."""
    services = request.app[SERVICES]
    key = await services.auth.accounts.get_key_noun(parse_key_id(request), request[ACTOR])
    return respond_list(await services.billing.accounting.list_credits(key, parse_limit(request)))


@admin_operation(answer=_AUDIT)
async def get_audit(request: web.Request) -> web.Response:
    """Check that every balance is the sum of its ledger entries."""
    return respond_json(await request.app[SERVICES].billing.accounting.reconcile())
