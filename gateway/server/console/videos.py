"""The pages of video jobs."""

import asyncio
from urllib.parse import urlencode

from aiohttp import web

from gateway.server.console.language import mark
from gateway.server.console.page import ROOT, Data, Page, ask
from gateway.server.context import ACTOR, SIGNED

_LISTED = 24


async def load_videos(request: web.Request) -> Data:
    """Load a page of jobs, the newest first."""
    everyone = request[ACTOR].scope is None
    chosen = request.query.get("account") if everyone else None
    status = request.query.get("status")
    found = await ask(
        request, "/videos", limit=_LISTED + 1, after=request.query.get("after"), account=chosen, status=status
    )
    jobs = found["data"]
    accounts = (await ask(request, "/accounts"))["data"] if everyone else []
    kept = {name: value for name, value in (("account", chosen), ("status", status)) if value}
    older = urlencode({"after": jobs[_LISTED - 1]["id"], **kept}) if len(jobs) > _LISTED else None
    return {
        "jobs": jobs[:_LISTED],
        "older": None if older is None else f"{ROOT}/videos?{older}",
        "accounts": accounts,
        "chosen_account": chosen,
        "chosen_status": status or "",
        "own_id": request[SIGNED].account.id,
    }


async def load_video(request: web.Request) -> Data:
    """Load a job; its video plays for its own account only."""
    job, keys = await asyncio.gather(ask(request, "/videos/{id}"), ask(request, "/keys"))
    signed = request[SIGNED]
    own_keys = [key for key in keys["data"] if key["account"] == signed.account.name and key["status"] == "active"]
    return {"job": job, "own": job["account_id"] == signed.account.id, "own_keys": own_keys}


VIDEO_PAGES = (
    Page("/videos", "videos.html", mark("Videos"), load_videos),
    Page("/videos/{id}", "video.html", mark("Video"), load_video),
)
