"""The demo's responses: JSON, and streams of events."""

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping

import orjson
from aiohttp import hdrs, web

from gateway.demo.requests import Json, RequestError

EVENT_STREAM: Mapping[str, str] = {
    hdrs.CONTENT_TYPE: "text/event-stream; charset=utf-8",
    hdrs.CACHE_CONTROL: "no-cache",
}


async def parse_json(request: web.Request) -> object:
    """Parse a JSON body of any type. Raises ``RequestError``."""
    try:
        body: object = orjson.loads(await request.read())
    except orjson.JSONDecodeError as error:
        raise RequestError(f"The request body is not valid JSON: {error}.") from error
    return body


def build_reply(body: Json, *, status: int = 200) -> web.Response:
    """Return a response with a JSON body."""
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")


def build_event(event: Json, *, has_name: bool = False) -> bytes:
    """Serialize an event. ``has_name`` adds an ``event`` line with its type."""
    name = b"event: " + event["type"].encode() + b"\n" if has_name else b""
    return name + b"data: " + orjson.dumps(event) + b"\n\n"


async def pass_events(events: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Make ``events`` asynchronous, for ``send_pieces``."""
    for event in events:
        yield event


async def send_pieces(
    request: web.Request, pieces: AsyncIterable[bytes], *, headers: Mapping[str, str], pace_s: float
) -> web.StreamResponse:
    """Respond piece by piece, with a pause after each. An error before the first piece becomes an ordinary response."""
    response = web.StreamResponse(headers=headers)
    with contextlib.suppress(ConnectionResetError):  # the client has disconnected
        async for piece in pieces:
            if not response.prepared:
                await response.prepare(request)
            await response.write(piece)
            await asyncio.sleep(pace_s)
    return response
