"""A call becomes a job: on record before anybody is asked, begun by one provider, once, or by nobody at no cost."""

import asyncio
from typing import Any

import attrs
import pytest
from structlog.testing import capture_logs

from gateway import errors
from gateway.billing.settlement import find_outcome
from gateway.domain.account import Caller
from gateway.domain.balance import Quota
from gateway.domain.capability import Capability
from gateway.domain.video import VideoJob
from gateway.media.word_filter import WordList
from gateway.videos.job_tasks import CLAIM_MS, RETRY_TIMEOUT_S
from gateway.videos.provider_api import SubmitOutcomeUnknown, fingerprint_key
from tests.support.table_rows import table_rows
from tests.support.video_records import list_jobs
from tests.support.video_services import (
    A_SECOND,
    CALLER,
    FULL_HD,
    ID,
    KNOWN,
    Answer,
    Answered,
    Asked,
    VideoServices,
    limited,
    play,
    refuse,
    run,
    task,
)

LOST = errors.ProviderBadResponse("The provider broke the connection", phase="headers")
LATE = errors.ProviderTimeout("The provider took too long to answer", phase="headers")
FAR = errors.ProviderBadResponse("The provider could not be reached", phase="connect")
HELD = 4 * A_SECOND


async def see(services: VideoServices, **body: Any) -> errors.GatewayError:
    """The fault that a call ends in."""
    with pytest.raises(errors.GatewayError) as met:
        await services.submit(**body)
    return met.value


async def check_nothing_left(services: VideoServices) -> None:
    """No job, no hold, no turn."""
    assert await services.store.list_open() == []
    assert services.reservations.list_held() == {}
    assert (services.held, services.quota.open_reservations, services.proxy.running) == (0, 0, 0)


# ---- on record before it is asked


def test_a_job_and_its_hold_are_on_record_before_its_provider_is_asked() -> None:
    async def scene() -> None:
        seen: list[tuple[VideoJob, int]] = []

        async def clerk(_asked: Asked) -> Answer:
            (job,) = (await list_jobs(services.store)).values()
            seen.append((job, services.held))
            return task()

        services = VideoServices(clerk)
        job = await services.submit(webhook_url="https://hooks/1")
        ((requested_job, held),) = seen
        assert services.store.tried == ["create", "advance", "advance"]
        assert (requested_job.state, requested_job.channel, requested_job.provider, requested_job.wire) == (
            "submitting",
            "up",
            "custom",
            "openai_videos",
        )
        assert (requested_job.upstream_model, requested_job.key_print) == ("m", fingerprint_key("key-of-up"))
        assert (requested_job.owner, requested_job.lease_until_ms) == (
            services.tasks.process,
            requested_job.created_ms + CLAIM_MS,
        )
        assert (requested_job.seconds, requested_job.size, requested_job.prompt) == ("4", "1280x720", "a cat")
        assert (requested_job.held_nanos, held, requested_job.receipt.outcome) == (HELD, HELD, "interrupted")
        assert requested_job.deadline_ms == requested_job.created_ms + 24 * 3_600_000
        assert requested_job.webhook_url == "https://hooks/1"
        assert requested_job.id == job.id

    run(scene())


@table_rows(("status", "state"), [("queued", "queued"), ("in_progress", "processing"), ("odd", "processing")])
def test_a_job_that_was_begun_is_nobodys_and_due_in_two_seconds(status: str, state: str) -> None:
    async def scene() -> None:
        services = VideoServices(play(task(status)))
        ctx = services.order()
        job = await services.submissions.submit(ctx)
        assert job == await services.find(job)
        assert (job.state, job.upstream_id, job.owner, job.lease_until_ms) == (state, ID, "", 0)
        assert job.due_ms == services.now_ms + 2_000
        assert (job.receipt.outcome, job.receipt.status, job.receipt.reserved_nanos) == ("completed", 200, HELD)
        assert ctx.record == job.receipt
        assert services.rung == ["begun"]
        assert services.reservations.list_held() == {job.id: HELD}
        assert await services.rows() == [], "its row is written with its end"
        assert services.proxy.running == 0

    run(scene())


