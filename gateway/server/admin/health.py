"""Admin API: the state of the process."""

import time
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Literal, get_args

from gateway.answer_fields import Count, FieldSchema, Moment
from gateway.errors import StoreUnavailable
from gateway.frozen import frozen
from gateway.observability.process_monitor import FolderSize, LagPercentiles, find_size
from gateway.routing.channel_health import Health, find_health
from gateway.routing.load_balancer import LoadBalancer
from gateway.server.admin.asked import NODE_QUERY, ask_named_node
from gateway.server.admin.handler import AdminRequest, admin_operation
from gateway.server.context import Services, StorageServices
from gateway.server.openapi import schema as s
from gateway.server.protocol import GatewayProtocol
from gateway.storage.schema import REVISION


@frozen(kw_only=True)
class StoreHealth:
    """The state of the database."""

    database: Literal["sqlite", "postgresql"]
    bytes: Count
    wal_bytes: Count | None
    schema: str
    writable: bool
    last_commit_ms: float | None


@frozen
class QueueHealth:
    """The rows that wait to be written."""

    waiting_rows: Count
    failing: bool
    set_aside: Count


@frozen(kw_only=True)
class LimitsHealth:
    """The store of the rate limits, and the number of gateways that share it."""

    store: Literal["memory", "postgresql", "valkey"]
    server: str | None
    reached: bool | None
    gateways: Count


@frozen
class VideosHealth:
    """The video jobs that have not ended, and the folder of videos."""

    open: Count
    kept: FolderSize | None


@frozen(kw_only=True)
class HealthView:
    """The state of the process."""

    node: str | None
    version: str
    started_at: Moment
    uptime_s: float
    pid: Count
    python: str
    memory_bytes: Count
    cpu_s: float
    open_files: Count | None
    tasks: Count
    loop_lag_ms: LagPercentiles
    running: Count
    store: StoreHealth
    queue: QueueHealth
    limits: LimitsHealth
    journal_bytes: Count
    media: FolderSize | None
    media_shared: bool
    videos: VideosHealth
    channels: Annotated[Mapping[str, int], FieldSchema(s.record(**dict.fromkeys(get_args(Health), s.COUNT)))]
    connections: Count


@admin_operation(query=(NODE_QUERY,))
async def get_health(request: AdminRequest) -> HealthView:
    """Get the state of the process: memory, event loop, store and channels. Folder sizes are at most a minute old.

    Each node of a cluster has its own state; `node` is its id.
    """
    if (answer := await ask_named_node(request, HealthView, "health")) is not None:
        return answer
    services, connection, now = request.services, request.http.protocol, time.monotonic()
    monitor, storage = services.admin.monitor, services.storage
    queue = storage.write_queue
    is_single_node = storage.node is None or storage.node.live_count <= 1
    open_videos = await services.videos.jobs.reservations.count_all_open()
    return HealthView(
        node=services.active_requests.node,
        **monitor.describe(),
        running=len(services.active_requests),
        store=await _describe_store(storage),
        queue=QueueHealth(len(queue), queue.failing or storage.journal.failing, storage.unstorable.count),
        limits=_describe_limits(services),
        journal_bytes=find_size(monitor.journal),
        media=await monitor.media.measure(now),
        media_shared=is_single_node or services.media.stores.shared,
        videos=VideosHealth(open_videos, await monitor.videos.measure(now)),
        channels=_count_channels(services.routing.load_balancer),
        connections=connection.connections if isinstance(connection, GatewayProtocol) else 0,
    )


async def _describe_store(storage: StorageServices) -> StoreHealth:
    database, writable = storage.database, True
    last_commit_ms = database.last_commit_ms  # the check below commits, too
    try:
        await storage.check_writable()
    except StoreUnavailable:
        writable = False
    size = await database.measure()
    return StoreHealth(
        database=database.kind,
        bytes=size.bytes,
        wal_bytes=size.log_bytes,
        schema=REVISION,
        writable=writable,
        last_commit_ms=last_commit_ms,
    )


def _describe_limits(services: Services) -> LimitsHealth:
    shared_limits = services.billing.shared_limits
    if shared_limits is None:
        return LimitsHealth(store="memory", server=None, reached=None, gateways=1)
    return LimitsHealth(
        store=services.billing.limits_store,
        server=shared_limits.sender.server_name,
        reached=shared_limits.sender.reached,
        gateways=shared_limits.gateways,
    )


def _count_channels(load_balancer: LoadBalancer) -> dict[str, int]:
    counts = Counter(find_health(state, load_balancer) for state in load_balancer.channels.values())
    return {health: counts[health] for health in get_args(Health)}
