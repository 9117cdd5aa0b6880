"""Images from chat models: ``/chat/completions`` with ``modalities``.

OpenRouter's shape: its "Image Generation" guide (``modalities``, ``image_config`` with ``aspect_ratio`` and
``image_size``, ``message.images[].image_url.url``), the ``ChatAssistantImages`` of its SDK (an address, or base64), and
openrouter.ai/docs/api/reference/errors-and-debugging (errors with status 200, the shape of a refusal by a content
filter). Other servers put the image into ``message.content``, as a content part or as Markdown.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import orjson

from gateway.domain.capability import Capability
from gateway.domain.image import MAX_IMAGES, Image, ImageRequest, Images
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import parse_usage
from gateway.errors import ImageBlocked, ProviderBadResponse
from gateway.formats.errors.content_filter import build_block, find_block
from gateway.formats.errors.openai import Secrets, parse_error_value
from gateway.formats.images import image_data
from gateway.formats.images.aspect_ratios import DEFAULT_TIER, parse_shape
from gateway.formats.images.backend import ImageBackend, ProviderRequest
from gateway.formats.images.gemini import BLOCK_REASONS, build_text_answer, check_expressible, make_missing_image_error
from gateway.formats.wire.json_values import as_list, as_object, as_text, list_objects
from gateway.formats.wire.request_body import build_data_url

Body = dict[str, Any]

_IMAGE_IN_TEXT = re.compile(
    r"""(data:image/[a-z0-9.+-]{1,64};base64,[^\s()<>"'\]]++)|\]\(\s{0,4}+<?(https?://[^\s()<>"']{1,4096}+)"""
)
"""A data URL, or the address of a Markdown link; the link is an image if it begins with an exclamation mark."""
_MAX_ALT_CHARS = 512
_BLOCK_ERROR_TYPES = frozenset({"content_policy_violation", "refusal"})
_IMAGE_PART_TYPES = frozenset({"image_url", "output_image", "image"})


class ChatImageBackend(ImageBackend):
    """Images from a chat model."""

    __slots__ = ("_capability", "_count", "_image_request", "_inference", "_model")

    def __init__(self, inference: InferenceRequest, model: str, _boundary_mark: str, capability: Capability) -> None:
        self._inference = inference
        self._model = model
        self._image_request = inference.image or ImageRequest("")
        self._capability = capability
        self._count = 1

    def begin(self, count: int) -> ProviderRequest:
        """Build the only request. Raises ``InvalidRequest`` for options that the model does not support."""
        check_expressible(self._inference, count)
        self._count = count
        body: Body = {
            "model": self._model,
            "messages": [{"role": "user", "content": self._build_content()}],
            "modalities": ["image", "text"],
        }
        if self._image_request.size is not None:
            shape = parse_shape(self._image_request.size, self._capability.sizes)
            body["image_config"] = {"aspect_ratio": shape.ratio}
            if shape.tier != DEFAULT_TIER:
                body["image_config"]["image_size"] = shape.tier
        user = self._inference.body.get("user")
        if isinstance(user, str) and user:
            body["user"] = user
        return ProviderRequest(body)

    def _build_content(self) -> str | list[Body]:
        sources = [file for file in self._inference.files if file.field == "image"]
        if not sources:
            return self._image_request.prompt
        images = ({"type": "image_url", "image_url": {"url": build_data_url(file)}} for file in sources)
        return [{"type": "text", "text": self._image_request.prompt}, *images]

    def read(self, raw: bytes, secrets: Secrets) -> Images:
        try:
            value = orjson.loads(raw)
        except orjson.JSONDecodeError:
            raise ProviderBadResponse("The provider's answer is not JSON") from None
        _check_error(value, secrets)
        if not isinstance(value, dict):
            raise ProviderBadResponse("The provider's answer is not a JSON object")
        choices = list_objects(value.get("choices"))
        messages = [message for choice in choices if isinstance(message := choice.get("message"), dict)]
        images = tuple(image for message in messages for image in _find_images(message))[-self._count :]
        if not images:
            raise _find_reason(choices, messages, secrets)
        usage = parse_usage(value.get("usage"), completes=True)
        return Images(
            tuple(image.image for image in images),
            attrs.evolve(usage, images=len(images))
            if usage
            else image_data.estimate_usage(self._inference, len(images)),
            image_data.build_format_field(images),
        )


def _check_error(value: object, secrets: Secrets) -> None:
    error = parse_error_value(value, secrets)
    if error is None:
        return
    if _parse_error_type(value) in _BLOCK_ERROR_TYPES:
        raise build_block(error.message, secrets)
    raise find_block(value, secrets) or ProviderBadResponse(f"The provider reported an error: {error.message}")


def _parse_error_type(value: object) -> str:
    return as_text(as_object(as_object(as_object(value).get("error")).get("metadata")).get("error_type"))


def _find_images(message: Mapping[str, Any]) -> list[image_data.FoundImage]:
    """Return the images of a message from the first field that has any: several fields may repeat the same images.

    Raises ``ProviderBadResponse`` for an invalid image.
    """
    images = [image for item in as_list(message.get("images")) for image in _parse_image_part(item)]
    if images:
        return images
    content = message.get("content")
    if isinstance(content, str):
        return list(_find_in_text(content))
    return [image for part in as_list(content) for image in _parse_content_part(part)]


def _parse_content_part(part: object) -> Iterator[image_data.FoundImage]:
    if not isinstance(part, dict):
        return
    if as_text(part.get("type")) in _IMAGE_PART_TYPES:
        yield from _parse_image_part(part)
    elif isinstance(part.get("text"), str):
        yield from _find_in_text(part["text"])


def _parse_image_part(part: object) -> Iterator[image_data.FoundImage]:
    """Parse ``{"image_url": {"url"}}``, ``{"image_url": "…"}``, ``{"url"}``, ``{"b64_json"}`` or a plain address.

    Yields nothing for any other part. Raises ``ProviderBadResponse`` for an invalid image.
    """
    url: object = part
    if isinstance(part, dict):
        url = part.get("image_url", part.get("url"))
        if isinstance(url, dict):
            url = url.get("url")
        if url is None and part.get("b64_json") is not None:
            yield image_data.FoundImage(Image(data=image_data.parse_base64(part["b64_json"])))
    if isinstance(url, str) and url:
        yield image_data.parse_url(url)


def _find_in_text(text: str) -> Iterator[image_data.FoundImage]:
    count = 0
    for match in _IMAGE_IN_TEXT.finditer(text):
        data, url = match.groups()
        if data is None and not (image_data.is_web_url(url) and _is_image_markup(text, match.start())):
            continue
        image = image_data.parse_url(data or url)
        yield attrs.evolve(image, image=attrs.evolve(image.image, quoted=True))
        count += 1
        if count == MAX_IMAGES:
            return


def _is_image_markup(text: str, alt_end: int) -> bool:
    """Return whether the Markdown whose text ends at ``alt_end`` is an image, and not a link after an image."""
    alt_start = text.rfind("![", max(alt_end - _MAX_ALT_CHARS, 0), alt_end)
    return alt_start >= 0 and text.find("](", alt_start, alt_end) < 0


def _find_reason(choices: list[Body], messages: list[Body], secrets: Secrets) -> ProviderBadResponse | ImageBlocked:
    for choice in choices:
        _check_error(choice, secrets)
        reasons = {as_text(choice.get("finish_reason")), as_text(choice.get("native_finish_reason"))}
        if "content_filter" in reasons or reasons & BLOCK_REASONS:
            return build_block(None, secrets)
    refusal = next(filter(None, (as_text(message.get("refusal")) for message in messages)), "")
    if refusal:
        return build_block(refusal, secrets)
    text = "".join(as_text(message.get("content")) for message in messages)
    return make_missing_image_error(build_text_answer(text, secrets))
