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
_BROKEN = (web.RequestPayloadError, HttpProcessingError)


async def read_json(request: web.Request) -> dict[str, Any]:
    """The JSON object of a request. Raises the fault of whatever is wrong with it."""
    _check_type(request)
    return read_json_object(await _read_body(request))


def read_arrived_json(request: web.Request) -> dict[str, Any]:
    """The same where the body came with its headers, as most do (``content.is_eof``): nothing is waited for."""
    _check_type(request)
    try:
        body = request.content.read_nowait()
    except _BROKEN:
        raise _make_broken() from None
    if len(body) > request.client_max_size:
        raise _make_too_large(request)
    return read_json_object(body)


def _check_type(request: web.Request) -> None:
    headers = request.headers
    if headers.get("Content-Type") != _JSON:
        kind = request.content_type
        if kind != _JSON and not kind.endswith("+json"):
            raise UnsupportedMediaType(f"Content-Type must be application/json, not {kind}")
    encoding = headers.get("Content-Encoding")
    if encoding is not None and encoding.strip().lower() not in _ENCODINGS:
        raise UnsupportedMediaType("Content-Encoding must be gzip, deflate or identity")


async def _read_body(request: web.Request) -> bytes:
    try:
        with Patience(request.app[ROOMS].relay.sweep, BODY_TIMEOUT_S):
            return await _read_pieces(request)
    except TimeoutError:
        raise RequestTimeout(f"The request body did not arrive within {BODY_TIMEOUT_S:g} s") from None
    except _BROKEN:
        raise _make_broken() from None


async def _read_pieces(request: web.Request) -> bytes:
    """What ``request.read()`` reads, which would let a compressed body unpack to three times what it may be."""
    limit, content = request.client_max_size, request.content
    body = bytearray()
    while piece := await content.readany():
        body += piece
        if len(body) > limit:
            raise _make_too_large(request)
    return bytes(body)


def _make_too_large(request: web.Request) -> RequestTooLarge:
    return RequestTooLarge(f"The request body is larger than {request.client_max_size // 1024**2} MB")


def _make_broken() -> InvalidRequest:
    return InvalidRequest("The request body is not framed or encoded as its headers say")
