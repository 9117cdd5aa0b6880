"""What providers' lists say of models, in the shapes that each provider documents."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.model_description import ModelDescription, list_known_properties
from gateway.formats.model_lists.listed_description import parse_description, parse_tokens
from tests.support.table_rows import table_rows

OPENROUTER = {
    "id": "openai/gpt-5-mini",
    "canonical_slug": "openai/gpt-5-mini-2025-08-07",
    "created": 1754587407,
    "context_length": 400000,
    "architecture": {
        "modality": "text+image+file->text",
        "input_modalities": ["text", "image", "file"],
        "output_modalities": ["text"],
        "tokenizer": "GPT",
    },
    "pricing": {"prompt": "0.00000025", "completion": "0.000002", "input_cache_read": "0.000000025"},
    "top_provider": {"context_length": 400000, "max_completion_tokens": 128000, "is_moderated": True},
    "supported_parameters": ["include_reasoning", "max_tokens", "reasoning", "structured_outputs", "tools"],
    "expiration_date": "2027-02-01",
}
MISTRAL = {
    "id": "pixtral-large-2411",
    "object": "model",
    "created": 1729000000,
    "owned_by": "mistralai",
    "capabilities": {"completion_chat": True, "function_calling": True, "fine_tuning": False, "vision": True},
    "max_context_length": 131072,
    "deprecation": "2027-02-27T12:00:00Z",
    "type": "base",
}
ANTHROPIC = {
    "type": "model",
    "id": "claude-opus-4-6",
    "created_at": "2026-02-04T00:00:00Z",
    "max_input_tokens": 1000000,
    "max_tokens": 128000,
    "lifecycle": "active",
    "deprecated_at": None,
    "capabilities": {
        "batch": {"supported": True},
        "image_input": {"supported": True},
        "pdf_input": {"supported": True},
        "server_tools": {"supported": True},
        "structured_outputs": {"supported": True},
        "thinking": {"supported": False},
    },
}
VLLM = {"id": "Qwen/Qwen3-8B", "object": "model", "owned_by": "vllm", "root": "Qwen/Qwen3-8B", "max_model_len": 40960}
LLAMA_CPP = {
    "id": "gemma",
    "object": "model",
    "owned_by": "llamacpp",
    "meta": {"vocab_type": 2, "n_ctx": 8192, "n_ctx_train": 131072, "n_params": 4},
    "architecture": {"input_modalities": ["text", "image", "audio"], "output_modalities": ["text"]},
}
LM_STUDIO = {"id": "qwen2-vl-7b-instruct", "type": "vlm", "state": "not-loaded", "max_context_length": 32768}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "openrouter": (
        OPENROUTER,
        {
            "kind": "chat",
            "context_window": 400_000,
            "max_output_tokens": 128_000,
            "input_modalities": ("text", "image", "file"),
            "output_modalities": ("text",),
            "features": ("tools", "structured_output", "reasoning", "caching"),
            "deprecated_at": "2027-02-01T00:00:00Z",
        },
    ),
    "mistral": (
        MISTRAL,
        {
            "kind": "chat",
            "context_window": 131_072,
            "input_modalities": ("text", "image"),
            "features": ("tools",),
            "deprecated_at": "2027-02-27T00:00:00Z",
        },
    ),
    "anthropic": (
        ANTHROPIC,
        {
            "context_window": 1_000_000,
            "max_output_tokens": 128_000,
            "input_modalities": ("text", "image", "file"),
            "features": ("tools", "structured_output", "caching", "web_search"),
        },
    ),
    "vllm": (VLLM, {"context_window": 40_960}),
    "llama_cpp": (
        LLAMA_CPP,
        {
            "kind": "chat",
            "context_window": 8_192,
            "input_modalities": ("text", "image", "audio"),
            "output_modalities": ("text",),
        },
    ),
    "lm_studio": (LM_STUDIO, {"kind": "chat", "context_window": 32_768, "input_modalities": ("text", "image")}),
    "lm_studio_loaded": (
        {"id": "m", "type": "llm", "max_context_length": 131072, "loaded_context_length": 4096,
         "capabilities": ["tool_use"]},
        {"kind": "chat", "context_window": 4_096, "features": ("tools",)},
    ),
    "lm_studio_embeddings": (
        {"id": "e", "type": "embeddings", "max_context_length": 2048},
        {"kind": "embedding", "context_window": 2_048},
    ),
    "groq": (
        {"id": "m", "object": "model", "active": True, "context_window": 131072, "max_completion_tokens": 32768},
        {"context_window": 131_072, "max_output_tokens": 32_768},
    ),
    "images": (
        {"id": "i", "architecture": {"input_modalities": ["text"], "output_modalities": ["image"]}},
        {"kind": "image", "input_modalities": ("text",), "output_modalities": ("image",)},
    ),
    "another gateway": (
        {"id": "m", "kind": "rerank", "context_window": 5, "max_output_tokens": 4, "input_modalities": ["text"],
         "features": [], "deprecated_at": "2027-01-31T00:00:00Z"},
        {"kind": "rerank", "context_window": 5, "max_output_tokens": 4, "input_modalities": ("text",), "features": (),
         "deprecated_at": "2027-01-31T00:00:00Z"},
    ),
    "openai": ({"id": "gpt-5", "object": "model", "created": 5, "owned_by": "openai"}, {}),
}  # fmt: skip
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 10**12)
    | st.floats()
    | st.sampled_from(["text", "chat", "tools", "2027"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["supported", "n_ctx", "vision"]), inner)
    ),
    max_leaves=6,
)
FIELDS = sorted({field for item, _ in CASES.values() for field in item})


@pytest.mark.parametrize("name", CASES)
def test_a_providers_fields_are_understood(name: str) -> None:
    item, expected = CASES[name]
    description = parse_description(item)
    assert (list_known_properties(description) if description else {}) == expected


@given(st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_whatever_a_list_says_is_a_description_or_nothing(item: dict[str, Any]) -> None:
    description = parse_description(item)
    assert description is None or isinstance(description, ModelDescription)
    if description is not None:
        hash(description)  # it has no part of the item itself
        assert all(value is None or value > 0 for value in (description.context_window, description.max_output_tokens))


@table_rows("value", [0, -1, True, "8192", None, 1.5, 10**9, [], float("nan"), float("inf")])
def test_a_number_of_tokens_that_cannot_be_believed_is_none(value: object) -> None:
    assert parse_tokens(value) is None
    assert parse_tokens(8_192.0) == 8_192
