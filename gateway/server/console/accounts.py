"""The pages of accounts and members, and of the audit log."""

import asyncio
from collections.abc import Sequence
from urllib.parse import urlencode

from aiohttp import web

from gateway.server.admin.accounts import KeyView
from gateway.server.admin.members import ListedMemberView
from gateway.server.console.labels import SUBJECTS
from gateway.server.console.limits import list_limits_of
from gateway.server.console.page import Data, ask_admin_api
from gateway.server.console.routes import ROOT

_PAGE_SIZE = 50
_MAX_CREDITS = 20
_MAX_FORECASTS = 10
_FILTERS = ("account", "actor", "action")


async def load_accounts(request: web.Request) -> Data:
    """Load all accounts with the numbers of their keys and members."""
    accounts, keys, members = await asyncio.gather(
        ask_admin_api(request, "/accounts"), ask_admin_api(request, "/keys"), ask_admin_api(request, "/members")
    )
    return {"accounts": accounts, "keys": _count(keys), "members": _count(members)}


def _count(views: Sequence[KeyView | ListedMemberView]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for view in views:
        counts[view.account] = counts.get(view.account, 0) + 1
    return counts


async def load_account(request: web.Request) -> Data:
    """Load an account with its balance, keys and members."""
    name = request.match_info["name"]
    account, credits_, keys, members, links, forecasts, limits = await asyncio.gather(
        ask_admin_api(request, "/accounts/{name}"),
        ask_admin_api(request, "/accounts/{name}/credits", limit=_MAX_CREDITS),
        ask_admin_api(request, "/keys", account=name),
        ask_admin_api(request, "/members", account=name),
        ask_admin_api(request, "/links"),
        ask_admin_api(request, "/usage/forecast", account=name, limit=_MAX_FORECASTS),
        ask_admin_api(request, "/limits"),
    )
    return {
        "shown": account,
        "forecasts": forecasts.data,
        "limits": list_limits_of(limits, [key.name for key in keys]),
        "owner": name,
        "credits": credits_,
        "keys": keys,
        "members": members,
        "links": [link for link in links if link.account == name],
    }


async def load_trail(request: web.Request) -> Data:
    """Load a page of the audit log, the newest first."""
    filters = {name: request.query[name] for name in _FILTERS if request.query.get(name)}
    audit_log, accounts, members = await asyncio.gather(
        ask_admin_api(request, "/audit-trail", limit=_PAGE_SIZE, before=request.query.get("before"), **filters),
        ask_admin_api(request, "/accounts"),
        ask_admin_api(request, "/members"),
    )
    rows = audit_log
    older = urlencode({**filters, "before": rows[-1].sequence}) if len(rows) == _PAGE_SIZE else None
    return {
        "rows": rows,
        "wanted": filters,
        "accounts": accounts,
        "members": members,
        "subjects": SUBJECTS,
        "older": None if older is None else f"{ROOT}/audit?{older}",
    }
