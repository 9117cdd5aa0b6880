"""What becomes of a job that is looked at: only its provider's own word fails it, and time."""

import asyncio
from typing import Any

import attrs
import pytest
from structlog.testing import capture_logs

from gateway.domain.video import MAX_HINT_S, VideoJob
from gateway.errors import ProviderBadResponse, ProviderContentGone, ProviderTimeout, StoreUnavailable
from gateway.videos.tracker import MAX_GONE_REPORTS, MAX_MISSED_CHECKS, MAX_UNUSABLE_ANSWERS
from tests.support.table_rows import table_rows
from tests.support.video_records import put_job
from tests.support.video_services import (
    A_SECOND,
    CALLER,
    CLIP,
    Answer,
    Answered,
    FileDouble,
    VideoServices,
    play,
    refuse,
    run,
    task,
)

HELD = 4 * A_SECOND
GONE = ProviderContentGone("It is not there")


async def begin(services: VideoServices, state: str = "processing", **changes: Any) -> VideoJob:
    """A job in that state that this process is about to look at."""
    job = await services.submit()
    known = await services.find(job)
    if state != known.state:
        known = known.move(state, services.now_ms)  # type: ignore[arg-type]
    await put_job(services.store, attrs.evolve(known, **changes))
    services.provider.asked.clear()
    return await services.claim(known)


async def look(services: VideoServices, job: VideoJob) -> VideoJob | None:
    """After a look, which is recorded."""
    after = await services.watch.check(job)
    if after is not None:
        assert (after.owner, after.lease_until_ms) == ("", 0)
        assert await services.store.advance([(job, after)]) == [True]
    return after


def wait_of(services: VideoServices, job: VideoJob) -> float:
    """Seconds until it is due."""
    assert job.due_ms is not None
    return (job.due_ms - services.now_ms) / 1000


# ---- verdicts


@table_rows(
    ("answer", "code", "message"),
    [
        (task("failed", error={"code": "x", "message": "The camera broke"}), "upstream_error", "The camera broke (x)"),
        (task("failed"), "upstream_error", "The provider gave no reason"),
        (task("cancelled"), "upstream_error", "The provider gave no reason"),
        (task("failed", error={"code": "moderation_blocked", "message": "No"}), "content_policy_violation", "No"),
    ],
)
@table_rows("state", ["queued", "processing"])
def test_what_its_provider_says_has_failed_has(state: str, answer: Answered, code: str, message: str) -> None:
    async def scene() -> None:
        services = VideoServices(play(task(), answer))
        job = await begin(services, state)
        assert await look(services, job) is None
        failed = await services.find(job)
        assert (failed.state, failed.error_code, failed.error_message) == ("failed", code, message)
        assert (services.held, [row.cost_nanos for row in await services.rows()]) == (0, [0])
        assert [(asked.method, asked.path) for asked in services.provider.asked] == [("GET", "/videos/video_theirs")]

    run(scene())


NO_VERDICT: list[Answer] = [
    refuse(500), refuse(502), refuse(503), refuse(400), refuse(401), refuse(403), refuse(404, "Video not found"),
    refuse(410), refuse(400, code="moderation_blocked"), refuse(429), Answered(b"<html>Bad gateway</html>", 502),
    Answered({}, 200, breaks=ProviderBadResponse("It broke off", phase="body")),
    Answered({}, 302), Answered({}, wait_s=10**6), ProviderBadResponse("The connection broke", phase="headers"),
    ProviderTimeout("Connecting took too long", phase="connect"),
]  # fmt: skip


@table_rows("answer", NO_VERDICT)
def test_an_answer_that_is_none_says_nothing_of_the_job_which_goes_on(answer: Answer) -> None:
    async def scene() -> None:
        services = VideoServices(play(task(), *[answer] * 8, task("in_progress", progress=40), task("completed")))
        job = await begin(services, progress=30, polls=3)
        waits = []
        for _ in range(8):
            after = await look(services, job)
            assert after is not None
            assert (after.state, after.progress, after.polls) == ("processing", 30, 3)
            waits.append(wait_of(services, after))
            job = await services.claim(after)
        assert job.failures == 8
        assert waits == [2, 4, 8, 16, 32, 60, 60, 60]
        going = await look(services, job)
        assert going is not None
        assert (going.failures, going.progress, going.polls) == (0, 40, 4)
        done = await look(services, await services.claim(going))
        assert done is not None
        assert done.state == "fetching"
        assert (services.held, await services.rows()) == (HELD, [])

    run(scene())


