"""The pages of batches."""

from aiohttp import web

from gateway.server.console.job_pages import load_jobs
from gateway.server.console.page import Data, ask_admin_api


async def load_batches(request: web.Request) -> Data:
    """Load a page of batches, the newest first."""
    return await load_jobs(request, "batches")


async def load_batch(request: web.Request) -> Data:
    """Load the batch with the id in the address."""
    return {"batch": await ask_admin_api(request, "/batches/{id}")}
