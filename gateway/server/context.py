"""Typed keys of the application and of requests, and the services that handlers use, grouped by package."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import attrs
from aiohttp import web

from gateway.auth.unknown_keys import UnknownKeys
from gateway.background import TaskSet
from gateway.deferred import CreatedOnce, defer_function
from gateway.domain.account import Caller
from gateway.domain.audit_log import Actor
from gateway.frozen import frozen
from gateway.observability.trace_context import CurrentTrace
from gateway.options import StartupInfo
from gateway.proxy.active_requests import ActiveRequests
from gateway.request_context import RequestContext

if TYPE_CHECKING:  # a process imports only the services that it uses
    from gateway.alerts.watcher import AlertWatcher
    from gateway.auth.accounts import AccountService
    from gateway.auth.api_keys import ApiKeyAuthenticator
    from gateway.auth.client_secrets import ClientSecrets
    from gateway.auth.invitations import Invitations
    from gateway.auth.members import MemberService
    from gateway.auth.passkeys import PasskeyService
    from gateway.auth.provider_sign_in import ProviderSignIn
    from gateway.auth.sessions import CurrentUser, SessionService
    from gateway.batches.service import BatchService
    from gateway.billing.accounting import AccountingService
    from gateway.billing.balances import Balances
    from gateway.billing.flush_worker import LedgerFlusher
    from gateway.billing.live_limits import LiveLimits
    from gateway.billing.quota import QuotaService
    from gateway.billing.quotes import Holds
    from gateway.billing.settlement import Settlement
    from gateway.billing.write_queue import WriteQueue
    from gateway.cluster.credit.keeper import CreditKeeper
    from gateway.cluster.credit.ledger_check import LedgerCheck
    from gateway.cluster.credit.stored_orphans import EndNodeLeases
    from gateway.cluster.limits.limiter import SharedRateLimiter
    from gateway.cluster.membership.node import ClusterNode
    from gateway.cluster.peers import Peers
    from gateway.cluster.state.models import SharedModelLists
    from gateway.config.live_limits import LimitService
    from gateway.config.live_routes import RouteService
    from gateway.config.live_settings import SettingsService
    from gateway.config.reload import LiveConfig, Reloader
    from gateway.deployment import Deployment
    from gateway.domain.ip_address import Networks
    from gateway.domain.operation import Operation
    from gateway.domain.route import Route, StepPlace
    from gateway.media.client_files import ClientFiles
    from gateway.media.client_uploads import ClientUploads
    from gateway.media.images import ImageService
    from gateway.media.signed_links import SignedLinks
    from gateway.memory_budget import MemoryBudget
    from gateway.observability.process_monitor import ProcessMonitor
    from gateway.observability.request_metrics import RequestMetrics
    from gateway.observability.span_export import SpanExporter
    from gateway.proxy.answer_flights import CachedAnswers
    from gateway.proxy.failover import Proxy
    from gateway.proxy.idempotency import IdempotencyService
    from gateway.proxy.loops import LoopGuard
    from gateway.proxy.resumable_streams import ResumableStreams
    from gateway.retention_clock import RetentionClock
    from gateway.routing.channel_tester import Fetch
    from gateway.routing.channels import ChannelService
    from gateway.routing.kept_responses import KeptResponses
    from gateway.routing.load_balancer import LoadBalancer
    from gateway.routing.model_catalog import ModelCatalog
    from gateway.routing.response_owners import ResponseOwners
    from gateway.routing.router import Router
    from gateway.server.admin.activity_feed import ActiveRequestsFeed
    from gateway.server.admin.request_history import RequestHistory
    from gateway.server.multipart import FormLimits
    from gateway.server.sampled_answer import SampledAnswer
    from gateway.sinks.service import SinkService
    from gateway.storage.audit_log import AuditLogRepository
    from gateway.storage.bodies.body_store import BodyStore
    from gateway.storage.database import Database
    from gateway.storage.encryption import SecretBox
    from gateway.storage.journal import RequestJournal
    from gateway.storage.media_store import FileStore, MediaStore
    from gateway.storage.request_log import RequestLogRepository
    from gateway.storage.startup_state import StartupState
    from gateway.storage.stored_notes import StoredNotes
    from gateway.storage.unstorable import UnstorableFile
    from gateway.storage.upload_spool import UploadSpool
    from gateway.storage.webhook_deliveries import WebhookDeliveryRepository
    from gateway.upstream.interface import HttpClient
    from gateway.upstream.safe_fetch import SafeFetcher
    from gateway.upstream.websocket import WebSocketClient
    from gateway.videos.content import VideoContent
    from gateway.videos.jobs import VideoJobs
    from gateway.videos.notifier import JobNotifier
    from gateway.videos.reservations import JobReservations
    from gateway.videos.submit import VideoSubmitter


@attrs.define
class DrainState:
    """The state of a graceful shutdown.

    If ``open`` is false, new requests are refused. If ``leaving`` is true, the gateway stops soon, and a load balancer
    should send it no more requests. ``active_count`` is the number of active requests, including those whose body is
    still being read. If ``hurried`` is true, the shutdown does not wait for them. ``ends_at`` is the loop time at which
    the shutdown stops waiting; None before it waits.
    """

    open: bool = True
    leaving: bool = False
    active_count: int = 0
    hurried: bool = False
    ends_at: float | None = None


@frozen
class TracingServices:
    """The span exporter and the settings of tracing. ``sample_ratio`` applies unless the client has decided."""

    exporter: SpanExporter
    sample_ratio: float
    current: CurrentTrace = attrs.field(factory=CurrentTrace)


@frozen
class StorageServices:
    """The database, the journal and the queue of writes.

    ``leftovers`` says what work an earlier process has left. ``unstorable`` is the file of records that the database
    refused. ``notes`` changes the notes of started requests in the database; None if the journal is a file.
    """

    database: Database
    journal: RequestJournal
    write_queue: WriteQueue
    leftovers: StartupState
    retention_clock: RetentionClock
    unstorable: UnstorableFile
    deployment: Deployment
    notes: StoredNotes | None

    @property
    def node(self) -> ClusterNode | None:
        return self.deployment.node

    async def check_writable(self) -> None:
        """Raise ``StoreUnavailable`` if requests cannot be recorded at the moment."""
        self.check_room()
        await self.database.check_writable()

    def check_room(self) -> None:
        """Raise ``StoreUnavailable`` if too many ended requests wait to be stored, or the journal cannot be written."""
        self.write_queue.check_room()
        self.journal.check_writable()


@frozen
class BillingServices:
    """The services that check quotas before a request and charge for it afterwards.

    Attributes:
        limits_store: the store that counts rate limits: "memory", "postgresql" or "valkey".
        keeper: leases credit for this node of a cluster; None for a single process.
        shared_limits: counts rate limits together with other gateways; None if this process counts on its own.
        ledger_check: reconciles balances regularly while this node leads its cluster; None for a single process.
        open_holds: returns what is held for quoted requests; made by the first quote.
        limits: the limits beyond those of keys and accounts.
    """

    balances: Balances
    accounting: AccountingService
    flusher: LedgerFlusher
    quota: QuotaService
    settlement: Settlement
    reservations: JobReservations
    limits_store: Literal["memory", "postgresql", "valkey"]
    keeper: CreditKeeper | None
    shared_limits: SharedRateLimiter | None
    ledger_check: LedgerCheck | None
    open_holds: CreatedOnce[Holds]
    limits: LiveLimits


@frozen
class MemberServices:
    """Members, and how they sign in."""

    members: MemberService
    sessions: SessionService
    invitations: Invitations
    passkeys: PasskeyService


@frozen
class AuthServices:
    """Accounts, API keys and members.

    ``open_members`` opens the services for members at their first use. ``find_setup_token`` returns the token to create
    the first administrator; None if there is an active one, or if local sign-in is off.
    """

    accounts: AccountService
    api_keys: ApiKeyAuthenticator
    open_members: CreatedOnce[MemberServices]
    find_setup_token: Callable[[], Awaitable[str | None]]
    client_secrets: ClientSecrets
    unknown_keys: UnknownKeys = attrs.field(factory=UnknownKeys)

    @property
    def members(self) -> MemberService:
        return self.open_members().members

    @property
    def sessions(self) -> SessionService:
        return self.open_members().sessions

    @property
    def invitations(self) -> Invitations:
        return self.open_members().invitations

    @property
    def passkeys(self) -> PasskeyService:
        return self.open_members().passkeys


@frozen
class RoutingServices:
    """Channels with their models and their state, routing, and the responses of the Responses API.

    ``model_lists`` shares the channels' model lists within a cluster; None for a single process.
    """

    catalog: ModelCatalog
    load_balancer: LoadBalancer
    channels: ChannelService
    router: Router
    response_owners: ResponseOwners
    kept_responses: KeptResponses
    fetch_models: Fetch
    secret_box: SecretBox
    model_lists: SharedModelLists | None


@frozen
class MediaStores:
    """The stores of media and clients' files.

    ``folder`` is None if they are in a bucket. ``shared``: whether all nodes of a cluster can use these stores.
    """

    images: MediaStore
    videos: MediaStore
    files: FileStore
    folder: Path | None
    shared: bool = False


@frozen
class MediaServices:
    """Images, uploads and media downloads. ``open_images`` creates ``images`` at their first use."""

    stores: MediaStores
    signed_links: SignedLinks
    open_images: CreatedOnce[ImageService]
    spool: UploadSpool
    fetcher: SafeFetcher

    @property
    def images(self) -> ImageService:
        return self.open_images()


@frozen
class FileServices:
    """Clients' files, and their uploads in parts."""

    files: ClientFiles
    uploads: ClientUploads


