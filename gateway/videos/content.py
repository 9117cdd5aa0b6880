"""Video files: download and keep them, or pass them through from the provider."""

import asyncio
from collections.abc import Callable

import structlog

from gateway.domain.media import AnyMedia, UnknownMedia
from gateway.domain.video import VideoJob
from gateway.errors import (
    InvalidRequest,
    NotFound,
    ProviderBadResponse,
    ProviderContentGone,
    ProviderTimeout,
    StoreUnavailable,
)
from gateway.formats.videos.backend import Variant
from gateway.routing.target import ProviderAccess
from gateway.storage.media_store import MediaStore
from gateway.upstream.interface import FetchedFile, FileRefused
from gateway.videos.provider_api import VideoProviderApi

MAX_VIDEO_BYTES = 8 * 1024**3
MAX_FETCH_S = 3_600.0
RATE_WINDOW_S = 30.0
_VIDEO = "video/"
_NO_VARIANT_STATUSES = frozenset({400, 405, 406, 415, 422, 501})
"""Statuses with which servers answer if they do not have a variant."""
MIN_RATE = 32 * 1024
"""Bytes per second that a download must reach on average over ``RATE_WINDOW_S``."""

log = structlog.stdlib.get_logger(__name__)


class VideoContent:
    """Downloads, keeps and opens video files."""

    def __init__(self, store: MediaStore, provider_api: VideoProviderApi) -> None:
        self._store = store
        self._provider_api = provider_api

    def check_room(self) -> None:
        self._store.check_room()

    async def fetch(self, access: ProviderAccess, job: VideoJob) -> AnyMedia:
        """Download and store the whole video of a completed task; return the stored file.

        Raises ``ProviderError``, also for a video that is too large or arrives too slowly, and ``StoreUnavailable``.
        """
        file = await self._provider_api.open_with_retry(access, job, "video")
        if file is None:
            raise ProviderBadResponse("The provider does not say where the video is")
        try:
            media = await self._store_file(file)
        except UnknownMedia:
            raise ProviderBadResponse("What the provider gave for the video is none", phase="body") from None
        finally:
            file.close()
        if not media.media_type.startswith(_VIDEO):
            await self.remove(media.id)
            raise ProviderBadResponse("What the provider gave for the video is none", phase="body")
        return media

    async def _store_file(self, file: FetchedFile) -> AnyMedia:
        draft = self._store.open_draft()
        is_stored, rate = False, _DownloadRate(asyncio.get_running_loop().time)
        try:
            _check_size(file.length or 0)
            async with asyncio.timeout(MAX_FETCH_S):
                while piece := await file.read():
                    rate.add(len(piece))
                    await draft.write(piece)
            if file.length is not None and rate.size != file.length:
                raise ProviderBadResponse("The provider's video is incomplete", phase="body")
            media = await draft.keep()
            is_stored = True
        except TimeoutError:
            raise ProviderTimeout("The provider's video took too long to arrive", phase="body") from None
        finally:
            if not is_stored:
                draft.discard()
        return media

    async def find(self, job: VideoJob, variant: Variant) -> AnyMedia | None:
        if variant != "video" or job.media_id is None:
            return None
        return await self._store.find(job.media_id)

    async def open(self, job: VideoJob, variant: Variant, byte_range: str | None) -> FetchedFile:
        """Open the provider's file of a completed job, and read its headers.

        Raises ``NotFound`` if the file or its channel is gone, ``InvalidRequest`` if there is no such variant, and
        ``ProviderError``.
        """
        access = self._provider_api.find_access(job)
        if access is None:
            raise make_gone_error()
        missing_text = f"There is no {variant} of this video"
        try:
            file = await self._provider_api.open_with_retry(access, job, variant, byte_range)
        except ProviderContentGone:
            raise (
                make_gone_error() if variant == "video" else NotFound(missing_text, param="variant", should_retry=False)
            ) from None
        except FileRefused as error:
            if variant == "video" or error.answer_status not in _NO_VARIANT_STATUSES:
                raise
            file = None
        if file is None:
            raise InvalidRequest(missing_text, param="variant")
        return file

    async def remove(self, media_id: str) -> None:
        """Delete a kept file. If the store does not answer, the media cleanup deletes it later."""
        try:
            await self._store.remove(media_id)
        except StoreUnavailable as error:
            log.warning("media_not_removed", error=error.message)


def _check_size(size: int) -> None:
    if size > MAX_VIDEO_BYTES:
        raise ProviderContentGone("The provider's video is larger than the gateway keeps", phase="body")


class _DownloadRate:
    """Measures a download: a very slow one must not keep a place that others wait for."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._window_start_s = clock()
        self._window_start_size = 0
        self.size = 0

    def add(self, byte_count: int) -> None:
        """Count received bytes.

        Raises ``ProviderTimeout`` if they arrive too slowly, ``ProviderContentGone`` if there are too many.
        """
        self.size += byte_count
        _check_size(self.size)
        window_s = self._clock() - self._window_start_s
        if window_s >= RATE_WINDOW_S:
            if self.size - self._window_start_size < MIN_RATE * window_s:
                raise ProviderTimeout("The provider's video arrives too slowly", phase="body")
            self._window_start_s, self._window_start_size = self._clock(), self.size


def make_gone_error() -> NotFound:
    """Return the error for a video that no longer exists."""
    return NotFound("The video is not kept any more", param="video_id", should_retry=False)
