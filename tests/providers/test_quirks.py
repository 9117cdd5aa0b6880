"""Vendors' quirks, by example and in general: what is sent is what they take, and what is shared stays as it is."""

import copy
import re
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.providers.base import Endpoint, Provider
from gateway.providers.quirks import drop_empty, rename, replace
from gateway.providers.registry import PROVIDERS
from tests.support.table_rows import table_rows

ELSEWHERE = re.compile("openai_(images|edits|transcriptions|translations|speech)")
"""Languages of pictures and sound, whose quirks are looked at in test_pictures.py and test_sound.py."""
QUIRKY = [
    pytest.param(endpoint, id=f"{provider.slug}-{endpoint.wire}")
    for provider in PROVIDERS.values()
    for endpoint in provider.endpoints
    if endpoint.quirks and not ELSEWHERE.fullmatch(endpoint.wire)
]
USER = {"role": "user", "content": "Hi"}
SAMPLING = {"temperature": 0.5, "top_p": 0.9, "presence_penalty": 1, "frequency_penalty": 1, "logit_bias": {"1": 1}}


def find_chat(slug: str) -> Endpoint:
    """The vendor's chat endpoint of the convention."""
    found = PROVIDERS[slug].find_endpoint(("openai_chat",), "m")
    assert found is not None
    return found


def shape(slug: str, body: dict[str, Any], model: str = "m") -> dict[str, Any]:
    """What the vendor is sent for ``body``."""
    shaped = dict(body)
    find_chat(slug).apply_quirks(shaped, model)
    return shaped


def test_the_vendors_with_quirks_are_these() -> None:
    assert {str(case.id).partition("-")[0] for case in QUIRKY if case.id} == {
        "openai", "azure_openai", "deepseek", "groq", "lm_studio", "mistral", "moonshot", "ollama", "siliconflow",
        "xai", "zai", "zhipu", "anthropic", "openrouter", "cerebras", "cohere", "jina", "qianfan", "stepfun",
        "vertex", "voyage", "dashscope", "fireworks", "llama_cpp", "nvidia", "perplexity", "together", "tokenhub",
        "vllm", "volcengine", "bedrock",
    }  # fmt: skip


OLDER_NAME = ("cohere", "deepseek", "lm_studio", "mistral", "ollama", "siliconflow", "stepfun", "zai", "zhipu")


@table_rows("slug", OLDER_NAME)
def test_the_limit_goes_by_its_older_name_where_only_that_is_known(slug: str) -> None:
    assert shape(slug, {"max_completion_tokens": 7}) == {"max_tokens": 7}
    assert shape(slug, {"max_completion_tokens": 7, "max_tokens": 5}) == {"max_tokens": 5}
    assert shape(slug, {"max_completion_tokens": 7, "max_tokens": None}) == {"max_tokens": 7}
    assert shape(slug, {"max_completion_tokens": None}) == {}


@table_rows("model", ["gpt-6-luna", "o3", "gpt-4o", "chat-latest", "ft:gpt-4o-2024-08-06:x"])
def test_openais_limit_goes_by_its_newer_name_with_every_model(model: str) -> None:
    assert shape("openai", {"max_tokens": 7}, model) == {"max_completion_tokens": 7}
    assert shape("openai", {"max_tokens": 7, "max_completion_tokens": 5}, model) == {"max_completion_tokens": 5}
    assert shape("openai", {"max_tokens": 7, "max_completion_tokens": None}, model) == {"max_completion_tokens": 7}


@table_rows("model", ["gpt-6-luna", "gpt-5", "gpt-5.4-mini-2026-03-17", "o1", "o4-mini", "gpt-10"])
def test_azures_limit_goes_by_its_newer_name_where_the_deployment_is_named_like_a_reasoning_model(model: str) -> None:
    assert shape("azure_openai", {"max_tokens": 7}, model) == {"max_completion_tokens": 7}


