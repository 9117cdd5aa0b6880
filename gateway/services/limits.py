"""Opens the rate limiter: in this process, or on a server shared by several gateways."""

import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import structlog

from gateway.billing.rate_limiter import InMemoryRateLimiter
from gateway.domain.rate_limit import RateLimiter
from gateway.options import AppOptions

if TYPE_CHECKING:  # a single gateway needs none of them
    from gateway.cluster.limits.limiter import SharedRateLimiter
    from gateway.cluster.membership.registered_node import RegisteredNode

log = structlog.stdlib.get_logger(__name__)


def open_limiter(
    options: AppOptions, stack: AsyncExitStack, node: "RegisteredNode | None"
) -> "tuple[RateLimiter, SharedRateLimiter | None]":
    """Open the configured rate limiter. Also return it as the shared limiter if other gateways share it, else None.

    ``node`` is this node of a cluster; None for a single gateway on its database.
    """
    config = options.config
    if config.limits_store == "memory":
        if node is not None:
            log.warning("rate_limits_alone", reason="rate_limits.store is memory: each node admits all of each limit")
        return InMemoryRateLimiter(time.monotonic), None
    from gateway.cluster.open_limits import open_shared_limiter  # noqa: PLC0415 - its drivers are extras

    limiter = open_shared_limiter(options, stack, node)
    return limiter, limiter
