"""Paginated lists, newest first, of objects with an account: video jobs, batches and clients' files."""

from aiohttp import web

from gateway.server.console.lists import ListView
from gateway.server.console.page import Data, ask_admin_api
from gateway.server.console.routes import ROOT
from gateway.server.context import ACTOR

_PAGE_SIZE = 24


async def load_jobs(request: web.Request, kind: str, choice: str = "status") -> Data:
    """Load a page of the admin API's collection ``kind``, by search, account and one more filter.

    ``choice`` is the name of that filter, in the API and in the page's address. Members have no filter by account.
    """
    sees_all_accounts, query = request[ACTOR].scope is None, request.query
    names = ("account", choice) if sees_all_accounts else (choice,)
    filters = {name: query[name] for name in names if query.get(name)}
    search, after = query.get("search", ""), query.get("after")
    jobs = await ask_admin_api(request, f"/{kind}", limit=_PAGE_SIZE + 1, after=after, search=search, **filters)
    return {
        "list": ListView(
            path=f"{ROOT}/{kind}",
            rows=jobs[:_PAGE_SIZE],
            search=search,
            filters=filters,
            next=jobs[_PAGE_SIZE - 1].id if len(jobs) > _PAGE_SIZE else None,
            previous="" if after else None,
        ),
        "accounts": await ask_admin_api(request, "/accounts") if sees_all_accounts else [],
    }
