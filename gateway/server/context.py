"""Typed keys: what rides on the application and on a request."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import attrs
from aiohttp import web

from gateway.auth.accounts import AccountService
from gateway.auth.api_keys import ApiKeyAuthenticator
from gateway.auth.invitations import Invitations
from gateway.auth.members import Members
from gateway.auth.sessions import CurrentUser, SessionService
from gateway.auth.unknown_keys import UnknownKeys
from gateway.billing.accounting import AccountingService
from gateway.billing.quota import QuotaService
from gateway.billing.settlement import Settlement
from gateway.billing.write_queue import WriteQueue
from gateway.domain.account import Caller
from gateway.domain.audit_log import Actor
from gateway.domain.ip_address import Networks
from gateway.domain.setting import Configuration
from gateway.media.images import ImageService
from gateway.proxy.active_requests import ActiveRequests
from gateway.proxy.failover import Proxy
from gateway.proxy.idempotency import IdempotencyService
from gateway.request_context import RequestContext
from gateway.routing.channels import ChannelService
from gateway.routing.load_balancer import LoadBalancer
from gateway.routing.model_catalog import ModelCatalog
from gateway.routing.response_owners import ResponseOwners
from gateway.routing.router import Router
from gateway.server.admin.request_history import RequestHistory
from gateway.server.admin.route_explain import RouteExplainer
from gateway.server.multipart import FormLimits
from gateway.storage.audit_log import AuditLogRepository
from gateway.storage.request_log import RequestLogRepository
from gateway.storage.upload_spool import UploadSpool
from gateway.storage.webhook_deliveries import WebhookDeliveryRepository
from gateway.videos.content import VideoContent
from gateway.videos.jobs import Videos
from gateway.videos.submit import VideoSubmitter


@attrs.define
class DrainState:
    """Whether new work is let in; closed while the gateway drains. ``inside``: calls, from their bodies on.

    ``hurried``: whoever ends the gateway does not wait for those.
    """

    open: bool = True
    inside: int = 0
    hurried: bool = False


@attrs.frozen
class Rooms:
    """The rooms a request walks through, built once by the roof."""

    directory: ApiKeyAuthenticator
    catalog: ModelCatalog
    switchboard: LoadBalancer
    router: Router
    admission: QuotaService
    relay: Proxy
    settlement: Settlement
    accounting: AccountingService
    outbox: WriteQueue
    gate: DrainState
    clock: Callable[[], float]
    max_body_mb: int
    images: ImageService
    spool: UploadSpool
    form_limits: FormLimits
    videos: Videos
    submissions: VideoSubmitter
    video_content: VideoContent
    replays: IdempotencyService
    response_owners: ResponseOwners
    status_words: Callable[[], Literal["auto", "spec", "openai"]]
    webhook_hosts: Callable[[], tuple[str, ...]]
    base_url: str = ""
    trusted_proxies: Networks = ()
    running: ActiveRequests = attrs.field(factory=ActiveRequests)
    unknown_keys: UnknownKeys = attrs.field(factory=UnknownKeys)


@attrs.frozen
class Office:
    """What the admin API reads and changes. ``find_secret``: what signs the deliveries of a key, by the key's id."""

    administration: AccountService
    members: Members
    settings: Configuration
    accounting: AccountingService
    catalog: ModelCatalog
    fleet: ChannelService
    explainer: RouteExplainer
    requests: RequestLogRepository
    videos: Videos
    deliveries: WebhookDeliveryRepository
    find_secret: Callable[[int], bytes]
    reload: Callable[[Actor], Awaitable[dict[str, Any]]]
    reload_logged: Callable[[], Awaitable[None]]
    sync_interval: Callable[[], float]
    trail: AuditLogRepository
    history: RequestHistory
    token: str = attrs.field(repr=False)
    changes: set[asyncio.Task[web.StreamResponse]] = attrs.Factory(set)
    """Changes under way, whether or not their callers still wait for them."""

    async def finish(self) -> None:
        """Wait for the changes under way: what they work on is about to be closed."""
        await asyncio.gather(*self.changes, return_exceptions=True)


ROOMS = web.AppKey("rooms", Rooms)
SESSIONS = web.AppKey("reception", SessionService)
INVITATIONS = web.AppKey("invitations", Invitations)
OFFICE = web.AppKey("office", Office)
PROBE: web.AppKey[Callable[[], Awaitable[None]]] = web.AppKey("probe")
"""Raises a fault where the store cannot be written to."""
ACTOR = web.RequestKey("actor", Actor)
"""Who asks the admin API."""
SIGNED = web.RequestKey("signed", CurrentUser)
"""Who is signed in, where the actor is a member."""
CALLER = web.RequestKey("caller", Caller)
CONTEXT = web.RequestKey("context", RequestContext)
API: web.AppKey[web.Application] = web.AppKey("api")
"""The sub-application of the public API."""


async def share_state(app: web.Application, *, subapps: Sequence[web.Application]) -> None:
    """Give the sub-applications what the root has: a handler reads ``request.app``, which is its sub-application."""
    for subapp in subapps:
        subapp.update(app)
