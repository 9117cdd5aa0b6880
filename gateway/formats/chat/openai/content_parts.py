"""Parse the parts of a message in the OpenAI API format: text, images, recordings and files.

Parts of other API formats, which some clients send, are converted. Helpers check the type of a field.
OpenRouter documents two extensions: a URL instead of a file's data (PDF inputs), and ``cache_control`` on a part.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import attrs

from gateway.domain import exact_json
from gateway.errors import InvalidRequest
from gateway.formats.chat.adaptations import Adaptations
from gateway.formats.chat.model import Json, MediaPart, Part, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from gateway.formats.wire.fields import Body, name_json_type
from gateway.formats.wire.json_values import as_object, as_text

_DATA_URL_PATTERN = re.compile(
    r"data:([A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+)(?:;[^;,]*)*?;base64,", re.IGNORECASE
)
_WEB_SCHEMES = ("http://", "https://")
AUDIO_TYPES: Mapping[str, str] = {
    "wav": "audio/wav", "mp3": "audio/mpeg", "aac": "audio/aac", "aiff": "audio/aiff", "flac": "audio/flac",
    "ogg": "audio/ogg",
}  # fmt: skip
"""``input_audio.format`` -> media type: OpenAI's two formats, and others that vendors accept."""
_PDF_TYPE = "application/pdf"
"""The assumed type of a file without a media type: OpenAI accepts only PDF (File inputs: Chat Completions)."""
_PART_TYPES_BY_ROLE: Mapping[str, frozenset[str]] = {
    "system": frozenset({"text"}),
    "user": frozenset({"text", "image_url", "input_audio", "file"}),
    "assistant": frozenset({"text", "refusal"}),
    # OpenAI accepts only text; several vendors accept images here, and the common model supports them.
    "tool": frozenset({"text", "image_url", "file"}),
    "pictures": frozenset({"image_url"}),
}

_KINDS_BY_SOURCE_TYPE: Mapping[str, Literal["image", "file"]] = {"image": "image", "document": "file"}
"""Types of Anthropic's parts with a ``source`` -> kinds in the common chat model."""


def make_param_error(param: str, message: str) -> InvalidRequest:
    """Build the error for the field at ``param``."""
    return InvalidRequest(message, param=param)


def expect_text(value: object, param: str) -> str:
    """Return a required string. Raises ``InvalidRequest``."""
    if not isinstance(value, str):
        raise make_param_error(param, f"'{param}' must be a string, not {name_json_type(value)}")
    return value


def expect_object(value: object, param: str) -> Body:
    """Return a required object. Raises ``InvalidRequest``."""
    if not isinstance(value, dict):
        raise make_param_error(param, f"'{param}' must be an object, not {name_json_type(value)}")
    return value


def read_arguments(value: object, param: str) -> str:
    """Return a call's arguments as text; "" for None. Some clients write an object. Raises ``InvalidRequest``."""
    if isinstance(value, dict):
        return exact_json.dumps(value).decode()
    return "" if value is None else expect_text(value, param)


def expect_list(value: object, param: str) -> list[Any]:
    """Return a required array. Raises ``InvalidRequest``."""
    if not isinstance(value, list):
        raise make_param_error(param, f"'{param}' must be an array, not {name_json_type(value)}")
    return value


def parse_cache_control(fields: Body, param: str) -> Json | None:
    """Return the cache control of a part, a tool or a tool message; None if there is none. Raises ``InvalidRequest``.

    OpenAI's own ``prompt_cache_breakpoint`` is converted. Its lifetimes are longer than Anthropic's default of five
    minutes, so any ``ttl`` set by the client becomes one hour, Anthropic's longest.
    """
    cache_control = fields.get("cache_control")
    if cache_control is not None:
        return expect_object(cache_control, f"{param}.cache_control")
    breakpoint_field = fields.get("prompt_cache_breakpoint")
    if breakpoint_field is None:
        return None
    lifetime = expect_object(breakpoint_field, f"{param}.prompt_cache_breakpoint").get("ttl")
    return {"type": "ephemeral"} if lifetime is None else {"type": "ephemeral", "ttl": "1h"}


def find_signature(call: Body) -> str | None:
    """Return Gemini's thought signature of a tool call, in Google's extension of the OpenAI API format, or None."""
    google_fields = as_object(as_object(call.get("extra_content")).get("google"))
    return as_text(google_fields.get("thought_signature")) or None


