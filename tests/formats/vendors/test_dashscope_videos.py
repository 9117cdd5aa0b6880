"""Videos of DashScope: what is asked of which model, and what the answers mean.

Answers are those of alibabacloud.com/help/en/model-studio: .../legacy-wan-text-to-video-api-reference,
.../legacy-image-to-video-api-reference and .../error-code.
"""

from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.api_format import WIRES
from gateway.domain.capability import find_capability
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
from gateway.formats.vendors.dashscope_videos import MODELS, DashScopeVideoBackend
from gateway.formats.video_backend import ContentLocation, ProviderTask, VideoBackend, VideoSpec
from gateway.providers.base import EndpointRequest
from gateway.providers.dashscope import DASHSCOPE, VIDEOS
from tests.support.corrupt_json import spoilt
from tests.support.image_calls import read_sent, upload
from tests.support.image_providers import draw

MAKER: VideoBackend = DashScopeVideoBackend()
ID = "0385dc79-5ff8-4d82-bcb6-xxxxxx"
TASK = ProviderTask(ID, "wan2.6-t2v")
URL = "https://dashscope-result-sh.oss-accelerate.aliyuncs.com/xxx.mp4?Expires=xxx"
CREATED = {"output": {"task_status": "PENDING", "task_id": ID}, "request_id": "4909100c-7b5a-9f92-bfe5-xxxxxx"}
DONE: Any = {
    "request_id": "caa62a12-8841-41a6-8af2-xxxxxx",
    "output": {
        "task_id": ID,
        "task_status": "SUCCEEDED",
        "submit_time": "2025-09-29 14:18:52.331",
        "scheduled_time": "2025-09-29 14:18:59.290",
        "end_time": "2025-09-29 14:23:39.407",
        "orig_prompt": "a cat",
        "video_url": URL,
    },
    "usage": {
        "duration": 10,
        "size": "1280*720",
        "input_video_duration": 0,
        "output_video_duration": 10,
        "video_count": 1,
        "SR": 720,
    },
}
FAILED: Any = {
    "request_id": "e5d70b02-ebd3-98ce-9fe8-759d7d7b107d",
    "output": {
        "task_id": ID,
        "task_status": "FAILED",
        "code": "InvalidParameter",
        "message": "The size is not match xxxxxx",
    },
}
DENIED = {"code": "InvalidApiKey", "message": "No API-key provided.", "request_id": "7438d53d-6eb8-4596-8835-xxxxxx"}
PNG = draw()
IMAGE = Reference(upload(PNG, "input_reference"))


def shot(model: str = "wan2.6-t2v", **fields: Any) -> VideoSpec:
    return VideoSpec(model, "a cat", "video_1", **fields)


def test_a_task_is_begun_by_words() -> None:
    extra = {
        "negative_prompt": "dogs", "prompt_extend": "false", "shot_type": "multi", "watermark": True, "seed": "42",
        "audio": "true", "template": "", "duration": 15, "resolution": "1080P", "user": "u",
    }  # fmt: skip
    ask = MAKER.submit(shot(seconds=10, size="1280x720", extra=extra))
    assert (ask.method, ask.begins, ask.headers) == ("POST", True, (("X-DashScope-Async", "enable"),))
    assert ask.path == "/api/v1/services/aigc/video-generation/video-synthesis"
    assert read_sent(ask) == {
        "model": "wan2.6-t2v",
        "input": {"prompt": "a cat", "negative_prompt": "dogs"},
        "parameters": {
            "size": "1280*720",
            "duration": 10,
            "prompt_extend": False,
            "shot_type": "multi",
            "watermark": True,
            "seed": 42,
        },
    }


