"""Pictures of models at Replicate: what each is asked, and what becomes of the prediction."""

import base64
import re
from typing import Any

import aiohttp
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.capability import UNKNOWN, Capability
from gateway.domain.channel import Channel
from gateway.domain.image import Images
from gateway.domain.inference_request import InferenceRequest
from gateway.errors import ImageBlocked, InvalidRequest, ProviderBadResponse, ProviderRejected
from gateway.formats.image_backend import ProviderCall
from gateway.formats.vendors.replicate_images import MODELS, ReplicateImageBackend
from gateway.providers.base import EndpointRequest
from gateway.providers.replicate import REPLICATE
from tests.support.corrupt_json import spoilt
from tests.support.image_calls import image_call, read_sent, upload
from tests.support.image_providers import KEY, draw, measure
from tests.support.replicate_images import NSFW, ReplicatePictures

MODEL = "black-forest-labs/flux-schnell"
PNG, OTHER = draw(), draw(shade=9)
URL = "https://replicate.delivery/yhqm/abc/out-0.webp"
ID = "gm3qorzdhgbfurvjtvhg6dckhu"
URLS = {"get": "https://elsewhere.example/x", "cancel": "https://elsewhere.example/x/cancel"}
DEEP = b'{"id": "x", "status": ' + b"[" * 1000 + b"]" * 1000 + b"}"
BEGUN = {"id": ID, "status": "starting", "output": None, "error": None, "urls": URLS}
DONE = {"id": ID, "status": "succeeded", "output": [URL], "error": None, "urls": URLS}
FAILED = {"id": ID, "status": "failed", "output": None, "error": "CUDA out of memory", "urls": URLS}


def begin(
    call: InferenceRequest | None = None, model: str = MODEL, count: int = 1
) -> tuple[ReplicateImageBackend, ProviderCall]:
    image_backend = ReplicateImageBackend(call or image_call(), model, "mark", UNKNOWN)
    return image_backend, image_backend.begin(count)


def read_input(call: InferenceRequest | None = None, model: str = MODEL, count: int = 1) -> Any:
    return read_sent(begin(call, model, count)[1])["input"]


def read(image_backend: ReplicateImageBackend, value: Any, secrets: tuple[str, ...] = ()) -> Any:
    return image_backend.read(orjson.dumps(value), secrets)


def test_a_prediction_is_begun_asked_after_and_done() -> None:
    image_backend, ask = begin(image_call(size="1344x768", output_format="jpeg", seed=7), count=2)
    assert (ask.method, ask.path, ask.headers) == ("POST", f"/models/{MODEL}/predictions", ())
    assert read_sent(ask) == {
        "input": {"prompt": "a cat", "seed": 7, "aspect_ratio": "16:9", "num_outputs": 2, "output_format": "jpg"}
    }
    again = read(image_backend, BEGUN)
    assert (again.method, again.path, again.wait_s, again.passing) == ("GET", f"/predictions/{ID}", 0.5, True)
    assert read(image_backend, BEGUN | {"status": "processing"}).wait_s == 0.75
    told = read(image_backend, DONE | {"output": [URL, f"{URL}2"]})
    assert [item.url for item in told.items] == [URL, f"{URL}2"]
    assert (told.usage.images, told.usage.source) == (2, "upstream")
    assert image_backend.abandon() is None


def test_the_addresses_of_an_answer_are_not_used() -> None:
    image_backend, _ = begin()
    again, cancel = read(image_backend, BEGUN), image_backend.abandon()
    assert cancel is not None
    assert (again.path, cancel.path) == (f"/predictions/{ID}", f"/predictions/{ID}/cancel")


def test_a_model_of_the_community_is_named_by_its_version() -> None:
    version = "39ed52f2a78e934b3ba6e2a89f5b1c712de7dfea535525255b1aa35c5565e08b"
    _, ask = begin(image_call(width=768, height=512, num_inference_steps=20), f"stability-ai/sdxl:{version}")
    assert ask.path == "/predictions"
    assert read_sent(ask) == {
        "version": version,
        "input": {"prompt": "a cat", "width": 768, "height": 512, "num_inference_steps": 20},
    }


