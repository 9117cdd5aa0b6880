"""What becomes of a job that is looked at: only its provider's own word fails it, and time."""

import asyncio
from typing import Any

import attrs
import pytest
from structlog.testing import capture_logs

from gateway.domain.video import LONGEST_HINT_S, VideoJob
from gateway.errors import ProviderBadResponse, ProviderContentGone, ProviderTimeout, StoreUnavailable
from gateway.videos.tracker import MOST_GONE, MOST_MISSED
from tests.support.video_records import put_job
from tests.support.video_services import A_SECOND, CLIP, Answer, Reel, Said, Stage, play, refuse, run, task

HELD = 4 * A_SECOND
GONE = ProviderContentGone("It is not there")


async def begin(stage: Stage, state: str = "processing", **changes: Any) -> VideoJob:
    """A job in that state that this process is about to look at."""
    job = await stage.submit()
    known = await stage.find(job)
    if state != known.state:
        known = known.move(state, stage.now_ms)  # type: ignore[arg-type]
    await put_job(stage.store, attrs.evolve(known, **changes))
    stage.provider.asked.clear()
    return await stage.claim(known)


async def look(stage: Stage, job: VideoJob) -> VideoJob | None:
    """After a look, which is recorded."""
    after = await stage.watch.check(job)
    if after is not None:
        assert (after.owner, after.lease_until_ms) == ("", 0)
        assert await stage.store.advance([(job, after)]) == [True]
    return after


def wait_of(stage: Stage, job: VideoJob) -> float:
    """Seconds until it is due."""
    assert job.due_ms is not None
    return (job.due_ms - stage.now_ms) / 1000


# ---- verdicts


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        (task("failed", error={"code": "x", "message": "The camera broke"}), "upstream_error", "The camera broke"),
        (task("failed"), "upstream_error", "The provider gave no reason"),
        (task("cancelled"), "upstream_error", "The provider gave no reason"),
        (task("failed", error={"code": "moderation_blocked", "message": "No"}), "content_policy_violation", "No"),
    ],
)
@pytest.mark.parametrize("state", ["queued", "processing"])
def test_what_its_provider_says_has_failed_has(state: str, answer: Said, code: str, message: str) -> None:
    async def scene() -> None:
        stage = Stage(play(task(), answer))
        job = await begin(stage, state)
        assert await look(stage, job) is None
        failed = await stage.find(job)
        assert (failed.state, failed.error_code, failed.error_message) == ("failed", code, message)
        assert (stage.held, [row.cost_nanos for row in await stage.rows()]) == (0, [0])
        assert [(asked.method, asked.path) for asked in stage.provider.asked] == [("GET", "/videos/video_theirs")]

    run(scene())


NO_VERDICT: list[Answer] = [
    refuse(500), refuse(502), refuse(503), refuse(400), refuse(401), refuse(403), refuse(404, "Video not found"),
    refuse(410), refuse(400, code="moderation_blocked"), refuse(429), Said(b"<html>Bad gateway</html>", 502),
    Said(b"<html>welcome</html>", 200), Said(b"", 200), Said(b"null", 200), Said({}, 200), Said({"error": "x"}, 200),
    Said({"status": None}, 200), Said({}, 200, breaks=ProviderBadResponse("It broke off", phase="body")),
    Said({}, 302), Said({}, wait_s=10**6), ProviderBadResponse("The connection broke", phase="headers"),
    ProviderTimeout("Connecting took too long", phase="connect"),
]  # fmt: skip


