"""The contract of all image backends. The cases of each API format are in ``<format>.json``.

A table has these fields; ``answer`` is JSON, text that is no JSON, or ``{"$": name, "a.b": value}``: a recorded answer
with other values. ``{png}``, ``{draft}`` and ``{other}`` stand for images in base64.

    source          the provider's documentation, from which the answers are
    model           the model of a case that names none
    serves, rejects models that the provider has in this format, and models that it does not
    answers         recorded answers
    submit          [request, path, body, headers]
    refused         [request, field that the ``InvalidRequest`` names, words of its message]
    read            [request, answers in a row, result of the last, request that cancels the task]; a result is images,
                    the next request, or [name of the error, message, public code]
"""

import base64
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import aiohttp
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import errors
from gateway.domain.api_format import Wire
from gateway.domain.capability import UNKNOWN_CAPABILITY, Capability
from gateway.domain.channel import Channel
from gateway.domain.image import Images
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import OPERATIONS
from gateway.domain.upload import Upload
from gateway.errors import ImageBlocked, InvalidRequest, ProviderBadResponse, ProviderError, ProviderRejected
from gateway.formats.images.backend import ImageBackend, ProviderRequest
from gateway.formats.images.backends import make_image_backend
from gateway.formats.images.bfl import BflImageBackend
from gateway.formats.images.chat_models import ChatImageBackend
from gateway.formats.images.dashscope import DashScopeImageBackend
from gateway.formats.images.fal import FalImageBackend
from gateway.formats.images.gemini import GeminiImageBackend
from gateway.formats.images.luma import LumaImageBackend
from gateway.formats.images.openai_backend import OpenAiImageBackend
from gateway.formats.images.replicate import ReplicateImageBackend
from gateway.formats.images.stability import StabilityImageBackend
from gateway.formats.wire.request_body import build_payload
from gateway.providers.base import EndpointRequest, Provider
from gateway.providers.bfl import BFL
from gateway.providers.dashscope import DASHSCOPE
from gateway.providers.fal import FAL
from gateway.providers.gemini import GEMINI
from gateway.providers.luma import LUMA
from gateway.providers.replicate import REPLICATE
from gateway.providers.stability import STABILITY
from tests.support.chat_images import read_question as read_chat_question
from tests.support.corrupt_json import spoilt
from tests.support.dashscope_images import DashScopeImages
from tests.support.format_tables import build_answer, list_cases
from tests.support.gemini_images import SIZES
from tests.support.gemini_images import read_question as read_gemini_question
from tests.support.image_calls import image_call, read_sent, upload
from tests.support.image_providers import KEY, ImageProvider, draw, measure
from tests.support.replicate_images import ReplicateImages
from tests.support.table_rows import table_rows

MODELS: Mapping[Wire, str] = {
    "openai_images": "org/painter",
    "openai_edits": "org/painter",
    "gemini_images": "gemini-2.5-flash-image",
    "chat_images": "google/gemini-2.5-flash-image",
    "dashscope_images": "wan2.2-t2i-flash",
    "replicate_images": "black-forest-labs/flux-kontext-pro",
    "fal_images": "fal-ai/nano-banana/edit",
    "stability_images": "stable-image-core",
    "bfl_images": "flux-2-pro",
    "luma_images": "uni-1",
}
IMAGE_BACKENDS: Mapping[Wire, type] = {
    "openai_images": OpenAiImageBackend,
    "openai_edits": OpenAiImageBackend,
    "gemini_images": GeminiImageBackend,
    "chat_images": ChatImageBackend,
    "dashscope_images": DashScopeImageBackend,
    "replicate_images": ReplicateImageBackend,
    "fal_images": FalImageBackend,
    "stability_images": StabilityImageBackend,
    "bfl_images": BflImageBackend,
    "luma_images": LumaImageBackend,
}
IMAGES = {"png": draw(), "draft": draw(shade=7), "other": draw(shade=9)}
CODED = {f"{{{name}}}": base64.b64encode(data).decode() for name, data in IMAGES.items()}
FOLDER = Path(__file__).parent
TABLED: tuple[Wire, ...] = (
    "gemini_images",
    "chat_images",
    "dashscope_images",
    "replicate_images",
    "fal_images",
    "stability_images",
    "bfl_images",
    "luma_images",
)


