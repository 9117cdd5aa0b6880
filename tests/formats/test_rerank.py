"""A rerank call, and the usage of its answer."""

from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import MAX_TOKENS, Usage, UsageDetails
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.rerank import MAX_DOCUMENTS, build_rerank_body, parse_rerank_answer, parse_rerank_inference
from gateway.formats.usage.prompt_tokens import estimate_prompt
from gateway.formats.usage.token_bounds import MESSAGE_TOKENS, PART_TOKENS
from tests.support.table_rows import table_rows

CALL = InferenceRequest("rerank", "m", {"query": "capital?", "documents": ["Oslo", "Bergen"]}, max_prompt_tokens=100)
HELLO: dict[str, Any] = {"model": "m", "query": "abc", "documents": ["de", "f"]}
RESULTS = [{"index": 1, "relevance_score": 0.9, "document": {"text": "f"}}]
IMAGE = "data:image/png;base64," + "A" * 100_000
NAMES = st.sampled_from([*HELLO, "top_n", "text", "image", "content", "results", "usage", "meta", "tokens", "error",
                         "billed_units", "total_tokens", "prompt_tokens", "input_tokens"])  # fmt: skip
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text("ab", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=10,
)


def test_the_query_is_counted_with_every_document() -> None:
    inference = parse_rerank_inference(HELLO)
    assert (inference.operation, inference.model, inference.max_output_tokens) == ("rerank", "m", 0)
    assert inference.prompt_chars == (3 + 2) + (3 + 1)
    assert inference.max_prompt_tokens == inference.prompt_chars + 2 * MESSAGE_TOKENS


@table_rows(
    ("document", "chars", "most"),
    [
        ("四文", 2, 6),
        ({"text": "abc"}, 3, 3),
        ({"title": "ab", "body": "cd", "year": 1999}, 4, 8),
        ({"image": IMAGE}, 0, PART_TOKENS),
        ({"text": "abc", "image": None}, 3, 7),
        ({"content": "abc"}, 3, 3),
        ({"content": [{"type": "text", "text": "abc"}]}, 7, 7),
        ({"content": [{"image_url": {"url": IMAGE}}], "id": "x"}, 1, PART_TOKENS + 1),
        ({"content": ["abc", 5, None]}, 3, 8),
        ({}, 0, 0),
    ],
)
def test_a_document_of_every_kind_is_counted(document: object, chars: int, most: int) -> None:
    inference = parse_rerank_inference(HELLO | {"query": "", "documents": [document]})
    assert (inference.prompt_chars, inference.max_prompt_tokens) == (chars, most + MESSAGE_TOKENS)


def test_a_query_may_be_an_object() -> None:
    body = HELLO | {"query": {"text": "abc"}}
    assert parse_rerank_inference(body) == attrs.evolve(parse_rerank_inference(HELLO), body=body)


def test_as_many_documents_as_any_provider_takes_are_taken() -> None:
    assert parse_rerank_inference(HELLO | {"documents": ["a"] * MAX_DOCUMENTS}).prompt_chars == 4 * MAX_DOCUMENTS


