"""A moderations call, and the usage of its answer."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.moderations import (
    DEFAULT_MODEL,
    build_moderations_body,
    parse_moderations_answer,
    parse_moderations_inference,
)
from gateway.formats.usage.token_bounds import PART_TOKENS
from tests.support.table_rows import table_rows

CALL = InferenceRequest("moderations", "m", {"input": "some words"}, max_prompt_tokens=10)
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
NAMES = st.sampled_from(["model", "input", "type", "text", "image_url", "results", "usage", "error", "prompt_tokens"])
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text("ab", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=10,
)


@table_rows(
    ("value", "chars", "bound"),
    [
        ("", 0, 1),
        ("abc", 3, 4),
        (["a", "四文"], 3, 9),
        ([{"type": "text", "text": "abc"}, IMAGE], 3, 4 + PART_TOKENS),
        ([{"type": "of tomorrow"}], 0, PART_TOKENS),
        ([{"type": "text", "text": None}], 0, PART_TOKENS),
    ],
)
def test_a_good_input_is_counted(value: object, chars: int, bound: int) -> None:
    inference = parse_moderations_inference({"model": "m", "input": value, "unknown": 1})
    assert (inference.operation, inference.model) == ("moderations", "m")
    assert (inference.prompt_chars, inference.max_prompt_tokens, inference.max_output_tokens) == (chars, bound, 0)


@table_rows("body", [{"input": "x"}, {"input": "x", "model": None}])
def test_a_call_that_names_no_model_means_the_conventions(body: dict[str, Any]) -> None:
    inference = parse_moderations_inference(body)
    assert inference.model == DEFAULT_MODEL == "omni-moderation-latest"
    assert build_moderations_body(inference, "theirs") == {"input": "x", "model": "theirs"}
    assert body.get("model") is None


@table_rows(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"input": {"type": "text", "text": "x"}}, "input"),
        ({"input": ["a", None]}, "input[1]"),
        ({"input": ["a", ["b"]]}, "input[1]"),
        ({"input": [{"text": "x"}]}, "input[0]"),
        ({"input": [{"type": 5, "text": "x"}]}, "input[0]"),
        ({"input": "x", "model": 5}, "model"),
        ({"input": "x", "model": ""}, "model"),
    ],
)
def test_a_bad_field_is_refused_and_named(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_moderations_inference(body)
    assert caught.value.param == param


@given(st.dictionaries(NAMES, JSON))
def test_any_object_is_a_call_or_an_invalid_request(body: dict[str, Any]) -> None:
    try:
        inference = parse_moderations_inference(body)
    except InvalidRequest:
        return
    assert inference.max_prompt_tokens >= inference.prompt_chars >= 0


def test_usage_is_estimated_where_none_is_reported() -> None:
    answer = {"id": "modr-1", "model": "m", "results": [{"flagged": False}]}
    assert parse_moderations_answer(orjson.dumps(answer), CALL) == Usage(3, source="estimate")
    reported = answer | {"usage": {"prompt_tokens": 7, "total_tokens": 7}}
    assert parse_moderations_answer(orjson.dumps(reported), CALL) == Usage(7, source="upstream")


@table_rows("raw", [b"", b"<html>", b"[]", b"{}", b'{"results":null}', b'{"results":{}}', b'{"error":{"message":"x"}}'])
def test_what_is_no_answer_is_the_providers_fault(raw: bytes) -> None:
    with pytest.raises(ProviderBadResponse):
        parse_moderations_answer(raw, CALL)


def test_a_fault_tells_no_secret() -> None:
    with pytest.raises(ProviderBadResponse) as caught:
        parse_moderations_answer(b'{"error":{"message":"bad key hunter22"}}', CALL, ("hunter22",))
    assert "hunter22" not in caught.value.message


@given(JSON | st.dictionaries(NAMES, JSON))
def test_any_json_answer_is_read_or_the_providers_fault(value: Any) -> None:
    try:
        usage = parse_moderations_answer(orjson.dumps(value), CALL)
    except ProviderBadResponse:
        return
    assert usage.prompt_tokens >= 0
