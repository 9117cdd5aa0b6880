"""The pages of what goes on now: requests under way, and for operators how the process is."""

from aiohttp import web

from gateway.server.console.page import Data, Page, ask


async def load_live(request: web.Request) -> Data:
    """The requests under way; the page's script goes on from there."""
    return {"running": (await ask(request, "/running"))["data"]}


async def load_health(request: web.Request) -> Data:
    """How the process is. The books are added up when somebody asks for it: that reads every row there is."""
    return {"health": await ask(request, "/health")}


WATCHING_PAGES = (
    Page("/live", "live.html", "Live", load_live),
    Page("/health", "health.html", "Health", load_health, "administrator"),
)
