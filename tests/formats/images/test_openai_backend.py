"""Painting over the convention's own API: what is asked, and what of the answer is taken."""

import base64
from typing import Any

import orjson
import pytest

from gateway.domain.capability import UNKNOWN_CAPABILITY, Capability
from gateway.domain.image import ImageForm, Images
from gateway.errors import ImageBlocked, InvalidRequest, ProviderBadResponse
from gateway.formats.images.backend import ImageBackend
from gateway.formats.images.openai import parse_edits_inference, parse_images_inference
from gateway.formats.images.openai_backend import OpenAiImageBackend
from gateway.formats.wire.request_body import Form
from tests.support.image_forms import form, upload
from tests.support.image_providers import draw
from tests.support.table_rows import table_rows

ASK = {"model": "m", "prompt": "a cat"}
B64 = base64.b64encode(draw()).decode()


def open_image_backend(body: dict[str, Any], capability: Capability = UNKNOWN_CAPABILITY) -> ImageBackend:
    """A painter for a generation."""
    return OpenAiImageBackend(parse_images_inference(ASK | body), "gpt", "mark", capability)


def ask(body: dict[str, Any], count: int = 1, capability: Capability = UNKNOWN_CAPABILITY) -> Any:
    """What of the body is sent, besides model and prompt."""
    asked = open_image_backend(body, capability).begin(count)
    assert (asked.method, asked.path, asked.wait_s, asked.repeatable, asked.headers) == ("POST", None, 0.0, False, ())
    assert isinstance(asked.body, dict)
    assert {name: asked.body.pop(name) for name in ASK} == {"model": "gpt", "prompt": "a cat"}
    return asked.body


@table_rows(
    ("body", "count", "answer"),
    [
        ({}, 1, {}),
        ({"n": None}, 1, {}),
        ({"n": 1}, 1, {"n": 1}),
        ({"n": 4}, 4, {"n": 4}),
        ({"n": 4}, 1, {"n": 1}),
        ({"n": 3}, 2, {"n": 2}),
    ],
)
def test_how_many_is_said_where_it_is_not_one_or_the_caller_said_it(
    body: dict[str, Any], count: int, answer: dict[str, Any]
) -> None:
    assert ask(body, count) == answer


def test_a_painting_is_no_stream() -> None:
    assert ask({"stream": True, "partial_images": 2, "quality": "low", "odd": [1]}) == {"quality": "low", "odd": [1]}


@table_rows(
    ("formats", "body", "text"),
    [
        (None, {}, None),
        (None, {"response_format": "url"}, "url"),
        (None, {"response_format": "b64_json"}, "b64_json"),
        (None, {"response_format": "url", "stream": True}, "b64_json"),
        ((), {}, None),
        ((), {"response_format": "b64_json"}, None),
        (("url", "b64_json"), {}, "url"),
        (("url", "b64_json"), {"response_format": "b64_json"}, "b64_json"),
        (("url", "b64_json"), {"stream": True}, "b64_json"),
        (("b64_json",), {}, "b64_json"),
        (("url",), {"response_format": "b64_json"}, "url"),
    ],
)
def test_the_provider_is_asked_for_what_it_can_give_best_for_what_is_wanted(
    formats: tuple[ImageForm, ...] | None, body: dict[str, Any], text: str | None
) -> None:
    asked = ask(body, capability=Capability("*", response_formats=formats))
    assert asked == ({} if text is None else {"response_format": text})


SHAPED = Capability("*", sizes=())


def test_a_shape_is_said_to_models_that_take_no_size() -> None:
    assert ask({"aspect_ratio": "16:9"}, capability=SHAPED) == {"aspect_ratio": "16:9"}


@table_rows(
    ("body", "capability", "param"),
    [
        ({"aspect_ratio": "16:9"}, UNKNOWN_CAPABILITY, "aspect_ratio"),
        ({"aspect_ratio": "16:9"}, Capability("*", sizes=("64x64",)), "aspect_ratio"),
        ({"resolution": "2k"}, SHAPED, "resolution"),
        ({"image_config": {"aspect_ratio": "16:9"}}, SHAPED, "image_config.aspect_ratio"),
    ],
)
def test_a_size_is_said_in_no_other_words(body: dict[str, Any], capability: Capability, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        open_image_backend(body, capability).begin(1)
    assert refused.value.param == param


def test_an_edit_is_a_form() -> None:
    image, mask = upload(), upload("mask")
    inference = parse_edits_inference(form(image, mask, n="2", stream="true", partial_images="1", size="64x64"))
    image_backend: ImageBackend = OpenAiImageBackend(
        inference, "gpt", "mark", Capability("*", response_formats=("b64_json",))
    )
    answer = image_backend.begin(2).body
    assert isinstance(answer, Form)
    assert answer.files == (("image", image), ("mask", mask))
    assert answer.fields == {
        "model": "gpt", "prompt": "a hat", "n": 2, "size": "64x64", "response_format": "b64_json",
    }  # fmt: skip


def test_a_image_backend_can_begin_for_another_attempt_with_the_same_call() -> None:
    inference = parse_images_inference(ASK | {"n": 2, "response_format": "url"})
    before = orjson.dumps(inference.body)
    answers = [OpenAiImageBackend(inference, "gpt", "x", UNKNOWN_CAPABILITY).begin(2).body for _ in range(2)]
    assert answers[0] == answers[1]
    assert orjson.dumps(inference.body) == before


def test_no_more_images_are_taken_than_were_asked_for() -> None:
    image_backend = open_image_backend({"n": 2})
    image_backend.begin(2)
    images = image_backend.read(orjson.dumps({"data": [{"b64_json": B64}] * 5}), ())
    assert isinstance(images, Images)
    assert (len(images.items), images.usage.images) == (2, 2)


def test_faults_come_through_and_nothing_is_left_to_abandon() -> None:
    image_backend = open_image_backend({})
    image_backend.begin(1)
    with pytest.raises(ImageBlocked):
        image_backend.read(b'{"error": {"code": "contentFilter"}}', ())
    with pytest.raises(ProviderBadResponse):
        image_backend.read(b"<html>", ())
    assert image_backend.build_cancel_request() is None