def test_a_job_that_goes_on_is_looked_at_less_and_less_often() -> None:
    async def scene() -> None:
        services = VideoServices(
            play(task(), *[task("in_progress", progress=number) for number in (10, 20, 15, 100, 30)])
        )
        job = await begin(services)
        seen = []
        for _ in range(5):
            after = await look(services, job)
            assert after is not None
            seen.append((after.progress, after.polls, wait_of(services, after)))
            job = await services.claim(after)
        assert seen == [(10, 1, 4), (20, 2, 8), (20, 3, 15), (99, 4, 15), (99, 5, 15)]

    run(scene())


@table_rows(
    ("headers", "wait_s"),
    [
        ({"openai-poll-after-ms": "7000"}, 7), ({"Retry-After": "40"}, 40), ({"openai-poll-after-ms": "1"}, 0.5),
        ({"openai-poll-after-ms": "999999999"}, MAX_HINT_S), ({"Retry-After": "999999"}, MAX_HINT_S),
        ({"openai-poll-after-ms": "soon"}, 4), ({"openai-poll-after-ms": "-5"}, 4),
        ({"openai-poll-after-ms": "\u0664"}, 4), ({"openai-poll-after-ms": "9" * 400}, 4),
        ({"openai-poll-after-ms": "5000", "Retry-After": "40"}, 5),
    ],
)  # fmt: skip
def test_a_provider_may_say_when_it_is_to_be_asked_again(headers: dict[str, str], wait_s: float) -> None:
    async def scene() -> None:
        services = VideoServices(play(task(), task("in_progress", headers=headers)))
        after = await look(services, await begin(services))
        assert after is not None
        assert wait_of(services, after) == wait_s

    run(scene())


@table_rows(("message", "wait_s"), [("7", 7), ("99999", MAX_HINT_S), ("0", 2)])
def test_a_rate_limit_may_say_it_too(message: str, wait_s: float) -> None:
    async def scene() -> None:
        services = VideoServices(play(task(), refuse(429, Retry_After=message)))
        after = await look(services, await begin(services))
        assert after is not None
        assert wait_of(services, after) == wait_s
        assert after.failures == 1

    run(scene())


@table_rows(
    ("known", "message", "state"),
    [
        ("queued", "queued", "queued"), ("queued", "in_progress", "processing"), ("queued", "pondering", "queued"),
        ("processing", "queued", "processing"), ("processing", "pondering", "processing"),
        ("processing", "in_progress", "processing"), ("queued", "completed", "fetching"),
    ],
)  # fmt: skip
def test_a_job_moves_on_and_never_back(known: str, message: str, state: str) -> None:
    async def scene() -> None:
        services = VideoServices(play(task(), task(message)))
        after = await look(services, await begin(services, known))
        assert after is not None
        assert after.state == state

    run(scene())


# ---- the file


def test_the_file_of_a_finished_job_is_fetched_at_once_and_then_it_is_completed() -> None:
    async def scene() -> None:
        services = VideoServices(play(task(), task("completed")))
        fetching = await look(services, await begin(services, failures=3))
        assert fetching is not None
        assert (fetching.state, fetching.failures, wait_of(services, fetching)) == ("fetching", 0, 0)
        assert services.files.asked == []
        assert await look(services, await services.claim(fetching)) is None
        done = await services.find(fetching)
        assert (done.state, done.media_bytes, done.media_type) == ("completed", len(CLIP), "video/mp4")
        assert services.shelf.files == {done.media_id: CLIP}
        assert [row.cost_nanos for row in await services.rows()] == [HELD]

    run(scene())


def test_where_nothing_is_kept_a_finished_job_is_completed_at_once() -> None:
    async def scene() -> None:
        services = VideoServices(play(task(), task("completed")))
        services.rules = attrs.evolve(services.rules, keep=False)
        job = await begin(services)
        assert await look(services, job) is None
        done = await services.find(job)
        assert (done.state, done.media_id, services.files.asked) == ("completed", None, [])

    run(scene())


