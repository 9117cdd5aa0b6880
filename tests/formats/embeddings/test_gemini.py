"""The convention's embeddings, asked of Gemini."""

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
from gateway.formats.embeddings.gemini import build_embeddings_body, parse_embeddings_answer
from tests.support.table_rows import table_rows

MODEL = "gemini-embedding-001"
FLOATS = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=8)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 2**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("a"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["embeddings", "values", "usageMetadata", "promptTokenCount", "error"]), inner, max_size=3
        )
    ),
    max_leaves=10,
)


def call(value: object, encoding: Literal["float", "base64"] = "float", **body: Any) -> InferenceRequest:
    return InferenceRequest("embeddings", "m", {"input": value, **body}, encoding=encoding, max_prompt_tokens=10)


def answer(*vectors: object, **extra: Any) -> bytes:
    return orjson.dumps({"embeddings": [{"values": vector} for vector in vectors], **extra})


def test_every_text_is_a_request_of_its_own() -> None:
    assert build_embeddings_body(call(["a", "b"], dimensions=768), MODEL) == {
        "requests": [
            {"model": f"models/{MODEL}", "content": {"parts": [{"text": text}]}, "outputDimensionality": 768}
            for text in ("a", "b")
        ]
    }
    assert build_embeddings_body(call("a"), f"models/{MODEL}") == {
        "requests": [{"model": f"models/{MODEL}", "content": {"parts": [{"text": "a"}]}}]
    }


@table_rows("value", [[1, 2], [[1], [2]], ["a", [1]], ["a", 1], None, {}])
def test_token_ids_cannot_be_said(value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        build_embeddings_body(call(value), MODEL)
    assert caught.value.param == "input"


def test_an_answer_takes_the_conventions_shape() -> None:
    raw, usage = parse_embeddings_answer(answer([0.5, 1], [2, 3.0]), call(["a", "b"]), MODEL)
    assert usage == Usage(2, source="estimate")
    assert orjson.loads(raw) == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [0.5, 1]},
            {"object": "embedding", "index": 1, "embedding": [2, 3.0]},
        ],
        "model": MODEL,
        "usage": {"prompt_tokens": 2, "total_tokens": 2},
    }


@given(st.lists(FLOATS, min_size=1, max_size=3))
def test_base64_is_little_endian_float32(vectors: list[list[float]]) -> None:
    raw, _ = parse_embeddings_answer(answer(*vectors), call(["x"] * len(vectors), "base64"), MODEL)
    found = [item["embedding"] for item in orjson.loads(raw)["data"]]
    assert found == [base64.b64encode(struct.pack(f"<{len(v)}f", *v)).decode() for v in vectors]


@table_rows(
    ("metadata", "expected"),
    [
        ({"promptTokenCount": 8}, Usage(8, source="upstream")),
        ({"promptTokenCount": -8}, Usage(1, source="estimate")),
        ({}, Usage(1, source="estimate")),
        (7, Usage(1, source="estimate")),
    ],
)
def test_a_count_is_believed_where_it_is_one(metadata: object, expected: Usage) -> None:
    raw, usage = parse_embeddings_answer(answer([1.0], usageMetadata=metadata), call("a"), MODEL)
    assert usage == expected
    assert orjson.loads(raw)["usage"]["total_tokens"] == expected.prompt_tokens


@table_rows(
    "raw",
    [
        b"", b"[]", b"{}", b'{"embeddings":{}}', b'{"embeddings":[]}', answer([1.0], [2.0]), b'{"embeddings":[1]}',
        b'{"embeddings":[{}]}', answer([]), answer(["1"]), answer([True]), answer([None]), answer("AA=="),
        b'{"error":{"message":"x"}}',
    ],
)  # fmt: skip
def test_what_is_no_embedding_is_a_fault(raw: bytes) -> None:
    for encoding in ("float", "base64"):
        with pytest.raises(ProviderBadResponse):
            parse_embeddings_answer(raw, call("a", encoding), MODEL)


@given(JSON | st.builds(lambda inner: {"embeddings": [{"values": inner}]}, JSON), st.sampled_from(["float", "base64"]))
def test_any_json_is_embeddings_or_a_fault(value: Any, encoding: Any) -> None:
    try:
        raw, _ = parse_embeddings_answer(orjson.dumps(value), call("a", encoding), MODEL)
    except ProviderBadResponse:
        return
    assert len(orjson.loads(raw)["data"]) == 1
