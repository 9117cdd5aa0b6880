"""The pages of batches."""

from urllib.parse import urlencode

from aiohttp import web

from gateway.server.console.language import mark
from gateway.server.console.page import ROOT, Data, Page, ask
from gateway.server.context import ACTOR

_LISTED = 24


async def load_batches(request: web.Request) -> Data:
    """Load a page of batches, the newest first."""
    everyone = request[ACTOR].scope is None
    chosen = request.query.get("account") if everyone else None
    status = request.query.get("status")
    found = await ask(
        request, "/batches", limit=_LISTED + 1, after=request.query.get("after"), account=chosen, status=status
    )
    batches = found["data"]
    accounts = (await ask(request, "/accounts"))["data"] if everyone else []
    kept = {name: value for name, value in (("account", chosen), ("status", status)) if value}
    older = urlencode({"after": batches[_LISTED - 1]["id"], **kept}) if len(batches) > _LISTED else None
    return {
        "batches": batches[:_LISTED],
        "older": None if older is None else f"{ROOT}/batches?{older}",
        "accounts": accounts,
        "chosen_account": chosen,
        "chosen_status": status or "",
    }


async def load_batch(request: web.Request) -> Data:
    """Load a batch."""
    return {"batch": await ask(request, "/batches/{id}")}


BATCH_PAGES = (
    Page("/batches", "batches.html", mark("Batches"), load_batches),
    Page("/batches/{id}", "batch.html", mark("Batch"), load_batch),
)