def test_the_provider_is_asked_in_its_own_words_and_knows_the_job_by_name() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()), model_map=(("m", "their-model"),))
        job = await services.submit(size="1920x1080", seconds=8)
        (asked,) = services.provider.asked
        assert asked.body == {
            "seed": 7, "model": "their-model", "prompt": "a cat", "seconds": "8", "size": "1920x1080",
        }  # fmt: skip
        assert asked.headers["Idempotency-Key"] == job.id
        assert asked.http_request.once, "a connection that breaks is no reason to send it again"
        assert (job.seconds, job.size, job.held_nanos, job.cost_nanos) == ("8", "1920x1080", 8 * FULL_HD, 8 * FULL_HD)

    run(scene())


@table_rows(
    ("reported", "seconds", "charged"),
    [
        ({"seconds": "8", "size": "1280x720"}, "8", 8), ({"seconds": 6}, "6", 6), ({}, "", 10),
        ({"seconds": "6.2"}, "7", 7), ({"seconds": "nan"}, "", 10), ({"seconds": "-1"}, "", 10),
        ({"seconds": "1e9"}, "", 10), ({"seconds": "inf"}, "", 10), ({"seconds": "60"}, "60", 60),
        ({"seconds": "8", "size": "1920x1080"}, "8", 24),
    ],
)  # fmt: skip
def test_where_nobody_said_how_long_the_provider_does_and_what_it_says_is_charged(
    reported: dict[str, Any], seconds: str, charged: int
) -> None:
    async def scene() -> None:
        services = VideoServices(play(task(**reported)), models=())
        job = await services.submit()
        assert (job.seconds, job.cost_nanos, job.held_nanos) == (seconds, charged * A_SECOND, 10 * A_SECOND)

    run(scene())


@table_rows(("asked", "message"), [(None, "https://key/hook"), ("https://mine/hook", "https://mine/hook")])
def test_the_keys_own_webhook_is_told_where_the_call_names_none(asked: str | None, message: str) -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        caller = attrs.evolve(CALLER, key=attrs.evolve(CALLER.key, webhook_url="https://key/hook"))
        job = await services.submissions.submit(services.order(caller, webhook_url=asked))
        assert job.webhook_url == message

    run(scene())


# ---- a provider says no


REFUSALS: list[tuple[Answer, type[errors.ProviderError], bool]] = [
    (refuse(400), errors.ProviderRejected, False),
    (refuse(404), errors.ProviderRejected, True),
    (refuse(400, code="moderation_blocked"), errors.ContentBlocked, False),
    (refuse(401), errors.ProviderAuthError, True),
    (refuse(402), errors.ProviderAuthError, True),
    (refuse(429), errors.ProviderRateLimited, True),
    (refuse(500), errors.ProviderBadResponse, True),
    (refuse(503), errors.ProviderBadResponse, True),
    (FAR, errors.ProviderBadResponse, True),
    (errors.ProviderTimeout("Connecting took too long", phase="connect"), errors.ProviderTimeout, True),
]


@table_rows(("answer", "kind", "elsewhere"), REFUSALS)
def test_a_refusal_leaves_a_row_and_no_job_and_another_channel_takes_it_if_it_may(
    answer: Answer, kind: type[errors.ProviderError], elsewhere: bool
) -> None:
    async def scene() -> None:
        alone = VideoServices(play(answer))
        error = await see(alone)
        assert isinstance(error, kind)
        await check_nothing_left(alone)
        (row,) = await alone.rows()
        assert (row.cost_nanos, row.reserved_nanos, row.attempts, row.channel) == (0, HELD, 1, "up")
        assert row.error_code == error.public_code
        assert row.outcome == find_outcome(error) != "completed"
        assert await list_jobs(alone.store) == {}

        both = VideoServices(play(answer, task()), "custom", "custom")
        if not elsewhere:
            assert isinstance(await see(both), kind)
            assert len(both.provider.asked) == 1
            return
        job = await both.submit()
        assert (job.channel, job.state, job.receipt.attempts) == ("up1", "queued", 2)
        assert len({asked.headers["Idempotency-Key"] for asked in both.provider.asked}) == 1
        assert [asked.headers["Authorization"][-3:] for asked in both.provider.asked] == ["-up", "up1"]
        assert job.receipt.tried.startswith("up=")

    run(scene())