@pytest.mark.parametrize(
    "model",
    ["flux", "a/b/c", "../b", "a/..", "a/b?x", "a/b#x", "a b/c", "a/b:../c", "a/b:", "ä/b", "", "a/", "/b", "a/b\n"],
)
def test_a_name_that_may_not_stand_in_a_path_is_refused(model: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        begin(model=model)
    assert refused.value.param == "model"


@pytest.mark.parametrize(
    ("model", "size", "fields"),
    [
        (MODEL, "1152x896", {"aspect_ratio": "4:3"}),
        ("black-forest-labs/flux-1.1-pro", "1024x768", {"aspect_ratio": "custom", "width": 1024, "height": 768}),
        ("black-forest-labs/flux-2-flex", "2048x256", {"aspect_ratio": "custom", "width": 2048, "height": 256}),
        ("google/imagen-4", "1280x720", {"aspect_ratio": "16:9"}),
        ("google/nano-banana", "1248x832", {"aspect_ratio": "3:2"}),
        ("google/nano-banana-pro", "5504x3072", {"aspect_ratio": "16:9", "resolution": "4K"}),
        ("ideogram-ai/ideogram-v3-turbo", "1312x736", {"resolution": "1312x736"}),
        ("stability-ai/stable-diffusion-3.5-large", "1024x1536", {"aspect_ratio": "2:3"}),
    ],
)
def test_a_size_is_said_as_the_model_takes_it(model: str, size: str, fields: dict[str, Any]) -> None:
    said = read_input(image_call(size=size), model)
    assert said == {"prompt": "a cat", **fields, **({"num_outputs": 1} if model == MODEL else {})}


@pytest.mark.parametrize(
    ("model", "field", "sources", "listed"),
    [
        ("black-forest-labs/flux-kontext-pro", "input_image", (PNG,), False),
        ("black-forest-labs/flux-fill-pro", "image", (PNG,), False),
        ("black-forest-labs/flux-2-dev", "input_images", (PNG, OTHER), True),
        ("google/nano-banana", "image_input", (PNG, OTHER), True),
        ("google/nano-banana-pro", "image_input", (PNG,), True),
    ],
)
def test_an_edits_images_stand_where_the_model_takes_them(
    model: str, field: str, sources: tuple[bytes, ...], listed: bool
) -> None:
    said = read_input(image_call("make it blue", files=tuple(map(upload, sources))), model)
    urls = [f"data:image/png;base64,{base64.b64encode(source).decode()}" for source in sources]
    assert said == {"prompt": "make it blue", field: urls if listed else urls[0]}


def test_a_models_own_fields_are_passed_and_the_conventions_are_not() -> None:
    own = {"guidance": 3.5, "go_fast": True, "seed": "42", "raw": "false", "style_type": "Design"}
    not_its_own = {
        "user": "u", "response_format": "url", "quality": "hd", "num_outputs": 4, "max_images": 9, "n": 3,
        "disable_safety_checker": True, "moderation": "low", "stream": False, "background": "opaque",
    }  # fmt: skip
    for model in ("somebody/something", MODEL):
        said = read_input(image_call(**own, **not_its_own), model)
        said.pop("num_outputs", None)
        assert said == {"prompt": "a cat", **own, "seed": 42, "raw": False}


@pytest.mark.parametrize("field", ["num_outputs", "batch_size", "num_images", "batches", "sequential_image_generation"])
def test_a_caller_cannot_say_what_n_says(field: str) -> None:
    assert read_input(image_call(**{field: 4}), count=2) == {"prompt": "a cat", "num_outputs": 2}


@pytest.mark.parametrize(
    ("call", "sizes", "param"),
    [
        (image_call(megapixels="1"), None, None),
        (image_call(aspect_ratio="21:9"), tuple(MODELS[MODEL].sizes or ()), None),
        (image_call(megapixels="1", size="1024x1024"), None, "megapixels"),
        (image_call(megapixels="1"), ("1024x1024",), "megapixels"),
        (image_call(aspect_ratio="21:9"), (), "aspect_ratio"),
    ],
)
def test_a_models_own_words_for_a_size_pass_where_no_size_is_said_or_set(
    call: InferenceRequest, sizes: tuple[str, ...] | None, param: str | None
) -> None:
    image_backend = ReplicateImageBackend(call, MODEL, "mark", Capability(MODEL, sizes=sizes))
    if param is None:
        assert read_sent(image_backend.begin(1))["input"].keys() - {"prompt", "num_outputs"}
        return
    with pytest.raises(InvalidRequest) as refused:
        image_backend.begin(1)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("call", "model", "count", "param"),
    [
        (image_call(size="1536x1024"), MODEL, 1, "size"),
        (image_call(size="1000x1000"), "black-forest-labs/flux-1.1-pro", 1, "size"),
        (image_call(size="1536x1024"), "black-forest-labs/flux-1.1-pro", 1, "size"),
        (image_call(size="square"), "black-forest-labs/flux-1.1-pro", 1, "size"),
        (image_call(size="1536x1024"), "google/imagen-4", 1, "size"),
        (image_call(size="1024x1024"), "somebody/something", 1, "size"),
        (image_call(size="1024x1024", files=(upload(PNG),)), "black-forest-labs/flux-fill-pro", 1, "size"),
        (image_call(), "google/imagen-4", 2, "n"),
        (image_call(), "somebody/something", 2, "n"),
        (image_call(output_format="gif"), MODEL, 1, "output_format"),
        (image_call(output_format="png"), "somebody/something", 1, "output_format"),
        (image_call(files=(upload(PNG),)), MODEL, 1, "model"),
        (image_call(files=(upload(PNG),)), "somebody/something", 1, "model"),
        (image_call(), "black-forest-labs/flux-fill-pro", 1, "model"),
        (image_call(files=(upload(PNG), upload(PNG, "mask"))), "black-forest-labs/flux-fill-pro", 1, "mask"),
    ],
)
def test_what_cannot_be_said_is_refused_by_name(call: InferenceRequest, model: str, count: int, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        begin(call, model, count)
    assert refused.value.param == param


def test_the_sizes_that_there_are_are_told() -> None:
    with pytest.raises(InvalidRequest, match="one of 1024x1024, 1344x768, "):
        begin(image_call(size="7x7"))
    with pytest.raises(InvalidRequest, match="256 to 1440, in steps of 32"):
        begin(image_call(size="255x256"), "black-forest-labs/flux-1.1-pro")


@pytest.mark.parametrize("output", [URL, [URL]])
def test_an_output_is_one_address_or_several(output: Any) -> None:
    image_backend, _ = begin()
    assert [item.url for item in read(image_backend, DONE | {"output": output}).items] == [URL]


def test_an_output_may_be_the_image_itself() -> None:
    data = base64.b64encode(PNG).decode()
    image_backend, _ = begin()
    (item,) = read(image_backend, DONE | {"output": [f"data:image/png;base64,{data}"]}).items
    assert (item.data, item.url) == (data, None)


@pytest.mark.parametrize(
    "output", [None, [], [None], {}, {"url": URL}, 7, [7], [[URL]], "out.png", "data:text/plain,x"]
)
def test_an_output_that_is_no_image_is_a_failure(output: Any) -> None:
    image_backend, _ = begin()
    with pytest.raises(ProviderBadResponse):
        read(image_backend, DONE | {"output": output})
    assert image_backend.abandon() is None


def test_images_that_were_left_out_are_a_failure() -> None:
    image_backend, _ = begin(count=3)
    with pytest.raises(ProviderBadResponse, match="made 2 of 3"):
        read(image_backend, DONE | {"output": [URL, None, URL]})


@pytest.mark.parametrize(
    "error",
    [NSFW, "The input or output was flagged as sensitive. Please try again with different inputs. (E005) (7F3xyz)"],
)
def test_a_filter_blocks(error: str) -> None:
    image_backend, _ = begin()
    read(image_backend, BEGUN)
    with pytest.raises(ImageBlocked) as fault:
        read(image_backend, FAILED | {"error": error})
    assert (fault.value.status, fault.value.public_code) == (400, "sensitive_words_detected")
    assert image_backend.abandon() is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (FAILED, "CUDA out of memory"),
        (FAILED | {"error": None}, "gave no reason"),
        (FAILED | {"error": {"code": 1}}, "gave no reason"),
        (DONE | {"status": "canceled"}, "canceled"),
        (DONE | {"status": "aborted"}, "aborted"),
        (DONE | {"status": "https://internal.example"}, "is .address."),
    ],
)
def test_a_prediction_that_ended_otherwise_says_how(value: Any, message: str) -> None:
    image_backend, _ = begin()
    read(image_backend, BEGUN)
    with pytest.raises(ProviderBadResponse, match=message):
        read(image_backend, value)
    assert (image_backend.abandon() is None) == ("internal" not in str(value["status"]))


