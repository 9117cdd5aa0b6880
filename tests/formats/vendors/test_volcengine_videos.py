"""Videos of Volcengine Ark: what is asked, and what the answers mean.

Answers are those of volcengine.com/docs/82379/1520757 (begin), 1521309 (ask), 1521720 (stop) and 1299023 (errors);
sizes are those of docs.byteplus.com/en/docs/ModelArk/1520757.
"""

from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.api_format import WIRES
from gateway.domain.channel import Channel
from gateway.domain.video import Reference
from gateway.errors import (
    ContentBlocked,
    InvalidRequest,
    ProviderAuthError,
    ProviderBadResponse,
    ProviderError,
    ProviderRateLimited,
    ProviderRejected,
)
from gateway.formats.vendors.volcengine_videos import MODELS, VolcengineVideoBackend
from gateway.formats.video_backend import ContentLocation, ProviderTask, VideoBackend, VideoSpec
from gateway.providers.base import EndpointRequest
from gateway.providers.volcengine import VOLCENGINE
from tests.support.corrupt_json import spoilt
from tests.support.image_calls import read_sent, upload
from tests.support.image_providers import draw

MAKER: VideoBackend = VolcengineVideoBackend()
ID = "cgt-20250331175019-68d9t"
MODEL = "doubao-seedance-1-0-pro-250528"
TASK = ProviderTask(ID, MODEL)
URL = "https://ark-content-generation-cn-beijing.tos-cn-beijing.volces.com/doubao-seedance-1-0-pro/x.mp4"
CREATED = {"id": ID}
DONE: Any = {
    "id": ID,
    "model": MODEL,
    "status": "succeeded",
    "content": {"video_url": URL},
    "seed": 10,
    "resolution": "720p",
    "ratio": "16:9",
    "duration": 5,
    "framespersecond": 24,
    "usage": {"completion_tokens": 108900, "total_tokens": 108900},
    "created_at": 1743414619,
    "updated_at": 1743414673,
}
FAILED: Any = {
    "id": ID,
    "model": MODEL,
    "status": "failed",
    "error": {
        "code": "OutputVideoSensitiveContentDetected.PolicyViolation",
        "message": "The request failed because the output video may be related to copyright restrictions.",
    },
}
REFUSED = {
    "error": {
        "code": "InvalidParameter",
        "message": "The parameter `duration` specified in the request is not valid",
        "param": "duration",
        "type": "BadRequest",
    },
}
PNG = draw()
IMAGE = Reference(upload(PNG, "input_reference"))


def shot(model: str = MODEL, prompt: str = "a cat", **fields: Any) -> VideoSpec:
    return VideoSpec(model, prompt, "video_1", **fields)


def refused(code: str) -> bytes:
    return orjson.dumps({"error": {"code": code, "message": "no", "type": "BadRequest", "param": ""}})


def test_a_task_is_begun_by_words() -> None:
    extra = {
        "seed": "11", "camera_fixed": "false", "watermark": True, "generate_audio": "true", "service_tier": "default",
        "duration": 12, "resolution": "480p", "n": 4, "draft": False, "user": "u",
    }  # fmt: skip
    ask = MAKER.submit(shot(seconds=8, size="1248x704", extra=extra))
    assert (ask.method, ask.path, ask.begins) == ("POST", "/contents/generations/tasks", True)
    assert read_sent(ask) == {
        "model": MODEL,
        "content": [{"type": "text", "text": "a cat"}],
        "resolution": "720p",
        "ratio": "16:9",
        "duration": 8,
        "seed": 11,
        "camera_fixed": False,
        "watermark": True,
    }


@pytest.mark.parametrize(
    ("reference", "url"),
    [
        (IMAGE, "data:image/png;base64,"),
        (Reference(url="data:image/png;base64,AAAA"), "data:image/png;base64,AAAA"),
        (Reference(url="http://host/1.png"), "http://host/1.png"),
    ],
)
def test_a_task_is_begun_by_a_image(reference: Reference, url: str) -> None:
    sent = read_sent(MAKER.submit(shot("seedance-1-5-pro-251215", size="834x1112", reference=reference)))
    _, image = sent["content"]
    assert (image["type"], image["role"]) == ("image_url", "first_frame")
    assert image["image_url"]["url"].startswith(url)
    assert (sent["resolution"], sent["ratio"]) == ("720p", "3:4")


