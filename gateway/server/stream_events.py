"""Send events of kept streams, from this process or another node, with numbers (``id: 17``); describe streams."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

from aiohttp import ClientError, ClientResponse, web

from gateway.domain.account_spec import build_time
from gateway.domain.operation import Operation
from gateway.domain.price import usd
from gateway.domain.request_log import RequestRecord
from gateway.errors import GatewayError, InvalidRequest, Overloaded
from gateway.formats.errors.body import build_error_event
from gateway.formats.wire.sse import KEEPALIVE, EventTooLong, SseSplitter, parse_data
from gateway.proxy.resumable_streams import ResumableStream
from gateway.proxy.stream import EVENT_STREAM_TYPE, KEEPALIVE_AFTER_S
from gateway.proxy.stream_recorder import EventsLost, StreamReader
from gateway.server.context import CONTEXT, SERVICES
from gateway.server.error_responses import add_doc_url
from gateway.server.responses import EventStreamResponse
from gateway.server.stream_tokens import ASKING_NODE

LAST_EVENT_HEADER = "Last-Event-ID"
OPERATION_HEADER = "x-node-operation"
"""Tells another node of the cluster in which API format an error event has to be."""
NO_STORE = {"Cache-Control": "no-store"}
_MAX_DIGITS = 9
_MAX_ANSWER_BYTES = 64 * 1024
_LINE_ENDS = b"\r\n"


class StreamInterrupted(GatewayError):
    """The events of a stream after some number do not exist, or are not kept."""

    code = "stream_interrupted"

    def __init__(self, message: str) -> None:
        super().__init__(message, should_retry=False)


def wants_events(request: web.Request) -> bool:
    """Return whether the client wants the events, and not the description of the stream."""
    query, headers = request.query, request.headers
    return (
        "text/event-stream" in headers.get("Accept", "")
        or query.get("stream") == "true"
        or "after" in query
        or LAST_EVENT_HEADER in headers
    )


def find_after(request: web.Request) -> int:
    """Return the number of the last event that the client has: 0 if it has none. Raises ``InvalidRequest``.

    ``Last-Event-ID`` precedes ``after``, because a browser that connects again repeats the address unchanged.
    """
    header = request.headers.get(LAST_EVENT_HEADER, "").strip()
    text, param = (header, LAST_EVENT_HEADER) if header else (request.query.get("after", "0"), "after")
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        raise InvalidRequest(f"'{param}' must be the number of an event", param=param)
    return int(text)


async def send_events(
    request: web.Request, stream: ResumableStream, after: int, *, numbered: bool = True, param: str = "after"
) -> web.StreamResponse:
    """Send the events after number ``after``: what is there at once, then each as it comes, to the end of the stream.

    Where events are lost, or were never kept, the stream ends with an error event. Without ``numbered``, the events
    have no ``id`` lines. Raises ``ClientDisconnected``, and ``InvalidRequest`` with the name ``param`` if the stream
    has no such event.
    """
    recorder = stream.recorder
    if after > recorder.count:
        if recorder.is_full:  # the first client has received more than is kept
            return await send_lost(request, after, stream.request_id, stream.operation)
        raise InvalidRequest(f"The stream has {recorder.count} events so far", param=param)
    drain, last_event = request.app[SERVICES].drain, b""
    response = EventStreamResponse(request)
    reader = recorder.open_reader(after)
    drain.active_count += 1  # a shutdown lets readers come to the end
    try:
        with stream.hold():
            if ASKING_NODE in request:
                ctx = request[CONTEXT]
                ctx.headers = {**(ctx.headers or {}), OPERATION_HEADER: stream.operation}
            response.open(EVENT_STREAM_TYPE, b"")
            try:
                while events := await _read(reader, response):
                    first = reader.position - len(events) + 1
                    if response.write(number_events(events, first) if numbered else b"".join(events)):
                        await response.drain()
            except EventsLost:
                last_event = build_lost_event(request, reader.position, stream.request_id, stream.operation)
            await response.finish(last_event)
    finally:
        drain.active_count -= 1
    return response.response


async def send_received(
    request: web.Request, received: AsyncIterator[bytes], after: int, origin: tuple[str, str], *, numbered: bool = True
) -> web.StreamResponse:
    """Send the events that another node sends, whole ones only, to the end of the stream.

    If the node is lost, the stream ends with one error event. ``after``: the number of the last event that the client
    has. ``origin``: id and operation of the stream's request.
    Raises ``ClientDisconnected``.
    """
    drain, splitter = request.app[SERVICES].drain, SseSplitter()
    response, last_event = EventStreamResponse(request), b""
    drain.active_count += 1
    try:
        response.open(EVENT_STREAM_TYPE, b"")
        try:
            async for data in received:
                events = splitter.split(data)
                after = _find_number(events, after) if numbered else after + len(list(filter(parse_data, events)))
                if response.write(b"".join(events)):
                    await response.drain()
        except (OSError, ClientError, EventTooLong):
            last_event = build_lost_event(request, after, *origin)
        await response.finish(last_event)
    finally:
        drain.active_count -= 1
    return response.response


async def copy_answer(answer: ClientResponse) -> web.Response:
    """Return the answer of another node, which is JSON. Raises ``Overloaded`` for one that is too long."""
    body = b""
    async for piece in answer.content.iter_any():
        body += piece
        if len(body) > _MAX_ANSWER_BYTES:
            raise Overloaded("The node of the stream does not answer", retry_after_s=2)
    return web.Response(body=body, status=answer.status, content_type="application/json", headers=NO_STORE)


def _find_number(events: Sequence[bytes], before: int) -> int:
    """Return the number of the last numbered event in ``events``; ``before`` if there is none."""
    for event in reversed(events):
        if event.startswith(b"id: "):
            return int(event[4 : event.index(b"\n")])
    return before


async def send_lost(request: web.Request, after: int, request_id: str, operation: str) -> web.StreamResponse:
    """Send a stream of one error event: nothing after number ``after`` exists any more."""
    response = EventStreamResponse(request)
    response.open(EVENT_STREAM_TYPE, build_lost_event(request, after, request_id, operation))
    await response.finish(b"")
    return response.response


def build_lost_event(request: web.Request, after: int, request_id: str, operation: str) -> bytes:
    """Return the error event that ends a stream of which nothing after number ``after`` is left."""
    error = StreamInterrupted(f"The stream was interrupted after event {after}; what follows it is lost")
    add_doc_url(error, request)
    return build_error_event(error, request_id, cast("Operation", operation))


async def _read(reader: StreamReader, response: EventStreamResponse) -> Sequence[bytes]:
    while not reader.has_next:
        try:
            async with asyncio.timeout(KEEPALIVE_AFTER_S):
                return await reader.read()
        except TimeoutError:
            response.write(KEEPALIVE)
    return await reader.read()


def number_events(events: Sequence[bytes], first: int) -> bytes:
    """Return ``events``, each with an ``id`` line in place of the provider's. The first has the number ``first``."""
    pieces = list[bytes]()
    for number, event in enumerate(events, first):
        # A blank line after the ``id`` line would end an event of its own.
        lines = event.lstrip(_LINE_ENDS) if event[0] in _LINE_ENDS else event
        pieces += (b"id: %d\n" % number, _remove_id(lines) if b"id:" in lines else lines)
    return b"".join(pieces)


