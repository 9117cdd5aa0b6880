"""The pages of the sessions that clients name in their requests."""

import asyncio
from contextlib import suppress
from urllib.parse import urlencode

from aiohttp import web

from gateway.errors import NotFound
from gateway.server.console.page import Data, ask_admin_api
from gateway.server.console.routes import ROOT
from gateway.server.context import ACTOR

_PAGE_SIZE = 50
_SHOWN_REQUESTS = 50
_FILTERS = ("account", "key", "end_user")


async def load_sessions(request: web.Request) -> Data:
    """Load a page of sessions, those used last first, and the values to filter by."""
    sees_all_accounts = request[ACTOR].scope is None
    filters = {
        name: request.query[name]
        for name in _FILTERS
        if request.query.get(name) and (sees_all_accounts or name != "account")
    }
    page, keys = await asyncio.gather(
        ask_admin_api(request, "/request-sessions", limit=_PAGE_SIZE, before=request.query.get("before"), **filters),
        ask_admin_api(request, "/keys"),
    )
    older_query = None if page.next is None else urlencode({**filters, "before": page.next})
    return {
        "sessions": page.data,
        "wanted": filters,
        "key_names": {key.id: f"{key.account}/{key.name}" if sees_all_accounts else key.name for key in keys},
        "older": None if older_query is None else f"{ROOT}/sessions?{older_query}",
        "everyone": sees_all_accounts,
    }


async def load_session(request: web.Request) -> Data:
    """Load a session with its latest requests."""
    session = await ask_admin_api(request, "/request-sessions/{id}")
    filters = {"session": session.session}
    if request[ACTOR].scope is None:
        filters["account"] = session.account
    rows = []
    with suppress(NotFound):  # the account is deleted
        rows = (await ask_admin_api(request, "/requests", limit=_SHOWN_REQUESTS, **filters)).data
    return {"session": session, "latest": rows, "all_requests": urlencode(filters)}
