"""The pages of API keys."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from gateway.server.admin.forecasts import ForecastView
from gateway.server.admin.key_limits import SpendingLimitUse
from gateway.server.console.limits import list_limits_of
from gateway.server.console.lists import load_list
from gateway.server.console.page import Data, ask_admin_api
from gateway.server.console.routes import mark
from gateway.server.console.usage_charts import load_charts
from gateway.server.context import ACTOR, USER

_MAX_REQUESTS = 10
_MAX_CREDITS = 10
_MAX_SESSIONS = 5
FIELD_WORDS: Mapping[str, str] = {
    "quota_usd": mark("spending limit"),
    "quota_period": mark("reset period"),
    "quota_status": mark("refusal status"),
    "models": mark("models"),
    "group": mark("group"),
    "expires_at": mark("expiry"),
    "allow_ips": mark("IP allowlist"),
    "rpm": mark("requests per minute"),
    "tpm": mark("tokens per minute"),
    "max_concurrency": mark("concurrent requests"),
    "burst": mark("burst"),
    "status": mark("status"),
    "user": mark("end user"),
    "tags": mark("tags"),
    "loops": mark("repeated conversations"),
    "max_session_usd": mark("highest session budget"),
    "show_account": mark("account limits"),
    "keep_bodies": mark("kept prompts and answers"),
    "resumable": mark("resumable streams"),
    "cache_ttl_s": mark("answer cache"),
}
"""The fields that an administrator can lock, in words."""


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
    """Load a key with its usage, what is left of its limits, and its latest sessions, requests and credits."""
    key = await ask_admin_api(request, "/keys/{id}")
    sees_all_accounts = request[ACTOR].scope is None
    charts, latest, sessions, credits_, forecasts, uses, accounts, limits = await asyncio.gather(
        load_charts(request, key=key.id),
        ask_admin_api(request, "/requests", key=key.id, limit=_MAX_REQUESTS),
        ask_admin_api(request, "/request-sessions", key=key.id, limit=_MAX_SESSIONS),
        ask_admin_api(request, "/keys/{id}/credits", limit=_MAX_CREDITS),
        ask_admin_api(request, "/usage/forecast", key=key.id),
        ask_admin_api(request, "/keys/{id}/limits"),
        ask_admin_api(request, "/accounts") if sees_all_accounts else _return_nothing(),
        ask_admin_api(request, "/limits") if sees_all_accounts else _return_nothing(),
    )
    shown_names = {use.name for use in uses.limits}
    further_limits = [limit for limit in list_limits_of(limits, [key.name]) if limit.name not in shown_names]
    return {
        "key": key,
        "charts": charts,
        "limits": further_limits,
        "owner": key.account,
        "latest": latest.data,
        "sessions": sessions.data,
        "credits": credits_,
        "forecasts": [line for line in forecasts.data if line.owner == "key"],
        "uses": [(use, _find_forecast(use, forecasts.data)) for use in uses.limits],
        "rates": uses.rate_limits,
        "keep_rule": uses.keep_bodies,
        "keep_days": uses.keep_days,
        "accounts": accounts,
        "own_account": request[USER].account.name,
        "locked_words": [FIELD_WORDS.get(name, name) for name in key.locked],
    }


def _find_forecast(use: SpendingLimitUse, forecasts: Sequence[ForecastView]) -> ForecastView | None:
    name = None if use.name == "quota" else use.name
    owner = "key" if use.of == "key" else "account"
    return next((line for line in forecasts if line.limit == name and (name or line.owner == owner)), None)


async def _return_nothing() -> list[Any]:
    return []
