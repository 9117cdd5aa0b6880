"""Responses of ``safe_fetch.py``, read whole or streamed, and the translation of their errors."""

import asyncio
import contextlib
import errno
from collections.abc import Mapping
from typing import NoReturn

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError

from gateway.errors import ProviderBadResponse, ProviderContentGone, ProviderTimeout, ProxyRefused
from gateway.formats.errors.openai import describe_status
from gateway.frozen import frozen
from gateway.upstream.exhaustion import find_exhaustion
from gateway.upstream.interface import FileRefused, FileRequest

PIECE_BYTES = 64 * 1024
MAX_DISCARDED_BYTES = 4 * 1024
"""Bytes of a webhook's answer that are read and discarded: some receivers only finish after sending their answer."""
ANSWER_READ_TIMEOUT_S = 1.0

_OK_STATUS, _PARTIAL_STATUS, _UNSATISFIABLE_STATUS = 200, 206, 416
_GONE_STATUSES = frozenset({404, 410})
_PLAIN_ENCODINGS = frozenset({"", "identity"})
_DECODED_ENCODINGS = frozenset({"", "identity", "gzip", "deflate"})
LIBRARY_ERRORS = (aiohttp.ClientError, aiohttp.EofStream, HttpProcessingError, OSError, ValueError, RuntimeError)
"""Exceptions that aiohttp lets through. uvloop raises ``RuntimeError`` for some sockets, and so does a closed
session."""


@frozen
class FetchErrorTexts:
    """The error messages of one kind of fetch. They contain no address."""

    malformed: str
    forbidden: str
    slow: str
    untrusted: str
    unreachable: str
    garbled: str
    broken: str


FILE_TEXTS = FetchErrorTexts(
    malformed="The provider's link is not a plain http or https URL",
    forbidden="The provider's link leads to where the gateway fetches nothing from",
    slow="Fetching the provider's file took too long",
    untrusted="The TLS certificate or handshake of the server of the provider's file was not accepted",
    unreachable="The server of the provider's file could not be reached",
    garbled="The server of the provider's file does not speak valid HTTP",
    broken="The provider's file could not be fetched whole",
)
HOOK_TEXTS = FetchErrorTexts(
    malformed="The webhook's address is not a plain http or https URL",
    forbidden="The webhook's address is in a network that the gateway does not call",
    slow="The webhook's receiver took too long to answer",
    untrusted="The TLS certificate or handshake of the webhook's receiver was not accepted",
    unreachable="The webhook's receiver could not be reached",
    garbled="The webhook's receiver does not speak valid HTTP",
    broken="The webhook's receiver broke the connection",
)


class FetchProtocol(ResponseHandler):
    """aiohttp's connection, which also reports a broken chunk to the reader of the body."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        payload = self._payload
        if self._exception is not None and payload is not None and not payload.is_eof():
            payload.set_exception(aiohttp.ClientPayloadError("The body is not framed as its headers say"))


class SafeFetchResponse:
    """``FetchedFile`` over a response of aiohttp."""

    __slots__ = ("_idle_s", "_response")

    def __init__(self, response: aiohttp.ClientResponse, idle_s: float) -> None:
        self._response = response
        self._idle_s = idle_s

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    @property
    def length(self) -> int | None:
        """The bytes of the body; None if unknown, because a chunked body states only the length of each chunk."""
        return None if "Transfer-Encoding" in self._response.headers else self._response.content_length

    async def read(self) -> bytes:
        """Return the next piece, empty at the end of the file.

        If none comes within ``idle_s``, or the file breaks off, closes the file and raises ``ProviderError``.
        """
        try:
            async with asyncio.timeout(self._idle_s):
                return await self._response.content.read(PIECE_BYTES)
        except LIBRARY_ERRORS as error:
            self.close()
            raise_translated_error(error, FILE_TEXTS)

    def close(self) -> None:
        self._response.close()


def open_file(response: aiohttp.ClientResponse, file_request: FileRequest) -> SafeFetchResponse:
    """Return a file that is read as it arrives. An error does not close ``response``.

    Raises ``ProviderContentGone``, ``FileRefused``, ``ProviderBadResponse``. Any unrequested encoding is refused, even
    if it could be decoded: ranges and lengths would be wrong.
    """
    status = response.status
    if status in _GONE_STATUSES:
        raise ProviderContentGone("The provider says that the file is not there, or no more", phase="headers")
    if status != _OK_STATUS and (
        file_request.byte_range is None or status not in {_PARTIAL_STATUS, _UNSATISFIABLE_STATUS}
    ):
        raise FileRefused(status)
    _check_encoding(response, _PLAIN_ENCODINGS)
    return SafeFetchResponse(response, file_request.idle_s)


async def read_whole(response: aiohttp.ClientResponse, limit_bytes: int) -> bytes:
    """Return the body of a successful answer.

    Raises ``FileRefused``, ``ProviderBadResponse`` for more than ``limit_bytes`` or an unknown encoding, and
    ``LIBRARY_ERRORS``. For a compressed body, decoded bytes count.
    """
    if response.status != _OK_STATUS:
        raise FileRefused(response.status)
    _check_encoding(response, _DECODED_ENCODINGS)
    if (response.content_length or 0) > limit_bytes:
        raise ProviderBadResponse(f"The provider's file is larger than {limit_bytes} bytes", phase="headers")
    pieces: list[bytes] = []
    size = 0
    while piece := await response.content.readany():
        size += len(piece)
        if size > limit_bytes:
            raise ProviderBadResponse(f"The provider's file is larger than {limit_bytes} bytes", phase="body")
        pieces.append(piece)
    return b"".join(pieces)


async def discard_body(response: aiohttp.ClientResponse, timeout_s: float) -> None:
    """Read the body of a webhook's answer, up to a limit, and discard it. Errors are ignored."""
    room = MAX_DISCARDED_BYTES
    with contextlib.suppress(*LIBRARY_ERRORS):
        async with asyncio.timeout(min(timeout_s, ANSWER_READ_TIMEOUT_S)):
            while room > 0 and (piece := await response.content.read(room)):
                room -= len(piece)


def raise_translated_error(error: Exception, words: FetchErrorTexts, phase: str = "body") -> NoReturn:
    """Raise an aiohttp exception as a ``ProviderError``, with the original as its cause for the log."""
    if (resource_error := find_exhaustion(error)) is not None:
        raise resource_error
    if isinstance(error, TimeoutError):
        raise ProviderTimeout(words.slow, phase=phase) from error
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno == errno.EACCES:
        raise ProviderBadResponse(words.forbidden, phase="connect") from error
    if isinstance(error, aiohttp.ClientHttpProxyError):
        raise ProxyRefused(describe_status(error.status)) from error
    if isinstance(error, aiohttp.ClientSSLError):
        raise ProviderBadResponse(words.untrusted, phase="connect") from error
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.InvalidURL):
        raise ProviderBadResponse(words.unreachable, phase="connect") from error
    if isinstance(error, aiohttp.ClientResponseError | HttpProcessingError):
        raise ProviderBadResponse(words.garbled, phase="headers") from error
    raise ProviderBadResponse(words.broken, phase=phase) from error


def _check_encoding(response: aiohttp.ClientResponse, known_encodings: frozenset[str]) -> None:
    encodings = response.headers.getall("Content-Encoding", [])
    if len(encodings) > 1 or "".join(encodings).strip().lower() not in known_encodings:
        raise ProviderBadResponse("The provider's file is encoded in a way that was not asked for", phase="headers")
