"""Watching: what becomes of a job whose turn it is to be looked at.

Only a provider's own word ends a job as failed. An answer that is none, a refusal, a silence say nothing of it: it is
asked after again, less often.
"""

from collections.abc import Callable, Mapping

import attrs
import structlog

from gateway.domain.media import Media
from gateway.domain.video import (
    CHANNEL_GONE,
    CONTENT_LOST,
    INTERRUPTED,
    LONGEST_HINT_S,
    SHORTEST_HINT_S,
    SUBMIT_UNKNOWN,
    TIMEOUT,
    VideoError,
    VideoJob,
    VideoState,
    find_failing_wait_s,
    find_wait_s,
)
from gateway.errors import GatewayError, ProviderBadResponse, ProviderContentGone, ProviderError, StoreUnavailable
from gateway.routing.target import Way
from gateway.videos.content import VideoContent
from gateway.videos.jobs import Videos
from gateway.videos.provider_api import PollResult

MOST_GONE = 20
"""In a row: so often a provider may say that the file of a finished job is not there (yet); about a quarter of an hour.
While a file is fetched, they are what ``VideoJob.polls`` counts."""
MOST_MISSED = 9
"""In a row: so often a job is looked for at a channel that is not there; about four minutes."""
_ABANDONED: Mapping[VideoState, VideoError] = {"created": INTERRUPTED, "submitting": SUBMIT_UNKNOWN}

log = structlog.stdlib.get_logger(__name__)


class VideoTracker:
    """Looks at jobs.

    Args:
        videos: where they are kept.
        footage: fetches what they made.
        expiry: Unix seconds, by which the deadlines of jobs pass that an earlier process has created.
    """

    def __init__(self, videos: Videos, video_content: VideoContent, expiry: Callable[[], float]) -> None:
        self._expiry = expiry
        self._opened_ms = videos.now_ms
        self._videos = videos
        self._video_content = video_content

    async def look(self, job: VideoJob) -> VideoJob | None:
        """A job that was claimed -> as it is to be on record, let go of; None where it has ended, and is.

        Raises ``StoreUnavailable``: then it is as it was.
        """
        abandoned = _ABANDONED.get(job.state)
        if abandoned is not None:  # whoever was at it is dead, or it would not have been claimed
            await self._videos.fail(job, abandoned)
            return None
        way = self._videos.filming.find_way(job)
        if way is None:
            return await self._miss(job)
        return await (self._fetch(way, job) if job.state == "fetching" else self._poll(way, job))

    async def _miss(self, job: VideoJob) -> VideoJob | None:
        """There is no channel. A slip in a file takes it away, too, while its provider works on: that can be mended."""
        if job.failures + 1 >= MOST_MISSED:
            await self._videos.fail(job, CHANNEL_GONE)
            return None
        return await self._put_off(job, ProviderBadResponse(CHANNEL_GONE.message), CHANNEL_GONE)

    async def _poll(self, way: Way, job: VideoJob) -> VideoJob | None:
        videos = self._videos
        try:
            polled = await videos.filming.poll(way, job)
        except ProviderError as fault:
            return await self._put_off(job, fault, TIMEOUT)
        take = polled.take
        if take.state == "failed":
            await videos.fail(job, take.error or VideoError("upstream_error", "The provider gave no reason"))
            return None
        if take.state == "completed":
            return await self._take_over(job, take.clue)
        if self._is_late(job):
            await videos.fail(job, TIMEOUT)
            return None
        return self._go_on(job, polled)

    def _go_on(self, job: VideoJob, polled: PollResult) -> VideoJob:
        now_ms, take = self._videos.now_ms, polled.take
        wait_s = polled.poll_after_s if polled.poll_after_s is not None else find_wait_s(job.polls + 1)
        after = job.go_on(take.progress, now_ms, polls=job.polls + 1, failures=0)
        if take.state == "processing" and job.state == "queued":
            after = after.move("processing", now_ms)
        return after.let_go(now_ms + self._scale(wait_s))

    async def _take_over(self, job: VideoJob, clue: str | None) -> VideoJob | None:
        """The provider has finished: its file is fetched, or passed through when somebody asks."""
        videos = self._videos
        job = attrs.evolve(job, clue=clue or job.clue, polls=0, failures=0)
        if not videos.rules.keep:
            await videos.complete(job)
            return None
        now_ms = videos.now_ms
        return job.move("fetching", now_ms).go_on(None, now_ms).let_go(now_ms)

    async def _fetch(self, way: Way, job: VideoJob) -> VideoJob | None:
        videos = self._videos
        try:
            media = await self._video_content.fetch(way, job)
        except ProviderContentGone as fault:
            if job.polls + 1 >= MOST_GONE:
                await videos.fail(job, CONTENT_LOST)
                return None
            return await self._put_off(attrs.evolve(job, polls=job.polls + 1), fault, CONTENT_LOST)
        except (ProviderError, StoreUnavailable) as fault:
            return await self._put_off(attrs.evolve(job, polls=0), fault, CONTENT_LOST)
        await self._complete(job, media)
        return None

    async def _complete(self, job: VideoJob, media: Media) -> None:
        done = attrs.evolve(job, media_id=media.id, media_bytes=media.size, media_type=media.media_type)
        try:
            finished = await self._videos.complete(done)
        except StoreUnavailable:
            await self._video_content.remove(media.id)
            raise
        if not finished:  # it was cancelled under our hands
            await self._video_content.remove(media.id)

    async def _put_off(self, job: VideoJob, fault: GatewayError, late: VideoError) -> VideoJob | None:
        """Nothing is known now. After the deadline that is for good."""
        videos = self._videos
        now_ms = videos.now_ms
        log.info(
            "video_not_heard_of",
            video_id=job.id,
            channel=job.channel,
            status=job.state,
            failures=job.failures + 1,
            error=fault.message,
        )
        if self._is_late(job):
            await videos.fail(job, late)
            return None
        provider_retry_after_s = fault.provider_retry_after_s if isinstance(fault, ProviderError) else None
        failures = job.failures + 1
        wait_s = (
            find_failing_wait_s(failures)
            if provider_retry_after_s is None
            else min(max(provider_retry_after_s, SHORTEST_HINT_S), LONGEST_HINT_S)
        )
        after = attrs.evolve(job, failures=failures, updated_ms=now_ms)
        return after.let_go(now_ms + self._scale(wait_s))

    def _is_late(self, job: VideoJob) -> bool:
        """Whether its deadline has passed by the clock that set it.

        ``expiry`` is behind the clock for a day if no record was written shortly before the start. A job of this
        process has its deadline from this process's clock, and would end so much later.
        """
        if job.created_ms >= self._opened_ms:
            return self._videos.now_ms >= job.deadline_ms
        return self._expiry() * 1000 >= job.deadline_ms

    def _scale(self, wait_s: float) -> int:
        return round(wait_s * 1000 * self._videos.pace)