def test_a_channel_that_has_no_words_for_it_is_passed_over_unasked() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()), "minimax", "custom", models=())
        hailuo = attrs.evolve(services.channels[0], model_map=(("m", "MiniMax-Hailuo-2.3"),))
        services.use(hailuo, services.channels[1])
        job = await services.submit(size="1920x1080", seconds=10)  # it has either, and not both
        assert (job.channel, job.wire, len(services.provider.asked)) == ("up1", "openai_videos", 1)
        services.use(hailuo)
        error = await see(services, size="1920x1080", seconds=10)
        assert (error.status, error.public_code, error.param) == (400, "invalid_request", "seconds")
        assert len(services.provider.asked) == 1
        assert services.reservations.list_held() == {job.id: 10 * FULL_HD}

    run(scene())


# ---- nobody knows whether it was begun


UNKNOWN: list[Answer] = [
    LOST,
    LATE,
    errors.ProviderBadResponse("The provider's answer is no HTTP", phase="headers"),
    Answered(b"<html>Bad gateway</html>", 502),
    Answered({}, 504),
    Answered({}, 408),
    Answered(b"", 524),
    Answered(b"<html>welcome</html>", 200),
    Answered(b"", 200),
    Answered({"status": "queued"}, 200),
    Answered({"id": "../x", "status": "queued"}, 201),
    Answered({}, 200, breaks=errors.ProviderBadResponse("The body broke off", phase="body")),
]


@table_rows("answer", UNKNOWN)
def test_where_nobody_knows_whether_it_was_begun_it_fails_and_nobody_is_asked_again(answer: Answer) -> None:
    async def scene() -> None:
        services = VideoServices(play(answer, task()), "custom", "custom")
        with capture_logs() as lines:
            error = await see(services)
        assert isinstance(error, SubmitOutcomeUnknown)
        assert (error.should_retry, error.retryable) == (False, False)
        assert error.status in {502, 504}
        assert "not known" in error.message
        assert len(services.provider.asked) == 1
        (job,) = (await list_jobs(services.store)).values()
        assert (job.state, job.error_code, job.cost_nanos, job.due_ms) == ("failed", "submit_unknown", 0, None)
        (row,) = await services.rows()
        assert (row.cost_nanos, row.reserved_nanos, row.outcome) == (0, HELD, "failed")
        assert (row.error_code, row.channel, row.attempts) == ("submit_unknown", "up", 1)
        assert await services.store.list_contradictions() == []
        await check_nothing_left(services)
        assert services.rung == ["ended"]
        assert "video_submit_outcome_unknown" in {line["event"] for line in lines}

    run(scene())


def test_a_provider_that_never_answers_is_waited_for_as_long_as_its_channel_says() -> None:
    async def scene() -> None:
        services = VideoServices(play(Answered({}, wait_s=10**9)), "custom", "custom")
        began = services.loop.time()
        assert isinstance(await see(services), SubmitOutcomeUnknown)
        assert services.loop.time() - began == pytest.approx(1_800.0)
        assert len(services.provider.asked) == 1

    run(scene())


def test_a_stop_in_the_middle_of_a_submit_is_no_reason_to_believe_that_it_was_not_made() -> None:
    async def scene() -> None:
        services = VideoServices(play(Answered({}, wait_s=10**6)))
        submitting = asyncio.create_task(services.submit())
        await asyncio.sleep(1)
        services.proxy.abort()
        with pytest.raises(SubmitOutcomeUnknown):
            await submitting
        (job,) = (await list_jobs(services.store)).values()
        assert job.error_code == "submit_unknown"
        error = await see(services)
        assert isinstance(error, errors.ShuttingDown)
        assert len(await list_jobs(services.store)) == 1, "and nothing more is begun"
        await check_nothing_left(services)

    run(scene())


