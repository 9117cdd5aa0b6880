"""Parse the parts of a message in the OpenAI API format: text, images, recordings and files.

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

_DATA_URL = re.compile(r"data:([A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+)(?:;[^;,]*)*?;base64,", re.IGNORECASE)
_WEB = ("http://", "https://")
AUDIO_TYPES: Mapping[str, str] = {
    "wav": "audio/wav", "mp3": "audio/mpeg", "aac": "audio/aac", "aiff": "audio/aiff", "flac": "audio/flac",
    "ogg": "audio/ogg",
}  # fmt: skip
"""``input_audio.format`` -> media type: OpenAI's two formats, and others that vendors accept."""
_PDF = "application/pdf"
"""The assumed type of a file without a media type: OpenAI accepts only PDF (File inputs: Chat Completions)."""
_ALLOWED: Mapping[str, frozenset[str]] = {
    "system": frozenset({"text"}),
    "user": frozenset({"text", "image_url", "input_audio", "file"}),
    "assistant": frozenset({"text", "refusal"}),
    # OpenAI accepts only text; several vendors accept images here, and the common model supports them.
    "tool": frozenset({"text", "image_url", "file"}),
    "pictures": frozenset({"image_url"}),
}

_SOURCES: Mapping[str, Literal["image", "file"]] = {"image": "image", "document": "file"}
"""Types of Anthropic's parts with a ``source`` -> kinds in the common chat model."""


def refuse(where: str, message: str) -> InvalidRequest:
    """Build the error for the field at ``where``."""
    return InvalidRequest(message, param=where)


def expect_text(value: object, where: str) -> str:
    """Return a required string. Raises ``InvalidRequest``."""
    if not isinstance(value, str):
        raise refuse(where, f"'{where}' must be a string, not {name_json_type(value)}")
    return value


def expect_object(value: object, where: str) -> Body:
    """Return a required object. Raises ``InvalidRequest``."""
    if not isinstance(value, dict):
        raise refuse(where, f"'{where}' must be an object, not {name_json_type(value)}")
    return value


def read_arguments(value: object, where: str) -> str:
    """Return a call's arguments as text; converts objects, which some servers write. Raises ``InvalidRequest``."""
    if isinstance(value, dict):
        return exact_json.dumps(value).decode()
    return "" if value is None else expect_text(value, where)


def expect_list(value: object, where: str) -> list[Any]:
    """Return a required array. Raises ``InvalidRequest``."""
    if not isinstance(value, list):
        raise refuse(where, f"'{where}' must be an array, not {name_json_type(value)}")
    return value


def parse_cache(values: Body, where: str) -> Json | None:
    """Return the cache control of a part, a tool or a tool message; None if there is none.

    OpenAI's own ``prompt_cache_breakpoint`` is converted. Its lifetimes are longer than Anthropic's default of five
    minutes, so any ``ttl`` set by the client becomes one hour, Anthropic's longest.
    """
    cache = values.get("cache_control")
    if cache is not None:
        return expect_object(cache, f"{where}.cache_control")
    mark = values.get("prompt_cache_breakpoint")
    if mark is None:
        return None
    lifetime = expect_object(mark, f"{where}.prompt_cache_breakpoint").get("ttl")
    return {"type": "ephemeral"} if lifetime is None else {"type": "ephemeral", "ttl": "1h"}


def find_signature(call: Body) -> str | None:
    """Return Gemini's thought signature of a tool call, in Google's extension of the OpenAI API format."""
    google = as_object(as_object(call.get("extra_content")).get("google"))
    return as_text(google.get("thought_signature")) or None


def split_data_url(url: str) -> tuple[str, str] | None:
    """Split ``data:image/png;base64,...`` into media type and base64; None if ``url`` is not such a URL."""
    found = _DATA_URL.match(url)
    if found is None:
        return None
    media_type = found[1].lower()
    return ("image/jpeg" if media_type == "image/jpg" else media_type), url[found.end() :]


def parse_parts(content: str | Iterable[Any], where: str, role: str, adaptations: Adaptations) -> tuple[Part, ...]:
    """Parse a message's content, also from parts of other API formats. Raises ``InvalidRequest``."""
    if isinstance(content, str):
        return (TextPart(content),) if content else ()
    parts: list[Part] = []
    for at, listed in enumerate(content):
        here = f"{where}[{at}]"
        part = expect_object(listed, here)
        foreign = _parse_foreign(part, here, role, adaptations)
        parts += [_parse_part(part, here, role)] if foreign is None else foreign
    return tuple([part for part in parts if not isinstance(part, TextPart) or part.text])


def _parse_foreign(part: Body, where: str, role: str, adaptations: Adaptations) -> Sequence[Part] | None:
    """Convert a part that the format does not allow here. Return None if the caller must parse or reject the part."""
    kind = part.get("type")
    if not isinstance(kind, str):
        return None
    known = kind in _ALLOWED[role]
    if known and kind == "file" and adaptations.is_past and as_object(part.get("file")).get("file_id") is not None:
        return [adaptations.replace_file(kind)]
    found = None if known else _translate(part, kind, role, where, adaptations)
    if found is None and not known and (role in {"assistant", "tool"} or adaptations.is_past):
        return adaptations.write(kind, part)
    return found


def _translate(part: Body, kind: str, role: str, where: str, adaptations: Adaptations) -> Sequence[Part] | None:
    match kind:
        case "input_text" | "output_text" | "refusal" if isinstance(text := part.get("text", part.get(kind)), str):
            return [TextPart(text, parse_cache(part, where))]
        case "thinking" if isinstance(part.get("thinking"), str):
            signature = as_text(part.get("signature")) or None
            return [ReasoningPart(part["thinking"], signature)] if role == "assistant" else []
        case "tool_use" if role == "assistant":
            return [_parse_tool_use(part, where)]
        case "tool_result" if role == "user":
            return [_parse_tool_result(part, where, adaptations)]
    return _translate_media(part, kind, role, where)


