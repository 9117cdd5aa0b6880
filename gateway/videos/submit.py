"""Turn a request into a video job: store the job with its reservation, have a provider start it, store the result.

The client may disconnect and the process may stop at any moment. So a submit runs to its end in a task of its own, and
the store knows a job before a provider does.
"""

import asyncio
import math
import secrets
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import TypeVar

import attrs
import structlog

from gateway.billing.quota import QuotaService
from gateway.billing.request_record import build_record, find_outcome
from gateway.billing.settlement import Settlement
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import MAX_DURATION_MS, Usage
from gateway.domain.video import SUBMIT_UNKNOWN, VideoJob, VideoRequest, find_wait_s
from gateway.errors import (
    Conflict,
    ContentForbidden,
    GatewayError,
    ProviderTimeout,
    SensitiveWords,
    ShuttingDown,
)
from gateway.formats.video_backend import TaskStatus, VideoSpec
from gateway.media.word_filter import WordList, check_body
from gateway.proxy.failover import Proxy
from gateway.request_context import RequestContext
from gateway.routing.target import UNKNOWN_SECONDS, Attempt
from gateway.videos.content import VideoContent
from gateway.videos.events import JobChanged, JobStarted
from gateway.videos.job_tasks import LEASE_MS
from gateway.videos.jobs import Videos
from gateway.videos.provider_api import SubmitOutcomeUnknown, build_print, find_key, must_fetch
from gateway.videos.reference_image import References

_ID_BYTES = 16
_HOUR_MS = 3_600_000

log = structlog.stdlib.get_logger(__name__)
T = TypeVar("T")


@attrs.define(eq=False)
class Submission:
    """One request, parsed and routed, that becomes a job; ``job`` is None before the database has it."""

    ctx: RequestContext
    job: VideoJob | None = None


