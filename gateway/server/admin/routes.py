"""The admin API's paths; who may walk them is in their doors."""

from aiohttp import web

from gateway import __version__
from gateway.server.admin.accounts import ACCOUNT_DOORS
from gateway.server.admin.active_requests import RUNNING_DOORS
from gateway.server.admin.audit_log import TRAIL_DOORS
from gateway.server.admin.billing import MONEY_DOORS
from gateway.server.admin.channels import CHANNEL_DOORS
from gateway.server.admin.export import EXPORT_DOORS
from gateway.server.admin.health import HEALTH_DOORS
from gateway.server.admin.io import write_json
from gateway.server.admin.members import MEMBER_DOORS
from gateway.server.admin.models import MODEL_DOORS
from gateway.server.admin.operation import AdminOperation
from gateway.server.admin.providers import PROVIDER_DOORS
from gateway.server.admin.requests import REQUEST_DOORS
from gateway.server.admin.settings import SETTING_DOORS
from gateway.server.admin.usage import USAGE_DOORS
from gateway.server.admin.videos import VIDEO_DOORS
from gateway.server.context import OFFICE
from gateway.server.openapi import schema as s


async def get_status(request: web.Request) -> web.Response:
    """What runs here."""
    office = request.app[OFFICE]
    channels = office.catalog.channels
    return write_json({"version": __version__, "channels": len(channels), "models": len(office.catalog.list_models())})


def list_doors() -> tuple[AdminOperation, ...]:
    """Every operation of the admin API."""
    return (
        AdminOperation("GET", "/status", get_status, answer=s.record(version=s.TEXT, channels=s.COUNT, models=s.COUNT)),
        *ACCOUNT_DOORS,
        *CHANNEL_DOORS,
        *HEALTH_DOORS,
        *MEMBER_DOORS,
        *MODEL_DOORS,
        *MONEY_DOORS,
        *USAGE_DOORS,
        *EXPORT_DOORS,
        *REQUEST_DOORS,
        *SETTING_DOORS,
        *TRAIL_DOORS,
        *RUNNING_DOORS,
        *PROVIDER_DOORS,
        *VIDEO_DOORS,
    )
