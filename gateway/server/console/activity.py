"""The pages of active requests, of the process's health, and of the nodes of a cluster."""

import asyncio

from aiohttp import web

from gateway.server.console.page import Data, ask_admin_api, list_live_nodes


async def load_live(request: web.Request) -> Data:
    """Load the active requests, which the page's script then updates."""
    answer = await ask_admin_api(request, "/running")
    return {"running": answer.data, "unanswered": answer.unanswered}


async def load_health(request: web.Request) -> Data:
    """Load the state of this process, or of the node in the query, and the list of live nodes."""
    health, nodes = await asyncio.gather(
        ask_admin_api(request, "/health", node=request.query.get("node")), list_live_nodes(request)
    )
    return {"health": health, "nodes": nodes}


async def load_nodes(request: web.Request) -> Data:
    """Load the nodes of the cluster, and the changes that their database lost when another server replaced it."""
    nodes, lost = await asyncio.gather(ask_admin_api(request, "/nodes"), ask_admin_api(request, "/nodes/lost-changes"))
    return {"nodes": nodes, "lost": lost}