@pytest.mark.parametrize(
    ("model", "size", "words"),
    [
        ("doubao-seedance-2-0-260128", "4398x1886", ("4k", "21:9")),
        ("dreamina-seedance-2-0-fast-260128", "496x864", ("480p", "9:16")),
        ("doubao-seedance-2-5-260628", "854x480", ("480p", "16:9")),
        ("doubao-seedance-1-0-lite-t2v-250428", "2176x928", ("1080p", "21:9")),
        ("doubao-seedance-1-5-pro-251215", "1920x1080", ("1080p", "16:9")),
    ],
)
def test_a_size_is_said_as_the_model_takes_it(model: str, size: str, words: tuple[str, str]) -> None:
    sent = read_sent(MAKER.submit(shot(model, size=size)))
    assert (sent["resolution"], sent["ratio"]) == words


def test_the_latest_keeps_the_shape_of_its_image() -> None:
    sent = read_sent(MAKER.submit(shot("doubao-seedance-2-5-260628", size="1280x720", seconds=30, reference=IMAGE)))
    assert (sent["resolution"], sent["ratio"], sent["duration"]) == ("720p", "adaptive", 30)


@pytest.mark.parametrize(
    "prompt",
    [
        "a cat --dur 12", "a cat --rs 1080p", "--resolution 1080p a cat", "cat--DURATION=12", "a cat -- frames 289",
        "a cat --rt 21:9", "a cat --ratio 1:1", "a cat --fps 24",
    ],
)  # fmt: skip
def test_a_prompt_that_commands_a_length_or_a_size_is_refused(prompt: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        MAKER.submit(shot(prompt=prompt))
    assert refused.value.param == "prompt"


@pytest.mark.parametrize("prompt", ["a cat -- in the rain", "a cat --seed 7", "a cat --durable", "-dur 5", "ratio 1:1"])
def test_a_prompt_with_dashes_is_none_of_these(prompt: str) -> None:
    assert read_sent(MAKER.submit(shot(prompt=prompt)))["content"][0]["text"] == prompt


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        (shot(size="1280x720"), "size"),
        (shot("doubao-seedance-2-0-fast-260128", size="1920x1080"), "size"),
        (shot("doubao-seedance-9-260128", size="1280x720"), "size"),
        (shot(seconds=13), "seconds"),
        (shot("doubao-seedance-1-5-pro-251215", seconds=3), "seconds"),
        (shot("doubao-seedance-1-0-lite-t2v-250428", reference=IMAGE), "input_reference"),
        (shot("doubao-seedance-1-0-lite-i2v-250428"), "input_reference"),
        (shot(reference=Reference(url="asset://somebody-elses")), "input_reference"),
        (shot(extra={"generate_audio": False}), "generate_audio"),
        (shot(extra={"service_tier": "flex"}), "service_tier"),
        (shot(extra={"draft": "true"}), "draft"),
        (shot(extra={"callback_url": "https://host/hook"}), "callback_url"),
        (shot(extra={"tools": [{"type": "web_search"}]}), "tools"),
        (shot(extra={"content": [{"type": "draft_task", "draft_task": {"id": "x"}}]}), "content"),
    ],
)
def test_what_cannot_be_said_is_refused_by_name(asked: VideoSpec, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        MAKER.submit(asked)
    assert refused.value.param == param


def test_the_id_of_a_task_is_read() -> None:
    take = MAKER.parse_submitted(orjson.dumps(CREATED), ())
    assert (take.id, take.state) == (ID, "queued")


@pytest.mark.parametrize("answer", [{}, {"id": None}, {"id": "../files"}, {"id": 7}, REFUSED, [CREATED]])
def test_an_answer_without_a_usable_id_is_a_failure(answer: Any) -> None:
    with pytest.raises(ProviderBadResponse):
        MAKER.parse_submitted(orjson.dumps(answer), ())


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, orjson.dumps(REFUSED), ProviderRejected),
        (400, refused("InputTextSensitiveContentDetected"), ContentBlocked),
        (400, refused("InputImageSensitiveContentDetected.PrivacyInformation"), ContentBlocked),
        (400, refused("InputTextRiskDetection"), ContentBlocked),
        (400, refused("SensitiveContentDetected.Violence"), ContentBlocked),
        (400, refused("ContentSecurityDetectionError"), ProviderRejected),
        (401, refused("AuthenticationError"), ProviderAuthError),
        (403, refused("AccountOverdueError"), ProviderAuthError),
        (404, refused("ModelNotOpen"), ProviderRejected),
        (429, refused("RateLimitExceeded.EndpointRPMExceeded"), ProviderRateLimited),
        (500, refused("InternalServiceError"), ProviderBadResponse),
        (502, b"<html>", ProviderBadResponse),
    ],
)
def test_a_refusal_is_the_fault_it_says(status: int, body: bytes, kind: type[ProviderError]) -> None:
    assert type(MAKER.parse_refused(status, body, ())) is kind


