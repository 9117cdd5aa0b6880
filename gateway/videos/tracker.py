"""Checks one video job: polls its provider or downloads its file, and decides the next step.

After a refusal or a timeout the job is polled again, less often. It ends as failed if the provider reports a failure,
after ``MAX_UNUSABLE_ANSWERS`` unusable answers or ``MAX_GONE_REPORTS`` reports of a missing file in a row, if its
channel stays missing, or at its deadline.
"""

from collections.abc import Callable, Mapping

import attrs
import structlog

from gateway.domain.media import AnyMedia
from gateway.domain.video import (
    ANSWER_UNUSABLE_CODE,
    CHANNEL_GONE_ERROR,
    CONTENT_LOST_ERROR,
    INTERRUPTED_ERROR,
    MAX_HINT_S,
    MIN_HINT_S,
    SUBMIT_UNKNOWN_ERROR,
    TIMEOUT_ERROR,
    VideoError,
    VideoJob,
    VideoState,
    compute_wait_s,
    find_failing_wait_s,
)
from gateway.errors import (
    GatewayError,
    ProviderAnswerUnusable,
    ProviderBadResponse,
    ProviderContentGone,
    ProviderError,
    StoreUnavailable,
)
from gateway.formats.errors.openai import NO_REASON
from gateway.routing.target import ProviderAccess
from gateway.videos.content import VideoContent
from gateway.videos.jobs import VideoJobs
from gateway.videos.provider_api import PollResult

MAX_GONE_REPORTS = 20
"""Consecutive reports of a provider that the file of a completed job is missing: about a quarter of an hour. While a
file is being fetched, ``VideoJob.polls`` counts these reports."""
MAX_UNUSABLE_ANSWERS = 5
"""Consecutive unusable answers. The provider does answer, so an outage is not the reason."""
MAX_COUNTED_JOBS = 1_000
"""Maximum of jobs whose unusable answers are counted."""
MAX_MISSED_CHECKS = 9
"""Consecutive checks at which a job's channel may be missing: about four minutes."""
_ABANDONED_ERRORS: Mapping[VideoState, VideoError] = {"created": INTERRUPTED_ERROR, "submitting": SUBMIT_UNKNOWN_ERROR}

log = structlog.stdlib.get_logger(__name__)


