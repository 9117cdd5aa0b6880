"""Pictures from Gemini's own models: what is asked, and what the answers mean."""

import base64
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.capability import UNKNOWN, Capability
from gateway.domain.image import Images
from gateway.errors import ImageBlocked, InvalidRequest, ProviderBadResponse
from gateway.formats.aspect_ratios import FIRST_SIZES, SMALL_SIZES, USUAL_SIZES, WIDE_SIZES, WIDEST_SIZES, parse_shape
from gateway.formats.gemini.images import GeminiImageBackend
from gateway.formats.prompt_tokens import estimate_prompt
from gateway.providers.gemini import GEMINI
from tests.support.corrupt_json import spoilt
from tests.support.gemini_images import (
    SIZES,
    Refused,
    read_question,
    write_answer,
    write_blocked_image,
    write_blocked_prompt,
)
from tests.support.image_calls import image_call, read_sent, upload
from tests.support.image_providers import draw

MODEL = "gemini-2.5-flash-image"
PNG = draw()
BASE64 = base64.b64encode(PNG).decode()


def paint(call: Any = None, capability: Capability = UNKNOWN) -> GeminiImageBackend:
    image_backend = GeminiImageBackend(call or image_call(), MODEL, "mark", capability)
    image_backend.begin(1)
    return image_backend


def answer(*parts: Any, **candidate: Any) -> bytes:
    return orjson.dumps({"candidates": [{"content": {"role": "model", "parts": list(parts)}, **candidate}]})


def inline(data: Any = BASE64, media_type: str = "image/png", **part: Any) -> dict[str, Any]:
    return {"inlineData": {"mimeType": media_type, "data": data}, **part}


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
    heard = read_question(read_sent(GeminiImageBackend(call, MODEL, "mark", UNKNOWN).begin(1)))
    assert (heard.prompt, heard.sources) == (prompt, images)
    assert (f"{SIZES[heard.size][0]}x{SIZES[heard.size][1]}" if heard.size else None) == size


def test_no_size_leaves_the_shape_to_the_model() -> None:
    sent = read_sent(GeminiImageBackend(image_call(), MODEL, "mark", UNKNOWN).begin(1))
    assert sent["generationConfig"] == {"responseModalities": ["TEXT", "IMAGE"]}


@pytest.mark.parametrize(
    ("size", "config"),
    [
        ("1376x768", {"aspectRatio": "16:9"}),
        ("5504x3072", {"aspectRatio": "16:9", "imageSize": "4K"}),
        ("2048x512", {"aspectRatio": "4:1"}),
        ("424x632", {"aspectRatio": "2:3", "imageSize": "512"}),
        ("3712x4608", {"aspectRatio": "4:5", "imageSize": "4K"}),
    ],
)
def test_a_size_is_told_as_ratio_and_tier(size: str, config: dict[str, str]) -> None:
    sent = read_sent(GeminiImageBackend(image_call(size=size), "gemini-3.1-flash-image", "mark", UNKNOWN).begin(1))
    assert sent["generationConfig"]["imageConfig"] == config


def test_every_size_has_the_shape_of_its_ratio() -> None:
    """None of the tables has a slip, and none has one that cannot be told."""
    for size in {*FIRST_SIZES, *SMALL_SIZES, *USUAL_SIZES, *WIDE_SIZES, *WIDEST_SIZES}:
        width, height = map(int, size.split("x"))
        across, down = map(int, parse_shape(size, None).ratio.split(":"))
        assert width / height == pytest.approx(across / down, rel=0.04), size


@pytest.mark.parametrize(
    ("call", "param"),
    [
        (image_call(size="1024x1536"), "size"),
        (image_call(background="transparent"), "background"),
        (image_call(output_format="webp"), "output_format"),
        (image_call(frame_count=4), "frame_count"),
        (image_call(files=(upload(PNG), upload(PNG, "mask"))), "mask"),
    ],
)
def test_what_it_has_no_words_for_is_refused_by_name(call: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        GeminiImageBackend(call, MODEL, "mark", UNKNOWN).begin(1)
    assert refused.value.param == param


def test_several_images_at_once_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="'n' must be 1"):
        GeminiImageBackend(image_call(), MODEL, "mark", UNKNOWN).begin(2)


def test_the_sizes_that_are_allowed_are_told() -> None:
    with pytest.raises(InvalidRequest, match=r"one of 1024x1024, 832x1248, .*, 1536x672$"):
        paint(image_call(size="7x7"), Capability("*", sizes=FIRST_SIZES))


def test_shades_of_how_are_left_out() -> None:
    fields = {"quality": "high", "style": "vivid", "moderation": "low", "user": "u", "background": "opaque"}
    heard = read_question(read_sent(GeminiImageBackend(image_call(**fields), MODEL, "mark", UNKNOWN).begin(1)))
    assert heard.prompt == "a cat"


def test_a_image_is_read_with_what_it_cost() -> None:
    told = paint().read(orjson.dumps(write_answer(PNG)), ())
    assert [image.data for image in told.items] == [BASE64]
    assert [(image.url, image.revised_prompt) for image in told.items] == [(None, None)]
    assert (told.usage.prompt_tokens, told.usage.completion_tokens, told.usage.images) == (9, 1300, 1)
    assert (told.usage.source, told.reported) == ("upstream", {"output_format": "png"})


def test_the_other_spelling_of_the_fields_is_read() -> None:
    part = {"inline_data": {"mime_type": "image/jpeg", "data": BASE64}}
    told = paint().read(answer(part), ())
    assert (told.items[0].data, told.reported) == (BASE64, {"output_format": "jpeg"})


