"""Jobs are looked at when they are due, at the same time, and none at the cost of another channel's."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import Any

import attrs
import pytest
from sqlalchemy import delete
from structlog.testing import capture_logs
from typing_extensions import override

from gateway.domain.video import Claim, VideoJob
from gateway.errors import StoreUnavailable
from gateway.storage.schema import videos
from gateway.videos.events import JobCancelled, JobStarted
from gateway.videos.job_tasks import CLAIM_MS
from gateway.videos.poll_worker import (
    CRASH_PAUSE_MS,
    IDLE_S,
    MAX_CLAIMED_JOBS,
    MAX_FETCHES,
    RENEW_INTERVAL_S,
    TICK_S,
    VideoPoller,
)
from gateway.videos.tracker import VideoTracker
from tests.support.table_rows import table_rows
from tests.support.video_records import list_jobs, make_job
from tests.support.video_services import UnreliableStore, VideoServices, play, run, task

LATE_S = 2 * TICK_S
Poll = Callable[[VideoJob], Awaitable[None]]


async def answer(_job: VideoJob) -> None:
    """As a provider that is well."""
    await asyncio.sleep(0.1)


async def hang(_job: VideoJob) -> None:
    """As one that never answers."""
    await asyncio.sleep(10**9)


class Store(UnreliableStore):
    """It can be told to fail at every verb of the poller's, and remembers what was noted at a time."""

    noted: list[int]
    bug: Exception | None = None
    next_due: Callable[[], Awaitable[None]] | None = None

    async def claim_due(self, claim: Claim) -> Sequence[VideoJob]:
        await asyncio.sleep(0)
        self._check("claim_fetching" if claim.fetching else "claim")
        assert claim.max_jobs == MAX_CLAIMED_JOBS
        return await super().claim_due(claim)

    async def advance(self, changes: Any) -> Sequence[bool]:
        pairs = list(changes)
        await asyncio.sleep(0)
        if self.bug is not None:
            bug, self.bug = self.bug, None
            raise bug
        done = await super().advance(pairs)
        self.noted.append(len(pairs))
        return done

    async def find_next_due(self, only: frozenset[str] | None = None) -> int | None:  # noqa: ARG002 - it stands for every channel
        due_ms = await super().find_next_due()
        await asyncio.sleep(0)
        if self.next_due is not None:
            await self.next_due()
        return due_ms


class Tracker(VideoTracker):
    """Leaves every check to the scenario."""

    def __init__(self, scenario: "PollScenario") -> None:
        self._scenario = scenario

    @override
    async def check(self, job: VideoJob) -> VideoJob | None:
        return await self._scenario.check(job)


class PollScenario:
    """The poller between a store and a watch that does as the channels' names say."""

    def __init__(self, *, polls: int = 16, **poll_functions: Poll) -> None:
        self.services = VideoServices(play(task()))
        self.store = Store(self.services.books.database)
        self.store.noted = []
        self.services.store = self.services.videos.store = self.services.tasks._store = self.store
        self.poll_functions = poll_functions
        self.polls = polls
        self.job = self.make_job()
        self.running: asyncio.Task[None] | None = None
        self.looked: defaultdict[str, list[float]] = defaultdict(list)
        self.late: list[float] = []
        self.under_way: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.ends: set[str] = set()
        self.wait_s = 5.0

    def make_job(self) -> VideoPoller:
        return VideoPoller(self.services.videos, Tracker(self), self.services.events, find_max_polls=lambda: self.polls)

    async def check(self, job: VideoJob) -> VideoJob | None:
        assert job.owner == self.services.tasks.process
        kind = f"{job.channel} fetching" if job.state == "fetching" else job.channel
        self.looked[job.id].append(self.now_s)
        self.late.append((self.services.now_ms - (job.due_ms or 0)) / 1000)
        self.under_way[kind] += 1
        self.most[kind] = max(self.most[kind], self.under_way[kind])
        try:
            await self.poll_functions.get(job.channel, answer)(job)
        finally:
            self.under_way[kind] -= 1
        if job.id in self.ends:
            await self.services.books.database.change(delete(videos).where(videos.c.id == job.id))
            return None
        after = attrs.evolve(job, polls=job.polls + 1)
        return after.release(self.services.now_ms + round(self.wait_s * 1000))

    @property
    def now_s(self) -> float:
        return self.services.loop.time()

    async def put(self, channel: str, *names: object, **values: Any) -> None:
        """Jobs that are due now."""
        for name in names:
            await self.store.create(make_job(name, channel=channel, **{"due_ms": self.services.now_ms, **values}))

    async def pass_time(self, seconds: float) -> None:
        if self.running is None:
            self.running = asyncio.create_task(self.job.run())
        await asyncio.sleep(seconds)

    async def stop(self) -> None:
        if self.running is not None:
            running, self.running = self.running, None
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert not self.job._tasks

    async def check_alive(self) -> None:
        assert self.running is not None
        assert not self.running.done()
        await self.stop()


