"""Pictures from chat models that answer with them: ``/chat/completions`` with ``modalities``.

OpenRouter's shape: its "Image Generation" guide (``modalities``, ``image_config`` with ``aspect_ratio`` and
``image_size``, ``message.images[].image_url.url``), the ``ChatAssistantImages`` of its SDK (an address, or base64), and
openrouter.ai/docs/api/reference/errors-and-debugging (errors under status 200, what a block looks like). Other servers
of that kind put the picture into ``message.content``, as a part or as Markdown.
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
from gateway.formats.aspect_ratios import DEFAULT_TIER, parse_shape
from gateway.formats.content_filter import build_block, find_block
from gateway.formats.gemini.images import BLOCKED, build_unpainted, build_words, check_expressible
from gateway.formats.image_backend import ProviderCall
from gateway.formats.image_data import (
    FoundImage,
    build_format_field,
    estimate_usage,
    is_web_url,
    parse_base64,
    parse_url,
)
from gateway.formats.openai.errors import Secrets, parse_error_value
from gateway.formats.request_body import build_data_url

Body = dict[str, Any]

_IN_TEXT = re.compile(
    r"""(data:image/[a-z0-9.+-]{1,64};base64,[^\s()<>"'\]]++)|\]\(\s{0,4}+<?(https?://[^\s()<>"']{1,4096}+)""",
)
"""A data URL anywhere, and the address of a Markdown link, which is a picture's where an exclamation mark begins it."""
_LONGEST_ALT = 512
_BLOCKED_TYPES = frozenset({"content_policy_violation", "refusal"})
_IMAGE_PARTS = frozenset({"image_url", "output_image", "image"})


class ChatImageBackend:
    """See ``painting.Painter``."""

    __slots__ = ("_call", "_capability", "_count", "_image", "_model")

    def __init__(self, call: InferenceRequest, model: str, _mark: str, capability: Capability) -> None:
        self._call = call
        self._model = model
        self._image = call.image or ImageRequest("")
        self._capability = capability
        self._count = 1

    def begin(self, count: int) -> ProviderCall:
        """Ask for a picture. Raises ``InvalidRequest``: for several, a mask, another format, a size it has not."""
        check_expressible(self._call, count)
        self._count = count
        body: Body = {
            "model": self._model,
            "messages": [{"role": "user", "content": self._build_content()}],
            "modalities": ["image", "text"],
        }
        if self._image.size is not None:
            shape = parse_shape(self._image.size, self._capability.sizes)
            body["image_config"] = {"aspect_ratio": shape.ratio}
            if shape.tier != DEFAULT_TIER:
                body["image_config"]["image_size"] = shape.tier
        user = self._call.body.get("user")
        if isinstance(user, str) and user:
            body["user"] = user
        return ProviderCall(body)

    def _build_content(self) -> str | list[Body]:
        sources = [file for file in self._call.files if file.field == "image"]
        if not sources:
            return self._image.prompt
        images = ({"type": "image_url", "image_url": {"url": build_data_url(file)}} for file in sources)
        return [{"type": "text", "text": self._image.prompt}, *images]

    def read(self, raw: bytes, secrets: Secrets) -> Images:
        """The pictures; what the model says beside them is left out."""
        try:
            value = orjson.loads(raw)
        except orjson.JSONDecodeError:
            raise ProviderBadResponse("The provider's answer is not JSON") from None
        _check_error(value, secrets)
        if not isinstance(value, dict):
            raise ProviderBadResponse("The provider's answer is not a JSON object")
        choices = _list_objects(value.get("choices"))
        messages = [message for choice in choices if isinstance(message := choice.get("message"), dict)]
        found = tuple(one for message in messages for one in _find_images(message))[-self._count :]
        if not found:
            raise _find_reason(choices, messages, secrets)
        usage = parse_usage(value.get("usage"), completes=True)
        return Images(
            tuple(one.image for one in found),
            attrs.evolve(usage, images=len(found)) if usage else estimate_usage(self._call, len(found)),
            build_format_field(found),
        )

    def abandon(self) -> None:
        """Nothing goes on there once the connection is closed."""


def _check_error(value: object, secrets: Secrets) -> None:
    """Raise the fault that an answer, or a choice of it, says it is."""
    error = parse_error_value(value, secrets)
    if error is None:
        return
    if _parse_error_type(value) in _BLOCKED_TYPES:
        raise build_block(error.message, secrets)
    raise find_block(value, secrets) or ProviderBadResponse(f"The provider reported an error: {error.message}")


def _parse_error_type(value: object) -> str:
    """OpenRouter's own name of an error; none where it has none."""
    for name in ("error", "metadata"):
        value = value.get(name) if isinstance(value, dict) else None
    return _text(value.get("error_type")) if isinstance(value, dict) else ""


def _find_images(message: Mapping[str, Any]) -> list[FoundImage]:
    """The pictures of a message, from where it has any: several places tell of the same ones."""
    listed = [one for item in _list(message.get("images")) for one in _parse_part(item)]
    if listed:
        return listed
    content = message.get("content")
    if isinstance(content, str):
        return list(_find_in_text(content))
    return [one for part in _list(content) for one in _parse_content_part(part)]


def _parse_content_part(part: object) -> Iterator[FoundImage]:
    if not isinstance(part, dict):
        return
    if _text(part.get("type")) in _IMAGE_PARTS:
        yield from _parse_part(part)
    elif isinstance(part.get("text"), str):
        yield from _find_in_text(part["text"])


def _parse_part(part: object) -> Iterator[FoundImage]:
    """A picture as ``{"image_url": {"url"}}``, ``{"image_url": "…"}``, ``{"url"}``, ``{"b64_json"}`` or an address."""
    url: object = part
    if isinstance(part, dict):
        url = part.get("image_url", part.get("url"))
        if isinstance(url, dict):
            url = url.get("url")
        if url is None and part.get("b64_json") is not None:
            yield FoundImage(Image(data=parse_base64(part["b64_json"])))
    if isinstance(url, str) and url:
        yield parse_url(url)


def _find_in_text(text: str) -> Iterator[FoundImage]:
    """At most ``MAX_IMAGES`` that are shown in a text. A link to one is none."""
    found = 0
    for match in _IN_TEXT.finditer(text):
        data, url = match.groups()
        if data is None and not (is_web_url(url) and _is_shown(text, match.start())):
            continue
        shown = parse_url(data or url)
        yield attrs.evolve(shown, image=attrs.evolve(shown.image, quoted=True))
        found += 1
        if found == MAX_IMAGES:
            return


def _is_shown(text: str, end: int) -> bool:
    """Whether what closes at ``end`` began with an exclamation mark, and is no link behind a picture."""
    opened = text.rfind("![", max(end - _LONGEST_ALT, 0), end)
    return opened >= 0 and text.find("](", opened, end) < 0


def _find_reason(choices: list[Body], messages: list[Body], secrets: Secrets) -> ProviderBadResponse | ImageBlocked:
    """Why there is no picture. Raises what a choice says went wrong."""
    for choice in choices:
        _check_error(choice, secrets)
        reasons = {_text(choice.get("finish_reason")), _text(choice.get("native_finish_reason"))}
        if "content_filter" in reasons or reasons & BLOCKED:
            return build_block(None, secrets)
    refusal = next(filter(None, (_text(message.get("refusal")) for message in messages)), "")
    if refusal:
        return build_block(refusal, secrets)
    said = "".join(_text(message.get("content")) for message in messages)
    return build_unpainted(build_words(said, secrets))


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _list_objects(value: object) -> list[Body]:
    return [item for item in _list(value) if isinstance(item, dict)]


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
