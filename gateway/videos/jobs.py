"""Record every step of a video job, and end each job once, in one commit with its charge."""

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import attrs
import structlog

from gateway.background import TaskSet
from gateway.billing.balances import Balances
from gateway.billing.write_queue import WriteQueue
from gateway.domain.audit_log import OPERATOR, Actor, AuditRow, build_change
from gateway.domain.balance import Reservation
from gateway.domain.request_log import RequestRecord, build_error
from gateway.domain.video import CANCELLED, LONGEST_HINT_S, VideoError, VideoFilter, VideoJob, VideoRules, is_video_id
from gateway.errors import Conflict, NotFound, RateLimited, StoreUnavailable, TaskNotReady
from gateway.storage.videos import VideoRepository
from gateway.videos.notifier import JobNotifier
from gateway.videos.provider_api import VideoProviderApi
from gateway.videos.webhook_sender import build_delivery

LEASE_MS = 30_000
INSIST_S = 10.0
"""Seconds that a request waits for a failing store. The work goes on afterwards, and its result is stored later."""
CLOSE_TIMEOUT_S = 3.0
_INSIST_EVERY_S = 0.5
_ID_BYTES = 16
_DAY_MS = 24 * 3_600_000

log = structlog.stdlib.get_logger(__name__)
T = TypeVar("T")


