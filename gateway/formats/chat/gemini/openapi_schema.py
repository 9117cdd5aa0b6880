"""Convert Gemini's ``Schema``, a part of OpenAPI 3.0, into JSON Schema.

Type names are in upper case, ``nullable`` is a flag, and 64-bit integers may be strings.
"""

from collections.abc import Mapping
from typing import Any

_MANY = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_NAMED = frozenset({"properties", "$defs"})
_COUNTS = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
_DROPPED = frozenset({"nullable", "propertyOrdering", "example"})
_RENAMED = {"defs": "$defs", "ref": "$ref"}


def build_json_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Convert ``schema`` into JSON Schema, preserving the order of ``properties`` and ``required``."""
    written: dict[str, Any] = {}
    for given, value in schema.items():
        name = _RENAMED.get(given, given)
        if name in _DROPPED or (name == "format" and value == "enum"):
            continue
        if name == "type" and isinstance(value, str):
            if value != "TYPE_UNSPECIFIED":
                written[name] = value.lower()
        elif name in _COUNTS and isinstance(value, str) and value.isdecimal():
            written[name] = int(value)
        elif name in _MANY and isinstance(value, list):
            written[name] = [_build_inner(item) for item in value]
        elif name in _NAMED and isinstance(value, dict):
            written[name] = {key: _build_inner(item) for key, item in value.items()}
        else:
            written[name] = _build_inner(value) if name in {"items", "additionalProperties"} else value
    return _allow_null(written) if schema.get("nullable") is True else written


def _build_inner(value: Any) -> Any:
    return build_json_schema(value) if isinstance(value, dict) else value


def _allow_null(written: dict[str, Any]) -> dict[str, Any]:
    if isinstance(written.get("enum"), list) and None not in written["enum"]:
        written["enum"] = [*written["enum"], None]
    if isinstance(written.get("type"), str):
        return written | {"type": [written["type"], "null"]}
    if isinstance(written.get("anyOf"), list):
        return written | {"anyOf": [*written["anyOf"], {"type": "null"}]}
    return written
