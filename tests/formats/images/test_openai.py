"""Calls for pictures: what is read of them, what is sent to a provider that speaks the convention, and its answer."""

import base64
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.image import Image, ImageRequest
from gateway.domain.usage import Usage, UsageDetails
from gateway.errors import ImageBlocked, InvalidRequest, ProviderBadResponse, ProviderError
from gateway.formats.images.openai import (
    ESTIMATED_IMAGE_TOKENS,
    IMAGE_TOKENS,
    MAX_PROMPT_CHARS,
    PARTIAL_TOKENS,
    SOURCE_TOKENS,
    build_edits_form,
    build_images_body,
    parse_edits_inference,
    parse_images_answer,
    parse_images_inference,
)
from gateway.formats.wire.form import ReceivedForm
from tests.support.corrupt_json import spoilt
from tests.support.image_forms import PNG, form, upload
from tests.support.table_rows import table_rows

ASK = {"model": "m", "prompt": "a cat"}
FULL = ASK | {
    "n": 2, "size": "1536x1024", "response_format": "b64_json", "stream": True, "partial_images": 3,
    "output_compression": 50, "output_format": "webp", "quality": "high", "background": "opaque", "user": "u",
    "moderation": "low", "style": "vivid", "frame_count": 2, "frame_duration_ms": 100, "svg": {"model": "x"}, "odd": 1,
}  # fmt: skip
B64 = base64.b64encode(PNG).decode()
ANSWER = {
    "created": 1_700_000_000,
    "background": "opaque",
    "data": [{"b64_json": B64, "revised_prompt": "a small cat"}],
    "output_format": "png",
    "quality": "high",
    "size": "1024x1024",
    "usage": {
        "input_tokens": 50,
        "input_tokens_details": {"image_tokens": 40, "text_tokens": 10},
        "output_tokens": 272,
        "total_tokens": 322,
    },
}


def refuse(read: Any, asked: Any) -> InvalidRequest:
    """The fault that ``read`` finds."""
    with pytest.raises(InvalidRequest) as caught:
        read(asked)
    return caught.value


def test_a_call_says_what_every_image_backend_must_know_and_keeps_the_rest() -> None:
    inference = parse_images_inference(dict(FULL))
    assert (inference.operation, inference.model, inference.stream, inference.choices) == ("images", "m", True, 2)
    assert inference.image == ImageRequest("a cat", 2, "1536x1024", "b64_json")
    assert (inference.prompt_chars, inference.max_prompt_tokens, inference.affinity_key) == (5, 5, None)
    assert inference.body == FULL
    assert inference.need == Usage(5, 2 * inference.max_output_tokens, images=2)


@table_rows(
    ("asked", "reported"),
    [
        ({}, 7_024), ({"size": "1024x1024"}, 7_024), ({"size": "1024x1536", "quality": "high"}, 6_240),
        ({"size": "2048x2048"}, 14_272), ({"size": "3840x2160", "quality": "max"}, 13_342),
        ({"size": "2880x2880"}, 23_716), ({"size": "960x960", "frame_count": 9}, 23_716),
        ({"size": "960x960", "output_format": "gif"}, 23_716), ({"size": "1024x1024", "partial_images": 3}, 7_324),
    ],
)  # fmt: skip
def test_what_is_set_aside_for_a_image_is_at_least_what_its_vendor_tells(asked: dict[str, Any], reported: int) -> None:
    bound = parse_images_inference(ASK | asked).max_output_tokens
    assert reported <= bound < 3 * reported


def test_what_is_set_aside_grows_with_pixels_frames_and_partial_images() -> None:
    def bound(**asked: Any) -> int:
        return parse_images_inference(ASK | asked).max_output_tokens

    assert bound() == bound(size="1024x1536") == bound(size="64x64") == IMAGE_TOKENS
    assert bound(size="1024x1536", partial_images=2) == IMAGE_TOKENS + 2 * PARTIAL_TOKENS
    assert bound(size="1024x1537") > IMAGE_TOKENS
    assert bound(frame_count=16) > bound(output_format="gif") > bound(frame_count=2) > IMAGE_TOKENS
    assert bound(output_format="gif") == bound(output_format="gif", frame_count=9)


