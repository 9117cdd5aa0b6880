"""Pictures as the convention's callers are given them, whoever painted them.

Shapes: the convention's OpenAPI document, ``ImagesResponse``, ``ImageGenCompletedEvent``, ``ImageEditCompletedEvent``.
Nothing passes that a provider said beside what these have.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import orjson

from gateway.domain.image import AUTO, Image, Images, PictureForm
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.media import sniff_image
from gateway.domain.usage import Usage
from gateway.errors import ProviderBadResponse
from gateway.formats.openai.chat import DONE_EVENT
from gateway.formats.openai.images import is_size, parse_details

_WORDS = {
    "background": frozenset({"transparent", "opaque"}),
    "output_format": frozenset({"png", "webp", "jpeg", "gif", "svg"}),
    "quality": frozenset({"low", "medium", "high", "xhigh", "max"}),
}
_STREAMED_FORMATS = frozenset({"png", "webp", "jpeg"})
_HEAD_CHARS = 64
"""Of base64: a picture's first 48 bytes, which say what it is."""


def build_answer(images: Images, form: PictureForm, *, created_s: int) -> bytes:
    """The answer; every picture has to be there in the ``form`` that is wanted, or an ``ProviderBadResponse`` is
    raised.

    ``created_s`` is Unix time. An estimate of what was used is not told.
    """
    answer: dict[str, Any] = {"created": created_s, "data": [_build_image(one, form) for one in images.items]}
    answer |= {name: word for name, word in _list_told(images.told).items() if word is not None}
    usage = _find_usage(images)
    if usage is not None:
        answer["usage"] = usage
    return orjson.dumps(answer)


def _build_image(image: Image, form: PictureForm) -> dict[str, str]:
    value = image.url if form == "url" else image.data
    if value is None:
        raise ProviderBadResponse("The provider's picture is not in the form that was asked for")
    written: dict[str, str] = {form: value}
    if image.revised_prompt is not None:
        written["revised_prompt"] = image.revised_prompt
    return written


def _list_told(told: Mapping[str, Any]) -> dict[str, str | None]:
    """What the pictures' provider said of them in the convention's words; None for what it did not."""
    found: dict[str, str | None] = {name: _find_word(told.get(name), words) for name, words in _WORDS.items()}
    return found | {"size": told["size"] if is_size(told.get("size")) else None}


def _find_word(value: object, words: frozenset[str]) -> str | None:
    return value if isinstance(value, str) and value in words else None


def _find_usage(images: Images) -> dict[str, Any] | None:
    used = images.usage
    if used.source != "upstream":
        return None
    return parse_details(images.told.get("usage")) or _build_usage(used)


def _build_usage(used: Usage) -> dict[str, Any]:
    """A usage whose parts nobody told: the whole prompt counts as text."""
    return {
        "input_tokens": used.prompt_tokens,
        "input_tokens_details": {"image_tokens": 0, "text_tokens": used.prompt_tokens},
        "output_tokens": used.completion_tokens,
        "total_tokens": used.prompt_tokens + used.completion_tokens,
    }


def build_completed(images: Images, call: InferenceRequest, created_s: int) -> bytes:
    """The stream that says what a whole answer does: a ``completed`` event for each picture, and the end mark.

    What was used is in the last event; the others say that they used nothing. Raises ``ProviderBadResponse`` where a
    picture is there as an address only.
    """
    kind = "image_edit.completed" if call.operation == "image_edits" else "image_generation.completed"
    last = len(images.items) - 1
    nothing = _build_usage(Usage())
    written: list[bytes] = []
    for number, image in enumerate(images.items):
        data = _build_image(image, "b64_json")["b64_json"]
        usage = _find_usage(images) if number == last else None
        event = {
            "type": kind,
            "b64_json": data,
            "created_at": created_s,
            **_describe(images, call, data),
            "usage": usage or nothing,
        }
        written += (b"event: ", kind.encode(), b"\ndata: ", orjson.dumps(event), b"\n\n")
    return b"".join((*written, DONE_EVENT))


def _describe(images: Images, call: InferenceRequest, data: str) -> dict[str, str]:
    """What a picture is: by its provider's word, else as it was asked for."""
    told = _list_told(images.told)
    asked = {name: _find_word(call.body.get(name), words) for name, words in _WORDS.items()}
    size = call.image.size if call.image else None
    return {
        "background": told["background"] or asked["background"] or AUTO,
        "output_format": _find_format(data) or _find_word(told["output_format"], _STREAMED_FORMATS) or "png",
        "quality": told["quality"] or asked["quality"] or AUTO,
        "size": told["size"] or size or AUTO,
    }


def _find_format(data: str) -> str | None:
    """What a picture's own first bytes say that it is."""
    try:
        head = base64.b64decode(data[:_HEAD_CHARS], validate=True)
    except (binascii.Error, ValueError):
        return None
    return _find_word((sniff_image(head) or "").removeprefix("image/"), _STREAMED_FORMATS)
