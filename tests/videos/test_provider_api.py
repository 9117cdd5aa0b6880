"""What is asked of providers for a job's sake: over which channel, with which key, and what of it is believed."""

import asyncio
from typing import Any

import attrs
import pytest
from structlog.testing import capture_logs

from gateway import errors
from gateway.domain.capability import Capability
from gateway.domain.upload import Upload
from gateway.domain.video import Reference, VideoJob
from gateway.formats.videos.backend import TaskStatus
from gateway.routing.target import ProviderAccess
from gateway.videos.provider_api import POLL_TIMEOUT_S, PollResult, SubmitOutcomeUnknown, fingerprint_key, must_fetch
from tests.support.image_calls import upload
from tests.support.image_providers import draw
from tests.support.table_rows import table_rows
from tests.support.video_services import ID, Answer, Answered, Asked, FileDouble, VideoServices, play, refuse, run, task

PNG = draw()
URL = "https://pictures.example/1.png"
RUNWAY_ID = "17f20503-6c24-4c16-946b-35dbbce2af2f"
FILE = "https://files.example/1.mp4?signature=hush"


async def begin(services: VideoServices, **body: Any) -> tuple[VideoJob, ProviderAccess]:
    job = await services.submit(**body)
    access = services.provider_api.find_access(job)
    assert access is not None
    services.provider.asked.clear()
    return job, access


def make_runway(*answers: Answer) -> VideoServices:
    """A channel whose provider says where its files are, and stops tasks."""
    services = VideoServices(play(*answers), "runway", models=())
    services.use(attrs.evolve(services.channels[0], model_map=(("m", "gen4.5"),)))
    return services


# ---- the way to a task


def test_a_task_is_found_by_its_channel_and_the_key_that_began_it() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()), api_keys=("key-1", "key-2"))
        job, access = await begin(services)
        assert fingerprint_key(access.key) == job.key_print
        assert (access.channel.name, access.endpoint.wire, access.model, access.mark) == (
            "up",
            "openai_videos",
            "m",
            job.id,
        )
        for key in ("key-1", "key-2"):
            theirs = services.provider_api.find_access(attrs.evolve(job, key_print=fingerprint_key(key)))
            assert theirs is not None
            assert theirs.key == key
        replaced = services.provider_api.find_access(attrs.evolve(job, key_print=fingerprint_key("an old key")))
        assert replaced is not None
        assert replaced.key == "key-1", "keys are replaced, and the account stays"

    run(scene())


def test_a_fingerprint_does_not_give_its_key_away() -> None:
    assert fingerprint_key("") == ""
    assert fingerprint_key("key-1") == fingerprint_key("key-1") != fingerprint_key("key-2")
    assert len(fingerprint_key("x" * 500)) == 12
    assert "key" not in fingerprint_key("key-1")


def test_a_channel_without_a_key_is_asked_without_one() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()), api_keys=())
        job, access = await begin(services)
        assert (access.key, job.key_print) == ("", "")
        await services.provider_api.poll(access, job)
        assert "Authorization" not in services.provider.asked[0].headers

    run(scene())


def test_there_is_no_way_where_the_channel_is_no_more_or_leads_elsewhere() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        job, _ = await begin(services)
        assert services.provider_api.find_access(attrs.evolve(job, channel="another")) is None
        assert services.provider_api.find_access(attrs.evolve(job, provider="openai")) is None
        assert services.provider_api.find_access(attrs.evolve(job, wire="kling_videos")) is None
        known = services.provider_api.find_access(attrs.evolve(job, upstream_model="a model that is no more"))
        assert known is not None

    run(scene())


# ---- asking after it


def test_what_is_said_of_a_task_is_read_with_how_long_to_wait() -> None:
    async def scene() -> None:
        services = VideoServices(
            play(task(), task("in_progress", progress=40, headers={"openai-poll-after-ms": "2500"}))
        )
        job, access = await begin(services)
        polled = await services.provider_api.poll(access, job)
        assert polled == PollResult(TaskStatus("processing", progress=40), 2.5)
        (asked,) = services.provider.asked
        assert (asked.method, asked.path, asked.body) == ("GET", f"/videos/{ID}", None)
        assert asked.headers["Authorization"] == "Bearer key-of-up"
        assert not asked.http_request.once, "asking again does no harm"

    run(scene())