def test_what_is_due_is_looked_at_at_the_same_time_and_noted_together() -> None:
    async def scene() -> None:
        scenario = PollScenario(polls=100)
        await scenario.put("up", *range(60))
        await scenario.pass_time(1.0)
        assert len(scenario.looked) == 60
        assert scenario.most["up"] == 60
        assert scenario.store.noted == [60], "one commit, not sixty"
        jobs = [await scenario.store.find(f"video_{number}") for number in range(60)]
        assert {(job.polls, job.owner) for job in jobs if job} == {(1, "")}
        await scenario.check_alive()

    run(scene())


def test_every_job_is_looked_at_when_it_is_due_and_not_before() -> None:
    async def scene() -> None:
        scenario = PollScenario()
        now_ms = scenario.services.now_ms
        for number, wait_s in enumerate((0.0, 1.3, 3.0, 9.0, 25.0)):
            await scenario.put("up", number, due_ms=now_ms + round(wait_s * 1000))
        await scenario.pass_time(120.0)
        assert all(0 <= late <= LATE_S for late in scenario.late)
        assert all(len(times) >= 18 for times in scenario.looked.values())
        await scenario.check_alive()

    run(scene())


def test_a_channel_that_does_not_answer_takes_its_own_places_and_no_others() -> None:
    async def scene() -> None:
        scenario = PollScenario(polls=3, dead=hang)
        await scenario.put("dead", *range(50))
        await scenario.put("well", *range(100, 110))
        await scenario.pass_time(30.0)
        assert scenario.most["dead"] == 3
        jobs = await list_jobs(scenario.store)
        assert len([name for name in scenario.looked if jobs[name].channel == "dead"]) == 3
        assert scenario.most["well"] == 3
        for number in range(100, 110):
            times = scenario.looked[f"video_{number}"]
            assert len(times) >= 4
            assert max(b - a for a, b in pairwise(times)) <= scenario.wait_s * 1.5
        await scenario.check_alive()

    run(scene())


def test_a_bound_that_is_changed_holds_from_then_on() -> None:
    async def scene() -> None:
        scenario = PollScenario(polls=2, dead=hang)
        await scenario.put("dead", *range(20))
        await scenario.pass_time(2.0)
        assert scenario.most["dead"] == 2
        scenario.polls = 7
        await scenario.pass_time(2.0)
        assert scenario.most["dead"] >= 7
        await scenario.check_alive()

    run(scene())


def test_files_have_places_of_their_own() -> None:
    async def scene() -> None:
        scenario = PollScenario(polls=16, up=hang)
        await scenario.put("up", *range(20))
        await scenario.put("up", *range(100, 120), state="fetching")
        await scenario.pass_time(5.0)
        assert (scenario.most["up"], scenario.most["up fetching"]) == (16, MAX_FETCHES)
        await scenario.check_alive()

    run(scene())


