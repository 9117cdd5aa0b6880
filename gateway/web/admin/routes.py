"""The admin API's paths; who may walk them is in their doors."""

from typing import Any

import attrs
from aiohttp import web

from gateway import __version__
from gateway.domain.price import NANOS_PER_USD
from gateway.domain.request import RequestFilter, StoredRequest
from gateway.web.admin.accounts import ACCOUNT_DOORS
from gateway.web.admin.audit_trail import TRAIL_DOORS
from gateway.web.admin.channels import CHANNEL_DOORS
from gateway.web.admin.doors import Door
from gateway.web.admin.forms import write_json, write_listing
from gateway.web.admin.health import HEALTH_DOORS
from gateway.web.admin.live import RUNNING_DOORS
from gateway.web.admin.members import MEMBER_DOORS
from gateway.web.admin.models import MODEL_DOORS
from gateway.web.admin.money import MONEY_DOORS
from gateway.web.admin.providers import PROVIDER_DOORS
from gateway.web.admin.settings import SETTING_DOORS
from gateway.web.admin.shapes import COUNT, TEXT, record
from gateway.web.admin.videos import VIDEO_DOORS
from gateway.web.keys import OFFICE
from gateway.web.query import read_number

MAX_LISTED = 1000


async def get_status(request: web.Request) -> web.Response:
    """What runs here."""
    office = request.app[OFFICE]
    channels = office.catalog.channels
    return write_json({"version": __version__, "channels": len(channels), "models": len(office.catalog.list_models())})


async def list_requests(request: web.Request) -> web.Response:
    """Request rows: ``limit`` (50), ``after`` (a sequence), ``key`` (an id), ``model``, ``channel``, ``status``."""
    query = request.query
    wanted = RequestFilter(
        key_id=read_number(query, "key"),
        model=query.get("model"),
        channel=query.get("channel"),
        status=read_number(query, "status"),
        after=read_number(query, "after"),
    )
    limit = min(read_number(query, "limit") or 50, MAX_LISTED)
    stored = await request.app[OFFICE].requests.list_requests(wanted, limit)
    return write_listing([_write_request(item) for item in stored])


def _write_request(stored: StoredRequest) -> dict[str, Any]:
    fields = attrs.asdict(stored.row)
    return {"sequence": stored.sequence, **fields, "cost_usd": stored.row.cost_nanos / NANOS_PER_USD}


def list_doors() -> tuple[Door, ...]:
    """Every operation of the admin API."""
    return (
        Door("GET", "/status", get_status, answer=record(version=TEXT, channels=COUNT, models=COUNT)),
        *ACCOUNT_DOORS,
        Door("GET", "/requests", list_requests),
        *CHANNEL_DOORS,
        *HEALTH_DOORS,
        *MEMBER_DOORS,
        *MODEL_DOORS,
        *MONEY_DOORS,
        *SETTING_DOORS,
        *TRAIL_DOORS,
        *RUNNING_DOORS,
        *PROVIDER_DOORS,
        *VIDEO_DOORS,
    )
