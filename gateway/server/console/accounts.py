"""The pages of accounts and members, and of the audit log."""

import asyncio
from urllib.parse import urlencode

from aiohttp import web

from gateway.server.console.labels import SUBJECTS
from gateway.server.console.limits import list_limits_of
from gateway.server.console.lists import load_list
from gateway.server.console.page import Data, ask_admin_api
from gateway.server.console.routes import ROOT
from gateway.server.console.usage_charts import load_charts

_PAGE_SIZE = 50
_MAX_CREDITS = 20
_MAX_LINKS = 50
_MAX_ROWS = 20
"""Maximum number of keys, and of members, on an account's page."""
_MAX_FORECASTS = 10
_FILTERS = ("account", "actor", "action")


async def load_accounts(request: web.Request) -> Data:
    """Load a page of accounts."""
    return {"list": await load_list(request, "/accounts")}


async def load_account(request: web.Request) -> Data:
    """Load an account with its credits, keys, members and open links, and its charts, forecasts and limits."""
    name = request.match_info["name"]
    account, charts, credits_, keys, members, links, forecasts, limits = await asyncio.gather(
        ask_admin_api(request, "/accounts/{name}"),
        load_charts(request, account=name),
        ask_admin_api(request, "/accounts/{name}/credits", limit=_MAX_CREDITS),
        ask_admin_api(request, "/keys", account=name, limit=_MAX_ROWS),
        ask_admin_api(request, "/members", account=name, limit=_MAX_ROWS),
        ask_admin_api(request, "/links"),
        ask_admin_api(request, "/usage/forecast", account=name, limit=_MAX_FORECASTS),
        ask_admin_api(request, "/limits"),
    )
    if keys.total > len(keys) and any(limit.keys for limit in limits):
        key_names = [key.name for key in await ask_admin_api(request, "/keys", account=name)]
    else:
        key_names = [key.name for key in keys]
    return {
        "shown": account,
        "charts": charts,
        "forecasts": forecasts.data,
        "limits": list_limits_of(limits, key_names),
        "owner": name,
        "credits": credits_,
        "keys": keys,
        "members": members,
        "links": [link for link in links if link.account == name],
    }


async def load_members(request: web.Request) -> Data:
    """Load a page of members, and the newest open links."""
    members, accounts, links = await asyncio.gather(
        load_list(request, "/members", ("account", "role")),
        ask_admin_api(request, "/accounts"),
        ask_admin_api(request, "/links"),
    )
    return {
        "list": members,
        "members": members.rows,
        "accounts": accounts,
        "links": links[:_MAX_LINKS],
        "more_links": max(len(links) - _MAX_LINKS, 0),
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