def test_a_job_that_has_ended_is_done_with_and_its_place_is_free() -> None:
    async def scene() -> None:
        scenario = PollScenario(polls=1)
        await scenario.put("up", *range(5))
        scenario.ends = {f"video_{number}" for number in range(5)}
        await scenario.pass_time(5.0)
        assert [len(times) for times in scenario.looked.values()] == [1] * 5
        assert scenario.store.noted == []
        await scenario.pass_time(2 * IDLE_S)
        assert scenario.job._jobs_in_work == {}
        await scenario.check_alive()

    run(scene())


# ---- woken


def test_a_new_job_is_looked_at_when_somebody_says_so() -> None:
    async def scene() -> None:
        scenario = PollScenario()
        await scenario.pass_time(3.0)
        await scenario.put("up", 1)
        await scenario.pass_time(2.0)
        assert scenario.looked == {}, "nobody has said so, and it looks every ten seconds"
        scenario.services.events.publish(JobStarted())
        await scenario.pass_time(TICK_S)
        assert len(scenario.looked) == 1
        await scenario.put("up", 2)
        await scenario.pass_time(IDLE_S + 1)
        assert len(scenario.looked) == 2, "another process's is seen all the same"
        await scenario.check_alive()

    run(scene())


def test_who_wakes_it_while_it_looks_is_not_missed() -> None:
    """A job that is begun after the claim and before the rest."""

    async def scene() -> None:
        scenario = PollScenario()

        async def begin() -> None:
            scenario.store.next_due = None
            await scenario.store.create(make_job(1, channel="up", due_ms=scenario.services.now_ms))
            scenario.services.events.publish(JobStarted())

        scenario.store.next_due = begin
        await scenario.pass_time(TICK_S)
        assert len(scenario.looked) == 1
        await scenario.check_alive()

    run(scene())


# ---- what goes wrong


@table_rows("error", [RuntimeError("a bug"), StoreUnavailable("not now")])
def test_a_look_that_goes_wrong_is_said_and_made_again_and_others_go_on(error: Exception) -> None:
    async def scene() -> None:
        async def fail(job: VideoJob) -> None:
            if len(scenario.looked[job.id]) == 1:
                raise error

        scenario = PollScenario(odd=fail)
        await scenario.put("odd", 1)
        await scenario.put("up", 2)
        with capture_logs() as lines:
            await scenario.pass_time(CRASH_PAUSE_MS / 1000 + 1)
        first, second = scenario.looked["video_1"]
        assert CRASH_PAUSE_MS / 1000 <= second - first <= CRASH_PAUSE_MS / 1000 + LATE_S
        (line,) = lines
        assert (line["event"], line["video_id"], line["log_level"]) == ("video_poll_crashed", "video_1", "error")
        assert (line["exc_info"] is error) is isinstance(error, RuntimeError)
        assert len(scenario.looked["video_2"]) == 1
        await scenario.check_alive()

    run(scene())


def test_a_store_that_fails_is_asked_again() -> None:
    async def scene() -> None:
        scenario = PollScenario()
        await scenario.put("up", 1)
        scenario.store.refused = {"claim": 2}
        with capture_logs() as lines:
            await scenario.pass_time(3.0)
        assert [line["event"] for line in lines] == ["videos_not_polled"] * 2
        assert len(scenario.looked) == 1
        await scenario.check_alive()

    run(scene())


def test_what_was_claimed_before_a_store_failed_is_looked_at() -> None:
    """Else nobody would: it is this process's own, which is alive."""

    async def scene() -> None:
        scenario = PollScenario()
        await scenario.put("up", 1)
        scenario.store.refused = {"claim_fetching": 1}
        await scenario.pass_time(3.0)
        assert len(scenario.looked) == 1
        await scenario.check_alive()

    run(scene())


def test_what_was_seen_is_noted_as_soon_as_it_can_be_and_not_seen_twice() -> None:
    async def scene() -> None:
        scenario = PollScenario()
        await scenario.put("up", *range(3))
        scenario.store.refused = {"advance": 5}
        scenario.wait_s = 60.0
        await scenario.pass_time(20.0)
        assert scenario.store.noted == [3]
        assert [len(times) for times in scenario.looked.values()] == [1] * 3
        await scenario.check_alive()

    run(scene())