@pytest.mark.parametrize(
    ("status", "state"),
    [("queued", "queued"), ("running", "processing"), ("pondering", None)],
)
def test_a_state_is_read(status: str, state: str | None) -> None:
    take = MAKER.parse_polled(orjson.dumps({"id": ID, "status": status, "error": None}), ())
    assert (take.state, take.error) == (state, None)


def test_a_completed_task_says_where_its_video_is_and_what_it_is() -> None:
    take = MAKER.parse_polled(orjson.dumps(DONE), ())
    assert (take.state, take.clue, take.seconds, take.size) == ("completed", URL, "5", "1248x704")
    assert MAKER.find_content(ProviderTask(ID, MODEL, take.clue), "video") == ContentLocation(url=URL)
    assert same(MAKER.find_content(TASK, "video"), MAKER.poll(TASK))
    assert MAKER.read_content(orjson.dumps(DONE), ()) == ContentLocation(url=URL)
    assert MAKER.find_content(TASK, "thumbnail") is None


@pytest.mark.parametrize(
    "told",
    [{"duration": -1, "ratio": "keep"}, {"duration": True, "model": None}, {"duration": "5", "model": "x"}],
)
def test_what_nobody_can_tell_of_a_video_is_left_out(told: Any) -> None:
    take = MAKER.parse_polled(orjson.dumps(DONE | told), ())
    assert (take.state, take.seconds, take.size) == ("completed", None, None)


@pytest.mark.parametrize("content", [None, {}, [], {"video_url": None}, {"video_url": "x.mp4"}, {"video_url": 7}])
def test_a_video_without_a_usable_address_is_no_verdict(content: Any) -> None:
    for read in (MAKER.parse_polled, MAKER.read_content):
        with pytest.raises(ProviderBadResponse):
            read(orjson.dumps(DONE | {"content": content}), ())


@pytest.mark.parametrize(
    ("told", "code"),
    [
        ({}, "content_policy_violation"),
        ({"error": {"code": "OutputAudioSensitiveContentDetected", "message": "x"}}, "content_policy_violation"),
        ({"error": {"code": "InternalServiceError", "message": "oops"}}, "upstream_error"),
        ({"error": None}, "upstream_error"),
        ({"error": {"code": 7, "message": []}}, "upstream_error"),
        ({"status": "cancelled", "error": None}, "upstream_error"),
        ({"status": "expired", "error": None}, "upstream_error"),
    ],
)
def test_a_failure_says_whose_it_is(told: Any, code: str) -> None:
    take = MAKER.parse_polled(orjson.dumps(FAILED | told), ())
    assert take.state == "failed"
    assert take.error is not None
    assert (take.error.code, bool(take.error.message)) == (code, True)


