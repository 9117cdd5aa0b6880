"""A JSON Schema as Gemini takes it in ``parametersJsonSchema`` and ``responseJsonSchema``.

Google lists the keywords it reads at ai.google.dev/api/generate-content under ``responseJsonSchema``, and says of
``$ref`` that nothing may stand beside it. Every other keyword is left out here, or said in one of those. The older
``parameters`` and ``responseSchema`` are OpenAPI messages in which an unknown keyword costs the whole request.
"""

from collections.abc import Mapping
from typing import Any

from gateway.errors import InvalidRequest
from gateway.formats.strict_json import MAX_DEPTH

_PLAIN = frozenset(
    {"$id", "$anchor", "$ref", "type", "format", "title", "description", "enum", "minItems", "maxItems", "minimum",
     "maximum", "required", "propertyOrdering"},
)  # fmt: skip
_ONE = frozenset({"items", "additionalProperties"})
_MANY = frozenset({"anyOf", "oneOf", "prefixItems"})
_NAMED = frozenset({"properties", "$defs"})
_OLD_REF = "#/definitions/"
_NEW_REF = "#/$defs/"


def build_schema(schema: Mapping[str, Any], *, param: str) -> dict[str, Any]:
    """``schema`` with what Gemini reads, and nothing else; what it was made of is left alone.

    Raises ``InvalidRequest`` with ``param`` where it is nested too deeply.
    """
    defs = _find_definitions(schema) or {}
    target = schema.get("$ref")
    root = defs.get(target.rpartition("/")[2]) if isinstance(target, str) else None
    if isinstance(root, dict):  # a root that only refers: Gemini wants to see an object
        schema = {**root, "$defs": defs}
    return _write(schema, param, MAX_DEPTH)


def _write(schema: Mapping[str, Any], param: str, depth: int) -> dict[str, Any]:
    if not depth:
        raise InvalidRequest(f"A JSON Schema is nested more than {MAX_DEPTH} deep", param=param)
    if isinstance(schema.get("$ref"), str):
        return _build_ref(schema, param, depth)
    written: dict[str, Any] = {}
    for name, value in _respell(schema).items():
        if name in _PLAIN:
            written[name] = value
        elif name in _ONE:
            written[name] = _build_any(value, param, depth)
        elif name in _MANY and isinstance(value, list):
            written[name] = [_build_any(item, param, depth) for item in value]
        elif name in _NAMED and isinstance(value, dict):
            written[name] = {key: _build_any(item, param, depth) for key, item in value.items()}
    return written


def _build_any(value: object, param: str, depth: int) -> Any:
    """A schema inside a schema; ``true`` and ``false`` are schemas too, and what is none is for Gemini to refuse."""
    return _write(value, param, depth - 1) if isinstance(value, dict) else value


def _build_ref(schema: Mapping[str, Any], param: str, depth: int) -> dict[str, Any]:
    """A reference alone, with the definitions where it is the root; its description would need a schema around it."""
    target: str = schema["$ref"]
    if target.startswith(_OLD_REF):
        target = _NEW_REF + target.removeprefix(_OLD_REF)
    written: dict[str, Any] = {"$ref": target}
    if defs := _find_definitions(schema):
        written["$defs"] = {key: _build_any(item, param, depth) for key, item in defs.items()}
    description = schema.get("description")
    if isinstance(description, str) and not defs:
        return {"description": description, "anyOf": [written]}
    return written


def _respell(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords that Gemini does not read, in ones that it does."""
    said = _merge(schema)
    if defs := _find_definitions(said):
        said["$defs"] = defs
    if "const" in said and "enum" not in said:
        said["enum"] = [said["const"]]
    if said.get("nullable") is True and isinstance(said.get("type"), str):
        said["type"] = [said["type"], "null"]
    for name, inclusive, step in (("exclusiveMinimum", "minimum", 1), ("exclusiveMaximum", "maximum", -1)):
        bound = said.get(name)
        if isinstance(bound, int | float) and not isinstance(bound, bool):  # in draft 4 it is a boolean
            said.setdefault(inclusive, bound + step if said.get("type") == "integer" else bound)
    return said


def _merge(schema: Mapping[str, Any]) -> dict[str, Any]:
    """``allOf`` as one schema; of those that only refer a single one can be said, as the only choice there is."""
    members = schema.get("allOf")
    said: dict[str, Any] = {}
    for member in [*(members if isinstance(members, list) else ()), schema]:
        if not isinstance(member, Mapping) or (member is not schema and "$ref" in member):
            continue
        properties, required = said.get("properties"), said.get("required")
        said |= member
        if isinstance(properties, dict) and isinstance(member.get("properties"), dict):
            said["properties"] = properties | member["properties"]
        if isinstance(required, list) and isinstance(member.get("required"), list):
            said["required"] = _join_names(required, member["required"])
    if isinstance(members, list) and len(members) == 1 and isinstance(members[0], dict) and "$ref" in members[0]:
        said.setdefault("anyOf", members)
    return said


def _join_names(*lists: list[Any]) -> list[str]:
    """Each name once; what is no name cannot be required."""
    return list(dict.fromkeys(name for names in lists for name in names if isinstance(name, str)))


def _find_definitions(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    defs = schema.get("$defs", schema.get("definitions"))
    return defs if isinstance(defs, dict) and defs else None
