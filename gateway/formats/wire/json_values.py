"""Lenient access to parsed JSON of providers, whose answers may have any shape."""

from typing import Any

import orjson

from gateway.domain import exact_json

Body = dict[str, Any]


def loads_or_none(raw: bytes, *, exact: bool = False) -> Any:
    """Parse JSON; return None if it is invalid. ``exact`` preserves all digits of numbers."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        try:
            return exact_json.load_refused(raw, error)
        except orjson.JSONDecodeError:
            return None
    return exact_json.load_exactly(raw, value) if exact else value


def as_object(value: object) -> Body:
    """Return ``value`` if it is a JSON object, else an empty dict."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """Return ``value`` if it is a JSON array, else an empty list."""
    return value if isinstance(value, list) else []


def as_text(value: object) -> str:
    """Return ``value`` if it is a string, else ""."""
    return value if isinstance(value, str) else ""


def list_objects(value: object) -> list[Body]:
    """Return the objects in an array; an empty list if ``value`` is not an array."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
