"""The page of prices and groups."""

import asyncio

from aiohttp import web

from gateway.server.console.lists import load_list
from gateway.server.console.page import Data, ask_admin_api


async def load_prices(request: web.Request) -> Data:
    """Load the groups, and a page of the prices: configured ones first, then built-in ones."""
    groups, prices, providers = await asyncio.gather(
        ask_admin_api(request, "/groups"),
        load_list(request, "/prices", ("source",)),
        ask_admin_api(request, "/providers"),
    )
    return {"groups": groups, "list": prices, "providers": providers}