@table_rows(
    ("answer", "kind"),
    [
        (refuse(404), errors.ProviderRejected),
        (refuse(429, Retry_After="9"), errors.ProviderRateLimited),
        (refuse(500), errors.ProviderBadResponse),
        (Answered(b"<html></html>", 200), errors.ProviderAnswerUnusable),
        (Answered({}, breaks=errors.ProviderBadResponse("The body broke", phase="body")), errors.ProviderBadResponse),
        (
            Answered({}, 500, breaks=errors.ProviderBadResponse("The body broke", phase="body")),
            errors.ProviderBadResponse,
        ),
        (errors.ProviderTimeout("Connecting took too long", phase="connect"), errors.ProviderTimeout),
    ],
)
def test_an_answer_that_is_none_is_a_fault_and_its_connection_is_given_back(
    answer: Answer, kind: type[errors.ProviderError]
) -> None:
    async def scene() -> None:
        services = VideoServices(play(task(), answer))
        job, access = await begin(services)
        with pytest.raises(errors.ProviderError) as met:
            await services.provider_api.poll(access, job)
        assert type(met.value) is kind
        assert kind is not errors.ProviderRateLimited or met.value.provider_retry_after_s == 9.0
        assert all(reply.closed for reply in services.provider.replies)

    run(scene())


def test_an_answer_is_not_waited_for_for_ever() -> None:
    async def scene() -> None:
        services = VideoServices(play(task(), Answered({}, wait_s=10**9)))
        job, access = await begin(services)
        began = services.loop.time()
        with pytest.raises(errors.ProviderTimeout):
            await services.provider_api.poll(access, job)
        assert services.loop.time() - began == pytest.approx(POLL_TIMEOUT_S)

    run(scene())


# ---- beginning it


def test_what_cannot_be_said_is_another_channels_to_say_and_nothing_is_sent() -> None:
    async def scene() -> None:
        services = make_runway(Answered({"id": RUNWAY_ID}))
        job, _ = await begin(services, seconds=5, size="1280x720")
        services.router.models = (Capability("*", remixes=True),)  # so the operator says, who is wrong
        with pytest.raises(errors.ProviderError) as met:
            await services.submit(remix_of=attrs.evolve(job, state="completed"))
        assert isinstance(met.value, errors.UnsupportedByProvider)
        assert (met.value.param, met.value.status, met.value.retryable) == ("video_id", 400, True)
        assert services.provider.asked == []

    run(scene())


def test_a_remix_is_asked_for_by_the_providers_own_name_of_the_original() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        original = attrs.evolve((await begin(services))[0], state="completed", upstream_id="video_of_theirs/1")
        remix = await services.submit(remix_of=original)
        (asked,) = services.provider.asked
        assert (asked.method, asked.path) == ("POST", "/videos/video_of_theirs%2F1/remix")
        assert asked.body == {"prompt": "a cat"}
        assert (remix.remixed_from, remix.seconds, remix.size) == (original.id, original.seconds, original.size)
        assert asked.headers["Idempotency-Key"] == remix.id

    run(scene())


def test_an_unknown_beginning_says_so_to_its_caller_and_to_whoever_tries_again() -> None:
    error = SubmitOutcomeUnknown(errors.ProviderTimeout("The provider took too long", phase="headers"))
    assert (error.status, error.public_code, error.phase) == (504, "upstream_timeout", "headers")
    assert (error.retryable, error.should_retry) == (False, False)
    assert error.message == "The provider took too long; whether the job was begun is not known"


# ---- a picture to start from


def ask_reference(asked: Asked) -> Any:
    return asked.body["input_reference"]["image_url"]


def test_an_address_is_the_providers_to_fetch_where_it_does() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        await services.submit(reference=Reference(url=URL))
        assert ask_reference(services.provider.asked[0]) == URL

    run(scene())


def test_only_who_fetches_no_addresses_has_them_fetched() -> None:
    assert not must_fetch("openai_videos")
    assert must_fetch("gemini_videos")


def test_a_place_in_a_network_of_somebodys_own_is_not_the_providers_to_fetch() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        for url in ("http://10.0.0.5/1.png", "http://127.0.0.1:8080/1.png", "http://[::1]/1.png", "http://host/1.png"):
            with pytest.raises(errors.InvalidRequest) as refused:
                await services.submit(reference=Reference(url=url))
            assert refused.value.param == "input_reference"
        assert (services.provider.asked, services.held, services.store.tried) == ([], 0, [])

    run(scene())


def test_a_file_goes_along_as_it_is() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        file: Upload = upload(PNG, "input_reference")
        await services.submit(reference=Reference(file))
        http_request = services.provider.asked[0].http_request
        assert http_request.headers["Content-Type"].startswith("multipart/form-data; boundary=gateway-video_")

    run(scene())


# ---- the file


