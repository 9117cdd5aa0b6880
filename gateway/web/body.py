"""Reading a request's body: once, within bounds of size, type, encoding and time."""

from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from gateway.dialects.json_body import read_json_object
from gateway.domain.fault import InvalidRequest, RequestTimeout, RequestTooLarge, UnsupportedMediaType
from gateway.flow.sweep import Patience
from gateway.web.keys import ROOMS

BODY_TIMEOUT_S = 60.0
"""How long a caller may take to send a body; aiohttp itself would wait for ever."""
_ENCODINGS = frozenset({"", "identity", "gzip", "deflate"})


_JSON = "application/json"


async def read_json(request: web.Request) -> dict[str, Any]:
    """The JSON object of a request. Raises the fault of whatever is wrong with it."""
    headers = request.headers
    if headers.get("Content-Type") != _JSON:
        kind = request.content_type
        if kind != _JSON and not kind.endswith("+json"):
            raise UnsupportedMediaType(f"Content-Type must be application/json, not {kind}")
    if headers.get("Content-Encoding", "").strip().lower() not in _ENCODINGS:
        raise UnsupportedMediaType("Content-Encoding must be gzip, deflate or identity")
    return read_json_object(await _read_body(request))


async def _read_body(request: web.Request) -> bytes:
    try:
        if request.content.is_eof():  # the usual body came with its headers
            return await _read_pieces(request)
        with Patience(request.app[ROOMS].relay.sweep, BODY_TIMEOUT_S):
            return await _read_pieces(request)
    except TimeoutError:
        raise RequestTimeout(f"The request body did not arrive within {BODY_TIMEOUT_S:g} s") from None
    except (web.RequestPayloadError, HttpProcessingError):
        raise InvalidRequest("The request body is not framed or encoded as its headers say") from None


async def _read_pieces(request: web.Request) -> bytes:
    """What ``request.read()`` reads, which would let a compressed body unpack to three times what it may be."""
    limit, content = request.client_max_size, request.content
    piece = await content.readany()
    if content.at_eof() and len(piece) <= limit:
        return piece
    body = bytearray()
    while piece:
        body += piece
        if len(body) > limit:
            raise RequestTooLarge(f"The request body is larger than {limit // 1024**2} MB")
        piece = await content.readany()
    return bytes(body)
