"""Videos of MiniMax, in both of its versions: what is asked, and what becomes of the task.

Cassettes are of platform.minimax.io/docs/api-reference: video-generation-t2v, -i2v, -query, -download and errorcode;
video-generation-v2-create and -v2-query, with their examples.
"""

import base64
from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.api_format import WIRES
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
from gateway.formats.image_backend import ProviderCall
from gateway.formats.vendors.minimax_videos import MODELS, MiniMaxVideoBackend
from gateway.formats.video_backend import ContentLocation, ProviderTask, TaskStatus, VideoBackend, VideoSpec
from gateway.providers.minimax import MINIMAX
from tests.support.corrupt_json import spoilt
from tests.support.image_calls import read_sent, upload
from tests.support.image_providers import draw

HAILUO: VideoBackend = MiniMaxVideoBackend()
OLD, NEW = "MiniMax-Hailuo-2.3", "MiniMax-H3"
ID, NEW_ID, FILE = "106916112212032", "424010985738629", "205258526306433"
URL = "https://video-product.cdn.minimax.io/inference_output/video/2025-09-19/5c06/output.mp4"
IMAGE = "https://pictures.example/a.png"
PNG = draw()
GOOD = {"status_code": 0, "status_msg": "success"}
BEGUN = {"task_id": ID, "base_resp": GOOD}
DONE = {
    "task_id": ID,
    "status": "Success",
    "file_id": FILE,
    "video_width": 1920,
    "video_height": 1080,
    "base_resp": GOOD,
}
FETCHED = {
    "file": {"file_id": 205258526306433, "bytes": 0, "filename": "output_aigc.mp4", "purpose": "video_generation",
             "download_url": URL},
    "base_resp": GOOD,
}  # fmt: skip
NEW_DONE = {
    "task": {
        "id": NEW_ID,
        "model": "MiniMax-H3",
        "status": "succeeded",
        "created_at": 1785125529,
        "updated_at": 1785125946,
        "content": {"url": URL},
        "resolution": "2K",
        "duration": 5,
        "usage": {"total_seconds": 5, "output_seconds": 5},
        "ratio": "16:9",
        "task_type": "generation",
        "modality": "video",
    }
}
SENSITIVE = "video description contains sensitive content"
NEW_FAILED = {"task": {"id": NEW_ID, "status": "failed", "error": {"code": "1026", "message": SENSITIVE}}}


def shoot(model: str = OLD, **fields: Any) -> tuple[str | None, Any]:
    """The path and the body of a submit."""
    ask = HAILUO.submit(VideoSpec(model, "a cat", "video_1", **fields))
    assert (ask.method, ask.begins) == ("POST", True)
    return ask.path, read_sent(ask)


def polled(value: Any, secrets: tuple[str, ...] = ()) -> TaskStatus:
    return HAILUO.parse_polled(orjson.dumps(value), secrets)


def base(code: int, message: str, **fields: Any) -> Any:
    return {**fields, "base_resp": {"status_code": code, "status_msg": message}}


def new_error(kind: str, status: int, message: str) -> bytes:
    error = {"type": kind, "message": message, "http_code": str(status)}
    return orjson.dumps({"type": "error", "error": error, "request_id": "021785229015510a2c883cf675b9804d"})


def test_a_video_of_hailuo_is_asked_for() -> None:
    extra = {"prompt_optimizer": "false", "fast_pretreatment": True, "callback_url": "x", "user": "u"}
    path, said = shoot(size="1366x768", seconds=10, extra=extra)
    assert path == "/v1/video_generation"
    assert said == {
        "model": OLD,
        "prompt": "a cat",
        "prompt_optimizer": False,
        "fast_pretreatment": True,
        "resolution": "768P",
        "duration": 10,
    }
    assert shoot() == ("/v1/video_generation", {"model": OLD, "prompt": "a cat"})


def test_a_video_of_h3_is_asked_for_with_all_that_it_wants_to_know() -> None:
    text = {"type": "text", "text": "a cat"}
    told = {"model": NEW, "content": [text], "resolution": "768P", "ratio": "16:9", "duration": 5}
    assert shoot(NEW) == ("/v2/video_generation", told)
    _, said = shoot(NEW, size="1440x2560", seconds=15, extra={"aigc_watermark": "true", "prompt_optimizer": True})
    assert said == told | {"resolution": "2K", "ratio": "9:16", "duration": 15, "aigc_watermark": True}