def test_what_a_failure_says_is_masked() -> None:
    image_backend, _ = begin()
    with pytest.raises(ProviderBadResponse) as fault:
        read(
            image_backend,
            FAILED | {"error": "the token hush-hush-hush at https://internal.example/x"},
            ("hush-hush-hush",),
        )
    assert "hush" not in fault.value.message
    assert "internal" not in fault.value.message


@given(value=st.sampled_from([BEGUN, DONE, FAILED]).flatmap(spoilt), known=st.booleans())
@settings(max_examples=80)
def test_junk_anywhere_is_a_fault_or_no_matter(value: Any, known: bool) -> None:
    image_backend, _ = begin()
    if known:
        read(image_backend, BEGUN)
    check_reading(image_backend, orjson.dumps(value))


@given(raw=st.binary(max_size=40), known=st.booleans())
@settings(max_examples=40)
def test_bytes_of_any_kind_are_a_fault_or_no_matter(raw: bytes, known: bool) -> None:
    image_backend, _ = begin()
    if known:
        read(image_backend, BEGUN)
    check_reading(image_backend, raw)


def test_a_state_of_any_depth_is_a_fault() -> None:
    with pytest.raises(ProviderBadResponse):
        begin()[0].read(DEEP, ())


def check_reading(image_backend: ReplicateImageBackend, raw: bytes) -> None:
    try:
        told = image_backend.read(raw, ())
    except (ProviderBadResponse, ProviderRejected):
        return
    if isinstance(told, Images):
        assert [bool(item.url or item.data) for item in told.items] == [True]
    else:
        assert re.fullmatch(r"/predictions/[A-Za-z0-9_-]{1,128}", told.path or "")


