"""Images from Gemini's models: ``:generateContent`` with images in the answer, and in the prompt for an edit.

Sources: ai.google.dev/gemini-api/docs/image-generation (fields, sizes, maximum number of input images) and
ai.google.dev/api/generate-content (``ImageConfig``, ``Candidate``, ``FinishReason``, ``PromptFeedback``). A model
returns one candidate and chooses PNG or JPEG itself. Masks and transparency are not supported.
"""

from collections.abc import Iterator
from typing import Any

import attrs
import orjson

from gateway.domain.capability import Capability
from gateway.domain.image import Image, ImageRequest, Images
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage
from gateway.errors import ImageBlocked, InvalidRequest, ProviderBadResponse
from gateway.formats.chat.gemini.usage_metadata import parse_usage_metadata
from gateway.formats.errors.content_filter import build_block, find_block
from gateway.formats.errors.openai import Secrets, mask, parse_error_value
from gateway.formats.images.aspect_ratios import DEFAULT_TIER, parse_shape
from gateway.formats.images.backend import ImageBackend, ProviderRequest
from gateway.formats.images.image_data import (
    FoundImage,
    build_format_field,
    estimate_usage,
    parse_base64,
    parse_media_type,
)
from gateway.formats.images.task import check_format, check_plain_image
from gateway.formats.wire.json_values import as_object, as_text, list_objects
from gateway.formats.wire.request_body import InlineUpload

Body = dict[str, Any]

BLOCK_REASONS = frozenset(
    {"SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT",
     "IMAGE_RECITATION", "ESCALATION", "MODEL_ARMOR"},
)  # fmt: skip
"""Finish reasons of a content filter. NO_IMAGE and IMAGE_OTHER are failures of the model, so they are not listed."""
_UNSPECIFIED_REASONS = frozenset({"", "BLOCK_REASON_UNSPECIFIED", "FINISH_REASON_UNSPECIFIED", "STOP"})
_OUTPUT_FORMATS = ("jpeg", "png")

_MAX_EXCERPT_CHARS = 300


class GeminiImageBackend(ImageBackend):
    """Images from a Gemini model."""

    __slots__ = ("_capability", "_count", "_image_request", "_inference")

    def __init__(self, inference: InferenceRequest, _model: str, _boundary_mark: str, capability: Capability) -> None:
        self._inference = inference
        self._image_request = inference.image or ImageRequest("")
        self._capability = capability
        self._count = 1

    def begin(self, count: int) -> ProviderRequest:
        """Build the only request. Raises ``InvalidRequest`` for options that the model does not support."""
        check_expressible(self._inference, count)
        self._count = count
        parts: list[Body] = [{"text": self._image_request.prompt}]
        parts += (
            {"inlineData": {"mimeType": file.media_type, "data": InlineUpload(file)}}
            for file in self._inference.files
            if file.field == "image"
        )
        config: Body = {"responseModalities": ["TEXT", "IMAGE"]}
        if self._image_request.size is not None:
            shape = parse_shape(self._image_request.size, self._capability.sizes)
            config["imageConfig"] = {"aspectRatio": shape.ratio}
            if shape.tier != DEFAULT_TIER:  # models with one tier reject the field
                config["imageConfig"]["imageSize"] = shape.tier
        return ProviderRequest({"contents": [{"role": "user", "parts": parts}], "generationConfig": config})

    def read(self, raw: bytes, secrets: Secrets) -> Images:
        try:
            value = orjson.loads(raw)
        except orjson.JSONDecodeError:
            raise ProviderBadResponse("The provider's answer is not JSON") from None
        _check_error(value, secrets)
        if not isinstance(value, dict):
            raise ProviderBadResponse("The provider's answer is not a JSON object")
        _check_prompt(value.get("promptFeedback"), secrets)
        candidates = list_objects(value.get("candidates"))
        # Only the last image is the result: a model may return drafts first.
        images = tuple(_find_images(candidates))[-self._count :]
        if not images:
            raise _find_reason(candidates, secrets)
        usage = _parse_usage(value.get("usageMetadata"), len(images))
        return Images(
            tuple(image.image for image in images),
            usage or estimate_usage(self._inference, len(images)),
            build_format_field(images),
        )


def check_expressible(inference: InferenceRequest, count: int) -> None:
    """Raise ``InvalidRequest`` for unsupported features. Fields that only tune the result (quality, style…) pass."""
    if count != 1:
        raise InvalidRequest("'n' must be 1", param="n")
    check_plain_image(inference)
    check_format(inference.body.get("output_format"), _OUTPUT_FORMATS)


def _check_error(value: object, secrets: Secrets) -> None:
    error = parse_error_value(value, secrets)
    if error is None:
        return
    raise find_block(value, secrets) or ProviderBadResponse(f"The provider reported an error: {error.message}")


def _check_prompt(feedback: object, secrets: Secrets) -> None:
    reason = as_text(as_object(feedback).get("blockReason"))
    if reason not in _UNSPECIFIED_REASONS:
        raise build_block(reason, secrets)


def _find_images(candidates: list[Body]) -> Iterator[FoundImage]:
    for part in _list_parts(candidates):
        blob = part.get("inlineData", part.get("inline_data"))
        if part.get("thought") is True or not isinstance(blob, dict):
            continue
        media_type = parse_media_type(blob.get("mimeType", blob.get("mime_type")))
        if media_type is not None:
            yield FoundImage(Image(data=parse_base64(blob.get("data"))), media_type)


def _find_reason(candidates: list[Body], secrets: Secrets) -> ProviderBadResponse | ImageBlocked:
    reasons = [as_text(candidate.get("finishReason")) for candidate in candidates]
    explanation = next(filter(None, (as_text(candidate.get("finishMessage")) for candidate in candidates)), "")
    block_reason = next((reason for reason in reasons if reason in BLOCK_REASONS), None)
    if block_reason is not None:
        return build_block(f"{block_reason}. {explanation}", secrets)
    text = "".join(as_text(part.get("text")) for part in _list_parts(candidates) if part.get("thought") is not True)
    reason = next((reason for reason in reasons if reason not in _UNSPECIFIED_REASONS), "")
    if reason:
        return make_missing_image_error(
            f"The model made no image: {mask_text(f'{reason} {explanation or text}', secrets)}"
        )
    return make_missing_image_error(build_text_answer(text, secrets))


def build_text_answer(text: str, secrets: Secrets) -> str:
    """Return the error message for an answer that has ``text``, perhaps an empty one, instead of images."""
    if text.strip():
        return f"The model answered in words instead of with an image: {mask_text(text, secrets)}"
    return "The provider's answer has no images"


def make_missing_image_error(message: str) -> ProviderBadResponse:
    """Build the error for an answer without an image: the model's failure, which does not count against the channel."""
    error = ProviderBadResponse(message)
    error.failure_scope = "nobody"
    error.answered = True
    return error


def _parse_usage(raw: object, image_count: int) -> Usage | None:
    report = parse_usage_metadata(raw)
    if report is None or as_object(raw).get("candidatesTokenCount") is None:
        return None
    return attrs.evolve(report.usage, images=image_count, reasoning_tokens=0)


def _list_parts(candidates: list[Body]) -> Iterator[Body]:
    for candidate in candidates:
        yield from list_objects(as_object(candidate.get("content")).get("parts"))


def mask_text(text: str, secrets: Secrets) -> str:
    """Return a model's text masked and cut for an error message."""
    return mask(text[: _MAX_EXCERPT_CHARS * 4], secrets)[:_MAX_EXCERPT_CHARS]
