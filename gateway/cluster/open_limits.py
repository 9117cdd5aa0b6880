"""Opens the rate limits shared by several gateways: the connection to the server, and the limiter that uses it."""

import time
from contextlib import AsyncExitStack

from gateway.background import JobRunner
from gateway.cluster.limits.limiter import SharedRateLimiter
from gateway.cluster.membership.registered_node import RegisteredNode
from gateway.config.schema import Config
from gateway.domain.limit_server import LimitServer
from gateway.options import AppOptions


def open_shared_limiter(options: AppOptions, stack: AsyncExitStack, node: RegisteredNode | None) -> SharedRateLimiter:
    """Open the rate limiter that asks the configured server. ``node`` is None if this gateway is no node."""
    limits = options.config.rate_limits
    limiter = SharedRateLimiter(
        make_limit_server(options.config),
        time.monotonic,
        limits.prefix,
        limits.when_down,
        node=options.folder.node_id(),
        count_live=lambda: 1 if node is None else node.live_count,
    )
    job = JobRunner()
    stack.push_async_callback(job.stop)
    job.start("share_limits", limiter.sender.run)
    return limiter


def make_limit_server(config: Config) -> LimitServer:
    """Return a connection to the configured server, not opened yet."""
    if config.limits_store == "valkey":
        from gateway.storage.valkey.limits import ValkeyLimitServer  # noqa: PLC0415 - its driver is an extra

        return ValkeyLimitServer(config.rate_limits.url)
    from gateway.cluster.limits.postgres import PostgresLimitServer  # noqa: PLC0415 - its driver is an extra

    return PostgresLimitServer(config.rate_limits.url or config.store.url)
