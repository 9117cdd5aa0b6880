"""The pages of channels."""

import asyncio

from aiohttp import web

from gateway.server.console.page import Data, ask_admin_api, list_live_nodes

_MAX_REQUESTS = 10


async def load_channels(request: web.Request) -> Data:
    """Load all channels in the order in which they are tried, and the providers for a new one."""
    channels, providers, nodes = await asyncio.gather(
        ask_admin_api(request, "/channels", node=request.query.get("node")),
        ask_admin_api(request, "/providers"),
        list_live_nodes(request),
    )
    sorted_channels = sorted(channels, key=lambda channel: -channel.priority)
    return {"channels": sorted_channels, "providers": providers, "nodes": nodes}


async def load_channel(request: web.Request) -> Data:
    """Load a channel with its latest requests."""
    channel, providers, latest, nodes = await asyncio.gather(
        ask_admin_api(request, "/channels/{name}", node=request.query.get("node")),
        ask_admin_api(request, "/providers"),
        ask_admin_api(request, "/requests", channel=request.match_info["name"], limit=_MAX_REQUESTS),
        list_live_nodes(request),
    )
    return {"channel": channel, "providers": providers, "latest": latest.data, "nodes": nodes}
