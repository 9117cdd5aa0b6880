"""Footage: the files of videos, fetched once and kept, or passed through."""

import structlog

from gateway.dialects.filming import Variant
from gateway.domain.fault import (
    ContentGone,
    InvalidRequest,
    NotFound,
    StoreUnavailable,
    UpstreamError,
)
from gateway.domain.media import Media, MediaStore, UnknownMedia
from gateway.domain.video import VideoJob
from gateway.flow.attempt import Way
from gateway.flow.filming import Filming
from gateway.upstream.port import OpenFile

MAX_VIDEO_BYTES = 8 * 1024**3

log = structlog.stdlib.get_logger(__name__)


class Footage:
    """Keeps videos.

    Args:
        store: where they are kept.
        filming: asks providers for them.
    """

    def __init__(self, store: MediaStore, filming: Filming) -> None:
        self._store = store
        self._filming = filming

    def check_room(self) -> None:
        """Raise ``StoreUnavailable`` where the disk has no room for another video."""
        self._store.check_room()

    async def fetch(self, way: Way, job: VideoJob) -> Media:
        """The video of a job whose provider has finished it, kept, and whole.

        Raises ``ContentGone``, another ``UpstreamFault``, ``StoreUnavailable``; then nothing is kept.
        """
        file = await self._filming.open_anew(way, job, "video")
        if file is None:
            raise UpstreamError("The provider does not say where the video is")
        try:
            media = await self._keep(file)
        finally:
            file.close()
        if not media.media_type.startswith("video/"):
            await self.remove(media.id)
            raise UpstreamError("What the provider gave for the video is none", phase="body")
        return media

    async def _keep(self, file: OpenFile) -> Media:
        draft = self._store.open_draft()
        kept, size = False, 0
        try:
            _check_size(file.length or 0)
            while piece := await file.read():
                size += len(piece)
                _check_size(size)
                await draft.write(piece)
            if file.length is not None and size != file.length:
                raise UpstreamError("The provider's video did not arrive whole", phase="body")
            media = await draft.keep()
            kept = True
        except UnknownMedia:
            raise UpstreamError("What the provider gave for the video is none", phase="body") from None
        finally:
            if not kept:
                draft.discard()
        return media

    async def open(self, job: VideoJob, variant: Variant, wanted: str | None) -> Media | OpenFile:
        """What is there of a completed job: the file that is kept, or the provider's own at its headers.

        Raises ``NotFound`` where it is gone, ``InvalidRequest`` naming a variant that there is not, an
        ``UpstreamFault``, ``StoreUnavailable``.
        """
        if variant == "video" and job.media_id is not None:
            media = await self._store.find(job.media_id)
            if media is not None:
                return media
        way = self._filming.find_way(job)
        if way is None:
            raise make_gone()
        try:
            file = await self._filming.open_anew(way, job, variant, wanted)
        except ContentGone:
            raise make_gone() from None
        if file is None:
            raise InvalidRequest(f"There is no {variant} of this video", param="variant")
        return file

    async def remove(self, media_id: str) -> None:
        """A file is wanted no more. Never raises: the sweep takes what is left."""
        try:
            await self._store.remove(media_id)
        except StoreUnavailable as fault:
            log.warning("media_not_removed", error=fault.message)


def _check_size(size: int) -> None:
    if size > MAX_VIDEO_BYTES:
        raise UpstreamError("The provider's video is larger than any that is kept", phase="body")


def make_gone() -> NotFound:
    """The answer for a video that was there."""
    return NotFound("The video is not kept any more", param="video_id", should_retry=False)