@frozen
class VideoServices:
    """Video jobs.

    ``notifier`` wakes the tasks that wait for a change of a job. ``find_secret`` returns the secret that signs the
    webhooks of an API key.
    """

    jobs: VideoJobs
    notifier: JobNotifier
    submitter: VideoSubmitter
    content: VideoContent
    deliveries: WebhookDeliveryRepository
    find_secret: Callable[[int], bytes]


@frozen
class AdminServices:
    """Services of the admin API.

    The functions ``open_…`` create their services at first use. ``end_node_leases`` ends the credit leases of a lost
    node; None on SQLite. ``peers`` are the other nodes; None for a single process. ``changes`` are tasks of changes in
    progress, including those whose clients have disconnected.
    """

    open_settings: CreatedOnce[SettingsService]
    open_routes: CreatedOnce[RouteService]
    open_limits: CreatedOnce[LimitService]
    reloader: Reloader
    request_log: RequestLogRepository
    open_history: CreatedOnce[RequestHistory]
    audit_log: AuditLogRepository
    open_active_feed: CreatedOnce[ActiveRequestsFeed]
    monitor: ProcessMonitor
    token: str = attrs.field(repr=False)
    end_node_leases: EndNodeLeases | None
    peers: Peers | None
    changes: set[asyncio.Task[web.StreamResponse]] = attrs.Factory(set)

    @property
    def settings(self) -> SettingsService:
        return self.open_settings()

    @property
    def routes(self) -> RouteService:
        return self.open_routes()

    @property
    def limits(self) -> LimitService:
        return self.open_limits()

    @property
    def history(self) -> RequestHistory:
        return self.open_history()

    @property
    def active_feed(self) -> ActiveRequestsFeed:
        return self.open_active_feed()

    async def finish_changes(self) -> None:
        await asyncio.gather(*self.changes, return_exceptions=True)


