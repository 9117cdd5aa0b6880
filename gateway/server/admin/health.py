"""Admin API: the state of the process."""

import time
from collections import Counter
from typing import Any, get_args

from gateway.errors import StoreUnavailable
from gateway.observability.process_monitor import find_size
from gateway.routing.channel_health import Health, find_health
from gateway.routing.load_balancer import LoadBalancer
from gateway.server.admin.asked import NODE, ask_named_node
from gateway.server.admin.handler import AdminRequest, admin_operation
from gateway.server.context import Services, StorageServices
from gateway.server.openapi import schema as s
from gateway.server.protocol import GatewayProtocol
from gateway.storage.schema import REVISION

_FOLDER = s.maybe(s.record(bytes=s.COUNT, files=s.COUNT))
HEALTH = s.record(
    node=s.maybe(s.TEXT),
    version=s.TEXT,
    started_at=s.MOMENT,
    uptime_s=s.NUMBER,
    pid=s.COUNT,
    python=s.TEXT,
    memory_bytes=s.COUNT,
    cpu_s=s.NUMBER,
    open_files=s.maybe(s.COUNT),
    tasks=s.COUNT,
    loop_lag_ms=s.record(p50=s.NUMBER, p99=s.NUMBER, max=s.NUMBER),
    running=s.COUNT,
    store=s.record(
        database=s.one_of("sqlite", "postgresql"),
        bytes=s.COUNT,
        wal_bytes=s.maybe(s.COUNT),
        schema=s.TEXT,
        writable=s.FLAG,
        last_commit_ms=s.maybe(s.NUMBER),
    ),
    queue=s.record(waiting_rows=s.COUNT, failing=s.FLAG, set_aside=s.COUNT),
    limits=s.record(
        store=s.one_of("memory", "postgresql", "valkey"),
        server=s.maybe(s.TEXT),
        reached=s.maybe(s.FLAG),
        gateways=s.COUNT,
    ),
    journal_bytes=s.COUNT,
    media=_FOLDER,
    media_shared=s.FLAG,
    videos=s.record(open=s.COUNT, kept=_FOLDER),
    channels=s.record(**dict.fromkeys(get_args(Health), s.COUNT)),
    connections=s.COUNT,
)


@admin_operation(query=(NODE,), answer=HEALTH)
async def get_health(request: AdminRequest) -> Any:
    """Get the state of the process: memory, event loop, store and channels. Folder sizes are at most a minute old.

    Each node of a cluster has its own state; `node` is its id.
    """
    if (answer := await ask_named_node(request, dict[str, Any], "health")) is not None:
        return answer
    services, connection, now = request.services, request.http.protocol, time.monotonic()
    monitor, storage = services.admin.monitor, services.storage
    alone = storage.node is None or storage.node.live <= 1
    return {
        "node": services.active_requests.node,
        **monitor.describe(),
        "running": len(services.active_requests),
        "store": await _describe_store(storage),
        "queue": {
            "waiting_rows": len(storage.write_queue),
            "failing": storage.write_queue.failing or storage.journal.failing,
            "set_aside": storage.unstorable.count,
        },
        "limits": _describe_limits(services),
        "journal_bytes": find_size(monitor.journal),
        "media": await monitor.media.measure(now),
        "media_shared": alone or services.media.stores.shared,
        "videos": {
            "open": await services.videos.jobs.reservations.count_all_open(),
            "kept": await monitor.videos.measure(now),
        },
        "channels": _count_channels(services.routing.load_balancer),
        "connections": connection.connections if isinstance(connection, GatewayProtocol) else 0,
    }


async def _describe_store(storage: StorageServices) -> dict[str, Any]:
    database, writable = storage.database, True
    last_commit_ms = database.last_commit_ms  # the check below commits, too
    try:
        await storage.check_writable()
    except StoreUnavailable:
        writable = False
    size = await database.measure()
    return {
        "database": database.kind,
        "bytes": size.bytes,
        "wal_bytes": size.log_bytes,
        "schema": REVISION,
        "writable": writable,
        "last_commit_ms": last_commit_ms,
    }


def _describe_limits(services: Services) -> dict[str, Any]:
    shared = services.billing.shared_limits
    if shared is None:
        return {"store": "memory", "server": None, "reached": None, "gateways": 1}
    return {
        "store": services.billing.limits_store,
        "server": shared.sender.server_name,
        "reached": shared.sender.reached,
        "gateways": shared.gateways,
    }


def _count_channels(load_balancer: LoadBalancer) -> dict[str, int]:
    counts = Counter(find_health(state, load_balancer) for state in load_balancer.channels.values())
    return {health: counts[health] for health in get_args(Health)}
