"""Pictures from Gemini's own models: ``:generateContent`` with pictures in the answer, and in the question for an edit.

ai.google.dev/gemini-api/docs/image-generation (how they are asked for, sizes, how many pictures a model takes in) and
ai.google.dev/api/generate-content (``ImageConfig``, ``Candidate``, ``FinishReason``, ``PromptFeedback``). A model makes
one candidate, in PNG or JPEG as it likes; there is no mask, and no transparency.
"""

from collections.abc import Iterator
from typing import Any

import orjson

from gateway.domain.capability import Capability
from gateway.domain.image import Image, ImageRequest, Images
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage, parse_count
from gateway.errors import ImageBlocked, InvalidRequest, ProviderBadResponse
from gateway.formats.aspect_ratios import DEFAULT_TIER, parse_shape
from gateway.formats.content_filter import build_block, find_block
from gateway.formats.image_backend import ProviderCall
from gateway.formats.image_data import FoundImage, build_format_field, estimate_usage, parse_base64, parse_media_type
from gateway.formats.openai.errors import Secrets, mask, parse_error_value
from gateway.formats.request_body import Inline

Body = dict[str, Any]

BLOCKED = frozenset(
    {"SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT",
     "IMAGE_RECITATION", "ESCALATION", "MODEL_ARMOR"},
)  # fmt: skip
"""Finish reasons that say a filter took the picture away. NO_IMAGE and IMAGE_OTHER are failures of the model."""
_UNSAID = frozenset({"", "BLOCK_REASON_UNSPECIFIED", "FINISH_REASON_UNSPECIFIED", "STOP"})
_FORMATS = ("jpeg", "png")
_UNSAYABLE = ("svg", "frame_count", "frame_duration_ms")
_SHOWN_CHARS = 300


class GeminiImageBackend:
    """See ``painting.Painter``."""

    __slots__ = ("_call", "_capability", "_count", "_image")

    def __init__(self, call: InferenceRequest, _model: str, _mark: str, capability: Capability) -> None:
        self._call = call
        self._image = call.image or ImageRequest("")
        self._capability = capability
        self._count = 1

    def begin(self, count: int) -> ProviderCall:
        """Ask for a picture. Raises ``InvalidRequest``: for several, a mask, another format, a size it has not."""
        check_expressible(self._call, count)
        self._count = count
        parts: list[Body] = [{"text": self._image.prompt}]
        parts += (
            {"inlineData": {"mimeType": file.media_type, "data": Inline(file)}}
            for file in self._call.files
            if file.field == "image"
        )
        config: Body = {"responseModalities": ["TEXT", "IMAGE"]}
        if self._image.size is not None:
            shape = parse_shape(self._image.size, self._capability.sizes)
            config["imageConfig"] = {"aspectRatio": shape.ratio}
            if shape.tier != DEFAULT_TIER:  # models of one tier refuse the field
                config["imageConfig"]["imageSize"] = shape.tier
        return ProviderCall({"contents": [{"role": "user", "parts": parts}], "generationConfig": config})

    def read(self, raw: bytes, secrets: Secrets) -> Images:
        """The pictures; what the model says beside them is left out."""
        try:
            value = orjson.loads(raw)
        except orjson.JSONDecodeError:
            raise ProviderBadResponse("The provider's answer is not JSON") from None
        _check_error(value, secrets)
        if not isinstance(value, dict):
            raise ProviderBadResponse("The provider's answer is not a JSON object")
        _check_prompt(value.get("promptFeedback"), secrets)
        candidates = _list_objects(value.get("candidates"))
        # A model may paint drafts on the way; the last is what it meant.
        found = tuple(_find_images(candidates))[-self._count :]
        if not found:
            raise _find_reason(candidates, secrets)
        usage = _parse_usage(value.get("usageMetadata"), len(found))
        return Images(
            tuple(one.image for one in found),
            usage or estimate_usage(self._call, len(found)),
            build_format_field(found),
        )

    def abandon(self) -> None:
        """Nothing goes on there once the connection is closed."""


