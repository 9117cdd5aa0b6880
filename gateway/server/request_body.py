"""Read JSON bodies within limits of size, time, media type and encoding.

aiohttp delivers bodies still compressed (``server/protocol.py``): they are decompressed once the caller is known. Large
bodies are decompressed and parsed in a thread, which keeps the event loop free.
"""

import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from gateway.deadlines import Timeout
from gateway.errors import InvalidRequest, RequestTimeout, RequestTooLarge, UnsupportedMediaType
from gateway.formats.wire.json_values import parse_json_object
from gateway.large_work import MAX_ON_LOOP, run_in_thread
from gateway.memory_budget import Loan
from gateway.server.active_inference import INFERENCE
from gateway.server.context import ACTOR, CALLER, SERVICES
from gateway.server.media_type import read_media_type
from gateway.upstream.decompress import STEP_BYTES, Decompressor

if TYPE_CHECKING:  # only if bodies are kept
    from gateway.server.kept_exchange import KeptExchange

BODY_TIMEOUT_S = 60.0
"""Time limit for receiving a body; aiohttp itself would wait forever."""
_COMPRESSED_ENCODINGS = frozenset({"gzip", "deflate"})
_ENCODINGS = _COMPRESSED_ENCODINGS | {"", "identity"}
_JSON = "application/json"
_MAX_SHOWN_MEDIA_TYPE_CHARS = 64
_MAX_COMPRESSION_RATIO = 1032
"""Maximum expansion factor of deflate (zlib.net/zlib_tech.html)."""
_BODY_ERRORS = (web.RequestPayloadError, HttpProcessingError)


async def read_json(request: web.Request, *, exact: bool = False) -> dict[str, Any]:
    """Read and parse a request's JSON object. With ``exact``, numbers keep all digits. Raises ``GatewayError``."""
    return (await read_sized_json(request, request.client_max_size, exact=exact))[0]


async def read_sized_json(
    request: web.Request,
    limit: int,
    mention: bytes = b"\x00",
    *,
    exact: bool = True,
    exchange: "KeptExchange | None" = None,
) -> tuple[dict[str, Any], int, bool]:
    """Read a body of at most ``limit`` bytes, which ``exchange`` keeps.

    Return its JSON object, its size, and whether it contains ``mention``. Raises ``UnsupportedMediaType``,
    ``RequestTooLarge``, ``RequestTimeout``, ``InvalidRequest`` and, without memory to decompress it, ``Overloaded``.
    """
    encoding = _check_type(request)
    if encoding in _COMPRESSED_ENCODINGS and CALLER not in request and ACTOR not in request:
        raise UnsupportedMediaType("A request without a key must come without a Content-Encoding")
    body: bytes | bytearray = await _read_body(request, limit)
    if encoding in _COMPRESSED_ENCODINGS:
        body = await _unpack(bytes(body), encoding, limit, _open_loan(request))
    if exchange is not None:
        exchange.note_request(body)
    if len(body) <= MAX_ON_LOOP:
        return parse_json_object(bytes(body), exact=exact), len(body), mention in body
    fields, mentions = await run_in_thread(_read_large, body, mention, exact)
    return fields, len(body), mentions


def _read_large(body: bytes | bytearray, mention: bytes, exact: bool) -> tuple[dict[str, Any], bool]:
    return parse_json_object(bytes(body), exact=exact), mention in body


def read_arrived_json(
    request: web.Request, mention: bytes, exchange: "KeptExchange | None" = None
) -> tuple[dict[str, Any], bool] | None:
    """Parse a body that has arrived together with its headers; None if it is incomplete or compressed.

    ``exchange`` keeps the body. Return its JSON object, and whether the body contains ``mention``. Raises
    ``InvalidRequest``, ``RequestTooLarge``, ``UnsupportedMediaType``.
    """
    headers = request.headers
    is_plain_json = headers.get("Content-Type") == _JSON and "Content-Encoding" not in headers
    if not request.content.is_eof() or (not is_plain_json and _check_type(request) in _COMPRESSED_ENCODINGS):
        return None
    try:
        body = request.content.read_nowait()
    except _BODY_ERRORS:
        raise _make_body_error() from None
    if len(body) > request.client_max_size:
        raise _make_too_large(request.client_max_size)
    if exchange is not None:
        exchange.note_request(body)
    return parse_json_object(body, exact=True), body.find(mention) >= 0  # ``in`` raises and catches a TypeError first


