"""Pictures from chat models: what is asked, and where an answer has them."""

import base64
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.api_format import WIRES
from gateway.domain.capability import UNKNOWN
from gateway.domain.image import Images
from gateway.errors import ImageBlocked, InvalidRequest, ProviderBadResponse
from gateway.formats.aspect_ratios import FIRST_SIZES, SMALL_SIZES
from gateway.formats.openai.chat_images import ChatImageBackend
from gateway.providers.gemini import GEMINI
from gateway.providers.openrouter import OPENROUTER
from tests.support.chat_images import ChatPictures, read_question, write_answer, write_failure, write_moderated
from tests.support.corrupt_json import spoilt
from tests.support.gemini_images import SIZES
from tests.support.image_calls import image_call, read_sent, upload
from tests.support.image_providers import draw

MODEL = ChatPictures.model
NEWER = "google/gemini-3.1-flash-image"
PNG = draw()
BASE64 = base64.b64encode(PNG).decode()
DATA_URL = f"data:image/png;base64,{BASE64}"


def paint(call: Any = None) -> ChatImageBackend:
    image_backend = ChatImageBackend(call or image_call(), MODEL, "mark", UNKNOWN)
    image_backend.begin(1)
    return image_backend


def answer(content: Any = None, *, choice: Any = None, **message: Any) -> bytes:
    told = {"role": "assistant", "content": content, **message}
    return orjson.dumps({"choices": [{"index": 0, "finish_reason": "stop", "message": told, **(choice or {})}]})


@given(
    prompt=st.text(min_size=1, max_size=20),
    size=st.none() | st.sampled_from(FIRST_SIZES),
    sources=st.lists(st.integers(0, 255), max_size=3),
)
@settings(max_examples=40)
def test_what_is_asked_is_heard(prompt: str, size: str | None, sources: list[int]) -> None:
    """Prompt, ratio and pictures arrive as they were asked for, in their order."""
    images = tuple(draw(shade=shade) for shade in sources)
    call = image_call(prompt, size=size, files=tuple(map(upload, images)))
    heard = read_question(read_sent(ChatImageBackend(call, MODEL, "mark", UNKNOWN).begin(1)), MODEL)
    assert (heard.prompt, heard.sources) == (prompt, images)
    assert (f"{SIZES[heard.size][0]}x{SIZES[heard.size][1]}" if heard.size else None) == size


def test_a_tier_is_told_beside_the_ratio() -> None:
    sent = read_sent(ChatImageBackend(image_call(size="2752x1536"), MODEL, "mark", UNKNOWN).begin(1))
    assert sent["image_config"] == {"aspect_ratio": "16:9", "image_size": "2K"}


def test_shades_of_how_are_left_out() -> None:
    call = image_call(quality="high", style="vivid", moderation="low", user="u-1", response_format="url")
    heard = read_question(read_sent(ChatImageBackend(call, MODEL, "mark", UNKNOWN).begin(1)), MODEL)
    assert heard.body.keys() == {"model", "messages", "modalities", "user"}
    assert heard.body["user"] == "u-1"