@table_rows(
    ("extra", "param"),
    [
        ({"model": None}, "model"),
        ({"query": None}, "query"),
        ({"query": 5}, "query"),
        ({"query": ["a"]}, "query"),
        ({"documents": None}, "documents"),
        ({"documents": []}, "documents"),
        ({"documents": "abc"}, "documents"),
        ({"documents": ["a"] * (MAX_DOCUMENTS + 1)}, "documents"),
        ({"documents": ["a", None]}, "documents[1]"),
        ({"documents": ["a", 5]}, "documents[1]"),
        ({"documents": [["a"]]}, "documents[0]"),
        ({"top_n": 0}, "top_n"),
        ({"top_n": 1.5}, "top_n"),
        ({"top_n": True}, "top_n"),
    ],
)
def test_a_bad_field_is_refused_and_named(extra: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_rerank_inference(HELLO | extra)
    assert caught.value.param == param


@given(st.dictionaries(NAMES, JSON))
def test_any_object_is_a_call_or_an_invalid_request(extra: dict[str, Any]) -> None:
    try:
        inference = parse_rerank_inference(HELLO | extra)
    except InvalidRequest:
        return
    assert inference.max_prompt_tokens >= inference.prompt_chars >= 0


def test_the_body_for_the_provider_is_the_callers_under_another_name_of_the_model() -> None:
    body = HELLO | {"top_n": 1, "return_documents": True, "unknown": {"x": 1}}
    assert build_rerank_body(parse_rerank_inference(body), "theirs") == body | {"model": "theirs"}
    assert body["model"] == "m"


@table_rows(
    "body",
    [
        {"usage": {"total_tokens": 8}},
        {"usage": {"prompt_tokens": 8}},
        {"usage": {"prompt_tokens": 0, "total_tokens": 8}},
        {"usage": {"prompt_tokens": 8, "total_tokens": -1}},
        {"meta": {"tokens": {"input_tokens": 8, "output_tokens": 0}}},
        {"tokens": {"input_tokens": 8}},
        {"meta": {"billed_units": {"total_tokens": 8}}},
        {"meta": {"billed_units": {"input_tokens": 8}}, "usage": None},
    ],
)
def test_tokens_are_read_wherever_a_provider_says_them(body: dict[str, Any]) -> None:
    assert parse_rerank_answer(orjson.dumps({"results": RESULTS} | body), CALL) == Usage(8, source="upstream")


@table_rows(
    "body",
    [
        {},
        {"usage": {"total_tokens": 0}},
        {"usage": {"total_tokens": MAX_TOKENS + 1}},
        {"usage": {"total_tokens": 8.0}},
        {"usage": [8]},
        {"meta": {"billed_units": {"search_units": 0}}},
        {"meta": {"tokens": 8}},
    ],
)
def test_usage_is_estimated_where_none_can_be_believed(body: dict[str, Any]) -> None:
    assert parse_rerank_answer(orjson.dumps({"results": RESULTS} | body), CALL) == Usage(
        estimate_prompt(CALL), source="estimate"
    )
    assert 5 <= estimate_prompt(CALL) <= 12


@table_rows(
    ("units", "usage"),
    [
        ({"search_units": 3}, Usage(estimate_prompt(CALL), source="upstream", details=UsageDetails(searches=3))),
        ({"search_units": 1, "input_tokens": 8}, Usage(8, source="upstream", details=UsageDetails(searches=1))),
        ({"search_units": -1}, Usage(estimate_prompt(CALL), source="estimate")),
    ],
)
def test_searches_are_read_where_a_rerank_is_sold_by_them(units: dict[str, Any], usage: Usage) -> None:
    assert parse_rerank_answer(orjson.dumps({"results": RESULTS, "meta": {"billed_units": units}}), CALL) == usage


@table_rows(("documents", "searches"), [(["a"], 1), (["a"] * 100, 1), (["a"] * 101, 2), (["a" * 60_000], 2)])
def test_a_long_document_is_more_than_one_of_the_hundred_of_a_search(documents: list[str], searches: int) -> None:
    assert parse_rerank_inference({"model": "m", "query": "q", "documents": documents}).searches == searches


@table_rows(
    "raw", [b"", b"<html>", b"[]", b"{}", b'{"results":null}', b'{"results":{}}', b'{"error":"x","results":[]}']
)
def test_what_is_no_answer_is_the_providers_fault(raw: bytes) -> None:
    with pytest.raises(ProviderBadResponse):
        parse_rerank_answer(raw, CALL)


@given(JSON | st.dictionaries(NAMES, JSON))
def test_any_json_answer_is_read_or_the_providers_fault(value: Any) -> None:
    try:
        usage = parse_rerank_answer(orjson.dumps(value), CALL)
    except ProviderBadResponse:
        return
    assert 0 <= usage.prompt_tokens <= MAX_TOKENS
