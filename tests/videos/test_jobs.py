"""A job ends once, together with its money; what is held is held again after a start; and work is not forgotten."""

import asyncio
from contextlib import suppress
from typing import Any

import attrs
import orjson
import pytest
from structlog.testing import capture_logs

from gateway.domain.audit_log import Actor, AuditFilter
from gateway.domain.request_log import RequestRecord
from gateway.domain.video import BLOCKED_CODE, CANCELLED_ERROR, TIMEOUT_ERROR, VideoError, VideoFilter, VideoJob
from gateway.errors import Conflict, NotFound, StoreUnavailable, TaskNotReady
from gateway.videos.job_tasks import CLOSE_TIMEOUT_S
from gateway.videos.jobs import check_completed
from gateway.videos.reservations import build_end
from tests.support.request_records import ROW
from tests.support.table_rows import table_rows
from tests.support.video_services import A_SECOND, CALLER, Answered, VideoServices, play, refuse, run, task

HELD = 4 * A_SECOND


async def finished(services: VideoServices, **body: Any) -> VideoJob:
    """A job with its video."""
    job = await services.submit(**body)
    after = attrs.evolve((await services.find(job)).move("fetching", services.now_ms), media_id="0.mp4")
    await services.store.advance([(job, after)])
    assert await services.videos.complete(after)
    return await services.find(job)


# ---- the end


def test_a_completed_job_is_charged_once_and_told_of_and_nothing_is_held_for_it_any_more() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        job = await services.submit(webhook_url="https://hooks/1")
        await asyncio.sleep(7)
        with capture_logs() as lines:
            assert await services.videos.complete(job)
            assert not await services.videos.complete(job), "it has ended"
            assert not await services.videos.fail(job, TIMEOUT_ERROR)
        done = await services.find(job)
        assert (done.state, done.progress, done.due_ms, done.cost_nanos) == ("completed", 100, None, HELD)
        assert done.expires_ms == (done.completed_ms or 0) + 7 * 86_400_000
        (row,) = await services.rows()
        assert (row.id, row.cost_nanos, row.outcome, row.status) == (job.receipt.id, HELD, "completed", 200)
        assert (row.duration_ms, row.usage_source, row.total_ms, row.attempts) == (4_000, "upstream", 7_000, 1)
        (reported,) = await services.deliveries.list_deliveries(video_id=job.id, limit=9)
        assert (reported.event, reported.url, orjson.loads(reported.body)["data"]) == (
            "video.completed", "https://hooks/1", {"id": job.id},
        )  # fmt: skip
        assert (services.held, services.reservations.list_held()) == (0, {})
        assert services.balances.find_balance("key", CALLER.key.id).lifetime.spent_nanos == HELD
        assert services.rung == ["begun", "ended"]
        assert [line["event"] for line in lines] == ["video_ended"]
        assert await services.store.list_contradictions() == []

    run(scene())


@table_rows("cost_nanos", [HELD, 0])
def test_a_job_whose_end_was_stored_without_an_answer_holds_nothing_after_the_next_try(cost_nanos: int) -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        job = await services.submit()
        services.store.lost["finish"] = 1
        for _ in range(2):
            with suppress(StoreUnavailable):
                assert not await (
                    services.videos.complete(job) if cost_nanos else services.videos.fail(job, TIMEOUT_ERROR)
                )
        assert (services.held, services.reservations.list_held()) == (0, {})
        assert services.balances.find_balance("key", CALLER.key.id).lifetime.spent_nanos == cost_nanos
        assert [row.cost_nanos for row in await services.rows()] == [cost_nanos]

    run(scene())


