"""Turns a request into a video job: stores the job with its reservation, has a provider start it, stores the result.

The client may disconnect and the process may stop at any moment. A submit therefore runs to its end in its own task,
and a job is stored before a provider sees it.
"""

import asyncio
import math
import secrets
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

import attrs
import structlog

from gateway.billing.quota import QuotaService
from gateway.billing.settlement import Settlement, build_record, find_outcome
from gateway.deferred import defer_function
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import MAX_DURATION_MS, Usage
from gateway.domain.video import SUBMIT_UNKNOWN_ERROR, VideoJob, VideoRequest, compute_wait_s
from gateway.errors import Conflict, ContentForbidden, GatewayError, ProviderTimeout, SensitiveWords, ShuttingDown
from gateway.formats.videos.backend import TaskStatus, VideoSpec
from gateway.proxy.failover import Proxy
from gateway.request_context import RequestContext
from gateway.routing.target import UNKNOWN_SECONDS, Attempt
from gateway.videos.content import VideoContent
from gateway.videos.events import JobChanged, JobStarted
from gateway.videos.job_tasks import CLAIM_MS
from gateway.videos.jobs import VideoJobs
from gateway.videos.provider_api import SubmitOutcomeUnknown, find_key, fingerprint_key, must_fetch
from gateway.videos.reference_image import References

if TYPE_CHECKING:
    from gateway.media.word_filter import WordList

_ID_BYTES = 16
_HOUR_MS = 3_600_000

_check_body = defer_function("media.word_filter:check_body")

log = structlog.stdlib.get_logger(__name__)


