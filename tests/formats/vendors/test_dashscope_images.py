"""Pictures of DashScope: what is asked of which model, and what becomes of the task."""

import re
from typing import Any

import aiohttp
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.api_format import WIRES
from gateway.domain.capability import UNKNOWN
from gateway.domain.channel import Channel
from gateway.domain.image import Images
from gateway.domain.inference_request import InferenceRequest
from gateway.errors import ImageBlocked, InvalidRequest, ProviderBadResponse, ProviderRateLimited, ProviderRejected
from gateway.formats.image_backend import ProviderCall
from gateway.formats.vendors.dashscope_images import TASKS, DashScopeImageBackend
from gateway.providers.base import EndpointRequest
from gateway.providers.dashscope import DASHSCOPE
from tests.support.corrupt_json import spoilt
from tests.support.dashscope_images import DashScopePictures
from tests.support.image_calls import image_call, read_sent, upload
from tests.support.image_providers import KEY, draw, measure

MODEL = "wan2.2-t2i-flash"
PNG, OTHER = draw(), draw(shade=9)
URL = "https://dashscope-result-sh.oss-cn-shanghai.aliyuncs.com/a.png?Expires=1"
SERVICES = "/api/v1/services/aigc"
ID = "0385dc79-5ff8-4d82-bcb6-xxxxxx"
DEEP = b'{"output": {"task_status": ' + b"[" * 1000 + b"]" * 1000 + b"}}"
QUEUED = {"output": {"task_status": "PENDING", "task_id": ID}, "request_id": "r"}
DONE: Any = {
    "request_id": "r",
    "output": {
        "task_id": ID,
        "task_status": "SUCCEEDED",
        "results": [{"orig_prompt": "a cat", "actual_prompt": "a fine cat", "url": URL}],
        "task_metrics": {"TOTAL": 1, "SUCCEEDED": 1, "FAILED": 0},
    },
    "usage": {"image_count": 1},
}
TALKED = {
    "output": {
        "choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": [{"image": URL}]}}],
        "finished": True,
    },
    "usage": {"image_count": 1, "width": 2048, "height": 2048},
    "request_id": "r",
}
FAILED = {"output": {"task_id": ID, "task_status": "FAILED", "code": "InternalError", "message": "oops"}}


FAILED_WITH = FAILED["output"]


def begin(
    call: InferenceRequest | None = None, model: str = MODEL, count: int = 1
) -> tuple[DashScopeImageBackend, ProviderCall]:
    image_backend = DashScopeImageBackend(call or image_call(), model, "mark", UNKNOWN)
    return image_backend, image_backend.begin(count)


def read(image_backend: DashScopeImageBackend, value: Any, secrets: tuple[str, ...] = ()) -> Any:
    return image_backend.read(orjson.dumps(value), secrets)


def test_a_task_is_begun_asked_after_and_done() -> None:
    image_backend, ask = begin(image_call(size="1024x768"), count=2)
    assert read_sent(ask) == {
        "model": MODEL,
        "input": {"prompt": "a cat"},
        "parameters": {"size": "1024*768", "n": 2},
    }
    assert (ask.method, ask.path) == ("POST", f"{SERVICES}/text2image/image-synthesis")
    assert (ask.headers, ask.passing) == ((("X-DashScope-Async", "enable"),), False)
    again = read(image_backend, QUEUED)
    assert (again.method, again.path, again.wait_s, again.passing) == ("GET", f"{TASKS}/{ID}", 1.0, True)
    running = {"output": {"task_status": "RUNNING", "task_id": ID}}
    assert read(image_backend, running).wait_s == 1.5
    two = DONE["output"] | {"results": [DONE["output"]["results"][0], {"url": f"{URL}2"}]}
    told = read(image_backend, {"output": two})
    assert [(item.url, item.revised_prompt) for item in told.items] == [(URL, "a fine cat"), (f"{URL}2", None)]
    assert (told.usage.images, told.usage.source) == (2, "upstream")
    assert image_backend.abandon() is None