@pytest.mark.parametrize("answer", NO_VERDICT)
def test_an_answer_that_is_none_says_nothing_of_the_job_which_goes_on(answer: Answer) -> None:
    async def scene() -> None:
        stage = Stage(play(task(), *[answer] * 8, task("in_progress", progress=40), task("completed")))
        job = await begin(stage, progress=30, polls=3)
        waits = []
        for _ in range(8):
            after = await look(stage, job)
            assert after is not None
            assert (after.state, after.progress, after.polls) == ("processing", 30, 3)
            waits.append(wait_of(stage, after))
            job = await stage.claim(after)
        assert job.failures == 8
        assert waits == [2, 4, 8, 16, 32, 60, 60, 60]
        going = await look(stage, job)
        assert going is not None
        assert (going.failures, going.progress, going.polls) == (0, 40, 4)
        done = await look(stage, await stage.claim(going))
        assert done is not None
        assert done.state == "fetching"
        assert (stage.held, await stage.rows()) == (HELD, [])

    run(scene())


def test_a_job_that_goes_on_is_looked_at_less_and_less_often() -> None:
    async def scene() -> None:
        stage = Stage(play(task(), *[task("in_progress", progress=number) for number in (10, 20, 15, 100, 30)]))
        job = await begin(stage)
        seen = []
        for _ in range(5):
            after = await look(stage, job)
            assert after is not None
            seen.append((after.progress, after.polls, wait_of(stage, after)))
            job = await stage.claim(after)
        assert seen == [(10, 1, 4), (20, 2, 8), (20, 3, 15), (99, 4, 15), (99, 5, 15)]

    run(scene())


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"openai-poll-after-ms": "7000"}, 7), ({"Retry-After": "40"}, 40), ({"openai-poll-after-ms": "1"}, 0.5),
        ({"openai-poll-after-ms": "999999999"}, LONGEST_HINT_S), ({"Retry-After": "999999"}, LONGEST_HINT_S),
        ({"openai-poll-after-ms": "soon"}, 4), ({"openai-poll-after-ms": "-5"}, 4),
        ({"openai-poll-after-ms": "\u0664"}, 4), ({"openai-poll-after-ms": "9" * 400}, 4),
        ({"openai-poll-after-ms": "5000", "Retry-After": "40"}, 5),
    ],
)  # fmt: skip
def test_a_provider_may_say_when_it_is_to_be_asked_again(headers: dict[str, str], wait_s: float) -> None:
    async def scene() -> None:
        stage = Stage(play(task(), task("in_progress", headers=headers)))
        after = await look(stage, await begin(stage))
        assert after is not None
        assert wait_of(stage, after) == wait_s

    run(scene())


@pytest.mark.parametrize(("told", "wait_s"), [("7", 7), ("99999", LONGEST_HINT_S), ("0", 2)])
def test_a_rate_limit_may_say_it_too(told: str, wait_s: float) -> None:
    async def scene() -> None:
        stage = Stage(play(task(), refuse(429, Retry_After=told)))
        after = await look(stage, await begin(stage))
        assert after is not None
        assert wait_of(stage, after) == wait_s
        assert after.failures == 1

    run(scene())


@pytest.mark.parametrize(
    ("known", "told", "state"),
    [
        ("queued", "queued", "queued"), ("queued", "in_progress", "processing"), ("queued", "pondering", "queued"),
        ("processing", "queued", "processing"), ("processing", "pondering", "processing"),
        ("processing", "in_progress", "processing"), ("queued", "completed", "fetching"),
    ],
)  # fmt: skip
def test_a_job_moves_on_and_never_back(known: str, told: str, state: str) -> None:
    async def scene() -> None:
        stage = Stage(play(task(), task(told)))
        after = await look(stage, await begin(stage, known))
        assert after is not None
        assert after.state == state

    run(scene())


# ---- the file


def test_the_file_of_a_finished_job_is_fetched_at_once_and_then_it_is_completed() -> None:
    async def scene() -> None:
        stage = Stage(play(task(), task("completed")))
        fetching = await look(stage, await begin(stage, failures=3))
        assert fetching is not None
        assert (fetching.state, fetching.failures, wait_of(stage, fetching)) == ("fetching", 0, 0)
        assert stage.files.asked == []
        assert await look(stage, await stage.claim(fetching)) is None
        done = await stage.find(fetching)
        assert (done.state, done.media_bytes, done.media_type) == ("completed", len(CLIP), "video/mp4")
        assert stage.shelf.files == {done.media_id: CLIP}
        assert [row.cost_nanos for row in await stage.rows()] == [HELD]

    run(scene())