def fill(text: bytes) -> Any:
    for token, data in CODED.items():
        text = text.replace(token.encode(), data.encode())
    return orjson.loads(text)


TABLES: Mapping[Wire, Any] = {wire: fill((FOLDER / f"{wire}.json").read_bytes()) for wire in TABLED}
OWNERS: Mapping[str, Provider] = {
    "gemini_images": GEMINI,
    "dashscope_images": DASHSCOPE,
    "replicate_images": REPLICATE,
    "fal_images": FAL,
    "stability_images": STABILITY,
    "bfl_images": BFL,
    "luma_images": LUMA,
}
SOURCE: Upload = upload(draw())
SECRET = "hush-hush-hush"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["data", "images", "error", "output", "status", "id", "candidates", "choices", "task_id"])
            | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
EVERY = pytest.mark.parametrize("wire", IMAGE_BACKENDS)


def open_image_backend(wire: Wire, **fields: Any) -> tuple[ImageBackend, InferenceRequest]:
    files = (SOURCE,) if wire in {"openai_edits", "replicate_images", "fal_images"} else ()
    inference = image_call(files=files, **fields)
    return make_image_backend(wire, inference, MODELS[wire], "mark", UNKNOWN_CAPABILITY), inference


def begin(wire: Wire, request: dict[str, Any]) -> tuple[ImageBackend, ProviderRequest]:
    """Return the backend of a table's request, and its first call."""
    model = request.get("model", TABLES[wire]["model"])
    files = [upload(base64.b64decode(source)) for source in request.get("sources", ())]
    files += [upload(draw(), "mask")] if request.get("mask") else []
    prompt, size = request.get("prompt", "a cat"), request.get("size")
    inference = image_call(prompt, size=size, files=tuple(files), **request.get("fields", {}))
    able = Capability(model, sizes=tuple(request["sizes"])) if "sizes" in request else UNKNOWN_CAPABILITY
    backend = make_image_backend(wire, inference, model, "mark", able)
    return backend, backend.begin(request.get("count", 1))


def build_raw(wire: Wire, answer: Any) -> bytes:
    return answer.encode() if isinstance(answer, str) else build_answer(TABLES[wire], answer)


def describe(found: Images | ProviderRequest) -> dict[str, Any]:
    """Return what a table says of it."""
    if isinstance(found, ProviderRequest):
        assert found.repeatable
        reported: dict[str, Any] = {"next": f"{found.method} {found.path}", "wait_s": found.wait_s}
        return reported | ({"host": found.host} if found.host else {})
    usage = found.usage
    reported = {"images": [image.url or image.data for image in found.items]}
    reported |= {"source": usage.source, "charged": usage.images}
    prompts = [image.revised_prompt for image in found.items]
    reported |= {"prompts": prompts} if any(prompts) else {}
    reported |= {"quoted": True} if all(image.quoted for image in found.items) else {}
    known = usage.source == "upstream" and usage.completion_tokens
    reported |= {"tokens": [usage.prompt_tokens, usage.completion_tokens]} if known else {}
    return reported | ({"reported": dict(found.reported)} if found.reported else {})


# ---- formats and providers


def test_every_image_format_and_no_other_has_a_backend() -> None:
    paintable = {*OPERATIONS["images"].formats, *OPERATIONS["image_edits"].formats}
    assert IMAGE_BACKENDS.keys() == MODELS.keys() == paintable
    for wire in set(get_args(Wire)) - paintable:
        with pytest.raises(KeyError):
            make_image_backend(wire, image_call(), "m", "mark", UNKNOWN_CAPABILITY)


@EVERY
def test_make_image_backend_returns_the_formats_own(wire: Wire) -> None:
    backend, _ = open_image_backend(wire)
    assert type(backend) is IMAGE_BACKENDS[wire]


@table_rows("wire", OWNERS)
def test_find_endpoint_returns_the_format_for_its_models_only(wire: Wire) -> None:
    for model in TABLES[wire].get("serves", ()):
        endpoint = OWNERS[wire].find_endpoint(OPERATIONS["images"].formats, model)
        assert endpoint is not None
        assert endpoint.wire == wire
        assert OWNERS[wire].find_endpoint(OPERATIONS["image_edits"].formats, model) is endpoint
    for model in TABLES[wire].get("rejects", ()):
        assert OWNERS[wire].find_endpoint(OPERATIONS["images"].formats, model) is None