@pytest.mark.parametrize(
    ("model", "size", "seconds", "parameters"),
    [
        ("wan2.5-t2v-preview", "832x480", 10, {"size": "832*480", "duration": 10}),
        ("wan2.2-t2v-plus", "1920x1080", 5, {"size": "1920*1080"}),
        ("wanx2.1-t2v-turbo", None, 5, {}),
        ("wan2.7-t2v", "1104x832", 2, {"resolution": "720P", "ratio": "4:3", "duration": 2}),
        ("wan2.7-t2v-2026-06-12", "1080x1920", 15, {"resolution": "1080P", "ratio": "9:16", "duration": 15}),
        ("wan9-t2v", "1280x720", 15, {"resolution": "720P", "ratio": "16:9", "duration": 15}),
    ],
)
def test_size_and_length_are_said_as_the_model_takes_them(
    model: str, size: str | None, seconds: int, parameters: Any
) -> None:
    assert read_sent(MAKER.submit(shot(model, size=size, seconds=seconds)))["parameters"] == parameters


@pytest.mark.parametrize(
    ("reference", "url"),
    [
        (IMAGE, "data:image/png;base64,"),
        (Reference(url="data:image/png;base64,AAAA"), "data:image/png;base64,AAAA"),
        (Reference(url="http://host/1.png"), "http://host/1.png"),
    ],
)
def test_a_task_is_begun_by_a_image_whose_shape_it_keeps(reference: Reference, url: str) -> None:
    sent = read_sent(MAKER.submit(shot("wan2.6-i2v-flash", size="720x1280", seconds=7, reference=reference)))
    assert sent["input"].keys() == {"prompt", "img_url"}
    assert sent["input"]["img_url"].startswith(url)
    assert sent["parameters"] == {"resolution": "720P", "duration": 7}
    sent = read_sent(MAKER.submit(shot("wan2.7-i2v", size="1920x1080", seconds=7, reference=reference)))
    (media,) = sent["input"]["media"]
    assert media["type"] == "first_frame"
    assert media["url"].startswith(url)
    assert sent["parameters"] == {"resolution": "1080P", "duration": 7}


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        (shot(reference=IMAGE), "input_reference"),
        (shot("wan2.6-i2v"), "input_reference"),
        (shot("wan2.6-i2v", reference=Reference(url="oss://somebody-elses/1.png")), "input_reference"),
        (shot("wan2.6-i2v", reference=Reference(url="file:///etc/passwd")), "input_reference"),
        (shot(size="832x480"), "size"),
        (shot(size="1280*720"), "size"),
        (shot("wan2.7-t2v", size="1088x832"), "size"),
        (shot(seconds=7), "seconds"),
        (shot("wan2.2-t2v-plus", seconds=10), "seconds"),
        (shot(extra={"audio": "false"}), "audio"),
        (shot(extra={"audio_url": "https://host/1.mp3"}), "audio_url"),
        (shot(extra={"template": "flying"}), "template"),
        (shot(extra={"media": [{"type": "first_clip"}]}), "media"),
    ],
)
def test_what_cannot_be_said_is_refused_by_name(asked: VideoSpec, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        MAKER.submit(asked)
    assert refused.value.param == param


def test_the_id_of_a_task_is_read() -> None:
    take = MAKER.parse_submitted(orjson.dumps(CREATED), ())
    assert (take.id, take.state) == (ID, "queued")


@pytest.mark.parametrize(
    "answer", [{}, {"output": None}, {"output": {"task_id": 7}}, {"output": {"task_id": ".."}}, []]
)
def test_an_answer_without_a_usable_id_is_a_failure(answer: Any) -> None:
    with pytest.raises(ProviderBadResponse):
        MAKER.parse_submitted(orjson.dumps(answer), ())


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("DataInspectionFailed", ContentBlocked),
        ("IPInfringementSuspect", ContentBlocked),
        ("Throttling", ProviderRateLimited),
        ("Throttling.RateQuota", ProviderRateLimited),
        ("InvalidApiKey", ProviderAuthError),
        ("Arrearage", ProviderAuthError),
        ("AccessDenied.Unpurchased", ProviderAuthError),
        ("InvalidParameter", ProviderRejected),
        ("InvalidURL", ProviderRejected),
        ("InternalError.Timeout", ProviderBadResponse),
        ("Unheard", ProviderBadResponse),
    ],
)
def test_an_error_with_a_good_status_is_the_fault_it_says(code: str, kind: type[ProviderError]) -> None:
    with pytest.raises(kind) as fault:
        MAKER.parse_submitted(orjson.dumps({"code": code, "message": "no", "request_id": "r"}), ())
    assert type(fault.value) is kind
    assert not isinstance(fault.value, ProviderRejected) or fault.value.status in {400, 429}


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, {"code": "InvalidParameter", "message": "no"}, ProviderRejected),
        (400, {"code": "DataInspectionFailed", "message": "no"}, ContentBlocked),
        (400, {"code": "IPInfringementSuspect", "message": "no"}, ContentBlocked),
        (400, {"code": "Arrearage", "message": "Access denied"}, ProviderAuthError),
        (401, DENIED, ProviderAuthError),
        (429, {"code": "Throttling.RateQuota", "message": "no"}, ProviderRateLimited),
        (500, {"code": "InternalError", "message": "no"}, ProviderBadResponse),
        (502, "<html>", ProviderBadResponse),
    ],
)
def test_a_refusal_is_the_fault_it_says(status: int, body: Any, kind: type[ProviderError]) -> None:
    assert type(MAKER.parse_refused(status, orjson.dumps(body), ())) is kind


