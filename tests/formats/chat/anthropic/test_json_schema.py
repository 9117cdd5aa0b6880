"""A schema, cut to what structured outputs take."""

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway.formats.chat.anthropic.json_schema import narrow_schema
from tests.support.table_rows import table_rows

KEYWORDS = st.sampled_from(
    ["type", "properties", "items", "anyOf", "oneOf", "allOf", "$defs", "required", "enum", "minimum", "format",
     "minItems", "additionalProperties", "description", "pattern"],
)  # fmt: skip
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["object", "string", "uuid", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS, inner, max_size=4),
    max_leaves=12,
)


@table_rows(
    ("schema", "narrowed"),
    [
        ({"type": "object"}, {"type": "object", "additionalProperties": False}),
        (
            {"properties": {"a": {"type": "object", "additionalProperties": True}}, "additionalProperties": False},
            {
                "properties": {"a": {"type": "object", "additionalProperties": False}},
                "additionalProperties": False,
            },
        ),
        (
            {"type": "integer", "minimum": 1, "description": "how many"},
            {"type": "integer", "description": 'how many\n\n{"minimum":1}'},
        ),
        ({"type": "array", "items": {"maxLength": 2}}, {"type": "array", "items": {"description": '{"maxLength":2}'}}),
        ({"type": "array", "minItems": 1}, {"type": "array", "minItems": 1}),
        ({"type": "array", "minItems": 2}, {"type": "array", "description": '{"minItems":2}'}),
        ({"type": "string", "format": "uuid"}, {"type": "string", "format": "uuid"}),
        ({"type": "string", "format": "color"}, {"type": "string", "description": '{"format":"color"}'}),
        ({"oneOf": [{"minimum": 1}]}, {"anyOf": [{"description": '{"minimum":1}'}]}),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"enum": [1]}}}, {"$ref": "#/$defs/a", "$defs": {"a": {"enum": [1]}}}),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "null"}, {"type": "null"}),
        # A property may be called like a keyword.
        (
            {"properties": {"minimum": {"type": "integer"}}},
            {"properties": {"minimum": {"type": "integer"}}, "additionalProperties": False},
        ),
    ],
)  # fmt: skip
def test_what_is_not_taken_is_told_instead(schema: dict[str, Any], narrowed: dict[str, Any]) -> None:
    assert narrow_schema(schema) == narrowed


@given(st.dictionaries(KEYWORDS, JSON, max_size=5))
def test_any_object_can_be_narrowed_and_is_left_as_it_was(schema: dict[str, Any]) -> None:
    before = orjson.dumps(schema)
    once = narrow_schema(schema)
    assert orjson.dumps(schema) == before
    assert narrow_schema(once) == once