# ---- the first request


@list_cases(TABLES, "submit")
def test_begin_builds_the_providers_request(wire: Wire, row: Any) -> None:
    request, path, body, headers = [*row, {}][:4]
    _, provider_request = begin(wire, request)
    assert (
        provider_request.method,
        provider_request.path,
        provider_request.repeatable,
        dict(provider_request.headers),
    ) == ("POST", path, False, headers)
    assert read_sent(provider_request) == body


@list_cases(TABLES, "refused")
def test_begin_names_a_field_that_is_not_supported(wire: Wire, row: Any) -> None:
    request, param, words = [*row, ""][:3]
    with pytest.raises(InvalidRequest) as refused:
        begin(wire, request)
    assert refused.value.param == param
    assert words in refused.value.message


@table_rows(
    ("wire", "able"),
    [
        pytest.param(wire, able, id=f"{wire}-{able.name}")
        for wire in ("dashscope_images", "replicate_images")
        for able in OWNERS[wire].capabilities
        if able.seconds is None
    ],
)
def test_begin_takes_what_a_capability_allows(wire: Wire, able: Capability) -> None:
    """Every size of a model with as many images as it may be sent."""
    model = able.name.replace(":*", ":0123abcd")
    model = "somebody/something" if model == "*" else model.replace("*", "")
    sources = able.max_sources or int(able.edits is True and wire == "replicate_images")
    for size in able.sizes or (None,):
        inference = image_call(size=size, files=(SOURCE,) * sources)
        sent = read_sent(make_image_backend(wire, inference, model, "mark", UNKNOWN_CAPABILITY).begin(able.max_n or 1))
        assert "a cat" in str(sent)
        assert wire == "replicate_images" or sent["model"] == model


def test_replicate_sends_every_field_of_the_client() -> None:
    model = TABLES["replicate_images"]["model"]
    for fields in ({}, {"seed": "7"}, {"raw": "", "guidance": "3"}, {"seed": "x", "raw": "true", "guidance": "."}):
        _, provider_request = begin("replicate_images", {"model": model, "fields": fields})
        assert read_sent(provider_request)["input"].keys() == {"prompt", "num_outputs", *fields}


@EVERY
def test_begin_sends_the_prompt_and_keeps_the_request(wire: Wire) -> None:
    backend, inference = open_image_backend(wire)
    before = dict(inference.body)
    provider_request = backend.begin(1)
    assert provider_request.body is not None
    assert (provider_request.method, provider_request.repeatable, provider_request.wait_s) == ("POST", False, 0)
    body, _ = build_payload(provider_request.body, "mark")
    pieces = [body] if isinstance(body, bytes) else [piece for piece in body.pieces if isinstance(piece, bytes)]
    assert b"a cat" in b"".join(pieces)
    assert inference.body == before


@pytest.mark.parametrize("wire", ["gemini_images", "chat_images"])
@given(
    prompt=st.text(min_size=1, max_size=20),
    size=st.none() | st.sampled_from([f"{width}x{height}" for width, height in SIZES.values()]),
    sources=st.lists(st.integers(0, 255), max_size=3),
)
def test_begin_sends_prompt_ratio_and_images_in_their_order(
    wire: Wire, prompt: str, size: str | None, sources: list[int]
) -> None:
    images = tuple(draw(shade=shade) for shade in sources)
    inference = image_call(prompt, size=size, files=tuple(map(upload, images)))
    sent = read_sent(make_image_backend(wire, inference, MODELS[wire], "mark", UNKNOWN_CAPABILITY).begin(1))
    heard = read_chat_question(sent, MODELS[wire]) if wire == "chat_images" else read_gemini_question(sent)
    assert (heard.prompt, heard.sources) == (prompt, images)
    assert (f"{SIZES[heard.size][0]}x{SIZES[heard.size][1]}" if heard.size else None) == size


@EVERY
def test_two_requests_have_two_backends(wire: Wire) -> None:
    """What one of them knows of its task is nothing to the other; one that did not begin has nothing to cancel."""
    assert open_image_backend(wire)[0].build_cancel_request() is None
    one, two = open_image_backend(wire)[0], open_image_backend(wire)[0]
    one.begin(1)
    two.begin(1)
    with pytest.raises(ProviderBadResponse):
        one.read(b"{}", ())
    assert one is not two
    assert two.build_cancel_request() is None


