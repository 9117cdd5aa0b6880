"""Reduce a JSON Schema to the subset that Anthropic's structured outputs support.

Sources: Anthropic's documentation, "Structured outputs", and ``transform_schema`` of its Python library. An object must
forbid additional properties, and most limits on numbers, strings and lists are unsupported. An unsupported keyword is
moved into the description, where the model reads it.
"""

from typing import Any

from gateway.domain import exact_json
from gateway.formats.chat.model import Json

_SCHEMA_MAP_KEYWORDS = frozenset({"properties", "$defs", "definitions"})
_SCHEMA_LIST_KEYWORDS = frozenset({"anyOf", "allOf", "oneOf"})
_STRICT_KEYWORDS = _SCHEMA_MAP_KEYWORDS | {
    "anyOf",
    "allOf",
    "items",
    "type",
    "$ref",
    "enum",
    "const",
    "description",
    "title",
    "required",
}
_IGNORED_KEYWORDS = frozenset({"$schema", "$id", "$comment", "additionalProperties", "nullable"})
"""Dropped keywords: they restrict nothing, or this module sets them itself."""
_STRING_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}
)


def narrow_schema(schema: Json) -> dict[str, Any]:
    """Return a supported copy of ``schema``, with its unsupported keywords as text in the description."""
    narrowed_schema: dict[str, Any] = {}
    dropped_keywords: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _IGNORED_KEYWORDS:
            continue
        if name == "oneOf" and "anyOf" not in schema:
            narrowed_schema["anyOf"] = _narrow_value(name, value)
        elif _is_supported(name, value):
            narrowed_schema[name] = _narrow_value(name, value)
        else:
            dropped_keywords[name] = value
    if schema.get("type") == "object" or "properties" in schema:
        narrowed_schema["additionalProperties"] = False
    if dropped_keywords:
        dropped_text = exact_json.dumps(dropped_keywords).decode()
        description = narrowed_schema.get("description")
        narrowed_schema["description"] = (
            f"{description}\n\n{dropped_text}" if isinstance(description, str) and description else dropped_text
        )
    return narrowed_schema


def _narrow_value(name: str, value: Any) -> Any:
    if name in _SCHEMA_MAP_KEYWORDS and isinstance(value, dict):
        return {key: _narrow_value("items", schema) for key, schema in value.items()}
    if name in _SCHEMA_LIST_KEYWORDS and isinstance(value, list):
        return [_narrow_value("items", schema) for schema in value]
    return narrow_schema(value) if name == "items" and isinstance(value, dict) else value


def _is_supported(name: str, value: object) -> bool:
    if name == "format":
        return isinstance(value, str) and value in _STRING_FORMATS
    if name == "minItems":
        return value in (0, 1)
    return name in _STRICT_KEYWORDS
