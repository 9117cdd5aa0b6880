"""Opens the services of the admin API: changes of the configuration, the request history, and others."""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.auth.api_keys import ApiKeyAuthenticator
from gateway.billing.live_limits import LiveLimits
from gateway.config.reload import Reloader, ReloadSource
from gateway.deferred import CreatedOnce, defer_function
from gateway.observability.process_monitor import ProcessMonitor
from gateway.proxy.active_requests import ActiveRequests
from gateway.server.context import AdminServices, AuthServices, RoutingServices
from gateway.services.base import BaseServices, RequestTracking
from gateway.storage.audit_log import AuditLogRepository
from gateway.storage.database import Database
from gateway.storage.request_log import RequestLogRepository
from gateway.storage.settings import SettingRepository
from gateway.storage.traffic import TrafficRepository

if TYPE_CHECKING:  # only in a cluster
    from gateway.cluster.credit.stored_orphans import EndNodeLeases
    from gateway.cluster.membership.node import ClusterNode
    from gateway.cluster.peers import Peers
    from gateway.server.admin.activity_feed import ActiveRequestsFeed
    from gateway.server.admin.request_history import RequestHistory

_make_settings = defer_function("config.live_settings:SettingsService")
_make_routes = defer_function("config.live_routes:RouteService")
_make_limits = defer_function("config.live_limits:LimitService")


def open_admin(
    base: BaseServices,
    routing: RoutingServices,
    auth: AuthServices,
    stack: AsyncExitStack,
    *,
    media_folder: Path | None,
    requests: RequestTracking,
    limits: LiveLimits,
) -> AdminServices:
    """Open the services of the admin API. ``media_folder`` is the folder of the media store; None if it has none."""
    options, database, clock = base.options, base.storage.database, base.options.clock
    settings, audit_log = SettingRepository(database), AuditLogRepository(database)
    node, request_log = base.storage.node, RequestLogRepository(database)
    peers = None if node is None else _open_peers(base, node, requests, audit_log, stack)
    files = base.storage.deployment.open_files(database, options.folder.secret("pepper"))
    reloader = Reloader(
        base.live_config,
        ReloadSource(options.read_config, options.certificate, files.declare_alone),
        settings,
        accounts=auth.accounts,
        channels=routing.channels,
        router=routing.router,
        audit_log=audit_log,
        clock=clock,
    )
    return AdminServices(
        open_settings=CreatedOnce(lambda: _make_settings(base.live_config, reloader, settings, clock=clock)),
        open_routes=CreatedOnce(lambda: _make_routes(base.live_config, reloader, settings, clock=clock)),
        open_limits=CreatedOnce(lambda: _make_limits(base.live_config, reloader, settings, clock=clock)),
        reloader=reloader,
        request_log=request_log,
        open_history=CreatedOnce(lambda: _open_history(database, request_log, auth.api_keys, routing)),
        audit_log=audit_log,
        open_active_feed=CreatedOnce(lambda: _open_active_feed(requests.active, peers)),
        monitor=ProcessMonitor(options.folder.path, clock, media_folder),
        token=options.folder.admin_token(),
        end_node_leases=_make_lease_ender(database, limits),
        peers=peers,
    )


def _open_peers(
    base: BaseServices,
    node: "ClusterNode",
    requests: RequestTracking,
    audit_log: AuditLogRepository,
    stack: AsyncExitStack,
) -> "Peers":
    from gateway.cluster.open_peers import open_peers  # noqa: PLC0415 - only in a cluster
    from gateway.server.admin.active_requests import cancel_here  # noqa: PLC0415

    return open_peers(
        base.options.config,
        base.storage.database,
        node,
        stack,
        cancel=lambda name, actor: cancel_here(requests.active, audit_log, base.options.clock, name, actor),
        start=requests.background.start,
    )


def _open_active_feed(active_requests: ActiveRequests, peers: "Peers | None") -> "ActiveRequestsFeed":
    from gateway.server.admin.activity_feed import ActiveRequestsFeed  # noqa: PLC0415 - with the first viewer

    return ActiveRequestsFeed(active_requests, None if peers is None else peers.ask_running)


def _make_lease_ender(database: Database, limits: LiveLimits) -> "EndNodeLeases | None":
    """Return the function that ends nodes' leases; None on SQLite.

    A single gateway may find nodes in its PostgreSQL database.
    """
    if database.kind != "postgresql":
        return None
    from gateway.cluster.credit.stored_orphans import end_orphans  # noqa: PLC0415 - its driver is an extra

    return lambda node, verdict, now_s, audit: end_orphans(
        database, node, verdict, now_s, audit, spending=limits.spending
    )


def _open_history(
    database: Database, request_log: RequestLogRepository, api_keys: ApiKeyAuthenticator, routing: RoutingServices
) -> "RequestHistory":
    from gateway.server.admin.request_history import RequestHistory  # noqa: PLC0415 - with the first look at it
    from gateway.storage.subject_usage import SubjectUsageRepository  # noqa: PLC0415 - as above

    traffic, subjects = TrafficRepository(database), SubjectUsageRepository(database)
    return RequestHistory(request_log, traffic, api_keys, routing.catalog, routing.router, subjects=subjects)