@table_rows(
    ("body", "param"),
    [
        ({"batch_size": 4}, "batch_size"), ({"n": 1, "num_images": 9}, "num_images"), ({"N": 10}, "N"),
        ({"sampleCount": 2}, "sampleCount"), ({"extra_body": {"n": 4}}, "extra_body.n"), ({"Size": "1x1"}, "Size"),
        ({"size": "64x64", "image_size": "9x9"}, "image_size"), ({"size": "64x64", "width": "1024"}, "width"),
    ],
)  # fmt: skip
def test_how_many_and_how_large_are_said_in_one_way(body: dict[str, Any], param: str) -> None:
    assert refuse(parse_images_inference, ASK | body).param == param
    if "extra_body" not in body:
        fields = {name: str(value) for name, value in body.items()}
        assert refuse(parse_edits_inference, form(upload(), **fields)).param == param
        assert refuse(parse_edits_inference, form(upload(), **{f"{param}[]": "4", "size": "64x64"})).param == param


@table_rows("field", ["image_size", "width", "aspect_ratio", "resolution", "megapixels"])
def test_a_size_in_a_vendors_own_words_is_not_said_to_who_knows_the_conventions(field: str) -> None:
    generation, edit = parse_images_inference(ASK | {field: "9"}), parse_edits_inference(form(upload(), **{field: "9"}))
    assert refuse(lambda call: build_images_body(call, "m"), generation).param == field
    assert refuse(lambda call: build_edits_form(call, "m"), edit).param == field


@table_rows("more", [{}, {"n": None, "size": None, "response_format": None, "stream": None}, {"size": "auto"}])
def test_a_call_that_says_little_wants_one_image_by_address(more: dict[str, Any]) -> None:
    inference = parse_images_inference(ASK | more)
    assert inference.image == ImageRequest("a cat")
    assert not inference.stream


def test_a_prompt_is_bounded_by_its_bytes() -> None:
    inference = parse_images_inference(ASK | {"prompt": "猫猫"})
    assert (inference.prompt_chars, inference.max_prompt_tokens) == (2, 6)