def test_after_a_bug_of_the_stores_everything_is_looked_at_again() -> None:
    """The runner starts the job anew: what was under way is not this process's for ever."""

    async def scene() -> None:
        scenario = PollScenario(slow=hang)
        await scenario.put("slow", 1)
        await scenario.put("up", 2)
        scenario.store.bug = ValueError("a bug")
        await scenario.pass_time(2.0)
        assert scenario.running is not None
        with pytest.raises(ValueError, match="a bug"):
            await scenario.running
        scenario.running = None
        scenario.poll_functions = {}
        await scenario.pass_time(10.0)
        assert [len(scenario.looked[name]) >= 2 for name in ("video_1", "video_2")] == [True, True]
        await scenario.check_alive()

    run(scene())


def test_a_job_that_is_cancelled_under_its_hands_gives_its_place_to_another() -> None:
    async def scene() -> None:
        scenario = PollScenario(polls=1, dead=hang)
        await scenario.put("dead", 1)
        await scenario.pass_time(1.0)
        await scenario.put("dead", 2)
        await scenario.pass_time(20.0)
        assert set(scenario.looked) == {"video_1"}
        await scenario.services.books.database.change(
            delete(videos).where(videos.c.id == "video_1")
        )  # as it is when it has ended elsewhere
        scenario.services.events.publish(JobCancelled("video_1"))
        scenario.services.events.publish(JobCancelled("video_9"))
        await scenario.pass_time(1.0)
        assert (set(scenario.looked), scenario.under_way["dead"]) == ({"video_1", "video_2"}, 1)
        assert len(scenario.looked["video_1"]) == 1
        await scenario.check_alive()

    run(scene())


# ---- leases


def test_what_is_under_way_stays_this_processs_however_long_it_takes() -> None:
    async def scene() -> None:
        scenario = PollScenario(slow=hang)
        await scenario.put("slow", 1)
        await scenario.pass_time(1.0)
        for _ in range(30):
            await scenario.pass_time(5.0)
            left_ms = (await list_jobs(scenario.store))["video_1"].lease_until_ms - scenario.services.now_ms
            assert CLAIM_MS - (RENEW_INTERVAL_S + 1) * 1000 <= left_ms <= CLAIM_MS
            others = Claim("other", scenario.services.now_ms, CLAIM_MS, MAX_CLAIMED_JOBS, 9)
            assert await scenario.store.claim_due(others) == []
        assert len(scenario.looked["video_1"]) == 1
        await scenario.check_alive()

    run(scene())


def test_what_a_dead_process_was_at_is_taken_over_once_its_lease_is_over() -> None:
    async def scene() -> None:
        scenario = PollScenario()
        lease = scenario.services.now_ms + CLAIM_MS
        await scenario.put("up", 1, owner="dead", lease_until_ms=lease)
        await scenario.pass_time(CLAIM_MS / 1000 - 1)
        assert scenario.looked == {}
        await scenario.pass_time(IDLE_S + 1)
        assert len(scenario.looked) == 1
        await scenario.check_alive()

    run(scene())


def test_a_stop_leaves_what_is_under_way_to_whoever_claims_it_next() -> None:
    async def scene() -> None:
        scenario = PollScenario(slow=hang)
        await scenario.put("slow", *range(3))
        await scenario.pass_time(1.0)
        await scenario.stop()
        assert scenario.under_way["slow"] == 0
        await scenario.services.tasks.close()
        assert {job.owner for job in (await list_jobs(scenario.store)).values()} == {""}
        scenario.job, scenario.poll_functions = scenario.make_job(), {}
        await scenario.pass_time(1.0)
        assert [len(times) for times in scenario.looked.values()] == [2] * 3
        await scenario.check_alive()

    run(scene())
