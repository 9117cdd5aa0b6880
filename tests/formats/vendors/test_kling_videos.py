"""Videos of Kling, in both of its languages: what is asked, and what becomes of the task.

Cassettes are of kling.ai/document-api: api/video/2-6/text-to-video, 3-0-omni/image-to-video and its ``/legacy``
("Create task", "Query task"), api/get-started/error-codes and authentication.
"""

import base64
from typing import Any

import jwt
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
from gateway.formats.vendors.kling_videos import MODELS, KlingVideoBackend
from gateway.formats.video_backend import ContentLocation, ProviderTask, TaskStatus, VideoBackend, VideoSpec
from gateway.providers.base import EndpointRequest
from gateway.providers.kling import KLING, sign_at
from tests.support.corrupt_json import spoilt
from tests.support.image_calls import read_sent, upload
from tests.support.image_providers import draw

KLING_FILMS: VideoBackend = KlingVideoBackend()
NEW, OLD = "kling-3.0", "kling-v2-6"
ID = "893605946402811985"
URL = "https://v15-kling.klingai.com/bs2/upload/output.mp4?x-kcdn-pid=112452"
IMAGE = "https://pictures.example/a.png"
PNG = draw()


def answer(data: Any, code: int = 0, message: str = "SUCCEED") -> bytes:
    return orjson.dumps({"code": code, "message": message, "request_id": "r", "data": data})


BEGUN = {"id": ID, "status": "submitted", "create_time": 1781080778802, "external_id": ""}
DONE = BEGUN | {
    "status": "succeeded",
    "message": "",
    "outputs": [
        {"type": "image", "url": "https://elsewhere.example/cover.png"},
        {"type": "video", "id": "v", "url": URL, "watermark_url": "https://elsewhere.example/w.mp4", "duration": "5.1"},
    ],
    "billing": [{"charge_type": "unit", "amount": "3", "package_type": "video"}],
}
RISK = "Failure to pass the risk control system"
FAILED = BEGUN | {"status": "failed", "message": "generation timed out, key hush-hush-hush"}


def older(kind: str, **fields: Any) -> dict[str, Any]:
    told = {"task_id": ID, "task_status": "submitted", "task_info": {"external_task_id": f"{kind}-video_1"}}
    return {**told, "created_at": 1722769557708, **fields}


OLDER_DONE = older(
    "text2video",
    task_status="succeed",
    task_status_msg="",
    task_result={"videos": [{"id": "v", "url": URL, "watermark_url": "", "duration": "5.1"}]},
)


def shoot(model: str = NEW, **fields: Any) -> tuple[str | None, Any]:
    """The path and the body of a submit."""
    ask = KLING_FILMS.submit(VideoSpec(model, "a cat", "video_1", **fields))
    assert (ask.method, ask.begins) == ("POST", True)
    return ask.path, read_sent(ask)


def polled(data: Any, secrets: tuple[str, ...] = ()) -> TaskStatus:
    return KLING_FILMS.parse_polled(answer(data), secrets)


def test_a_video_of_a_new_model_is_asked_for_at_its_path() -> None:
    path, said = shoot(size="1080x1920", seconds=10, extra={"multi_shot": "false", "user": "u", "callback_url": "x"})
    assert path == "/text-to-video/kling-3.0"
    settings_ = {"resolution": "1080p", "aspect_ratio": "9:16", "duration": 10, "multi_shot": False}
    assert said == {"prompt": "a cat", "settings": settings_}
    assert shoot() == ("/text-to-video/kling-3.0", {"prompt": "a cat"})


def test_a_image_gives_a_new_models_video_its_shape() -> None:
    path, said = shoot(size="1920x1080", seconds=5, reference=Reference(url=IMAGE))
    assert path == "/image-to-video/kling-3.0"
    assert said == {
        "contents": [{"type": "prompt", "text": "a cat"}, {"type": "first_frame", "url": IMAGE}],
        "settings": {"resolution": "1080p", "duration": 5},
    }


