"""Convert Gemini's ``Schema``, a part of OpenAPI 3.0, into JSON Schema.

Type names are in upper case, ``nullable`` is a flag, and 64-bit integers may be strings.
"""

from collections.abc import Mapping
from typing import Any

_SCHEMA_LIST_KEYWORDS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_SCHEMA_MAP_KEYWORDS = frozenset({"properties", "$defs"})
_COUNT_KEYWORDS = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
_DROPPED_KEYWORDS = frozenset({"nullable", "propertyOrdering", "example"})
_RENAMED_KEYWORDS = {"defs": "$defs", "ref": "$ref"}


def build_json_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Convert ``schema`` into JSON Schema, preserving the order of ``properties`` and ``required``."""
    json_schema: dict[str, Any] = {}
    for keyword, value in schema.items():
        name = _RENAMED_KEYWORDS.get(keyword, keyword)
        if name in _DROPPED_KEYWORDS or (name == "format" and value == "enum"):
            continue
        if name == "type" and isinstance(value, str):
            if value != "TYPE_UNSPECIFIED":
                json_schema[name] = value.lower()
        elif name in _COUNT_KEYWORDS and isinstance(value, str) and value.isdecimal():
            json_schema[name] = int(value)
        elif name in _SCHEMA_LIST_KEYWORDS and isinstance(value, list):
            json_schema[name] = [_convert_value(item) for item in value]
        elif name in _SCHEMA_MAP_KEYWORDS and isinstance(value, dict):
            json_schema[name] = {key: _convert_value(item) for key, item in value.items()}
        else:
            json_schema[name] = _convert_value(value) if name in {"items", "additionalProperties"} else value
    return _allow_null(json_schema) if schema.get("nullable") is True else json_schema


def _convert_value(value: Any) -> Any:
    return build_json_schema(value) if isinstance(value, dict) else value


def _allow_null(json_schema: dict[str, Any]) -> dict[str, Any]:
    if isinstance(json_schema.get("enum"), list) and None not in json_schema["enum"]:
        json_schema["enum"] = [*json_schema["enum"], None]
    if isinstance(json_schema.get("type"), str):
        return json_schema | {"type": [json_schema["type"], "null"]}
    if isinstance(json_schema.get("anyOf"), list):
        return json_schema | {"anyOf": [*json_schema["anyOf"], {"type": "null"}]}
    return json_schema
