"""Opens requests to the other nodes of a cluster, and the handling of their notifications."""

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Any

from gateway.background import JobRunner
from gateway.cluster.membership.node import ClusterNode
from gateway.cluster.membership.signature import NodeSigner
from gateway.cluster.peers import CANCEL, Peers, Timelines
from gateway.config.schema import Config
from gateway.domain.audit_log import Actor
from gateway.errors import GatewayError
from gateway.storage.database import Database


def open_peers(
    config: Config,
    database: Database,
    node: ClusterNode,
    stack: AsyncExitStack,
    *,
    cancel: Callable[[str, Actor], Awaitable[None]],
    start: Callable[[Coroutine[Any, Any, None]], object],
) -> Peers:
    """Open requests to the other nodes. Start to send them the newest timeline, and to cancel requests for them.

    ``cancel`` cancels an active request of this process, by its id. ``start`` runs a task in the background.
    """
    signer = NodeSigner(bytes.fromhex(config.store.master_key), node.clock.now)
    timelines = Timelines(lambda: str(node.address.timeline), node.learn_timeline)
    peers = Peers(node.id, database, signer, node.notifications, timelines, insecure=config.cluster.insecure)
    stack.push_async_callback(peers.close)
    jobs = JobRunner()
    stack.push_async_callback(jobs.stop)
    jobs.start("meet_nodes", peers.keep_sending_timeline)

    async def cancel_named(name: str) -> None:
        with suppress(GatewayError):  # most nodes do not run this request
            await cancel(*peers.parse_cancel(name))

    node.notifications.subscribe(CANCEL, lambda name: start(cancel_named(name)))
    return peers
