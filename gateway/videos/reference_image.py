"""Loads the images that videos start from, before money is reserved or a provider is called.

An image from a ``data:`` URL, or fetched by the gateway for the provider, is spooled to disk like an upload.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from gateway.domain.image import MAX_IMAGE_BYTES
from gateway.domain.ip_address import is_public
from gateway.domain.media import sniff_image
from gateway.domain.upload import HEAD_BYTES, Upload
from gateway.domain.video import Reference
from gateway.errors import InvalidRequest, ProviderError
from gateway.media.base64_steps import decode_base64
from gateway.storage.upload_spool import SpooledFile, SpoolQuota, UploadSpool
from gateway.upstream.interface import FileRequest
from gateway.upstream.safe_fetch import SafeFetcher, is_literal, may_be_public

FETCH_TIMEOUT_S = 15.0
_FIELD = "input_reference"
_EXTENSIONS = {"image/png": "png", "image/jpeg": "jpg", "image/webp": "webp"}


class References:
    """Loads reference images.

    Args:
        fetcher: opens addresses that are public, or that the settings allow.
    """

    def __init__(self, fetcher: SafeFetcher, spool: UploadSpool) -> None:
        self._fetcher = fetcher
        self._spool = spool

    @asynccontextmanager
    async def load(self, reference: Reference, account_id: int, *, fetch: bool) -> AsyncIterator[Reference]:
        """Yield the image in the form that is sent to the provider. Its file exists until the block ends.

        The file counts in the spool's share of ``account_id``. Without ``fetch``, the provider fetches an address,
        which must be public. Raises ``InvalidRequest``, and the spool's ``RateLimited``, ``Overloaded`` and
        ``StoreUnavailable``.
        """
        if reference.upload is not None:
            yield reference
            return
        if reference.is_remote and not fetch:
            _check_public(reference.url or "")
            yield reference
            return
        share = self._spool.find_share(account_id)
        file = share.open()
        try:
            head = await (self._fetch(reference, share, file) if reference.is_remote else _decode(reference, file))
            media_type = sniff_image(head)
            if media_type not in _EXTENSIONS:
                raise _make_error("it is not a PNG, JPEG or WebP file")
            yield Reference(Upload(_FIELD, f"reference.{_EXTENSIONS[media_type]}", media_type, head, file))
        finally:
            file.close()

    async def _fetch(self, reference: Reference, share: SpoolQuota, file: SpooledFile) -> bytes:
        file_request = FileRequest(
            reference.url or "", trusted_origin=None, connect_s=FETCH_TIMEOUT_S, idle_s=FETCH_TIMEOUT_S
        )
        try:
            async with share.hold_slot(FETCH_TIMEOUT_S), asyncio.timeout(FETCH_TIMEOUT_S):
                response = await self._fetcher.open(file_request)
                try:
                    head = b""
                    while piece := await response.read():
                        if file.size + len(piece) > MAX_IMAGE_BYTES:
                            raise _make_error(f"it is larger than {MAX_IMAGE_BYTES // 2**20} MB")
                        head += piece[: HEAD_BYTES - len(head)]
                        await file.write(piece)
                    return head
                finally:
                    response.close()
        except (ProviderError, TimeoutError):
            raise _make_error("it could not be fetched from its address") from None


async def _decode(reference: Reference, file: SpooledFile) -> bytes:
    data = (reference.url or "").partition(",")[2]
    if len(data) // 4 * 3 > MAX_IMAGE_BYTES:
        raise _make_error(f"it is larger than {MAX_IMAGE_BYTES // 2**20} MB")
    head = b""
    try:
        async for piece in decode_base64(data):
            head += piece[: HEAD_BYTES - len(head)]
            await file.write(piece)
    except ValueError:
        raise _make_error("it is not valid base64") from None
    return head


def _check_public(url: str) -> None:
    """Raise ``InvalidRequest`` for an address in a private network: providers must not be sent there."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        host = ""
    if not (is_public(host) if is_literal(host) else may_be_public(host)):
        raise _make_error("its address is not public")


def _make_error(reason: str) -> InvalidRequest:
    return InvalidRequest(f"'{_FIELD}' cannot be used: {reason}", param=_FIELD)
