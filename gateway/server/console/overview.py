"""The overview of all accounts or of one: usage, the latest requests, and the limits that will be reached."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from aiohttp import web

from gateway.server.admin.accounts import AccountView
from gateway.server.admin.forecasts import ForecastReport, ForecastView
from gateway.server.admin.handler import AdminRequest
from gateway.server.admin.models import describe_models
from gateway.server.admin.subjects import find_listed_days
from gateway.server.admin.usage import UsageLine
from gateway.server.console.page import Data, ask_admin_api
from gateway.server.console.usage_charts import PageCharts, list_lines, load_charts
from gateway.server.context import ACTOR

_MAX_LINES = 6
"""Maximum number of models, of keys, of channels and of users that are listed: the most expensive ones."""
_MAX_RANKED = 20_000
"""Maximum number of end users among whom the most expensive are found, added up over the days: two full days."""
_MAX_REQUESTS = 6
_MAX_FORECASTS = 10
"""How many limits are forecast: the most used ones. The page shows those that will be reached."""


async def load_overview(request: web.Request) -> Data:
    """Load the usage, latest requests and forecasts of the account; for administrators, of all or the selected one."""
    sees_all_accounts = request[ACTOR].scope is None
    account = request.query.get("account") if sees_all_accounts else None
    charts = await load_charts(request, account=account)
    times = {"since": charts.answer.since, "until": charts.answer.until}
    query = {**times, "account": account}
    user_days = await find_listed_days(AdminRequest(request, times), "user", max_ranked=_MAX_RANKED)
    user_query = {"since": user_days.since, "until": user_days.until, "account": account}
    models, keys, channels, users, latest, session, accounts = await asyncio.gather(
        list_lines(request, charts, "model", query),
        list_lines(request, charts, "key", query),
        _load_channel_usage(request, charts, query, sees_all_accounts=sees_all_accounts),
        ask_admin_api(request, "/end-users", limit=_MAX_LINES, **user_query),
        ask_admin_api(request, "/requests", limit=_MAX_REQUESTS, account=account),
        ask_admin_api(request, "/account"),
        _list_accounts(request, sees_all_accounts=sees_all_accounts),
    )
    owner = next((view for view in accounts if view.name == account), None if sees_all_accounts else session)
    models = models[:_MAX_LINES]
    views = describe_models(AdminRequest(request, {}), {line.model for line in models if line.model})
    forecasts = await _load_forecasts(request, account)
    return {
        "charts": charts,
        "accounts": accounts,
        "chosen_account": account,
        "owner": owner,
        "models": models,
        "keys": keys[:_MAX_LINES],
        "channels": channels[:_MAX_LINES],
        "users": users,
        "user_days": user_days,
        "export": _build_export_query(query),
        "latest": latest.data,
        "forecasts": [line for line in forecasts if line.reached_at is not None],
        "quota_forecasts": [line for line in forecasts if owner is not None and line.owner == "account"],
        "unpriced": {name for name, view in views.items() if view.price is None},
    }


def _build_export_query(query: Mapping[str, Any]) -> str:
    return urlencode({"by": "user", **{name: value for name, value in query.items() if value is not None}})


async def _load_forecasts(request: web.Request, account: str | None) -> list[ForecastView]:
    report: ForecastReport = await ask_admin_api(request, "/usage/forecast", account=account, limit=_MAX_FORECASTS)
    return list(report.data)


async def _list_accounts(request: web.Request, *, sees_all_accounts: bool) -> list[AccountView]:
    account_views: list[AccountView] = await ask_admin_api(request, "/accounts") if sees_all_accounts else []
    return account_views


async def _load_channel_usage(
    request: web.Request, charts: PageCharts, query: Mapping[str, Any], *, sees_all_accounts: bool
) -> Sequence[UsageLine]:
    return await list_lines(request, charts, "channel", query) if sees_all_accounts else ()
