"""Videos of Veo: what is asked, and what becomes of the operation.

Cassettes are of ai.google.dev/gemini-api/docs/veo (REST examples, "Veo API parameters and specifications"), the words
of blocks of docs.cloud.google.com, "Responsible AI for Veo".
"""

import base64
from typing import Any

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
from gateway.formats.gemini.videos import SECONDS, SIZES, GeminiVideoBackend
from gateway.formats.video_backend import ContentLocation, ProviderTask, TaskStatus, VideoBackend, VideoSpec
from gateway.providers.base import EndpointRequest
from gateway.providers.gemini import GEMINI
from tests.support.corrupt_json import spoilt
from tests.support.image_calls import read_sent, upload
from tests.support.image_providers import draw

VEO: VideoBackend = GeminiVideoBackend()
MODEL = "veo-3.1-generate-preview"
NAME = f"models/{MODEL}/operations/idw2ph17nrnl"
ID = NAME.replace("/", "~")
URI = "https://generativelanguage.googleapis.com/v1beta/files/o4v8xq2c1a3b:download?alt=media"
BEGUN = {"name": NAME}
UNDER_WAY = {"name": NAME, "metadata": {"@type": "type.googleapis.com/google.ai.generativelanguage.v1beta.X"}}
DONE = {
    "name": NAME,
    "done": True,
    "response": {
        "@type": "type.googleapis.com/google.ai.generativelanguage.v1beta.PredictLongRunningResponse",
        "generateVideoResponse": {"generatedSamples": [{"video": {"uri": URI}}]},
    },
}
FILTERED = {
    "name": NAME,
    "done": True,
    "response": {
        "generateVideoResponse": {
            "raiMediaFilteredCount": 1,
            "raiMediaFilteredReasons": ["We can't create videos with real people's likenesses. Key hush-hush-hush."],
        },
    },
}
FAILED = {"name": NAME, "done": True, "error": {"code": 13, "message": "Video generation failed. Please try again."}}
GUIDELINES = "Veo could not generate videos because the input image violates Vertex AI's usage guidelines."
BLOCKED = {"name": NAME, "done": True, "error": {"code": 3, "message": f"{GUIDELINES} Support codes: 15236754"}}
PNG = draw()


def shoot(**fields: Any) -> Any:
    """The body of a submit."""
    return read_sent(VEO.submit(VideoSpec(MODEL, "a cat", "video_1", **fields)))


def polled(value: Any, secrets: tuple[str, ...] = ()) -> TaskStatus:
    return VEO.parse_polled(orjson.dumps(value), secrets)


def test_a_video_is_asked_for_at_its_model() -> None:
    ask = VEO.submit(VideoSpec(MODEL, "a cat", "video_1"))
    assert (ask.method, ask.path, ask.begins, ask.passing) == ("POST", None, True, False)
    assert read_sent(ask) == {"instances": [{"prompt": "a cat"}]}
    endpoint = GEMINI.find_endpoint(WIRES["videos"], MODEL)
    assert endpoint is not None
    assert endpoint.wire == "gemini_videos"
    channel = Channel("up", "gemini", "https://h.example/v1beta", ("k",))
    plan = GEMINI.plan(channel, endpoint, EndpointRequest(b"{}"), model=MODEL, key="k")
    assert plan.url == f"https://h.example/v1beta/models/{MODEL}:predictLongRunning"
    assert plan.headers["x-goog-api-key"] == "k"


@pytest.mark.parametrize("size", SIZES)
def test_a_size_is_a_shape_and_a_resolution(size: str) -> None:
    width, height = map(int, size.split("x"))
    said = shoot(size=size, seconds=8)["parameters"]
    assert said["aspectRatio"] == ("16:9" if width > height else "9:16")
    assert said["resolution"] == {720: "720p", 1080: "1080p", 2160: "4k"}[min(width, height)]
    assert said["durationSeconds"] == 8