@pytest.mark.parametrize("answer", [{}, REFUSED, {"status": None}, {"status": 7}, [], None])
def test_an_answer_that_says_nothing_of_a_task_is_no_verdict(answer: Any) -> None:
    with pytest.raises(ProviderBadResponse) as fault:
        MAKER.parse_polled(orjson.dumps(answer), ())
    assert type(fault.value) is ProviderBadResponse


def test_what_a_failure_says_is_masked() -> None:
    error = {"code": "x", "message": "see https://internal.example/x, key hush-hush-hush"}
    take = MAKER.parse_polled(orjson.dumps(FAILED | {"error": error}), ("hush-hush-hush",))
    assert take.error is not None
    with pytest.raises(ProviderBadResponse) as fault:
        MAKER.parse_polled(orjson.dumps({"error": error}), ("hush-hush-hush",))
    for message in (take.error.message, fault.value.message):
        assert "hush" not in message
        assert "internal" not in message


def test_a_task_is_asked_after_and_stopped_behind_the_base_url() -> None:
    channel = Channel("up", "volcengine", VOLCENGINE.base_url, ("key",))
    cancel, endpoint = MAKER.cancel(TASK), VOLCENGINE.find_endpoint(WIRES["videos"], MODEL)
    assert same(cancel, MAKER.delete(TASK))
    assert MAKER.remix(TASK, shot()) is None
    assert cancel is not None
    assert endpoint is not None
    asked = []
    for ask in (MAKER.submit(shot()), MAKER.poll(TASK), cancel):
        errand = EndpointRequest(None, method=ask.method, path=ask.path, headers=ask.headers)
        plan = VOLCENGINE.plan(channel, endpoint, errand, model=MODEL, key="key")
        asked.append((plan.method, plan.url.removeprefix("https://ark.cn-beijing.volces.com/api/v3")))
    place = "/contents/generations/tasks"
    assert asked == [("POST", place), ("GET", f"{place}/{ID}"), ("DELETE", f"{place}/{ID}")]
    assert VOLCENGINE.find_endpoint(WIRES["videos"], "doubao-seed-1-6-251015") is None


@pytest.mark.parametrize("glob", MODELS)
def test_what_is_promised_of_a_model_can_be_said_to_it(glob: str) -> None:
    name = glob.replace("*", "x")
    able = VOLCENGINE.find_capability(name)
    assert able is not None
    assert (able.name, able.remixes) == (glob, False)
    for size in able.sizes or ():
        for seconds in able.seconds or ():
            reference = IMAGE if able.references else None
            sent = read_sent(MAKER.submit(shot(name, size=size, seconds=seconds, reference=reference)))
            assert (sent["duration"], len(sent["content"])) == (seconds, 2 if reference else 1)


def same(one: Any, other: Any) -> bool:
    return bool(attrs.asdict(one) == attrs.asdict(other))


def check_reading(raw: bytes) -> None:
    assert isinstance(MAKER.parse_refused(400, raw, ()), ProviderError)
    for read in (MAKER.parse_submitted, MAKER.parse_polled, MAKER.read_content):
        try:
            told = read(raw, ())
        except ProviderError:
            continue
        if isinstance(told, ContentLocation):
            assert (told.url or "").startswith("http")
        elif told.state == "failed":
            assert told.error is not None


@given(value=st.sampled_from([CREATED, DONE, FAILED, REFUSED]).flatmap(spoilt))
@settings(max_examples=40)
def test_junk_anywhere_is_a_fault_or_no_matter(value: Any) -> None:
    check_reading(orjson.dumps(value))


@given(raw=st.binary(max_size=40))
@settings(max_examples=30)
def test_bytes_of_any_kind_are_a_fault(raw: bytes) -> None:
    check_reading(raw)


@pytest.mark.parametrize("place", ["status", "content", "error", "model"])
def test_what_is_nested_to_any_depth_is_a_fault_or_no_matter(place: str) -> None:
    check_reading(b'{"status": "succeeded", "%s": ' % place.encode() + b"[" * 1000 + b"]" * 1000 + b"}")
