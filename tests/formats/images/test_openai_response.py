"""What callers are given: the client library's own types, and nothing of the provider's besides."""

import base64
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import ImageEditCompletedEvent, ImageGenCompletedEvent, ImagesResponse

from gateway.domain.image import Image, ImageForm, Images
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage
from gateway.errors import ProviderBadResponse
from gateway.formats.images.openai import parse_images_inference
from gateway.formats.images.openai_response import build_answer, build_completed_stream
from gateway.formats.wire import sse
from tests.support.corrupt_json import spoilt
from tests.support.image_providers import draw
from tests.support.table_rows import table_rows

B64 = base64.b64encode(draw()).decode()
URL = "https://gateway/media/1?expires=2&signature=3"
USED = Usage(50, 272, 0, "upstream", images=2)
DETAILS = {
    "input_tokens": 50,
    "input_tokens_details": {"image_tokens": 40, "text_tokens": 10},
    "output_tokens": 272,
    "total_tokens": 322,
}
REPORTED = {
    "background": "opaque",
    "output_format": "png",
    "quality": "high",
    "size": "1024x1024",
    "created": 5,
    "usage": DETAILS,
    "secret_field": "x",
}
BOTH = Image(B64, URL, "a small cat")
CALL = parse_images_inference({"model": "m", "prompt": "a cat", "n": 2, "size": "64x32", "quality": "low"})
EDIT = InferenceRequest("image_edits", "m", {}, image=CALL.image)


def check(raw: bytes) -> ImagesResponse:
    """The answer as the client library's strictest reading has it."""
    return ImagesResponse.model_validate(orjson.loads(raw), strict=True)


@table_rows(("form", "value"), [("url", URL), ("b64_json", B64)])
def test_a_image_is_there_in_the_form_that_was_wanted_and_in_no_other(form: ImageForm, value: str) -> None:
    raw = build_answer(Images((BOTH, Image(B64, URL)), USED), form, created_s=7)
    assert orjson.loads(raw)["data"] == [{form: value, "revised_prompt": "a small cat"}, {form: value}]
    assert check(raw).created == 7


def test_an_answer_says_what_its_provider_said_in_the_conventions_words_only() -> None:
    answer = orjson.loads(build_answer(Images((BOTH,), USED, REPORTED), "url", created_s=7))
    del answer["data"]
    assert answer == {
        "created": 7, "background": "opaque", "output_format": "png", "quality": "high", "size": "1024x1024",
        "usage": DETAILS,
    }  # fmt: skip


def test_a_usage_without_parts_counts_as_text_and_an_estimate_is_not_told() -> None:
    reported = orjson.loads(build_answer(Images((BOTH,), USED), "url", created_s=7))["usage"]
    assert reported == DETAILS | {"input_tokens_details": {"image_tokens": 0, "text_tokens": 50}}
    assert "usage" not in orjson.loads(
        build_answer(Images((BOTH,), Usage(1, 2, 0, "estimate"), REPORTED), "url", created_s=7)
    )


@table_rows(("image", "form"), [(Image(B64), "url"), (Image(url=URL), "b64_json")])
def test_a_image_that_is_not_there_in_that_form_is_the_providers_fault(image: Image, form: ImageForm) -> None:
    with pytest.raises(ProviderBadResponse):
        build_answer(Images((image,)), form, created_s=7)


@given(spoilt(REPORTED))
def test_whatever_is_told_the_answer_is_one(reported: Any) -> None:
    images = Images((BOTH,), USED, reported if isinstance(reported, dict) else {})
    check(build_answer(images, "b64_json", created_s=7))
    read_events(build_completed_stream(images, CALL, 7), ImageGenCompletedEvent)


def read_events(raw: bytes, kind: Any) -> list[Any]:
    """The events of a stream, as the client library's strictest reading has them; the last one is the end mark."""
    *events, done = sse.SseSplitter().split(raw)
    assert done == b"data: [DONE]\n\n"
    assert b"".join(events) + done == raw
    read = [kind.model_validate(orjson.loads(sse.parse_data(event) or b""), strict=True) for event in events]
    names = [b"event: " + one.type.encode() + b"\n" for one in read]
    assert all(event.startswith(name) for event, name in zip(events, names, strict=True))
    return read


def test_a_stream_has_an_event_a_image_and_says_what_was_used_once() -> None:
    first, last = read_events(
        build_completed_stream(Images((BOTH, BOTH), USED, REPORTED), CALL, 7), ImageGenCompletedEvent
    )
    assert first.usage.total_tokens == first.usage.input_tokens_details.text_tokens == 0
    assert last.usage.model_dump() == DETAILS
    assert {first.b64_json, last.b64_json} == {B64}
    assert (last.created_at, last.background, last.quality, last.size) == (7, "opaque", "high", "1024x1024")
    assert "secret_field" not in last.model_fields_set


def test_what_nobody_told_is_as_it_was_asked_for() -> None:
    (event,) = read_events(build_completed_stream(Images((Image(B64),)), CALL, 7), ImageGenCompletedEvent)
    assert (event.background, event.quality, event.size, event.output_format) == ("auto", "low", "64x32", "png")
    assert event.usage.total_tokens == 0


@table_rows(
    ("head", "reported", "name"),
    [
        (b"\xff\xd8\xff\xe0" + b"x" * 60, "png", "jpeg"),
        (b"RIFF\0\0\0\0WEBP" + b"x" * 60, "png", "webp"),
        (b"GIF89a" + b"x" * 60, "webp", "webp"),
        (b"GIF89a", None, "png"),
    ],
)
def test_a_images_own_bytes_say_what_it_is(head: bytes, reported: str | None, name: str) -> None:
    images = Images((Image(base64.b64encode(head).decode()),), reported={"output_format": reported})
    (event,) = read_events(build_completed_stream(images, CALL, 7), ImageGenCompletedEvent)
    assert event.output_format == name


def test_an_edits_stream_is_one_of_edits() -> None:
    (event,) = read_events(build_completed_stream(Images((Image(B64),)), EDIT, 7), ImageEditCompletedEvent)
    assert event.type == "image_edit.completed"


@given(st.text(max_size=100))
def test_what_is_no_base64_is_still_told(data: str) -> None:
    (event,) = read_events(build_completed_stream(Images((Image(data),)), CALL, 7), ImageGenCompletedEvent)
    assert event.b64_json == data


def test_a_stream_cannot_have_an_address() -> None:
    with pytest.raises(ProviderBadResponse):
        build_completed_stream(Images((Image(url=URL),)), CALL, 7)
