"""Videos of Runway: what is asked, and what the answers mean.

Answers are those of docs.dev.runwayml.com/api ("Get task detail", with its examples); its schema is
github.com/runwayml/openapi.
"""

from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.capability import Capability
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
from gateway.formats.vendors.runway_videos import MODELS, RunwayVideoBackend
from gateway.formats.video_backend import ContentLocation, ProviderTask, VideoBackend, VideoSpec
from gateway.providers.base import EndpointRequest
from gateway.providers.runway import RUNWAY
from tests.support.corrupt_json import spoilt
from tests.support.image_calls import read_sent, upload
from tests.support.image_providers import draw

MAKER: VideoBackend = RunwayVideoBackend()
ID = "17f20503-6c24-4c16-946b-35dbbce2af2f"
TASK = ProviderTask(ID, "gen4.5")
SINCE = "2024-06-27T19:49:32.335Z"
URL = "https://dnznrvs05pmza.cloudfront.net/1.mp4?_jwt=x"
CREATED = {"id": ID, "estimatedCost": {"credits": 60}}
PENDING = {"id": ID, "status": "PENDING", "createdAt": SINCE}
RUNNING = {"id": ID, "status": "RUNNING", "createdAt": SINCE, "progress": 0.2}
DONE = {"id": ID, "status": "SUCCEEDED", "createdAt": SINCE, "output": [URL]}
FAILED = {
    "id": ID,
    "status": "FAILED",
    "createdAt": SINCE,
    "failure": "The provided image was flagged by content moderation.",
    "failureCode": "SAFETY.INPUT.IMAGE",
}
REFUSED = {
    "error": "Validation of body failed",
    "issues": [{"code": "too_small", "path": ["promptText"], "message": "String must contain at least 1 character(s)"}],
    "docUrl": "https://docs.dev.runwayml.com/api",
}
PNG = draw()
IMAGE = Reference(upload(PNG, "input_reference"))


def shot(model: str = "gen4.5", **fields: Any) -> VideoSpec:
    return VideoSpec(model, "a cat", "video_1", **fields)


def test_a_task_is_begun_by_words() -> None:
    ask = MAKER.submit(shot(seconds=8, size="720x1280", extra={"seed": "7", "user": "u"}))
    assert (ask.method, ask.path, ask.begins) == ("POST", "/text_to_video", True)
    assert read_sent(ask) == {
        "model": "gen4.5",
        "promptText": "a cat",
        "ratio": "720:1280",
        "duration": 8,
        "seed": 7,
    }


@pytest.mark.parametrize(
    ("reference", "uri"),
    [
        (IMAGE, "data:image/png;base64,"),
        (Reference(url="data:image/png;base64,AAAA"), "data:image/png;base64,AAAA"),
        (Reference(url="https://host/1.png"), "https://host/1.png"),
    ],
)
def test_a_task_is_begun_by_a_image(reference: Reference, uri: str) -> None:
    ask = MAKER.submit(shot("gen4_turbo", seconds=5, size="1104x832", reference=reference))
    assert ask.path == "/image_to_video"
    sent = read_sent(ask)
    (image,) = sent.pop("promptImage")
    assert image["position"] == "first"
    assert image["uri"].startswith(uri)
    assert sent == {"model": "gen4_turbo", "promptText": "a cat", "ratio": "1104:832", "duration": 5}


