"""Videos in the convention: what callers are told, what a server of the convention is asked, and what it answers.

Shapes are those of the convention's OpenAPI document: ``VideoResource``, ``VideoListResource`` and
``DeletedVideoResource``.
"""

from typing import Any, get_args

import attrs
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types import Video

from gateway.domain.video import TRANSITIONS, Reference, VideoError, VideoJob, VideoState
from gateway.errors import (
    ContentBlocked,
    InvalidRequest,
    ProviderAuthError,
    ProviderBadResponse,
    ProviderError,
    ProviderRateLimited,
    ProviderRejected,
)
from gateway.formats.image_backend import ProviderCall
from gateway.formats.openai.videos import (
    SAFE_FIELDS,
    OpenAiVideoBackend,
    build_deleted,
    build_status,
    build_video,
    build_videos,
)
from gateway.formats.request_body import Form
from gateway.formats.video_backend import ContentLocation, ProviderTask, TaskState, VideoBackend, VideoSpec
from tests.support.corrupt_json import spoilt
from tests.support.image_calls import read_sent, upload
from tests.support.image_providers import draw
from tests.support.request_records import ROW

MAKER: VideoBackend = OpenAiVideoBackend()
NOW = 1_750_000_000_999
JOB = VideoJob("video_1", ROW, "a cat", "1280x720", "8", "video_0", progress=7)
TASK = ProviderTask("video_68d7512d07848190b3e45da0ecbebcde", "sora-2")
SAID = {
    "id": TASK.id,
    "object": "video",
    "model": "sora-2",
    "status": "in_progress",
    "progress": 33,
    "created_at": 1_758_941_485,
    "completed_at": None,
    "expires_at": None,
    "prompt": "a cat",
    "size": "1280x720",
    "seconds": "8",
    "remixed_from_video_id": None,
    "error": None,
}
FAILED = SAID | {"status": "failed", "error": {"code": "video_generation_failed", "message": "The camera broke"}}


def job(state: VideoState, **values: Any) -> VideoJob:
    return attrs.evolve(JOB, state=state, **values)


def done() -> VideoJob:
    return job("fetching").complete(NOW, NOW + 60_000)


def shot(**fields: Any) -> VideoSpec:
    return VideoSpec("sora-2", "a cat", "video_mark", **fields)


# ---- what callers are told


@pytest.mark.parametrize(
    ("state", "spec", "openai"),
    [
        ("created", "queued", "queued"), ("submitting", "queued", "queued"), ("queued", "queued", "queued"),
        ("processing", "processing", "in_progress"), ("fetching", "processing", "in_progress"),
        ("completed", "completed", "completed"), ("failed", "failed", "failed"),
    ],
)  # fmt: skip
def test_a_state_is_called_as_its_caller_knows_it(state: VideoState, spec: str, openai: str) -> None:
    assert (build_status(state, "spec"), build_status(state, "openai")) == (spec, openai)


def test_every_state_has_a_word_that_the_client_libraries_know() -> None:
    words = {build_status(state, "openai") for state in TRANSITIONS}
    assert words == set(get_args(Video.model_fields["status"].annotation))


def test_a_job_under_way_has_every_key_and_no_error() -> None:
    assert build_video(job("processing"), "spec") == {
        "id": "video_1",
        "object": "video",
        "model": "m",
        "status": "processing",
        "progress": 7,
        "created_at": 1_750_000_000,
        "completed_at": None,
        "expires_at": None,
        "prompt": "a cat",
        "size": "1280x720",
        "seconds": "8",
        "remixed_from_video_id": "video_0",
    }


