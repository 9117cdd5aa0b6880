"""What each vendor and model gets about reasoning, and what they require of messages."""

from collections.abc import Sequence
from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.providers.base import Endpoint
from gateway.providers.registry import PROVIDERS
from tests.support.table_rows import table_rows

CALL = {"role": "assistant", "tool_calls": [{"id": "123456789", "type": "function", "function": {"name": "f"}}]}
RESULT, USER = {"role": "tool", "tool_call_id": "123456789", "content": "ok"}, {"role": "user", "content": "Hi"}


def shape(
    slug: str, model: str, body: dict[str, Any], wire: Any = "openai_chat"
) -> tuple[dict[str, Any], tuple[str, ...]]:
    endpoint = PROVIDERS[slug].find_endpoint((wire,), model)
    assert endpoint is not None
    shaped = dict(body)
    return shaped, endpoint.apply_quirks(shaped, model)


@table_rows(
    ("models", "words"),
    [
        ("gpt-4o gpt-4.1-mini gpt-3.5-turbo chatgpt-4o-latest gpt-5-chat-latest o1-mini ft:gpt-4o:x", {}),
        ("gpt-5-mini gpt-5 gpt-5-2025-08-07", {"none": "minimal", "low": "low", "xhigh": "high", "max": "high"}),
        ("o1 o3 o4-mini-2025-04-16", {"none": "low", "minimal": "low", "high": "high", "max": "high"}),
        ("gpt-5-pro", {"none": "high", "high": "high", "max": "high"}),
        ("gpt-5.1", {"none": "none", "minimal": "low", "xhigh": "high"}),
        ("gpt-5.1-codex gpt-5-codex", {"none": "low", "minimal": "low", "xhigh": "high"}),
        ("gpt-5.2 gpt-5.4-mini", {"none": "none", "minimal": "low", "xhigh": "xhigh", "max": "xhigh"}),
        ("gpt-5.6-sol gpt-6.1-sol", {"none": "none", "minimal": "low", "max": "max"}),
        ("unknown", {"none": "none", "max": "max"}),
    ],
)
@table_rows("slug", ["openai", "azure_openai"])
def test_an_effort_is_the_nearest_that_the_model_knows(slug: str, models: str, words: dict[str, str]) -> None:
    for model in models.split():
        for word in ("none", "minimal", "low", "high", "xhigh", "max"):
            body, changed = shape(slug, model, {"reasoning_effort": word})
            if not words:
                assert (body, changed) == ({}, () if word == "none" else ("reasoning_effort",))
            elif word in words:
                assert (body, changed) == (
                    {"reasoning_effort": words[word]},
                    () if words[word] == word else ("reasoning_effort",),
                )


@table_rows(
    ("effort", "sent"), [("minimal", "none"), *((word, "default") for word in ("low", "medium", "high", "max"))]
)
def test_a_model_that_reasons_or_not_reasons_for_every_effort_but_the_least(effort: str, sent: str) -> None:
    changed = ("reasoning_effort",)
    assert shape("groq", "qwen/qwen3-32b", {"reasoning_effort": effort}) == ({"reasoning_effort": sent}, changed)
    body = {"reasoning": {"effort": effort, "summary": "auto"}}
    assert shape("groq", "qwen/qwen3-32b", body, "openai_responses")[0]["reasoning"]["effort"] == sent


MODELS = ("gpt-5-pro", "openai/gpt-oss-20b", "qwen/qwen3-32b", "grok-4", "glm-4.6", "mistral-small-latest", "m")
EFFORTS: Sequence[Any] = (
    "none",
    "minimal",
    "low",
    "medium",
    "high",
    "xhigh",
    "max",
    "default",
    "",
    "ultra",
    3,
    None,
    [],
)
ENDPOINTS = [(slug, endpoint) for slug, provider in PROVIDERS.items() for endpoint in provider.endpoints]