def test_the_key_goes_to_the_channels_own_server_and_nowhere_else() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        job, access = await begin(services)
        await services.provider_api.open(access, job, "video", "bytes=0-9")
        (file_request,) = services.files.asked
        assert (file_request.url, file_request.trusted_origin, file_request.byte_range) == (
            f"http://up/v1/videos/{ID}/content",
            "http://up/v1",
            "bytes=0-9",
        )
        assert dict(file_request.signature) == {"Authorization": "Bearer key-of-up"}
        runway = make_runway(Answered({"id": RUNWAY_ID}))
        made, there = await begin(runway, seconds=5, size="1280x720")
        await runway.provider_api.open(there, attrs.evolve(made, clue=FILE), "video")
        (file_request,) = runway.files.asked
        assert (file_request.url, file_request.signature) == (FILE, ())
        assert "hush" not in repr(file_request)

    run(scene())


def test_an_address_that_has_expired_is_asked_for_anew() -> None:
    async def scene() -> None:
        fresh = FILE.replace("hush", "fresh")
        services = make_runway(
            Answered({"id": RUNWAY_ID}), Answered({"id": RUNWAY_ID, "status": "SUCCEEDED", "output": [fresh]})
        )
        job, access = await begin(services, seconds=5, size="1280x720")
        services.files.reels = [errors.ProviderBadResponse("The file was answered with status 403"), FileDouble([b"x"])]
        found = await services.provider_api.open_with_retry(access, attrs.evolve(job, clue=FILE), "video")
        assert isinstance(found, FileDouble)
        assert [file_request.url for file_request in services.files.asked] == [FILE, fresh]
        services.files.reels = [errors.ProviderContentGone("It is not there")]
        with pytest.raises(errors.ProviderContentGone):
            await services.provider_api.open_with_retry(access, attrs.evolve(job, clue=fresh), "video")
        assert len(services.files.asked) == 3, "the same address is not asked twice"

    run(scene())


@table_rows(
    ("answer", "kind"),
    [
        (refuse(404), errors.ProviderContentGone),
        (refuse(410), errors.ProviderContentGone),
        (refuse(400), errors.ProviderBadResponse),
        (refuse(429), errors.ProviderBadResponse),
        (refuse(500), errors.ProviderBadResponse),
    ],
)
def test_who_does_not_say_where_a_file_is_is_not_its_readers_judge(
    answer: Answered, kind: type[errors.ProviderError]
) -> None:
    """Where the address of a file has to be asked for, a refusal is the provider's matter, as it is of the file."""

    async def scene() -> None:
        services = VideoServices(
            play(Answered({"task_id": "1", "base_resp": {"status_code": 0}}), answer), "minimax", models=()
        )
        services.use(attrs.evolve(services.channels[0], model_map=(("m", "MiniMax-Hailuo-2.3"),)))
        job, access = await begin(services, seconds=6)
        with pytest.raises(errors.ProviderError) as met:
            await services.provider_api.open(access, attrs.evolve(job, clue="205258526306433"), "video")
        assert type(met.value) is kind
        assert services.files.asked == []

    run(scene())


# ---- stopped, forgotten


def test_a_task_is_stopped_and_forgotten_where_that_is_offered_and_nobody_is_troubled_where_it_fails() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        job, access = await begin(services)
        assert not await services.provider_api.cancel(access, job), "the convention has no word for it"
        assert services.provider.asked == []
        assert await services.provider_api.delete(access, job)
        assert [(asked.method, asked.path) for asked in services.provider.asked] == [("DELETE", f"/videos/{ID}")]
        for answer in (refuse(404), refuse(500), errors.ProviderBadResponse("It broke"), Answered({}, wait_s=10**6)):
            services.provider.clerk = play(answer)
            with capture_logs() as lines:
                assert not await services.provider_api.delete(access, job)
            assert [(line["event"], line["video_id"]) for line in lines] == [("provider_task_not_cancelled", job.id)]
        runway = make_runway(Answered({"id": RUNWAY_ID}))
        made, there = await begin(runway, seconds=5, size="1280x720")
        assert await runway.provider_api.cancel(there, made)

    run(scene())


def test_many_are_asked_at_the_same_time() -> None:
    async def scene() -> None:
        services = VideoServices(play(task(), attrs.evolve(task("in_progress"), wait_s=10.0)))
        job, access = await begin(services)
        began = services.loop.time()
        await asyncio.gather(*(services.provider_api.poll(access, job) for _ in range(50)))
        assert services.loop.time() - began == pytest.approx(10.0)

    run(scene())