# ---- before anything is asked


def broke(**quota: Any) -> Caller:
    return attrs.evolve(CALLER, key=attrs.evolve(CALLER.key, quota=Quota(HELD - 1, "lifetime", **quota)))


def test_who_cannot_pay_is_refused_and_nothing_is_asked() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        ctx = services.order(broke())
        with pytest.raises(errors.QuotaExceeded):
            await services.submissions.submit(ctx)
        assert services.provider.asked == []
        row = ctx.record
        assert row is not None
        assert (row.outcome, row.status) == ("refused", 403)
        assert list(services.write_queue.list_rows()) == [row]
        await check_nothing_left(services)

    run(scene())


def test_a_turn_at_the_rate_limits_ends_with_the_submit_and_not_with_the_job() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        caller = limited(max_concurrency=1)
        services.provider.clerk = play(attrs.evolve(task(), wait_s=5.0))
        first, second, third = (services.order(caller) for _ in range(3))
        submitting = asyncio.create_task(services.submissions.submit(first))
        await asyncio.sleep(1)
        with pytest.raises(errors.RateLimited):
            await services.submissions.submit(second)
        await submitting
        await services.submissions.submit(third)
        assert None not in (first.rate_limits, third.rate_limits)
        assert len(services.reservations.list_held()) == 2

    run(scene())


def test_an_account_has_so_many_jobs_under_way_and_no_more_until_one_has_ended() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        services.rules = attrs.evolve(services.rules, max_open=2)
        first = await services.submit()
        await services.submit()
        assert isinstance(await see(services), errors.RateLimited)
        other = attrs.evolve(CALLER, account=attrs.evolve(CALLER.account, id=2), key=attrs.evolve(CALLER.key, id=8))
        await services.submissions.submit(services.order(other))
        assert (services.provider.begun, services.reservations.count_open(1), services.held) == (3, 2, 2 * HELD)
        await services.videos.complete(first)
        assert services.reservations.count_open(1) == 1
        await services.submit()
        again = services.make_videos()
        await again.restore_reservations()
        assert [again.reservations.count_open(account_id) for account_id in (1, 2, 3)] == [2, 1, 0]

    run(scene())


def test_what_came_to_nothing_is_not_under_way() -> None:
    async def scene() -> None:
        services = VideoServices(play(refuse(400)))
        services.rules = attrs.evolve(services.rules, max_open=1)
        for _ in range(3):
            assert isinstance(await see(services), errors.ProviderRejected)
        services.store.refused = {"create": 2}
        for _ in range(2):
            assert isinstance(await see(services), errors.StoreUnavailable)
        services.provider.clerk = play(LOST)
        for _ in range(2):
            assert isinstance(await see(services), SubmitOutcomeUnknown)
        assert services.reservations.count_open(1) == 0

    run(scene())


def test_a_store_that_fails_at_the_beginning_lets_nobody_be_asked() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        services.store.refused = {"create": 1}
        caller = limited(max_concurrency=1)
        with pytest.raises(errors.StoreUnavailable):
            await services.submissions.submit(services.order(caller))
        assert services.provider.asked == []
        await check_nothing_left(services)
        await services.submissions.submit(services.order(caller))

    run(scene())


def test_a_store_that_fails_before_the_submit_lets_nobody_be_asked_and_the_job_be_dropped() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        services.store.refused = {"advance": 1, "drop": 2}
        assert isinstance(await see(services), errors.StoreUnavailable)
        assert services.provider.asked == []
        assert len(await services.rows()) == 1
        await check_nothing_left(services)

    run(scene())


@pytest.mark.parametrize(
    ("refused", "lost"),
    [({"create": 3, "advance": 3}, {}), ({}, {"create": 1}), ({}, {"advance": 1}), ({"advance": 2}, {"create": 1})],
)
def test_a_request_waits_for_a_store_that_is_away_and_asks_its_provider_once(
    refused: dict[str, int], lost: dict[str, int]
) -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        services.reservations.wait_s = 8.0
        services.store.refused, services.store.lost = dict(refused), dict(lost)
        job = await services.submissions.submit(services.order())
        assert len(services.provider.asked) == 1
        assert [each.id for each in await services.store.list_open()] == [job.id]
        assert [*services.reservations.list_held()] == [job.id]
        assert services.quota.open_reservations == 1

    run(scene())


