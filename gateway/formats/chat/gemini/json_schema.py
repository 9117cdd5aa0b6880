"""Convert a JSON Schema into the subset that Gemini accepts in ``parametersJsonSchema`` and ``responseJsonSchema``.

Google lists the supported keywords at ai.google.dev/api/generate-content under ``responseJsonSchema``, and allows no
other keyword next to ``$ref``. Unsupported keywords are expressed by supported ones or dropped. The older fields
``parameters`` and ``responseSchema`` are not used: in these OpenAPI messages, an unknown keyword fails the request.
"""

from collections.abc import Mapping
from typing import Any

from gateway.errors import InvalidRequest
from gateway.formats.wire.json_values import MAX_DEPTH

_PLAIN_KEYWORDS = frozenset(
    {"$id", "$anchor", "$ref", "type", "format", "title", "description", "enum", "minItems", "maxItems", "minimum",
     "maximum", "required", "propertyOrdering"},
)  # fmt: skip
_SCHEMA_KEYWORDS = frozenset({"items", "additionalProperties"})
_SCHEMA_LIST_KEYWORDS = frozenset({"anyOf", "oneOf", "prefixItems"})
_SCHEMA_MAP_KEYWORDS = frozenset({"properties", "$defs"})
_OLD_REF_PREFIX = "#/definitions/"
_NEW_REF_PREFIX = "#/$defs/"


def build_schema(schema: Mapping[str, Any], *, param: str) -> dict[str, Any]:
    """Return a copy of ``schema`` with supported keywords only. Raises ``InvalidRequest`` if nested too deeply."""
    defs = _find_definitions(schema) or {}
    ref = schema.get("$ref")
    root_schema = defs.get(ref.rpartition("/")[2]) if isinstance(ref, str) else None
    if isinstance(root_schema, dict):  # Gemini requires an object as the root, not a reference
        schema = {**root_schema, "$defs": defs}
    return _convert_schema(schema, param, MAX_DEPTH)


def _convert_schema(schema: Mapping[str, Any], param: str, depth: int) -> dict[str, Any]:
    if not depth:
        raise InvalidRequest(f"A JSON Schema is nested more than {MAX_DEPTH} deep", param=param)
    if isinstance(schema.get("$ref"), str):
        return _convert_ref(schema, param, depth)
    converted_schema: dict[str, Any] = {}
    for name, value in _replace_keywords(schema).items():
        if name in _PLAIN_KEYWORDS:
            converted_schema[name] = value
        elif name in _SCHEMA_KEYWORDS:
            converted_schema[name] = _convert_value(value, param, depth)
        elif name in _SCHEMA_LIST_KEYWORDS and isinstance(value, list):
            converted_schema[name] = [_convert_value(item, param, depth) for item in value]
        elif name in _SCHEMA_MAP_KEYWORDS and isinstance(value, dict):
            converted_schema[name] = {key: _convert_value(item, param, depth) for key, item in value.items()}
    return converted_schema


def _convert_value(value: object, param: str, depth: int) -> Any:
    """Convert an inner schema. Other values are returned unchanged: ``true`` and ``false``, and invalid ones.

    Raises ``InvalidRequest`` if the schema is nested too deeply.
    """
    return _convert_schema(value, param, depth - 1) if isinstance(value, dict) else value


def _convert_ref(schema: Mapping[str, Any], param: str, depth: int) -> dict[str, Any]:
    """Convert a reference, with the definitions if it is the root.

    Nothing else may stand next to ``$ref``, so a description goes into a schema that wraps the reference. Raises
    ``InvalidRequest`` if the definitions are nested too deeply.
    """
    ref: str = schema["$ref"]
    if ref.startswith(_OLD_REF_PREFIX):
        ref = _NEW_REF_PREFIX + ref.removeprefix(_OLD_REF_PREFIX)
    converted_schema: dict[str, Any] = {"$ref": ref}
    if defs := _find_definitions(schema):
        converted_schema["$defs"] = {key: _convert_value(item, param, depth) for key, item in defs.items()}
    description = schema.get("description")
    if isinstance(description, str) and not defs:
        return {"description": description, "anyOf": [converted_schema]}
    return converted_schema


def _replace_keywords(schema: Mapping[str, Any]) -> dict[str, Any]:
    joint_schema = _merge_all_of(schema)
    if defs := _find_definitions(joint_schema):
        joint_schema["$defs"] = defs
    if "const" in joint_schema and "enum" not in joint_schema:
        joint_schema["enum"] = [joint_schema["const"]]
    if joint_schema.get("nullable") is True and isinstance(joint_schema.get("type"), str):
        joint_schema["type"] = [joint_schema["type"], "null"]
    for name, inclusive_name, step in (("exclusiveMinimum", "minimum", 1), ("exclusiveMaximum", "maximum", -1)):
        bound = joint_schema.get(name)
        if isinstance(bound, int | float) and not isinstance(bound, bool):  # a boolean in draft 4
            joint_schema.setdefault(inclusive_name, bound + step if joint_schema.get("type") == "integer" else bound)
    return joint_schema


def _merge_all_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Merge ``allOf`` into one schema. A reference is kept only if it is the only member of ``allOf``."""
    members = schema.get("allOf")
    merged_schema: dict[str, Any] = {}
    for member in [*(members if isinstance(members, list) else ()), schema]:
        if not isinstance(member, Mapping) or (member is not schema and "$ref" in member):
            continue
        properties, required_names = merged_schema.get("properties"), merged_schema.get("required")
        merged_schema |= member
        if isinstance(properties, dict) and isinstance(member.get("properties"), dict):
            merged_schema["properties"] = properties | member["properties"]
        if isinstance(required_names, list) and isinstance(member.get("required"), list):
            merged_schema["required"] = _join_names(required_names, member["required"])
    if isinstance(members, list) and len(members) == 1 and isinstance(members[0], dict) and "$ref" in members[0]:
        merged_schema.setdefault("anyOf", members)
    return merged_schema


def _join_names(*lists: list[Any]) -> list[str]:
    return list(dict.fromkeys(name for names in lists for name in names if isinstance(name, str)))


def _find_definitions(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    defs = schema.get("$defs", schema.get("definitions"))
    return defs if isinstance(defs, dict) and defs else None