@pytest.mark.parametrize(
    ("model", "path", "task"),
    [
        ("wanx2.0-t2i-turbo", "text2image/image-synthesis", True),
        ("wan2.1-t2i-plus", "text2image/image-synthesis", True),
        ("wan2.5-t2i-preview", "text2image/image-synthesis", True),
        ("qwen-image", "text2image/image-synthesis", True),
        ("qwen-image-plus", "text2image/image-synthesis", True),
        ("wan2.6-t2i", "image-generation/generation", True),
        ("wan2.7-image-pro", "image-generation/generation", True),
        ("qwen-image-plus-2026-01-09", "multimodal-generation/generation", False),
        ("qwen-image-max", "multimodal-generation/generation", False),
        ("qwen-image-2.0-pro", "multimodal-generation/generation", False),
        ("z-image-turbo", "multimodal-generation/generation", False),
    ],
)
def test_every_model_is_asked_where_it_is(model: str, path: str, task: bool) -> None:
    _, ask = begin(model=model)
    assert (ask.path, bool(ask.headers)) == (f"{SERVICES}/{path}", task)
    talks = "text2image" not in path
    assert ("messages" in read_sent(ask)["input"]) == talks


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("wan2.5-i2i-preview", "image2image/image-synthesis"),
        ("wanx2.1-imageedit", "image2image/image-synthesis"),
        ("wan2.6-image", "image-generation/generation"),
        ("wan2.7-image", "image-generation/generation"),
        ("qwen-image-edit", "multimodal-generation/generation"),
        ("qwen-image-edit-plus-2025-12-15", "multimodal-generation/generation"),
    ],
)
async def test_an_edit_is_heard_with_its_images(model: str, path: str) -> None:
    images = (PNG,) if model == "wanx2.1-imageedit" else (PNG, OTHER)
    call = image_call("make it blue", files=tuple(map(upload, images)))
    async with DashScopePictures(polls=0) as provider:
        told = await paint(provider, DashScopeImageBackend(call, model, "mark", UNKNOWN))
        (heard,) = provider.heard
        assert provider.requests[0] == ("POST", f"{SERVICES}/{path}")
    assert (heard.prompt, heard.sources) == ("make it blue", images)
    assert len(told.items) == 1


def test_how_many_is_said_to_whoever_would_make_four() -> None:
    assert read_sent(begin(model="wan2.6-t2i")[1])["parameters"] == {"n": 1}
    assert read_sent(begin(model="z-image-turbo")[1])["parameters"] == {}
    assert read_sent(begin(model="qwen-image-2.0", count=3)[1])["parameters"] == {"n": 3}


def test_fields_of_the_vendors_own_go_where_it_reads_them() -> None:
    fields = {
        "negative_prompt": "7", "seed": "42", "prompt_extend": "false", "watermark": True, "enable_sequential": True,
        "quality": "high", "user": "u", "api_base": "https://evil.example", "enable_interleave": True, "n": 4,
    }  # fmt: skip
    sent = read_sent(begin(image_call(**fields))[1])
    assert sent["input"] == {"prompt": "a cat", "negative_prompt": "7"}
    assert sent["parameters"] == {"n": 1, "seed": 42, "prompt_extend": False, "watermark": True}
    for model in ("qwen-image-plus", "qwen-image-2.0"):
        assert read_sent(begin(image_call(**fields), model)[1])["parameters"]["negative_prompt"] == "7"