@given(fields=st.dictionaries(st.sampled_from(["seed", "raw", "guidance"]), st.text(max_size=5)))
@settings(max_examples=40)
def test_whatever_a_caller_says_is_sent(fields: dict[str, Any]) -> None:
    said = read_input(image_call(**fields))
    assert said.keys() == {"prompt", "num_outputs", *fields}


@pytest.mark.parametrize("able", REPLICATE.capabilities, ids=lambda able: able.name)
def test_what_is_promised_of_a_model_can_be_said_to_it(able: Capability) -> None:
    """Whatever an entry allows, its painter has words for; every size of it."""
    model = {"*": "somebody/something"}.get(able.name, able.name.replace(":*", ":0123abcd"))
    files = tuple(upload(PNG) for _ in range((able.max_sources or 1) if able.edits else 0))
    for size in able.sizes or (None,):
        assert read_input(image_call(size=size, files=files), model, able.max_n or 1)["prompt"] == "a cat"


def test_every_model_and_every_version_of_it_is_known() -> None:
    for name, model in MODELS.items():
        for called in (name, f"{name}:0123abcd"):
            able = REPLICATE.find_capability(called)
            assert able is not None
            assert (able.max_n, able.edits, able.masks) == (model.most, model.source_field is not None, False)
    unknown = REPLICATE.find_capability("somebody/flux-schnell")
    assert unknown is not None
    assert (unknown.name, unknown.max_n, unknown.edits) == ("*", 1, False)


async def paint(provider: ReplicatePictures, image_backend: ReplicateImageBackend, count: int = 1) -> Any:
    """What a driver does, without the waits."""
    channel = Channel("up", "replicate", provider.base_url, (KEY,))
    told: Any = image_backend.begin(count)
    async with aiohttp.ClientSession() as session:
        while isinstance(told, ProviderCall):
            body = None if told.body is None else orjson.dumps(read_sent(told))
            errand = EndpointRequest(body, method=told.method, path=told.path, headers=told.headers)
            plan = REPLICATE.plan(channel, REPLICATE.endpoints[0], errand, model="m", key=KEY)
            async with session.request(plan.method, plan.url, data=body, headers=plan.headers) as answer:
                if answer.status >= 500 and told.passing:
                    continue
                assert answer.status < 300, await answer.text()
                told = image_backend.read(await answer.read(), ())
        return told


async def test_the_vendor_understands_what_it_is_asked() -> None:
    async with ReplicatePictures(polls=2, stumble="html") as provider:
        call = image_call(size="768x1344", output_format="png", seed=7)
        told = await paint(provider, ReplicateImageBackend(call, MODEL, "mark", UNKNOWN), 2)
        (heard,) = provider.heard
        assert (heard.prompt, heard.count, heard.size) == ("a cat", 2, "9:16")
        assert provider.requests[0] == ("POST", f"/v1/models/{MODEL}/predictions")
        assert len(provider.requests) == 5
        async with aiohttp.ClientSession() as session, session.get(told.items[1].url) as image:
            assert measure(await image.read()) == (768, 1344)


async def test_the_vendor_hears_an_edit() -> None:
    call = image_call("make it blue", files=(upload(PNG), upload(OTHER)))
    async with ReplicatePictures(polls=0) as provider:
        await paint(provider, ReplicateImageBackend(call, "black-forest-labs/flux-2-dev:0123abcd", "mark", UNKNOWN))
        (heard,) = provider.heard
        assert provider.requests[0] == ("POST", "/v1/predictions")
    assert (heard.prompt, heard.sources) == ("make it blue", (PNG, OTHER))


async def test_the_vendors_block_is_one() -> None:
    async with ReplicatePictures("block", stumble="error") as provider:
        with pytest.raises(ImageBlocked):
            await paint(provider, ReplicateImageBackend(image_call(), MODEL, "mark", UNKNOWN))


async def test_the_vendor_takes_a_cancellation() -> None:
    async with ReplicatePictures(endless=True) as provider:
        image_backend, ask = begin()
        headers = {"Authorization": f"Bearer {KEY}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            async with session.post(f"{provider.base_url}{ask.path}", json=ask.body) as answer:
                again: Any = image_backend.read(await answer.read(), ())
            async with session.get(f"{provider.base_url}{again.path}") as answer:
                image_backend.read(await answer.read(), ())
            cancel = image_backend.abandon()
            assert cancel is not None
            async with session.post(f"{provider.base_url}{cancel.path}") as answer:
                assert answer.status == 200
        assert len(provider.cancelled) == 1
