"""Pictures that videos start from: brought in before anything is held or anybody is asked.

What came as a ``data:`` URL, and what has to be fetched for a provider that fetches nothing itself, waits on the disk
as an upload does: it is sent from there, and bounded there. A caller whose picture does not come takes nobody's place.
"""

import asyncio
import binascii
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from gateway.domain.image import MAX_IMAGE_BYTES
from gateway.domain.ip_address import is_public
from gateway.domain.media import sniff_image
from gateway.domain.upload import HEAD_BYTES, Upload
from gateway.domain.video import Reference
from gateway.errors import InvalidRequest, ProviderError
from gateway.storage.upload_spool import SpooledFile, SpoolQuota, UploadSpool
from gateway.upstream.interface import Fetcher, FileRequest
from gateway.upstream.safe_fetch import is_literal, may_be_public

FETCH_TIMEOUT_S = 15.0
_FIELD = "input_reference"
_STEP = 4 * 64 * 1024
"""Characters of base64 that are decoded at a time."""
_KINDS = {"image/png": "png", "image/jpeg": "jpg", "image/webp": "webp"}


class References:
    """Brings pictures in.

    Args:
        fetcher: the guarded way to addresses.
        spool: where they wait.
    """

    def __init__(self, fetcher: Fetcher, spool: UploadSpool) -> None:
        self._fetcher = fetcher
        self._spool = spool

    @asynccontextmanager
    async def bring_in(self, reference: Reference, account_id: int, *, fetch: bool) -> AsyncIterator[Reference]:
        """The same picture as it is to be sent, there until the end of the block.

        ``fetch``: an address is fetched; else it is the provider's to fetch, where it is a public one. Raises
        ``InvalidRequest``, ``RateLimited``, ``Overloaded``, ``StoreUnavailable``.
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
            if media_type not in _KINDS:
                raise _refuse("it is no PNG, JPEG or WebP file")
            yield Reference(Upload(_FIELD, f"reference.{_KINDS[media_type]}", media_type, head, file))
        finally:
            file.close()

    async def _fetch(self, reference: Reference, share: SpoolQuota, file: SpooledFile) -> bytes:
        ask = FileRequest(reference.url or "", trusted_origin=None, connect_s=FETCH_TIMEOUT_S, idle_s=FETCH_TIMEOUT_S)
        try:
            async with share.arrive(FETCH_TIMEOUT_S), asyncio.timeout(FETCH_TIMEOUT_S):
                found = await self._fetcher.open(ask)
                try:
                    head = b""
                    while piece := await found.read():
                        if file.size + len(piece) > MAX_IMAGE_BYTES:
                            raise _refuse(f"it is larger than {MAX_IMAGE_BYTES // 2**20} MB")
                        head += piece[: HEAD_BYTES - len(head)]
                        await file.write(piece)
                    return head
                finally:
                    found.close()
        except (ProviderError, TimeoutError):
            raise _refuse("it could not be fetched from its address") from None


async def _decode(reference: Reference, file: SpooledFile) -> bytes:
    """The picture of a ``data:`` URL. A step at a time: others have their turn in between."""
    data = (reference.url or "").partition(",")[2]
    if len(data) // 4 * 3 > MAX_IMAGE_BYTES:
        raise _refuse(f"it is larger than {MAX_IMAGE_BYTES // 2**20} MB")
    if len(data) % 4 or data.find("=", 0, -2) >= 0:
        raise _refuse("it is not valid base64")
    head = b""
    try:
        for start in range(0, len(data), _STEP):
            piece = binascii.a2b_base64(data[start : start + _STEP], strict_mode=True)
            head += piece[: HEAD_BYTES - len(head)]
            await file.write(piece)
            await asyncio.sleep(0)
    except ValueError:  # binascii's own is one; and what is not ASCII
        raise _refuse("it is not valid base64") from None
    return head


def _check_public(url: str) -> None:
    """Raise ``InvalidRequest`` where a provider would be sent to a place of its own network, or of the gateway's."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        host = ""
    if not (is_public(host) if is_literal(host) else may_be_public(host)):
        raise _refuse("its address is not a public one")


def _refuse(why: str) -> InvalidRequest:
    return InvalidRequest(f"'{_FIELD}' cannot be used: {why}", param=_FIELD)
