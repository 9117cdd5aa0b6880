"""Polls video jobs when they are due: claims a batch, polls its jobs concurrently, stores the results as one batch.

Each channel has its own limits of concurrent polls and downloads, so a slow provider delays only its own jobs.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial

import structlog

from gateway.domain.video import Claim, VideoJob
from gateway.errors import GatewayError, StoreUnavailable
from gateway.events import Events
from gateway.videos.events import JobCancelled, JobStarted, ShareChanged
from gateway.videos.job_tasks import CLAIM_MS
from gateway.videos.jobs import VideoJobs
from gateway.videos.tracker import VideoTracker

TICK_S = 0.25
"""Pause while jobs are due or in progress. All results of a pause share a commit; so do all polls that are claimed."""
IDLE_S = 10.0
MIN_PAUSE_S = 0.05
"""The shortest pause between two turns."""
RENEW_INTERVAL_S = CLAIM_MS / 1000 / 4
LOST_CLAIMS_INTERVAL_S = 60.0
MAX_CLAIMED_JOBS = 400
"""Maximum number of jobs claimed at once."""
CRASH_PAUSE_MS = 2_000
MAX_FETCHES = 4
"""Concurrent downloads per channel."""

log = structlog.stdlib.get_logger(__name__)


class VideoPoller:
    """The worker that passes jobs from ``VideoRepository`` to ``VideoTracker``.

    Args:
        events: trigger an immediate search for due jobs, or stop a task.
        find_max_polls: returns how many polls of one channel may run concurrently.
        owns: returns whether this node polls a channel's jobs; None for a single process.
        idle: whether no job is open at the start; the worker then does not read the store before an event or
            ``IDLE_S``.
    """

    def __init__(
        self,
        jobs: VideoJobs,
        tracker: VideoTracker,
        events: Events,
        *,
        find_max_polls: Callable[[], int],
        owns: Callable[[str], bool] | None = None,
        idle: bool = False,
    ) -> None:
        self._jobs = jobs
        self._tracker = tracker
        self._find_max_polls = find_max_polls
        self._owns = owns
        self._share: frozenset[str] | None = None
        self._wake_event = asyncio.Event()
        self._jobs_in_work: dict[str, tuple[str, bool]] = {}
        self._tasks: dict[str, asyncio.Task[VideoJob | None]] = {}
        self._results: list[tuple[VideoJob, VideoJob]] = []
        self._renewed_s = self._lost_claims_checked_s = float("-inf")
        self._is_crowded = False
        self._idle = idle
        for kind in (JobStarted, ShareChanged):
            events.subscribe(kind, lambda _: self._wake_event.set())
        events.subscribe(JobCancelled, self._drop)

    def _drop(self, event: JobCancelled) -> None:
        """Cancel the task of an ended job: another job can use its place."""
        task = self._tasks.get(event.video_id)
        if task is not None:
            task.cancel()

    async def run(self) -> None:
        """Run forever. When cancelled, leave unfinished jobs to the next claim."""
        try:
            if self._idle:
                await self._wait(IDLE_S)
            while True:
                self._wake_event.clear()  # before the turn: a job may become due after the turn's claim
                try:
                    wait_s = await self._run_once()
                except StoreUnavailable as error:
                    log.warning("videos_not_polled", error=error.message)
                    wait_s = 1.0
                await self._wait(wait_s)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _wait(self, wait_s: float) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self._wake_event.wait()
        except TimeoutError:
            return
        await asyncio.sleep(MIN_PAUSE_S)

    async def _run_once(self) -> float:
        """Store results, claim jobs and start their tasks. Return the seconds until the next turn."""
        await self._store_results()
        await self._renew()
        await self._release_lost_claims()
        if self._owns is not None:
            self._share = frozenset(filter(self._owns, await self._jobs.store.list_due_channels()))
        if not self._jobs_in_work:
            due_ms = await self._find_next_due()
            wait_s = IDLE_S if due_ms is None else (due_ms - self._jobs.now_ms) / 1000
            if wait_s > 0:
                return min(max(wait_s, TICK_S), IDLE_S)
        self._is_crowded = False
        for fetching in (False, True):
            for job in await self._claim(fetching=fetching):
                self._start(job)
        return TICK_S

    async def _find_next_due(self) -> int | None:
        store = self._jobs.store
        return await (store.find_next_due() if self._share is None else store.find_next_due(self._share))

    async def _store_results(self) -> None:
        results, self._results = self._results, []
        if results:
            is_stored = False
            try:
                await self._jobs.advance(results)
                is_stored = True
            finally:
                if not is_stored:
                    self._results = results + self._results
            for _, job in results:
                self._jobs_in_work.pop(job.id, None)

    async def _renew(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._renewed_s >= RENEW_INTERVAL_S and (self._jobs_in_work or self._jobs.tasks.busy):
            await self._jobs.store.renew(self._jobs.tasks.process, self._jobs.now_ms + CLAIM_MS)
            self._renewed_s = now_s

    async def _release_lost_claims(self) -> None:
        """Repair what lost answers of the store leave behind, once per ``LOST_CLAIMS_INTERVAL_S``.

        Releases jobs that this process has claimed and has no task for, and settles the reservations of ended jobs.
        """
        now_s = asyncio.get_running_loop().time()
        if now_s - self._lost_claims_checked_s < LOST_CLAIMS_INTERVAL_S:
            return
        jobs = self._jobs
        open_jobs = await jobs.store.list_open()
        await jobs.reservations.settle_ended_jobs({job.id for job in open_jobs})
        claimed_jobs = [job for job in open_jobs if job.owner == jobs.tasks.process]
        orphans = [job for job in claimed_jobs if job.id not in self._jobs_in_work and not jobs.tasks.is_active(job.id)]
        if orphans:
            await jobs.store.advance([(job, job.release(jobs.now_ms)) for job in orphans])
        self._lost_claims_checked_s = now_s

    async def _claim(self, *, fetching: bool) -> list[VideoJob]:
        limit = MAX_FETCHES if fetching else self._find_max_polls()
        busy = Counter(channel for channel, fetches in self._jobs_in_work.values() if fetches == fetching)
        claim = Claim(
            process=self._jobs.tasks.process,
            now_ms=self._jobs.now_ms,
            duration_ms=CLAIM_MS,
            max_jobs=MAX_CLAIMED_JOBS,
            max_per_channel=limit,
            fetching=fetching,
            full_channels=frozenset(channel for channel, job_count in busy.items() if 2 * job_count > limit),
            channels=self._share,
        )
        due_jobs = await self._jobs.store.claim_due(claim)
        started_jobs: list[VideoJob] = []
        for job in due_jobs:
            busy[job.channel] += 1
            if job.id in self._jobs_in_work:  # the clock was changed: an own claim seems to have expired
                continue
            if busy[job.channel] <= limit:
                started_jobs.append(job)
            else:  # Release claimed jobs that exceed the channel's free slots.
                self._results.append((job, job.release(job.due_ms or claim.now_ms)))
        self._is_crowded = self._is_crowded or any(job_count >= limit for job_count in busy.values())
        return started_jobs

    def _start(self, job: VideoJob) -> None:
        self._jobs_in_work[job.id] = job.channel, job.state == "fetching"
        task = asyncio.get_running_loop().create_task(self._tracker.check(job))
        self._tasks[job.id] = task
        task.add_done_callback(partial(self._end_poll, job))

    def _end_poll(self, job: VideoJob, task: "asyncio.Task[VideoJob | None]") -> None:
        """Queue the result of a task. A failed task is logged, and its job is polled again."""
        del self._tasks[job.id]
        if self._is_crowded:  # another job may be waiting for the place
            self._wake_event.set()
        if task.cancelled():
            # The job was cancelled. If the worker is stopping, nothing stores this result, and the claim expires.
            self._results.append((job, job.release(self._jobs.now_ms)))
            return
        error = task.exception()
        if error is not None:
            log.error("video_poll_crashed", video_id=job.id, error=str(error), exc_info=_find_bug(error))
        new_job = task.result() if error is None else job.release(self._jobs.now_ms + CRASH_PAUSE_MS)
        if new_job is None:
            self._jobs_in_work.pop(job.id, None)
        else:
            self._results.append((job, new_job))


def _find_bug(error: BaseException) -> BaseException | None:
    """Return ``error`` if its traceback should be logged. None for a ``GatewayError``, whose message says enough."""
    return None if isinstance(error, GatewayError) else error