def test_a_completed_job_says_when_it_was_and_how_long_it_is_there() -> None:
    told = build_video(done(), "openai")
    assert (told["status"], told["progress"]) == ("completed", 100)
    assert (told["completed_at"], told["expires_at"]) == (NOW // 1000, NOW // 1000 + 60)
    assert "error" not in told


def test_a_failed_job_says_why_and_was_not_completed() -> None:
    told = build_video(job("processing").fail(VideoError("timeout", "Too late"), NOW), "spec")
    assert (told["status"], told["error"]) == ("failed", {"code": "timeout", "message": "Too late"})
    assert (told["completed_at"], told["expires_at"]) == (None, None)


@pytest.mark.parametrize("state", TRANSITIONS)
def test_the_client_library_reads_what_it_is_told(state: VideoState) -> None:
    told = orjson.dumps(build_video(job(state), "openai"))
    if state != "failed":
        assert Video.model_validate_json(told, strict=True).status == build_status(state, "openai")


def test_nothing_of_ours_is_told() -> None:
    inside = {"channel": "hush", "provider": "hush", "upstream_id": "hush", "clue": "hush", "key_print": "hush"}
    told = build_video(job("processing", **inside, webhook_url="hush", upstream_model="hush", owner="hush"), "spec")
    assert "hush" not in str(told)


def test_a_page_names_its_ends() -> None:
    other = attrs.evolve(JOB, id="video_2")
    page = build_videos([JOB, other], lambda one: "openai" if one is other else "spec", more=True)
    assert (page["object"], page["first_id"], page["last_id"], page["has_more"]) == ("list", "video_1", "video_2", True)
    assert page["data"] == [build_video(JOB, "spec"), build_video(other, "openai")]
    empty = {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
    assert build_videos([], lambda _: "spec", more=False) == empty


def test_what_is_deleted_says_so() -> None:
    assert build_deleted("video_1") == {"id": "video_1", "object": "video.deleted", "deleted": True}


# ---- what is asked


def test_a_video_is_asked_for_in_the_conventions_words_over_the_callers_own() -> None:
    extra = {"seed": 7, "negative_prompt": None}
    ask = MAKER.submit(shot(seconds=8, size="1280x720", extra=extra))
    assert (ask.method, ask.path, ask.begins, ask.passing) == ("POST", None, True, False)
    assert read_sent(ask) == {"seed": 7, "model": "sora-2", "prompt": "a cat", "seconds": "8", "size": "1280x720"}
    assert read_sent(MAKER.submit(shot())) == {"model": "sora-2", "prompt": "a cat"}


def test_shades_pass_and_nothing_else_that_a_caller_says() -> None:
    shades = dict.fromkeys(SAFE_FIELDS, "x")
    assert read_sent(MAKER.submit(shot(extra=shades))) == shades | {"model": "sora-2", "prompt": "a cat"}
    for name, value in (
        ("model", "another"),
        ("seconds", "60"),
        ("quality", "4k"),
        ("metadata", {"duration": 60}),
        ("extra_body", {"n": 4}),
        ("callback_url", "https://host"),
        ("seed", [7]),
        ("user", {"id": 1}),
        ("x" * 500, 1),
    ):
        with pytest.raises(InvalidRequest) as refused:
            MAKER.submit(shot(extra={name: value}))
        assert refused.value.param == name[:64]


def test_every_beginning_is_named_by_the_job() -> None:
    remix = MAKER.remix(TASK, shot())
    assert remix is not None
    assert MAKER.submit(shot()).headers == remix.headers == (("Idempotency-Key", "video_mark"),)


def test_a_file_goes_in_a_form_and_an_address_in_an_object() -> None:
    file = upload(draw(), "input_reference")
    said = MAKER.submit(shot(seconds=4, reference=Reference(file))).body
    assert isinstance(said, Form)
    assert said.fields == {"model": "sora-2", "prompt": "a cat", "seconds": "4"}
    assert said.files == (("input_reference", file),)
    for url in ("https://host/1.png", "data:image/png;base64,AAAA"):
        sent = read_sent(MAKER.submit(shot(reference=Reference(url=url))))
        assert sent["input_reference"] == {"image_url": url}


def test_a_task_is_asked_after_fetched_remixed_and_deleted_by_its_id_alone() -> None:
    poll, delete, remix = MAKER.poll(TASK), MAKER.delete(TASK), MAKER.remix(TASK, shot(extra={"seconds": "60"}))
    assert (poll.method, poll.path, poll.passing, poll.body) == ("GET", f"/videos/{TASK.id}", True, None)
    assert delete is not None
    assert (delete.method, delete.path, delete.passing, delete.body) == ("DELETE", f"/videos/{TASK.id}", True, None)
    assert remix is not None
    assert (remix.method, remix.path, remix.begins) == ("POST", f"/videos/{TASK.id}/remix", True)
    assert read_sent(remix) == {"prompt": "a cat"}
    assert MAKER.cancel(TASK) is None
    assert MAKER.poll(ProviderTask("../secret?a#b", "m")).path == "/videos/..%2Fsecret%3Fa%23b"


def test_the_file_is_beside_its_task_and_asked_for_with_the_key() -> None:
    path = f"/videos/{TASK.id}/content"
    assert MAKER.find_content(TASK, "video") == ContentLocation(path=path, signed=True)
    assert MAKER.find_content(TASK, "thumbnail") == ContentLocation(path=f"{path}?variant=thumbnail", signed=True)
    assert MAKER.find_content(TASK, "spritesheet") == ContentLocation(path=f"{path}?variant=spritesheet", signed=True)
    assert not isinstance(MAKER.find_content(TASK, "video"), ProviderCall)


# ---- what is answered


def test_the_task_that_was_begun_is_read() -> None:
    take = MAKER.parse_submitted(orjson.dumps(SAID | {"status": "queued", "progress": 0}), ())
    assert (take.id, take.state, take.progress, take.seconds, take.size) == (TASK.id, "queued", 0, "8", "1280x720")


@pytest.mark.parametrize(
    "answer",
    [{}, SAID | {"id": None}, SAID | {"id": ""}, SAID | {"id": "../x"}, SAID | {"id": "."}, SAID | {"id": 7},
     SAID | {"id": "a b"}, SAID | {"id": "x" * 513}, [SAID], None, "x"],
)  # fmt: skip
def test_a_task_without_a_usable_id_is_a_failure(answer: Any) -> None:
    with pytest.raises(ProviderBadResponse):
        MAKER.parse_submitted(orjson.dumps(answer), ())


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("queued", "queued"), ("in_progress", "processing"), ("processing", "processing"), ("completed", "completed"),
        ("succeeded", "completed"), ("failed", "failed"), ("cancelled", "failed"), ("canceled", "failed"),
        ("expired", "failed"), ("pondering", None), ("", None), ("FAILED", None),
    ],
)  # fmt: skip
def test_a_state_is_read_in_every_servers_words(status: str, state: TaskState | None) -> None:
    take = MAKER.parse_polled(orjson.dumps(SAID | {"status": status}), ())
    assert (take.state, take.progress) == (state, 33)
    assert (take.error is None) is (state != "failed")


