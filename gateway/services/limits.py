"""Open what counts rate limits: this process, or a server that several gateways share."""

import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Protocol

import structlog

from gateway.background import JobRunner
from gateway.billing.rate_limiter import InMemoryRateLimiter
from gateway.config.schema import Config
from gateway.domain.rate_limit import RateLimiter
from gateway.options import AppOptions

if TYPE_CHECKING:  # a gateway alone needs neither
    from gateway.billing.shared_rate_limiter import SharedRateLimiter
    from gateway.domain.limit_server import LimitServer

log = structlog.stdlib.get_logger(__name__)


class LiveNode(Protocol):
    """A node of a cluster: how many of them live."""

    @property
    def live(self) -> int: ...


def open_limiter(
    options: AppOptions, stack: AsyncExitStack, node: LiveNode | None
) -> "tuple[RateLimiter, SharedRateLimiter | None]":
    """Open the rate limiter of the settings, and return it twice if other gateways share it.

    ``node`` is this gateway as one of several on the database; None: it is the only one.
    """
    config = options.config
    if config.limits_store == "memory":
        if node is not None:
            log.warning("rate_limits_alone", reason="limits.store is memory: each node admits the whole of each limit")
        return InMemoryRateLimiter(time.monotonic), None
    from gateway.billing.shared_rate_limiter import SharedRateLimiter  # noqa: PLC0415 - it is used only here

    limits = config.limits
    limiter = SharedRateLimiter(
        make_limit_server(config),
        time.monotonic,
        limits.prefix,
        limits.when_down,
        node=options.folder.node_id(),
        count_live=lambda: 1 if node is None else node.live,
    )
    job = JobRunner()
    stack.push_async_callback(job.stop)
    job.start("share_limits", limiter.sender.run)
    return limiter, limiter


def make_limit_server(config: Config) -> "LimitServer":
    """Return a connection to the server of the settings, which is not opened yet."""
    if config.limits_store == "valkey":
        from gateway.storage.valkey.limits import ValkeyLimitServer  # noqa: PLC0415 - its driver is an extra

        return ValkeyLimitServer(config.limits.url)
    from gateway.storage.postgres.limits import PostgresLimitServer  # noqa: PLC0415 - its driver is an extra

    return PostgresLimitServer(config.limits.url or config.store.url)
