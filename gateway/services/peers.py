"""Open what asks the other nodes of a cluster, and hears what they ask for without waiting for an answer."""

from contextlib import AsyncExitStack, suppress

import attrs

from gateway.cluster.node import ClusterNode
from gateway.errors import GatewayError
from gateway.server.admin.active_requests import cancel_here
from gateway.server.context import AdminServices, Services
from gateway.server.peers import CANCEL, Peers, parse_cancel


def open_peers(services: Services, admin: AdminServices, node: ClusterNode, stack: AsyncExitStack) -> AdminServices:
    """Return ``admin`` with the other nodes of the cluster."""
    peers = Peers(node.id, services.storage.database, admin.token, node.rings)
    stack.push_async_callback(peers.close)
    services.active_requests.node = node.id
    admin.active_feed.peers = peers

    async def cancel(name: str) -> None:
        with suppress(GatewayError):  # most nodes do not have the request
            await cancel_here(services, *parse_cancel(name))

    def hear(name: str) -> None:
        services.background.start(cancel(name))

    node.rings.subscribe(CANCEL, hear)
    return attrs.evolve(admin, peers=peers)