def _remove_id(event: bytes) -> bytes:
    lines = event.splitlines(keepends=True)
    return b"".join(line for line in lines if not line.startswith(b"id:"))


def build_status(stream: ResumableStream, keep_s: int) -> dict[str, Any]:
    """Return the description of a stream as JSON."""
    record = stream.settled_record
    fields = {
        "id": stream.id,
        "object": "stream",
        "status": "in_progress" if record is None else find_status(record),
        "model": stream.model,
        "events": stream.recorder.count,
        "request_id": stream.request_id,
        "created_at": build_time(stream.started_ms // 1000),
        "expires_at": None if record is None else build_time(record.settled_ms // 1000 + keep_s),
    }
    return fields | build_costs(record)


def find_status(record: RequestRecord) -> str:
    """Return the status of a stream that has ended: completed, cancelled or failed."""
    return "completed" if record.outcome == "completed" else "cancelled" if record.outcome == "cancelled" else "failed"


def build_costs(record: RequestRecord | None) -> dict[str, Any]:
    """Return usage and cost as JSON; both null before the end, the cost also if the model has no price."""
    if record is None:
        return {"usage": None, "cost_usd": None}
    usage = {
        "prompt_tokens": record.prompt_tokens,
        "completion_tokens": record.completion_tokens,
        "total_tokens": record.prompt_tokens + record.completion_tokens,
    }
    return {"usage": usage, "cost_usd": None if record.unpriced else float(usd(record.cost_nanos))}