@pytest.mark.parametrize(
    ("call", "model", "param"),
    [
        (image_call(files=(upload(PNG),)), MODEL, "model"),
        (image_call(files=(upload(PNG),)), "wan2.6-t2i", "model"),
        (image_call(), "qwen-image-edit", "model"),
        (image_call(), "wan2.6-image", "model"),
        (image_call(), "wan2.5-i2i-preview", "model"),
        (image_call(files=(upload(PNG), upload(PNG, "mask"))), "qwen-image-edit", "mask"),
        (image_call(size="large"), MODEL, "size"),
        (image_call(output_format="webp"), MODEL, "output_format"),
        (image_call(aspect_ratio="16:9"), MODEL, "aspect_ratio"),
        (image_call(width=64), "qwen-image-2.0", "width"),
    ],
)
def test_what_cannot_be_said_is_refused_by_name(call: InferenceRequest, model: str, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        begin(call, model)
    assert refused.value.param == param


def test_the_answer_of_a_model_that_talks_is_read() -> None:
    image_backend, _ = begin(model="qwen-image-2.0")
    told = read(image_backend, TALKED)
    assert [item.url for item in told.items] == [URL]
    assert image_backend.abandon() is None


def test_a_task_that_talks_has_a_choice_for_each_image() -> None:
    image_backend, _ = begin(model="wan2.6-t2i", count=2)
    read(image_backend, QUEUED)
    choice = {"message": {"content": [{"image": URL, "type": "image"}]}}
    told = read(image_backend, {"output": {"task_status": "SUCCEEDED", "choices": [choice, choice]}})
    assert [item.url for item in told.items] == [URL, URL]


def test_one_failed_image_is_a_failure_of_them_all() -> None:
    results = [{"url": URL}, {"code": "InternalError.Timeout", "message": "An internal timeout error"}]
    image_backend, _ = begin(count=2)
    read(image_backend, QUEUED)
    with pytest.raises(ProviderBadResponse, match="internal timeout"):
        read(image_backend, {"output": {"task_status": "SUCCEEDED", "results": results}})
    assert image_backend.abandon() is None


def test_a_blocked_image_among_others_blocks() -> None:
    results = [
        {"url": URL},
        {"code": "DataInspectionFailed", "message": "Output data may contain inappropriate content"},
    ]
    image_backend, _ = begin(count=2)
    with pytest.raises(ImageBlocked):
        read(image_backend, {"output": {"task_status": "SUCCEEDED", "results": results}})


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("DataInspectionFailed", ImageBlocked),
        ("Throttling", ProviderRateLimited),
        ("Throttling.RateQuota", ProviderRateLimited),
        ("InvalidParameter", ProviderRejected),
        ("InvalidParameter.Size", ProviderRejected),
        ("InternalError.Algo", ProviderBadResponse),
        (None, ProviderBadResponse),
        (7, ProviderBadResponse),
    ],
)
def test_a_failed_task_is_the_fault_it_says(code: Any, kind: type[Exception]) -> None:
    image_backend, _ = begin()
    read(image_backend, QUEUED)
    with pytest.raises(kind) as fault:
        read(image_backend, {"output": FAILED_WITH | {"code": code}})
    assert type(fault.value) is kind
    assert image_backend.abandon() is None


def test_an_error_with_a_good_status_is_a_fault() -> None:
    image_backend, _ = begin(model="qwen-image-2.0")
    with pytest.raises(ProviderRejected, match="must be 1") as fault:
        read(
            image_backend, {"request_id": "r", "code": "InvalidParameter", "message": "num_images_per_prompt must be 1"}
        )
    assert (fault.value.status, fault.value.public_code) == (400, "InvalidParameter")


@pytest.mark.parametrize("state", ["CANCELED", "UNKNOWN"])
def test_a_task_that_is_no_more_is_a_failure(state: str) -> None:
    image_backend, _ = begin()
    read(image_backend, QUEUED)
    with pytest.raises(ProviderBadResponse, match=state):
        read(image_backend, {"output": {"task_id": ID, "task_status": state}})
    assert image_backend.abandon() is None


def test_a_task_in_a_state_that_nobody_knows_is_cancelled() -> None:
    image_backend, _ = begin()
    read(image_backend, QUEUED)
    with pytest.raises(ProviderBadResponse):
        read(image_backend, {"output": {"task_id": ID, "task_status": "PONDERING"}})
    cancel = image_backend.abandon()
    assert cancel is not None
    assert cancel.path == f"{TASKS}/{ID}/cancel"


def test_what_a_failure_says_is_masked() -> None:
    image_backend, _ = begin()
    message = "see https://internal.example/x, key hush-hush-hush"
    with pytest.raises(ProviderBadResponse) as fault:
        read(image_backend, {"output": FAILED_WITH | {"message": message}}, ("hush-hush-hush",))
    assert "hush" not in fault.value.message
    assert "internal" not in fault.value.message


@given(
    value=st.sampled_from([QUEUED, DONE, TALKED, FAILED]).flatmap(spoilt),
    known=st.booleans(),
    model=st.sampled_from([MODEL, "wan2.6-t2i", "qwen-image-2.0"]),
)
@settings(max_examples=80)
def test_junk_anywhere_is_a_fault_or_no_matter(value: Any, known: bool, model: str) -> None:
    image_backend, _ = begin(model=model)
    if known:
        read(image_backend, QUEUED)
    check_reading(image_backend, orjson.dumps(value))


@given(raw=st.binary(max_size=40), known=st.booleans())
@settings(max_examples=40)
def test_bytes_of_any_kind_are_a_fault_or_no_matter(raw: bytes, known: bool) -> None:
    image_backend, _ = begin()
    if known:
        read(image_backend, QUEUED)
    check_reading(image_backend, raw)


def test_a_state_of_any_depth_is_a_fault() -> None:
    with pytest.raises(ProviderBadResponse):
        begin()[0].read(DEEP, ())


