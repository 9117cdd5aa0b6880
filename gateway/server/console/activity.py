"""The pages of active requests and of the process's health."""

from aiohttp import web

from gateway.server.console.language import mark
from gateway.server.console.page import Data, Page, ask


async def load_live(request: web.Request) -> Data:
    """Load the active requests; the page's script follows them."""
    return {"running": (await ask(request, "/running"))["data"]}


async def load_health(request: web.Request) -> Data:
    """Load the state of the process. Balances are reconciled only on request: that reads every row."""
    return {"health": await ask(request, "/health")}


ACTIVITY_PAGES = (
    Page("/live", "live.html", mark("Live"), load_live),
    Page("/health", "health.html", mark("Health"), load_health, "administrator"),
)