def test_where_nothing_is_kept_a_finished_job_is_completed_at_once() -> None:
    async def scene() -> None:
        stage = Stage(play(task(), task("completed")))
        stage.rules = attrs.evolve(stage.rules, keep=False)
        job = await begin(stage)
        assert await look(stage, job) is None
        done = await stage.find(job)
        assert (done.state, done.media_id, stage.files.asked) == ("completed", None, [])

    run(scene())


@pytest.mark.parametrize(
    "trouble",
    [
        ProviderBadResponse("The file was answered with status 500"),
        ProviderTimeout("Nothing came", phase="body"),
        Reel([CLIP[:100], ProviderBadResponse("It broke off", phase="body")], len(CLIP)),
        Reel([CLIP[:100]], len(CLIP)),
        Reel([b"<html>Sign in</html>"], 20),
        Reel([], 0),
    ],
    ids=["500", "silence", "broken", "short", "a page", "empty"],
)
def test_a_file_that_does_not_come_is_fetched_again_later(trouble: Any) -> None:
    async def scene() -> None:
        stage = Stage(play(task(), task("completed")))
        stage.files.reels = [trouble, Reel([CLIP], len(CLIP))]
        after = await look(stage, await begin(stage, "fetching"))
        assert after is not None
        assert (after.state, after.failures, wait_of(stage, after)) == ("fetching", 1, 2)
        assert (stage.shelf.files, stage.shelf.open_drafts) == ({}, 0)
        assert await look(stage, await stage.claim(after)) is None
        assert list(stage.shelf.files.values()) == [CLIP]

    run(scene())


@pytest.mark.parametrize("answer", [task("completed"), refuse(404), refuse(500)])
def test_a_file_that_is_gone_again_and_again_is_lost_at_no_cost(answer: Answer) -> None:
    """Also where its provider knows nothing of the task any more."""

    async def scene() -> None:
        stage = Stage(play(task(), answer))
        stage.files.reels = [GONE]
        job = await begin(stage, "fetching")
        for _ in range(MOST_GONE - 1):
            after = await look(stage, job)
            assert after is not None
            job = await stage.claim(after)
        assert await look(stage, job) is None
        assert (await stage.find(job)).error_code == "content_lost"
        assert [row.cost_nanos for row in await stage.rows()] == [0]

    run(scene())


def test_a_full_disk_is_waited_for() -> None:
    async def scene() -> None:
        stage = Stage(play(task()))
        job = await begin(stage, "fetching")
        stage.shelf.full = True
        after = await look(stage, job)
        assert after is not None
        assert (after.state, after.failures) == ("fetching", 1)
        stage.shelf.full = False
        assert await look(stage, await stage.claim(after)) is None
        assert (await stage.find(job)).state == "completed"

    run(scene())


def test_a_job_that_is_cancelled_while_its_file_is_fetched_leaves_no_file() -> None:
    async def scene() -> None:
        stage = Stage(play(task()))
        job = await begin(stage, "fetching")
        await stage.videos.cancel(job.id)
        assert await look(stage, job) is None
        assert (await stage.find(job)).error_code == "cancelled"
        assert stage.shelf.files == {}
        assert len(await stage.rows()) == 1

    run(scene())


def test_a_store_that_fails_at_the_end_leaves_no_file_and_the_job_as_it_was() -> None:
    async def scene() -> None:
        stage = Stage(play(task()))
        job = await begin(stage, "fetching")
        stage.store.refused = {"finish": 1}
        with pytest.raises(StoreUnavailable):
            await stage.watch.check(job)
        assert (stage.shelf.files, await stage.find(job)) == ({}, job)
        assert await look(stage, job) is None
        assert (await stage.find(job)).state == "completed"

    run(scene())


# ---- time


