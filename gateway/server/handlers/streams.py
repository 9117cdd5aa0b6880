"""``/v1/streams/{id}``: take up a stream again, describe it, cancel it, and make a token for a browser."""

import re
from contextlib import suppress

from aiohttp import web

from gateway.domain.account_spec import build_time
from gateway.domain.audit_log import Actor
from gateway.domain.member import Forbidden
from gateway.domain.operation import OPERATIONS
from gateway.domain.request_log import ID_PREFIX, RequestRecord
from gateway.errors import Conflict, NotFound, Overloaded
from gateway.proxy.resumable_streams import STREAM_PREFIX, ResumableStream
from gateway.server.context import CALLER, SERVICES, Services
from gateway.server.response_events import RESPONSE_AFTER, send_response_events
from gateway.server.stream_events import (
    NO_STORE,
    OPERATION_HEADER,
    build_costs,
    build_status,
    copy_answer,
    find_after,
    send_events,
    send_lost,
    send_received,
    wants_events,
)
from gateway.server.stream_tokens import ASKING_NODE, NODE_KEY, STREAM_TOKEN, make_token
from gateway.storage.nodes import list_nodes

_ID = re.compile(rf"{STREAM_PREFIX}([0-9a-f]{{24}})(?:\.([0-9a-f]{{16}}))?", re.ASCII)


async def get_stream(request: web.Request) -> web.StreamResponse:
    """``GET /v1/streams/{id}``: the events after ``after`` or ``Last-Event-ID``, or the description as JSON.

    A stream that ended with its process has one error event, which says so. Raises ``NotFound``, ``InvalidRequest``
    and, if the stream is at another node, the errors of ``pass_on``.
    """
    services, stream = request.app[SERVICES], _find_stream(request)
    if RESPONSE_AFTER in request.query and ASKING_NODE in request:
        return await _send_response_events(request)
    if stream is None:
        if (node := _find_other_node(request)) is not None:
            return await pass_on(request, node)
        return await _answer_interrupted(request, await _find_interrupted(request))
    if wants_events(request):
        return await send_events(request, stream, find_after(request))
    return web.json_response(build_status(stream, services.live_config.config.streams.keep_s), headers=NO_STORE)


async def _send_response_events(request: web.Request) -> web.StreamResponse:
    """Send the events of a background response to another node.

    Raises ``NotFound``, ``InvalidRequest``, ``ClientDisconnected``.
    """
    streams = request.app[SERVICES].open_streams.instance
    account_id = request[CALLER].account.id
    stream = None if streams is None else streams.find_response(request.match_info["id"], account_id)
    if stream is None:
        raise _make_not_found(request)
    return await send_response_events(request, stream, request.query[RESPONSE_AFTER])


async def delete_stream(request: web.Request) -> web.StreamResponse:
    """``DELETE /v1/streams/{id}``: cancel the request if it runs, and delete the events.

    Raises ``NotFound`` and, if the stream is at another node, the errors of ``pass_on``.
    """
    services, stream = request.app[SERVICES], _find_stream(request)
    if stream is None:
        if (node := _find_other_node(request)) is not None:
            return await pass_on(request, node)
        raise _make_not_found(request)
    if stream.request is not None:
        with suppress(Conflict):
            stream.request.cancel()
    streams = services.open_streams.instance
    if streams is not None:
        streams.forget(stream)
    return web.json_response({"id": stream.id, "object": "stream", "deleted": True}, headers=NO_STORE)


async def post_token(request: web.Request) -> web.StreamResponse:
    """``POST /v1/streams/{id}/token``: a token with which a browser reads or cancels this stream.

    Raises ``NotFound``, ``Forbidden`` if the request itself has such a token and, if the stream is at another node, the
    errors of ``pass_on``.
    """
    if STREAM_TOKEN in request:
        raise Forbidden("A token of a stream makes no other one", should_retry=False)
    stream = _find_stream(request)
    if stream is None:
        if (node := _find_other_node(request)) is not None:
            return await pass_on(request, node)
        raise _make_not_found(request)
    token, expires_s = make_token(request, stream.id)
    body = {"object": "stream.token", "token": token, "expires_at": build_time(expires_s)}
    return web.json_response(body, headers=NO_STORE)


_OK_STATUS = 200
_RESTART_MS = 60_000
"""How long after its regular end a node may start again, with the streams that its former process has handed over."""