def split_data_url(url: str) -> tuple[str, str] | None:
    """Split ``data:image/png;base64,...`` into media type and base64. Returns None if ``url`` is not such a URL."""
    match = _DATA_URL_PATTERN.match(url)
    if match is None:
        return None
    media_type = match[1].lower()
    return ("image/jpeg" if media_type == "image/jpg" else media_type), url[match.end() :]


def parse_parts(content: str | Iterable[Any], param: str, role: str, adaptations: Adaptations) -> tuple[Part, ...]:
    """Parse a message's content, also from parts of other API formats. Raises ``InvalidRequest``.

    ``role`` decides which parts are allowed: a key of ``_PART_TYPES_BY_ROLE``.
    """
    if isinstance(content, str):
        return (TextPart(content),) if content else ()
    parts: list[Part] = []
    for index, item in enumerate(content):
        part_param = f"{param}[{index}]"
        part = expect_object(item, part_param)
        foreign_parts = _parse_foreign(part, part_param, role, adaptations)
        parts += [_parse_part(part, part_param, role)] if foreign_parts is None else foreign_parts
    return tuple([part for part in parts if not isinstance(part, TextPart) or part.text])


def _parse_foreign(part: Body, param: str, role: str, adaptations: Adaptations) -> Sequence[Part] | None:
    """Convert a part that is not allowed here, or a file that only its provider can read.

    In earlier turns, answers and tool results, a part that cannot be converted becomes text. Returns None if
    ``_parse_part`` has to parse or reject the part.
    """
    kind = part.get("type")
    if not isinstance(kind, str):
        return None
    is_allowed = kind in _PART_TYPES_BY_ROLE[role]
    if is_allowed and kind == "file" and adaptations.is_past and as_object(part.get("file")).get("file_id") is not None:
        return [adaptations.replace_file(kind)]
    parts = None if is_allowed else _convert_foreign(part, kind, role, param, adaptations)
    if parts is None and not is_allowed and (role in {"assistant", "tool"} or adaptations.is_past):
        return adaptations.write(kind, part)
    return parts


def _convert_foreign(part: Body, kind: str, role: str, param: str, adaptations: Adaptations) -> Sequence[Part] | None:
    match kind:
        case "input_text" | "output_text" | "refusal" if isinstance(text := part.get("text", part.get(kind)), str):
            return [TextPart(text, parse_cache_control(part, param))]
        case "thinking" if isinstance(part.get("thinking"), str):
            signature = as_text(part.get("signature")) or None
            return [ReasoningPart(part["thinking"], signature)] if role == "assistant" else []
        case "tool_use" if role == "assistant":
            return [_parse_tool_use(part, param)]
        case "tool_result" if role == "user":
            return [_parse_tool_result(part, param, adaptations)]
    return _convert_foreign_media(part, kind, role, param)


def _convert_foreign_media(part: Body, kind: str, role: str, param: str) -> Sequence[Part] | None:
    if kind == "image_url" and role == "assistant":
        return [_parse_image(part, param)]
    if kind in _KINDS_BY_SOURCE_TYPE and role != "system":
        return _parse_source(part, param, _KINDS_BY_SOURCE_TYPE[kind])
    return None


def _parse_source(part: Body, param: str, kind: Literal["image", "file"]) -> Sequence[Part] | None:
    """Parse an image or file in Anthropic's form (``source``) or LangChain's (fields next to ``type``).

    Returns None if the part has neither form. Raises ``InvalidRequest`` for invalid cache control.
    """
    source = part.get("source")
    source = source if isinstance(source, dict) else part
    media_type = as_text(source.get("media_type")) or as_text(source.get("mime_type"))
    data, url = as_text(source.get("data")) or as_text(source.get("base64")), as_text(source.get("url"))
    name, cache_control = as_text(part.get("title")) or None, parse_cache_control(part, param)
    if data and source.get("type") == "text":
        return [TextPart(data, cache_control)]
    if data and media_type:
        return [MediaPart(kind, media_type, data, name=name, cache_control=cache_control)]
    return (
        [MediaPart(kind, url=url, name=name, cache_control=cache_control)]
        if url[:8].lower().startswith(_WEB_SCHEMES)
        else None
    )


def _parse_tool_use(part: Body, param: str) -> ToolCallPart:
    tool_input = part.get("input")
    arguments = (
        tool_input
        if isinstance(tool_input, str)
        else exact_json.dumps({} if tool_input is None else tool_input).decode()
    )
    return ToolCallPart(
        expect_text(part.get("id"), f"{param}.id"), expect_text(part.get("name"), f"{param}.name"), arguments
    )


