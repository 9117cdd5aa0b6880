"""Open batches: they are sent with the services of every other request."""

from contextlib import AsyncExitStack

import structlog

from gateway.batches.line_request import LineServices
from gateway.batches.run import BatchServices
from gateway.batches.service import Batches
from gateway.batches.slots import LineSlots
from gateway.server.context import Services
from gateway.services.media import MIB
from gateway.storage.batches import BatchRepository

log = structlog.stdlib.get_logger(__name__)


async def open_batches(services: Services, stack: AsyncExitStack) -> Batches:
    """Open batches; ``serve`` continues those that an earlier process left. Raises ``StoreUnavailable``."""
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
    )
    batches = Batches(
        BatchServices(
            BatchRepository(services.storage.database),
            services.files.files,
            lines,
            LineSlots(services.live_config.find_batch_slots),
            services.http.max_body_mb * MIB,
            services.live_config.find_batch_multiplier_ppm,
            services.clock,
        )
    )
    stack.push_async_callback(batches.close)
    node = services.storage.node
    if node is not None and node.live > 1:  # a live node may be running them: no line may be sent twice
        log.warning("batches_not_continued", reason="other nodes are live")
    elif services.options.declare:  # another command than serve must not send anything
        await batches.open()
    return batches
