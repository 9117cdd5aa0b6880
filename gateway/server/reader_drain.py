"""The first part of a shutdown: resumable streams go on, and their readers can come back to this process.

A single gateway that has its own sockets keeps listening, and refuses all other requests. A node of a cluster listens
at another port that only the other nodes learn: they pass readers on, and load balancers leave this node at once. The
sockets of a service manager belong to the next process: there, readers wait for what this process hands over.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import structlog

from gateway.config.server_schema import ServerSection
from gateway.errors import StoreUnavailable
from gateway.server.context import SERVICES
from gateway.server.protocol import GatewayRunner

if TYPE_CHECKING:  # a single process does not need it
    from gateway.cluster.membership.node import ClusterNode

ListenElsewhere = Callable[[], Awaitable[int]]
_POLL_INTERVAL_S = 0.05

log = structlog.stdlib.get_logger(__name__)


async def await_streams(
    runner: GatewayRunner, server: ServerSection, listen_elsewhere: ListenElsewhere, *, inherited: bool
) -> None:
    """Wait until no resumable stream runs, for at most ``drain_timeout_s``; accept their readers meanwhile.

    Returns at once if no stream runs, or if the sockets of a gateway without other nodes are inherited. Otherwise,
    other requests are refused from then on.

    Args:
        runner: has the sites of this process.
        server: the settings.
        listen_elsewhere: starts a site at a free port, and returns the port. Raises ``OSError``.
        inherited: whether the sockets belong to a service manager.
    """
    services = runner.app[SERVICES]
    streams, drain, node = services.open_streams.instance, services.drain, services.storage.node
    if streams is None or not streams.running_count or (node is None and inherited):
        return
    loop = asyncio.get_running_loop()
    drain.open, drain.ends_at = False, loop.time() + server.drain_timeout_s
    log.info("drain_started", running=streams.running_count)
    runner.end_connections()
    if node is not None:
        await runner.stop_sites()
        await _move_node(node, server.port, listen_elsewhere)
    runner.close_idle()
    while streams.running_count and loop.time() < drain.ends_at and not drain.hurried:  # noqa: ASYNC110 - once a process
        await asyncio.sleep(_POLL_INTERVAL_S)


async def _move_node(node: "ClusterNode", port: int, listen_elsewhere: ListenElsewhere) -> None:
    """Listen at another port, and publish it to the other nodes: else they would report that this one is away.

    Do nothing if the node's URL does not have the port ``port``: it is then the address of a proxy.
    """
    url, _, machine = node.url.partition("#")
    parts = urlsplit(url)
    if parts.port != port or not parts.hostname:  # unknown, or the address of a proxy
        return
    try:
        new_port = await listen_elsewhere()
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        await node.put_url(f"{parts.scheme}://{host}:{new_port}{parts.path}" + (machine and f"#{machine}"))
    except (OSError, StoreUnavailable) as error:
        log.warning("readers_not_reached", error=str(error))
