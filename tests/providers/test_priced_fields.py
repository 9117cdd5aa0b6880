"""Which fields of a request change what is bought, of every vendor, and which values are harmless."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.providers.priced_fields import PRICED_FIELDS, list_betas, list_named_models, list_priced_fields
from gateway.providers.registry import PROVIDERS
from tests.support.table_rows import table_rows

LOCAL = {"ollama", "lm_studio", "vllm", "llama_cpp", "demo"}


def find_priced(slug: str, **body: Any) -> list[str]:
    return list(list_priced_fields(body, PROVIDERS[slug].priced_fields))


@table_rows("slug", PROVIDERS)
def test_a_tier_and_a_search_are_bought_from_every_vendor_but_ones_own_machine(slug: str) -> None:
    found = find_priced(slug, service_tier="priority", web_search_options={}, tools=[{"type": "web_search"}])
    assert found == ([] if slug in LOCAL else ["service_tier", "tools.web_search", "web_search_options"])


@table_rows(
    ("slug", "body"),
    [
        ("openrouter", {"models": ["a/b"]}),
        ("openrouter", {"route": "fallback"}),
        ("openrouter", {"preset": "dear"}),
        ("openrouter", {"provider": {"order": ["x"]}}),
        ("openrouter", {"plugins": [{"id": "web"}]}),
        ("anthropic", {"speed": "fast"}),
        ("anthropic", {"inference_geo": "us"}),
        ("anthropic", {"fallbacks": [{"model": "a/b"}]}),
        ("anthropic", {"billing_policy": {"type": "billing_policy", "bill_to": "user_profile"}}),
        ("groq", {"search_settings": {"country": "x"}}),
        ("xai", {"search_parameters": {"mode": "auto"}}),
        ("dashscope", {"enable_search": True}),
        ("perplexity", {"preset": "high"}),
        ("perplexity", {"models": ["a/b"]}),
        ("qianfan", {"web_search": {"enable": True}}),
        ("model_gateway", {"fallbacks": [{"model": "a/b"}]}),
        ("custom", {"models": ["a/b"]}),
        ("custom", {"fallbacks": [{"model": "a/b"}]}),
    ],
)
def test_a_vendors_own_fields_are_found(slug: str, body: dict[str, Any]) -> None:
    assert find_priced(slug, **body) == list(body)
    assert body.keys() <= PRICED_FIELDS


HARMLESS = [
    {"service_tier": "auto"}, {"service_tier": "default"}, {"service_tier": None}, {"service_tier": "standard_only"},
    {"web_search_options": None}, {"models": []}, {"models": None}, {"route": None}, {"preset": ""}, {"plugins": []},
    {"provider": {}}, {"speed": "standard"}, {"enable_search": False}, {"search_parameters": {"mode": "off"}},
    {"tools": None}, {"tools": []}, {"tools": "x"}, {"tools": [{}, {"type": None}, {"name": "f"}]},
    {"tools": [{"type": "function"}, {"type": "custom"}, {"type": "local_shell"}, {"type": "apply_patch"}]},
    {"tools": [{"type": "bash_20250124"}, {"type": "text_editor_20250728"}, {"type": "computer_20250124"}]},
    {"tools": [{"type": "computer_use_preview"}, {"type": "memory_20250818"}, {"type": "mcp"}]},
    {"tools": [{"type": "shell", "environment": {"type": "local"}}]},
    {"temperature": 1, "user": "x", "metadata": {"models": ["a"]}},
]  # fmt: skip


@table_rows("slug", PROVIDERS)
@table_rows("body", HARMLESS, ids=str)
def test_what_buys_nothing_else_is_none(slug: str, body: dict[str, Any]) -> None:
    assert find_priced(slug, **body) == []


HOSTED = ["web_search", "web_search_preview_2025_03_11", "web_search_20250305", "web_fetch_20250910", "file_search",
          "code_interpreter", "code_execution_20250825", "image_generation", "shell", "browser_search", "x_search",
          "builtin_function", "retrieval", "openrouter:web_search", "functions", "google_search"]  # fmt: skip


@table_rows("kind", HOSTED)
def test_a_tool_that_the_vendor_runs_is_named_by_its_type(kind: str) -> None:
    assert find_priced("openai", tools=[{"type": "function"}, {"type": kind}]) == [f"tools.{kind}"]


def test_models_are_found_wherever_a_field_names_them() -> None:
    body = {"models": ["a", "b"], "fallbacks": [{"model": "c"}, "d"], "other": ["e"]}
    assert list(list_named_models(body, frozenset({"models", "fallbacks"}))) == [
        ("a", "models[0]"), ("b", "models[1]"), ("c", "fallbacks[0]"), ("d", "fallbacks[1]"),
    ]  # fmt: skip
    assert list(list_named_models(body, frozenset({"models"}))) == [("a", "models[0]"), ("b", "models[1]")]
    assert list(list_named_models({"models": "a"}, PRICED_FIELDS)) == [("a", "models[0]")]


@table_rows("models", [[5], [None], [""], [["a"]], {"a": 1}, [{"name": "x"}], ["a", {}]])
def test_a_model_that_cannot_be_read_is_refused(models: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        list(list_named_models({"models": models}, PRICED_FIELDS))
    assert (caught.value.param or "").startswith("models[")


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text("ab", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "model", "mode"]), inner),
    max_leaves=6,
)


def test_priced_fields_are_those_of_all_vendors() -> None:
    assert {name for provider in PROVIDERS.values() for name in provider.priced_fields} == PRICED_FIELDS


@given(st.dictionaries(st.sampled_from(sorted(PRICED_FIELDS)), JSON), st.sampled_from(sorted(PROVIDERS)))
def test_any_json_is_looked_through(body: dict[str, Any], slug: str) -> None:
    fields = PROVIDERS[slug].priced_fields
    try:
        found = find_priced(slug, **body)
    except InvalidRequest as error:  # a 400 that names its field
        found = [(error.param or "").partition("[")[0]]
    assert {name.partition(".")[0] for name in found} <= fields & body.keys()


@table_rows(
    ("model", "variant"),
    [
        ("openai/gpt-4o", None), ("openai/gpt-4o:free", None), ("x/y:thinking", None), ("x/nitro", None),
        ("openai/gpt-4o:online", ":online"), ("x/y:free:online", ":online"), ("x/y:online:free", ":online"),
        ("x/y:nitro", ":nitro"), ("x/y:floor", ":floor"), ("x/y:exacto", ":exacto"), ("x/y:onliner", None),
        ("@preset/dear", "@preset"), ("x/y@preset/dear", "@preset"), ("x/y:nitro@preset/dear", ":nitro"),
    ],
)  # fmt: skip
def test_a_variant_of_a_model_is_told_by_its_name(model: str, variant: str | None) -> None:
    assert PROVIDERS["openrouter"].find_variant(model) == variant
    assert PROVIDERS["openai"].find_variant(model) is None


@table_rows(
    ("model", "variant"), [("a/b", None), ("a/b:groq", ":groq"), ("a/b:fireworks-ai", ":fireworks-ai"), ("a:x/b", None)]
)
def test_a_vendor_that_serves_a_model_of_hugging_face_has_its_own_price(model: str, variant: str | None) -> None:
    assert PROVIDERS["huggingface"].find_variant(model) == variant


def test_features_of_anthropic_are_harmless_if_they_cost_tokens_alone() -> None:
    harmless = "interleaved-thinking-2025-05-14, claude-code-20250219,context-1m-2025-08-07,fast-mode-2026-02-01"
    assert list_betas(harmless) == []
    others = ["files-api-2025-04-14", "message-threads-2026-08-12", "skills-2025-10-02", "new-2027-01-01", "pdfs"]
    assert list_betas(", ".join([*others, "pdfs-2024-09-25"])) == others