@pytest.mark.parametrize(
    ("status", "state"),
    [("PENDING", "queued"), ("RUNNING", "processing"), ("UNKNOWN", None), ("PONDERING", None)],
)
def test_a_state_is_read_and_a_task_that_is_not_found_is_no_verdict(status: str, state: str | None) -> None:
    take = MAKER.parse_polled(orjson.dumps({"output": {"task_id": ID, "task_status": status}}), ())
    assert (take.state, take.error) == (state, None)


def test_a_completed_task_says_where_its_video_is_and_what_it_is() -> None:
    take = MAKER.parse_polled(orjson.dumps(DONE), ())
    assert (take.state, take.clue, take.seconds, take.size) == ("completed", URL, "10", "1280x720")
    assert MAKER.find_content(ProviderTask(ID, "m", take.clue), "video") == ContentLocation(url=URL)
    assert same(MAKER.find_content(TASK, "video"), MAKER.poll(TASK))
    assert MAKER.read_content(orjson.dumps(DONE), ()) == ContentLocation(url=URL)
    assert MAKER.find_content(TASK, "spritesheet") is None


@pytest.mark.parametrize(
    ("usage", "seconds", "size"),
    [
        ({"video_count": 1, "video_duration": 10, "video_ratio": "832*480"}, "10", "832x480"),
        ({"video_duration": 5, "video_ratio": "standard", "video_count": 1}, "5", None),
        ({"video_duration": 0, "video_ratio": "", "duration": 10.0, "output_video_duration": 10}, "10", None),
        ({"duration": 10.23, "SR": 480}, None, None),
        ({"duration": True, "size": 7}, None, None),
        ({"duration": -1, "size": "1x1"}, None, None),
        (None, None, None),
    ],
)
def test_what_the_video_is_stands_elsewhere_for_older_models(usage: Any, seconds: Any, size: Any) -> None:
    take = MAKER.parse_polled(orjson.dumps(DONE | {"usage": usage}), ())
    assert (take.seconds, take.size) == (seconds, size)


@pytest.mark.parametrize("url", [None, "", 7, "xxx.mp4", "ftp://host/x", "https://host/" + "x" * 5000])
def test_a_video_without_a_usable_address_is_no_verdict(url: Any) -> None:
    answer = {"output": DONE["output"] | {"video_url": url}}
    for read in (MAKER.parse_polled, MAKER.read_content):
        with pytest.raises(ProviderBadResponse):
            read(orjson.dumps(answer), ())


@pytest.mark.parametrize(
    ("told", "code"),
    [
        ({}, "upstream_error"),
        ({"code": "DataInspectionFailed", "message": "Output data may contain"}, "content_policy_violation"),
        ({"code": "IPInfringementSuspect"}, "content_policy_violation"),
        ({"code": "InternalError.Algo"}, "upstream_error"),
        ({"code": None, "message": None}, "upstream_error"),
        ({"task_status": "CANCELED"}, "upstream_error"),
    ],
)
def test_a_failure_says_whose_it_is(told: Any, code: str) -> None:
    take = MAKER.parse_polled(orjson.dumps({"output": FAILED["output"] | told}), ())
    assert take.state == "failed"
    assert take.error is not None
    assert (take.error.code, bool(take.error.message)) == (code, True)