@pytest.mark.parametrize(("slug", "endpoint"), ENDPOINTS, ids=lambda value: getattr(value, "wire", value))
def test_no_vendor_is_at_a_loss_for_an_effort(slug: str, endpoint: Endpoint) -> None:
    for model in MODELS:
        for effort in EFFORTS:
            bodies: list[dict[str, Any]] = [{"reasoning_effort": effort}, {"reasoning": {"effort": effort}}]
            for body in bodies:
                endpoint.apply_quirks(dict(body), model)


DISABLED = {"thinking": {"type": "disabled"}}
TEMPLATE = {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}}


@table_rows(
    ("slug", "model", "spelt"),
    [
        ("dashscope", "qwen3-235b-a22b", {"enable_thinking": False}),
        ("siliconflow", "Qwen/Qwen3-8B", {"enable_thinking": False}),
        ("qianfan", "qwen3-8b", {"enable_thinking": False}),
        *((slug, "m", DISABLED) for slug in ("deepseek", "moonshot", "zhipu", "zai", "volcengine", "tokenhub")),
        *((slug, "m", TEMPLATE) for slug in ("vllm", "llama_cpp", "nvidia")),
        ("openrouter", "qwen/qwen3-8b", {"reasoning": {"effort": "none"}}),
        ("together", "Qwen/Qwen3.5-397B-A17B", {"reasoning": {"enabled": False}}),
        ("ollama", "qwen3", {"reasoning_effort": "none"}),
        ("groq", "qwen/qwen3-32b", {"reasoning_effort": "none"}),
        ("groq", "openai/gpt-oss-20b", {"reasoning_effort": "low"}),
        ("groq", "llama-3.3-70b-versatile", {}),
        ("mistral", "mistral-large-latest", {}),
        ("mistral", "mistral-small-latest", {"reasoning_effort": "none"}),
        ("cerebras", "gpt-oss-120b", {"reasoning_effort": "low"}),
        ("xai", "grok-3-mini", {"reasoning_effort": "low"}),
    ],
)
def test_thinking_is_switched_off_as_the_vendor_spells_it(slug: str, model: str, spelt: dict[str, Any]) -> None:
    assert shape(slug, model, {"reasoning_effort": "none"})[0] == spelt
    assert shape(slug, model, {"n": 1})[0] == {"n": 1}


@table_rows(
    ("slug", "model", "field", "off"),
    [
        ("deepseek", "deepseek-v4-flash", "thinking", {"type": "disabled"}),
        ("moonshot", "kimi-k2.6", "thinking", {"type": "disabled"}),
        ("dashscope", "qwen3-235b-a22b", "enable_thinking", False),
        ("dashscope", "qwen3.5-plus", "enable_thinking", False),
    ],
)
def test_a_model_that_has_to_call_a_tool_does_not_think(slug: str, model: str, field: str, off: Any) -> None:
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        forced = {"tool_choice": choice}
        assert shape(slug, model, dict(forced)) == (forced | {field: off}, (field,))
        assert shape(slug, model, forced | {field: "own"})[0] == forced | {field: "own"}
        assert shape(slug, model, forced | {"reasoning_effort": "none"})[0] == forced | {field: off}
        assert shape(slug, model, forced | {"reasoning_effort": "high"})[0] == forced | {field: off}
        assert shape(slug, "older", dict(forced))[0] == forced
    assert shape(slug, model, {"tool_choice": "auto"})[0] == {"tool_choice": "auto"}


@table_rows(
    ("slug", "model", "between"),
    [("mistral", "mistral-large-latest", True), ("nvidia", "mistralai/mistral-large-3", True),
     ("openai", "gpt-5", False), ("openrouter", "mistralai/devstral", True), ("nvidia", "qwen/qwen3", False)],
)  # fmt: skip
def test_an_assistant_speaks_between_a_tool_and_a_user_at_mistral(slug: str, model: str, between: bool) -> None:
    messages: list[dict[str, Any]] = [USER, CALL, RESULT, USER, CALL, RESULT, RESULT, USER]
    sent = [message["role"] for message in shape(slug, model, {"messages": messages})[0]["messages"]]
    roles = [message["role"] for message in messages]
    assert sent == (" ".join(roles).replace("tool user", "tool assistant user").split() if between else roles)


