"""The pages of prices, groups and settings."""

import asyncio

from aiohttp import web

from gateway.server.console.page import Data, ask_admin_api

_PRICES_SHOWN = 50


async def load_prices(request: web.Request) -> Data:
    """Load the groups, the configured prices, and the built-in prices."""
    search_text = request.query.get("find", "").strip().lower()
    groups, prices, providers = await asyncio.gather(
        ask_admin_api(request, "/groups"), ask_admin_api(request, "/prices"), ask_admin_api(request, "/providers")
    )
    own_prices = [price for price in prices if price.source != "shipped"]
    shipped_prices = [price for price in prices if price.source == "shipped" and search_text in price.model.lower()]
    return {
        "groups": groups,
        "own": own_prices,
        "shipped": shipped_prices[:_PRICES_SHOWN],
        "found": len(shipped_prices),
        "providers": providers,
    }


async def load_settings(request: web.Request) -> Data:
    """Load all settings with their sources, and the targets of alerts."""
    settings, alerts = await asyncio.gather(ask_admin_api(request, "/settings"), ask_admin_api(request, "/alerts"))
    return {"sections": settings.sections, "targets": alerts.targets, "recent": alerts.recent}
