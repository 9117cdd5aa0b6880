"""Open what asks the other nodes of a cluster, and hears what they ask for without waiting for an answer."""

from contextlib import AsyncExitStack, suppress

import attrs

from gateway.cluster.membership.node import ClusterNode
from gateway.cluster.membership.signature import NodeSigner
from gateway.cluster.peers import CANCEL, Peers
from gateway.domain.audit_log import Actor
from gateway.errors import GatewayError
from gateway.proxy.active_requests import Fields
from gateway.server.admin.active_requests import cancel_here
from gateway.server.context import AdminServices, Services


def open_peers(services: Services, admin: AdminServices, node: ClusterNode, stack: AsyncExitStack) -> AdminServices:
    """Return ``admin`` with the other nodes of the cluster."""
    config = services.options.config
    signer = NodeSigner(bytes.fromhex(config.store.master_key), services.clock)
    peers = Peers(node.id, services.storage.database, signer, node.notifications, insecure=config.cluster.insecure)
    stack.push_async_callback(peers.close)
    services.active_requests.node = node.id

    async def ask(scope: int | None) -> tuple[list[Fields], tuple[str, ...]]:
        answers = await peers.ask_all("GET", ("running",), Actor("token", scope=scope))
        return answers.list_items(), answers.unanswered

    admin = attrs.evolve(admin, peers=peers)
    admin.active_feed.ask = ask

    async def cancel(name: str) -> None:
        with suppress(GatewayError):  # most nodes do not have the request
            await cancel_here(services, *peers.parse_cancel(name))

    def handler(name: str) -> None:
        services.background.start(cancel(name))

    node.notifications.subscribe(CANCEL, handler)
    return admin