def _find_stream(request: web.Request) -> ResumableStream | None:
    """Return the stream in the path; None if this process does not have it, or it is another key's."""
    streams = request.app[SERVICES].open_streams.instance
    return None if streams is None else streams.find(request.match_info["id"], request[CALLER].key.id)


def _find_other_node(request: web.Request) -> str | None:
    """Return the other node that has the stream in the path; None if there is none, or if another node asks."""
    match, own_node = _ID.fullmatch(request.match_info["id"]), request.app[SERVICES].active_requests.node
    if match is None or own_node is None or match[2] in {None, own_node} or ASKING_NODE in request:
        return None
    return match[2]


async def pass_on(request: web.Request, node: str) -> web.StreamResponse:
    """Pass on the answer of ``node``, which has the stream.

    Raises ``NotFound``, ``InvalidRequest`` if the number of the last event is malformed, ``ClientDisconnected``, and
    ``Overloaded`` if the node does not answer. But if such a node is dead or gone, a client that reads events gets an
    error event.
    """
    services, caller, stream_id = request.app[SERVICES], request[CALLER], request.match_info["id"]
    after = find_after(request) if request.method == "GET" and wants_events(request) else None
    suffix = "/token" if request.path.endswith("/token") else ""
    query = f"{NODE_KEY}={caller.key.id}" + ("" if after is None else f"&after={after}")
    path = f"/v1/streams/{stream_id}{suffix}?{query}"
    peers = services.admin.peers
    actor = Actor("token", scope=caller.account.id)
    answer = None if peers is None else await peers.open_path(node, request.method, path, actor)
    request_id = stream_id.partition(".")[0].replace(STREAM_PREFIX, ID_PREFIX)
    if answer is None:
        record = await _find_record(request)
        if after is None or not await _is_gone(services, node):
            raise Overloaded(f"The node {node} of the stream does not answer", retry_after_s=2)
        return await send_lost(request, after, request_id, "chat" if record is None else record.operation)
    async with answer:
        if after is None or answer.status != _OK_STATUS:
            return await copy_answer(answer)
        operation = answer.headers.get(OPERATION_HEADER, "")
        origin = (request_id, operation if operation in OPERATIONS else "chat")
        return await send_received(request, answer.content.iter_any(), after, origin)


async def _is_gone(services: Services, node_id: str) -> bool:
    """Return whether a node is dead or unknown, or has been gone for longer than a restart takes."""
    node = next((node for node in await list_nodes(services.storage.database) if node.id == node_id), None)
    return node is None or node.state == "dead" or (node.state == "gone" and node.beat_age_ms > _RESTART_MS)


async def _find_record(request: web.Request) -> RequestRecord | None:
    """Return the record of the stream's request; None if none is stored yet.

    Raises ``NotFound`` for a malformed id, and for the stream of another key.
    """
    match = _ID.fullmatch(request.match_info["id"])
    if match is None:
        raise _make_not_found(request)
    stored_request = await request.app[SERVICES].admin.request_log.find_request(f"{ID_PREFIX}{match[1]}")
    if stored_request is not None and stored_request.row.key_id != request[CALLER].key.id:
        raise _make_not_found(request)
    return None if stored_request is None else stored_request.row


async def _find_interrupted(request: web.Request) -> RequestRecord:
    """Return the record of a stream that ended with its process. Raises ``NotFound`` if there is none."""
    record = await _find_record(request)
    if record is None or record.outcome != "interrupted" or not record.stream:
        raise _make_not_found(request)
    return record


async def _answer_interrupted(request: web.Request, record: RequestRecord) -> web.StreamResponse:
    if wants_events(request):
        return await send_lost(request, find_after(request), record.id, record.operation)
    fields = {
        "id": request.match_info["id"],
        "object": "stream",
        "status": "failed",
        "model": record.model,
        "events": None,
        "request_id": record.id,
        "created_at": build_time(record.started_ms // 1000),
        "expires_at": None,
    }
    return web.json_response(fields | build_costs(record), headers=NO_STORE)


def _make_not_found(request: web.Request) -> NotFound:
    stream_id = request.match_info["id"][:64]
    return NotFound(f"There is no stream {stream_id!r}, or it is no longer kept", param="id", should_retry=False)