class Videos:
    """Create, read, cancel and end video jobs, and hold the reservations of the open ones.

    Args:
        store: the repository of jobs.
        balances: the balances that reservations are settled on.
        write_queue: the writer of charges. Jobs end under its lock, so that a reconciliation sees a job's money in one
            place.
        provider_api: the client of the providers' video APIs.
        rules: returns the current settings.
        clock: Unix seconds; not affected when the system clock is set.
        wait_scale: the factor of every wait.

    Attributes:
        owner: the name of this process in the store's leases.
        shared: other nodes have jobs, too.
        notifier: notified of every change of a job.
        ended: called after a job has ended; wakes the webhook worker.
        begun: called when a job is ready to be polled.
        cancelled: called with the id of a job that was cancelled, possibly while a task polls it.
        note_record: called with the record of every request for a video once it is stored.
    """

    def __init__(
        self,
        store: VideoRepository,
        balances: Balances,
        write_queue: WriteQueue,
        provider_api: VideoProviderApi,
        *,
        rules: Callable[[], VideoRules],
        clock: Callable[[], float],
        wait_scale: float = 1.0,
    ) -> None:
        self.store = store
        self._balances = balances
        self._write_queue = write_queue
        self.provider_api = provider_api
        self._rules = rules
        self.clock = clock
        self.wait_scale = wait_scale
        self._holds: dict[str, Reservation] = {}
        self._open: Counter[int] = Counter()
        self._in_hand: Counter[str] = Counter()
        self._tasks = TaskSet()
        self.owner = secrets.token_hex(8)
        self.shared = False
        self._last_open = 0
        self.notifier = JobNotifier()
        self.ended: Callable[[], None] = lambda: None
        self.begun: Callable[[], None] = lambda: None
        self.cancelled: Callable[[str], None] = lambda _: None
        self.note_record: Callable[[RequestRecord], object] = lambda _: None

    @property
    def now_ms(self) -> int:
        return int(self.clock() * 1000)

    @property
    def busy(self) -> bool:
        """Return whether jobs may belong to this process that the poll worker has not claimed."""
        return bool(self._tasks)

    @property
    def rules(self) -> VideoRules:
        return self._rules()

    async def open(self) -> None:
        """Restore the reservations of open jobs. The process must be the only one that uses the store."""
        await self.store.release(self.owner, others=True)
        jobs, now_ms = await self.store.list_open(), self.now_ms
        for job in jobs:
            self.hold(job, self._balances.restore(job.account_id, job.key_id, job.held_nanos))
        # No wait is longer than this one: the clock was set back since.
        latest_ms = now_ms + round(LONGEST_HINT_S * 1000)
        await self.store.advance([(job, job.let_go(now_ms)) for job in jobs if (job.due_ms or 0) > latest_ms])

    async def close(self) -> None:
        """Wait up to ``CLOSE_TIMEOUT_S`` for what is being stored, cancel the rest, and release every lease."""
        await self._tasks.close(CLOSE_TIMEOUT_S)
        try:
            await self.store.release(self.owner)
        except StoreUnavailable:
            log.warning("leases_not_released")  # the leases run out by themselves

    def hold(self, job: VideoJob, held: Reservation) -> None:
        """Keep the reservation of a new job until the job ends."""
        self._holds[job.id] = held
        self._open[job.account_id] += 1

    async def create(self, job: VideoJob, held: Reservation) -> None:
        """Store a new job, and keep its reservation until it ends; in a cluster the store keeps it.

        If this raises, ``release`` has to be called. Raises ``RateLimited``, ``StoreUnavailable``.
        """
        most = self.rules.max_open
        if self.count_open(job.account_id) >= most:
            raise _refuse_more(most)
        self.hold(job, held)
        async with self._balances.hand_over(held):
            if not await self.store.create(job, most):
                raise _refuse_more(most)
        if held.charge is not None:
            self._let_go_of(job)

    def count_open(self, account_id: int) -> int:
        return self._open[account_id]

    async def count_all_open(self) -> int:
        """Return the number of jobs that have not ended, of all nodes; the last known one if the store is silent."""
        if not self.shared:
            return self._open.total()
        with suppress(StoreUnavailable):
            self._last_open = await self.store.count_open()
        return self._last_open

    def release(self, job: VideoJob) -> None:
        """Release the reservation of a job that was dropped."""
        held = self._let_go_of(job)
        if held is not None:
            self._balances.release(held)

    def _let_go_of(self, job: VideoJob) -> Reservation | None:
        held = self._holds.pop(job.id, None)
        if held is not None:
            self._open[job.account_id] -= 1
            if not self._open[job.account_id]:
                del self._open[job.account_id]
        return held

    def list_held(self) -> dict[str, int]:
        """Return the reservation of each open job, in nano-USD."""
        return {video_id: held.nanos for video_id, held in self._holds.items()}

    async def advance(self, changes: Sequence[tuple[VideoJob, VideoJob]]) -> None:
        """Store changes of jobs that go on: pairs of before and after. Raises ``StoreUnavailable``."""
        moved = await self.store.advance(changes)
        for (before, after), done in zip(changes, moved, strict=True):
            if done and (before.state, before.progress) != (after.state, after.progress):
                self.notifier.notify(after.id)

    async def finish(self, job: VideoJob, audit: AuditRow | None = None) -> bool:
        """Store the end of a job together with its charge, if any. Return False if the job had ended before.

        Raises:
            StoreUnavailable: the job has not ended.
        """
        return await asyncio.shield(self.run(self._finish(job, audit)))

    async def _finish(self, job: VideoJob, audit: AuditRow | None) -> bool:
        now_ms = self.now_ms
        row = build_end(job, now_ms)
        delivery = build_delivery(job, now_ms, f"evt_{secrets.token_hex(_ID_BYTES)}")
        async with self._write_queue.writing:  # a reconciliation sees both or neither
            finished = await self.store.finish(job, row, delivery, audit)
            if finished:
                self._settle(job, row.cost_nanos)
            elif job.id in self._holds:  # the answer to its end was lost
                stored = await self.store.find(job.id)
                self._settle(job, 0 if stored is None else build_end(stored, now_ms).cost_nanos)
        if finished:
            log.info(
                "video_ended",
                video_id=job.id,
                status=job.state,
                model=job.model,
                channel=job.channel,
                account=job.receipt.account,
                cost_nanos=row.cost_nanos,
                code=job.error_code,
                total_ms=row.total_ms,
            )
            self.note_record(row)
            self.ended()
        self.notifier.notify(job.id)
        return finished

    def _settle(self, job: VideoJob, cost_nanos: int) -> None:
        held = self._let_go_of(job)
        if held is not None:
            self._balances.settle(held, cost_nanos, self.clock())

    async def complete(self, job: VideoJob) -> bool:
        """End a job whose video is ready. Raises ``StoreUnavailable``."""
        now_ms = self.now_ms
        return await self.finish(job.complete(now_ms, now_ms + round(self.rules.keep_days * _DAY_MS)))

    async def fail(self, job: VideoJob, error: VideoError, audit: AuditRow | None = None) -> bool:
        """End a job as failed. Raises ``StoreUnavailable``."""
        return await self.finish(job.fail(error, self.now_ms), audit)

    async def cancel(self, video_id: str, by: Actor = OPERATOR) -> VideoJob:
        """Cancel a job, and ask its provider to stop if the provider can.

        Raises:
            NotFound: there is no such job in the actor's scope.
            Conflict: the job has ended.
            StoreUnavailable: the job goes on.
        """
        job = await self.get(video_id, by.scope)
        change = build_change({"status": job.state}, {"status": "failed"})
        audit = by.did("video.cancelled", video_id, self.now_ms, account_id=job.account_id, detail=change)
        if job.ended or not await self.fail(job, CANCELLED, audit):
            raise Conflict(f"The job {video_id} has ended")
        self.cancelled(video_id)
        access = self.provider_api.find_access(job) if job.upstream_id else None
        if access is not None:
            self.run(self.provider_api.cancel(access, job))
        return await self.get(video_id)

    async def get(self, video_id: str, account_id: int | None = None) -> VideoJob:
        """Return a job, of one account if ``account_id`` is given. Raises ``NotFound`` for others' jobs too."""
        job = await self.store.find(video_id) if is_video_id(video_id) else None
        if job is None or (account_id is not None and job.account_id != account_id):
            raise NotFound("Video not found", param="video_id", should_retry=False)
        return job

    async def find(self, video_id: str) -> VideoJob | None:
        """Return a job of any account; None if there is none."""
        return await self.store.find(video_id)

    async def find_by_request(self, request_id: str) -> VideoJob | None:
        """Return the job that a request created; None if there is none."""
        return await self.store.find_by_request(request_id)

    async def list_videos(self, wanted: VideoFilter, limit: int) -> Sequence[VideoJob]:
        """Return jobs in the order of their creation."""
        return await self.store.list_videos(wanted, limit)

    async def remove(self, job: VideoJob) -> None:
        """Delete an ended job; its charge stays. Raises ``TaskNotReady``, ``NotFound``."""
        if not job.ended:
            raise TaskNotReady("The job has not ended: it can be deleted when it has", param="video_id")
        if not await self.store.remove(job):
            raise NotFound("Video not found", param="video_id", should_retry=False)
        access = self.provider_api.find_access(job) if job.upstream_id else None
        if access is not None:
            self.run(self.provider_api.delete(access, job))

    @contextmanager
    def claim(self, video_id: str) -> Iterator[None]:
        """Mark a job as worked on outside the poll worker until the block ends."""
        self._in_hand[video_id] += 1
        try:
            yield
        finally:
            self._in_hand[video_id] -= 1
            if not self._in_hand[video_id]:
                del self._in_hand[video_id]

    def is_claimed(self, video_id: str) -> bool:
        return video_id in self._in_hand

    def run(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Start a task that ``close`` waits for."""
        return self._tasks.start(work)

    async def retry_until_stored(self, video_id: str, work: Callable[[], Awaitable[T]]) -> T | None:
        """Repeat ``work`` on a job until the store takes it; return None if that takes longer than ``INSIST_S``."""
        done, _ = await asyncio.wait({task := self.run(self._repeat(video_id, work))}, timeout=INSIST_S)
        return task.result() if done else None

    async def _repeat(self, video_id: str, work: Callable[[], Awaitable[T]]) -> T:
        with self.claim(video_id):
            while True:
                try:
                    return await work()
                except StoreUnavailable:
                    await asyncio.sleep(_INSIST_EVERY_S * self.wait_scale)


def check_completed(job: VideoJob) -> None:
    """Raise ``TaskNotReady`` if a job has not ended, ``NotFound`` if it has failed."""
    if not job.ended:
        raise TaskNotReady("The video is not completed yet", param="video_id")
    if job.state == "failed":
        raise NotFound("The job has failed: there is no video", param="video_id", should_retry=False)


def build_end(job: VideoJob, now_ms: int) -> RequestRecord:
    """Return the request log's record of an ended job, with its charge."""
    completed, receipt = job.state == "completed", job.receipt
    return attrs.evolve(
        receipt,
        settled_ms=now_ms,
        outcome=job.outcome or "failed",
        status=receipt.status if receipt.outcome != "interrupted" else 500,
        error_code=job.error_code or receipt.error_code,
        error=build_error(job.error_message) if job.error_message else receipt.error,
        channel=job.channel or receipt.channel,
        attempts=max(receipt.attempts, int(bool(job.channel))),
        cost_nanos=job.cost_nanos if completed else 0,
        duration_ms=int(job.seconds or 0) * 1000 if completed else 0,
        usage_source="upstream" if completed else "none",
        total_ms=max(0, now_ms - receipt.started_ms),
    )


def _refuse_more(most: int) -> RateLimited:
    return RateLimited(f"The account has {most} videos under way already", retry_after_s=30)
