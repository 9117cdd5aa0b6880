"""Which way in a path leads: by a key to the public API, by a door to the admin API, or to the console's pages.

One middleware for the three: a request can only be on one of the ways.
"""

from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.server.admin.operation import PREFIX
from gateway.server.auth import authenticate, let_in
from gateway.server.console.page import ROOT, shape_faults

PUBLIC = "/v1/"


@web.middleware
async def cross(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let a request on, by the way its path is on. Raises the fault of whoever may not pass."""
    path = request.path
    if path.startswith(PUBLIC):
        await authenticate(request)
        return await handler(request)
    if path == PREFIX or path.startswith(PREFIX + "/"):
        return await let_in(request, handler)
    if path == ROOT or path.startswith(ROOT + "/"):
        return await shape_faults(request, handler)
    return await handler(request)