@pytest.mark.parametrize(("fails", "tries"), [(False, 81), (True, 1)])
def test_it_waits_no_longer_than_others_and_not_behind_the_fence(*, fails: bool, tries: int) -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        services.reservations.wait_s, services.store.refused = 8.0, {"create": 1_000}
        asyncio.get_running_loop().call_later(0.05, setattr, services.write_queue, "failing", fails)
        with pytest.raises(errors.StoreUnavailable):
            await services.submissions.submit(services.order())
        assert abs(services.store.tried.count("create") - tries) <= 1
        assert services.provider.asked == []
        await check_nothing_left(services)

    run(scene())


def test_what_nobody_may_ask_for_is_refused_before_anything_is_held() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        services.submissions.find_words = lambda: WordList({"forbidden fruit": "forbidden fruit"})
        inference = services.order().inference
        services.submissions.check(inference)
        assert inference.video is not None
        for spoilt in (
            attrs.evolve(inference, video=attrs.evolve(inference.video, prompt="Forbidden  FRUIT")),
            attrs.evolve(inference, body={"negative_prompt": "no forbidden fruit"}),
        ):
            with pytest.raises(errors.ContentForbidden) as refused:
                services.submissions.check(spoilt)
            assert (refused.value.status, refused.value.should_retry) == (400, False)

    run(scene())


def test_no_room_on_the_disk_is_a_reason_to_begin_nothing_unless_nothing_is_kept() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        services.shelf.full = True
        inference = services.order().inference
        with pytest.raises(errors.StoreUnavailable):
            services.submissions.check(inference)
        services.rules = attrs.evolve(services.rules, keep=False)
        services.submissions.check(inference)

    run(scene())


# ---- after it was begun


def test_a_job_is_marked_as_worked_on_before_it_can_be_read() -> None:
    """The poll worker may read the store at the very moment of the commit: it would take the job for lost."""

    async def scene() -> None:
        services = VideoServices(play(task()))
        marks: list[bool] = []
        create = services.store.create

        async def note(job: VideoJob, *args: Any, **kwargs: Any) -> bool:
            is_created = await create(job, *args, **kwargs)
            marks.append(services.tasks.is_active(job.id))
            return is_created

        services.store.create = note  # type: ignore[method-assign]
        job = await services.submit()
        assert (marks, services.tasks.is_active(job.id)) == ([True], False)

    run(scene())


def test_what_was_begun_is_recorded_as_soon_as_the_store_is_well_again() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))

        def fail(asked: Asked) -> Answer:
            services.store.refused = {"advance": 3}
            return task()

        services.provider.clerk = fail
        job = await services.submit()
        assert (await services.find(job)).upstream_id == ID
        assert services.rung == ["begun"]
        assert services.provider.begun == 1

    run(scene())


def test_a_caller_does_not_wait_for_ever_for_a_store_but_its_job_is_not_lost() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))

        def fail(asked: Asked) -> Answer:
            services.store.refused = {"advance": 100}
            return task()

        services.provider.clerk = fail
        began = services.loop.time()
        job = await services.submit()
        assert services.loop.time() - began == pytest.approx(RETRY_TIMEOUT_S)
        assert (job.state, job.upstream_id) == ("queued", ID)
        assert (await services.find(job)).state == "submitting"
        await asyncio.sleep(60)
        assert (await services.find(job)).upstream_id == ID

    run(scene())


# ---- cancelled meanwhile


