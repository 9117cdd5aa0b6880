"""Open batches. Their requests use the same services as all other requests."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from gateway.background import JobRunner
from gateway.batches.line_request import LineServices
from gateway.batches.run import BatchServices
from gateway.batches.service import Batches
from gateway.batches.slots import LineSlots
from gateway.server.client_ip import find_set_url
from gateway.server.context import Services
from gateway.services.media import MIB
from gateway.storage.batches import BatchRepository

if TYPE_CHECKING:  # its driver is an extra
    from gateway.cluster.membership.notifications import NodeNotifications


def _find_owner(services: Services) -> Callable[[], str]:
    node = services.storage.node
    return (lambda: "") if node is None else (lambda: node.owner)


def share_batches(batches: Batches, notifications: "NodeNotifications", stack: AsyncExitStack) -> None:
    """Run batches that no node owns any more. On shutdown this stops before the running batches do."""
    for kind in ("batch", "members"):
        notifications.subscribe(kind, lambda _: batches.wake())
    jobs = JobRunner()
    stack.push_async_callback(jobs.stop)
    jobs.start("claim_batches", batches.run_shared)


def open_batches(services: Services) -> Batches:
    """Open the batch service."""
    billing, routing = services.billing, services.routing
    lines = LineServices(
        services.proxy,
        routing.router,
        routing.response_owners,
        billing.quota,
        billing.settlement,
        services.active_requests,
        services.auth.api_keys,
        services.drain,
        services.files.files,
        services.http.max_body_mb * MIB,
        services.clock,
        services.memory,
        find_set_url(services.http.base_url),
    )
    node = services.storage.node
    return Batches(
        BatchServices(
            BatchRepository(services.storage.database, _find_owner(services)),
            services.files.files,
            lines,
            LineSlots(services.live_config.find_batch_slots),
            services.http.max_body_mb * MIB,
            services.live_config.find_batch_multiplier_ppm,
            services.clock,
        ),
        left=None if node is None else partial(node.notifications.publish, "batch"),
    )
