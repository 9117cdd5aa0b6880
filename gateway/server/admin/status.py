"""Admin API: the version and size of the gateway."""

from gateway import __version__
from gateway.answer_fields import Count
from gateway.frozen import frozen
from gateway.server.admin.handler import AdminRequest, admin_operation


@frozen(kw_only=True)
class StatusView:
    """The version, and the number of channels and models."""

    version: str
    channels: Count
    models: Count


@admin_operation()
async def get_status(request: AdminRequest) -> StatusView:
    """Get the version and the number of channels and models."""
    services = request.services
    channels = services.routing.catalog.channels
    return StatusView(version=__version__, channels=len(channels), models=len(services.routing.catalog.list_models()))
