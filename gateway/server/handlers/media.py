"""``GET /media/{id}``: what the gateway keeps for its callers. The signed link is the key to it."""

import asyncio
import io
import os
from collections.abc import Mapping
from functools import partial
from typing import IO, Any

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.web_request import BaseRequest

from gateway.domain.byte_range import ByteRange, PreconditionFailed, read_range
from gateway.domain.media import MEDIA_PATH, Media
from gateway.errors import ClientDisconnected, InvalidRequest
from gateway.media.signed_links import make_not_found
from gateway.server.context import SERVICES
from gateway.server.responses import await_reader

RESPONSE_TIMEOUT_S = 600.0
"""For the whole of a file, however slowly it is read; with ``Range`` a reader goes on where it was cut off."""
_CHUNK_BYTES = 64 * 1024
"""Of a file in memory at a time, for each reader."""
_ACTIVE = frozenset({"image/svg+xml"})
"""What can hold a script: it is saved, not shown."""
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Referrer-Policy": "no-referrer",
}
_OPEN = {"Cross-Origin-Resource-Policy": "cross-origin"}
"""A link is its own key: whoever was given it may show what it leads to."""
_GONE = frozenset({403, 404})
_PARTIAL = 206


def add_media_routes(app: web.Application) -> None:
    """Add ``GET`` and ``HEAD`` of a media file."""
    app.router.add_get(f"{MEDIA_PATH}/{{id}}", get_media)


async def get_media(request: web.Request, *, timeout_s: float = RESPONSE_TIMEOUT_S) -> web.StreamResponse:
    """The file, or a range of it. Raises ``NotFound``, ``StoreUnavailable``, ``InvalidRequest``."""
    check_dates(request)
    keeper, query = request.app[SERVICES].media.signed_links, request.query
    expires = query.get("expires", "")
    media = await keeper.find(request.match_info["id"], expires, query.get("signature", ""))
    headers = {"Cache-Control": f"private, max-age={keeper.count_seconds_left(expires)}, immutable", **_OPEN}
    response = FileResponse(media, headers)
    try:
        async with asyncio.timeout(timeout_s):
            await response.prepare(request)
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ClientDisconnected from None
    return response


def check_dates(request: web.Request) -> None:
    """Raise ``InvalidRequest`` where aiohttp would stumble: over a date with a number that no C long holds."""
    try:
        _ = request.if_modified_since, request.if_unmodified_since
    except OverflowError:
        raise InvalidRequest("A date in the request's headers is none") from None


def find_wanted(request: BaseRequest, etag: str | None = None, modified: str | None = None) -> ByteRange | None:
    """The range of a file that a request asks for; None: the whole file.

    Only GET has ranges (RFC 9110, 14.2). ``If-Range`` must be the file's own entity tag, or exactly its date (13.1.5).
    """
    if request.method != "GET" or "Range" not in request.headers:
        return None
    condition = request.headers.get("If-Range")
    if condition is not None and condition.strip() not in {etag, modified}:
        return None
    return read_range(request.headers.getall("Range"))


class FileResponse(web.FileResponse):
    """aiohttp's, which knows conditions, with what it leaves open.

    It is prepared before it is returned, inside the middlewares, and again by aiohttp afterwards; so a file that is
    gone, a range that it does not have and a condition that fails are faults as any other.
    """

    def __init__(self, media: Media, headers: Mapping[str, str]) -> None:
        disposition = "attachment" if media.media_type in _ACTIVE else "inline"
        ours = {
            "Content-Type": media.media_type,
            "Content-Disposition": f'{disposition}; filename="{media.id}"',
            **_HEADERS,
        }
        super().__init__(media.path, chunk_size=_CHUNK_BYTES, headers={**ours, **headers})

    async def prepare(self, request: BaseRequest) -> AbstractStreamWriter | None:
        """Send it; once. Raises ``NotFound``, ``RangeNotSatisfiable``, ``PreconditionFailed``."""
        return await (web.StreamResponse.prepare(self, request) if self.prepared else super().prepare(request))

    async def _prepare_headers(self) -> None:
        if self.status in _GONE:  # swept since it was found
            raise make_not_found()
        await super()._prepare_headers()

    async def _precondition_failed(self, request: BaseRequest) -> AbstractStreamWriter | None:  # noqa: ARG002
        raise PreconditionFailed

    async def _prepare_open_file(
        self, request: BaseRequest, fobj: io.BufferedReader, st: os.stat_result, file_encoding: str | None
    ) -> AbstractStreamWriter | None:
        # aiohttp answers 416 to a Range that is to be ignored, to HEAD too, and knows no entity tag in If-Range.
        del file_encoding  # the store has no compressed files
        size = st.st_size
        self.etag = f"{st.st_mtime_ns:x}-{size:x}"  # as aiohttp's conditions have it
        self.last_modified = st.st_mtime
        self.headers["Accept-Ranges"] = "bytes"
        wanted = find_wanted(request, self.headers["ETag"], self.headers["Last-Modified"])
        start, stop = (0, size) if wanted is None else wanted.find(size)
        if wanted is not None:
            self.set_status(_PARTIAL)
            self.headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        self.content_length = stop - start
        if start == stop or request.method == "HEAD":
            return await web.StreamResponse.prepare(self, request)
        return await self._sendfile(request, fobj, start, stop - start)

    async def _sendfile(self, request: BaseRequest, fobj: IO[Any], offset: int, count: int) -> AbstractStreamWriter:
        # Not the kernel's: uvloop has none, and on the standard loop it fails in its own way where a reader leaves.
        # And its way out of that waits for ever for a reader who does not read.
        writer, transport = await web.StreamResponse.prepare(self, request), request.transport
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, fobj.seek, offset)
        while count > 0:
            piece = await loop.run_in_executor(None, fobj.read, min(_CHUNK_BYTES, count))
            if writer is None or transport is None or not piece:
                raise ConnectionResetError("The answer has ended, or the file")
            await await_reader(partial(self.write, piece), transport)
            count -= len(piece)
        if writer is None:
            raise ConnectionResetError("The answer has ended")
        return writer