@table_rows("model", ["my-deployment", "DeepSeek-V3.1", "grok-4", "", "o"])
def test_other_deployments_of_azure_are_left_alone(model: str) -> None:
    body = {"max_tokens": 7, "reasoning_effort": "low", **SAMPLING}
    assert shape("azure_openai", body, model) == body


@table_rows("slug", ["openai", "azure_openai"])
@table_rows(
    ("model", "effort", "refused"),
    [
        ("o1", None, True),
        ("o3-mini-2025-01-31", "low", True),
        ("o4-mini-deep-research", None, True),
        ("gpt-5", None, True),
        ("gpt-5-nano", "minimal", True),
        ("gpt-5-mini-2025-08-07", "minimal", True),
        ("gpt-5.1", None, False),
        ("gpt-5.2", "none", False),
        ("gpt-5.4", "high", True),
        ("gpt-6.1-sol", "xhigh", True),
        ("gpt-6-astra", None, False),
        ("gpt-5-chat-latest", None, False),
        ("gpt-5.2-chat-latest", None, False),
        ("gpt-4.1", None, False),
        ("gpt-4o", None, False),
        ("omni", None, False),
    ],
)
def test_models_that_reason_are_sent_no_sampling_parameters(
    slug: str, model: str, effort: str | None, refused: bool
) -> None:
    rest = {"messages": [USER], "stop": ["x"], "logprobs": True, "n": 2}
    rest |= {} if effort is None else {"reasoning_effort": effort}
    assert shape(slug, rest | SAMPLING, model) == (rest if refused else rest | SAMPLING)


def test_mistral_is_sent_what_it_knows_under_the_names_it_knows() -> None:
    body = {
        "model": "mistral-large-latest", "messages": [USER], "stream": True, "stream_options": {"include_usage": True},
        "user": "u", "seed": 5, "logit_bias": {}, "store": False, "verbosity": "low", "safety_identifier": "s",
        "prompt_cache_retention": "24h", "prompt_cache_options": {}, "logprobs": False, "top_logprobs": None, "n": 2,
        "parallel_tool_calls": True, "tool_choice": "required", "reasoning_effort": "high", "prompt_cache_key": "k",
        "metadata": {"a": "b"}, "stop": "x", "safe_prompt": True,
    }  # fmt: skip
    assert shape("mistral", body, "mistral-small-latest") == {
        "model": "mistral-large-latest", "messages": [USER], "stream": True, "random_seed": 5, "n": 2,
        "parallel_tool_calls": True, "tool_choice": "required", "reasoning_effort": "high", "prompt_cache_key": "k",
        "metadata": {"a": "b"}, "stop": "x", "safe_prompt": True,
    }  # fmt: skip


def test_mistral_says_itself_that_it_has_no_log_probabilities() -> None:
    assert shape("mistral", {"logprobs": True, "top_logprobs": 3}) == {"logprobs": True, "top_logprobs": 3}


def test_mistrals_messages_have_the_fields_it_knows() -> None:
    messages = [
        {"role": "developer", "content": "Be brief", "name": "d"},
        {"role": "user", "content": "Hi", "name": "u"},
        {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "annotations": [],
            "reasoning_content": "…",
            "prefix": True,
        },
        {"role": "tool", "content": "5", "tool_call_id": "D681PevKs", "name": "add"},
    ]
    assert shape("mistral", {"messages": messages})["messages"] == [
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "prefix": True},
        {"role": "tool", "content": "5", "tool_call_id": "D681PevKs", "name": "add"},
    ]