@pytest.mark.parametrize("model", [OLD, NEW])
@pytest.mark.parametrize("form", ["file", "data", "address"])
def test_a_image_goes_along_by_its_address(model: str, form: str) -> None:
    """It may be a data: URL."""
    data = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    url = IMAGE if form == "address" else data
    reference = Reference(upload(PNG)) if form == "file" else Reference(url=url)
    _, said = shoot(model, reference=reference)
    if model == OLD:
        assert said["first_frame_image"] == url
    else:
        assert said["content"][1] == {"type": "image_url", "image_url": {"url": url}, "role": "first_frame"}
        assert said["ratio"] == "adaptive"


@pytest.mark.parametrize(
    ("model", "fields", "param"),
    [
        ("S2V-01", {}, "model"),
        (OLD, {"size": "1280x720"}, "size"),
        (NEW, {"size": "1920x1080"}, "size"),
        ("MiniMax-H3-Max", {"size": "2560x1440"}, "size"),
        (OLD, {"seconds": 5}, "seconds"),
        (OLD, {"seconds": 10, "size": "1920x1080"}, "seconds"),
        (NEW, {"seconds": 3}, "seconds"),
        ("MiniMax-H3-Max", {"seconds": 4}, "seconds"),
        ("MiniMax-Hailuo-2.3-Fast", {}, "input_reference"),
        ("I2V-01", {}, "input_reference"),
        ("T2V-01", {"reference": Reference(url=IMAGE)}, "input_reference"),
        (OLD, {"extra": {"last_frame_image": IMAGE}}, "last_frame_image"),
        (NEW, {"extra": {"content": [{"type": "text", "text": "x"}]}}, "content"),
    ],
)
def test_what_cannot_be_said_is_refused_by_name(model: str, fields: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        HAILUO.submit(VideoSpec(model, "a cat", "video_1", **fields))
    assert refused.value.param == param


def test_a_task_of_hailuo_is_begun_asked_after_and_its_file_asked_for() -> None:
    begun = HAILUO.parse_submitted(orjson.dumps(BEGUN), ())
    assert (begun.state, begun.id) == ("queued", ID)
    ask = HAILUO.poll(ProviderTask(ID, OLD))
    assert (ask.method, ask.path, ask.passing) == ("GET", f"/v1/query/video_generation?task_id={ID}", True)
    for word, state in (("Preparing", "queued"), ("Queueing", "queued"), ("Processing", "processing")):
        assert polled({"task_id": ID, "status": word, "file_id": "", "base_resp": GOOD}) == TaskStatus(state)  # type: ignore[arg-type]
    done = polled(DONE)
    assert (done.state, done.clue) == ("completed", FILE)
    where = HAILUO.find_content(ProviderTask(ID, OLD, done.clue), "video")
    assert isinstance(where, ProviderCall)
    assert (where.method, where.path, where.passing) == ("GET", f"/v1/files/retrieve?file_id={FILE}", True)
    assert HAILUO.read_content(orjson.dumps(FETCHED), ()) == ContentLocation(url=URL)
    assert HAILUO.find_content(ProviderTask(ID, OLD, done.clue), "thumbnail") is None
    assert HAILUO.find_content(ProviderTask(ID, OLD), "video") is None


def test_a_task_of_h3_is_begun_asked_after_and_asked_again_where_its_video_is() -> None:
    begun = HAILUO.parse_submitted(orjson.dumps({"task_id": NEW_ID}), ())
    assert (begun.state, begun.id) == ("queued", NEW_ID)
    assert HAILUO.poll(ProviderTask(NEW_ID, NEW)).path == f"/v2/query/video_generation/{NEW_ID}"
    assert polled({"task": {"status": "queued"}}) == TaskStatus("queued")
    assert polled({"task": {"status": "running"}}) == TaskStatus("processing")
    done = polled(NEW_DONE)
    assert (done.state, done.clue, done.seconds) == ("completed", URL, "5")
    where = HAILUO.find_content(ProviderTask(NEW_ID, NEW, done.clue), "video")
    assert isinstance(where, ProviderCall)
    assert where.path == f"/v2/query/video_generation/{NEW_ID}"
    assert HAILUO.read_content(orjson.dumps(NEW_DONE), ()) == ContentLocation(url=URL)


def test_an_id_may_be_a_number() -> None:
    assert HAILUO.parse_submitted(orjson.dumps(BEGUN | {"task_id": int(ID)}), ()).id == ID
    assert polled(DONE | {"file_id": int(FILE)}).clue == FILE


@pytest.mark.parametrize(
    "value",
    [
        NEW_FAILED,
        base(1026, SENSITIVE, task_id=ID, status="Fail", file_id=""),
        base(1027, SENSITIVE, task_id=ID, status="Fail"),
        base(1027, SENSITIVE, task_id=ID, status=""),
    ],
)
def test_what_a_filter_took_away_is_a_failure_with_its_code(value: Any) -> None:
    take = polled(value)
    assert take.state == "failed"
    assert take.error is not None
    assert (take.error.code, take.error.message) == ("content_policy_violation", SENSITIVE)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (base(1000, "unknown error of hush-hush-hush", status="Fail"), "unknown error of [masked]"),
        (base(0, "success", status="Fail"), "The provider gave no reason"),
        ({"task": {"status": "failed", "error": {"code": "1000", "message": "internal error"}}}, "internal error"),
        ({"task": {"status": "failed"}}, "The provider gave no reason"),
        ({"task": {"status": "cancelled"}}, "The provider cancelled the task"),
    ],
)
def test_a_failure_is_told(value: Any, message: str) -> None:
    take = polled(value, ("hush-hush-hush",))
    assert take.state == "failed"
    assert take.error is not None
    assert (take.error.code, take.error.message) == ("upstream_error", message)