def test_a_failed_job_costs_nothing_and_says_why() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        job = await services.submit()
        assert await services.videos.fail(job, TIMEOUT_ERROR)
        failed = await services.find(job)
        assert (failed.state, failed.error_code, failed.expires_ms) == ("failed", "timeout", None)
        (row,) = await services.rows()
        assert (row.cost_nanos, row.outcome, row.error_code, row.duration_ms) == (0, "failed", "timeout", 0)
        assert (services.held, services.reservations.list_held()) == (0, {})
        assert services.balances.find_balance("key", CALLER.key.id).lifetime.spent_nanos == 0
        assert await services.deliveries.list_deliveries(video_id=job.id, limit=9) == [], "nobody wants to be told"

    run(scene())


def test_a_store_that_fails_leaves_the_job_and_its_money_as_they_were() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        job = await services.submit()
        services.store.refused = {"finish": 1}
        with pytest.raises(StoreUnavailable):
            await services.videos.complete(job)
        assert await services.find(job) == job
        assert (services.held, services.reservations.list_held(), services.rung) == (HELD, {job.id: HELD}, ["begun"])
        assert await services.videos.complete(job)
        assert services.held == 0

    run(scene())


def test_the_end_waits_for_whoever_is_looking_at_the_books() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        job = await services.submit()
        async with services.write_queue.writing:
            ending = asyncio.create_task(services.videos.complete(job))
            await asyncio.sleep(1)
            assert (await services.rows(), services.held) == ([], HELD)
        assert await ending
        assert services.held == 0

    run(scene())


RECEIPT = attrs.evolve(ROW, outcome="completed", error_code=None, status=200, cost_nanos=0, attempts=1, settled_ms=0)
BEGUN = VideoJob("video_1", RECEIPT, "x", state="processing", seconds="4", cost_nanos=HELD, channel="up")


@table_rows(
    ("job", "expected"),
    [
        (BEGUN.complete(5, 9), {"outcome": "completed", "status": 200, "cost_nanos": HELD, "error_code": None}),
        (BEGUN.fail(TIMEOUT_ERROR, 5), {"outcome": "failed", "cost_nanos": 0, "error_code": "timeout"}),
        (BEGUN.fail(CANCELLED_ERROR, 5), {"outcome": "cancelled", "status": 200, "error_code": "cancelled"}),
        (BEGUN.fail(VideoError(BLOCKED_CODE, "no"), 5), {"outcome": "blocked", "status": 200, "cost_nanos": 0}),
        (
            attrs.evolve(BEGUN, state="created", channel="", receipt=attrs.evolve(RECEIPT, outcome="interrupted",
                         attempts=0, channel=None)).fail(TIMEOUT_ERROR, 5),
            {"outcome": "interrupted", "status": 500, "attempts": 0, "channel": None, "cost_nanos": 0},
        ),
        (
            attrs.evolve(BEGUN, state="submitting", receipt=attrs.evolve(RECEIPT, outcome="interrupted", attempts=0,
                         channel=None)).fail(TIMEOUT_ERROR, 5),
            {"outcome": "interrupted", "status": 500, "attempts": 1, "channel": "up"},
        ),
        (attrs.evolve(BEGUN, seconds="").complete(5, 9), {"duration_ms": 0, "cost_nanos": HELD}),
    ],
    ids=["completed", "failed", "cancelled", "blocked", "never asked", "asked", "of unknown length"],
)  # fmt: skip
def test_the_row_of_a_job_says_how_it_ended(job: VideoJob, expected: dict[str, Any]) -> None:
    row: RequestRecord = build_end(job, RECEIPT.started_ms + 250)
    assert {name: getattr(row, name) for name in expected} == expected
    assert (row.id, row.total_ms, row.settled_ms) == (RECEIPT.id, 250, RECEIPT.started_ms + 250)
    assert build_end(job, 0).total_ms == 0, "clocks are set back, too"


# ---- another process