@table_rows(
    "trouble",
    [
        ProviderBadResponse("The file was answered with status 500"),
        ProviderTimeout("Nothing came", phase="body"),
        FileDouble([CLIP[:100], ProviderBadResponse("It broke off", phase="body")], len(CLIP)),
        FileDouble([CLIP[:100]], len(CLIP)),
        FileDouble([b"<html>Sign in</html>"], 20),
        FileDouble([], 0),
    ],
    ids=["500", "silence", "broken", "short", "a page", "empty"],
)
def test_a_file_that_does_not_come_is_fetched_again_later(trouble: Any) -> None:
    async def scene() -> None:
        services = VideoServices(play(task(), task("completed")))
        services.files.reels = [trouble, FileDouble([CLIP], len(CLIP))]
        after = await look(services, await begin(services, "fetching"))
        assert after is not None
        assert (after.state, after.failures, wait_of(services, after)) == ("fetching", 1, 2)
        assert (services.shelf.files, services.shelf.open_drafts) == ({}, 0)
        assert await look(services, await services.claim(after)) is None
        assert list(services.shelf.files.values()) == [CLIP]

    run(scene())


@table_rows("answer", [task("completed"), refuse(404), refuse(500)])
def test_a_file_that_is_gone_again_and_again_is_lost_at_no_cost(answer: Answer) -> None:
    """Also where its provider knows nothing of the task any more."""

    async def scene() -> None:
        services = VideoServices(play(task(), answer))
        services.files.reels = [GONE]
        job = await begin(services, "fetching")
        for _ in range(MAX_GONE_REPORTS - 1):
            after = await look(services, job)
            assert after is not None
            job = await services.claim(after)
        assert await look(services, job) is None
        assert (await services.find(job)).error_code == "content_lost"
        assert [row.cost_nanos for row in await services.rows()] == [0]

    run(scene())


@table_rows(
    ("state", "answers"),
    [
        ("processing", [{}]),
        ("processing", [{"status": None}, {"id": "task"}, {"error": "?"}, b"null", b"<html>welcome</html>"]),
        ("queued", [{"status": 7}]),
        ("queued", [b""]),
    ],
)
def test_a_provider_that_answers_with_nothing_usable_ends_the_job_after_five_times(
    state: str, answers: list[Any]
) -> None:
    async def scene() -> None:
        services = VideoServices(play(task(), *map(Answered, answers)))
        job = await begin(services, state)
        for failures in range(1, MAX_UNUSABLE_ANSWERS):
            after = await look(services, job)
            assert after is not None
            assert (after.state, after.failures) == (state, failures)
            job = await services.claim(after)
        assert await look(services, job) is None
        ended = await services.find(job)
        assert (ended.state, ended.error_code) == ("failed", "provider_answer_unusable")
        assert "5 times" in (ended.error_message or "")
        assert [row.cost_nanos for row in await services.rows()] == [0]

    run(scene())


def test_unusable_answers_count_only_in_a_row() -> None:
    async def scene() -> None:
        unusable: list[Answer] = [Answered({})] * (MAX_UNUSABLE_ANSWERS - 1)
        services = VideoServices(play(task(), *[*unusable, task("in_progress"), *unusable, refuse(500)] * 2))
        job = await begin(services, "processing")
        for _ in range(20):
            after = await look(services, job)
            assert after is not None
            job = await services.claim(after)

    run(scene())


def test_a_full_disk_is_waited_for() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        job = await begin(services, "fetching")
        services.shelf.full = True
        after = await look(services, job)
        assert after is not None
        assert (after.state, after.failures) == ("fetching", 1)
        services.shelf.full = False
        assert await look(services, await services.claim(after)) is None
        assert (await services.find(job)).state == "completed"

    run(scene())


def test_a_job_that_is_cancelled_while_its_file_is_fetched_leaves_no_file() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        job = await begin(services, "fetching")
        await services.videos.cancel(job.id)
        assert await look(services, job) is None
        assert (await services.find(job)).error_code == "cancelled"
        assert services.shelf.files == {}
        assert len(await services.rows()) == 1

    run(scene())