def _translate_media(part: Body, kind: str, role: str, where: str) -> Sequence[Part] | None:
    if kind == "image_url" and role == "assistant":
        return [_parse_image(part, where)]
    if kind in _SOURCES and role != "system":
        return _parse_source(part, where, _SOURCES[kind])
    return None


def _parse_source(part: Body, where: str, kind: Literal["image", "file"]) -> Sequence[Part] | None:
    """Parse an image or file in Anthropic's form (``source``) or LangChain's (next to ``type``); None if neither."""
    source = part.get("source")
    source = source if isinstance(source, dict) else part
    media_type = as_text(source.get("media_type")) or as_text(source.get("mime_type"))
    data, url = as_text(source.get("data")) or as_text(source.get("base64")), as_text(source.get("url"))
    name, cache = as_text(part.get("title")) or None, parse_cache(part, where)
    if data and source.get("type") == "text":
        return [TextPart(data, cache)]
    if data and media_type:
        return [MediaPart(kind, media_type, data, name=name, cache=cache)]
    return [MediaPart(kind, url=url, name=name, cache=cache)] if url[:8].lower().startswith(_WEB) else None


def _parse_tool_use(part: Body, where: str) -> ToolCallPart:
    given = part.get("input")
    arguments = given if isinstance(given, str) else exact_json.dumps({} if given is None else given).decode()
    return ToolCallPart(
        expect_text(part.get("id"), f"{where}.id"), expect_text(part.get("name"), f"{where}.name"), arguments
    )


def _parse_tool_result(part: Body, where: str, adaptations: Adaptations) -> ToolResultPart:
    content = part.get("content")
    listed = content if isinstance(content, str) else expect_list(content or [], f"{where}.content")
    found = parse_parts(listed, f"{where}.content", "tool", adaptations)
    parts = tuple([one for one in found if isinstance(one, TextPart | MediaPart)])
    return ToolResultPart(expect_text(part.get("tool_use_id"), f"{where}.tool_use_id"), parts)


def _parse_part(part: Body, where: str, role: str) -> TextPart | MediaPart:
    kind = part.get("type")
    allowed = _ALLOWED[role]
    if not isinstance(kind, str) or kind not in allowed:
        raise refuse(f"{where}.type", f"'{where}.type' must be one of {', '.join(sorted(allowed))}")
    if kind in {"text", "refusal"}:
        return TextPart(expect_text(part.get(kind), f"{where}.{kind}"), parse_cache(part, where))
    if kind == "image_url":
        return _parse_image(part, where)
    media = parse_audio(part, where) if kind == "input_audio" else _parse_file(part, where)
    return attrs.evolve(media, where=f"{where}.{kind}")


def _parse_image(part: Body, where: str) -> MediaPart:
    cache = parse_cache(part, where)
    image = part.get("image_url")
    if isinstance(image, str):  # a common deviation from OpenAI's object form
        return parse_address(image, f"{where}.image_url", detail=None, cache=cache)
    image = expect_object(image, f"{where}.image_url")
    url = expect_text(image.get("url"), f"{where}.image_url.url")
    detail = image.get("detail")
    if detail is not None:
        detail = expect_text(detail, f"{where}.image_url.detail")
    return parse_address(url, f"{where}.image_url.url", detail=detail, cache=cache)


def parse_address(url: str, where: str, *, detail: str | None, cache: Json | None = None) -> MediaPart:
    """Parse the URL of an image, which may be a data URL. Raises ``InvalidRequest``."""
    if url[:8].lower().startswith(_WEB):
        return MediaPart("image", url=url, detail=detail, cache=cache)
    found = split_data_url(url)
    if found is None:
        raise refuse(where, f"'{where}' must be an http(s) address or a data URL in base64")
    return MediaPart("image", found[0], found[1], detail=detail, cache=cache)


def parse_audio(part: Body, where: str) -> MediaPart:
    """Parse an ``input_audio`` part. Raises ``InvalidRequest``."""
    audio = expect_object(part.get("input_audio"), f"{where}.input_audio")
    data = expect_text(audio.get("data"), f"{where}.input_audio.data")
    form = expect_text(audio.get("format"), f"{where}.input_audio.format")
    if form not in AUDIO_TYPES:
        raise refuse(f"{where}.input_audio.format", f"'{where}.input_audio.format' must be wav or mp3")
    return MediaPart("audio", AUDIO_TYPES[form], data, cache=parse_cache(part, where))


def _parse_file(part: Body, where: str) -> MediaPart:
    return parse_file(expect_object(part.get("file"), f"{where}.file"), f"{where}.file", parse_cache(part, where))


def parse_file(file: Body, where: str, cache: Json | None = None) -> MediaPart:
    """Parse an object with ``file_data`` and ``filename``. Raises ``InvalidRequest``, also for an uploaded file."""
    if file.get("file_id") is not None:
        raise refuse(
            f"{where}.file_id", "An uploaded file only works with a channel that speaks the convention; send file_data"
        )
    data = expect_text(file.get("file_data"), f"{where}.file_data")
    name = file.get("filename")
    if name is not None:
        name = expect_text(name, f"{where}.filename")
    if data[:8].lower().startswith(_WEB):
        return MediaPart("file", url=data, name=name, cache=cache)
    if not data.startswith("data:"):
        return MediaPart("file", _PDF, data, name=name, cache=cache)
    found = split_data_url(data)
    if found is None:
        raise refuse(f"{where}.file_data", f"'{where}.file_data' must be base64 or a data URL in base64")
    return MediaPart("file", found[0], found[1], name=name, cache=cache)
