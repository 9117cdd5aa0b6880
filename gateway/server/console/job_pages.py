"""Paginated lists, newest first, of objects with an account and a status: video jobs and batches."""

from urllib.parse import urlencode

from aiohttp import web

from gateway.server.console.page import Data, ask_admin_api
from gateway.server.console.routes import ROOT
from gateway.server.context import ACTOR

_PAGE_SIZE = 24


async def load_jobs(request: web.Request, kind: str) -> Data:
    """Load a page of the admin API's collection ``kind``, filtered by ``account`` and ``status``."""
    sees_all_accounts = request[ACTOR].scope is None
    account = request.query.get("account") if sees_all_accounts else None
    status = request.query.get("status")
    jobs = await ask_admin_api(
        request, f"/{kind}", limit=_PAGE_SIZE + 1, after=request.query.get("after"), account=account, status=status
    )
    accounts = await ask_admin_api(request, "/accounts") if sees_all_accounts else []
    filters = {name: value for name, value in (("account", account), ("status", status)) if value}
    older_query = urlencode({"after": jobs[_PAGE_SIZE - 1].id, **filters}) if len(jobs) > _PAGE_SIZE else None
    return {
        "jobs": jobs[:_PAGE_SIZE],
        "older": None if older_query is None else f"{ROOT}/{kind}?{older_query}",
        "accounts": accounts,
        "chosen_account": account,
        "chosen_status": status or "",
    }