def test_a_image_of_a_thought_is_not_the_answer() -> None:
    draft = base64.b64encode(draw(shade=7)).decode()
    told = paint().read(answer(inline(draft, thought=True), inline()), ())
    assert [image.data for image in told.items] == [BASE64]
    with pytest.raises(ProviderBadResponse):
        paint().read(answer(inline(draft, thought=True)), ())


def test_of_drafts_the_last_is_the_answer() -> None:
    """And one picture is paid for."""
    told = paint().read(answer(inline(base64.b64encode(draw(shade=7)).decode()), inline()), ())
    assert [image.data for image in told.items] == [BASE64]
    assert told.usage.images == 1


def test_usage_that_makes_no_sense_is_estimated() -> None:
    raw = write_answer(PNG)
    raw["usageMetadata"]["candidatesTokenCount"] = -5
    call = image_call("a cat on a mat")
    usage = paint(call).read(orjson.dumps(raw), ()).usage
    assert (usage.completion_tokens, usage.images, usage.source) == (1290, 1, "estimate")
    assert usage.prompt_tokens == estimate_prompt(call) >= 4


REASONS = (
    "SAFETY", "PROHIBITED_CONTENT", "IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "RECITATION", "IMAGE_RECITATION",
    "BLOCKLIST", "SPII",
)  # fmt: skip


@pytest.mark.parametrize("reason", REASONS)
def test_a_filter_blocks(reason: str) -> None:
    with pytest.raises(ImageBlocked, match=reason):
        paint().read(answer({"text": "no"}, finishReason=reason), ())


@pytest.mark.parametrize("blocked", [write_blocked_image(), write_blocked_prompt()])
def test_the_blocks_of_the_vendor_are_blocks(blocked: Any) -> None:
    with pytest.raises(ImageBlocked) as fault:
        paint().read(orjson.dumps(blocked), ())
    assert (fault.value.status, fault.value.public_code) == (400, "sensitive_words_detected")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (answer({"text": "I would rather talk."}), "answered in words.*I would rather talk"),
        (answer(finishReason="NO_IMAGE"), "made no picture: NO_IMAGE"),
        (answer({"text": "hm"}, finishReason="MAX_TOKENS"), "made no picture: MAX_TOKENS hm"),
        (b'{"candidates": []}', "has no pictures"),
        (b'{"error": {"code": 500, "message": "oops"}}', "reported an error: oops"),
        (answer(inline("not base64!")), "not base64"),
        (answer(inline(BASE64[:-1])), "not base64"),
        (answer(inline("")), "not base64"),
        (answer(inline(BASE64, "audio/wav")), "has no pictures"),
        (b"<html>", "not JSON"),
        (b"[1]", "not a JSON object"),
    ],
)
def test_an_answer_without_a_image_says_why(raw: bytes, message: str) -> None:
    with pytest.raises(ProviderBadResponse, match=message):
        paint().read(raw, ())


def test_what_the_model_says_is_masked() -> None:
    with pytest.raises(ProviderBadResponse) as fault:
        paint().read(answer({"text": "the key is hush-hush-hush"}), ("hush-hush-hush",))
    assert "hush" not in fault.value.message


@given(st.sampled_from([write_answer(PNG), write_blocked_image(), write_blocked_prompt()]).flatmap(spoilt))
@settings(max_examples=80)
def test_junk_anywhere_is_a_fault_or_no_matter(value: Any) -> None:
    try:
        told = paint().read(orjson.dumps(value), ())
    except (ProviderBadResponse, ImageBlocked):
        return
    assert isinstance(told, Images)
    assert told.items
    assert all(base64.b64decode(image.data or "", validate=True) for image in told.items)


@given(st.binary(max_size=40))
def test_garbage_is_a_fault(raw: bytes) -> None:
    with pytest.raises(ProviderBadResponse):
        paint().read(raw, ())


def test_a_large_image_is_read() -> None:
    """Twenty megabytes, in time that grows with the size alone: what is quadratic would not end here."""
    data = "A" * (20 * 1024 * 1024 // 3 * 4)
    assert paint().read(answer(inline(data)), ()).items[0].data == data


def test_the_fake_refuses_what_the_vendor_refuses() -> None:
    sent = read_sent(GeminiImageBackend(image_call(size="2048x2048"), MODEL, "mark", UNKNOWN).begin(1))
    with pytest.raises(Refused, match="imageSize"):
        read_question(sent)


@pytest.mark.parametrize(
    ("model", "sizes", "sources"),
    [
        ("gemini-2.5-flash-image", FIRST_SIZES, 3),
        ("gemini-3-pro-image", USUAL_SIZES, 14),
        ("gemini-3-pro-image-preview", USUAL_SIZES, 14),
        ("gemini-3.1-flash-image", WIDEST_SIZES, 14),
        ("gemini-3.1-flash-lite-image", SMALL_SIZES, 14),
        ("gemini-nano-banana-2.1", WIDE_SIZES, 14),
        ("gemini-9-flash-image", None, None),
    ],
)
def test_every_image_model_is_known(model: str, sizes: Any, sources: Any) -> None:
    capability = GEMINI.find_capability(model)
    assert capability is not None
    assert (capability.sizes, capability.max_sources) == (sizes, sources)
    assert (capability.max_n, capability.edits, capability.masks, capability.streams) == (1, True, False, False)
    endpoint = GEMINI.find_endpoint(("gemini_pictures",), model)
    assert endpoint is not None
    assert endpoint.path == "/models/{model}:generateContent"


def test_a_model_that_talks_does_not_paint() -> None:
    assert GEMINI.find_endpoint(("gemini_pictures",), "gemini-2.5-flash") is None
    assert GEMINI.find_capability("gemini-2.5-flash") is None