@frozen
class HttpSettings:
    """Settings of the HTTP server, read once at startup.

    ``base_url`` is the public address without a final slash; empty if not configured. ``path_prefix`` is its path,
    which a reverse proxy strips.
    """

    max_body_mb: int
    form_limits: FormLimits
    base_url: str
    trusted_proxies: Networks
    path_prefix: str


class CopySender(Protocol):
    """Sends copies of requests to shadow models; see ``server/shadow_requests.py``."""

    def draw(self, route: Route, operation: Operation) -> SampledAnswer | None: ...

    def start(self, services: Services, ctx: RequestContext, place: StepPlace, sample: SampledAnswer) -> None: ...


_make_loop_guard: Callable[[], LoopGuard] = defer_function("proxy.loops:LoopGuard")
_make_copy_sender: Callable[[], CopySender] = defer_function("server.shadow_requests:ShadowRequests")


@frozen(eq=False)
class Services:
    """All services that handlers use. ``gateway.services`` builds the only object at startup.

    Attributes:
        sign_in: sign-in with OpenID Connect; None if there is no ``[[sign_in]]`` table.
        alerts: the services of alerts; None if there is no ``[[alert]]`` table, and for commands other than ``serve``.
        open_bodies: returns the store of bodies, opened when it is first needed.
        open_streams: returns the registry of streams that can be taken up again, opened when it is first needed.
        sinks: None if there is no ``[[sink]]`` table, and for commands other than ``serve``.
        open_answers: returns the cache of answers, opened when it is first needed.
        open_copy_sender: returns the sender of copies to shadow models; made by the first request of a route with one.
        open_loop_guard: returns the guard that finds clients in loops; made by the first request of a key with
            ``loops``.
    """

    clock: Callable[[], float]
    drain: DrainState
    active_requests: ActiveRequests
    background: TaskSet
    memory: MemoryBudget
    storage: StorageServices
    live_config: LiveConfig
    http: HttpSettings
    billing: BillingServices
    client: HttpClient
    websockets: WebSocketClient
    routing: RoutingServices
    proxy: Proxy
    media: MediaServices
    files: FileServices
    videos: VideoServices
    idempotency: IdempotencyService
    auth: AuthServices
    open_batches: CreatedOnce[BatchService]
    sign_in: ProviderSignIn | None
    admin: AdminServices
    metrics: RequestMetrics
    alerts: AlertWatcher | None
    tracing: TracingServices | None
    startup_info: StartupInfo
    open_bodies: CreatedOnce[BodyStore]
    open_streams: CreatedOnce[ResumableStreams]
    open_answers: CreatedOnce[CachedAnswers]
    sinks: SinkService | None = None
    open_copy_sender: CreatedOnce[CopySender] = attrs.field(factory=lambda: CreatedOnce(_make_copy_sender))
    open_loop_guard: CreatedOnce[LoopGuard] = attrs.field(factory=lambda: CreatedOnce(_make_loop_guard))

    @property
    def batches(self) -> BatchService:
        return self.open_batches()


SERVICES = web.AppKey("services", Services)
API: web.AppKey[web.Application] = web.AppKey("api")
"""The sub-application of the public API."""
ACTOR = web.RequestKey("actor", Actor)
"""The actor of an admin API request."""
USER: web.RequestKey[CurrentUser] = web.RequestKey("signed")
"""The signed-in member, if the actor is a member."""
CALLER = web.RequestKey("caller", Caller)
CONTEXT = web.RequestKey("context", RequestContext)
