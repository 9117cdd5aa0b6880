"""Serve a file from a bucket, piece by piece at the client's pace, with range and conditional requests.

Clients are not redirected to the bucket: it may have a private address, and its responses would lack the headers that
keep a browser from executing a file's content.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial

from aiohttp import ETag, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.web_request import BaseRequest

from gateway.domain.byte_range import ByteRange, PreconditionFailed, read_range
from gateway.domain.media import RemoteMedia
from gateway.errors import StoreUnavailable
from gateway.server.responses import await_reader
from gateway.storage.media_reading import REMOTE_PIECE_BYTES

_WRITE_BYTES = 64 * 1024
_PARTIAL_STATUS, _NOT_MODIFIED_STATUS = 206, 304
_ANY_TAG = "*"


def find_requested_range(
    request: BaseRequest, etag: str | None = None, last_modified: str | None = None
) -> ByteRange | None:
    """Return the requested range of a file; None for the whole file.

    Only GET supports ranges (RFC 9110, 14.2). ``If-Range`` must equal the file's entity tag or its date (13.1.5).
    """
    if request.method != "GET" or "Range" not in request.headers:
        return None
    condition = request.headers.get("If-Range")
    if condition is not None and condition.strip() not in {etag, last_modified}:
        return None
    return read_range(request.headers.getall("Range"))


class RemoteResponse(web.StreamResponse):
    """Serves a file from a bucket. The handler prepares it inside the middlewares, which convert its errors."""

    def __init__(self, media: RemoteMedia, headers: Mapping[str, str]) -> None:
        super().__init__(headers=headers)
        self._media = media

    async def prepare(self, request: BaseRequest) -> AbstractStreamWriter | None:
        """Send the file; a second call, as aiohttp makes, sends nothing.

        Raises ``GatewayError``, ``ConnectionError``.
        """
        if self.prepared:
            return await super().prepare(request)
        size = self._media.size
        stored_at = datetime.fromtimestamp(int(self._media.stored_s), UTC)
        self.etag = f"{int(self._media.stored_s):x}-{size:x}"  # objects are immutable: ids are not reused
        self.last_modified = stored_at
        self.headers["Accept-Ranges"] = "bytes"
        if is_current(request, self.etag, stored_at):
            self.set_status(_NOT_MODIFIED_STATUS)
            return await super().prepare(request)
        byte_range = find_requested_range(request, self.headers["ETag"], self.headers["Last-Modified"])
        start, stop = (0, size) if byte_range is None else byte_range.find(size)
        if byte_range is not None:
            self.set_status(_PARTIAL_STATUS)
            self.headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        self.content_length = stop - start
        if start == stop or request.method == "HEAD":
            return await super().prepare(request)
        return await self._send(request, start, stop)

    async def _send(self, request: BaseRequest, start: int, stop: int) -> AbstractStreamWriter | None:
        piece = await self._read(start, stop)  # read before the head is sent, while an error can still set the status
        writer, transport = await super().prepare(request), request.transport
        while True:
            view = memoryview(piece)
            for offset in range(0, len(view), _WRITE_BYTES):
                if transport is None:
                    raise ConnectionResetError("The response has ended")
                await await_reader(partial(self.write, view[offset : offset + _WRITE_BYTES]), transport)
            start += len(piece)
            if start >= stop:
                return writer
            try:
                piece = await self._read(start, stop)
            except StoreUnavailable as error:
                raise ConnectionResetError(error.message) from error

    async def _read(self, start: int, stop: int) -> bytes:
        piece = await self._media.read(start, min(start + REMOTE_PIECE_BYTES, stop))
        if not piece:
            raise StoreUnavailable("The file is shorter than it was", retry_after_s=5)
        return piece


def is_current(request: BaseRequest, etag: ETag | None, stored_at: datetime) -> bool:
    """Return whether the client's copy of the file is current (RFC 9110, 13.2.2). Raises ``PreconditionFailed``."""
    tag = etag.value if etag is not None else ""
    if request.if_match is not None:
        if not _matches_tag(request.if_match, tag, weak=False):
            raise PreconditionFailed
    elif request.if_unmodified_since is not None and stored_at > request.if_unmodified_since:
        raise PreconditionFailed
    if request.if_none_match is not None:
        return _matches_tag(request.if_none_match, tag, weak=True)
    return request.if_modified_since is not None and stored_at <= request.if_modified_since


def _matches_tag(tags: tuple[ETag, ...], value: str, *, weak: bool) -> bool:
    return any(tag.value == _ANY_TAG or (tag.value == value and (weak or not tag.is_weak)) for tag in tags)
