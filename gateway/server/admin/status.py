"""Admin API: the version and size of the gateway."""

from gateway import __version__
from gateway.server.admin.handler import AdminRequest, Fields, admin_operation
from gateway.server.openapi import schema as s


@admin_operation(answer=s.record(version=s.TEXT, channels=s.COUNT, models=s.COUNT))
async def get_status(request: AdminRequest) -> Fields:
    """Get the version and the number of channels and models."""
    services = request.services
    channels = services.routing.catalog.channels
    return {"version": __version__, "channels": len(channels), "models": len(services.routing.catalog.list_models())}
