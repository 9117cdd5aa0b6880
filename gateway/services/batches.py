"""Opens batches. Their requests use the same services as all other requests."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from gateway.background import JobRunner
from gateway.batches.line_request import LineServices
from gateway.batches.run import BatchDependencies
from gateway.batches.service import BatchService
from gateway.batches.slots import LineSlots
from gateway.deferred import CreatedOnce
from gateway.domain.keep_wish import KeepWish
from gateway.frozen import frozen
from gateway.media.client_files import ClientFiles
from gateway.proxy.body_collector import BodyCollector
from gateway.proxy.failover import Proxy
from gateway.request_context import RequestContext
from gateway.server.client_ip import find_configured_url
from gateway.server.context import AuthServices, BillingServices, RoutingServices
from gateway.services.base import BaseServices, RequestTracking
from gateway.services.media import MIB
from gateway.storage.batches import BatchRepository, find_no_process

if TYPE_CHECKING:  # its driver is an extra
    from gateway.cluster.membership.node import ClusterNode
    from gateway.cluster.membership.notifications import NodeNotifications
    from gateway.config.reload import LiveConfig
    from gateway.storage.bodies.body_store import BodyStore


@frozen
class _LineKeeping:
    """Implements ``server.kept_exchange.KeepingServices`` for lines of batches, before there is a ``Services``."""

    open_bodies: "CreatedOnce[BodyStore]"
    auth: AuthServices
    live_config: "LiveConfig"


def _make_owner_finder(node: "ClusterNode | None") -> Callable[[], str]:
    return find_no_process if node is None else (lambda: node.process)


def share_batches(batches: BatchService, notifications: "NodeNotifications", stack: AsyncExitStack) -> None:
    """Start to take over batches that no node owns any more. A shutdown ends the takeover first, then the batches."""
    for kind in ("batch", "members"):
        notifications.subscribe(kind, lambda _: batches.wake())
    jobs = JobRunner()
    stack.push_async_callback(jobs.stop)
    jobs.start("claim_batches", batches.run_shared)


def _make_exchange_opener(services: _LineKeeping) -> Callable[[RequestContext, KeepWish, str], BodyCollector | None]:
    def open_exchange(ctx: RequestContext, wish: KeepWish, rule: str) -> BodyCollector | None:
        from gateway.server.kept_exchange import open_for_wish  # noqa: PLC0415 - only if bodies are kept

        return open_for_wish(ctx, services, wish, rule)

    return open_exchange


def open_batches(
    base: BaseServices,
    billing: BillingServices,
    routing: RoutingServices,
    requests: RequestTracking,
    *,
    proxy: Proxy,
    auth: AuthServices,
    files: ClientFiles,
    bodies: "CreatedOnce[BodyStore]",
) -> BatchService:
    """Open the batch service. ``bodies`` keeps the bodies of its lines."""
    clock, node, http = base.options.clock, base.storage.node, base.options.config.server
    lines = LineServices(
        proxy,
        routing.router,
        routing.response_owners,
        billing.quota,
        billing.settlement,
        requests.active,
        auth.api_keys,
        requests.drain,
        files,
        http.max_body_mb * MIB,
        clock,
        requests.memory,
        find_configured_url(http.base_url.rstrip("/")),
        lambda: base.live_config.attribution,
        base.live_config,
        _make_exchange_opener(_LineKeeping(bodies, auth, base.live_config)),
    )
    store, slots = (
        BatchRepository(base.storage.database, _make_owner_finder(node)),
        LineSlots(base.live_config.find_batch_slots),
    )
    services = BatchDependencies(
        store, files, lines, slots, http.max_body_mb * MIB, base.live_config.find_batch_multiplier_ppm, clock
    )
    return BatchService(services, wake_nodes=None if node is None else lambda: node.notifications.publish("batch"))