def ask(name: Any, **more: Any) -> dict[str, Any]:
    """A call with that id and its result."""
    call = {"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    body = {"role": "assistant", "content": None, "tool_calls": [call | more]}
    return {"messages": [USER, body, {"role": "tool", "tool_call_id": name, "content": "5"}]}


def ids(body: dict[str, Any]) -> tuple[Any, Any]:
    """The id of the call, and the one its result names."""
    return body["messages"][1]["tool_calls"][0]["id"], body["messages"][2]["tool_call_id"]


@table_rows("name", ["D681PevKs", "call_PTLP8xhu3uwZk4l3nlnrrJha", "toolu_1", "functions.f:0", "é" * 9, ""])
def test_ids_that_others_gave_are_ones_that_mistral_takes(name: str) -> None:
    called, answered = ids(shape("mistral", ask(name)))
    assert called == answered
    assert re.fullmatch("[A-Za-z0-9]{9}", called)
    assert (called == name) == (name == "D681PevKs")


@table_rows("slug", ["openai", "azure_openai", "groq"])
def test_ids_that_others_made_too_long_are_shortened(slug: str) -> None:
    long = [ids(shape(slug, ask("fc_" + "0" * 50 + end))) for end in "ab"]
    assert all(called == answered and len(called) == 40 for called, answered in long)
    assert long[0] != long[1]
    assert ids(shape(slug, ask("x" * 40))) == ("x" * 40, "x" * 40)
    assert ids(shape(slug, ask(5))) == (5, 5)


def test_mistral_is_sent_no_marks_of_others() -> None:
    marked = ask("D681PevKs", extra_content={"google": {"thought_signature": "s"}}, cache_control={})
    marked["messages"][1] |= {"reasoning_details": [], "images": []}
    assert shape("mistral", marked) == ask("D681PevKs")


@table_rows("slug", ["openai", "azure_openai", "groq", "mistral"])
def test_what_litellm_adds_to_messages_is_not_sent(slug: str) -> None:
    marked = ask("D681PevKs", provider_specific_fields={"thought_signature": "s"})
    marked["messages"][1] |= {
        "provider_specific_fields": {"refusal": None},
        "thinking_blocks": [],
        "reasoning_items": [],
    }
    assert shape(slug, marked) == ask("D681PevKs")


def test_mistrals_embeddings_have_a_name_of_their_own_for_dimensions() -> None:
    endpoint = PROVIDERS["mistral"].find_endpoint(("openai_embeddings",), "m")
    assert endpoint is not None
    body = {"model": "mistral-embed", "input": "a", "dimensions": 256, "user": "u", "encoding_format": "float"}
    endpoint.apply_quirks(body, "mistral-embed")
    assert body == {"model": "mistral-embed", "input": "a", "output_dimension": 256, "encoding_format": "float"}


def test_groq_is_not_sent_what_it_refuses() -> None:
    body = {"messages": [USER | {"name": "u"}], "logit_bias": {"1": 1}, "logprobs": False, "top_logprobs": 0, "n": None}
    assert shape("groq", body) == {"messages": [USER]}


def test_groq_says_itself_that_it_cannot_answer_twice_or_with_log_probabilities() -> None:
    body = {"n": 2, "logprobs": True, "top_logprobs": 2}
    assert shape("groq", body) == body
    assert shape("groq", {"n": 1}) == {"n": 1}


@table_rows(
    ("model", "penalized", "effort"),
    [
        ("grok-4", False, False),
        ("grok-4-0709", False, False),
        ("grok-4-fast-reasoning", False, False),
        ("grok-4-1-fast", False, False),
        ("grok-4-fast-non-reasoning", True, False),
        ("grok-4.20", False, False),
        ("grok-4.20-0309-non-reasoning", True, False),
        ("grok-4.20-multi-agent", False, True),
        ("grok-4.3", False, True),
        ("grok-4.7-latest", False, True),
        ("grok-3", True, False),
        ("grok-3-mini-fast", False, True),
        ("grok-2-vision", True, True),
    ],
)
def test_xais_reasoning_models_are_sent_no_penalties_and_an_effort_only_where_they_take_it(
    model: str, penalized: bool, effort: bool
) -> None:
    body = {"temperature": 0.5, "presence_penalty": 1, "frequency_penalty": 0, "reasoning_effort": "low"}
    refused = set() if penalized else {"presence_penalty", "frequency_penalty"}
    refused |= set() if effort else {"reasoning_effort"}
    assert shape("xai", body, model) == {name: value for name, value in body.items() if name not in refused}


def test_xai_says_itself_that_it_cannot_stop() -> None:
    assert shape("xai", {"stop": ["\n"]}, "grok-4") == {"stop": ["\n"]}
    assert shape("xai", {"stop": None}, "grok-4") == {}
    assert shape("xai", {"stop": []}, "grok-4") == {}


@table_rows("model", ["kimi-k2.5", "kimi-k2.6", "kimi-k2.7-code-highspeed"])
def test_kimis_that_sample_their_own_way_are_let(model: str) -> None:
    assert shape("moonshot", {"n": 1} | SAMPLING, model) == {"n": 1, "logit_bias": {"1": 1}}


@table_rows("model", ["moonshot-v1-8k", "kimi-k2-thinking", "kimi-k3"])
def test_other_kimis_are_sent_what_was_asked(model: str) -> None:
    assert shape("moonshot", SAMPLING, model) == SAMPLING


@table_rows("slug", ["zhipu", "zai"])
def test_zhipus_name_of_a_user_is_another(slug: str) -> None:
    assert shape(slug, {"user": "user-1"}) == {"user_id": "user-1"}
    assert shape(slug, {"user": "user-1", "user_id": "user-2"}) == {"user_id": "user-2"}


def hash_of(name: str) -> str:
    return sha256(name.encode()).hexdigest()


USER_LIMITS = [
    ("openai", "user", 64), ("openai", "safety_identifier", 64), ("azure_openai", "user", 64),
    ("openrouter", "user", 128), ("openrouter", "safety_identifier", 128), ("zhipu", "user_id", 128),
    ("zai", "user_id", 128),
]  # fmt: skip


@table_rows(("slug", "field", "most"), USER_LIMITS)
def test_the_name_of_a_user_that_is_too_long_is_hashed(slug: str, field: str, most: int) -> None:
    longest = "u" * most
    assert shape(slug, {field: longest}) == {field: longest}
    assert shape(slug, {field: longest + "1"}) == {field: hash_of(longest + "1")}


WITH_USER = ("openai_embeddings", "openai_completions", "openai_responses", "openai_images", "openai_edits",
             "chat_pictures")  # fmt: skip


@table_rows("slug", ["openai", "azure_openai", "openrouter"])
@table_rows("wire", WITH_USER)
def test_it_is_hashed_in_every_language_that_has_one(slug: str, wire: str) -> None:
    for endpoint in PROVIDERS[slug].endpoints:
        if endpoint.wire == wire:
            body = {"user": "u" * 200}
            endpoint.apply_quirks(body, "m")
            assert body == {"user": hash_of("u" * 200)}


def test_zhipu_is_told_no_name_that_is_too_short() -> None:
    assert shape("zhipu", {"user": "u" * 5}) == {"user_id": hash_of("u" * 5)}


@table_rows("slug", ["anthropic", "openrouter"])
def test_a_long_name_in_metadata_is_hashed_and_the_callers_own_left_alone(slug: str) -> None:
    endpoint = PROVIDERS[slug].find_endpoint(("anthropic_messages",), "m")
    assert endpoint is not None
    for length, text in ((256, "u" * 256), (257, hash_of("u" * 257))):
        metadata = {"user_id": "u" * length, "more": 1}
        body = {"metadata": metadata}
        endpoint.apply_quirks(body, "m")
        assert body == {"metadata": {"user_id": text, "more": 1}}
        assert metadata["user_id"] == "u" * length


@table_rows("name", [None, 5, ["u" * 300], ""])
def test_what_is_no_name_of_a_user_is_the_vendors_to_refuse(name: object) -> None:
    assert shape("openai", {"user": name}) == {"user": name}


@table_rows("slug", ["cerebras", "deepseek", "mistral", "moonshot", "qianfan", "stepfun", "zai", "zhipu"])
def test_a_developer_is_a_system_where_only_that_is_known(slug: str) -> None:
    messages = [{"role": "developer", "content": "Be brief"}, USER]
    assert shape(slug, {"messages": messages})["messages"] == [{"role": "system", "content": "Be brief"}, USER]


@table_rows("value", [None, False, 0, 0.0, "", [], {}])
def test_a_field_that_asks_for_nothing_is_idle(value: object) -> None:
    body = {"a": value, "b": value}
    drop_empty("a", "c")(body, "m")
    assert body == {"b": value}


@table_rows("value", [True, 1, "x", [0], {"a": None}])
def test_a_field_that_asks_for_something_is_not_idle(value: object) -> None:
    body = {"a": value}
    drop_empty("a")(body, "m")
    assert body == {"a": value}


@table_rows(("answer", "sent"), [(1, 1), (None, 2)])
def test_a_field_that_replaces_another_wins_where_it_says_something(answer: int | None, sent: int) -> None:
    body = {"a": answer, "b": 2}
    replace("a", "b")(body, "m")
    assert body == {"b": sent}


def test_a_field_that_is_not_there_is_not_renamed() -> None:
    body = {"b": 1}
    rename("a", "b")(body, "m")
    rename("c", "d")(body, "m")
    assert body == {"b": 1}


MODELS = st.sampled_from(
    ["m", "", "o3", "gpt-5", "gpt-5.4", "grok-4", "grok-3", "kimi-k2.6", "mistral-large-latest", "\n", "a" * 500]
)
FIELDS = [
    "messages", "max_tokens", "max_completion_tokens", "temperature", "stop", "n", "logprobs", "user", "seed",
    "stream_options", "reasoning_effort", "logit_bias", "dimensions", "presence_penalty", "functions", "other",
]  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "name", "content", "refusal", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)
MESSAGES = st.lists(
    JSON
    | st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "developer", "assistant", "tool"])},
        optional={"name": JSON, "refusal": JSON, "content": JSON},
    ),
    max_size=3,
)
BODIES = st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6) | st.fixed_dictionaries({"messages": MESSAGES})