def test_what_is_held_for_jobs_that_go_on_is_held_again_after_a_start() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        job, done = await services.submit(), await finished(services)
        other = await services.submit()
        await services.store.advance([(other, attrs.evolve(other, owner="dead", lease_until_ms=10**15))])
        services.balances.release(services.reservations._reservations.pop(job.id))
        services.balances.release(services.reservations._reservations.pop(other.id))
        assert services.held == 0
        successor = services.make_videos()
        await successor.restore_reservations()
        assert successor.reservations.list_held() == {job.id: HELD, other.id: HELD}
        assert services.held == 2 * HELD
        assert done.id not in successor.reservations.list_held()
        assert ((await services.find(other)).owner, successor.tasks.process) == ("", successor.tasks.process)
        assert successor.tasks.process != services.tasks.process
        assert await successor.fail(job, TIMEOUT_ERROR)
        assert services.held == HELD

    run(scene())


def test_a_process_that_ends_lets_go_of_its_jobs_and_waits_for_what_it_records() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        job = await services.submit()
        await services.claim(job)
        recorded: list[float] = []

        async def record(seconds: float) -> None:
            await asyncio.sleep(seconds)
            recorded.append(seconds)

        services.tasks.start(record(1.0))
        slow = services.tasks.start(record(60.0))
        began = services.loop.time()
        await services.tasks.close()
        assert services.loop.time() - began == pytest.approx(CLOSE_TIMEOUT_S)
        assert recorded == [1.0]
        assert slow.cancelled()
        assert ((await services.find(job)).owner, (await services.find(job)).lease_until_ms) == ("", 0)

    run(scene())


def test_a_store_that_fails_at_the_end_is_no_reason_not_to_end() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        services.store.refused = {"release": 1}
        with capture_logs() as lines:
            await services.tasks.close()
        assert [line["event"] for line in lines] == ["leases_not_released"]

    run(scene())


# ---- whose it is


def test_a_job_is_found_by_its_own_account_alone() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        job = await services.submit()
        assert (
            await services.videos.get(job.id)
            == await services.videos.get(job.id, 1)
            == await services.store.find(job.id)
        )
        assert await services.store.find_by_request(job.receipt.id) == job
        assert await services.store.list_videos(VideoFilter(1), 9) == [job]
        assert await services.store.list_videos(VideoFilter(2), 9) == []
        for video_id, account in ((job.id, 2), ("video_" + "0" * 32, 1), ("", 1), (f"{job.id}\0", 1), ("x" * 10**5, 1)):
            with pytest.raises(NotFound) as nothing:
                await services.videos.get(video_id, account)
            assert (nothing.value.message, nothing.value.should_retry) == ("Video not found", False)

    run(scene())


# ---- cancelled, removed


def test_a_job_that_is_cancelled_fails_at_no_cost_and_its_provider_is_asked_to_stop() -> None:
    async def scene() -> None:
        services = VideoServices(play(Answered({"id": "17f20503-6c24-4c16-946b-35dbbce2af2f"})), "runway", models=())
        services.use(attrs.evolve(services.channels[0], model_map=(("m", "gen4.5"),)))
        job = await services.submit(seconds=5, size="1280x720")
        with pytest.raises(NotFound):
            await services.videos.cancel(job.id, Actor("member", "eve", scope=CALLER.account.id + 1))
        cancelled = await services.videos.cancel(job.id, Actor("member", "ada", scope=CALLER.account.id))
        assert (cancelled.state, cancelled.error_code, services.held) == ("failed", "cancelled", 0)
        with pytest.raises(Conflict):
            await services.videos.cancel(job.id)
        with pytest.raises(NotFound):
            await services.videos.cancel("video_1")
        (row,) = await services.books.audit_log.list_audit(AuditFilter(), 9)
        assert (row.action, row.subject, row.actor) == ("video.cancelled", job.id, "ada")
        await services.tasks.close()
        assert [(asked.method, asked.path.rpartition("/")[0]) for asked in services.provider.asked[1:]] == [
            ("DELETE", "/tasks")
        ]

    run(scene())


