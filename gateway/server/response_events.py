"""The events of a background response, from any node: ``GET /v1/responses/{id}?stream=true&starting_after=17``."""

from collections.abc import Sequence
from urllib.parse import quote

import orjson
from aiohttp import web

from gateway.domain.audit_log import Actor
from gateway.errors import InvalidRequest
from gateway.formats.wire.sse import parse_data
from gateway.large_work import run_in_thread
from gateway.proxy.resumable_streams import ResumableStream
from gateway.proxy.stream_recorder import EventsLost
from gateway.server.context import CALLER, CONTEXT, SERVICES
from gateway.server.stream_events import copy_answer, send_events, send_received
from gateway.server.stream_tokens import NODE_KEY

STARTING_AFTER = "starting_after"
RESPONSE_AFTER = "response_after"
"""The query parameter with which a node asks another one for the events of a response; empty: for all of them."""
_MAX_DIGITS = 9
_OK_STATUS, _BAD_REQUEST_STATUS = 200, 400


def parse_sequence_number(text: str | None) -> int | None:
    """Return the ``sequence_number`` of the last event that the client has; None if it has none.

    Raises ``InvalidRequest``.
    """
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        raise InvalidRequest(f"'{STARTING_AFTER}' must be the sequence_number of an event", param=STARTING_AFTER)
    return int(text)


async def send_response_events(request: web.Request, stream: ResumableStream, text: str | None) -> web.StreamResponse:
    """Send the events after the one with the sequence number ``text``.

    Raises ``InvalidRequest``, ``ClientDisconnected``.
    """
    sequence = parse_sequence_number(text)
    after = 0 if sequence is None else await find_position(stream, sequence)
    return await send_events(request, stream, after, numbered=False, param=STARTING_AFTER)


async def find_position(stream: ResumableStream, sequence: int) -> int:
    """Return the number of events up to the one with this ``sequence_number``, the last that the client has.

    The gateway numbers events from 0 without a gap. A provider may begin at 1, leave out numbers, or number no event:
    events without any number are counted. Raises ``InvalidRequest`` if the stream has no event of this number, or of a
    later one.
    """
    recorder, position, last = stream.recorder, 0, -1
    try:
        if sequence < recorder.count and _find_number((await recorder.load(sequence))[0]) == sequence:
            return sequence + 1
        read_count = 0
        while read_count < recorder.count:
            events = await recorder.load(read_count)
            for offset, number in enumerate(await run_in_thread(_find_numbers, events)):
                if number is not None and number <= sequence:
                    position, last = read_count + offset + 1, max(last, number)
                elif number is not None:
                    return position
            read_count += len(events)
    except EventsLost:  # the disk has failed: the reader gets an error event when it comes there
        return position
    if last < 0:
        return sequence + 1
    if last < sequence:
        raise InvalidRequest(f"The last event so far has the sequence_number {last}", param=STARTING_AFTER)
    return position


def _find_numbers(events: Sequence[bytes]) -> list[int | None]:
    return list(map(_find_number, events))


def _find_number(event: bytes) -> int | None:
    try:
        data = orjson.loads(parse_data(event) or b"null")
    except ValueError:
        return None
    number = data.get("sequence_number") if isinstance(data, dict) else None
    return number if type(number) is int else None


async def pass_response_on(request: web.Request) -> web.StreamResponse | None:
    """Answer with the events of the response from the node that keeps them; return None if no node does.

    The response does not name its node, so all nodes are asked. If the node that keeps the events refuses the request's
    ``starting_after``, the answer is its refusal.

    Raises ``ClientDisconnected``, ``Overloaded``.
    """
    peers, caller, text = request.app[SERVICES].admin.peers, request[CALLER], request.query.get(STARTING_AFTER, "")
    if peers is None:
        return None
    path = f"/v1/streams/{quote(request.match_info['id'], safe='')}?{NODE_KEY}={caller.key.id}&{RESPONSE_AFTER}={text}"
    actor = Actor("token", scope=caller.account.id)
    async with peers.open_paths("GET", path, actor, _OK_STATUS) as answers:
        by_status = {answer.status: answer for answer in answers}
        if (kept_answer := by_status.get(_OK_STATUS)) is None:
            refusal = by_status.get(_BAD_REQUEST_STATUS)
            return None if refusal is None else await copy_answer(refusal)
        sequence, origin = parse_sequence_number(text), (request[CONTEXT].id, "responses")
        after = 0 if sequence is None else sequence + 1
        return await send_received(request, kept_answer.content.iter_any(), after, origin, numbered=False)
