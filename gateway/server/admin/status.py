"""Admin API: the version and size of the gateway."""

from aiohttp import web

from gateway import __version__
from gateway.server.admin.handler import admin_operation
from gateway.server.admin.io import respond_json
from gateway.server.context import SERVICES
from gateway.server.openapi import schema as s


@admin_operation(answer=s.record(version=s.TEXT, channels=s.COUNT, models=s.COUNT))
async def get_status(request: web.Request) -> web.Response:
    """Get the version and the number of channels and models."""
    services = request.app[SERVICES]
    channels = services.routing.catalog.channels
    return respond_json(
        {"version": __version__, "channels": len(channels), "models": len(services.routing.catalog.list_models())}
    )
