"""Admin API: list, watch and cancel the requests that are being processed.

All viewers of one account, and all who see every account, share one snapshot per tick. Without viewers none is taken.
"""

import asyncio

import orjson
import structlog
from aiohttp import web
from aiohttp_sse import EventSourceResponse

from gateway.domain.audit_log import AuditRow
from gateway.errors import ClientDisconnected, GatewayError, StoreUnavailable
from gateway.server.admin.io import respond_json, respond_list
from gateway.server.admin.operation import AdminOperation
from gateway.server.context import ACTOR, SERVICES
from gateway.server.handlers.video_events import SEND_TIMEOUT_S
from gateway.server.openapi import schema as s
from gateway.server.sessions import check_still_signed
from gateway.storage.audit_log import AuditLogRepository

log = structlog.stdlib.get_logger(__name__)


async def list_running(request: web.Request) -> web.Response:
    """List the active requests, the oldest first; at most a thousand."""
    now = asyncio.get_running_loop().time()
    return respond_list(request.app[SERVICES].active_requests.list_calls(request[ACTOR].scope, now))


async def get_running_events(request: web.Request) -> web.StreamResponse:
    """Stream the same list as events named "running": at once, and after a change, at most once a second."""
    live, actor = request.app[SERVICES].admin.active_feed, request[ACTOR]
    response = EventSourceResponse(sep="\n", send_timeout=SEND_TIMEOUT_S)
    with live.following.join(actor.account_id), live.watch(actor.scope):
        await response.prepare(request)
        try:
            async with response:
                await _send_changes(request, response)
        except (TimeoutError, ConnectionError):
            raise ClientDisconnected from None
    return response


async def _send_changes(request: web.Request, response: EventSourceResponse) -> None:
    live, scope, loop = request.app[SERVICES].admin.active_feed, request[ACTOR].scope, asyncio.get_running_loop()
    drain, sent, checked_at = request.app[SERVICES].drain, 0, loop.time()
    while drain.open:
        snapshot = live.snapshot(scope, loop.time())
        if snapshot.number != sent:
            sent = snapshot.number
            await response.send(snapshot.data, event="running")
        await asyncio.sleep(live.tick_s)
        if loop.time() - checked_at >= live.again_s:
            checked_at = loop.time()
            try:
                await check_still_signed(request)
            except GatewayError:
                return


async def cancel_running(request: web.Request) -> web.Response:
    """Cancel an active request. The gateway disconnects from the provider and charges for what was delivered."""
    services, actor = request.app[SERVICES], request[ACTOR]
    request_id = request.match_info["id"]
    call = services.active_requests.get(request_id, actor)
    if call.cancel():
        row = actor.did(
            "request.cancelled",
            request_id,
            int(services.clock() * 1000),
            account_id=call.context.caller.account.id,
            detail=orjson.dumps({"key": call.context.caller.key.name}).decode(),
        )
        await note(request.app[SERVICES].admin.audit_log, row)
    return respond_json({"id": request_id, "cancelled": True})


async def note(audit_log: AuditLogRepository, row: AuditRow) -> None:
    """Store an audit row. If the store fails, the log has the row instead: the request is cancelled nevertheless."""
    try:
        await audit_log.add_audit(row)
    except StoreUnavailable as error:
        who = row.actor or row.actor_kind
        log.error("audit_row_lost", request_id=row.subject, reason=f"{row.action} by {who}", error=error.message)  # noqa: TRY400 - a condition, not a bug


RUNNING = s.record(
    id=s.TEXT,
    account=s.TEXT,
    key_name=s.TEXT,
    model=s.TEXT,
    operation=s.TEXT,
    stream=s.FLAG,
    started_at=s.MOMENT,
    running_ms=s.COUNT,
    phase=s.one_of("reading", "waiting", "streaming"),
    channel=s.maybe(s.TEXT),
    attempts=s.COUNT,
    address=s.maybe(s.TEXT),
)

_CANCELLED = s.record(id=s.TEXT, cancelled=s.FLAG)

RUNNING_OPERATIONS: tuple[AdminOperation, ...] = (
    AdminOperation("GET", "/running", list_running, "viewer", answer=s.listing(RUNNING)),
    AdminOperation("GET", "/running/events", get_running_events, "viewer", media_type="text/event-stream"),
    AdminOperation("POST", "/running/{id}/cancel", cancel_running, "member", answer=_CANCELLED),
)