def check_expressible(call: InferenceRequest, count: int) -> None:
    """Raise ``InvalidRequest`` for what a model that answers with pictures has no words for.

    Shades of how (quality, style, moderation…) are left to the model.
    """
    if count != 1:
        raise InvalidRequest("'n' must be 1", param="n")
    stray = next((file.field for file in call.files if file.field != "image"), None)
    if stray is not None:
        raise InvalidRequest(f"The model takes no '{stray}'", param=stray)
    if call.body.get("background") == "transparent":
        raise InvalidRequest("'background' must be opaque or auto", param="background")
    wanted = call.body.get("output_format")
    if wanted is not None and wanted not in _FORMATS:
        raise InvalidRequest(f"'output_format' must be one of {', '.join(_FORMATS)}", param="output_format")
    unsayable = next((name for name in _UNSAYABLE if call.body.get(name) is not None), None)
    if unsayable is not None:
        raise InvalidRequest(f"The model takes no '{unsayable}'", param=unsayable)


def _check_error(value: object, secrets: Secrets) -> None:
    error = parse_error_value(value, secrets)
    if error is None:
        return
    raise find_block(value, secrets) or ProviderBadResponse(f"The provider reported an error: {error.message}")


def _check_prompt(feedback: object, secrets: Secrets) -> None:
    reason = _text(feedback.get("blockReason")) if isinstance(feedback, dict) else ""
    if reason not in _UNSAID:
        raise build_block(reason, secrets)


def _find_images(candidates: list[Body]) -> Iterator[FoundImage]:
    """Every picture that is not a thought. Raises ``ProviderBadResponse`` for one that is none."""
    for part in _list_parts(candidates):
        blob = part.get("inlineData", part.get("inline_data"))
        if part.get("thought") is True or not isinstance(blob, dict):
            continue
        media_type = parse_media_type(blob.get("mimeType", blob.get("mime_type")))
        if media_type is not None:
            yield FoundImage(Image(data=parse_base64(blob.get("data"))), media_type)


def _find_reason(candidates: list[Body], secrets: Secrets) -> ProviderBadResponse | ImageBlocked:
    """Why there is no picture."""
    reasons = [_text(candidate.get("finishReason")) for candidate in candidates]
    explained = next(filter(None, (_text(candidate.get("finishMessage")) for candidate in candidates)), "")
    blocked = next((reason for reason in reasons if reason in BLOCKED), None)
    if blocked is not None:
        return build_block(f"{blocked}. {explained}", secrets)
    said = "".join(_text(part.get("text")) for part in _list_parts(candidates) if part.get("thought") is not True)
    reason = next((reason for reason in reasons if reason not in _UNSAID), "")
    if reason:
        return build_unpainted(f"The model made no picture: {show(f'{reason} {explained or said}', secrets)}")
    return build_unpainted(build_words(said, secrets))


def build_words(said: str, secrets: Secrets) -> str:
    """A sentence on an answer without pictures, in which the model ``said`` something, or nothing."""
    if said.strip():
        return f"The model answered in words instead of with a picture: {show(said, secrets)}"
    return "The provider's answer has no pictures"


def build_unpainted(message: str) -> ProviderBadResponse:
    """A fault of the model's, which says nothing against the channel."""
    fault = ProviderBadResponse(message)
    fault.failure_scope = "nobody"
    fault.answered = True
    return fault


def _parse_usage(raw: object, images: int) -> Usage | None:
    """The counts; None where they cannot be believed. A count of zero is left out of the JSON."""
    if not isinstance(raw, dict) or raw.get("promptTokenCount") is None or raw.get("candidatesTokenCount") is None:
        return None
    names = ("promptTokenCount", "toolUsePromptTokenCount", "candidatesTokenCount", "thoughtsTokenCount")
    counts = [parse_count(0 if raw.get(name) is None else raw[name]) for name in names]
    if None in counts:
        return None
    asked, found, answered, thought = (count or 0 for count in counts)
    cached = parse_count(raw.get("cachedContentTokenCount")) or 0
    return Usage(asked + found, answered + thought, min(cached, asked + found), "upstream", images=images)


def _list_parts(candidates: list[Body]) -> Iterator[Body]:
    for candidate in candidates:
        content = candidate.get("content")
        yield from _list_objects(content.get("parts") if isinstance(content, dict) else None)


def _list_objects(value: object) -> list[Body]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def show(text: str, secrets: Secrets) -> str:
    """As much of what a model said as goes into a sentence for the caller."""
    return mask(text[: _SHOWN_CHARS * 4], secrets)[:_SHOWN_CHARS]
