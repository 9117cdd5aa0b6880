"""Opens this gateway as a node of a cluster: its database, registration, shared clock and shared secrets."""

from collections.abc import Callable
from contextlib import AsyncExitStack

from gateway import __version__
from gateway.cluster.config_digest import compute_digest
from gateway.cluster.credit.store import PostgresCredit
from gateway.cluster.deployment import Cluster
from gateway.cluster.membership.fence import FencedWriteQueue, read_boot_time
from gateway.cluster.membership.node import ClusterNode
from gateway.cluster.membership.notifications import NodeNotifications
from gateway.cluster.membership.session import NodeSession
from gateway.cluster.membership.store_clock import StoreClock
from gateway.cluster.membership.times import TIMES
from gateway.cluster.own_url import find_own_url
from gateway.cluster.state.secrets import check_shared_secrets, share_secrets
from gateway.domain.balance import parse_day
from gateway.domain.node import Node
from gateway.options import AppOptions
from gateway.storage.data_folder import TIMELINE
from gateway.storage.database import Database, DatabaseStartupError
from gateway.storage.postgres.address import Address
from gateway.storage.postgres.database import open_address
from gateway.storage.postgres.timeline import NewestTimeline
from gateway.storage.schema import REVISION


async def open_node(
    options: AppOptions, count_active: Callable[[], int], stack: AsyncExitStack, startup_stack: AsyncExitStack
) -> tuple[Database, Cluster, FencedWriteQueue]:
    """Open the database and register the node. Return the database, the deployment, and the queue of writes.

    ``count_active``: returns the number of active requests. ``startup_stack``: while it is open, no other node starts.
    Raises ``DatabaseStartupError`` if the database cannot be used, and ``DataFolderDamaged`` if the data folder or
    the master key does not match the cluster.
    """
    _check_allowed(options)
    config, master_key = options.config, bytes.fromhex(options.config.store.master_key)
    own_node = Node(
        options.folder.node_id(),
        url=await find_own_url(config),
        version=__version__,
        schema=REVISION,
        config_digest=compute_digest(config),
    )
    address = Address(config.store.url, own_node.id, NewestTimeline(options.folder.path / TIMELINE))
    times = options.cluster_times or TIMES
    notifications = NodeNotifications(own_node.id)
    session = NodeSession(address, own_node, notifications.receive, times)
    queue, clock = FencedWriteQueue(times=times), StoreClock(options.clock, read_boot_time)
    database = await open_address(
        address,
        session,
        lambda connection: check_shared_secrets(connection, options.folder, address.name, master_key),
        lambda postgres_database: PostgresCredit(postgres_database, own_node.id, lambda: parse_day(clock.now())),
    )
    stack.push_async_callback(database.close)
    node = ClusterNode(session, notifications, queue, clock, count_active)
    stack.push_async_callback(node.close)
    await node.open()
    await startup_stack.enter_async_context(session.start_alone())
    await share_secrets(options.folder, database, master_key)
    return database, Cluster(node), queue


def _check_allowed(options: AppOptions) -> None:
    if not options.declare:  # it would change or misreport the state of the nodes
        raise DatabaseStartupError(
            "With cluster.enabled this command needs a running gateway. Start it with 'gateway serve'"
        )
