"""Admin API: the state of the process."""

from aiohttp import web

from gateway.monitoring import STATES, ProcessMonitor
from gateway.server.admin.io import respond_json
from gateway.server.admin.operation import AdminOperation
from gateway.server.openapi import schema as s
from gateway.server.protocol import GatewayProtocol

VITALS = web.AppKey("vitals", ProcessMonitor)


async def get_health(request: web.Request) -> web.Response:
    """Get the state of the process: memory, event loop, store and channels. Folder sizes are at most a minute old."""
    connection = request.protocol
    connections = connection.connections if isinstance(connection, GatewayProtocol) else 0
    return respond_json({**await request.app[VITALS].describe(), "connections": connections})


_FOLDER = s.maybe(s.record(bytes=s.COUNT, files=s.COUNT))
HEALTH = s.record(
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
    store=s.record(bytes=s.COUNT, wal_bytes=s.COUNT, schema=s.TEXT, writable=s.FLAG, last_commit_ms=s.maybe(s.NUMBER)),
    queue=s.record(waiting_rows=s.COUNT, failing=s.FLAG),
    journal_bytes=s.COUNT,
    media=_FOLDER,
    videos=s.record(open=s.COUNT, kept=_FOLDER),
    channels=s.record(**dict.fromkeys(STATES, s.COUNT)),
    connections=s.COUNT,
)

HEALTH_OPERATIONS: tuple[AdminOperation, ...] = (AdminOperation("GET", "/health", get_health, answer=HEALTH),)
