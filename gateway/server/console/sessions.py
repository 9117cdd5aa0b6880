"""The pages of the sessions that clients name in their requests."""

import asyncio
from contextlib import suppress
from urllib.parse import urlencode

from aiohttp import web

from gateway.errors import NotFound
from gateway.server.console.lists import ListView
from gateway.server.console.page import Data, ask_admin_api
from gateway.server.console.routes import ROOT
from gateway.server.context import ACTOR

_PAGE_SIZE = 50
_SHOWN_REQUESTS = 50
_MAX_KEYS = 200
"""Maximum number of keys to choose from. The page of any key leads to its sessions."""
_FILTERS = ("key", "end_user")


async def load_sessions(request: web.Request) -> Data:
    """Load a page of sessions, those used last first, and the values to filter by."""
    sees_all_accounts, query = request[ACTOR].scope is None, request.query
    names = ("account", *_FILTERS) if sees_all_accounts else _FILTERS
    filters = {name: query[name] for name in names if query.get(name)}
    search, before = query.get("search", ""), query.get("before")
    page, keys = await asyncio.gather(
        ask_admin_api(request, "/request-sessions", limit=_PAGE_SIZE, before=before, session=search.strip(), **filters),
        ask_admin_api(request, "/keys", sort="name", limit=_MAX_KEYS),
    )
    key_names = {str(key.id): f"{key.account}/{key.name}" if sees_all_accounts else key.name for key in keys}
    if "key" in filters:
        key_names.setdefault(filters["key"], filters["key"])
    return {
        "list": ListView(
            path=f"{ROOT}/sessions",
            rows=page.data,
            search=search,
            filters=filters,
            cursor="before",
            next=page.next,
            previous="" if before else None,
        ),
        "key_names": key_names,
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
