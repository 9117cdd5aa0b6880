"""Requests in Bedrock's Converse format."""

import base64
from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.formats.chat.anthropic.request_reader import parse_chat_request as read_messages
from gateway.formats.chat.bedrock.request_writer import build_body
from gateway.formats.chat.openai.request_reader import parse_chat_request as read_chat
from tests.support.image_providers import draw
from tests.support.table_rows import table_rows

SONNET = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
OPUS = "anthropic.claude-opus-4-7"
NOVA = "amazon.nova-2-lite-v1:0"
LLAMA = "meta.llama4-scout-17b-instruct-v1:0"
OSS = "openai.gpt-oss-120b-1:0"
ASK = [{"role": "user", "content": "Hi"}]
PIXELS = base64.b64encode(draw(width=2, height=2)).decode()
PDF = base64.b64encode(b"%PDF-1.7 and so on").decode()
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
SPEC = {"toolSpec": {"name": "f", "description": "d", "inputSchema": {"json": {"type": "object"}}}}
CALLED: list[dict[str, Any]] = [
    *ASK,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
]


def chat(model: str = SONNET, **body: Any) -> dict[str, Any]:
    return build_body(read_chat({"model": "m", "messages": ASK, **body}), model)


def messages(model: str = SONNET, **body: Any) -> dict[str, Any]:
    return build_body(read_messages({"model": "m", "max_tokens": 9, "messages": ASK, **body}), model)


def test_a_chat_has_its_turns_its_system_and_its_limits() -> None:
    system = {"role": "system", "content": "Be brief"}
    body = chat(messages=[system, *ASK], max_tokens=99, temperature=0.5, top_p=0.9, stop=["END"], model=LLAMA)
    assert chat(LLAMA, messages=[system, *ASK], max_tokens=99, temperature=0.5, top_p=0.9, stop=["END"]) == {
        "system": [{"text": "Be brief"}],
        "messages": [{"role": "user", "content": [{"text": "Hi"}]}],
        "inferenceConfig": {"maxTokens": 99, "temperature": 0.5, "topP": 0.9, "stopSequences": ["END"]},
    }
    assert body["inferenceConfig"]["maxTokens"] == 99


def test_only_claude_gets_a_limit_that_the_client_has_not_set() -> None:
    assert chat(SONNET)["inferenceConfig"] == {"maxTokens": 8_192}
    assert "inferenceConfig" not in chat(LLAMA)


def test_calls_and_results_of_tools_keep_their_ids() -> None:
    body = chat(messages=CALLED, tools=[TOOL], tool_choice="required")
    assert body["messages"][1:] == [
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "c1", "name": "f", "input": {"a": 1}}}]},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "c1", "content": [{"text": "sunny"}]}}]},
    ]
    assert body["toolConfig"] == {"tools": [SPEC], "toolChoice": {"any": {}}}


@table_rows("content", ["", " \n", [], [{"type": "text", "text": ""}]])
@table_rows("model", [SONNET, NOVA, LLAMA])
def test_an_empty_result_of_a_tool_is_a_text_that_says_so(content: Any, model: str) -> None:
    asked = [*CALLED[:2], {**CALLED[2], "content": content}]
    assert chat(model, messages=asked)["messages"][2]["content"] == [
        {"toolResult": {"toolUseId": "c1", "content": [{"text": "(no output)"}]}}
    ]
    failed = {"type": "tool_result", "tool_use_id": "c1", "content": content, "is_error": True}
    use = {"type": "tool_use", "id": "c1", "name": "f", "input": {}}
    sent = [*ASK, {"role": "assistant", "content": [use]}, {"role": "user", "content": [failed]}]
    assert messages(model, messages=sent)["messages"][2]["content"][0]["toolResult"]["content"] == [
        {"text": "(no output)"}
    ]


@table_rows(
    ("choice", "written"),
    [
        (None, None),
        ("auto", {"auto": {}}),
        ("required", {"any": {}}),
        ({"type": "function", "function": {"name": "f"}}, {"tool": {"name": "f"}}),
    ],
)
def test_a_choice_of_tools_has_bedrocks_form(choice: Any, written: Any) -> None:
    more = {} if choice is None else {"tool_choice": choice}
    assert chat(tools=[TOOL], **more)["toolConfig"].get("toolChoice") == written


def test_tools_that_must_not_be_used_are_left_out_or_forbidden_in_words() -> None:
    assert "toolConfig" not in chat(tools=[TOOL], tool_choice="none")
    body = chat(messages=CALLED, tools=[TOOL], tool_choice="none")
    assert body["toolConfig"] == {"tools": [SPEC]}
    assert body["system"] == [{"text": "Call no tools in this turn: answer in words."}]


def test_tools_of_earlier_turns_are_named_if_the_request_has_none() -> None:
    assert chat(messages=CALLED)["toolConfig"] == {
        "tools": [{"toolSpec": {"name": "f", "inputSchema": {"json": {"type": "object"}}}}]
    }


def test_long_ids_and_names_are_shortened_alike_and_distinctly() -> None:
    ids = ["c" * 70 + "1", "c" * 70 + "2"]
    calls = [{"id": one, "type": "function", "function": {"name": "f", "arguments": "{}"}} for one in ids]
    results = [{"role": "tool", "tool_call_id": one, "content": one[-1]} for one in ids]
    body = chat(messages=[*ASK, {"role": "assistant", "content": None, "tool_calls": calls}, *results], tools=[TOOL])
    sent = [block["toolUse"]["toolUseId"] for block in body["messages"][1]["content"]]
    assert sent == [block["toolResult"]["toolUseId"] for block in body["messages"][2]["content"]]
    assert len(set(sent)) == 2
    assert max(map(len, sent)) <= 64