class VideoSubmitter:
    """Creates video jobs.

    Args:
        videos: the video jobs.
        quota: checks quotas and reserves money.
        settlement: records refused requests.
        proxy: makes attempts, with failover.
        video_content: says whether there is room for another video.
        references: loads reference images.
        find_words: returns the words that prompts must not contain; None for no check.
    """

    def __init__(
        self,
        videos: Videos,
        quota: QuotaService,
        settlement: Settlement,
        *,
        proxy: Proxy,
        video_content: VideoContent,
        references: References,
        find_words: Callable[[], WordList | None] = lambda: None,
    ) -> None:
        self._videos = videos
        self._quota = quota
        self._settlement = settlement
        self._proxy = proxy
        self._video_content = video_content
        self._references = references
        self.find_words = find_words

    def check(self, inference: InferenceRequest) -> None:
        """Check the prompt and the free disk space.

        Raises:
            ContentForbidden: the prompt has a listed word.
            StoreUnavailable: there is no room for a video, and videos are kept.
        """
        try:
            check_body(self.find_words(), inference.body | {"prompt": _get_ask(inference).prompt})
        except SensitiveWords as forbidden:
            raise ContentForbidden(forbidden.message, param=forbidden.param) from None
        if self._videos.rules.keep:
            self._video_content.check_room()

    async def submit(self, submission: Submission) -> VideoJob:
        """Return the stored and started job of a request. Run this to its end even if the client disconnects.

        Raises:
            GatewayError: why there is no job. A job remains only if the outcome of its submit is unknown.
        """
        async with AsyncExitStack() as stack:
            try:
                await self._bring_in(submission, stack)
                job = await self._put_on_record(submission)
            except GatewayError as fault:
                now, now_ms = self._loop_s, self._videos.now_ms
                self._settlement.settle(submission.ctx, "refused", fault, now=now, now_ms=now_ms)
                raise
            with self._videos.tasks.claim(job.id):
                return await self._have_begun(submission, job)

    async def _bring_in(self, submission: Submission, stack: AsyncExitStack) -> None:
        """Load the reference image. Raises what ``References.bring_in`` raises."""
        ctx, inference = submission.ctx, _get(submission.ctx.inference)
        video_request, account = _get_ask(inference), ctx.caller.account
        if video_request.reference is None:
            return
        await self._quota.peek(ctx.caller, lambda: True)
        fetch = any(must_fetch(target.endpoint.wire) for target in _get(ctx.route).targets)
        reference = await stack.enter_async_context(
            self._references.bring_in(video_request.reference, account.id, fetch=fetch)
        )
        ctx.inference = attrs.evolve(inference, video=attrs.evolve(video_request, reference=reference))

    async def _have_begun(self, submission: Submission, job: VideoJob) -> VideoJob:
        judged = False
        try:
            status = await self._proxy.with_failover(submission.ctx, partial(self._send, submission))
            judged = True
        except SubmitOutcomeUnknown as fault:
            judged = True
            log.warning(
                "video_submit_outcome_unknown",
                video_id=job.id,
                channel=_get(submission.job).channel,
                error=fault.message,
            )
            await self._videos.tasks.retry_until_stored(job.id, partial(self._finish_unknown, submission, fault))
            raise
        except GatewayError as fault:
            judged = True
            await self._videos.tasks.retry_until_stored(job.id, partial(self._drop, submission, fault))
            raise
        finally:
            self._quota.leave(submission.ctx)
            if not judged:  # a bug of ours, or the process stops: the poll worker decides later
                requested_job = _get(submission.job)
                self._videos.tasks.start(self._advance_one(requested_job, requested_job.let_go(self._videos.now_ms)))
        return await self._note_begun(submission, status)

    async def _put_on_record(self, submission: Submission) -> VideoJob:
        """Store the job with its reservation. If this raises, neither is left."""
        if self._proxy.broken_off:
            raise ShuttingDown("The gateway is shutting down", phase="shutdown")
        ctx = submission.ctx
        await self._quota.admit(ctx, _get(ctx.route).rank(), journaled=False)
        reservation = _get(ctx.reservation)
        job = self._make_job(ctx, reservation.nanos)
        stored = False
        try:
            await self._videos.reservations.create(job, reservation, self._videos.rules.max_open)
            stored = True
        finally:
            if not stored:
                self._videos.reservations.release(job)
                self._quota.give_back(ctx)
        submission.job = job
        return job

    def _make_job(self, ctx: RequestContext, reserved: int) -> VideoJob:
        now_ms, video_request = self._videos.now_ms, _get_ask(ctx.inference)
        return VideoJob(
            id=f"video_{secrets.token_hex(_ID_BYTES)}",
            receipt=build_record(ctx, "interrupted", None, now=ctx.started_at, now_ms=now_ms),
            prompt=video_request.prompt,
            seconds=str(video_request.seconds or ""),
            size=video_request.size or "",
            remixed_from=video_request.remix_of.id if video_request.remix_of else None,
            updated_ms=now_ms,
            deadline_ms=now_ms + round(self._videos.rules.deadline_h * _HOUR_MS),
            held_nanos=reserved,
            owner=self._videos.tasks.owner,
            lease_until_ms=now_ms + LEASE_MS,
            due_ms=now_ms,
            webhook_url=video_request.webhook_url or ctx.caller.key.webhook_url,
            status_words=video_request.status_words,
        )

    async def _send(self, submission: Submission, attempt: Attempt) -> TaskStatus:
        """Make one attempt to start the job."""
        job, video_request = _get(submission.job), attempt.target.capability.fill(_get_ask(submission.ctx.inference))
        original = video_request.remix_of
        requested_job = job.move(
            "submitting",
            self._videos.now_ms,
            channel=attempt.channel.name,
            provider=attempt.channel.provider,
            wire=attempt.target.endpoint.wire,
            upstream_model=attempt.target.model,
            key_print=build_print(_find_key(attempt, original)),
            lease_until_ms=self._videos.now_ms + LEASE_MS,  # the lease has been renewed since the job was created
            seconds=original.seconds if original else str(video_request.seconds or ""),
            size=original.size if original else video_request.size or "",
        )
        if not all(await self._videos.store.advance([(job, requested_job)])):
            raise Conflict("The job was cancelled before it was begun")
        submission.job = requested_job
        spec = VideoSpec(
            model=attempt.target.model,
            prompt=video_request.prompt,
            mark=job.id,
            seconds=video_request.seconds,
            size=video_request.size,
            reference=video_request.reference,
            extra=_get(submission.ctx.inference).body,
        )
        try:
            status = await attempt.wait_for(
                self._videos.provider_api.submit(attempt, requested_job, spec, original),
                attempt.channel.timeouts.total_s,
                self._proxy.timer,
            )
        except (ProviderTimeout, ShuttingDown) as fault:
            raise fault if fault.phase == "connect" else SubmitOutcomeUnknown(fault) from fault
        self._proxy.load_balancer.record_success(attempt.lease)
        submission.job = self._price(requested_job, attempt, status)
        return status

    def _price(self, job: VideoJob, attempt: Attempt, status: TaskStatus) -> VideoJob:
        """Set the charge of the completed job, by the provider's length if the request named none."""
        seconds, size = job.seconds or _parse_seconds(status.seconds), job.size or status.size or ""
        duration_ms = min(int(seconds or UNKNOWN_SECONDS) * 1000, MAX_DURATION_MS)
        cost = attempt.target.cost(Usage(source="upstream", duration_ms=duration_ms, size=size))
        return attrs.evolve(job, seconds=seconds, size=size, cost_nanos=cost)

    async def _note_begun(self, submission: Submission, status: TaskStatus) -> VideoJob:
        """Store the started job, however long that takes: only this process knows the id of the provider's task."""
        job, ctx = _get(submission.job), submission.ctx
        ctx.first_byte_at = now = self._loop_s
        receipt = build_record(ctx, "completed", None, now=now, now_ms=self._videos.now_ms)
        begun = job.move(
            "queued" if status.state == "queued" else "processing",
            self._videos.now_ms,
            upstream_id=status.id,
            receipt=receipt,
        ).let_go(self._videos.now_ms + round(find_wait_s(0) * 1000 * self._videos.wait_scale))
        ctx.record = receipt
        submission.job = begun
        recorded = await self._videos.tasks.retry_until_stored(begun.id, partial(self._store_begun, job, begun))
        if recorded is False:
            return await self._give_up(begun)
        self._videos.events.publish(JobChanged(begun.id))
        self._videos.events.publish(JobStarted())
        return begun

    async def _store_begun(self, job: VideoJob, begun: VideoJob) -> bool:
        """Store a started job; return False if it has ended without the provider's task.

        The answer of an earlier try may have been lost: then the job has the task, and others may have gone on with it.
        """
        if await self._advance_one(job, begun):
            return True
        found = await self._videos.store.find(begun.id)
        return found is not None and found.upstream_id == begun.upstream_id and found.state != "failed"

    async def _give_up(self, begun: VideoJob) -> VideoJob:
        """Cancel the provider's task of a job that was cancelled during its submit."""
        access = self._videos.provider_api.find_access(begun)
        if access is not None:
            await self._videos.provider_api.cancel(access, begun)
        found = await self._videos.store.find(begun.id)
        if found is None:
            raise Conflict("The job was cancelled while it was being submitted")
        return found

    async def _advance_one(self, before: VideoJob, after: VideoJob) -> bool:
        return all(await self._videos.store.advance([(before, after)]))

    async def _drop(self, submission: Submission, error: GatewayError) -> None:
        """Delete a job that no provider started; only the request's record stays."""
        job, ctx = _get(submission.job), submission.ctx
        now, now_ms = self._loop_s, self._videos.now_ms
        row = build_record(ctx, find_outcome(error), error, now=now, now_ms=now_ms)
        ctx.record = row
        await self._videos.reservations.drop(job, row)
        self._videos.events.publish(JobChanged(job.id))

    async def _finish_unknown(self, submission: Submission, error: SubmitOutcomeUnknown) -> None:
        job, now, now_ms = _get(submission.job), self._loop_s, self._videos.now_ms
        receipt = build_record(submission.ctx, "failed", error, now=now, now_ms=now_ms)
        submission.ctx.record = receipt
        job = attrs.evolve(job, receipt=receipt)
        await self._videos.finish(job.fail(SUBMIT_UNKNOWN, self._videos.now_ms))

    @property
    def _loop_s(self) -> float:
        return asyncio.get_running_loop().time()


def _find_key(attempt: Attempt, original: VideoJob | None) -> str:
    """Return the key that the provider is asked with: for a remix the one that created the original."""
    key = attempt.lease.key.key
    return find_key(attempt.channel, original.key_print, key) if original else key


def _parse_seconds(reported: str | None) -> str:
    """Return a provider's video length in whole seconds, rounded up; empty if it gives none."""
    try:
        seconds = math.ceil(float(reported or 0))
    except (ValueError, OverflowError):
        return ""
    return str(seconds) if 0 < seconds <= MAX_DURATION_MS // 1000 else ""


def _get_ask(inference: InferenceRequest | None) -> VideoRequest:
    return (inference.video if inference is not None else None) or VideoRequest("")


def _get(value: T | None) -> T:
    if value is None:
        raise AssertionError("the submit has set it")
    return value