def test_a_job_that_is_cancelled_is_returned_although_the_store_can_no_longer_be_read() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        job = await services.submit()
        read, reads = services.store.find, 0

        async def read_once(video_id: str) -> VideoJob | None:
            nonlocal reads
            reads += 1
            if reads > 1:
                raise StoreUnavailable("not now")
            return await read(video_id)

        services.store.find = read_once  # type: ignore[method-assign]
        cancelled = await services.videos.cancel(job.id)
        services.store.find = read  # type: ignore[method-assign]
        assert cancelled == await services.find(job)
        assert (cancelled.state, cancelled.error_code, services.held) == ("failed", "cancelled", 0)

    run(scene())


def test_a_provider_that_does_not_stop_is_no_reason_not_to_cancel() -> None:
    async def scene() -> None:
        services = VideoServices(
            play(Answered({"id": "17f20503-6c24-4c16-946b-35dbbce2af2f"}), refuse(500)), "runway", models=()
        )
        services.use(attrs.evolve(services.channels[0], model_map=(("m", "gen4.5"),)))
        job = await services.submit(seconds=5, size="1280x720")
        with capture_logs() as lines:
            assert (await services.videos.cancel(job.id)).error_code == "cancelled"
            await services.tasks.close()
        assert [line["event"] for line in lines] == ["video_ended", "provider_task_not_cancelled"]
        services.use()
        other = attrs.evolve(job, id="video_" + "1" * 32, receipt=attrs.evolve(job.receipt, id="req_other"))
        await services.store.create(other)
        assert (await services.videos.cancel(other.id)).error_code == "cancelled", "also where its channel is no more"

    run(scene())


def test_a_job_is_removed_once_it_has_ended_and_what_it_cost_stays() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        live, done = await services.submit(), await finished(services)
        with pytest.raises(TaskNotReady) as early:
            await services.videos.remove(live)
        assert early.value.status == 409
        await services.videos.remove(done)
        with pytest.raises(NotFound):
            await services.videos.remove(done)
        await services.tasks.close()
        assert [(asked.method, asked.path) for asked in services.provider.asked[2:]] == [
            ("DELETE", "/videos/video_theirs")
        ]
        assert sum(row.cost_nanos for row in await services.rows()) == HELD

    run(scene())


def test_there_is_a_file_of_a_completed_job_alone() -> None:
    check_completed(BEGUN.complete(5, 9))
    with pytest.raises(TaskNotReady):
        check_completed(BEGUN)
    with pytest.raises(NotFound):
        check_completed(BEGUN.fail(TIMEOUT_ERROR, 5))


# ---- news


def test_whoever_listens_is_told_of_what_shows_and_of_nothing_else() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        job = await services.submit()
        async with services.notifier.listen(job.id) as bell:
            looked_at = attrs.evolve(job, polls=1, due_ms=5)
            await services.videos.advance([(job, looked_at)])
            assert not bell.is_set(), "that it was looked at is no news"
            further = looked_at.report_progress(10, services.now_ms)
            await services.videos.advance([(looked_at, further)])
            assert bell.is_set()
            bell.clear()
            await services.videos.advance(
                [(attrs.evolve(further, owner="somebody"), further.report_progress(50, services.now_ms))]
            )
            assert not bell.is_set(), "what was not recorded is none either"
            await services.videos.complete(further)
            assert bell.is_set()

    run(scene())


# ---- insisting


def test_what_has_to_be_recorded_is_tried_until_it_is_and_its_own_faults_are_raised() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        tries: list[int] = []

        async def work() -> str:
            tries.append(1)
            if len(tries) < 4:
                raise StoreUnavailable("not now")
            return "done"

        assert await services.tasks.retry_until_stored("video_1", work) == "done"
        assert len(tries) == 4

        async def bug() -> None:
            raise RuntimeError("a bug")

        with pytest.raises(RuntimeError):
            await services.tasks.retry_until_stored("video_1", bug)
        await services.tasks.close()

    run(scene())