@pytest.mark.parametrize("seconds", SECONDS)
def test_every_length_can_be_said_of_a_small_video(seconds: int) -> None:
    assert shoot(size="1280x720", seconds=seconds)["parameters"]["durationSeconds"] == seconds


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"size": "1024x1024"}, "size"),
        ({"seconds": 5}, "seconds"),
        ({"seconds": 4, "size": "1920x1080"}, "seconds"),
        ({"seconds": 6, "size": "2160x3840"}, "seconds"),
        ({"extra": {"lastFrame": {"bytesBase64Encoded": "AA=="}}}, "lastFrame"),
        ({"extra": {"referenceImages": [{}]}}, "referenceImages"),
        ({"reference": Reference(url="https://pictures.example/a.png")}, "input_reference"),
        ({"reference": Reference(url="data:,hello")}, "input_reference"),
    ],
)
def test_what_cannot_be_said_is_refused_by_name(fields: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        VEO.submit(VideoSpec(MODEL, "a cat", "video_1", **fields))
    assert refused.value.param == param


@pytest.mark.parametrize("as_file", [True, False])
def test_a_image_goes_along_in_base64_with_its_kind(as_file: bool) -> None:
    """Both as a file and as a data: URL."""
    data = base64.b64encode(PNG).decode()
    reference = Reference(upload(PNG)) if as_file else Reference(url=f"data:image/png;base64,{data}")
    (instance,) = shoot(reference=reference)["instances"]
    assert instance == {"prompt": "a cat", "image": {"bytesBase64Encoded": data, "mimeType": "image/png"}}


def test_a_jpeg_is_called_by_its_name() -> None:
    image = shoot(reference=Reference(url="data:image/jpg;base64,/9j/"))["instances"][0]["image"]
    assert image == {"bytesBase64Encoded": "/9j/", "mimeType": "image/jpeg"}


def test_fields_of_the_vendors_own_go_along_and_no_others() -> None:
    extra = {
        "negativePrompt": "7", "personGeneration": "allow_adult", "seed": "42", "user": "u", "sampleCount": 4,
        "resolution": "4k", "storageUri": "gs://x", "enhancePrompt": True, "pubsubTopic": "t",
    }  # fmt: skip
    said = shoot(extra=extra)["parameters"]
    assert said == {"negativePrompt": "7", "personGeneration": "allow_adult", "seed": 42}


def test_an_operation_is_begun_asked_after_and_done() -> None:
    begun = VEO.parse_submitted(orjson.dumps(BEGUN), ())
    assert (begun.state, begun.id) == ("processing", ID)
    task = ProviderTask(ID, MODEL)
    ask = VEO.poll(task)
    assert (ask.method, ask.path, ask.body, ask.passing) == ("GET", f"/{NAME}", None, True)
    assert polled(UNDER_WAY) == TaskStatus("processing")
    done = polled(DONE)
    assert (done.state, done.clue, done.error) == ("completed", URI, None)
    task = ProviderTask(ID, MODEL, done.clue)
    assert VEO.find_content(task, "video") == ContentLocation(url=URI, signed=True)
    assert VEO.find_content(task, "thumbnail") is None
    assert VEO.find_content(ProviderTask(ID, MODEL), "video") is None


def test_an_operation_may_be_done_when_it_is_begun() -> None:
    assert VEO.parse_submitted(orjson.dumps(DONE), ()).state == "completed"
    assert VEO.parse_submitted(orjson.dumps(FAILED), ()).state == "failed"


@pytest.mark.parametrize(
    "name", ["../secrets", "models/../operations/x", "operations/", "operations/a/b", "x", 7, None, "operations/."]
)
def test_a_name_that_is_no_operations_is_no_id(name: Any) -> None:
    with pytest.raises(ProviderBadResponse):
        VEO.parse_submitted(orjson.dumps({"name": name}), ())


def test_an_operation_without_a_model_is_asked_after_by_its_name() -> None:
    begun = VEO.parse_submitted(b'{"name": "operations/abc"}', ())
    assert VEO.poll(ProviderTask(begun.id or "", MODEL)).path == "/operations/abc"


@pytest.mark.parametrize("value", [FILTERED, BLOCKED])
def test_what_a_filter_took_away_is_a_failure_with_its_code(value: Any) -> None:
    take = polled(value, ("hush-hush-hush",))
    assert take.state == "failed"
    assert take.error is not None
    assert take.error.code == "content_policy_violation"
    assert "hush" not in take.error.message


def test_a_failure_and_a_video_that_is_not_there_are_the_providers() -> None:
    for value in (FAILED, DONE | {"response": {"generateVideoResponse": {}}}, DONE | {"response": {}}):
        take = polled(value)
        assert take.state == "failed"
        assert take.error is not None
        assert take.error.code == "upstream_error"


@pytest.mark.parametrize("value", [{}, {"error": {"code": 404}}, {"name": NAME, "done": True}, [], "x"])
def test_an_answer_that_says_nothing_of_the_operation_is_no_verdict(value: Any) -> None:
    with pytest.raises(ProviderBadResponse):
        polled(value)


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (400, {"code": 400, "message": "Unsupported output size", "status": "INVALID_ARGUMENT"}, ProviderRejected),
        (400, {"code": 400, "message": GUIDELINES, "status": "INVALID_ARGUMENT"}, ContentBlocked),
        (403, {"code": 403, "message": GUIDELINES, "status": "PERMISSION_DENIED"}, ProviderAuthError),
        (429, {"code": 429, "message": "You exceeded your quota", "status": "RESOURCE_EXHAUSTED"}, ProviderRateLimited),
        (503, {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}, ProviderBadResponse),
    ],
)
def test_a_refusal_is_the_fault_it_says(status: int, error: Any, kind: type[Exception]) -> None:
    raw = orjson.dumps({"error": error})
    assert type(VEO.parse_refused(status, raw, (), provider_retry_after_s=3.0)) is kind
    with pytest.raises(kind):
        VEO.parse_submitted(raw, ())