@table_rows(
    ("name", "value"),
    [
        ("model", None), ("model", ""), ("model", 1), ("prompt", None), ("prompt", ""), ("prompt", " \n"),
        ("prompt", ["a"]), ("prompt", "x" * (MAX_PROMPT_CHARS + 1)), ("n", 0), ("n", 11), ("n", "1"), ("n", True),
        ("n", 1.0), ("size", "big"), ("size", ""), ("size", "1024"), ("size", "0x10"), ("size", "1024x1024x1"),
        ("size", "1024x1024\n"), ("size", "\uff11024x1024"), ("size", "-1x5"), ("size", "123456x10"), ("size", 1024),
        ("response_format", "png"), ("response_format", 1), ("stream", "true"), ("stream", 1), ("partial_images", 4),
        ("partial_images", -1), ("output_compression", 101), ("quality", 1), ("background", {}), ("user", []),
        ("svg", "x"), ("frame_count", 1),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(name: str, value: object) -> None:
    body = {key: one for key, one in (ASK | {name: value}).items() if one is not None}
    assert refuse(parse_images_inference, body).param == name


def test_a_wrong_size_says_what_is_expected() -> None:
    assert "1024x1024" in refuse(parse_images_inference, ASK | {"size": "huge"}).message


def test_the_longest_prompt_is_taken() -> None:
    assert parse_images_inference(ASK | {"prompt": "x" * MAX_PROMPT_CHARS}).prompt_chars == MAX_PROMPT_CHARS


def find_fault(body: dict[str, Any]) -> InvalidRequest | None:
    try:
        parse_images_inference(body)
    except InvalidRequest as fault:
        return fault
    return None


@given(spoilt(FULL))
def test_garbage_in_a_call_is_the_callers_mistake(body: Any) -> None:
    if isinstance(body, dict):
        error = find_fault(body)
        assert error is None or error.param is not None


def test_an_edit_has_its_images_first_and_then_its_mask() -> None:
    mask, one, two = upload("mask"), upload(), upload(filename="hat.webp")
    inference = parse_edits_inference(
        form(mask, one, two, n="2", size="1024x1024", stream="true", partial_images="1", seed="7")
    )
    assert (inference.operation, inference.stream, inference.choices) == ("image_edits", True, 2)
    assert inference.files == (one, two, mask)
    assert inference.image == ImageRequest("a hat", 2, "1024x1024", sources=2, masked=True)
    assert inference.max_prompt_tokens == len("a hat") + 3 * SOURCE_TOKENS
    assert inference.body == {
        "model": "m", "prompt": "a hat", "n": 2, "size": "1024x1024", "stream": True, "partial_images": 1, "seed": "7",
    }  # fmt: skip


def test_a_markup_is_no_mask() -> None:
    inference = parse_edits_inference(form(upload(), upload("markup")))
    assert [file.field for file in inference.files] == ["image", "markup"]
    assert inference.image == ImageRequest("a hat", sources=1)


def test_sixteen_images_are_taken_and_no_more() -> None:
    assert len(parse_edits_inference(form(*[upload()] * 16)).files) == 16
    assert refuse(parse_edits_inference, form(*[upload()] * 17)).param == "image"


@table_rows(
    ("asked", "param"),
    [
        (form(), "image"),
        (form(upload("mask")), "image"),
        (form(upload(), upload("mask"), upload("mask")), "mask"),
        (form(upload(data=b"")), "image"),
        (form(upload(data=b"%PDF-1.7")), "image"),
        (form(upload(), upload("mask", b"plain text")), "mask"),
        (form(upload(), upload("file")), "file"),
        (form(image="https://host/cat.png"), "image"),
        (form(upload(), mask="https://host/cat.png"), "mask"),
        (form(upload(), n="two"), "n"),
        (form(upload(), n="0"), "n"),
        (form(upload(), stream="maybe"), "stream"),
        (form(upload(), prompt=""), "prompt"),
        (form(upload(), size="x"), "size"),
        (attrs.evolve(form(upload()), fields=(("model", "m"), ("prompt", "a"), ("prompt", "b"))), "prompt"),
        (attrs.evolve(form(upload()), fields=(("prompt", "a"),)), "model"),
    ],
)
def test_a_wrong_form_names_the_field(asked: ReceivedForm, param: str) -> None:
    assert refuse(parse_edits_inference, asked).param == param


@table_rows("head", [b"\xff\xd8\xff\xe0", b"RIFF\0\0\0\0WEBP", b"GIF89a"])
def test_what_a_file_is_told_to_be_does_not_matter(head: bytes) -> None:
    assert parse_edits_inference(form(upload(data=head + b"rest"))).files


def test_a_body_has_the_providers_model_and_no_form_of_answer() -> None:
    inference = parse_images_inference(dict(FULL))
    body = build_images_body(inference, "gpt")
    assert body == {name: value for name, value in FULL.items() if name != "response_format"} | {"model": "gpt"}
    assert inference.body == FULL


@table_rows("size", ["auto", None])
def test_an_open_size_is_not_said(size: str | None) -> None:
    assert build_images_body(parse_images_inference(ASK | {"size": size}), "m") == ASK


def test_one_image_is_image_and_several_are_image_with_brackets() -> None:
    one, two, mask = upload(), upload(), upload("mask")
    answer = build_edits_form(parse_edits_inference(form(one, mask, n="2", response_format="url")), "gpt")
    assert (answer.fields, answer.files) == (
        {"model": "gpt", "prompt": "a hat", "n": 2},
        (("image", one), ("mask", mask)),
    )
    answer = build_edits_form(parse_edits_inference(form(one, two, mask)), "gpt")
    assert answer.files == (("image[]", one), ("image[]", two), ("mask", mask))


CALL = parse_images_inference(ASK | {"n": 2})


def read(value: Any) -> Any:
    return parse_images_answer(orjson.dumps(value), CALL, ["s3cret-key"])


def test_an_answer_is_its_images_and_what_it_says_of_them() -> None:
    images = read(ANSWER)
    assert images.items == (Image(B64, None, "a small cat"),)
    assert images.usage == Usage(50, 272, 0, "upstream", images=1, details=UsageDetails(image_input=40))
    assert images.reported == {name: value for name, value in ANSWER.items() if name != "data"}


@table_rows(
    ("item", "image"),
    [
        ({"url": "https://host/1.png"}, Image(url="https://host/1.png")),
        ({"url": "https://host/1.png", "b64_json": B64}, Image(B64, "https://host/1.png")),
        ({"url": f"data:image/png;base64,{B64}"}, Image(B64)),
        ({"b64_json": f"data:image/png;base64,{B64}", "url": None}, Image(B64)),
        ({"b64_json": "", "url": "http://host/1.png", "revised_prompt": ""}, Image(url="http://host/1.png")),
        ({"b64_json": B64, "url": "file:///etc/passwd"}, Image(B64)),
    ],
)
def test_a_image_is_base64_or_an_address(item: dict[str, Any], image: Image) -> None:
    assert read({"data": [item]}).items == (image,)


def test_a_list_may_be_called_images() -> None:
    reported = {"images": [{"url": "https://host/1.png"}], "timings": {"inference": 1}, "seed": 1}
    assert read(reported).items == (Image(url="https://host/1.png"),)


def test_without_a_usage_it_is_estimated() -> None:
    used = read({"data": [{"b64_json": B64}] * 2}).usage
    assert used == Usage(2, 2 * ESTIMATED_IMAGE_TOKENS, 0, "estimate", images=2)


@table_rows(
    "usage", [{"input_tokens": -1, "output_tokens": 1}, {"input_tokens": 1}, {"total_tokens": 5}, [], 1, {"cost": 1}]
)
def test_a_usage_that_cannot_be_believed_is_not(usage: object) -> None:
    images = read(ANSWER | {"usage": usage})
    assert (images.usage.source, images.usage.images) == ("estimate", 1)
    assert "usage" not in images.reported


def test_a_usage_in_a_chats_words_is_believed() -> None:
    used = read(ANSWER | {"usage": {"prompt_tokens": 3, "completion_tokens": 4}}).usage
    assert used == Usage(3, 4, 0, "upstream", images=1)


@table_rows(
    "value",
    [
        {}, {"data": []}, {"data": None}, {"data": [{}]}, {"data": [None, 1]}, {"data": {"b64_json": B64}},
        {"data": [{"b64_json": 5, "url": "ftp://host"}]}, {"data": [{"url": "data:image/png,raw"}]}, {"images": "x"},
        {"error": {"message": "out of s3cret-key memory"}}, {"data": [{"b64_json": B64}], "error": "late"},
    ],
)  # fmt: skip
def test_an_answer_without_a_image_is_none(value: object) -> None:
    with pytest.raises(ProviderBadResponse) as caught:
        read(value)
    assert "s3cret" not in caught.value.message


@table_rows(
    "value",
    [
        {"error": {"code": "moderation_blocked", "message": "no"}},
        {"data": [], "block_reason": "nudity"},
        {"data": [{"error": {"code": "OutputImageSensitiveContentDetected", "message": "no"}}]},
    ],
)
def test_a_block_with_status_200_is_one(value: object) -> None:
    with pytest.raises(ImageBlocked):
        read(value)


def test_images_that_were_not_blocked_are_given() -> None:
    blocked = {"error": {"code": "OutputImageSensitiveContentDetected", "message": "no"}}
    assert len(read({"data": [{"b64_json": B64}, blocked]}).items) == 1


@given(spoilt(ANSWER))
def test_a_spoilt_answer_is_images_or_the_providers_fault(value: Any) -> None:
    try:
        images = read(value)
    except ProviderError:
        return
    assert all(one.data or one.url for one in images.items)
    assert images.usage.images == len(images.items)
    assert set(images.reported) <= {"created", "background", "output_format", "quality", "size", "usage"}


@given(st.binary(max_size=40))
def test_an_answer_that_is_no_json_is_the_providers_fault(raw: bytes) -> None:
    with pytest.raises(ProviderBadResponse):
        parse_images_answer(raw, CALL)