SYSTEM, ANSWER = {"role": "system", "content": "s"}, {"role": "assistant", "content": "a"}
ASKED = {"role": "user", "content": "s"}
DOT, OK, PREFIX = {"role": "user", "content": "."}, {"role": "assistant", "content": "Ok."}, {"prefix": True}


@table_rows(
    ("given", "ordered"),
    [
        ([ANSWER, USER], [DOT, ANSWER, USER]),
        ([CALL, RESULT, USER], [DOT, CALL, RESULT, OK, USER]),
        ([SYSTEM, ANSWER, USER], [SYSTEM, ANSWER, USER]),
        ([USER, ANSWER, SYSTEM, USER], [USER, ANSWER, ASKED, USER]),
        ([USER, CALL, RESULT, SYSTEM], [USER, CALL, RESULT, OK, ASKED]),
        ([USER, SYSTEM], [USER, ASKED]),
        ([SYSTEM], [ASKED]),
        ([USER, ANSWER], [USER, ANSWER | PREFIX]),
        ([ANSWER], [DOT, ANSWER | PREFIX]),
        ([USER, ANSWER | {"prefix": False}], [USER, ANSWER | {"prefix": False}]),
        ([USER, 7, None], [USER, 7, None]),
        ([{"role": []}, {"role": {}}, SYSTEM], [{"role": []}, {"role": {}}, ASKED]),
        ([USER, {"role": []}, SYSTEM, USER], [USER, {"role": []}, SYSTEM, USER]),
        ([], []),
    ],
)
def test_mistrals_models_get_the_order_of_roles_that_they_require(given: list[Any], ordered: list[Any]) -> None:
    assert shape("mistral", "mistral-large-latest", {"messages": given})[0] == {"messages": ordered}
    plain = [{name: value for name, value in one.items() if name != "prefix"} if isinstance(one, dict) else one
             for one in ordered]  # fmt: skip
    if "prefix" not in str(given):
        assert shape("openrouter", "mistralai/devstral", {"messages": given})[0] == {"messages": plain}
        assert shape("openrouter", "qwen/qwen3", {"messages": given})[0] == {"messages": given}


@table_rows(
    ("slug", "model", "body", "text"),
    [("moonshot", "kimi-k2.6", {}, " "), ("moonshot", "kimi-k2.6", DISABLED, None),
     ("deepseek", "deepseek-chat", {}, " "), ("moonshot", "kimi-k2.6", {"reasoning_effort": "none"}, None),
     ("moonshot", "moonshot-v1-8k", {}, None)],
)  # fmt: skip
def test_a_call_has_a_reasoning_before_it_where_one_is_required(
    slug: str, model: str, body: dict[str, Any], text: str | None
) -> None:
    kept = CALL | {"reasoning_content": "why"}
    sent = shape(slug, model, {"messages": [USER, CALL, RESULT, kept, RESULT], **body})[0]["messages"]
    assert (sent[1].get("reasoning_content"), sent[3]) == (text, kept)


@table_rows("slug", ["fireworks", "together", "nvidia", "perplexity", "cerebras", "openai", "groq"])
def test_fields_of_other_providers_are_not_sent_to_strict_ones(slug: str) -> None:
    foreign: dict[str, Any] = {
        "reasoning_details": [],
        "thinking_blocks": [],
        "provider_specific_fields": {},
        "images": [],
    }
    body = {"role": "assistant", "content": "a"}
    assert shape(slug, "m", {"messages": [USER, body | foreign, USER]})[0] == {"messages": [USER, body, USER]}


