"""Find the URLs of images and files in a prompt, and replace them by the fetched data.

Shapes: OpenAI's OpenAPI document, ``ChatCompletionRequestMessageContentPartImage``, ``InputImageContent`` and
``InputFileContent``; Anthropic's ``URLImageSource`` and ``URLPDFSource``; Gemini's ``FileData``.
"""

import base64
from collections.abc import Iterator
from typing import Any, Literal, TypeGuard

import attrs

from gateway.frozen import frozen

Body = dict[str, Any]

_PROMPT_FIELDS = ("messages", "input", "contents")
_MODEL_KINDS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use", "function_call", "custom_tool_call"})
"""Types of items written by a model, in which a URL is only text."""
_CLIENT_DATA_FIELDS = frozenset({"functionCall", "response", "tool_calls", "arguments"})
_WEB_SCHEMES = ("http://", "https://")
_GOOGLE_FILES_PATH = "/v1beta/files/"
_FETCHED_TYPES = ("image/", "text/", "application/pdf")
_PLACEHOLDER_TEXT = "[A file that is not available any more]"
_TEXT_TYPES_BY_KIND = {"image_url": "text", "file": "text", "image": "text", "document": "text",
                       "input_image": "input_text", "input_file": "input_text"}  # fmt: skip
"""Types of media parts, with the type of the text part that replaces each."""


@frozen
class FetchedMedia:
    """Fetched content, as bytes of text (``raw``) or in base64 (``data``), or why it is unusable (``error``)."""

    media_type: str = ""
    raw: bytes = attrs.field(default=b"", repr=False)
    data: str = attrs.field(default="", repr=False)
    error: str = ""


@frozen
class MediaAddress:
    """The URL of an image or file in a body.

    Attributes:
        is_past: whether its part belongs to an earlier turn.
    """

    url: str
    kind: Literal["image", "file"]
    param: str
    is_past: bool
    _part: Body
    _holder: Body
    _key: str

    def put(self, media: FetchedMedia) -> None:
        media_type, data = media.media_type, media.data
        url = f"data:{media_type};base64,{data}"
        if self._key == "fileData":
            del self._holder["fileData"]
            self._holder["inlineData"] = {"mimeType": media_type, "data": data}
        elif self._key == "file_url":
            del self._holder["file_url"]
            self._holder["file_data"] = url
            self._holder.setdefault("filename", "document.pdf" if media_type == "application/pdf" else "document.txt")
        elif self._key != "source":
            self._holder[self._key] = url
        elif media_type.startswith("text/"):
            text = media.raw.decode("utf-8", "replace")
            self._holder["source"] = {"type": "text", "media_type": "text/plain", "data": text}
        else:
            self._holder["source"] = {"type": "base64", "media_type": media_type, "data": data}

    def leave_out(self) -> str | None:
        """Replace the part by a placeholder text and return its former type; None if no text may take its place."""
        kind = "fileData" if self._key == "fileData" else self._part.get("type")
        if kind != "fileData" and kind not in _TEXT_TYPES_BY_KIND:
            return None
        self._part.clear()
        self._part.update(
            {"text": _PLACEHOLDER_TEXT} | ({"type": _TEXT_TYPES_BY_KIND[kind]} if kind in _TEXT_TYPES_BY_KIND else {})
        )
        return str(kind)


def list_addresses(body: Body) -> Iterator[MediaAddress]:
    """Yield the URLs of images and files in a validated body, in order."""
    for name in _PROMPT_FIELDS:
        items = body.get(name)
        messages = items if isinstance(items, list) else []
        last_answer_index = max((index for index, item in enumerate(messages) if _is_answer(item)), default=-1)
        for index, item in enumerate(messages):
            yield from _list_in_value(item, f"{name}[{index}]", is_past=index <= last_answer_index)


def copy_prompt(body: Body) -> Body:
    """Return a copy of ``body`` whose prompt may be modified; only strings are shared."""
    return body | {name: _copy_value(body[name]) for name in _PROMPT_FIELDS if name in body}


def _copy_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _copy_value(member) for name, member in value.items()}
    return [_copy_value(member) for member in value] if isinstance(value, list) else value


def _is_answer(item: object) -> bool:
    if not isinstance(item, dict):
        return False
    return item.get("role") in ("assistant", "model") or str(item.get("type")).endswith("_call")


def _list_in_value(value: Any, param: str, *, is_past: bool) -> Iterator[MediaAddress]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _list_in_value(item, f"{param}[{index}]", is_past=is_past)
    elif isinstance(value, dict) and value.get("type") not in _MODEL_KINDS:
        address_field = _find_address_field(value)
        if address_field is not None:
            kind, holder, key, path, url = address_field
            yield MediaAddress(url, kind, f"{param}.{path}", is_past, value, holder, key)
            return
        for name, member in value.items():
            if isinstance(member, list | dict) and name not in _CLIENT_DATA_FIELDS:
                yield from _list_in_value(member, f"{param}.{name}", is_past=is_past)


AddressField = tuple[Literal["image", "file"], Body, str, str, str]
"""The kind, the object and its field to replace, the place of the URL within the part, and the URL."""


def _find_address_field(part: Body) -> AddressField | None:
    image, file, source = part.get("image_url"), part.get("file"), part.get("source")
    if _is_address(image):
        return "image", part, "image_url", "image_url", image
    if isinstance(image, dict) and _is_address(image.get("url")):
        return "image", image, "url", "image_url.url", image["url"]
    if isinstance(file, dict) and _is_address(file.get("file_data")):
        return "file", file, "file_data", "file.file_data", file["file_data"]
    if _is_address(part.get("file_url")):
        return "file", part, "file_url", "file_url", part["file_url"]
    if isinstance(source, dict) and source.get("type") == "url" and _is_address(source.get("url")):
        return "image" if part.get("type") == "image" else "file", part, "source", "source.url", source["url"]
    return _find_google_field(part)


def _find_google_field(part: Body) -> AddressField | None:
    """Return the URL in a Gemini part; None if there is none, or if Google reads it itself.

    Google reads videos and audio, and files that are stored at Google.
    """
    data = part.get("fileData")
    if not isinstance(data, dict) or not _is_address(data.get("fileUri")) or _GOOGLE_FILES_PATH in data["fileUri"]:
        return None
    media_type = data.get("mimeType")
    if not isinstance(media_type, str) or not media_type.startswith(_FETCHED_TYPES):
        return None
    return "image" if media_type.startswith("image/") else "file", part, "fileData", "fileData.fileUri", data["fileUri"]


def _is_address(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and value[:8].lower().startswith(_WEB_SCHEMES)


def encode(raw: bytes) -> str:
    """Return ``raw`` in base64."""
    return base64.b64encode(raw).decode("ascii")