def check_reading(image_backend: DashScopeImageBackend, raw: bytes) -> None:
    try:
        told = image_backend.read(raw, ())
    except (ProviderBadResponse, ProviderRejected):
        return
    if isinstance(told, Images):
        assert all(item.url or item.data for item in told.items)
        assert len(told.items) == 1
    else:
        assert re.fullmatch(r"/api/v1/tasks/[A-Za-z0-9_-]{1,128}", told.path or "")


def test_the_language_is_for_models_that_paint() -> None:
    for model in ("wan2.2-t2i-flash", "wanx2.1-imageedit", "wan2.7-image-pro", "qwen-image-edit-max", "z-image-turbo"):
        for wires in (WIRES["images"], WIRES["image_edits"]):
            endpoint = DASHSCOPE.find_endpoint(wires, model)
            assert endpoint is not None
            assert endpoint.wire == "dashscope_pictures"
    for model in ("qwen-plus", "wan2.2-t2v-plus", "wanx2.1-i2v-turbo", "text-embedding-v4"):
        assert DASHSCOPE.find_endpoint(WIRES["images"], model) is None
    assert DASHSCOPE.find_capability("qwen-plus") is None
    edits = {model: DASHSCOPE.find_capability(model) for model in ("qwen-image", "qwen-image-edit", "wan2.7-image")}
    assert {model: (able.edits, able.max_n) for model, able in edits.items() if able} == {
        "qwen-image": (False, 1),
        "qwen-image-edit": (True, 1),
        "wan2.7-image": (True, 4),
    }


IMAGES = [able for able in DASHSCOPE.capabilities if able.seconds is None]


@pytest.mark.parametrize("able", IMAGES, ids=lambda able: able.name)
def test_what_is_promised_of_a_model_can_be_said_to_it(able: Any) -> None:
    """Whatever the entry allows, its painter has words for."""
    model = able.name.replace("*", "")
    files = tuple(upload(PNG) for _ in range(able.max_sources or 0))
    size = able.sizes[-1] if able.sizes else None
    _, ask = begin(image_call(size=size, files=files), model, able.max_n)
    assert read_sent(ask)["model"] == model


async def paint(provider: DashScopePictures, image_backend: DashScopeImageBackend, count: int = 1) -> Any:
    """What a driver does, without the waits."""
    channel = Channel("up", "dashscope", provider.base_url, (KEY,))
    (endpoint,) = [one for one in DASHSCOPE.endpoints if one.wire == "dashscope_pictures"]
    told: Any = image_backend.begin(count)
    async with aiohttp.ClientSession() as session:
        while isinstance(told, ProviderCall):
            body = None if told.body is None else orjson.dumps(read_sent(told))
            errand = EndpointRequest(body, method=told.method, path=told.path, headers=told.headers)
            plan = DASHSCOPE.plan(channel, endpoint, errand, model="m", key=KEY)
            async with session.request(plan.method, plan.url, data=body, headers=plan.headers) as answer:
                if answer.status != 200 and told.passing:
                    continue
                assert answer.status == 200, await answer.text()
                told = image_backend.read(await answer.read(), ())
        return told


async def test_the_vendor_understands_what_it_is_asked() -> None:
    async with DashScopePictures(polls=2, stumble="html") as provider:
        call = image_call(size="1024x512", negative_prompt="dogs", seed=7)
        told = await paint(provider, DashScopeImageBackend(call, MODEL, "mark", UNKNOWN), 2)
        (heard,) = provider.heard
        assert (heard.prompt, heard.count, heard.size) == ("a cat", 2, "1024*512")
        assert len(provider.requests) == 5
        async with aiohttp.ClientSession() as session, session.get(told.items[1].url) as image:
            assert measure(await image.read()) == (1024, 512)


async def test_the_vendors_block_is_one() -> None:
    async with DashScopePictures("block", stumble="error") as provider:
        with pytest.raises(ImageBlocked) as fault:
            await paint(provider, DashScopeImageBackend(image_call(), MODEL, "mark", UNKNOWN))
    assert fault.value.public_code == "sensitive_words_detected"


async def test_the_vendor_takes_a_cancellation() -> None:
    async with DashScopePictures(endless=True) as provider:
        image_backend, ask = begin()
        headers = {"Authorization": f"Bearer {KEY}"}
        async with aiohttp.ClientSession(provider.origin, headers=headers) as session:
            async with session.post(ask.path or "", json=ask.body, headers=dict(ask.headers)) as answer:
                image_backend.read(await answer.read(), ())
            cancel = image_backend.abandon()
            assert cancel is not None
            async with session.post(cancel.path or "") as answer:
                assert answer.status == 200
        assert len(provider.cancelled) == 1
