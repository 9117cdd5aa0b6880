"""The lists of end users and of the values of a tag."""

import asyncio
from typing import Any

import attrs
from aiohttp import web

from gateway.errors import NotFound
from gateway.server.admin.handler import AdminRequest
from gateway.server.admin.subjects import find_listed_days
from gateway.server.console.lists import ListView, load_list
from gateway.server.console.page import Data, ask_admin_api
from gateway.server.console.periods import NAMED_PERIODS
from gateway.server.console.routes import ROOT
from gateway.server.context import ACTOR, SERVICES

_PERIODS = {name: period for name, period in NAMED_PERIODS.items() if period.step == "day"}
_DEFAULT_PERIOD = "7d"
_NO_VALUE = "-"
"""The usage report is limited to this value, because only the report's sum ``other`` is read."""


async def load_end_users(request: web.Request) -> Data:
    """Load a page of the end users, those that cost most first. Administrators see those of all accounts."""
    return {**await _load(request, "/end-users", "user"), "tag": None, "tags": []}


async def load_tags(request: web.Request) -> Data:
    """Load a page of the values of the tag in the address, or else of the first tag by name."""
    period = _find_period(request)
    query = {"account": _find_account(request), "since": _find_since(request, period)}
    tags = [tag.name for tag in await _ask_of_account(request, "/tags", **query) or ()]
    tag = request.query.get("tag") or next(iter(tags), "")
    if tag:
        return {**await _load(request, "/tag-values", f"tag:{tag}", tag=tag), "tag": tag, "tags": tags}
    empty = ListView(path=f"{ROOT}/tags", rows=(), filters={}, next=None, previous=None)
    choices: dict[str, Any] = {
        "accounts": [],
        "periods": _PERIODS,
        "period": period,
        "days": None,
        "is_incomplete": False,
    }
    return {"list": empty, "tag": "", "tags": tags, **choices}


async def _load(request: web.Request, path: str, by: str, **tag: str) -> dict[str, Any]:
    period, account = _find_period(request), _find_account(request)
    sees_all_accounts, period_query = request[ACTOR].scope is None, {"since": _find_since(request, period)}
    days = await find_listed_days(AdminRequest(request, period_query), "tag" if tag else "user", tag.get("tag", ""))
    filters = ("account",) if sees_all_accounts else ()
    page_path = "/tags" if tag else path
    listed, accounts, report = await asyncio.gather(
        load_list(request, path, filters, page_path=page_path, default_sort="-cost_usd", since=days.since, **tag),
        ask_admin_api(request, "/accounts") if sees_all_accounts else _return_nothing(),
        _ask_of_account(request, "/usage", by=by, value=_NO_VALUE, since=days.since, account=account),
    )
    shown = {} if period == _DEFAULT_PERIOD else {"span": period}
    return {
        "list": attrs.evolve(listed, filters={**listed.filters, **shown, **tag}),
        "accounts": accounts,
        "periods": _PERIODS,
        "period": period,
        "days": days,
        "is_incomplete": report is not None and report.other is not None and report.other.requests > 0,
    }


async def _ask_of_account(request: web.Request, path: str, **query: Any) -> Any:
    """Return the answer of the admin API; None if the account that the address names does not exist."""
    try:
        return await ask_admin_api(request, path, **query)
    except NotFound:
        return None


def _find_account(request: web.Request) -> str | None:
    """Return the account in the address; None for all accounts, and for members, who see only their own."""
    return request.query.get("account") or None if request[ACTOR].scope is None else None


def _find_period(request: web.Request) -> str:
    span = request.query.get("span", "")
    return span if span in _PERIODS else _DEFAULT_PERIOD


def _find_since(request: web.Request, period: str) -> str:
    return f"{_PERIODS[period].list_starts(request.app[SERVICES].clock())[0]:%Y-%m-%d}"


async def _return_nothing() -> list[Any]:
    return []