@table_rows(
    ("slugs", "most"),
    [("zhipu zai", 1), ("moonshot", 5), ("deepseek", 16),
     ("openai azure_openai groq fireworks siliconflow xai openrouter volcengine cerebras qianfan", 4)],
)  # fmt: skip
def test_more_stop_sequences_than_the_vendor_takes_are_refused(slugs: str, most: int) -> None:
    taken = {"stop": [*"abcdefghijklmnopq"[:most]]}
    for slug in slugs.split():
        assert shape(slug, "m", taken)[0] == taken
        with pytest.raises(InvalidRequest) as caught:
            shape(slug, "m", {"stop": [*taken["stop"], "z"]})
        assert caught.value.param == "stop"
    assert shape("vllm", "m", {"stop": [*"abcdefg"]})[0] == {"stop": [*"abcdefg"]}


@table_rows(
    ("slug", "model", "asked", "sent"),
    [
        ("deepseek", "deepseek-v4-pro", "minimal", {"effort": "low"}),
        ("deepseek", "deepseek-v4-pro", "none", {"effort": "none"}),
        ("deepseek", "deepseek-v4-pro", "xhigh", {"effort": "xhigh"}),
        ("openai", "gpt-5-mini", "none", {"effort": "minimal"}),
        ("openai", "gpt-5.2", "minimal", {"effort": "low"}),
        ("azure_openai", "gpt-5-pro", "low", {"effort": "high"}),
        ("openai", "gpt-4o", "high", {}),
        ("groq", "openai/gpt-oss-20b", "xhigh", {"effort": "high"}),
        ("openai", "own-name", "minimal", {"effort": "minimal"}),
    ],
)
def test_an_effort_of_the_responses_api_is_one_that_the_model_knows(
    slug: str, model: str, asked: str, sent: dict[str, Any]
) -> None:
    reasoning = {"effort": asked, "summary": "auto"}
    body, changed = shape(slug, model, {"reasoning": reasoning}, "openai_responses")
    assert body == {"reasoning": {"summary": "auto", **sent}}
    assert changed == (() if sent.get("effort") == asked else ("reasoning.effort",))
    assert reasoning["effort"] == asked  # shared with other attempts
    for other in ({}, {"reasoning": None}, {"reasoning": {"summary": "auto"}}):
        assert shape(slug, model, dict(other), "openai_responses") == (other, ())


@table_rows("word", ["none", "minimal", "low", "medium", "xhigh", "max"])
def test_deepseek_gets_words_that_it_knows_in_a_chat(word: str) -> None:
    sent, changed = shape("deepseek", "deepseek-v4-pro", {"reasoning_effort": word})
    spelt = {"none": DISABLED, "minimal": {"reasoning_effort": "low"}}
    assert sent == spelt.get(word, {"reasoning_effort": word})
    assert changed == (("reasoning_effort",) if word == "minimal" else ())


def _wrap(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


@table_rows(
    ("wire", "tools", "kept"),
    [
        ("openai_chat", [_wrap("f", strict=True), _wrap("g"), _wrap("f")], [0, 1]),
        ("openai_chat", [_wrap("f"), {"type": "custom"}, {"type": "custom"}], [0, 1, 2]),
        ("openai_responses", [{"type": "function", "name": "f"}, {"type": "web_search"}, {"name": "f"}], [0, 1]),
        ("anthropic_messages", [{"name": "f"}, {"name": "f"}, {"name": "g"}], [0, 2]),
        ("openai_chat", [None, "f", _wrap("f")], [0, 1, 2]),
    ],
)
def test_deepseek_gets_the_first_tool_of_each_name(wire: str, tools: list[Any], kept: list[int]) -> None:
    sent, changed = shape("deepseek", "m", {"tools": tools}, wire)
    assert sent == {"tools": [tools[at] for at in kept]}
    assert changed == (("tools",) if len(kept) < len(tools) else ())