def test_what_is_not_offered_is_not_asked() -> None:
    task = ProviderTask(ID, MODEL)
    assert (VEO.cancel(task), VEO.delete(task), VEO.remix(task, VideoSpec(MODEL, "x", "m"))) == (None, None, None)


@pytest.mark.parametrize("able", [able for able in GEMINI.capabilities if able.name.startswith("veo-3")])
def test_what_is_promised_of_a_model_can_be_said_to_it(able: Any) -> None:
    for size in able.sizes:
        assert shoot(size=size, seconds=able.seconds[0])["parameters"]["resolution"]
    assert able.references
    assert able.remixes is False


@given(value=st.sampled_from([BEGUN, UNDER_WAY, DONE, FILTERED, FAILED]).flatmap(spoilt))
@settings(max_examples=40)
def test_junk_anywhere_is_a_fault_or_no_matter(value: Any) -> None:
    check_reading(orjson.dumps(value))


@given(raw=st.binary(max_size=40))
@settings(max_examples=30)
def test_bytes_of_any_kind_are_a_fault_or_no_matter(raw: bytes) -> None:
    check_reading(raw)


def test_an_answer_of_any_depth_is_a_fault() -> None:
    check_reading(b'{"name": ' + b"[" * 900 + b"]" * 900 + b"}")


def check_reading(raw: bytes) -> None:
    """Only faults of the provider's come out, and what is read can be used."""
    for read in (VEO.parse_submitted, VEO.parse_polled, VEO.read_content):
        try:
            told = read(raw, ())
        except ProviderError:
            continue
        assert isinstance(told, TaskStatus)
        assert (told.state == "failed") == (told.error is not None)
        assert (told.state == "completed") == (told.clue is not None)
        if read == VEO.parse_submitted:
            path = VEO.poll(ProviderTask(told.id or "", MODEL)).path
            assert path is not None
            assert ".." not in path
    for status in (400, 401, 404, 429, 500):
        assert isinstance(VEO.parse_refused(status, raw, ()), ProviderError)
