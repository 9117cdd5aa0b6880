"""The admin API's operations, in one table."""

from aiohttp import web

from gateway import __version__
from gateway.server.admin.accounts import ACCOUNT_OPERATIONS
from gateway.server.admin.active_requests import RUNNING_OPERATIONS
from gateway.server.admin.alerts import ALERT_OPERATIONS
from gateway.server.admin.audit_log import AUDIT_OPERATIONS
from gateway.server.admin.batches import BATCH_OPERATIONS
from gateway.server.admin.billing import BILLING_OPERATIONS
from gateway.server.admin.channels import CHANNEL_OPERATIONS
from gateway.server.admin.export import EXPORT_OPERATIONS
from gateway.server.admin.health import HEALTH_OPERATIONS
from gateway.server.admin.identities import IDENTITY_OPERATIONS
from gateway.server.admin.io import respond_json
from gateway.server.admin.members import MEMBER_OPERATIONS
from gateway.server.admin.models import MODEL_OPERATIONS
from gateway.server.admin.nodes import NODE_OPERATIONS
from gateway.server.admin.operation import AdminOperation
from gateway.server.admin.providers import PROVIDER_OPERATIONS
from gateway.server.admin.requests import REQUEST_OPERATIONS
from gateway.server.admin.settings import SETTING_OPERATIONS
from gateway.server.admin.usage import USAGE_OPERATIONS
from gateway.server.admin.videos import VIDEO_OPERATIONS
from gateway.server.context import SERVICES
from gateway.server.openapi import schema as s


async def get_status(request: web.Request) -> web.Response:
    """Get the version and the number of channels and models."""
    services = request.app[SERVICES]
    channels = services.routing.catalog.channels
    return respond_json(
        {"version": __version__, "channels": len(channels), "models": len(services.routing.catalog.list_models())}
    )


def list_admin_operations() -> tuple[AdminOperation, ...]:
    """Return every operation of the admin API."""
    return (
        AdminOperation("GET", "/status", get_status, answer=s.record(version=s.TEXT, channels=s.COUNT, models=s.COUNT)),
        *ACCOUNT_OPERATIONS,
        *CHANNEL_OPERATIONS,
        *HEALTH_OPERATIONS,
        *NODE_OPERATIONS,
        *MEMBER_OPERATIONS,
        *IDENTITY_OPERATIONS,
        *MODEL_OPERATIONS,
        *BILLING_OPERATIONS,
        *USAGE_OPERATIONS,
        *EXPORT_OPERATIONS,
        *REQUEST_OPERATIONS,
        *SETTING_OPERATIONS,
        *ALERT_OPERATIONS,
        *AUDIT_OPERATIONS,
        *RUNNING_OPERATIONS,
        *PROVIDER_OPERATIONS,
        *VIDEO_OPERATIONS,
        *BATCH_OPERATIONS,
    )
