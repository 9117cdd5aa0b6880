"""The pages of channels."""

import asyncio

from aiohttp import web

from gateway.server.console.language import mark
from gateway.server.console.page import Data, Page, ask

_LATEST = 10


async def load_channels(request: web.Request) -> Data:
    """Load all channels in the order in which they are tried, and the providers for a new one."""
    channels, providers = await asyncio.gather(ask(request, "/channels"), ask(request, "/providers"))
    ordered = sorted(channels["data"], key=lambda one: -one["priority"])
    return {"channels": ordered, "providers": providers["data"]}


async def load_channel(request: web.Request) -> Data:
    """Load a channel with its latest requests."""
    channel, providers, latest = await asyncio.gather(
        ask(request, "/channels/{name}"),
        ask(request, "/providers"),
        ask(request, "/requests", channel=request.match_info["name"], limit=_LATEST),
    )
    return {"channel": channel, "providers": providers["data"], "latest": latest["data"]}


CHANNEL_PAGES = (
    Page("/channels", "channels.html", mark("Channels"), load_channels, "administrator"),
    Page("/channels/{name}", "channel.html", mark("Channel"), load_channel, "administrator"),
)