@pytest.mark.parametrize(
    "answer", [{}, DENIED, {"code": "Throttling", "message": "no"}, {"output": {"task_status": None}}, [], None]
)
def test_an_answer_that_says_nothing_of_a_task_is_no_verdict(answer: Any) -> None:
    with pytest.raises(ProviderBadResponse) as fault:
        MAKER.parse_polled(orjson.dumps(answer), ())
    assert type(fault.value) is ProviderBadResponse


def test_what_a_failure_says_is_masked() -> None:
    words = {"message": "see https://internal.example/x, key hush-hush-hush"}
    take = MAKER.parse_polled(orjson.dumps({"output": FAILED["output"] | words}), ("hush-hush-hush",))
    assert take.error is not None
    with pytest.raises(ProviderBadResponse) as fault:
        MAKER.parse_polled(orjson.dumps({"code": "x", **words}), ("hush-hush-hush",))
    for message in (take.error.message, fault.value.message):
        assert "hush" not in message
        assert "internal" not in message


def test_a_task_is_asked_after_and_cancelled_at_the_servers_root() -> None:
    channel = Channel("up", "dashscope", DASHSCOPE.base_url, ("key",))
    cancel = MAKER.cancel(TASK)
    assert cancel is not None
    assert (MAKER.delete(TASK), MAKER.remix(TASK, shot())) == (None, None)
    urls = []
    for ask in (MAKER.submit(shot()), MAKER.poll(TASK), cancel):
        errand = EndpointRequest(None, method=ask.method, path=ask.path, headers=ask.headers)
        plan = DASHSCOPE.plan(channel, VIDEOS, errand, model="wan2.6-t2v", key="key")
        urls.append((plan.method, plan.url.removeprefix("https://dashscope-intl.aliyuncs.com")))
    assert urls == [
        ("POST", "/api/v1/services/aigc/video-generation/video-synthesis"),
        ("GET", f"/api/v1/tasks/{ID}"),
        ("POST", f"/api/v1/tasks/{ID}/cancel"),
    ]


def test_the_language_is_for_models_that_film_from_words_or_one_image() -> None:
    for model in ("wan2.6-t2v", "wanx2.1-i2v-turbo", "wan2.7-i2v-2026-04-25"):
        endpoint = DASHSCOPE.find_endpoint(WIRES["videos"], model)
        assert endpoint is not None
        assert endpoint.wire == "dashscope_videos"
    for model in ("wan2.6-r2v", "wan2.2-kf2v-flash", "wan2.2-t2i-plus", "wan2.7-videoedit", "qwen-plus"):
        assert DASHSCOPE.find_endpoint(WIRES["videos"], model) is None


@pytest.mark.parametrize("glob", MODELS)
def test_what_is_promised_of_a_model_can_be_said_to_it(glob: str) -> None:
    name = glob.replace("wan*", "wanx").replace("*", "")
    able = find_capability(DASHSCOPE.capabilities, name)
    assert able is not None
    assert (able.name, able.remixes) == (glob, False)
    for size in able.sizes or ():
        for seconds in able.seconds or ():
            reference = IMAGE if able.references else None
            sent = read_sent(MAKER.submit(shot(name, size=size, seconds=seconds, reference=reference)))
            assert sent["parameters"].get("duration", 5) == seconds


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


@given(value=st.sampled_from([CREATED, DONE, FAILED, DENIED]).flatmap(spoilt))
@settings(max_examples=40)
def test_junk_anywhere_is_a_fault_or_no_matter(value: Any) -> None:
    check_reading(orjson.dumps(value))


@given(raw=st.binary(max_size=40))
@settings(max_examples=30)
def test_bytes_of_any_kind_are_a_fault(raw: bytes) -> None:
    check_reading(raw)


@pytest.mark.parametrize("place", ["output", "usage", "code", "message"])
def test_what_is_nested_to_any_depth_is_a_fault_or_no_matter(place: str) -> None:
    check_reading(b'{"%s": ' % place.encode() + b"[" * 1000 + b"]" * 1000 + b"}")