@pytest.mark.parametrize(
    "extra",
    [
        {"audio": False}, {"audio": "false"}, {"outputFormat": "prores"}, {"proresProfile": "4444"},
        {"references": [{}]},
        {"contentModeration": {"publicFigureThreshold": "low"}}, {"promptImage": "https://host/1.png"},
    ],
)  # fmt: skip
def test_what_changes_the_price_or_the_account_is_not_taken(extra: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        MAKER.submit(shot("veo3.1", extra=extra))
    assert refused.value.param == next(iter(extra))


def test_shades_are_said_as_the_model_takes_them_and_the_rest_is_dropped() -> None:
    extra = {
        "audio": True,
        "outputFormat": "mp4",
        "duration": 10,
        "ratio": "1:1",
        "negative_prompt": "dogs",
        "user": "u",
    }
    sent = read_sent(MAKER.submit(shot("veo3.1", extra=extra)))
    assert sent == {"model": "veo3.1", "promptText": "a cat", "negativePrompt": "dogs"}
    assert "negativePrompt" not in read_sent(MAKER.submit(shot(extra=extra)))


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        (shot(size="1920x1080"), "size"),
        (shot(size="1104x832"), "size"),
        (shot("somebody_1", size="large"), "size"),
        (shot(seconds=11), "seconds"),
        (shot("veo3.1", seconds=5), "seconds"),
        (shot("gen4_turbo"), "input_reference"),
        (shot(reference=Reference(url="http://host/1.png")), "input_reference"),
        (shot(reference=Reference(url="runway://somebody-elses")), "input_reference"),
        (shot(reference=Reference(url="data:text/html,x")), "input_reference"),
    ],
)
def test_what_cannot_be_said_is_refused_by_name(asked: VideoSpec, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        MAKER.submit(asked)
    assert refused.value.param == param


def test_a_model_that_nobody_knows_is_told_whatever_its_caller_says() -> None:
    sent = read_sent(MAKER.submit(shot("gen7", seconds=60, size="4000x2000", extra={"negativePrompt": "dogs"})))
    assert (sent["ratio"], sent["duration"], sent["negativePrompt"]) == ("4000:2000", 60, "dogs")


def test_the_id_of_a_task_is_read() -> None:
    take = MAKER.parse_submitted(orjson.dumps(CREATED), ())
    assert (take.id, take.state) == (ID, "queued")


@pytest.mark.parametrize("answer", [{}, {"id": None}, {"id": "../organization"}, {"id": 7}, [CREATED], "x"])
def test_an_answer_without_a_usable_id_is_a_failure(answer: Any) -> None:
    with pytest.raises(ProviderBadResponse):
        MAKER.parse_submitted(orjson.dumps(answer), ())


@pytest.mark.parametrize(
    ("answer", "state", "progress"),
    [
        (PENDING, "queued", None),
        (PENDING | {"status": "THROTTLED"}, "queued", None),
        (RUNNING, "processing", 20),
        (RUNNING | {"progress": 20}, "processing", None),
        (RUNNING | {"progress": True}, "processing", None),
        (DONE, "completed", None),
        (PENDING | {"status": "PONDERING"}, None, None),
    ],
)
def test_a_state_is_read(answer: Any, state: str | None, progress: int | None) -> None:
    take = MAKER.parse_polled(orjson.dumps(answer), ())
    assert (take.state, take.progress, take.error) == (state, progress, None)


@pytest.mark.parametrize(
    ("told", "code"),
    [
        ({}, "content_policy_violation"),
        ({"failureCode": "SAFETY.OUTPUT.VIDEO"}, "content_policy_violation"),
        ({"failureCode": "INPUT_PREPROCESSING.SAFETY.TEXT"}, "content_policy_violation"),
        ({"failureCode": "INTERNAL.BAD_OUTPUT.CODE01"}, "upstream_error"),
        ({"failureCode": "ASSET.INVALID"}, "upstream_error"),
        ({"failureCode": None}, "upstream_error"),
        ({"failureCode": 7, "failure": None}, "upstream_error"),
        ({"status": "CANCELLED"}, "upstream_error"),
    ],
)
def test_a_failure_says_whose_it_is(told: Any, code: str) -> None:
    take = MAKER.parse_polled(orjson.dumps(FAILED | told), ())
    assert take.state == "failed"
    assert take.error is not None
    assert (take.error.code, bool(take.error.message)) == (code, True)


@pytest.mark.parametrize("answer", [{}, {"error": "not now"}, {"status": None}, {"status": ["FAILED"]}, [], None])
def test_an_answer_that_says_nothing_of_a_task_is_no_verdict(answer: Any) -> None:
    with pytest.raises(ProviderBadResponse):
        MAKER.parse_polled(orjson.dumps(answer), ())


def test_what_a_failure_says_is_masked() -> None:
    told = FAILED | {"failure": "see https://internal.example/x, key hush-hush-hush"}
    error = MAKER.parse_polled(orjson.dumps(told), ("hush-hush-hush",)).error
    assert error is not None
    assert "hush" not in error.message
    assert "internal" not in error.message


def test_a_completed_task_says_where_its_video_is() -> None:
    take = MAKER.parse_polled(orjson.dumps(DONE), ())
    assert (take.state, take.clue) == ("completed", URL)
    assert MAKER.find_content(ProviderTask(ID, "m", take.clue), "video") == ContentLocation(url=URL)
    assert same(MAKER.find_content(TASK, "video"), MAKER.poll(TASK))
    assert MAKER.read_content(orjson.dumps(DONE), ()) == ContentLocation(url=URL)
    assert MAKER.find_content(TASK, "thumbnail") is None


@pytest.mark.parametrize("output", [None, [], {}, [None], ["out.mp4"], [["x"]], ["data:video/mp4;base64,AA"], "x"])
def test_a_video_without_a_usable_address_is_no_verdict(output: Any) -> None:
    for read in (MAKER.parse_polled, MAKER.read_content):
        with pytest.raises(ProviderBadResponse):
            read(orjson.dumps(DONE | {"output": output}), ())


def test_a_task_is_asked_after_and_stopped_and_forgotten_by_its_id_alone() -> None:
    ask, cancel, delete = MAKER.poll(TASK), MAKER.cancel(TASK), MAKER.delete(TASK)
    assert (ask.method, ask.path, ask.passing) == ("GET", f"/tasks/{ID}", True)
    assert same(cancel, delete)
    assert cancel is not None
    assert (cancel.method, cancel.path, cancel.body) == ("DELETE", f"/tasks/{ID}", None)
    assert MAKER.poll(ProviderTask("a=b~:c", "m")).path == "/tasks/a%3Db~%3Ac"
    assert MAKER.remix(TASK, shot()) is None


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (400, REFUSED, ProviderRejected, "Validation of body failed: promptText: String must"),
        (400, {"error": "Invalid asset", "issues": [7]}, ProviderRejected, "Invalid asset"),
        (400, {"error": "You do not have enough credits to run this task."}, ProviderAuthError, "nothing left"),
        (401, {"error": "Invalid API key"}, ProviderAuthError, "credentials"),
        (404, {"error": "Could not find task"}, ProviderRejected, "Could not find"),
        (429, {"error": "You have exceeded the daily limit"}, ProviderRateLimited, "daily limit"),
        (503, {}, ProviderBadResponse, "503"),
    ],
)
def test_a_refusal_is_the_fault_it_says(status: int, body: Any, kind: type[ProviderError], words: str) -> None:
    fault = MAKER.parse_refused(status, orjson.dumps(body), ())
    assert type(fault) is kind
    assert words in fault.message


