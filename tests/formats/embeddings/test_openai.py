"""Embeddings: the call, and the conversion of its answer."""

import base64
import struct
from typing import Any, Literal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.embeddings.openai import (
    MAX_DIMENSIONS,
    build_embeddings_body,
    parse_embeddings_answer,
    parse_embeddings_inference,
)
from tests.support.table_rows import table_rows

FLOATS = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=20)
Encoding = Literal["float", "base64"]
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def call(encoding: Encoding) -> InferenceRequest:
    return InferenceRequest("embeddings", "m", {"input": "some words"}, encoding=encoding, max_prompt_tokens=10)


def answer(*vectors: object, **extra: Any) -> bytes:
    data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)]
    return orjson.dumps({"object": "list", "data": data, "model": "m", **extra}, option=orjson.OPT_NON_STR_KEYS)


def encode(floats: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(floats)}f", *floats)).decode()


def vectors(raw: bytes) -> list[Any]:
    return [item["embedding"] for item in orjson.loads(raw)["data"]]


@given(st.lists(FLOATS, min_size=1, max_size=3))
def test_numbers_become_little_endian_float32_and_come_back(floats: list[list[float]]) -> None:
    there, _ = parse_embeddings_answer(answer(*floats), call("base64"))
    assert vectors(there) == [encode(vector) for vector in floats]
    back, _ = parse_embeddings_answer(there, call("float"))
    assert vectors(back) == floats


@given(st.lists(FLOATS, min_size=1, max_size=3))
def test_base64_becomes_numbers(floats: list[list[float]]) -> None:
    raw, _ = parse_embeddings_answer(answer(*map(encode, floats)), call("float"))
    assert vectors(raw) == floats


@table_rows(("encoding", "vector"), [("float", [0.1, -2.0]), ("base64", encode([0.1, -2.0]))])
def test_what_needs_no_conversion_passes_byte_for_byte(encoding: Encoding, vector: object) -> None:
    raw = answer(vector, odd=" spacing ").replace(b":", b" : ")
    assert parse_embeddings_answer(raw, call(encoding))[0] is raw


def test_everything_but_the_vectors_is_kept() -> None:
    raw, _ = parse_embeddings_answer(answer([1.0], [2.0], note={"x": [1]}), call("base64"))
    value = orjson.loads(raw)
    assert value["note"] == {"x": [1]}
    assert [item["index"] for item in value["data"]] == [0, 1]


def test_an_answer_in_two_encodings_leaves_in_one() -> None:
    mixed = answer([1.0, 2.0], encode([3.0, 4.0]))
    assert vectors(parse_embeddings_answer(mixed, call("float"))[0]) == [[1.0, 2.0], [3.0, 4.0]]
    assert vectors(parse_embeddings_answer(mixed, call("base64"))[0]) == [encode([1.0, 2.0]), encode([3.0, 4.0])]


@table_rows(
    ("encoding", "vector"),
    [
        ("base64", None),
        ("base64", {}),
        ("base64", 5),
        ("base64", ["1.0"]),
        ("base64", [None]),
        ("base64", [[1.0]]),
        ("base64", [{"x": 1}]),
        ("float", None),
        ("float", {}),
        ("float", 5),
        ("float", "not base64!"),
        ("float", "AAAA"),
        ("float", "AAAAA"),
        ("float", "日本"),
    ],
)
def test_a_vector_of_the_wrong_shape_is_the_providers_fault(encoding: Encoding, vector: object) -> None:
    with pytest.raises(ProviderBadResponse):
        parse_embeddings_answer(answer([1.0] if encoding == "float" else encode([1.0]), vector), call(encoding))


@table_rows("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_cannot_say_is_the_providers_fault(number: float) -> None:
    with pytest.raises(ProviderBadResponse):
        parse_embeddings_answer(answer(encode([1.0, number])), call("float"))


@table_rows(
    "raw",
    [b"", b"<html>", b"[]", b"{}", b'{"data":null}', b'{"data":{}}', b'{"data":[1]}', b'{"error":{"message":"x"}}'],
)
def test_what_is_no_embedding_answer_is_the_providers_fault(raw: bytes) -> None:
    with pytest.raises(ProviderBadResponse):
        parse_embeddings_answer(raw, call("float"))


@given(st.lists(JSON, max_size=3), st.sampled_from(["float", "base64"]))
def test_any_vectors_are_converted_or_the_providers_fault(values: list[Any], encoding: Encoding) -> None:
    try:
        raw = answer(*values)
    except (orjson.JSONEncodeError, RecursionError):
        return
    try:
        out, _ = parse_embeddings_answer(raw, call(encoding))
    except ProviderBadResponse:
        return
    assert all(isinstance(vector, str if encoding == "base64" else list) for vector in vectors(out))


def test_usage_is_the_providers_or_an_estimate() -> None:
    raw = answer([1.0], usage={"prompt_tokens": 3, "total_tokens": 3})
    assert parse_embeddings_answer(raw, call("float"))[1] == Usage(3, 0, 0, "upstream")
    assert parse_embeddings_answer(answer([1.0]), call("float"))[1] == Usage(3, 0, 0, "estimate")
    broken = answer([1.0], usage={"prompt_tokens": -3})
    assert parse_embeddings_answer(broken, call("float"))[1].source == "estimate"


@table_rows(
    ("value", "chars"), [("abc", 3), (["a", "bc"], 3), ([1, 2, 3], 12), ([[1, 2], [3]], 12), ([""], 0), (["a", [1]], 5)]
)
def test_a_good_input_is_counted(value: object, chars: int) -> None:
    read = parse_embeddings_inference({"model": "m", "input": value, "dimensions": 256, "user": "me", "x": 1})
    assert (read.prompt_chars, read.encoding, read.operation) == (chars, "float", "embeddings")


@table_rows(
    ("extra", "param"),
    [
        ({"model": None}, "model"),
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": {"text": "x"}}, "input"),
        ({"input": ["a", None]}, "input[1]"),
        ({"input": ["a", []]}, "input[1]"),
        ({"input": [[1], [1.5]]}, "input[1]"),
        ({"input": [1, True]}, "input[0]"),
        ({"input": [1, "a"]}, "input[0]"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": MAX_DIMENSIONS + 1}, "dimensions"),
        ({"dimensions": "256"}, "dimensions"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"encoding_format": 5}, "encoding_format"),
        ({"user": 5}, "user"),
    ],
)
def test_a_bad_field_is_refused_and_named(extra: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_embeddings_inference({"model": "m", "input": "x"} | extra)
    assert caught.value.param == param


@table_rows(("asked", "encoding"), [(None, "float"), ("float", "float"), ("base64", "base64")])
def test_the_encoding_is_float_where_the_caller_says_nothing(asked: str | None, encoding: str) -> None:
    assert parse_embeddings_inference({"model": "m", "input": "x", "encoding_format": asked}).encoding == encoding


def test_the_body_for_the_provider_is_the_callers_under_another_name_of_the_model() -> None:
    body = {"model": "m", "input": ["x"], "unknown": [1]}
    assert build_embeddings_body(parse_embeddings_inference(body), "theirs") == body | {"model": "theirs"}
    assert body["model"] == "m"