class VideoTracker:
    """Checks video jobs.

    Args:
        expiry_clock: the clock (Unix seconds) for deadlines that an earlier process has set.
    """

    def __init__(self, jobs: VideoJobs, video_content: VideoContent, expiry_clock: Callable[[], float]) -> None:
        self._expiry_clock = expiry_clock
        self._started_ms = jobs.now_ms
        self._jobs = jobs
        self._video_content = video_content
        self._unusable_answers: dict[str, int] = {}
        """Consecutive unusable answers, by job. A restart of the gateway resets them."""

    async def check(self, job: VideoJob) -> VideoJob | None:
        """Check a claimed job. Return the released job to store; None if its end is already stored."""
        end_error = _ABANDONED_ERRORS.get(job.state)
        if end_error is not None:  # its process is dead, otherwise the job could not have been claimed
            await self._jobs.fail(job, end_error)
            return None
        access = self._jobs.provider_api.find_access(job)
        if access is None:
            return await self._postpone_without_channel(job)
        try:
            new_job = await (self._fetch(access, job) if job.state == "fetching" else self._poll(access, job))
        except ProviderAnswerUnusable as error:
            return await self._count_unusable(job, error)
        self._unusable_answers.pop(job.id, None)
        return new_job

    async def _count_unusable(self, job: VideoJob, error: ProviderAnswerUnusable) -> VideoJob | None:
        """Return the job, postponed after an unusable answer; None if the job has ended.

        ``MAX_UNUSABLE_ANSWERS`` such answers in a row end the job.
        """
        count = self._unusable_answers.pop(job.id, 0) + 1
        if count >= MAX_UNUSABLE_ANSWERS:
            message = f"The provider answered {count} times without a usable status; the last time: {error.message}"
            await self._jobs.fail(job, VideoError(ANSWER_UNUSABLE_CODE, message))
            return None
        postponed_job = await self._postpone(job, error, TIMEOUT_ERROR)
        if postponed_job is not None:
            self._unusable_answers[job.id] = count
            if len(self._unusable_answers) > MAX_COUNTED_JOBS:  # cancelled jobs leave their counts here
                del self._unusable_answers[next(iter(self._unusable_answers))]
        return postponed_job

    async def _postpone_without_channel(self, job: VideoJob) -> VideoJob | None:
        """Return the job, postponed because its channel is missing, or None if the job has ended.

        An operator may have removed the channel by mistake.
        """
        if job.failures + 1 >= MAX_MISSED_CHECKS:
            await self._jobs.fail(job, CHANNEL_GONE_ERROR)
            return None
        return await self._postpone(job, ProviderBadResponse(CHANNEL_GONE_ERROR.message), CHANNEL_GONE_ERROR)

    async def _poll(self, access: ProviderAccess, job: VideoJob) -> VideoJob | None:
        jobs = self._jobs
        try:
            result = await jobs.provider_api.poll(access, job)
        except ProviderAnswerUnusable:
            raise
        except ProviderError as error:
            return await self._postpone(job, error, TIMEOUT_ERROR)
        status = result.status
        if status.state == "failed":
            await jobs.fail(job, status.error or VideoError("upstream_error", NO_REASON))
            return None
        if status.state == "completed":
            return await self._start_fetching(job, status.clue)
        if self._is_late(job):
            await jobs.fail(job, TIMEOUT_ERROR)
            return None
        return self._build_progress(job, result)

    def _build_progress(self, job: VideoJob, result: PollResult) -> VideoJob:
        now_ms, status = self._jobs.now_ms, result.status
        wait_s = result.poll_after_s if result.poll_after_s is not None else compute_wait_s(job.polls + 1)
        new_job = job.report_progress(status.progress, now_ms, polls=job.polls + 1, failures=0)
        if status.state == "processing" and job.state == "queued":
            new_job = new_job.move("processing", now_ms)
        return new_job.release(now_ms + self._scale(wait_s))

    async def _start_fetching(self, job: VideoJob, clue: str | None) -> VideoJob | None:
        jobs = self._jobs
        job = attrs.evolve(job, clue=clue or job.clue, polls=0, failures=0)
        if not jobs.rules.keep:
            await jobs.complete(job)
            return None
        now_ms = jobs.now_ms
        return job.move("fetching", now_ms).report_progress(None, now_ms).release(now_ms)

    async def _fetch(self, access: ProviderAccess, job: VideoJob) -> VideoJob | None:
        jobs = self._jobs
        try:
            media = await self._video_content.fetch(access, job)
        except ProviderContentGone as error:
            if job.polls + 1 >= MAX_GONE_REPORTS:
                await jobs.fail(job, CONTENT_LOST_ERROR)
                return None
            return await self._postpone(attrs.evolve(job, polls=job.polls + 1), error, CONTENT_LOST_ERROR)
        except ProviderAnswerUnusable:
            raise
        except (ProviderError, StoreUnavailable) as error:
            return await self._postpone(attrs.evolve(job, polls=0), error, CONTENT_LOST_ERROR)
        await self._complete(job, media)
        return None

    async def _complete(self, job: VideoJob, media: AnyMedia) -> None:
        job_with_media = attrs.evolve(job, media_id=media.id, media_bytes=media.size, media_type=media.media_type)
        # If the store does not answer, the file stays: the commit may have reached the database.
        is_completed = await self._jobs.complete(job_with_media)
        if not is_completed:  # the job was cancelled, or an earlier commit has reached the database
            await self._video_content.remove(media.id)

    async def _postpone(self, job: VideoJob, error: GatewayError, late_error: VideoError) -> VideoJob | None:
        """Return the job, postponed because its state is unknown.

        A job after its deadline fails with ``late_error``, and None is returned.
        """
        jobs = self._jobs
        now_ms = jobs.now_ms
        log.info(
            "video_poll_failed",
            video_id=job.id,
            channel=job.channel,
            status=job.state,
            failures=job.failures + 1,
            error=error.message,
        )
        if self._is_late(job):
            await jobs.fail(job, late_error)
            return None
        provider_retry_after_s = error.provider_retry_after_s if isinstance(error, ProviderError) else None
        failures = job.failures + 1
        wait_s = (
            find_failing_wait_s(failures)
            if provider_retry_after_s is None
            else min(max(provider_retry_after_s, MIN_HINT_S), MAX_HINT_S)
        )
        new_job = attrs.evolve(job, failures=failures, updated_ms=now_ms)
        return new_job.release(now_ms + self._scale(wait_s))

    def _is_late(self, job: VideoJob) -> bool:
        """Return whether the deadline has passed by the clock that set it.

        ``expiry_clock`` runs behind the clock for a day if no record was written shortly before the start. It would
        therefore delay the deadlines that this process has set by its own clock.
        """
        if job.created_ms >= self._started_ms:
            return self._jobs.now_ms >= job.deadline_ms
        return self._expiry_clock() * 1000 >= job.deadline_ms

    def _scale(self, wait_s: float) -> int:
        return round(wait_s * 1000 * self._jobs.wait_scale)