def test_a_filters_refusal_is_a_block() -> None:
    fault = MAKER.parse_refused(400, b'{"error": {"code": "SAFETY.INPUT.TEXT", "message": "no"}}', ())
    assert isinstance(fault, ContentBlocked)


def test_every_request_names_the_version_it_means() -> None:
    channel = Channel("up", "runway", RUNWAY.base_url, ("key",))
    ask = MAKER.poll(TASK)
    errand = EndpointRequest(None, method=ask.method, path=ask.path, headers=ask.headers)
    plan = RUNWAY.plan(channel, RUNWAY.endpoints[0], errand, model="gen4.5", key="key")
    assert (plan.method, plan.url) == ("GET", f"https://api.dev.runwayml.com/v1/tasks/{ID}")
    headers = dict(plan.headers)
    assert (headers["X-Runway-Version"], headers["Authorization"]) == ("2024-11-06", "Bearer key")


@pytest.mark.parametrize(
    "able", [able for able in RUNWAY.capabilities if able.name in MODELS], ids=lambda able: able.name
)
def test_what_is_promised_of_a_model_can_be_said_to_it(able: Capability) -> None:
    for size in able.sizes or ():
        for seconds in able.seconds or ():
            sent = read_sent(MAKER.submit(shot(able.name, size=size, seconds=seconds, reference=IMAGE)))
            assert (sent["ratio"], sent["duration"]) == (size.replace("x", ":"), seconds)


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


@given(value=st.sampled_from([CREATED, RUNNING, DONE, FAILED, REFUSED]).flatmap(spoilt))
@settings(max_examples=40)
def test_junk_anywhere_is_a_fault_or_no_matter(value: Any) -> None:
    check_reading(orjson.dumps(value))


@given(raw=st.binary(max_size=40))
@settings(max_examples=30)
def test_bytes_of_any_kind_are_a_fault(raw: bytes) -> None:
    check_reading(raw)


@pytest.mark.parametrize("place", ["status", "output", "error", "issues", "id"])
def test_what_is_nested_to_any_depth_is_a_fault_or_no_matter(place: str) -> None:
    check_reading(b'{"status": "FAILED", "%s": ' % place.encode() + b"[" * 1000 + b"]" * 1000 + b"}")