@pytest.mark.parametrize(
    ("call", "param"),
    [
        (image_call(size="640x480"), "size"),
        (image_call(background="transparent"), "background"),
        (image_call(output_format="svg"), "output_format"),
        (image_call(files=(upload(PNG), upload(PNG, "mask"))), "mask"),
    ],
)
def test_what_it_has_no_words_for_is_refused_by_name(call: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ChatImageBackend(call, MODEL, "mark", UNKNOWN).begin(1)
    assert refused.value.param == param


def test_a_image_is_read_with_what_it_cost() -> None:
    told = paint().read(orjson.dumps(write_answer(PNG)), ())
    assert [(image.data, image.url) for image in told.items] == [(BASE64, None)]
    assert (told.usage.prompt_tokens, told.usage.completion_tokens, told.usage.images) == (9, 1300, 1)
    assert (told.usage.source, told.reported) == ("upstream", {"output_format": "png"})


@pytest.mark.parametrize(
    "raw",
    [
        answer(images=[{"type": "image_url", "image_url": {"url": DATA_URL}}]),
        answer(images=[{"type": "image_url", "image_url": DATA_URL}]),
        answer(images=[{"url": DATA_URL}]),
        answer(images=[DATA_URL]),
        answer(images=[{"b64_json": BASE64}]),
        answer([{"type": "text", "text": "here"}, {"type": "image_url", "image_url": {"url": DATA_URL}}]),
        answer([{"type": "output_image", "image_url": DATA_URL}]),
        answer([{"type": "text", "text": f"![]({DATA_URL})"}]),
        answer(f"Here it is:\n\n![a cat]({DATA_URL})\n\nDo you like it?"),
        answer(f"![a cat](<{DATA_URL}>)"),
        answer(f'<img src="{DATA_URL}">'),
        answer(DATA_URL),
        answer(DATA_URL.replace("data:", "DATA:"), images=[DATA_URL.replace("data:image/png", "DATA:IMAGE/PNG")]),
    ],
)
def test_a_image_is_found_wherever_such_servers_put_it(raw: bytes) -> None:
    told = paint().read(raw, ())
    assert [(image.data, image.url) for image in told.items] == [(BASE64, None)]
    assert told.usage.source == "estimate"


@pytest.mark.parametrize(
    ("raw", "quoted"),
    [
        (answer(images=[{"type": "image_url", "image_url": {"url": "https://cdn.example/a.png?x=1"}}]), False),
        (answer("![a [nice] cat](https://cdn.example/a.png?x=1)"), True),
        (answer('Look: ![](https://cdn.example/a.png?x=1 "a cat")'), True),
        (answer([{"type": "text", "text": "![](https://cdn.example/a.png?x=1)"}]), True),
    ],
)
def test_a_image_may_be_an_address_and_in_a_text_it_is_quoted(raw: bytes, quoted: bool) -> None:
    told = paint().read(raw, ())
    assert [(image.data, image.url) for image in told.items] == [(None, "https://cdn.example/a.png?x=1")]
    assert [image.quoted for image in told.items] == [quoted]
    assert told.reported == {}


def test_what_is_told_twice_is_one_image() -> None:
    told = paint().read(answer(f"![]({DATA_URL})", images=[{"image_url": {"url": DATA_URL}}]), ())
    assert (len(told.items), told.usage.images) == (1, 1)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (answer("I would rather talk."), "answered in words.*I would rather talk"),
        (answer("See [this](https://cdn.example/a.png)"), "answered in words"),
        (answer("![x](file:///etc/passwd) and [that](https://cdn.example/a.png)"), "answered in words"),
        (answer(), "has no pictures"),
        (answer(images=["file:///etc/passwd"]), "makes no sense"),
        (answer(images=["https://cdn.example/" + "a" * 5000]), "makes no sense"),
        (answer(images=["https://cdn.example/a b"]), "makes no sense"),
        (answer(images=["data:text/html;base64,AAAA"]), "no picture's"),
        (answer(images=["data:image/png,AAAA"]), "no picture's"),
        (answer(images=["data:image/png;base64;AAAA"]), "no picture's"),
        (answer(images=["data:image/png;base64,@@@@"]), "not base64"),
        (answer(f"![]({DATA_URL}!)"), "not base64"),
        (answer(choice={"error": {"code": 502, "message": "oops"}}), "reported an error: oops"),
        (orjson.dumps(write_failure()), "reported an error: Provider returned error"),
        (b"[]", "not a JSON object"),
        (b"<html>", "not JSON"),
    ],
)
def test_an_answer_without_a_image_says_why(raw: bytes, message: str) -> None:
    with pytest.raises(ProviderBadResponse, match=message):
        paint().read(raw, ())