# ---- answers


@list_cases(TABLES, "read")
def test_read_returns_images_or_the_next_request_or_raises(wire: Wire, row: Any) -> None:
    request, answers, expected, cancel = [*row, None][:4]
    backend, _ = begin(wire, request)
    for answer in answers[:-1]:
        assert isinstance(backend.read(build_raw(wire, answer), (SECRET,)), ProviderRequest)
    last = build_raw(wire, answers[-1])
    if isinstance(expected, dict):
        assert describe(backend.read(last, (SECRET,))) == expected
    else:
        with pytest.raises(ProviderError) as raised:
            backend.read(last, (SECRET,))
        check_error(raised.value, *expected)
    stop = backend.build_cancel_request()
    assert (stop and f"{stop.method} {stop.path}") == cancel
    assert stop is None or stop.repeatable


def check_error(error: ProviderError, kind: str, message: str, public_code: str | None = None) -> None:
    assert (type(error), error.message) == (getattr(errors, kind), message)
    assert "hush" not in message
    assert "internal.example" not in message
    if public_code is not None:
        assert (error.status, error.public_code) == (400, public_code)
    if isinstance(error, ImageBlocked):
        assert (error.status, error.public_code) == (400, "sensitive_words_detected")


def check_read(wire: Wire, backend: ImageBackend, raw: bytes) -> None:
    """Nothing is raised but a ``ProviderError``, and what is returned can be used."""
    try:
        found = backend.read(raw, ("hunter2",))
    except (ProviderBadResponse, ProviderRejected) as fault:
        assert fault.message  # noqa: PT017 - what is read instead is looked at, too
        return
    if isinstance(found, Images):
        assert found.items
        assert wire in {"openai_images", "openai_edits", "chat_images"} or len(found.items) == 1
        assert all(image.url or base64.b64decode(image.data or "", validate=True) for image in found.items)
    else:
        assert re.fullmatch(
            r"(?:/api/v1/tasks/|/predictions/|/generations/|/get_result\?id=)[A-Za-z0-9_-]{1,128}", found.path or ""
        )


@EVERY
@given(answer=JSON | st.binary(max_size=40))
def test_read_survives_any_answer(wire: Wire, answer: Any) -> None:
    backend, _ = open_image_backend(wire)
    backend.begin(1)
    check_read(wire, backend, answer if isinstance(answer, bytes) else orjson.dumps(answer))


@pytest.mark.parametrize("wire", TABLED)
@given(data=st.data(), known=st.booleans())
@settings(max_examples=80)
def test_read_survives_junk_in_a_recorded_answer(wire: Wire, data: st.DataObject, known: bool) -> None:
    """Also after an answer with a task's id."""
    answers = TABLES[wire]["answers"]
    model = data.draw(st.sampled_from(["wan2.6-t2i", "qwen-image-2.0"])) if wire == "dashscope_images" else None
    backend, _ = begin(wire, {"model": model} if model else {})
    start = answers.get("queued", answers.get("begun"))
    if known and start is not None:
        backend.read(orjson.dumps(start), ())
    answer = data.draw(st.sampled_from(list(answers.values())).flatmap(spoilt))
    check_read(wire, backend, orjson.dumps(answer))


@table_rows("wire", TABLED)
def test_read_survives_any_depth_in_a_recorded_answer(wire: Wire) -> None:
    for answer in TABLES[wire]["answers"].values():
        for name in {*answer, "error"}:
            raw = orjson.dumps(answer | {name: "@"}).replace(b'"@"', b"[" * 1000 + b"]" * 1000)
            check_read(wire, begin(wire, {})[0], raw)


# ---- over the fake providers, which check all that they are sent

FAKES = pytest.mark.parametrize(
    ("wire", "fake"), [("dashscope_images", DashScopeImages), ("replicate_images", ReplicateImages)]
)


async def send(
    session: aiohttp.ClientSession, wire: Wire, fake: ImageProvider, provider_request: ProviderRequest
) -> bytes | None:
    """Send one request; return None if a poll or a cancellation failed."""
    provider = OWNERS[wire]
    channel = Channel("up", provider.slug, fake.base_url, (KEY,))
    endpoint = next(one for one in provider.endpoints if one.wire == wire)
    body = None if provider_request.body is None else orjson.dumps(read_sent(provider_request))
    request = EndpointRequest(
        body, method=provider_request.method, path=provider_request.path, headers=provider_request.headers
    )
    http_request = provider.build_request(channel, endpoint, request, model="m", key=KEY)
    async with session.request(
        http_request.method, http_request.url, data=body, headers=http_request.headers
    ) as answer:
        if answer.status >= 300 and provider_request.repeatable:
            return None
        assert answer.status < 300, await answer.text()
        return await answer.read()