@pytest.mark.parametrize(
    ("state", "answer", "code"),
    [
        ("processing", task("in_progress"), "timeout"),
        ("processing", task("pondering"), "timeout"),
        ("queued", refuse(500), "timeout"),
        ("processing", ProviderBadResponse("The connection broke"), "timeout"),
        ("fetching", task("completed"), "content_lost"),
    ],
)
def test_after_its_deadline_a_job_of_which_nothing_comes_has_failed(state: str, answer: Answer, code: str) -> None:
    async def scene() -> None:
        stage = Stage(play(task(), answer))
        job = await begin(stage, state)
        stage.files.reels = [ProviderBadResponse("not now")]
        assert job.deadline_ms == job.created_ms + 24 * 3_600_000
        await asyncio.sleep(24 * 3_600 - 1)
        after = await look(stage, await stage.claim(job))
        assert after is not None
        await asyncio.sleep(1)
        assert await look(stage, await stage.claim(job)) is None
        assert (await stage.find(job)).error_code == code
        assert stage.held == 0

    run(scene())


def test_what_comes_after_the_deadline_is_taken_all_the_same() -> None:
    async def scene() -> None:
        stage = Stage(play(task(), task("completed")))
        job = await begin(stage)
        await asyncio.sleep(48 * 3_600)
        fetching = await look(stage, await stage.claim(job))
        assert fetching is not None
        assert await look(stage, await stage.claim(fetching)) is None
        assert (await stage.find(job)).state == "completed"

    run(scene())


# ---- abandoned, or without a channel


@pytest.mark.parametrize(("state", "code"), [("created", "interrupted"), ("submitting", "submit_unknown")])
def test_what_another_process_was_beginning_when_it_died_is_not_begun_again(state: str, code: str) -> None:
    async def scene() -> None:
        stage = Stage(play(task()))
        begun = await begin(stage, "queued")
        await put_job(stage.store, attrs.evolve(begun, state=state, upstream_id=None))  # type: ignore[arg-type]
        job = await stage.claim(begun)
        assert await look(stage, job) is None
        assert (await stage.find(job)).error_code == code
        assert (stage.provider.asked, stage.held) == ([], 0)

    run(scene())


@pytest.mark.parametrize("state", ["queued", "processing", "fetching"])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_channel_that_is_no_more_takes_its_jobs_with_it_and_their_holds(state: str, elsewhere: bool) -> None:
    async def scene() -> None:
        stage = Stage(play(task()))
        job = await begin(stage, state)
        channel, elsewhere_now = stage.channels[0], attrs.evolve(stage.channels[0], provider="openai")
        stage.use(*[elsewhere_now] * elsewhere)
        for _ in range(MOST_MISSED - 1):
            looked = await look(stage, job)
            assert looked is not None, "a slip in a file can be mended"
            job = looked
        stage.use(channel)
        stage.use(*[elsewhere_now] * elsewhere)
        assert await look(stage, job) is None
        assert (await stage.find(job)).error_code == "channel_gone"
        assert (stage.provider.asked, stage.files.asked, stage.held) == ([], [], 0)

    run(scene())


def test_a_disabled_channel_is_asked_after_what_it_has_begun() -> None:
    async def scene() -> None:
        stage = Stage(play(task(), task("completed")))
        job = await begin(stage)
        stage.use(attrs.evolve(stage.channels[0], status="disabled", models=("other",)))
        fetching = await look(stage, job)
        assert fetching is not None
        assert fetching.state == "fetching"

    run(scene())


def test_what_is_not_heard_of_is_said_in_the_log_without_the_callers_words() -> None:
    async def scene() -> None:
        stage = Stage(play(task(), refuse(500, "No cat for key-of-up")))
        job = await begin(stage)
        with capture_logs() as lines:
            await stage.watch.check(job)
        (line,) = lines
        assert (line["event"], line["video_id"], line["channel"], line["failures"]) == (
            "video_poll_failed", job.id, "up", 1,
        )  # fmt: skip
        assert "key-of-up" not in str(line)
        assert "a cat" not in str(line)

    run(scene())
