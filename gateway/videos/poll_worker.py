"""Looks at every job when it is due: claimed in batches, asked after at the same time, and noted in batches again.

Each channel has places of its own, for answers and for files: what is slow or dead takes its own places and no
other's. A process that works on jobs says every few seconds that it is alive; what a dead one was at is taken over.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial

import structlog

from gateway.domain.video import Claim, VideoJob
from gateway.errors import GatewayError, StoreUnavailable
from gateway.videos.jobs import LEASE_MS, Videos
from gateway.videos.tracker import VideoTracker

TICK_S = 0.25
"""While something is due or under way: the answers and the claims of so long go into one commit each."""
IDLE_S = 10.0
PAUSE_S = 0.05
"""Between two turns, however much there is to do."""
RENEW_S = LEASE_MS / 1000 / 4
STRAYS_S = 60.0
MOST = 400
"""Claimed at a time."""
AGAIN_MS = 2_000
FETCHES = 4
"""Files of one channel at a time."""

log = structlog.stdlib.get_logger(__name__)


class VideoPoller:
    """The job between ``VideoRepository`` and ``VideoTracker``.

    Args:
        videos: where jobs are kept.
        watch: looks at one.
        polls: answers of one channel that are waited for at a time; asked anew at every turn.

    Attributes:
        idle: there is no job at the start, and the store is not asked until somebody wakes this one.
    """

    def __init__(self, videos: Videos, watch: VideoTracker, *, polls: Callable[[], int]) -> None:
        self._videos = videos
        self._watch = watch
        self._polls = polls
        self._wakened = asyncio.Event()
        self._working: dict[str, tuple[str, bool]] = {}
        self._tasks: dict[str, asyncio.Task[VideoJob | None]] = {}
        self._seen: list[tuple[VideoJob, VideoJob]] = []
        self._renewed_s = self._looked_s = float("-inf")
        self._more = self.idle = False

    def wake(self) -> None:
        """There is a job to be looked at."""
        self._wakened.set()

    def drop(self, video_id: str) -> None:
        """A job has ended under our hands: its place is another's."""
        task = self._tasks.get(video_id)
        if task is not None:
            task.cancel()

    async def run(self) -> None:
        """For ever. Cancelled, it leaves what is under way to whoever claims it next."""
        try:
            if self.idle:
                await self._rest(IDLE_S)
            while True:
                self._wakened.clear()  # before the turn: who wakes it during one has begun what it may have missed
                try:
                    wait_s = await self._turn()
                except StoreUnavailable as fault:
                    log.warning("videos_not_polled", error=fault.message)
                    wait_s = 1.0
                await self._rest(wait_s)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _rest(self, wait_s: float) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self._wakened.wait()
        except TimeoutError:
            return
        await asyncio.sleep(PAUSE_S)

    async def _turn(self) -> float:
        """Note, claim, begin. Returns after how many seconds there is to be another turn."""
        await self._note()
        await self._renew()
        await self._find_strays()
        if not self._working:
            due_ms = await self._videos.store.find_next_due()
            wait_s = IDLE_S if due_ms is None else (due_ms - self._videos.now_ms) / 1000
            if wait_s > 0:
                return min(max(wait_s, TICK_S), IDLE_S)
        self._more = False
        for fetching in (False, True):
            for job in await self._claim(fetching=fetching):
                self._start(job)
        return TICK_S

    async def _note(self) -> None:
        """What was seen since the last turn."""
        seen, self._seen = self._seen, []
        if seen:
            noted = False
            try:
                await self._videos.advance(seen)
                noted = True
            finally:
                if not noted:
                    self._seen = seen + self._seen
            for _, after in seen:
                self._working.pop(after.id, None)

    async def _renew(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._renewed_s >= RENEW_S and (self._working or self._videos.busy):
            await self._videos.store.renew(self._videos.owner, self._videos.now_ms + LEASE_MS)
            self._renewed_s = now_s

    async def _find_strays(self) -> None:
        """Let go of jobs that are ours by the record, and that nobody here is at: of a claim whose answer was lost."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._looked_s < STRAYS_S:
            return
        videos = self._videos
        mine = [job for job in await videos.store.list_open() if job.owner == videos.owner]
        strays = [job for job in mine if job.id not in self._working and not videos.has_in_hand(job.id)]
        if strays:
            await videos.store.advance([(job, job.let_go(videos.now_ms)) for job in strays])
        self._looked_s = now_s

    async def _claim(self, *, fetching: bool) -> list[VideoJob]:
        each = FETCHES if fetching else self._polls()
        busy = Counter(channel for channel, fetches in self._working.values() if fetches == fetching)
        claim = Claim(
            owner=self._videos.owner,
            now_ms=self._videos.now_ms,
            lease_ms=LEASE_MS,
            most=MOST,
            each=each,
            fetching=fetching,
            full=frozenset(channel for channel, count in busy.items() if 2 * count > each),
        )
        claimed = await self._videos.store.claim_due(claim)
        taken: list[VideoJob] = []
        for job in claimed:
            busy[job.channel] += 1
            if job.id in self._working:  # where the clock was set, leases of our own may seem to have run out
                continue
            if busy[job.channel] <= each:
                taken.append(job)
            else:  # a channel has half of its places free, or more: the rest of what was claimed waits on
                self._seen.append((job, job.let_go(job.due_ms or claim.now_ms)))
        self._more = self._more or any(count >= each for count in busy.values())
        return taken

    def _start(self, job: VideoJob) -> None:
        self._working[job.id] = job.channel, job.state == "fetching"
        task = asyncio.get_running_loop().create_task(self._watch.look(job))
        self._tasks[job.id] = task
        task.add_done_callback(partial(self._end, job))

    def _end(self, job: VideoJob, task: "asyncio.Task[VideoJob | None]") -> None:
        """A job was looked at. What went wrong is said, and it is looked at again."""
        del self._tasks[job.id]
        if self._more:  # others may wait for its place
            self._wakened.set()
        if task.cancelled():
            self._seen.append((job, job.let_go(self._videos.now_ms)))  # where this is no stop, but a new start
            return
        error = task.exception()
        if error is not None:
            log.error("video_not_looked_at", video_id=job.id, error=str(error), exc_info=_find_bug(error))
        after = task.result() if error is None else job.let_go(self._videos.now_ms + AGAIN_MS)
        if after is None:
            self._working.pop(job.id, None)
        else:
            self._seen.append((job, after))


def _find_bug(error: BaseException) -> BaseException | None:
    """What is to be shown whole; a condition is said by its words."""
    return None if isinstance(error, GatewayError) else error
