"""Typed keys: what rides on the application and on a request."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import attrs
from aiohttp import web

from gateway.auth.accounts import Administration
from gateway.auth.api_keys import Directory
from gateway.auth.invitations import Invitations
from gateway.auth.members import Members
from gateway.auth.sessions import Reception, Signed
from gateway.auth.unknown_keys import UnknownKeys
from gateway.billing.accounting import Accounting
from gateway.billing.quota import Admission
from gateway.billing.settlement import Settlement
from gateway.billing.write_queue import Outbox
from gateway.domain.account import Caller
from gateway.domain.audit_log import Actor, AuditTrail
from gateway.domain.ip_address import Networks
from gateway.domain.rate_limit import Standing
from gateway.domain.request_log import RequestLog, RequestRow
from gateway.domain.setting import Configuration
from gateway.domain.webhook import DeliveryStore
from gateway.media.images import Images
from gateway.proxy.active_requests import Running
from gateway.proxy.failover import Relay
from gateway.proxy.idempotency import Replays
from gateway.request_context import Delivery
from gateway.routing.channels import Fleet
from gateway.routing.load_balancer import Switchboard
from gateway.routing.model_catalog import Catalog
from gateway.routing.response_owners import ResponseOwners
from gateway.routing.router import Router
from gateway.server.admin.request_history import History
from gateway.server.admin.route_explain import Explainer
from gateway.server.multipart import FormLimits
from gateway.storage.upload_spool import Spool
from gateway.videos.content import Footage
from gateway.videos.jobs import Videos
from gateway.videos.submit import Submissions

WARNING_HEADER = "x-gateway-warning"


@attrs.define
class Gate:
    """Whether new work is let in; closed while the gateway drains. ``inside``: calls, from their bodies on.

    ``hurried``: whoever ends the gateway does not wait for those.
    """

    open: bool = True
    inside: int = 0
    hurried: bool = False


@attrs.define(eq=False)
class Trace:
    """What a request leaves on its way, for its headers and its log line.

    One parcel: a look into a request's own state is several calls.

    Attributes:
        id: ``req_`` and 24 hexadecimal digits.
        delivery: what becomes of a granted call.
        standing: how the caller stands with its rate limits, where it has any.
        row: how the call was settled.
        more: further headers of its answer.
    """

    id: str
    delivery: Delivery | None = None
    standing: Standing | None = None
    row: RequestRow | None = None
    more: dict[str, str] | None = None

    def warn(self, warning: str) -> None:
        """Say in a header what was asked for and is not done: the field or header first, in ASCII without commas."""
        said = (self.more or {}).get(WARNING_HEADER)
        self.more = {**(self.more or {}), WARNING_HEADER: f"{said}, {warning}" if said else warning}


@attrs.frozen
class Rooms:
    """The rooms a request walks through, built once by the roof."""

    directory: Directory
    catalog: Catalog
    switchboard: Switchboard
    router: Router
    admission: Admission
    relay: Relay
    settlement: Settlement
    accounting: Accounting
    outbox: Outbox
    gate: Gate
    clock: Callable[[], float]
    max_body_mb: int
    images: Images
    spool: Spool
    form_limits: FormLimits
    videos: Videos
    submissions: Submissions
    footage: Footage
    replays: Replays
    response_owners: ResponseOwners
    status_words: Callable[[], Literal["auto", "spec", "openai"]]
    webhook_hosts: Callable[[], tuple[str, ...]]
    base_url: str = ""
    trusted_proxies: Networks = ()
    running: Running = attrs.field(factory=Running)
    unknown_keys: UnknownKeys = attrs.field(factory=UnknownKeys)


@attrs.frozen
class Office:
    """What the admin API reads and changes. ``find_secret``: what signs the deliveries of a key, by the key's id."""

    administration: Administration
    members: Members
    settings: Configuration
    accounting: Accounting
    catalog: Catalog
    fleet: Fleet
    explainer: Explainer
    requests: RequestLog
    videos: Videos
    deliveries: DeliveryStore
    find_secret: Callable[[int], bytes]
    reload: Callable[[Actor], Awaitable[dict[str, Any]]]
    reload_logged: Callable[[], Awaitable[None]]
    sync_interval: Callable[[], float]
    trail: AuditTrail
    history: History
    token: str = attrs.field(repr=False)
    changes: set[asyncio.Task[web.StreamResponse]] = attrs.Factory(set)
    """Changes under way, whether or not their callers still wait for them."""

    async def finish(self) -> None:
        """Wait for the changes under way: what they work on is about to be closed."""
        await asyncio.gather(*self.changes, return_exceptions=True)


ROOMS = web.AppKey("rooms", Rooms)
RECEPTION = web.AppKey("reception", Reception)
INVITATIONS = web.AppKey("invitations", Invitations)
OFFICE = web.AppKey("office", Office)
PROBE: web.AppKey[Callable[[], Awaitable[None]]] = web.AppKey("probe")
"""Raises a fault where the store cannot be written to."""
ACTOR = web.RequestKey("actor", Actor)
"""Who asks the admin API."""
SIGNED = web.RequestKey("signed", Signed)
"""Who is signed in, where the actor is a member."""
CALLER = web.RequestKey("caller", Caller)
TRACE = web.RequestKey("trace", Trace)
