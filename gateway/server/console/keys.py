"""The pages of API keys."""

import asyncio
from typing import Any

from aiohttp import web

from gateway.server.console.limits import list_limits_of
from gateway.server.console.lists import load_list
from gateway.server.console.page import Data, ask_admin_api
from gateway.server.context import ACTOR, USER

_MAX_REQUESTS = 10
_MAX_CREDITS = 10


async def load_keys(request: web.Request) -> Data:
    """Load a page of the account's keys. Administrators see the keys of all accounts, or of the selected one."""
    sees_all_accounts = request[ACTOR].scope is None
    filters = ("account", "status") if sees_all_accounts else ("status",)
    keys, accounts, groups = await asyncio.gather(
        load_list(request, "/keys", filters),
        ask_admin_api(request, "/accounts") if sees_all_accounts else _return_nothing(),
        ask_admin_api(request, "/groups") if sees_all_accounts else _return_nothing(),
    )
    return {"list": keys, "accounts": accounts, "groups": groups, "own_account": request[USER].account.name}


async def load_key(request: web.Request) -> Data:
    """Load a key with its latest requests and credits."""
    key = await ask_admin_api(request, "/keys/{id}")
    sees_all_accounts = request[ACTOR].scope is None
    latest, credits_, forecasts, accounts, limits = await asyncio.gather(
        ask_admin_api(request, "/requests", key=key.id, limit=_MAX_REQUESTS),
        ask_admin_api(request, "/keys/{id}/credits", limit=_MAX_CREDITS),
        ask_admin_api(request, "/usage/forecast", key=key.id),
        ask_admin_api(request, "/accounts") if sees_all_accounts else _return_nothing(),
        ask_admin_api(request, "/limits") if sees_all_accounts else _return_nothing(),
    )
    return {
        "key": key,
        "limits": list_limits_of(limits, [key.name]),
        "owner": key.account,
        "latest": latest.data,
        "credits": credits_,
        "forecasts": forecasts.data,
        "accounts": accounts,
        "own_account": request[USER].account.name,
    }


async def _return_nothing() -> list[Any]:
    return []