@pytest.mark.parametrize("model", ["kling-3.0-omni", "kling-o1"])
def test_an_omni_model_is_asked_at_one_path(model: str) -> None:
    words = {"type": "prompt", "text": "a cat"}
    assert shoot(model) == (f"/omni-video/{model}", {"contents": [words]})
    path, said = shoot(model, reference=Reference(url=IMAGE))
    assert (path, said["contents"][0]) == (f"/omni-video/{model}", words)
    assert said["contents"][1]["type"] == "first_frame"


def test_a_video_of_an_older_model_is_asked_for_by_name() -> None:
    extra = {
        "negative_prompt": "dogs",
        "camera_control": {"type": "forward_up"},
        "cfg_scale": 0.7,
        "watermark_info": {},
    }
    path, said = shoot(OLD, size="1280x720", seconds=5, extra=extra)
    assert path == "/v1/videos/text2video"
    assert said == {
        "model_name": OLD,
        "prompt": "a cat",
        "external_task_id": "text2video-video_1",
        "negative_prompt": "dogs",
        "camera_control": {"type": "forward_up"},
        "mode": "std",
        "aspect_ratio": "16:9",
        "duration": "5",
    }
    assert shoot("kling-v3", extra={"cfg_scale": "0.7"})[1]["cfg_scale"] == 0.7


@pytest.mark.parametrize("model", [NEW, OLD])
@pytest.mark.parametrize("as_file", [True, False])
def test_a_image_goes_along_as_base64_without_anything_before_it(model: str, as_file: bool) -> None:
    data = base64.b64encode(PNG).decode()
    reference = Reference(upload(PNG)) if as_file else Reference(url=f"data:image/png;base64,{data}")
    path, said = shoot(model, reference=reference, size="1920x1080")
    if model == OLD:
        assert (path, said["image"], said["mode"]) == ("/v1/videos/image2video", data, "pro")
        assert said["external_task_id"] == "image2video-video_1"
        assert "aspect_ratio" not in said
    else:
        assert said["contents"][1] == {"type": "first_frame", "url": data}


