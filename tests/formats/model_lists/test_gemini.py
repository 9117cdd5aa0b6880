"""Gemini's model list."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.model_description import ModelDescription
from gateway.domain.model_info import ModelInfo
from gateway.errors import ProviderBadResponse
from gateway.formats.model_lists.gemini import parse_models
from tests.support.table_rows import table_rows

NOW = 1_750_000_000
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["models/a", "models/", "generateContent", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["models", "name", "supportedGenerationMethods", "nextPageToken", "error"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def read(value: Any) -> list[ModelInfo]:
    return parse_models(orjson.dumps(value), owned_by="google", now_s=NOW)


def model(name: object, *methods: object) -> dict[str, Any]:
    return {"name": name, "displayName": "x", "inputTokenLimit": 8, "supportedGenerationMethods": list(methods)}


def test_what_can_be_called_is_listed_without_its_prefix() -> None:
    listed = read(
        {
            "models": [
                model("models/gemini-3.8-flash", "generateContent", "countTokens", "batchGenerateContent"),
                model("models/gemini-embedding-001", "embedContent", "countTextTokens", "asyncBatchEmbedContent"),
                model("models/imagen-4.0-generate-001", "predict"),
                model("models/veo-3.1-generate-preview", "predictLongRunning"),
                model("models/gemini-3.8-live", "bidiGenerateContent"),
                model("models/aqa", "generateAnswer"),
            ],
            "nextPageToken": "",
        }
    )
    names = ("gemini-3.8-flash", "gemini-embedding-001", "veo-3.1-generate-preview")
    window = ModelDescription(context_window=8)
    described = (window, ModelDescription("embedding", 8), window)
    assert listed == [
        ModelInfo(name, NOW, "google", description=description)
        for name, description in zip(names, described, strict=True)
    ]


def test_a_model_that_does_not_say_what_it_can_is_listed() -> None:
    assert [found.id for found in read({"models": [{"name": "tunedModels/a"}, {"name": "models/b"}]})] == [
        "tunedModels/a",
        "b",
    ]


def test_entries_without_a_name_and_second_ones_are_skipped() -> None:
    names = ["models/a", "", None, 7, "models/", "models/a", "models/b"]
    entries: list[Any] = [model(name, "generateContent") for name in names] + [None, "x", []]
    assert [found.id for found in read({"models": entries})] == ["a", "b"]


def test_a_list_of_nothing_is_a_list() -> None:
    assert read({"models": []}) == []


@table_rows(
    "raw", [b"", b"<html>", b"[]", b"null", b"{}", b'{"models":null}', b'{"models":{}}', b'{"error":{"code":403}}']
)
def test_an_answer_without_a_list_is_a_failed_listing_and_not_an_empty_one(raw: bytes) -> None:
    with pytest.raises(ProviderBadResponse):
        parse_models(raw, owned_by="google", now_s=NOW)


@given(JSON)
def test_any_json_is_a_list_of_models_or_a_fault(value: Any) -> None:
    try:
        models = read(value)
    except ProviderBadResponse:
        return
    assert all(found.id for found in models)
