"""Whether an answer is as it was asked for: compared with another implementation of JSON Schema."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from gateway.errors import InvalidRequest
from gateway.formats.transcript.verdict import MAX_PROBLEMS, MAX_STEPS, check_schema, list_problems

NAMES = st.sampled_from(["a", "b"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "ab", 0.5, 2.0]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=6,
)
TYPES = st.sampled_from(["object", "array", "string", "boolean", "null", "integer", "number"])
PLAIN_SCHEMAS = st.fixed_dictionaries(
    {},
    optional={
        "type": TYPES | st.lists(TYPES, min_size=1, max_size=2, unique=True),
        "enum": st.lists(VALUES, min_size=1, max_size=3),
        "const": VALUES,
        "required": st.lists(NAMES, unique=True),
        **{name: st.integers(0, 3) for name in ("minLength", "maxLength", "minItems", "maxItems")},
        **{name: st.integers(-3, 3) for name in ("minimum", "maximum")},
    },
)
SCHEMAS = st.recursive(
    PLAIN_SCHEMAS | st.booleans(),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(NAMES, inner, max_size=2),
            "additionalProperties": inner,
            "items": inner,
            "not": inner,
            **{name: st.lists(inner, min_size=1, max_size=3) for name in ("anyOf", "allOf", "oneOf")},
        },
    ),
    max_leaves=5,
)


@given(VALUES, SCHEMAS)
def test_a_schema_means_what_it_means_elsewhere(value: Any, schema: Any) -> None:
    check_schema(schema)
    is_valid = not list_problems(orjson.dumps(value).decode(), (), schema)
    assert is_valid is Draft202012Validator(schema).is_valid(value)


@pytest.mark.parametrize(
    "schema",
    [
        [], "object", {"pattern": "a"}, {"$ref": "#"}, {"type": "text"}, {"type": [1]}, {"required": "a"},
        {"required": [1]}, {"properties": []}, {"anyOf": {}}, {"items": [1]}, {"minimum": "1"}, {"minimum": True},
        {"enum": 3},
    ],
)  # fmt: skip
def test_a_schema_that_could_let_wrong_answers_pass_is_refused(schema: Any) -> None:
    with pytest.raises(InvalidRequest):
        check_schema(schema)


def test_a_schema_has_a_greatest_depth() -> None:
    schema: dict[str, Any] = {}
    for _ in range(40):
        schema = {"not": schema}
    with pytest.raises(InvalidRequest):
        check_schema(schema)


def test_problems_are_named() -> None:
    schema = {"type": "object", "properties": {"n": {"items": {"minimum": 2}}}, "required": ["m"]}
    assert list_problems('{"n": [2, 1]}', ["N", "zero"], schema) == [
        "the words 'zero' are missing", "$.n[1]: 1, expected at least 2", "$.m: missing",
    ]  # fmt: skip
    assert list_problems("no JSON", (), {}) == ["the text is no JSON"]
    assert list_problems("1", (), None) == []


def test_the_work_of_a_check_is_bounded() -> None:
    schema = {"items": {"anyOf": [{"type": "null"}] * 999 + [{}]}}
    assert list_problems(f"[{'1,' * (MAX_STEPS // 1_000)}1]", (), schema) == ["the text is too long to be checked"]


@pytest.mark.parametrize("keyword", ["enum", "required"])
def test_the_values_that_a_schema_lists_count_as_work(keyword: str) -> None:
    schema = {"items": {keyword: [str(number) for number in range(MAX_STEPS // 1_000)]}}
    assert list_problems(f"[{'1,' * 1_000}1]", (), schema) == ["the text is too long to be checked"]


def test_few_of_many_problems_are_listed() -> None:
    assert len(list_problems(f"[{'1,' * 1_000}1]", (), {"items": {"type": "null"}})) == MAX_PROBLEMS
