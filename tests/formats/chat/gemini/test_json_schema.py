"""JSON Schemas in the keywords that Gemini reads."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.formats.chat.gemini.json_schema import build_schema
from gateway.formats.wire.json_values import MAX_DEPTH
from tests.support.table_rows import table_rows

READ = {
    "$id", "$defs", "$ref", "$anchor", "type", "format", "title", "description", "enum", "items", "prefixItems",
    "minItems", "maxItems", "minimum", "maximum", "anyOf", "oneOf", "properties", "additionalProperties", "required",
    "propertyOrdering",
}  # fmt: skip
"""As documented under ``responseJsonSchema``."""


def write(schema: dict[str, Any]) -> dict[str, Any]:
    return build_schema(schema, param="tools")


def test_what_several_schemas_require_is_named_once_in_order() -> None:
    members = [{"required": ["b", "a"]}, {"required": ["c", {"no": "name"}, "b"]}]
    assert write({"allOf": members, "required": ["d", "a"]})["required"] == ["b", "a", "c", "d"]


def test_what_gemini_reads_passes() -> None:
    schema = {
        "type": "object",
        "title": "T",
        "properties": {
            "pattern": {"type": "string", "format": "date-time", "description": "named as a keyword"},
            "n": {"type": ["integer", "null"], "minimum": 1, "maximum": 9, "enum": [1, 2]},
            "list": {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 3},
            "pair": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "number"}]},
            "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "map": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        "required": ["n"],
        "additionalProperties": False,
        "propertyOrdering": ["n", "list"],
    }
    assert write(schema) == schema


@table_rows(
    ("schema", "expected"),
    [
        ({"type": "string", "pattern": "^a", "minLength": 1, "default": "a", "$schema": "x"}, {"type": "string"}),
        ({"const": "a"}, {"enum": ["a"]}),
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "integer", "exclusiveMinimum": 0}, {"type": "integer", "minimum": 1}),
        ({"type": "integer", "exclusiveMaximum": 9}, {"type": "integer", "maximum": 8}),
        ({"type": "number", "exclusiveMinimum": 0}, {"type": "number", "minimum": 0}),
        ({"type": "number", "exclusiveMinimum": True}, {"type": "number"}),
        (
            {
                "allOf": [
                    {"type": "object", "properties": {"a": {}}, "required": ["a"]},
                    {"properties": {"b": {"const": 1}}, "required": ["a", "b"]},
                ],
                "description": "both",
            },
            {
                "type": "object",
                "properties": {"a": {}, "b": {"enum": [1]}},
                "required": ["a", "b"],
                "description": "both",
            },
        ),
        ({"allOf": [{"$ref": "#/$defs/A"}]}, {"anyOf": [{"$ref": "#/$defs/A"}]}),
        ({"properties": {"a": {"$ref": "#/$defs/A", "default": 1}}}, {"properties": {"a": {"$ref": "#/$defs/A"}}}),
        (
            {"properties": {"a": {"$ref": "#/definitions/A", "description": "d"}}, "definitions": {"A": {"const": 1}}},
            {
                "properties": {"a": {"description": "d", "anyOf": [{"$ref": "#/$defs/A"}]}},
                "$defs": {"A": {"enum": [1]}},
            },
        ),
        (
            {"$ref": "#/definitions/A", "definitions": {"A": {"type": "object", "properties": {}}}},
            {"type": "object", "properties": {}, "$defs": {"A": {"type": "object", "properties": {}}}},
        ),
        ({"properties": {"any": True, "none": False}}, {"properties": {"any": True, "none": False}}),
    ],
)
def test_what_it_does_not_read_is_said_otherwise_or_left_out(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    before = copy.deepcopy(schema)
    assert write(schema) == expected
    assert schema == before


def test_what_is_nested_too_deeply_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(MAX_DEPTH + 1):
        schema = {"items": schema}
    with pytest.raises(InvalidRequest) as caught:
        write(schema)
    assert caught.value.param == "tools"
    assert write(schema["items"]["items"])


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["object", "#/$defs/a", "a", "integer"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [*sorted(READ), "allOf", "const", "nullable", "exclusiveMinimum", "definitions", "pattern", "a"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=14,
)


def find_unread(schema: Any) -> set[str]:
    """Keywords of schemas, where they are schemas, that Gemini does not read."""
    if not isinstance(schema, dict):
        return set()
    inner = [schema.get("items"), schema.get("additionalProperties")]
    for name in ("properties", "$defs"):
        inner += schema[name].values() if isinstance(schema.get(name), dict) else []
    for name in ("anyOf", "oneOf", "prefixItems"):
        inner += schema[name] if isinstance(schema.get(name), list) else []
    return (schema.keys() - READ).union(*map(find_unread, inner))


@given(st.dictionaries(st.sampled_from([*sorted(READ), "allOf", "definitions", "const"]), JSON, max_size=6))
def test_any_json_becomes_what_gemini_reads(schema: dict[str, Any]) -> None:
    written = write(schema)
    assert find_unread(written) == set()
    assert write(written) == written