async def fetch_images(wire: Wire, fake: ImageProvider, request: dict[str, Any]) -> Images:
    """Do what ``media/images.py`` does, without the waits."""
    backend, provider_request = begin(wire, request)
    async with aiohttp.ClientSession() as session:
        while True:
            raw = await send(session, wire, fake, provider_request)
            found = provider_request if raw is None else backend.read(raw, ())
            if isinstance(found, Images):
                return found
            provider_request = found


@pytest.mark.parametrize(
    ("wire", "fake", "request_", "heard_size", "size"),
    [
        ("dashscope_images", DashScopeImages, {"size": "1024x512"}, "1024*512", (1024, 512)),
        ("replicate_images", ReplicateImages, {"size": "768x1344"}, "9:16", (768, 1344)),
    ],
)
async def test_a_provider_makes_the_images_that_were_asked_for(
    wire: Wire, fake: Any, request_: dict[str, Any], heard_size: str, size: tuple[int, int]
) -> None:
    async with fake(polls=2, stumble="html") as provider:
        reported = await fetch_images(wire, provider, request_ | {"count": 2, "fields": {"seed": 7}})
        (heard,) = provider.heard
        assert (heard.prompt, heard.count, heard.size) == ("a cat", 2, heard_size)
        assert len(provider.requests) == 5
        async with aiohttp.ClientSession() as session, session.get(reported.items[1].url or "") as image:
            assert measure(await image.read()) == size


@pytest.mark.parametrize(
    ("wire", "fake", "model", "path"),
    [
        ("dashscope_images", DashScopeImages, "wan2.5-i2i-preview", "image2image/image-synthesis"),
        ("dashscope_images", DashScopeImages, "wanx2.1-imageedit", "image2image/image-synthesis"),
        ("dashscope_images", DashScopeImages, "wan2.6-image", "image-generation/generation"),
        ("dashscope_images", DashScopeImages, "wan2.7-image", "image-generation/generation"),
        ("dashscope_images", DashScopeImages, "qwen-image-edit", "multimodal-generation/generation"),
        ("dashscope_images", DashScopeImages, "qwen-image-edit-plus-2025-12-15", "multimodal-generation/generation"),
        ("replicate_images", ReplicateImages, "black-forest-labs/flux-2-dev:0123abcd", "predictions"),
    ],
)
async def test_a_provider_gets_the_images_of_an_edit(wire: Wire, fake: Any, model: str, path: str) -> None:
    names = ("png",) if model == "wanx2.1-imageedit" else ("png", "other")
    sources = [CODED[f"{{{name}}}"] for name in names]
    async with fake(polls=0) as provider:
        reported = await fetch_images(wire, provider, {"model": model, "prompt": "make it blue", "sources": sources})
        (heard,) = provider.heard
        root = "/api/v1/services/aigc" if wire == "dashscope_images" else "/v1"
        assert provider.requests[0] == ("POST", f"{root}/{path}")
    assert (heard.prompt, heard.sources) == ("make it blue", tuple(IMAGES[name] for name in names))
    assert len(reported.items) == 1


@FAKES
async def test_a_providers_block_is_raised(wire: Wire, fake: Any) -> None:
    async with fake("block", stumble="error") as provider:
        with pytest.raises(ImageBlocked) as fault:
            await fetch_images(wire, provider, {})
    assert fault.value.public_code == "sensitive_words_detected"


@FAKES
async def test_a_provider_takes_a_cancellation(wire: Wire, fake: Any) -> None:
    async with fake(endless=True) as provider, aiohttp.ClientSession() as session:
        backend, provider_request = begin(wire, {})
        for _ in range(2):
            found = backend.read(await send(session, wire, provider, provider_request) or b"", ())
            assert isinstance(found, ProviderRequest)
            provider_request = found
        cancel = backend.build_cancel_request()
        assert cancel is not None
        assert await send(session, wire, provider, cancel) is not None
        assert len(provider.cancelled) == 1
