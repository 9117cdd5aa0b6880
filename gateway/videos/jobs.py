"""Reads, cancels, ends and deletes video jobs, and stores the results of their polls."""

import asyncio
import secrets
from collections.abc import Callable, Sequence

import structlog

from gateway.domain.audit_log import OPERATOR, Actor, AuditRow, build_change
from gateway.domain.video import CANCELLED_ERROR, MAX_HINT_S, VideoError, VideoJob, VideoRules, is_video_id
from gateway.errors import Conflict, NotFound, TaskNotReady
from gateway.events import Events
from gateway.storage.videos import VideoRepository
from gateway.videos.events import JobCancelled, JobChanged, JobEnded
from gateway.videos.job_tasks import JobTasks
from gateway.videos.provider_api import VideoProviderApi
from gateway.videos.reservations import JobReservations, build_end
from gateway.videos.webhook_sender import build_delivery

_ID_BYTES = 16
_DAY_MS = 24 * 3_600_000

log = structlog.stdlib.get_logger(__name__)


class VideoJobs:
    """All video jobs. Each job ends once, in one commit with its charge.

    Attributes:
        clock: Unix seconds; ignores changes of the system clock.
        wait_scale: factor for every wait.
    """

    def __init__(
        self,
        store: VideoRepository,
        reservations: JobReservations,
        tasks: JobTasks,
        provider_api: VideoProviderApi,
        events: Events,
        *,
        find_rules: Callable[[], VideoRules],
        clock: Callable[[], float],
        wait_scale: float = 1.0,
    ) -> None:
        self.store = store
        self.reservations = reservations
        self.tasks = tasks
        self.provider_api = provider_api
        self.events = events
        self._find_rules = find_rules
        self.clock = clock
        self.wait_scale = wait_scale

    @property
    def now_ms(self) -> int:
        return int(self.clock() * 1000)

    @property
    def rules(self) -> VideoRules:
        return self._find_rules()

    async def restore_reservations(self) -> None:
        """Restore the reservations of open jobs, and end the claims of earlier processes.

        A job whose next poll is too far away, because the clock was set back, becomes due now. No other process may use
        the store.
        """
        await self.store.release(self.tasks.process, others_only=True)
        jobs, now_ms = await self.store.list_open(), self.now_ms
        for job in jobs:
            self.reservations.restore(job)
        # Waits are never longer than this, so the clock must have been set back.
        latest_ms = now_ms + round(MAX_HINT_S * 1000)
        await self.store.advance([(job, job.release(now_ms)) for job in jobs if (job.due_ms or 0) > latest_ms])

    async def advance(self, changes: Sequence[tuple[VideoJob, VideoJob]]) -> None:
        """Store changes of jobs that have not ended, as pairs of before and after.

        Publishes ``JobChanged`` for each job with a new state or progress.
        """
        outcomes = await self.store.advance(changes)
        for (job_before, job_after), is_stored in zip(changes, outcomes, strict=True):
            if is_stored and (job_before.state, job_before.progress) != (job_after.state, job_after.progress):
                self.events.publish(JobChanged(job_after.id))

    async def finish(self, job: VideoJob, audit: AuditRow | None = None) -> bool:
        """Store the end of a job with its charge. Return False if the job had ended before, or is deleted.

        Publishes ``JobChanged``, and ``JobEnded`` unless it returns False.
        """
        return await asyncio.shield(self.tasks.start(self._finish(job, audit)))

    async def _finish(self, job: VideoJob, audit: AuditRow | None) -> bool:
        now_ms = self.now_ms
        record = build_end(job, now_ms)
        delivery = build_delivery(job, now_ms, f"evt_{secrets.token_hex(_ID_BYTES)}")
        is_finished = await self.reservations.finish(job, record, delivery, audit)
        if is_finished:
            log.info(
                "video_ended",
                video_id=job.id,
                status=job.state,
                model=job.model,
                channel=job.channel,
                account=job.receipt.account,
                cost_nanos=record.cost_nanos,
                code=job.error_code,
                total_ms=record.total_ms,
            )
            self.events.publish(JobEnded())
        self.events.publish(JobChanged(job.id))
        return is_finished

    async def complete(self, job: VideoJob) -> bool:
        now_ms = self.now_ms
        return await self.finish(job.complete(now_ms, now_ms + round(self.rules.keep_days * _DAY_MS)))

    async def fail(self, job: VideoJob, error: VideoError, audit: AuditRow | None = None) -> bool:
        return await self.finish(job.fail(error, self.now_ms), audit)

    async def cancel(self, video_id: str, by: Actor = OPERATOR) -> VideoJob:
        """Cancel a job and return it. Its provider is asked to stop if the provider supports this.

        Raises ``NotFound``, and ``Conflict`` if the job has ended.
        """
        job = await self.get(video_id, by.scope)
        change = build_change({"status": job.state}, {"status": "failed"})
        audit = by.build_audit_row("video.cancelled", video_id, self.now_ms, account_id=job.account_id, detail=change)
        cancelled_job = job if job.ended else job.fail(CANCELLED_ERROR, self.now_ms)
        if job.ended or not await self.finish(cancelled_job, audit):
            raise Conflict(f"The job {video_id} has ended")
        self.events.publish(JobCancelled(video_id))
        access = self.provider_api.find_access(job) if job.upstream_id else None
        if access is not None:
            self.tasks.start(self.provider_api.cancel(access, job))
        return cancelled_job

    async def get(self, video_id: str, account_id: int | None = None) -> VideoJob:
        """Return a job, of one account if ``account_id`` is given.

        Raises ``NotFound``, also for another account's job.
        """
        job = await self.store.find(video_id) if is_video_id(video_id) else None
        if job is None or (account_id is not None and job.account_id != account_id):
            raise NotFound("Video not found", param="video_id", should_retry=False)
        return job

    async def remove(self, job: VideoJob) -> None:
        """Delete an ended job, and ask its provider to delete the task; the charge remains.

        Raises ``TaskNotReady`` if the job has not ended, and ``NotFound`` if it is deleted already.
        """
        if not job.ended:
            raise TaskNotReady("The job has not ended: it can be deleted when it has", param="video_id")
        if not await self.store.remove(job):
            raise NotFound("Video not found", param="video_id", should_retry=False)
        access = self.provider_api.find_access(job) if job.upstream_id else None
        if access is not None:
            self.tasks.start(self.provider_api.delete(access, job))


def check_completed(job: VideoJob) -> None:
    """Raise ``TaskNotReady`` if a job has not ended, ``NotFound`` if it has failed."""
    if not job.ended:
        raise TaskNotReady("The video is not completed yet", param="video_id")
    if job.state == "failed":
        raise NotFound("The job has failed: there is no video", param="video_id", should_retry=False)