def test_a_store_that_fails_at_the_end_leaves_the_job_as_it_was() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        job = await begin(services, "fetching")
        services.store.refused = {"finish": 1}
        with pytest.raises(StoreUnavailable):
            await services.watch.check(job)
        assert await services.find(job) == job
        assert await look(services, job) is None
        completed = await services.find(job)
        assert completed.state == "completed"
        assert completed.media_id in services.shelf.files

    run(scene())


def test_a_job_whose_end_was_stored_without_an_answer_has_its_file_and_holds_nothing() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        job = await begin(services, "fetching")
        services.store.lost["finish"] = 1
        with pytest.raises(StoreUnavailable):
            await services.watch.check(job)
        completed = await services.find(job)
        assert completed.state == "completed"
        assert [completed.media_id] == list(services.shelf.files)
        await services.reservations.settle_ended_jobs([])
        assert (services.held, services.reservations.list_held()) == (0, {})
        assert services.balances.find_balance("key", CALLER.key.id).lifetime.spent_nanos == completed.cost_nanos > 0

    run(scene())


# ---- time


@table_rows(
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
        services = VideoServices(play(task(), answer))
        job = await begin(services, state)
        services.files.reels = [ProviderBadResponse("not now")]
        assert job.deadline_ms == job.created_ms + 24 * 3_600_000
        await asyncio.sleep(24 * 3_600 - 1)
        after = await look(services, await services.claim(job))
        assert after is not None
        await asyncio.sleep(1)
        assert await look(services, await services.claim(job)) is None
        assert (await services.find(job)).error_code == code
        assert services.held == 0

    run(scene())


def test_what_comes_after_the_deadline_is_taken_all_the_same() -> None:
    async def scene() -> None:
        services = VideoServices(play(task(), task("completed")))
        job = await begin(services)
        await asyncio.sleep(48 * 3_600)
        fetching = await look(services, await services.claim(job))
        assert fetching is not None
        assert await look(services, await services.claim(fetching)) is None
        assert (await services.find(job)).state == "completed"

    run(scene())


# ---- abandoned, or without a channel


@table_rows(("state", "code"), [("created", "interrupted"), ("submitting", "submit_unknown")])
def test_what_another_process_was_beginning_when_it_died_is_not_begun_again(state: str, code: str) -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        begun = await begin(services, "queued")
        await put_job(services.store, attrs.evolve(begun, state=state, upstream_id=None))  # type: ignore[arg-type]
        job = await services.claim(begun)
        assert await look(services, job) is None
        assert (await services.find(job)).error_code == code
        assert (services.provider.asked, services.held) == ([], 0)

    run(scene())


@table_rows("state", ["queued", "processing", "fetching"])
@table_rows("elsewhere", [False, True])
def test_a_channel_that_is_no_more_takes_its_jobs_with_it_and_their_holds(state: str, elsewhere: bool) -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        job = await begin(services, state)
        channel, elsewhere_now = services.channels[0], attrs.evolve(services.channels[0], provider="openai")
        services.use(*[elsewhere_now] * elsewhere)
        for _ in range(MAX_MISSED_CHECKS - 1):
            looked = await look(services, job)
            assert looked is not None, "a slip in a file can be mended"
            job = looked
        services.use(channel)
        services.use(*[elsewhere_now] * elsewhere)
        assert await look(services, job) is None
        assert (await services.find(job)).error_code == "channel_gone"
        assert (services.provider.asked, services.files.asked, services.held) == ([], [], 0)

    run(scene())


def test_a_disabled_channel_is_asked_after_what_it_has_begun() -> None:
    async def scene() -> None:
        services = VideoServices(play(task(), task("completed")))
        job = await begin(services)
        services.use(attrs.evolve(services.channels[0], status="disabled", models=("other",)))
        fetching = await look(services, job)
        assert fetching is not None
        assert fetching.state == "fetching"

    run(scene())


def test_what_is_not_heard_of_is_said_in_the_log_without_the_callers_words() -> None:
    async def scene() -> None:
        services = VideoServices(play(task(), refuse(500, "No cat for key-of-up")))
        job = await begin(services)
        with capture_logs() as lines:
            await services.watch.check(job)
        (line,) = lines
        assert (line["event"], line["video_id"], line["channel"], line["failures"]) == (
            "video_poll_failed", job.id, "up", 1,
        )  # fmt: skip
        assert "key-of-up" not in str(line)
        assert "a cat" not in str(line)

    run(scene())