def test_a_job_that_is_cancelled_before_it_is_begun_is_not_begun() -> None:
    async def scene() -> None:
        services = VideoServices(play(refuse(500), task()), "custom", "custom")

        async def cancel_first(asked: Asked) -> Answer:
            (job,) = (await list_jobs(services.store)).values()
            cancelling.append(asyncio.ensure_future(services.videos.cancel(job.id)))
            return attrs.evolve(refuse(500), wait_s=1.0)

        cancelling: list[Any] = []
        services.provider.clerk = cancel_first
        error = await see(services)
        assert isinstance(error, errors.Conflict)
        assert len(services.provider.asked) == 1
        assert (await cancelling[0]).error_code == "cancelled"
        (row,) = await services.rows()
        assert (row.outcome, row.cost_nanos, row.error_code) == ("cancelled", 0, "cancelled")
        await check_nothing_left(services)

    run(scene())


def test_a_job_that_is_cancelled_while_it_is_being_begun_stays_so_and_its_provider_is_told() -> None:
    async def scene() -> None:
        services = VideoServices(
            play(Answered({"id": "17f20503-6c24-4c16-946b-35dbbce2af2f"}, wait_s=5.0)), "runway", models=()
        )
        services.use(attrs.evolve(services.channels[0], model_map=(("m", "gen4.5"),)))
        submitting = asyncio.create_task(services.submit(seconds=5, size="1280x720"))
        await asyncio.sleep(1)
        (job,) = (await list_jobs(services.store)).values()
        await services.videos.cancel(job.id)
        reported = await submitting
        assert (reported.state, reported.error_code) == ("failed", "cancelled")
        assert [asked.method for asked in services.provider.asked] == ["POST", "DELETE"]
        assert len(await services.rows()) == 1
        await check_nothing_left(services)

    run(scene())


def test_the_provider_of_a_job_that_is_cancelled_while_the_store_does_not_answer_is_told() -> None:
    """The caller has its answer already: the job is stored in the background."""

    async def scene() -> None:
        services = VideoServices(
            play(Answered({"id": "17f20503-6c24-4c16-946b-35dbbce2af2f"}, wait_s=5.0)), "runway", models=()
        )
        services.use(attrs.evolve(services.channels[0], model_map=(("m", "gen4.5"),)))
        submitting = asyncio.create_task(services.submit(seconds=5, size="1280x720"))
        await asyncio.sleep(1)
        services.store.refused = {"advance": 100}
        job = await submitting
        await services.videos.cancel(job.id)
        await asyncio.sleep(60)
        assert (await services.find(job)).error_code == "cancelled"
        assert [asked.method for asked in services.provider.asked] == ["POST", "DELETE"]
        await check_nothing_left(services)

    run(scene())


def test_a_job_runs_on_if_the_answer_to_its_begin_is_lost() -> None:
    """It is stored with its provider's task: the next try finds another state than it was to change."""

    async def scene() -> None:
        services = VideoServices(play(Answered({"id": "17f20503-6c24-4c16-946b-35dbbce2af2f"})), "runway", models=())
        services.use(attrs.evolve(services.channels[0], model_map=(("m", "gen4.5"),)))
        services.store.lost["advance"] = 2  # the first is that it is asked
        job = await services.submit(seconds=5, size="1280x720")
        assert [asked.method for asked in services.provider.asked] == ["POST"]
        assert (job.state, (await services.find(job)).upstream_id) == ("queued", job.upstream_id)
        assert services.rung == ["begun"]

    run(scene())


# ---- bugs of ours


def test_a_bug_in_the_middle_of_a_submit_leaves_the_job_to_whoever_looks_at_it_next() -> None:
    async def scene() -> None:
        services = VideoServices(play(RuntimeError("a bug")))
        with pytest.raises(RuntimeError):
            await services.submit()
        await asyncio.sleep(1)
        (job,) = (await list_jobs(services.store)).values()
        assert (job.state, job.owner) == ("submitting", "")
        assert services.reservations.list_held() == {job.id: HELD}
        assert await services.watch.check(await services.claim(job)) is None
        assert (await services.find(job)).error_code == "submit_unknown"
        await check_nothing_left(services)

    run(scene())


def test_a_model_whose_length_is_known_is_asked_for_it() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()), models=(attrs.evolve(KNOWN, sizes=None), Capability("x")))
        await services.submit()
        assert services.provider.asked[0].body["seconds"] == "4"
        assert "size" not in services.provider.asked[0].body

    run(scene())
