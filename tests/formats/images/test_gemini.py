"""Images from Gemini's own models: what only this image backend does. The rest: ``test_backends.py``."""

import base64
from typing import Any

import orjson
import pytest

from gateway.domain.capability import UNKNOWN_CAPABILITY, Capability
from gateway.errors import InvalidRequest
from gateway.formats.images.aspect_ratios import (
    FIRST_GENERATION_SIZES,
    SMALL_SIZES,
    USUAL_SIZES,
    WIDE_SIZES,
    WIDEST_SIZES,
    parse_shape,
)
from gateway.formats.images.gemini import GeminiImageBackend
from gateway.formats.usage.prompt_tokens import estimate_prompt
from tests.support.gemini_images import Refused, read_question, write_answer
from tests.support.image_calls import image_call, read_sent
from tests.support.image_providers import draw

MODEL = "gemini-2.5-flash-image"
PNG = draw()
BASE64 = base64.b64encode(PNG).decode()


def begin(call: Any = None, capability: Capability = UNKNOWN_CAPABILITY) -> GeminiImageBackend:
    image_backend = GeminiImageBackend(call or image_call(), MODEL, "mark", capability)
    image_backend.begin(1)
    return image_backend


def answer(*parts: Any, **candidate: Any) -> bytes:
    return orjson.dumps({"candidates": [{"content": {"role": "model", "parts": list(parts)}, **candidate}]})


def inline(data: Any = BASE64, media_type: str = "image/png", **part: Any) -> dict[str, Any]:
    return {"inlineData": {"mimeType": media_type, "data": data}, **part}


def test_every_size_has_the_shape_of_its_ratio() -> None:
    """None of the tables has a slip, and none has one that cannot be told."""
    for size in {*FIRST_GENERATION_SIZES, *SMALL_SIZES, *USUAL_SIZES, *WIDE_SIZES, *WIDEST_SIZES}:
        width, height = map(int, size.split("x"))
        across, down = map(int, parse_shape(size, None).ratio.split(":"))
        assert width / height == pytest.approx(across / down, rel=0.04), size


def test_begin_names_the_sizes_that_are_allowed() -> None:
    with pytest.raises(InvalidRequest, match=r"one of 1024x1024, 832x1248, .*, 1536x672$"):
        begin(image_call(size="7x7"), Capability("*", sizes=FIRST_GENERATION_SIZES))


def test_read_estimates_invalid_usage() -> None:
    raw = write_answer(PNG)
    raw["usageMetadata"]["candidatesTokenCount"] = -5
    inference = image_call("a cat on a mat")
    usage = begin(inference).read(orjson.dumps(raw), ()).usage
    assert (usage.completion_tokens, usage.images, usage.source) == (1290, 1, "estimate")
    assert usage.prompt_tokens == estimate_prompt(inference) >= 4


def test_read_takes_a_large_image() -> None:
    """Twenty megabytes, in time that grows with the size alone: what is quadratic would not end here."""
    data = "A" * (20 * 1024 * 1024 // 3 * 4)
    assert begin().read(answer(inline(data)), ()).items[0].data == data


def test_the_fake_refuses_a_tier_that_the_model_does_not_make() -> None:
    sent = read_sent(GeminiImageBackend(image_call(size="2048x2048"), MODEL, "mark", UNKNOWN_CAPABILITY).begin(1))
    with pytest.raises(Refused, match="imageSize"):
        read_question(sent)