@pytest.mark.parametrize("endpoint", QUIRKY)
@given(body=BODIES, model=MODELS)
def test_a_quirk_takes_any_json_changes_only_the_outermost_object_and_has_done_with_once(
    endpoint: Endpoint, body: dict[str, Any], model: str
) -> None:
    before = copy.deepcopy(body)
    shaped = dict(body)
    if isinstance(body.get("stop"), list):  # too many are refused: see test_efforts.py
        body["stop"] = before["stop"] = shaped["stop"] = body["stop"][:1]
    endpoint.apply_quirks(shaped, model)
    assert body == before
    assert set(shaped) - set(body) <= {
        "max_tokens",
        "max_completion_tokens",
        "random_seed",
        "output_dimension",
        "top_k",
        "user_id",
        "anthropic_version",
        "thinking",
        "enable_thinking",
        "reasoning",
        "chat_template_kwargs",
    }
    again = dict(shaped)
    endpoint.apply_quirks(again, model)
    assert again == shaped


@table_rows("provider", PROVIDERS.values(), ids=lambda provider: provider.slug)
def test_an_ordinary_request_is_sent_as_it_is(provider: Provider) -> None:
    for endpoint in provider.endpoints:
        if ELSEWHERE.fullmatch(endpoint.wire) or (provider.slug, endpoint.wire) == ("vertex", "anthropic_messages"):
            continue
        body = {
            "model": "m",
            "messages": [USER],
            "stream": True,
            "temperature": 0.5,
            "top_p": 0.9,
            "tools": [],
            "stop": "x",
        }
        shaped = dict(body)
        endpoint.apply_quirks(shaped, "m")
        assert shaped == body
        if provider.slug not in {"deepseek", "groq", "mistral", "moonshot", "zai", "zhipu"}:
            assert shaped["messages"] is body["messages"]
