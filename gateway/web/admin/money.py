"""The admin API's paths about money: credits, usage, and the audit."""

from collections.abc import Sequence
from datetime import date
from typing import Any, get_args

import attrs
from aiohttp import web

from gateway.domain.declaration import CreditSpec
from gateway.domain.fault import InvalidRequest
from gateway.domain.ledger import UsageAxis, UsageFilter, UsageLine
from gateway.domain.price import NANOS_PER_USD
from gateway.flow.administration import read_spec
from gateway.web.admin.accounts import STANDING
from gateway.web.admin.doors import Door
from gateway.web.admin.forms import LIMIT, read_id, read_limit, write_json, write_listing
from gateway.web.admin.shapes import (
    COUNT,
    FLAG,
    INTEGER,
    MOMENT,
    NUMBER,
    TEXT,
    array,
    extend,
    listing,
    maybe,
    one_of,
    record,
)
from gateway.web.body import read_json
from gateway.web.keys import ACTOR, OFFICE, ROOMS
from gateway.web.query import day_of_number, day_of_time, number_of_day, read_date, read_number

_AXES: tuple[UsageAxis, ...] = get_args(UsageAxis)
_DAYS_SHOWN = 30

_CREDIT = record(
    sequence=INTEGER,
    at=MOMENT,
    kind=one_of("top_up", "set"),
    account_id=INTEGER,
    key_id=maybe(INTEGER),
    amount_usd=NUMBER,
    reference=maybe(TEXT),
    note=maybe(TEXT),
)
_CREDITED = extend(_CREDIT, added=FLAG, **STANDING["properties"])
"""``added`` is false where the purse has a credit of that reference already; that one is shown."""
_AUDIT = record(
    ok=FLAG,
    problems=array(TEXT),
    purses=COUNT,
    charged_usd=NUMBER,
    charged_nanos=INTEGER,
    open_holds=INTEGER,
    video_holds=COUNT,
    held_usd=NUMBER,
    video_held_usd=NUMBER,
    waiting_rows=COUNT,
)


async def credit_account(request: web.Request) -> web.Response:
    """Add to what an account may spend, or set what it has left."""
    office, fields = request.app[OFFICE], await read_json(request)
    account = await office.administration.get_account_noun(request.match_info["name"], request[ACTOR])
    credited = await office.accounting.credit(account, read_spec(fields, CreditSpec), request[ACTOR])
    return write_json(credited, 201)


async def credit_key(request: web.Request) -> web.Response:
    """Add to what a key may spend, or set what it has left."""
    office, fields = request.app[OFFICE], await read_json(request)
    key = await office.administration.get_key_noun(read_id(request), request[ACTOR])
    subject = f"{(await office.administration.name_accounts()).get(key.account_id, '')}/{key.name}"
    spec = read_spec(fields, CreditSpec)
    return write_json(await office.accounting.credit(key, spec, request[ACTOR], subject=subject), 201)


async def list_account_credits(request: web.Request) -> web.Response:
    """The newest credits of an account."""
    office = request.app[OFFICE]
    account = await office.administration.get_account_noun(request.match_info["name"], request[ACTOR])
    return write_listing(await office.accounting.list_credits(account, read_limit(request)))


async def list_key_credits(request: web.Request) -> web.Response:
    """The newest credits of a key."""
    office = request.app[OFFICE]
    key = await office.administration.get_key_noun(read_id(request), request[ACTOR])
    return write_listing(await office.accounting.list_credits(key, read_limit(request)))


async def get_usage(request: web.Request) -> web.Response:
    """Usage summed ``by`` day, model, key or account.

    ``since`` and ``until`` (YYYY-MM-DD, UTC, both inclusive; the last 30 days), ``account`` (a name), ``key`` (an
    id), ``model``.
    """
    office, by = request.app[OFFICE], request.query.get("by", "day")
    axis = next((axis for axis in _AXES if axis == by), None)
    if axis is None:
        raise InvalidRequest(f"'by' must be one of {', '.join(_AXES)}", param="by")
    since, until = _read_days(request)
    wanted = await _read_filter(request, since, until)
    names = await _name_lines(request, axis)
    lines = await office.accounting.list_usage(axis, wanted)
    return write_json(
        {
            "object": "list",
            "by": axis,
            "since": since.isoformat(),
            "until": until.isoformat(),
            "data": [{axis: _label(line.label, axis, names), **_write_line(line)} for line in lines],
            "total": _write_line(_sum_up(lines)),
        },
    )


async def get_audit(request: web.Request) -> web.Response:
    """Whether every balance is the sum of its entries."""
    return write_json(await request.app[OFFICE].accounting.audit())


MONEY_DOORS: tuple[Door, ...] = (
    Door("GET", "/accounts/{name}/credits", list_account_credits, query=(LIMIT,), answer=listing(_CREDIT)),
    Door("POST", "/accounts/{name}/credits", credit_account, takes=CreditSpec, answer=_CREDITED, status=201),
    Door("GET", "/keys/{id}/credits", list_key_credits, "viewer", query=(LIMIT,), answer=listing(_CREDIT)),
    Door("POST", "/keys/{id}/credits", credit_key, takes=CreditSpec, answer=_CREDITED, status=201),
    Door("GET", "/usage", get_usage),
    Door("GET", "/audit", get_audit, answer=_AUDIT),
)


async def _name_lines(request: web.Request, axis: UsageAxis) -> dict[str, str]:
    """The names of keys or accounts by their id."""
    administration = request.app[OFFICE].administration
    if axis == "account":
        return {str(account["id"]): account["name"] for account in await administration.list_accounts()}
    if axis == "key":
        return {str(key["id"]): f"{key['account']}/{key['name']}" for key in await administration.list_keys()}
    return {}


def _read_days(request: web.Request) -> tuple[date, date]:
    until = read_date(request.query, "until") or day_of_time(request.app[ROOMS].clock())
    since = read_date(request.query, "since") or day_of_number(max(number_of_day(until) - _DAYS_SHOWN + 1, 0))
    if since > until:
        raise InvalidRequest("'since' must not be after 'until'", param="since")
    return since, until


async def _read_filter(request: web.Request, since: date, until: date) -> UsageFilter:
    administration, query = request.app[OFFICE].administration, request.query
    account = query.get("account")
    return UsageFilter(
        since=number_of_day(since),
        until=number_of_day(until),
        account_id=None if account is None else (await administration.get_account_noun(account)).id,
        key_id=read_number(query, "key"),
        model=query.get("model"),
    )


def _sum_up(lines: Sequence[UsageLine]) -> UsageLine:
    return UsageLine(
        "total",
        sum(line.requests for line in lines),
        sum(line.prompt_tokens for line in lines),
        sum(line.completion_tokens for line in lines),
        sum(line.cached_tokens for line in lines),
        sum(line.cost_nanos for line in lines),
    )


def _label(label: str, axis: UsageAxis, names: dict[str, str]) -> str:
    if axis == "day":
        return day_of_number(int(label)).isoformat()
    return label if axis == "model" else names.get(label, f"{label} (deleted)")


def _write_line(line: UsageLine) -> dict[str, Any]:
    fields = attrs.asdict(line)
    del fields["label"]
    return {**fields, "cost_usd": line.cost_nanos / NANOS_PER_USD}