def test_an_image_and_files_are_sent_as_data() -> None:
    text = base64.b64encode("grüß".encode()).decode()
    content = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXELS}"}},
        {"type": "file", "file": {"filename": "a_b.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}},
        {"type": "file", "file": {"filename": "a_b.pdf", "file_data": f"data:text/plain;base64,{text}"}},
    ]
    (turn,) = chat(messages=[{"role": "user", "content": content}])["messages"]
    assert turn["content"] == [
        {"image": {"format": "png", "source": {"bytes": PIXELS}}},
        {"document": {"name": "a-b-pdf", "format": "pdf", "source": {"bytes": PDF}}},
        {"document": {"name": "a-b-pdf 2", "format": "txt", "source": {"bytes": text}}},
        {"text": "."},
    ]


@table_rows(
    ("part", "param"),
    [
        ({"type": "image_url", "image_url": {"url": "https://x.org/a.png"}}, "messages"),
        (
            {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
            "messages[0].content[0].input_audio",
        ),
    ],
)
def test_what_bedrock_cannot_take_is_refused(part: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(messages=[{"role": "user", "content": [part]}])
    assert caught.value.param == param


def test_cache_controls_become_cache_points_of_models_that_cache() -> None:
    short, long = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}
    body: dict[str, Any] = {
        "system": [{"type": "text", "text": "s", "cache_control": long}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": short}]}],
        "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}, "cache_control": long}],
    }
    answer = messages(**body)
    hour = {"cachePoint": {"type": "default", "ttl": "1h"}}
    assert answer["system"] == [{"text": "s"}, hour]
    assert answer["messages"][0]["content"] == [{"text": "Hi"}, {"cachePoint": {"type": "default"}}]
    assert answer["toolConfig"]["tools"] == [SPEC, hour]
    assert "cachePoint" not in str(messages(LLAMA, **body))


def test_a_failed_result_says_so() -> None:
    use = {"type": "tool_use", "id": "c1", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "no", "is_error": True}
    turns = [*ASK, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    body = messages(messages=turns)["messages"][2]["content"][0]["toolResult"]
    assert body == {"toolUseId": "c1", "content": [{"text": "no"}], "status": "error"}
    assert "status" not in messages(LLAMA, messages=turns)["messages"][2]["content"][0]["toolResult"]


THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
SEALED = {"type": "redacted_thinking", "data": "c2VhbGVk"}


def test_reasoning_goes_back_to_claude_alone() -> None:
    turns = [*ASK, {"role": "assistant", "content": [THOUGHT, SEALED, {"type": "text", "text": "x"}]}, *ASK]
    assert messages(messages=turns)["messages"][1]["content"] == [
        {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "c2ln"}}},
        {"reasoningContent": {"redactedContent": "c2VhbGVk"}},
        {"text": "x"},
    ]
    assert messages(NOVA, messages=turns)["messages"][1]["content"] == [{"text": "x"}]


@table_rows(
    ("model", "asked", "more"),
    [
        (SONNET, {"reasoning_effort": "low"}, {"thinking": {"type": "enabled", "budget_tokens": 2_048}}),
        (
            OPUS,
            {"reasoning_effort": "high"},
            {"thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "high"}},
        ),
        (NOVA, {"reasoning_effort": "low"}, {"reasoningConfig": {"type": "enabled", "maxReasoningEffort": "low"}}),
        (NOVA, {"reasoning_effort": "none"}, {"reasoningConfig": {"type": "disabled"}}),
        (
            NOVA,
            {"reasoning_effort": "high", "max_tokens": 9},
            {"reasoningConfig": {"type": "enabled", "maxReasoningEffort": "medium"}},
        ),
        (
            NOVA,
            {"reasoning_effort": "xhigh", "temperature": 0.5},
            {"reasoningConfig": {"type": "enabled", "maxReasoningEffort": "high"}},
        ),
        (OSS, {"reasoning_effort": "minimal"}, {"reasoning_effort": "low"}),
        (LLAMA, {"reasoning_effort": "high"}, None),
        (SONNET, {}, None),
    ],
)
def test_reasoning_is_asked_for_in_each_models_words(model: str, asked: dict[str, Any], more: Any) -> None:
    body = chat(model, **asked)
    assert body.get("additionalModelRequestFields") == more
    if "temperature" in asked:
        assert "inferenceConfig" not in body


@table_rows(
    ("model", "more"),
    [
        (SONNET, {"top_k": 5}),
        ("mistral.mistral-large-2407-v1:0", {"top_k": 5}),
        (NOVA, {"inferenceConfig": {"topK": 5}}),
        (LLAMA, None),
    ],
)
def test_top_k_has_each_models_name(model: str, more: Any) -> None:
    assert messages(model, top_k=5).get("additionalModelRequestFields") == more


def test_a_schema_is_text_in_the_output_configuration() -> None:
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    assert chat(response_format=form)["outputConfig"] == {
        "textFormat": {
            "type": "json_schema",
            "structure": {
                "jsonSchema": {
                    "schema": '{"type":"object","properties":{},"additionalProperties":false}',
                    "name": "answer",
                }
            },
        }
    }