@pytest.mark.parametrize("answer", [{}, {"error": "not now"}, {"status": None}, {"status": ["failed"]}, [], None, 1])
def test_an_answer_that_says_nothing_of_a_task_is_no_verdict(answer: Any) -> None:
    with pytest.raises(ProviderBadResponse):
        MAKER.parse_polled(orjson.dumps(answer), ())


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        ({"code": "video_generation_failed", "message": "The camera broke"}, "upstream_error", "The camera broke"),
        ({"code": "moderation_blocked", "message": "No"}, "content_policy_violation", "No"),
        ({"code": "x", "message": "Rejected by the safety system"}, "content_policy_violation", "Rejected by the"),
        ({"code": "moderation_blocked"}, "content_policy_violation", "safety filter"),
        ("out of memory", "upstream_error", "out of memory"),
        (None, "upstream_error", "no reason"),
        ({}, "upstream_error", "no reason"),
        ([1], "upstream_error", "no reason"),
        ({"code": {}, "message": []}, "upstream_error", "no reason"),
        ({"message": "key hush-hush-hush at https://internal.example/x"}, "upstream_error", "key"),
    ],
)
def test_a_failed_task_says_why(error: Any, code: str, words: str) -> None:
    take = MAKER.parse_polled(orjson.dumps(FAILED | {"error": error}), ("hush-hush-hush",))
    assert take.error is not None
    assert take.error.code == code
    assert words in take.error.message
    assert "hush" not in take.error.message
    assert "internal" not in take.error.message


