"""Show a schema as rows of a table: each field's name, type and meaning."""

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.frozen import frozen
from gateway.server.openapi.attrs_schema import Schema

_MAX_DEPTH = 6
_PLURALS: Mapping[str, str] = {
    "string": "texts",
    "integer": "whole numbers",
    "number": "numbers",
    "boolean": "flags",
    "object": "objects",
}
_TYPE_WORDS: Mapping[str, str] = {
    "integer": "whole number",
    "boolean": "true or false",
    "array": "list",
    "string": "text",
}
_FORMATS: Mapping[str, str] = {"date-time": "moment", "date": "day", "binary": "file"}
_MAX_INTEGER = 2**31 - 1
"""A maximum that is only the limit of the integer type."""


@frozen
class SchemaRow:
    """One field; ``rows`` are the fields of its value."""

    name: str
    kind: str
    needed: bool
    about: str
    default: str
    rows: tuple["SchemaRow", ...] = ()


def list_rows(
    schema: Schema, document: Mapping[str, Any], depth: int = 0, *, shows_nulls: bool = True
) -> tuple[SchemaRow, ...]:
    """Return the fields of an object, of a list's items, of a table's values, or of the first alternative with fields.

    If ``shows_nulls`` is false, the rows do not mention that a field may be null.
    """
    object_schema = _find_object(schema, document)
    if object_schema is None or depth == _MAX_DEPTH:
        return ()
    needed = object_schema.get("required", ())
    rows = []
    for name, member_schema in object_schema.get("properties", {}).items():
        description, default = member_schema.get("description", ""), member_schema.get("default")
        shown_default = "" if default is None or default in ([], {}) else str(default).lower()
        kind = (
            name_kind(member_schema, document)
            if shows_nulls
            else name_kind(member_schema, document).removesuffix(" or null")
        )
        nested_rows = list_rows(member_schema, document, depth + 1, shows_nulls=shows_nulls)
        rows.append(SchemaRow(name, kind, name in needed, description, shown_default, nested_rows))
    return tuple(rows)


def resolve(schema: Schema, document: Mapping[str, Any]) -> Schema:
    """Return what the ``$ref`` of a schema refers to, with the fields beside it; without a ``$ref``, the schema."""
    if "$ref" not in schema:
        return schema
    node: Any = document
    for segment in schema["$ref"].removeprefix("#/").split("/"):
        node = node[segment]
    return {**node, **{name: value for name, value in schema.items() if name != "$ref"}}


def _find_object(schema: Schema, document: Mapping[str, Any]) -> Schema | None:
    """Return the object schema in ``schema``: itself, or that of items, values or an alternative; None without one."""
    schema = resolve(schema, document)
    if "properties" in schema:
        return schema
    nested_schemas = [schema[name] for name in ("items", "additionalProperties") if isinstance(schema.get(name), dict)]
    for option in (*nested_schemas, *schema.get("anyOf", ())):
        object_schema = _find_object(option, document)
        if object_schema is not None:
            return object_schema
    return None


def name_kind(schema: Schema, document: Mapping[str, Any]) -> str:
    """Describe a type in words: ``text``, ``whole number, 1 to 128``, ``list of texts``."""
    schema = resolve(schema, document)
    if "enum" in schema:
        return " | ".join("null" if value is None else str(value) for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(name_kind(option, document) for option in schema["anyOf"]))
    kinds = schema.get("type", "anything")
    words = [_name_plain_type(kind, schema, document) for kind in (kinds if isinstance(kinds, list) else [kinds])]
    return ", ".join((" or ".join(words), *_list_limits(schema)))


def _name_plain_type(kind: str, schema: Schema, document: Mapping[str, Any]) -> str:
    if kind == "array" and schema.get("items"):
        member_schema = resolve(schema["items"], document)
        type_name = member_schema.get("type")
        plural = (
            _PLURALS.get(type_name)
            if isinstance(type_name, str) and "enum" not in member_schema and "format" not in member_schema
            else None
        )
        return f"list of {plural or name_kind(member_schema, document)}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict) and "properties" not in schema:
        return "table"
    if kind == "string" and "format" in schema:
        return _FORMATS.get(schema["format"], schema["format"])
    return _TYPE_WORDS.get(kind, kind)


def _list_limits(schema: Schema) -> Iterator[str]:
    low, high = schema.get("minimum"), schema.get("maximum")
    high = None if high == _MAX_INTEGER else high
    if low is not None and high is not None:
        yield f"{low} to {high}"
    elif low is not None:
        yield f"at least {low}"
    elif high is not None:
        yield f"at most {high}"
    if "exclusiveMinimum" in schema:
        yield f"above {schema['exclusiveMinimum']}"
    if "maxLength" in schema:
        yield f"at most {schema['maxLength']} characters"
    if schema.get("maxItems") is not None:
        yield f"at most {schema['maxItems']}"