def test_a_state_that_nobody_knows_goes_on() -> None:
    assert polled(DONE | {"status": "Pondering"}) == TaskStatus(None)
    assert polled({"task": {"status": "Expiring"}}) == TaskStatus(None)


def test_a_task_that_has_expired_has_failed() -> None:
    take = polled({"task": {"status": "expired"}})
    assert take.state == "failed"
    assert take.error is not None
    assert take.error.message == "The provider let the task expire"


@pytest.mark.parametrize(
    "value",
    [
        {}, [], "x", {"task": {}}, {"task_id": ID, "base_resp": GOOD}, DONE | {"file_id": ""},
        NEW_DONE | {"task": {"status": "succeeded"}}, base(1002, "rate limit"), base(1004, "no", status="Success"),
        base(1033, "system error", status="Processing"), base(2013, "invalid params, task not found"),
        orjson.loads(new_error("bad_request_error", 400, "task not found (2013)")),
    ],
)  # fmt: skip
def test_an_answer_that_says_nothing_of_the_task_is_no_verdict(value: Any) -> None:
    with pytest.raises(ProviderBadResponse):
        polled(value)


@pytest.mark.parametrize(
    "value",
    [
        {},
        base(1004, "no", file={"download_url": URL}),
        {"file": {"download_url": "www.x.example"}},
        {"task": {"content": {}}},
    ],
)
def test_an_answer_without_an_address_tells_no_place(value: Any) -> None:
    with pytest.raises(ProviderBadResponse):
        HAILUO.read_content(orjson.dumps(value), ())


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1002, ProviderRateLimited),
        (2045, ProviderRateLimited),
        (1004, ProviderAuthError),
        (2049, ProviderAuthError),
        (1008, ProviderAuthError),
        (1026, ContentBlocked),
        (1027, ContentBlocked),
        (2013, ProviderRejected),
        (1000, ProviderBadResponse),
        (4711, ProviderBadResponse),
    ],
)
def test_a_code_under_a_good_status_is_the_fault_it_says(code: int, kind: type[Exception]) -> None:
    with pytest.raises(kind) as fault:
        HAILUO.parse_submitted(orjson.dumps(base(code, "what is wrong", task_id="")), ())
    assert type(fault.value) is kind