def _check_type(request: web.Request) -> str:
    headers = request.headers
    if headers.get("Content-Type") != _JSON:
        kind = read_media_type(request)
        if kind != _JSON and not kind.endswith("+json"):
            raise UnsupportedMediaType(
                f"Content-Type must be application/json, not {kind[:_MAX_SHOWN_MEDIA_TYPE_CHARS]}"
            )
    encoding = headers.get("Content-Encoding")
    if encoding is None:
        return ""
    encoding = encoding.strip().lower()
    if encoding not in _ENCODINGS or len(headers.getall("Content-Encoding")) > 1:
        raise UnsupportedMediaType("Content-Encoding must be gzip, deflate or identity")
    return encoding


async def _read_body(request: web.Request, limit: int) -> bytearray:
    if (request.content_length or 0) > limit:
        raise _make_too_large(limit)
    try:
        with Timeout(request.app[SERVICES].proxy.timer, BODY_TIMEOUT_S):
            return await _read_pieces(request, limit)
    except TimeoutError:
        raise RequestTimeout(f"The request body did not arrive within {BODY_TIMEOUT_S:g} s") from None
    except _BODY_ERRORS:
        raise _make_body_error() from None


async def _read_pieces(request: web.Request, limit: int) -> bytearray:
    content = request.content
    body = bytearray()
    while piece := await content.readany():
        body += piece
        if len(body) > limit:
            raise _make_too_large(limit)
    return body


def _open_loan(request: web.Request) -> Loan:
    """Return the request's memory loan, since a few kilobytes may decompress to a body of the maximum size."""
    memory = request.app[SERVICES].memory
    return memory.lend(request[INFERENCE].context) if INFERENCE in request else Loan(memory)


async def _unpack(compressed: bytes, encoding: str, limit: int, loan: Loan) -> bytes:
    pieces, body = _inflate(compressed, encoding), bytearray()
    try:
        is_complete = len(compressed) <= MAX_ON_LOOP and _append(pieces, body, min(limit, MAX_ON_LOOP))
        if not is_complete and len(body) <= limit:
            max_bytes = min(limit, _MAX_COMPRESSION_RATIO * len(compressed), loan.room)
            loan.take(max_bytes, "The body")
            await run_in_thread(_append, pieces, body, limit)
            loan.release(max(max_bytes - len(body), 0))
    except zlib.error:
        raise _make_body_error() from None
    if len(body) > limit:
        raise _make_too_large(limit)
    return bytes(body)


def _inflate(compressed: bytes, encoding: str) -> Iterator[bytes]:
    """Yield the decompressed body, with at most ``STEP_BYTES`` of input and output per step."""
    decompressor = Decompressor(encoding)
    for start in range(0, len(compressed), STEP_BYTES):
        decompressor.feed(compressed[start : start + STEP_BYTES])
        while piece := decompressor.read_piece():
            yield piece
    decompressor.end()


def _append(pieces: Iterator[bytes], body: bytearray, max_bytes: int) -> bool:
    """Append ``pieces`` to ``body``. Return False as soon as ``body`` exceeds ``max_bytes``. Raises ``zlib.error``."""
    for piece in pieces:
        body += piece
        if len(body) > max_bytes:
            return False
    return True


def _make_too_large(limit: int) -> RequestTooLarge:
    return RequestTooLarge(f"The request body is larger than {limit // 1024**2} MB")


def _make_body_error() -> InvalidRequest:
    return InvalidRequest("The request body does not match its Content-Length, Transfer-Encoding or Content-Encoding")