class VideoSubmitter:
    """Creates video jobs.

    Attributes:
        find_words: returns the words that prompts must not contain; None for no check.
    """

    def __init__(
        self,
        jobs: VideoJobs,
        quota: QuotaService,
        settlement: Settlement,
        *,
        proxy: Proxy,
        video_content: VideoContent,
        references: References,
        find_words: Callable[[], "WordList | None"],
    ) -> None:
        self._jobs = jobs
        self._quota = quota
        self._settlement = settlement
        self._proxy = proxy
        self._video_content = video_content
        self._references = references
        self.find_words = find_words

    def check(self, inference: InferenceRequest) -> None:
        try:
            _check_body(self.find_words(), inference.body | {"prompt": _get_video(inference).prompt})
        except SensitiveWords as error:
            raise ContentForbidden(error.message, param=error.param) from None
        if self._jobs.rules.keep:
            self._video_content.check_room()

    async def submit(self, ctx: RequestContext) -> VideoJob:
        """Return the stored and started job of a request. Run this to its end even if the client disconnects.

        Raises ``GatewayError``. The job is then deleted if it is known that no provider has started it.
        """
        async with AsyncExitStack() as stack:
            try:
                await self._load_reference(ctx, stack)
                job = await self._store_job(ctx, stack)
            except GatewayError as error:
                now_s, now_ms = self._loop_s, self._jobs.now_ms
                self._settlement.settle(ctx, "refused", error, now_s=now_s, now_ms=now_ms)
                raise
            return await self._start_at_provider(ctx, job)

    async def _load_reference(self, ctx: RequestContext, stack: AsyncExitStack) -> None:
        video = _get_video(ctx.inference)
        if video.reference is None:
            return
        await self._quota.precheck(ctx.caller, lambda: True)
        fetch = any(must_fetch(target.endpoint.wire) for target in ctx.target_list.targets)
        loading = self._references.load(video.reference, ctx.caller.account.id, fetch=fetch)
        reference = await stack.enter_async_context(loading)
        ctx.inference = attrs.evolve(ctx.inference, video=attrs.evolve(video, reference=reference))

    async def _store_job(self, ctx: RequestContext, stack: AsyncExitStack) -> VideoJob:
        """Make a job, and store it with its reservation in one commit. After an error the reservation is released.

        The job is marked as active until ``stack`` ends.

        Raises ``ShuttingDown``, the errors of ``QuotaService.admit``, ``RateLimited`` for too many open jobs, and
        ``StoreUnavailable``.
        """
        if self._proxy.broken_off:
            raise ShuttingDown("The gateway is shutting down", phase="shutdown")
        reservation = await self._quota.admit(ctx, ctx.target_list.rank(), journaled=False)
        reservation.limit_charges = reservation.list_charges(self._jobs.now_ms / 1000)  # the receipt has them
        job = self._make_job(ctx, reservation.nanos)
        # Before the job is stored: the poll worker takes a job that it reads, and that is not marked, for lost.
        stack.enter_context(self._jobs.tasks.mark_active(job.id))
        is_stored = False
        try:
            await self._jobs.reservations.create(job, reservation, self._jobs.rules.max_open)
            is_stored = True
        finally:
            if not is_stored:
                self._jobs.reservations.release(job)
                self._quota.release(ctx)
        return job

    def _make_job(self, ctx: RequestContext, reserved_nanos: int) -> VideoJob:
        now_ms, video = self._jobs.now_ms, _get_video(ctx.inference)
        return VideoJob(
            id=f"video_{secrets.token_hex(_ID_BYTES)}",
            receipt=build_record(ctx, "interrupted", None, now_s=ctx.started_at, now_ms=now_ms),
            prompt=video.prompt,
            seconds=str(video.seconds or ""),
            size=video.size or "",
            remixed_from=video.remix_of.id if video.remix_of else None,
            updated_ms=now_ms,
            deadline_ms=now_ms + round(self._jobs.rules.deadline_h * _HOUR_MS),
            held_nanos=reserved_nanos,
            owner=self._jobs.tasks.process,
            lease_until_ms=now_ms + CLAIM_MS,
            due_ms=now_ms,
            webhook_url=video.webhook_url or ctx.caller.key.webhook_url,
            status_words=video.status_words,
        )

    async def _start_at_provider(self, ctx: RequestContext, job: VideoJob) -> VideoJob:
        """Let a provider start a stored job, and store the outcome; return the started job.

        Storing is repeated until it succeeds; after ``RETRY_TIMEOUT_S`` in the background. Raises
        ``SubmitOutcomeUnknown`` if a provider may have started the job, and the error of the last attempt if none has.
        """
        submitting = job  # as stored by the latest attempt

        async def send(attempt: Attempt) -> TaskStatus:
            nonlocal submitting
            submitting = await self._store_attempt(ctx, submitting, attempt)
            return await self._submit(ctx, submitting, attempt)

        is_decided, retry_until_stored = False, self._jobs.tasks.retry_until_stored
        try:
            status = await self._proxy.with_failover(ctx, send)
            is_decided = True
        except SubmitOutcomeUnknown as error:
            is_decided = True
            channel, reason = submitting.channel, error.message
            log.warning("video_submit_outcome_unknown", video_id=job.id, channel=channel, error=reason)
            await retry_until_stored(job.id, partial(self._store_unknown, ctx, submitting, error))
            raise
        except GatewayError as error:
            is_decided = True
            await retry_until_stored(job.id, partial(self._drop, ctx, submitting, error))
            raise
        finally:
            self._quota.release_permit(ctx)
            if not is_decided:  # after a bug or a shutdown, the poll worker decides later
                self._jobs.tasks.start(self._advance(submitting, submitting.release(self._jobs.now_ms)))
        return await self._store_started_job(ctx, submitting, status)

    async def _store_attempt(self, ctx: RequestContext, job: VideoJob, attempt: Attempt) -> VideoJob:
        """Store the job as submitting, with what the next attempt uses; return it.

        Raises ``Conflict`` if the job was cancelled.
        """
        video = attempt.target.capability.fill(_get_video(ctx.inference))
        source_job = video.remix_of
        submitting = job.move(
            "submitting",
            self._jobs.now_ms,
            channel=attempt.channel.name,
            provider=attempt.channel.provider,
            wire=attempt.target.endpoint.wire,
            upstream_model=attempt.target.model,
            key_print=fingerprint_key(_find_key(attempt, source_job)),
            lease_until_ms=self._jobs.now_ms + CLAIM_MS,  # the claim has been renewed since the job was created
            seconds=source_job.seconds if source_job else str(video.seconds or ""),
            size=source_job.size if source_job else video.size or "",
        )
        if not await self._jobs.reservations.repeat_until_answered(partial(self._try_attempt, job, submitting)):
            raise Conflict("The job was cancelled before it was begun")
        return submitting

    async def _try_attempt(self, job: VideoJob, submitting: VideoJob) -> bool:
        """Store an attempt; return False if the job has ended. The answer to an earlier try may have been lost."""
        if await self._advance(job, submitting):
            return True
        stored_job = await self._jobs.store.find(job.id)
        stored_state = stored_job and (stored_job.state, stored_job.channel, stored_job.owner)
        return stored_state == (submitting.state, submitting.channel, submitting.owner)

    async def _submit(self, ctx: RequestContext, job: VideoJob, attempt: Attempt) -> TaskStatus:
        video = attempt.target.capability.fill(_get_video(ctx.inference))
        spec = VideoSpec(
            model=attempt.target.model,
            prompt=video.prompt,
            mark=job.id,
            seconds=video.seconds,
            size=video.size,
            reference=video.reference,
            extra=ctx.inference.body,
        )
        try:
            status = await attempt.wait_for(
                self._jobs.provider_api.submit(attempt, job, spec, video.remix_of),
                attempt.channel.timeouts.total_s,
                self._proxy.timer,
            )
        except (ProviderTimeout, ShuttingDown) as error:
            raise error if error.phase == "connect" else SubmitOutcomeUnknown(error) from error
        self._proxy.load_balancer.record_success(attempt.slot)
        return status

    async def _store_started_job(self, ctx: RequestContext, job: VideoJob, status: TaskStatus) -> VideoJob:
        """Store the started job and return it.

        Only this process knows the provider's task id: after ``RETRY_TIMEOUT_S`` the job is returned, and stored in the
        background, without a time limit. If the job was cancelled, cancel the provider's task, and return the job as
        stored. Raises ``Conflict`` if it was deleted.
        """
        ctx.first_byte_at = now_s = self._loop_s
        ctx.record = receipt = build_record(ctx, "completed", None, now_s=now_s, now_ms=self._jobs.now_ms)
        started_job = (
            _set_charge(job, ctx.attempts[-1], status)
            .move(
                "queued" if status.state == "queued" else "processing",
                self._jobs.now_ms,
                upstream_id=status.id,
                receipt=receipt,
            )
            .release(self._jobs.now_ms + round(compute_wait_s(0) * 1000 * self._jobs.wait_scale))
        )
        cancelled_job = await self._jobs.tasks.retry_until_stored(job.id, partial(self._try_started, job, started_job))
        if cancelled_job is not None:
            return cancelled_job
        self._jobs.events.publish(JobChanged(started_job.id))
        self._jobs.events.publish(JobStarted())
        return started_job

    async def _try_started(self, job: VideoJob, started_job: VideoJob) -> VideoJob | None:
        """Store a started job and return None.

        If the stored job has ended without the task, cancel the provider's task and return the stored job. If the
        answer to an earlier try was lost, the job already has the task, and may have been polled since. Raises
        ``Conflict`` if the job was deleted.
        """
        if await self._advance(job, started_job):
            return None
        stored_job = await self._jobs.store.find(started_job.id)
        if (
            stored_job is not None
            and stored_job.upstream_id == started_job.upstream_id
            and stored_job.state != "failed"
        ):
            return None
        access = self._jobs.provider_api.find_access(started_job)
        if access is not None:
            self._jobs.tasks.start(self._jobs.provider_api.cancel(access, started_job))
        if stored_job is None:
            raise Conflict("The job was cancelled while it was being submitted")
        return stored_job

    async def _store_unknown(self, ctx: RequestContext, job: VideoJob, error: SubmitOutcomeUnknown) -> None:
        """End a job as failed because its provider may or may not have started it."""
        ctx.record = receipt = build_record(ctx, "failed", error, now_s=self._loop_s, now_ms=self._jobs.now_ms)
        await self._jobs.finish(attrs.evolve(job, receipt=receipt).fail(SUBMIT_UNKNOWN_ERROR, self._jobs.now_ms))

    async def _drop(self, ctx: RequestContext, job: VideoJob, error: GatewayError) -> None:
        """Delete a job that no provider has started, and record its request with ``error`` and without a charge."""
        now_s, now_ms = self._loop_s, self._jobs.now_ms
        ctx.record = record = build_record(ctx, find_outcome(error), error, now_s=now_s, now_ms=now_ms)
        await self._jobs.reservations.drop(job, record)
        self._jobs.events.publish(JobChanged(job.id))

    async def _advance(self, job_before: VideoJob, job_after: VideoJob) -> bool:
        return all(await self._jobs.store.advance([(job_before, job_after)]))

    @property
    def _loop_s(self) -> float:
        return asyncio.get_running_loop().time()


def _set_charge(job: VideoJob, attempt: Attempt, status: TaskStatus) -> VideoJob:
    """Return the job with the cost that its completion will charge, at the current price of the attempt.

    If the request named no length, the provider's length counts.
    """
    seconds, size = job.seconds or _parse_seconds(status.seconds), job.size or status.size or ""
    duration_ms = min(int(seconds or UNKNOWN_SECONDS) * 1000, MAX_DURATION_MS)
    cost = attempt.target.cost(Usage(source="upstream", duration_ms=duration_ms, size=size))
    return attrs.evolve(job, seconds=seconds, size=size, cost_nanos=cost)


def _find_key(attempt: Attempt, source_job: VideoJob | None) -> str:
    key = attempt.slot.key.key
    return find_key(attempt.channel, source_job.key_print, key) if source_job else key


def _parse_seconds(value: str | None) -> str:
    """Return a provider's video length in whole seconds, rounded up; empty if it is missing or invalid."""
    try:
        seconds = math.ceil(float(value or 0))
    except (ValueError, OverflowError):
        return ""
    return str(seconds) if 0 < seconds <= MAX_DURATION_MS // 1000 else ""


def _get_video(inference: InferenceRequest) -> VideoRequest:
    return inference.video or VideoRequest("")
