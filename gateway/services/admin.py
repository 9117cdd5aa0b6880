"""Open the services that only the admin API uses: settings, the request history, and the process monitor."""

from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from gateway.config.live_settings import SettingsService
from gateway.config.reload import Reloader, ReloadSource
from gateway.deferred import Once, late, load
from gateway.observability.process_monitor import ProcessMonitor
from gateway.server.context import AdminServices, Services
from gateway.storage.audit_log import AuditLogRepository
from gateway.storage.database import Database
from gateway.storage.request_log import RequestLogRepository
from gateway.storage.settings import SettingRepository
from gateway.storage.traffic import TrafficRepository

if TYPE_CHECKING:  # only in a cluster
    from gateway.cluster.credit.stored_orphans import SettleNode
    from gateway.cluster.membership.node import ClusterNode
    from gateway.cluster.peers import Peers
    from gateway.server.admin.request_history import RequestHistory


def open_admin(services: Services, stack: AsyncExitStack) -> AdminServices:
    """Open the services of the admin API."""
    peers = None if services.storage.node is None else _open_peers(services, services.storage.node, stack)
    ask = None if peers is None else peers.ask_running
    files = services.storage.deployment.open_files(services.storage.database, services.options.folder.secret("pepper"))
    options, routing = services.options, services.routing
    database, clock = services.storage.database, services.clock
    setting_repository, audit_log = SettingRepository(database), AuditLogRepository(database)
    reloader = Reloader(
        services.live_config,
        ReloadSource(options.read_config, options.certificate, files.declare_alone),
        setting_repository,
        accounts=services.auth.accounts,
        channels=routing.channels,
        router=routing.router,
        audit_log=audit_log,
        clock=clock,
    )
    request_log = RequestLogRepository(database)
    return AdminServices(
        settings=SettingsService(services.live_config, reloader, setting_repository, clock=clock),
        reloader=reloader,
        request_log=request_log,
        open_history=Once(partial(_open_history, services, request_log)),
        audit_log=audit_log,
        open_active_feed=Once(
            partial(late("server.admin.activity_feed:ActiveRequestsFeed"), services.active_requests, ask)
        ),
        monitor=ProcessMonitor(options.folder.path, clock, services.media.stores.folder),
        token=options.folder.admin_token(),
        settle_node=_find_settling(database),
        peers=peers,
    )


def _open_peers(services: Services, node: "ClusterNode", stack: AsyncExitStack) -> "Peers":
    from gateway.cluster.open_peers import open_peers  # noqa: PLC0415 - only in a cluster

    return open_peers(services, node, stack)


def _find_settling(database: Database) -> "SettleNode | None":
    """Return the function that settles nodes' leases. A single gateway may find nodes in its PostgreSQL database."""
    if database.kind != "postgresql":
        return None
    from gateway.cluster.credit.stored_orphans import settle_orphans  # noqa: PLC0415 - its driver is an extra

    return partial(settle_orphans, database)


def _open_history(services: Services, request_log: RequestLogRepository) -> "RequestHistory":
    traffic, routing = TrafficRepository(services.storage.database), services.routing
    history: RequestHistory = load("server.admin.request_history:RequestHistory")(
        request_log, traffic, services.auth.api_keys, routing.catalog, routing.router
    )
    return history