@pytest.mark.parametrize(
    "raw",
    [
        answer(choice={"finish_reason": "content_filter"}),
        answer(choice={"native_finish_reason": "IMAGE_SAFETY"}),
        answer(refusal="I cannot paint that."),
        answer(choice={"error": {"code": 403, "message": "no", "metadata": {"error_type": "refusal"}}}),
        orjson.dumps({"error": {"code": 400, "message": "", "metadata": {"error_type": "content_policy_violation"}}}),
        orjson.dumps({"error": {"code": "content_policy_violation", "message": "no"}}),
        orjson.dumps(write_moderated("blood")),
    ],
)
def test_a_block_is_a_block(raw: bytes) -> None:
    with pytest.raises(ImageBlocked) as fault:
        paint().read(raw, ())
    assert (fault.value.status, fault.value.public_code) == (400, "sensitive_words_detected")


PLACES = (
    orjson.loads(answer(f"![]({DATA_URL})", choice={"error": None}, refusal="")),
    orjson.loads(answer([{"type": "image_url", "image_url": {"url": DATA_URL}}])),
)


@given(st.sampled_from([write_answer(PNG), write_moderated("x"), *PLACES]).flatmap(spoilt))
@settings(max_examples=80)
def test_junk_anywhere_is_a_fault_or_no_matter(value: Any) -> None:
    try:
        told = paint().read(orjson.dumps(value), ())
    except (ProviderBadResponse, ImageBlocked):
        return
    assert isinstance(told, Images)
    assert told.items
    assert all(image.url or base64.b64decode(image.data or "", validate=True) for image in told.items)


@given(st.lists(st.sampled_from(["![", "](", "data:image/png;base64,", "AAAA", "=", "https://x", ")", "[", " "])))
def test_text_of_any_kind_is_read(pieces: list[str]) -> None:
    try:
        told = paint().read(answer("".join(pieces)), ())
    except ProviderBadResponse:
        return
    assert told.items


@pytest.mark.parametrize(
    "text",
    [
        f"![a]({'data:image/png;base64,' + 'A' * 26_000_000})",
        "![](https://x " * 10 + "](" * 5_000_000,
        "](http://x" * 1_000_000,
        "data:image/png;base64" * 500_000,
        "![" * 5_000_000,
    ],
)
def test_a_large_answer_is_read_once(text: str) -> None:
    """In time that grows with the size alone: what is quadratic would not end here."""
    raw = answer(text)
    try:
        told = paint().read(raw, ())
    except ProviderBadResponse:
        return
    assert told.items


def test_what_the_model_says_is_masked() -> None:
    with pytest.raises(ImageBlocked) as fault:
        paint().read(answer(refusal="the key is hush-hush-hush"), ("hush-hush-hush",))
    assert "hush" not in fault.value.message


@pytest.mark.parametrize(
    ("model", "generated", "edited"),
    [
        ("google/gemini-2.5-flash-image", "chat_pictures", "chat_pictures"),
        ("google/gemini-nano-banana-2.1", "chat_pictures", "chat_pictures"),
        ("openai/gpt-5-image-mini", "openai_images", "chat_pictures"),
        ("openai/gpt-image-2", "openai_images", None),
        ("black-forest-labs/flux.2-pro", "openai_images", None),
        ("openai/gpt-5", None, None),
        ("google/gemini-3-flash", None, None),
    ],
)
def test_openrouter_has_images_where_its_models_make_them(model: str, generated: Any, edited: Any) -> None:
    found = (OPENROUTER.find_endpoint(WIRES[operation], model) for operation in ("images", "image_edits"))
    assert [endpoint and endpoint.wire for endpoint in found] == [generated, edited]
    capability = OPENROUTER.find_capability(model)
    assert (capability is None) == (generated is None)
    assert capability is None or (capability.edits, capability.masks) == (edited is not None, False)


def test_googles_models_have_their_sizes_there_but_the_smallest() -> None:
    direct, served = GEMINI.find_capability("gemini-3.1-flash-image"), OPENROUTER.find_capability(NEWER)
    assert direct is not None
    assert served is not None
    assert set(direct.sizes or ()) > set(served.sizes or ()) > set(SMALL_SIZES)
    assert "512x512" not in (served.sizes or ())