def _parse_tool_result(part: Body, param: str, adaptations: Adaptations) -> ToolResultPart:
    content = part.get("content")
    result_content = content if isinstance(content, str) else expect_list(content or [], f"{param}.content")
    result_parts = parse_parts(result_content, f"{param}.content", "tool", adaptations)
    parts = tuple([result_part for result_part in result_parts if isinstance(result_part, TextPart | MediaPart)])
    return ToolResultPart(expect_text(part.get("tool_use_id"), f"{param}.tool_use_id"), parts)


def _parse_part(part: Body, param: str, role: str) -> TextPart | MediaPart:
    kind = part.get("type")
    allowed_kinds = _PART_TYPES_BY_ROLE[role]
    if not isinstance(kind, str) or kind not in allowed_kinds:
        raise make_param_error(f"{param}.type", f"'{param}.type' must be one of {', '.join(sorted(allowed_kinds))}")
    if kind in {"text", "refusal"}:
        return TextPart(expect_text(part.get(kind), f"{param}.{kind}"), parse_cache_control(part, param))
    if kind == "image_url":
        return _parse_image(part, param)
    media = parse_audio(part, param) if kind == "input_audio" else _parse_file(part, param)
    return attrs.evolve(media, param=f"{param}.{kind}")


def _parse_image(part: Body, param: str) -> MediaPart:
    cache_control = parse_cache_control(part, param)
    image = part.get("image_url")
    if isinstance(image, str):  # a common deviation from OpenAI's object form
        return parse_address(image, f"{param}.image_url", detail=None, cache_control=cache_control)
    image = expect_object(image, f"{param}.image_url")
    url = expect_text(image.get("url"), f"{param}.image_url.url")
    detail = image.get("detail")
    if detail is not None:
        detail = expect_text(detail, f"{param}.image_url.detail")
    return parse_address(url, f"{param}.image_url.url", detail=detail, cache_control=cache_control)


def parse_address(url: str, param: str, *, detail: str | None, cache_control: Json | None = None) -> MediaPart:
    """Parse the URL of an image, which may be a data URL. Raises ``InvalidRequest``."""
    if url[:8].lower().startswith(_WEB_SCHEMES):
        return MediaPart("image", url=url, detail=detail, cache_control=cache_control)
    data_url = split_data_url(url)
    if data_url is None:
        raise make_param_error(param, f"'{param}' must be an http(s) address or a data URL in base64")
    return MediaPart("image", data_url[0], data_url[1], detail=detail, cache_control=cache_control)


def parse_audio(part: Body, param: str) -> MediaPart:
    """Parse an ``input_audio`` part. Raises ``InvalidRequest``."""
    audio = expect_object(part.get("input_audio"), f"{param}.input_audio")
    data = expect_text(audio.get("data"), f"{param}.input_audio.data")
    audio_format = expect_text(audio.get("format"), f"{param}.input_audio.format")
    if audio_format not in AUDIO_TYPES:
        raise make_param_error(f"{param}.input_audio.format", f"'{param}.input_audio.format' must be wav or mp3")
    return MediaPart("audio", AUDIO_TYPES[audio_format], data, cache_control=parse_cache_control(part, param))


def _parse_file(part: Body, param: str) -> MediaPart:
    return parse_file(
        expect_object(part.get("file"), f"{param}.file"), f"{param}.file", parse_cache_control(part, param)
    )


def parse_file(file: Body, param: str, cache_control: Json | None = None) -> MediaPart:
    """Parse an object with ``file_data`` and ``filename``. Raises ``InvalidRequest`` for an uploaded file, too."""
    if file.get("file_id") is not None:
        raise make_param_error(
            f"{param}.file_id",
            "An uploaded file only works with a channel that uses OpenAI's Chat Completions API; send file_data",
        )
    data = expect_text(file.get("file_data"), f"{param}.file_data")
    name = file.get("filename")
    if name is not None:
        name = expect_text(name, f"{param}.filename")
    if data[:8].lower().startswith(_WEB_SCHEMES):
        return MediaPart("file", url=data, name=name, cache_control=cache_control)
    if not data.startswith("data:"):
        return MediaPart("file", _PDF_TYPE, data, name=name, cache_control=cache_control)
    data_url = split_data_url(data)
    if data_url is None:
        raise make_param_error(f"{param}.file_data", f"'{param}.file_data' must be base64 or a data URL in base64")
    return MediaPart("file", data_url[0], data_url[1], name=name, cache_control=cache_control)
