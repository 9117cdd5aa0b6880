"""The page of clients' files."""

from aiohttp import web

from gateway.domain.client_file import BATCH_OUTPUT, PURPOSES
from gateway.server.console.job_pages import load_jobs
from gateway.server.console.page import Data


async def load_files(request: web.Request) -> Data:
    """Load a page of files, the newest first."""
    return {**await load_jobs(request, "files", "purpose"), "purposes": (*PURPOSES, BATCH_OUTPUT)}
