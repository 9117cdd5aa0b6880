"""Reading a request's body: once, within bounds of size, type, encoding and time."""

import asyncio
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from gateway.dialects.json_body import read_json_object
from gateway.domain.fault import InvalidRequest, RequestTimeout, RequestTooLarge, UnsupportedMediaType

BODY_TIMEOUT_S = 60.0
"""How long a caller may take to send a body; aiohttp itself would wait for ever."""
_ENCODINGS = frozenset({"", "identity", "gzip", "deflate"})


async def read_json(request: web.Request) -> dict[str, Any]:
    """The JSON object of a request. Raises the fault of whatever is wrong with it."""
    kind = request.content_type
    if kind != "application/json" and not kind.endswith("+json"):
        raise UnsupportedMediaType(f"Content-Type must be application/json, not {kind}")
    if request.headers.get("Content-Encoding", "").strip().lower() not in _ENCODINGS:
        raise UnsupportedMediaType("Content-Encoding must be gzip, deflate or identity")
    return read_json_object(await _read_body(request))


async def _read_body(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await _read_pieces(request)
    except TimeoutError:
        raise RequestTimeout(f"The request body did not arrive within {BODY_TIMEOUT_S:g} s") from None
    except (web.RequestPayloadError, HttpProcessingError):
        raise InvalidRequest("The request body is not framed or encoded as its headers say") from None


async def _read_pieces(request: web.Request) -> bytes:
    """What ``request.read()`` reads, which would let a compressed body unpack to three times what it may be."""
    limit, body = request.client_max_size, bytearray()
    while piece := await request.content.readany():
        body += piece
        if len(body) > limit:
            raise RequestTooLarge(f"The request body is larger than {limit // 1024**2} MB")
    return bytes(body)
