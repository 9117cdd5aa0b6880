"""The pages of video jobs."""

import asyncio

from aiohttp import web

from gateway.server.console.job_pages import load_jobs
from gateway.server.console.page import Data, ask_admin_api
from gateway.server.context import USER


async def load_videos(request: web.Request) -> Data:
    """Load a page of jobs, the newest first."""
    return {**await load_jobs(request, "videos"), "own_id": request[USER].account.id}


async def load_video(request: web.Request) -> Data:
    """Load a job. Only members of its account can play its video."""
    job, keys = await asyncio.gather(ask_admin_api(request, "/videos/{id}"), ask_admin_api(request, "/keys"))
    user = request[USER]
    active_keys = [key for key in keys if key.account == user.account.name and key.status == "active"]
    return {"job": job, "own": job.account_id == user.account.id, "own_keys": active_keys}
