"""``GET /media/{id}``: files that the gateway stores for its clients. A signed URL grants access without a key.

Other handlers send files with ``build_file_response``.
"""

import asyncio
import io
import os
from collections.abc import Mapping
from functools import partial
from typing import IO, Any

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.web_request import BaseRequest

from gateway.domain.byte_range import PreconditionFailed
from gateway.domain.media import AnyMedia, Media, RemoteMedia
from gateway.errors import ClientDisconnected, InvalidRequest
from gateway.media.signed_links import make_not_found
from gateway.server.context import SERVICES
from gateway.server.remote_file import RemoteResponse, find_requested_range
from gateway.server.responses import await_reader

RESPONSE_TIMEOUT_S = 600.0
"""Time limit for sending a file, however slowly the client reads. The client can resume with ``Range``."""
_CHUNK_BYTES = 64 * 1024
"""Bytes of a file held in memory for each client."""
_SCRIPTABLE_TYPES = frozenset({"image/svg+xml"})
"""Media types that can contain scripts. They are sent as attachments, which browsers save instead of displaying."""
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Referrer-Policy": "no-referrer",
}
_CROSS_ORIGIN_HEADERS = {"Cross-Origin-Resource-Policy": "cross-origin"}
"""Pages of any origin may embed a file by its signed URL."""
_GONE_STATUSES = frozenset({403, 404})
_PARTIAL_STATUS = 206


async def get_media(request: web.Request, *, timeout_s: float = RESPONSE_TIMEOUT_S) -> web.StreamResponse:
    """Send the file, or a range of it.

    Raises ``NotFound`` if the URL or the file is not valid any more, and ``ClientDisconnected`` after ``timeout_s``.
    """
    check_dates(request)
    signed_links, query = request.app[SERVICES].media.signed_links, request.query
    expires = query.get("expires", "")
    media = await signed_links.find(request.match_info["id"], expires, query.get("signature", ""))
    headers = {
        "Cache-Control": f"private, max-age={signed_links.count_seconds_left(expires)}, immutable",
        **_CROSS_ORIGIN_HEADERS,
    }
    response = build_file_response(media, headers)
    try:
        async with asyncio.timeout(timeout_s):
            await response.prepare(request)
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ClientDisconnected from None
    return response


def check_dates(request: web.Request) -> None:
    """Raise ``InvalidRequest`` for a date with a number beyond a C long, which aiohttp fails to parse."""
    try:
        _ = request.if_modified_since, request.if_unmodified_since
    except OverflowError:
        raise InvalidRequest("A date in the request's headers is not valid") from None


def build_file_response(media: AnyMedia, headers: Mapping[str, str]) -> "FileResponse | RemoteResponse":
    """Return a response with the file, or a range of it, for the handler to prepare."""
    if isinstance(media, RemoteMedia):
        return RemoteResponse(media, {**_build_headers(media), **headers})
    return FileResponse(media, headers)


def _build_headers(media: AnyMedia) -> dict[str, str]:
    disposition = "attachment" if media.media_type in _SCRIPTABLE_TYPES else "inline"
    return {
        "Content-Type": media.media_type,
        "Content-Disposition": f'{disposition}; filename="{media.id}"',
        **_HEADERS,
    }


class FileResponse(web.FileResponse):
    """aiohttp's file response with the gateway's range handling and errors. A second ``prepare`` has no effect."""

    def __init__(self, media: Media, headers: Mapping[str, str]) -> None:
        super().__init__(media.path, chunk_size=_CHUNK_BYTES, headers={**_build_headers(media), **headers})
        self._opened_file: io.BufferedReader | None = None
        self._is_cancelled = False

    async def prepare(self, request: BaseRequest) -> AbstractStreamWriter | None:
        if self.prepared:
            return await web.StreamResponse.prepare(self, request)
        try:
            return await super().prepare(request)
        except asyncio.CancelledError:  # aiohttp leaks a file that a thread is just opening
            self._is_cancelled = True
            self._close_cancelled()
            raise

    def _make_response(self, request: BaseRequest, accept_encoding: str) -> Any:  # runs in a thread
        response_parts = super()._make_response(request, accept_encoding)
        self._opened_file = response_parts[1]
        self._close_cancelled()
        return response_parts

    def _close_cancelled(self) -> None:
        if self._is_cancelled and self._opened_file is not None:
            self._opened_file.close()

    async def _prepare_headers(self) -> None:
        if self.status in _GONE_STATUSES:  # the file was deleted after the lookup
            raise make_not_found()
        await super()._prepare_headers()

    async def _precondition_failed(self, request: BaseRequest) -> AbstractStreamWriter | None:  # noqa: ARG002
        raise PreconditionFailed

    async def _prepare_open_file(
        self, request: BaseRequest, fobj: io.BufferedReader, st: os.stat_result, file_encoding: str | None
    ) -> AbstractStreamWriter | None:
        # aiohttp answers 416 to a Range that must be ignored, also of HEAD, and supports no entity tag in If-Range.
        del file_encoding  # unused: the store has no compressed files
        size = st.st_size
        self.etag = f"{st.st_mtime_ns:x}-{size:x}"  # the same value as in aiohttp's checks of conditions
        self.last_modified = st.st_mtime
        self.headers["Accept-Ranges"] = "bytes"
        byte_range = find_requested_range(request, self.headers["ETag"], self.headers["Last-Modified"])
        start, stop = (0, size) if byte_range is None else byte_range.find(size)
        if byte_range is not None:
            self.set_status(_PARTIAL_STATUS)
            self.headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        self.content_length = stop - start
        if start == stop or request.method == "HEAD":
            return await web.StreamResponse.prepare(self, request)
        return await self._sendfile(request, fobj, start, stop - start)

    async def _sendfile(self, request: BaseRequest, fobj: IO[Any], offset: int, count: int) -> AbstractStreamWriter:
        # No ``sendfile``: uvloop has none, and asyncio's fails if the client disconnects and waits forever for a client
        # that does not read.
        writer, transport = await web.StreamResponse.prepare(self, request), request.transport
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, fobj.seek, offset)
        while count > 0:
            piece = await loop.run_in_executor(None, fobj.read, min(_CHUNK_BYTES, count))
            if writer is None or transport is None or not piece:
                raise ConnectionResetError("The response or the file has ended")
            await await_reader(partial(self.write, piece), transport)
            count -= len(piece)
        if writer is None:
            raise ConnectionResetError("The response has ended")
        return writer
