"""The admin API's look at the process: what it uses, how late it is, and how its store does."""

from aiohttp import web

from gateway.monitoring import STATES, ProcessMonitor
from gateway.server.admin.io import write_json
from gateway.server.admin.operation import AdminOperation
from gateway.server.openapi.schema import COUNT, FLAG, MOMENT, NUMBER, TEXT, maybe, record
from gateway.server.protocol import GatewayProtocol

VITALS = web.AppKey("vitals", ProcessMonitor)


async def get_health(request: web.Request) -> web.Response:
    """How the process is doing. What folders hold is looked up once a minute at most."""
    connection = request.protocol
    connections = connection.connections if isinstance(connection, GatewayProtocol) else 0
    return write_json({**await request.app[VITALS].describe(), "connections": connections})


_FOLDER = maybe(record(bytes=COUNT, files=COUNT))
HEALTH = record(
    version=TEXT,
    started_at=MOMENT,
    uptime_s=NUMBER,
    pid=COUNT,
    python=TEXT,
    memory_bytes=COUNT,
    cpu_s=NUMBER,
    open_files=maybe(COUNT),
    tasks=COUNT,
    loop_lag_ms=record(p50=NUMBER, p99=NUMBER, max=NUMBER),
    running=COUNT,
    store=record(bytes=COUNT, wal_bytes=COUNT, schema=TEXT, writable=FLAG, last_commit_ms=maybe(NUMBER)),
    queue=record(waiting_rows=COUNT, failing=FLAG),
    journal_bytes=COUNT,
    media=_FOLDER,
    videos=record(open=COUNT, kept=_FOLDER),
    channels=record(**dict.fromkeys(STATES, COUNT)),
    connections=COUNT,
)

HEALTH_DOORS: tuple[AdminOperation, ...] = (AdminOperation("GET", "/health", get_health, answer=HEALTH),)
