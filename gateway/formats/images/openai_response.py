"""Image answers in the OpenAI API format, whole or as a stream, built from the images of any provider.

Of a provider's other fields, only those of this format with known values are kept.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import orjson

from gateway.domain.image import AUTO_SIZE, Image, ImageForm, Images
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.media import sniff_image
from gateway.domain.operation import OPERATIONS
from gateway.domain.usage import Usage
from gateway.errors import ProviderBadResponse
from gateway.formats.chat.openai.chat import DONE_EVENT
from gateway.formats.images.openai import is_size, parse_details

_REPORTED_CHOICES = {
    "background": frozenset({"transparent", "opaque"}),
    "output_format": frozenset({"png", "webp", "jpeg", "gif", "svg"}),
    "quality": frozenset({"low", "medium", "high", "xhigh", "max"}),
}
_STREAMED_FORMATS = frozenset({"png", "webp", "jpeg"})
_HEAD_CHARS = 64
"""Characters of base64 that are decoded to detect the format: the first 48 bytes of the image."""


def build_answer(images: Images, form: ImageForm, *, created_s: int) -> bytes:
    """Build the answer, without estimated usage. Raises ``ProviderBadResponse`` if an image is not in ``form``."""
    answer: dict[str, Any] = {"created": created_s, "data": [_build_image(image, form) for image in images.items]}
    answer |= {name: value for name, value in _pick_reported_fields(images.reported).items() if value is not None}
    usage = _find_usage(images)
    if usage is not None:
        answer["usage"] = usage
    return orjson.dumps(answer)


def _build_image(image: Image, form: ImageForm) -> dict[str, str]:
    value = image.url if form == "url" else image.data
    if value is None:
        raise ProviderBadResponse("The provider's image is not in the form that was asked for")
    image_body: dict[str, str] = {form: value}
    if image.revised_prompt is not None:
        image_body["revised_prompt"] = image.revised_prompt
    return image_body


def _pick_reported_fields(fields: Mapping[str, Any]) -> dict[str, str | None]:
    reported_fields: dict[str, str | None] = {
        name: _find_choice(fields.get(name), choices) for name, choices in _REPORTED_CHOICES.items()
    }
    return reported_fields | {"size": fields["size"] if is_size(fields.get("size")) else None}


def _find_choice(value: object, choices: frozenset[str]) -> str | None:
    return value if isinstance(value, str) and value in choices else None


def _find_usage(images: Images) -> dict[str, Any] | None:
    usage = images.usage
    if usage.source != "upstream":
        return None
    return parse_details(images.reported.get("usage")) or _build_usage(usage)


def _build_usage(usage: Usage) -> dict[str, Any]:
    """Build the usage object for a usage without details. The whole prompt counts as text."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"image_tokens": 0, "text_tokens": usage.prompt_tokens},
        "output_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def build_completed_stream(images: Images, inference: InferenceRequest, created_s: int) -> bytes:
    """Build the stream for an unstreamed answer: a ``completed`` event for each image, and the end mark.

    The last event has the usage of all images if the provider reported it; other usages are 0. Raises
    ``ProviderBadResponse`` for an image that is a URL.
    """
    kind = "image_edit.completed" if OPERATIONS[inference.operation].edits else "image_generation.completed"
    last_index = len(images.items) - 1
    zero_usage = _build_usage(Usage())
    events: list[bytes] = []
    for index, image in enumerate(images.items):
        data = _build_image(image, "b64_json")["b64_json"]
        usage = _find_usage(images) if index == last_index else None
        event = {
            "type": kind,
            "b64_json": data,
            "created_at": created_s,
            **_build_description(images, inference, data),
            "usage": usage or zero_usage,
        }
        events += (b"event: ", kind.encode(), b"\ndata: ", orjson.dumps(event), b"\n\n")
    return b"".join((*events, DONE_EVENT))


def _build_description(images: Images, inference: InferenceRequest, data: str) -> dict[str, str]:
    reported_fields = _pick_reported_fields(images.reported)
    requested_fields = {
        name: _find_choice(inference.body.get(name), choices) for name, choices in _REPORTED_CHOICES.items()
    }
    size = inference.image.size if inference.image else None
    return {
        "background": reported_fields["background"] or requested_fields["background"] or AUTO_SIZE,
        "output_format": _find_format(data)
        or _find_choice(reported_fields["output_format"], _STREAMED_FORMATS)
        or "png",
        "quality": reported_fields["quality"] or requested_fields["quality"] or AUTO_SIZE,
        "size": reported_fields["size"] or size or AUTO_SIZE,
    }


def _find_format(data: str) -> str | None:
    try:
        head = base64.b64decode(data[:_HEAD_CHARS], validate=True)
    except (binascii.Error, ValueError):
        return None
    return _find_choice((sniff_image(head) or "").removeprefix("image/"), _STREAMED_FORMATS)
