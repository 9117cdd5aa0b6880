"""Admin API: list, watch and cancel the requests that are being processed, by any node of a cluster."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import orjson
import structlog
from aiohttp import web
from aiohttp_sse import EventSourceResponse

from gateway.domain.audit_log import Actor, AuditRow
from gateway.domain.request_log import is_request_id
from gateway.error_status import STATUS
from gateway.errors import ClientDisconnected, Conflict, GatewayError, NotFound, StoreUnavailable
from gateway.frozen import frozen
from gateway.proxy.active_requests import ActiveRequests
from gateway.server.admin.activity_feed import RunningRequest, merge_calls
from gateway.server.admin.activity_feed import list_running as list_own
from gateway.server.admin.answer import read_answer
from gateway.server.admin.asked import OWN_NODE_QUERY, is_asked_alone
from gateway.server.admin.handler import AdminRequest, admin_operation
from gateway.server.handlers.video_events import SEND_TIMEOUT_S
from gateway.server.sessions import check_still_signed_in
from gateway.storage.audit_log import AuditLogRepository

if TYPE_CHECKING:  # used only in a cluster
    from gateway.cluster.peers import Peers

CONFLICT_STATUS = STATUS[Conflict.code]

log = structlog.stdlib.get_logger(__name__)


@frozen(kw_only=True)
class RunningView:
    """The active requests, and the nodes that did not answer."""

    object: Literal["list"] = "list"
    data: Sequence[RunningRequest]
    unanswered: Sequence[str]


@frozen
class CancelledRequest:
    """Whether a request was cancelled, and the nodes that did not answer."""

    id: str
    cancelled: bool
    unanswered: Sequence[str] = ()


@admin_operation(query=(OWN_NODE_QUERY,))
async def list_running(request: AdminRequest) -> RunningView:
    """List the active requests, the oldest first; at most a thousand.

    In a cluster every node is asked: `unanswered` has the ids of those that did not answer within a second. `node` is
    for administrators.
    """
    services, now, actor = request.services, asyncio.get_running_loop().time(), request.actor
    calls, unanswered = list_own(services.active_requests, actor.scope, now), tuple[str, ...]()
    if services.admin.peers is not None and not is_asked_alone(request):
        answers = await services.admin.peers.ask_all("GET", ("running",), actor)
        calls = merge_calls(calls, read_answer(list[RunningRequest], answers.list_items()))
        unanswered = answers.unanswered
    return RunningView(data=calls, unanswered=unanswered)


@admin_operation(media_type="text/event-stream")
async def get_running_events(request: AdminRequest) -> web.StreamResponse:
    """Stream the same list as events named "running": at once, and after a change, at most once a second.

    An event "unanswered" has the ids of the nodes whose requests are missing, if there are any and after a change.
    """
    feed, actor = request.services.admin.active_feed, request.actor
    response = EventSourceResponse(sep="\n", send_timeout=SEND_TIMEOUT_S)
    with feed.following.hold_stream(actor.account_id), feed.watch(actor.scope):
        await response.prepare(request.http)
        try:
            async with response:
                await _send_changes(request, response)
        except (TimeoutError, ConnectionError):
            raise ClientDisconnected from None
    return response


async def _send_changes(request: AdminRequest, response: EventSourceResponse) -> None:
    feed, scope, loop = request.services.admin.active_feed, request.actor.scope, asyncio.get_running_loop()
    drain, sent_count, checked_at = request.services.drain, 0, loop.time()
    reported_nodes: tuple[str, ...] = ()
    while drain.open:
        unanswered = await feed.ask_others(scope, loop.time())
        if unanswered != reported_nodes:
            reported_nodes = unanswered
            await response.send(orjson.dumps(reported_nodes).decode(), event="unanswered")
        snapshot = feed.snapshot(scope, loop.time())
        if snapshot.number != sent_count:
            sent_count = snapshot.number
            await response.send(snapshot.data, event="running")
        await asyncio.sleep(feed.tick_s)
        if loop.time() - checked_at >= feed.retry_s:
            checked_at = loop.time()
            try:
                await check_still_signed_in(request.http)
            except GatewayError:
                return


@admin_operation(query=(OWN_NODE_QUERY,))
async def cancel_running(request: AdminRequest) -> CancelledRequest:
    """Cancel an active request. The gateway disconnects from the provider and charges for what was delivered.

    In a cluster the node that has it cancels it. If no node that answered has it, the `unanswered` ones are notified,
    and `cancelled` is false: whether one of them has it is not known.
    """
    services, actor = request.services, request.actor
    request_id, peers = request.match_info["id"], services.admin.peers
    if peers is not None and request_id not in services.active_requests.calls and not is_asked_alone(request):
        return await cancel_elsewhere(peers, request_id, actor)
    await cancel_here(services.active_requests, services.admin.audit_log, services.clock, request_id, actor)
    return CancelledRequest(request_id, cancelled=True)


async def cancel_here(
    active_requests: ActiveRequests,
    audit_log: AuditLogRepository,
    clock: Callable[[], float],
    request_id: str,
    actor: Actor,
) -> None:
    """Cancel an active request of this process, and store an audit row. Raises ``NotFound``, ``Conflict``."""
    active = active_requests.get(request_id, actor)
    if active.cancel():
        row = actor.build_audit_row(
            "request.cancelled",
            request_id,
            int(clock() * 1000),
            account_id=active.context.caller.account.id,
            detail=orjson.dumps({"key": active.context.caller.key.name}).decode(),
        )
        await add_audit(audit_log, row)


async def cancel_elsewhere(peers: "Peers", request_id: str, actor: Actor) -> CancelledRequest:
    """Cancel an active request at the node that runs it. Raises ``NotFound``, ``Conflict``.

    If no node that answered runs it, those that did not answer are notified, and ``cancelled`` is False.
    """
    not_found_error = NotFound(f"No request under way has the id {request_id[:64]!r}", should_retry=False)
    if not is_request_id(request_id):  # the id becomes part of a path at other nodes
        raise not_found_error
    answers = await peers.ask_all("POST", ("running", request_id, "cancel"), actor)
    for answer in answers.by_node.values():
        if answer.status == CONFLICT_STATUS:
            raise Conflict(answer.error, should_retry=False)
        if answer.body.get("cancelled"):
            return CancelledRequest(request_id, cancelled=True)
    if not answers.unanswered:
        raise not_found_error
    peers.notify_cancel(request_id, actor)
    return CancelledRequest(request_id, cancelled=False, unanswered=answers.unanswered)


async def add_audit(audit_log: AuditLogRepository, row: AuditRow) -> None:
    """Store an audit row. If the store fails, write the row to the log instead: the request is already cancelled."""
    try:
        await audit_log.add_audit(row)
    except StoreUnavailable as error:
        actor_name = row.actor or row.actor_kind
        log.error("audit_row_lost", request_id=row.subject, reason=f"{row.action} by {actor_name}", error=error.message)  # noqa: TRY400 - a condition, not a bug
