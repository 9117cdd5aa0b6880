"""Open requests to the other nodes of a cluster, and the handling of their notifications."""

from contextlib import AsyncExitStack, suppress

from gateway.cluster.membership.node import ClusterNode
from gateway.cluster.membership.signature import NodeSigner
from gateway.cluster.peers import CANCEL, Peers
from gateway.errors import GatewayError
from gateway.server.admin.active_requests import cancel_here
from gateway.server.context import Services


def open_peers(services: Services, node: ClusterNode, stack: AsyncExitStack) -> Peers:
    """Open requests to the other nodes, and start cancelling requests on their behalf."""
    config = services.options.config
    signer = NodeSigner(bytes.fromhex(config.store.master_key), services.clock)
    peers = Peers(node.id, services.storage.database, signer, node.notifications, insecure=config.cluster.insecure)
    stack.push_async_callback(peers.close)
    services.active_requests.node = node.id

    async def cancel(name: str) -> None:
        with suppress(GatewayError):  # most nodes do not run this request
            await cancel_here(services, *peers.parse_cancel(name))

    def handler(name: str) -> None:
        services.background.start(cancel(name))

    node.notifications.subscribe(CANCEL, handler)
    return peers