@pytest.mark.parametrize(
    ("model", "fields", "param"),
    [
        ("kling-v1-6", {}, "model"),
        (NEW, {"size": "1024x1024"}, "size"),
        ("kling-3.0-turbo", {"size": "3840x2160"}, "size"),
        (NEW, {"seconds": 2}, "seconds"),
        (OLD, {"seconds": 6}, "seconds"),
        (NEW, {"extra": {"audio": "native"}}, "audio"),
        (OLD, {"extra": {"sound": "on"}}, "sound"),
        (OLD, {"extra": {"mode": "pro"}}, "mode"),
        (OLD, {"extra": {"image_tail": IMAGE}}, "image_tail"),
        (OLD, {"extra": {"multi_shot": True}}, "multi_shot"),
        (NEW, {"extra": {"negative_prompt": "dogs"}}, "negative_prompt"),
        (NEW, {"extra": {"settings": {"duration": 15}}}, "settings"),
        (NEW, {"reference": Reference(url="data:,x")}, "input_reference"),
    ],
)
def test_what_cannot_be_said_is_refused_by_name(model: str, fields: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        KLING_FILMS.submit(VideoSpec(model, "a cat", "video_1", **fields))
    assert refused.value.param == param


def test_what_asks_for_nothing_is_no_matter() -> None:
    assert shoot(extra={"sound": "off", "audio": "off", "negative_prompt": "", "image_tail": None})[1] == {
        "prompt": "a cat"
    }


def test_a_new_task_is_begun_asked_after_and_done() -> None:
    begun = KLING_FILMS.parse_submitted(answer(BEGUN), ())
    assert (begun.state, begun.id) == ("queued", ID)
    ask = KLING_FILMS.poll(ProviderTask(ID, NEW))
    assert (ask.method, ask.path, ask.passing) == ("GET", f"/tasks?task_ids={ID}", True)
    assert polled([BEGUN | {"status": "processing"}]) == TaskStatus("processing")
    done = polled([DONE])
    assert (done.state, done.clue) == ("completed", URL)
    assert KLING_FILMS.find_content(ProviderTask(ID, NEW, done.clue), "video") == ContentLocation(url=URL)
    assert KLING_FILMS.find_content(ProviderTask(ID, NEW, done.clue), "spritesheet") is None


@pytest.mark.parametrize("kind", ["text2video", "image2video"])
def test_an_older_task_is_asked_after_where_it_was_begun(kind: str) -> None:
    begun = KLING_FILMS.parse_submitted(answer(older(kind)), ())
    assert (begun.state, begun.id) == ("queued", f"{kind}:{ID}")
    assert KLING_FILMS.poll(ProviderTask(begun.id or "", OLD)).path == f"/v1/videos/{kind}/{ID}"
    done = polled(OLDER_DONE)
    assert (done.state, done.clue) == ("completed", URL)


def test_an_older_answer_that_does_not_repeat_our_id_is_taken_for_one_without_a_image() -> None:
    begun = KLING_FILMS.parse_submitted(answer({"task_id": ID, "task_status": "submitted"}), ())
    assert begun.id == f"text2video:{ID}"


@pytest.mark.parametrize(
    "task", [BEGUN | {"status": "failed", "message": RISK}, older("x", task_status="failed", task_status_msg=RISK)]
)
def test_what_a_filter_took_away_is_a_failure_with_its_code(task: Any) -> None:
    take = polled(task)
    assert take.state == "failed"
    assert take.error is not None
    assert (take.error.code, take.error.message) == ("content_policy_violation", RISK)


def test_a_failure_is_told_masked() -> None:
    take = polled([FAILED], ("hush-hush-hush",))
    assert take.error is not None
    assert take.error.code == "upstream_error"
    assert take.error.message == "generation timed out, key [masked]"


def test_a_state_that_nobody_knows_goes_on() -> None:
    assert polled([BEGUN | {"status": "pondering"}]) == TaskStatus(None)
    assert polled(older("text2video", task_status=7)) == TaskStatus(None)


@pytest.mark.parametrize(
    "raw",
    [
        answer([]), answer(None), answer([BEGUN, BEGUN]), answer({}), answer([DONE | {"outputs": []}]), b"", b"<html>",
        answer(None, 1203, "The task does not exist"), answer(None, 1002, "auth failed"), answer(None, 1301, "policy"),
        answer(None, 1302, "too many"), answer([DONE], 5000, "internal"),
    ],
)  # fmt: skip
def test_an_answer_that_says_nothing_of_the_task_is_no_verdict(raw: bytes) -> None:
    with pytest.raises(ProviderBadResponse):
        KLING_FILMS.parse_polled(raw, ())


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (401, 1002, ProviderAuthError),
        (429, 1101, ProviderAuthError),
        (429, 1102, ProviderAuthError),
        (403, 1103, ProviderAuthError),
        (400, 1200, ProviderRejected),
        (400, 1201, ProviderRejected),
        (404, 1203, ProviderRejected),
        (400, 1300, ContentBlocked),
        (400, 1301, ContentBlocked),
        (429, 1302, ProviderRateLimited),
        (429, 1303, ProviderRateLimited),
        (429, 1304, ProviderAuthError),
        (500, 5000, ProviderBadResponse),
        (504, 5002, ProviderBadResponse),
    ],
)
def test_a_refusal_is_the_fault_its_code_says_whatever_its_status(
    status: int, code: int, kind: type[Exception]
) -> None:
    raw = answer(None, code, "what is wrong")
    fault = KLING_FILMS.parse_refused(status, raw, (), provider_retry_after_s=7.0)
    assert type(fault) is kind
    if kind is ProviderRateLimited:
        assert fault.provider_retry_after_s == 7.0
    with pytest.raises(kind) as raised:
        KLING_FILMS.parse_submitted(raw, ())
    assert type(raised.value) is kind


def test_a_refusal_tells_what_the_provider_said() -> None:
    fault = KLING_FILMS.parse_refused(400, answer(None, 1201, "duration is invalid"), ())
    assert (fault.message, fault.status) == ("duration is invalid", 400)
    with pytest.raises(ProviderBadResponse, match="reported an error: out of order"):
        KLING_FILMS.parse_submitted(answer(None, 4711, "out of order"), ())