@pytest.mark.parametrize("progress", [-1, 101, "50", 50.5, None, True, [], {}])
def test_a_progress_that_is_none_is_not_believed(progress: Any) -> None:
    assert MAKER.parse_polled(orjson.dumps(SAID | {"progress": progress}), ()).progress is None


@pytest.mark.parametrize(
    ("told", "read"), [(8, "8"), ("8", "8"), ("", None), ("x" * 33, None), (8.5, None), (None, None), (True, None)]
)
def test_how_long_it_is_may_be_a_number(told: Any, read: str | None) -> None:
    assert MAKER.parse_submitted(orjson.dumps(SAID | {"seconds": told}), ()).seconds == read


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (400, {"code": "invalid_value", "message": "No such size"}, ProviderRejected),
        (400, {"code": "moderation_blocked", "message": "Rejected"}, ContentBlocked),
        (401, {"code": "invalid_api_key", "message": "No"}, ProviderAuthError),
        (404, {"code": "not_found", "message": "No such video"}, ProviderRejected),
        (429, {"code": "rate_limit_exceeded", "message": "Slow down"}, ProviderRateLimited),
        (500, {"code": None, "message": "Oops"}, ProviderBadResponse),
        (503, None, ProviderBadResponse),
    ],
)
def test_a_refusal_is_the_fault_it_says(status: int, error: Any, kind: type[ProviderError]) -> None:
    fault = MAKER.parse_refused(status, orjson.dumps({"error": error}), (), provider_retry_after_s=9.0)
    assert type(fault) is kind
    assert kind is not ProviderRateLimited or fault.provider_retry_after_s == 9.0


def test_nobody_has_to_be_asked_where_a_file_is() -> None:
    with pytest.raises(ProviderBadResponse):
        MAKER.read_content(orjson.dumps(SAID), ())


# ---- there and back: another gateway is a server of the convention


@pytest.mark.parametrize("words", ["spec", "openai"])
@pytest.mark.parametrize("state", TRANSITIONS)
def test_what_a_gateway_tells_another_gateway_understands(state: VideoState, words: Any) -> None:
    told = job(state, progress=40) if state != "failed" else job("processing").fail(VideoError("timeout", "Late"), NOW)
    take = MAKER.parse_polled(orjson.dumps(build_video(told, words)), ())
    expected = {"created": "queued", "submitting": "queued", "fetching": "processing"}.get(state, state)
    assert take.state == expected
    assert (take.seconds, take.size) == ("8", "1280x720")
    assert state != "failed" or take.error == VideoError("upstream_error", "Late")


# ---- garbage


def check_reading(raw: bytes) -> None:
    assert isinstance(MAKER.parse_refused(400, raw, ()), ProviderError)
    for read in (MAKER.parse_submitted, MAKER.parse_polled):
        try:
            take = read(raw, ())
        except ProviderError:
            continue
        assert take.progress is None or 0 <= take.progress <= 100
        assert take.state != "failed" or read == MAKER.parse_submitted or take.error is not None


@given(st.sampled_from([SAID, FAILED]).flatmap(spoilt))
@settings(max_examples=40)
def test_junk_anywhere_is_a_fault_or_no_matter(value: Any) -> None:
    check_reading(orjson.dumps(value))


@given(st.binary(max_size=40))
@settings(max_examples=30)
def test_bytes_of_any_kind_are_a_fault(raw: bytes) -> None:
    check_reading(raw)
