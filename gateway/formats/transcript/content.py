"""The texts of content that is a string, a part, or a list of parts, in any client format."""

from collections.abc import Iterator
from typing import Any

from gateway.domain import exact_json

MAX_PARTS = 10_000
"""Parts of one content that are read. A body is bounded in bytes; this bounds the objects made of it."""


def list_objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects among the first ``MAX_PARTS`` items of a list; empty if ``value`` is no list."""
    return [item for item in value[:MAX_PARTS] if isinstance(item, dict)] if isinstance(value, list) else []


def get_object(holder: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the object in a field; an empty one if the field is missing or has another type."""
    value = holder.get(name)
    return value if isinstance(value, dict) else {}


def get_text(holder: dict[str, Any], name: str) -> str:
    """Return the string in a field; an empty one if the field is missing or has another type."""
    value = holder.get(name)
    return value if isinstance(value, str) else ""


def read_arguments(value: Any) -> str:
    """Return the arguments of a tool call as text; "" for None. Formats have them as text or as JSON."""
    return value if isinstance(value, str) else "" if value is None else exact_json.dumps(value).decode()


def join_content(content: Any) -> str:
    """Return the texts of a message's parts, one a line. A part without text is named by its type: ``[image_url]``."""
    return "\n".join(_list_texts(content))


def _list_texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, dict):
        yield _read_part(content)
    elif isinstance(content, list):
        for part in content[:MAX_PARTS]:
            yield part if isinstance(part, str) else _read_part(part) if isinstance(part, dict) else str(part)


def _read_part(part: dict[str, Any]) -> str:
    for name in ("text", "refusal", "thinking"):
        if isinstance(part.get(name), str):
            return str(part[name])
    nested_texts = part.get("content", part.get("output"))
    if isinstance(nested_texts, str):
        return nested_texts
    if isinstance(nested_texts, list):  # of a tool's result
        return "\n".join(get_text(item, "text") or _name_part(item) for item in list_objects(nested_texts))
    return _name_part(part)


def _name_part(part: dict[str, Any]) -> str:
    name = get_text(part, "type") or next(iter(part), "part")
    return f"[{name}]"