@pytest.mark.parametrize("name", MODELS)
def test_what_is_promised_of_a_model_can_be_said_to_it(name: str) -> None:
    able = KLING.find_capability(name)
    assert able is not None
    assert able.sizes
    assert able.seconds
    assert able.seconds[0] == 5
    for size in able.sizes:
        assert shoot(name, size=size, seconds=able.seconds[-1])[0]
    endpoint = KLING.find_endpoint(WIRES["videos"], name)
    assert endpoint is not None
    assert endpoint.wire == "kling_videos"


def test_the_first_size_is_the_smallest_and_lies() -> None:
    assert {next(iter(model.sizes)) for model in MODELS.values()} == {"1280x720"}
    assert MODELS[NEW].sizes["2160x2160"] == ("1:1", "4k")


def test_an_access_key_and_its_secret_sign_a_token_of_the_moment() -> None:
    secret = "s" * 32
    token = sign_at(f"access:{secret}", 1_700_000_000)["Authorization"].removeprefix("Bearer ")
    claims = jwt.decode(token, secret, algorithms=["HS256"], options={"verify_exp": False, "verify_nbf": False})
    assert claims == {"iss": "access", "exp": 1_700_001_800, "nbf": 1_699_999_995}
    assert jwt.get_unverified_header(token) == {"alg": "HS256", "typ": "JWT"}


@pytest.mark.parametrize("key", ["api-key-kling-x", "access:", ":secret"])
def test_a_key_that_is_no_pair_is_one_itself(key: str) -> None:
    assert sign_at(key, 1) == {"Authorization": f"Bearer {key}"}


def test_a_request_is_signed_with_its_time() -> None:
    channel = Channel("up", "kling", "https://h.example", ("k",))
    (endpoint,) = KLING.endpoints
    errand = EndpointRequest(b"{}", path="/text-to-video/kling-3.0")
    plan = KLING.plan(channel, endpoint, errand, model=NEW, key="a:" + "s" * 32, now_s=100)
    assert plan.url == "https://h.example/text-to-video/kling-3.0"
    token = plan.headers["Authorization"].removeprefix("Bearer ")
    assert jwt.decode(token, options={"verify_signature": False})["nbf"] == 95


@given(
    value=st.sampled_from([BEGUN, [DONE], [FAILED], older("image2video"), OLDER_DONE]).flatmap(spoilt),
    code=st.booleans(),
)
@settings(max_examples=40)
def test_junk_anywhere_is_a_fault_or_no_matter(value: Any, code: bool) -> None:
    check_reading(orjson.dumps({"code": 0, "data": value} if code else value))


@given(raw=st.binary(max_size=40))
@settings(max_examples=30)
def test_bytes_of_any_kind_are_a_fault_or_no_matter(raw: bytes) -> None:
    check_reading(raw)


def test_an_answer_of_any_depth_is_a_fault() -> None:
    check_reading(b'{"code": 1201, "data": ' + b"[" * 900 + b"]" * 900 + b"}")


def check_reading(raw: bytes) -> None:
    """Only faults of the provider's come out, and what is read can be used."""
    for read in (KLING_FILMS.parse_submitted, KLING_FILMS.parse_polled, KLING_FILMS.read_content):
        try:
            told = read(raw, ())
        except ProviderError:
            continue
        assert isinstance(told, TaskStatus)
        assert (told.state == "failed") == (told.error is not None)
        assert (told.state == "completed") == (told.clue is not None)
        if read == KLING_FILMS.parse_submitted:
            path = KLING_FILMS.poll(ProviderTask(told.id or "", NEW)).path
            assert path is not None
            assert path.startswith(("/tasks?task_ids=", "/v1/videos/"))
    for status in (200, 400, 401, 404, 429, 500):
        assert isinstance(KLING_FILMS.parse_refused(status, raw, ()), ProviderError)