@pytest.mark.parametrize(
    ("kind", "status", "message", "fault"),
    [
        (
            "bad_request_error",
            400,
            "invalid params, content must include a non-empty text item (2013)",
            ProviderRejected,
        ),
        ("authorized_error", 401, "login fail: Please carry the API secret key (1004)", ProviderAuthError),
        ("insufficient_balance_error", 402, "insufficient balance (1008)", ProviderAuthError),
        ("unprocessable_entity_error", 422, "input new_sensitive", ContentBlocked),
        ("unprocessable_entity_error", 422, f"{SENSITIVE} (1026)", ContentBlocked),
        ("rate_limit_error", 429, "rate limit, please retry later (1002)", ProviderRateLimited),
        ("overloaded_error", 529, "overloaded", ProviderBadResponse),
        ("server_error", 500, "internal error (1000)", ProviderBadResponse),
    ],
)
def test_a_refusal_is_the_fault_it_says(kind: str, status: int, message: str, fault: type[Exception]) -> None:
    raw = new_error(kind, status, message)
    found = HAILUO.parse_refused(status, raw, (), provider_retry_after_s=9.0)
    assert type(found) is fault
    if fault is ProviderRateLimited:
        assert found.provider_retry_after_s == 9.0
    with pytest.raises(ProviderError):
        HAILUO.parse_submitted(raw, ())


def test_a_task_of_h3_can_be_stopped_and_forgotten_and_no_other_can() -> None:
    for ask in (HAILUO.cancel(ProviderTask(NEW_ID, NEW)), HAILUO.delete(ProviderTask(NEW_ID, NEW))):
        assert ask is not None
        assert (ask.method, ask.path, ask.passing) == ("DELETE", f"/v2/video_generation/{NEW_ID}", True)
    old = ProviderTask(ID, OLD)
    assert (HAILUO.cancel(old), HAILUO.delete(old)) == (None, None)
    assert HAILUO.remix(old, VideoSpec(OLD, "x", "m")) is None


@pytest.mark.parametrize("name", MODELS)
def test_what_is_promised_of_a_model_can_be_said_to_it(name: str) -> None:
    able = MINIMAX.find_capability(name)
    assert able is not None
    assert able.sizes
    assert able.seconds
    reference = Reference(url=IMAGE) if able.references else None
    for size in able.sizes:
        assert shoot(name, size=size, seconds=able.seconds[0], reference=reference)[1]["resolution"]
    assert shoot(name, size=able.sizes[0], seconds=able.seconds[-1], reference=reference)
    endpoint = MINIMAX.find_endpoint(WIRES["videos"], name)
    assert endpoint is not None
    assert endpoint.wire == "minimax_videos"


def test_sizes_of_h3_are_even_and_of_their_shape() -> None:
    for size, (_, ratio) in MODELS[NEW].sizes.items():
        width, height = map(int, size.split("x"))
        across, down = map(int, ratio.split(":"))
        assert width % 2 == height % 2 == 0
        assert abs(width / height - across / down) < 0.01


@given(value=st.sampled_from([BEGUN, DONE, FETCHED, NEW_DONE, NEW_FAILED, {"task_id": NEW_ID}]).flatmap(spoilt))
@settings(max_examples=40)
def test_junk_anywhere_is_a_fault_or_no_matter(value: Any) -> None:
    check_reading(orjson.dumps(value))


@given(raw=st.binary(max_size=40))
@settings(max_examples=30)
def test_bytes_of_any_kind_are_a_fault_or_no_matter(raw: bytes) -> None:
    check_reading(raw)


def test_an_answer_of_any_depth_is_a_fault() -> None:
    check_reading(b'{"error": ' + b"[" * 900 + b"]" * 900 + b"}")


def check_reading(raw: bytes) -> None:
    """Only faults of the provider's come out, and what is read can be used."""
    for read in (HAILUO.parse_submitted, HAILUO.parse_polled):
        try:
            told = read(raw, ())
        except ProviderError:
            continue
        assert (told.state == "failed") == (told.error is not None)
        assert (told.state == "completed") == (told.clue is not None)
        for model in (OLD, NEW):
            assert HAILUO.find_content(ProviderTask(told.id or "x", model, told.clue or "x"), "video") is not None
    with suppress(ProviderBadResponse):
        assert HAILUO.read_content(raw, ()).url
    for status in (200, 400, 401, 404, 429, 500):
        assert isinstance(HAILUO.parse_refused(status, raw, ()), ProviderError)
