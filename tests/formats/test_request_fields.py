"""Every field of a chat request, in every API format that it can be sent in: passed, translated, refused or dropped.

A field that the vendors' own Python libraries know and that a table lacks fails a test.
"""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from anthropic.types import message_create_params as anthropic_params
from anthropic.types.beta import message_create_params as anthropic_beta
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params as responses_params

from gateway.domain.api_format import Wire
from gateway.domain.inference_request import InferenceRequest
from gateway.errors import InvalidRequest
from gateway.formats.anthropic.request import parse_messages_call
from gateway.formats.openai.chat import parse_chat_call
from gateway.formats.openai.responses import parse_responses_call
from gateway.formats.registry import make_exchange
from gateway.formats.translator import ResponseIdentity
from gateway.providers.base import Body
from tests.support.request_fields import (
    PASSED,
    Dropped,
    Outcome,
    Refused,
    Row,
    Sent,
    ask_with,
    config,
    content_of,
    dropped,
)

NAMING = ResponseIdentity("0123", "claude-haiku-4-5", 1_700_000_000)
"""A model that takes every sampling parameter of Anthropic's format, but not two of them at once."""


HI = {"role": "user", "content": "Hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
PLAIN = {"type": "object", "properties": {"a": {"type": "string"}}}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": PLAIN}}
CUSTOM = {"type": "custom", "custom": {"name": "f"}}
ONE_TEXT = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
CLAUDE_TOOL = {"name": "f", "input_schema": PLAIN}
GEMINI_TOOL = {"functionDeclarations": [{"name": "f", "parametersJsonSchema": PLAIN}]}
TUNES = "it only tunes an answer"
CACHES = "providers of the other formats cache by themselves, or by marks in the messages"
HOSTED = "it serves tools that run at Anthropic, which are left out"
REFUSED = Refused()
STRUCTURE = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
TOOLS: Mapping[str, Any] = {"tools": [FUNCTION]}
REASONED = {"thinking": {"type": "enabled", "budget_tokens": 8192}, "max_tokens": 16384}

CHAT: Mapping[str, Row] = {
    "model": Row("other", Sent({}), Sent({}), Sent({})),
    "messages": Row(
        [{"role": "user", "content": "Bye"}],
        PASSED,
        PASSED,
        Sent({"contents": [{"role": "user", "parts": [{"text": "Bye"}]}]}),
    ),
    "audio": Row({"voice": "alloy", "format": "mp3"}, PASSED, *dropped("'modalities' asks for audio")),
    "modalities": Row(["text", "audio"], PASSED, REFUSED, REFUSED),
    "frequency_penalty": Row(0.5, PASSED, Dropped(TUNES), config(frequencyPenalty=0.5)),
    "presence_penalty": Row(0.5, PASSED, Dropped(TUNES), config(presencePenalty=0.5)),
    "function_call": Row("auto", PASSED, REFUSED, REFUSED),
    "functions": Row([{"name": "f", "parameters": PLAIN}], PASSED, REFUSED, REFUSED),
    "logit_bias": Row({"1": 2}, PASSED, REFUSED, REFUSED),
    "logprobs": Row(True, PASSED, Dropped("it gives none, and some clients always ask"), config(responseLogprobs=True)),
    "top_logprobs": Row(2, PASSED, REFUSED, REFUSED),
    "max_completion_tokens": Row(77, PASSED, Sent({"max_tokens": 77}), config(maxOutputTokens=77)),
    "max_tokens": Row(77, PASSED, PASSED, config(maxOutputTokens=77)),
    "metadata": Row({"a": "b"}, PASSED, *dropped("it is for the client's own records")),
    "moderation": Row({"model": "omni-moderation-latest"}, PASSED, REFUSED, REFUSED),
    # A translated request asks for one choice: ``proxy/fan_out.py`` sends several where a provider makes one.
    "n": Row(2, PASSED, REFUSED, config(candidateCount=2)),
    "parallel_tool_calls": Row(
        False,
        PASSED,
        Sent({"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}),
        Dropped("the answer's parser keeps the first call"),
        TOOLS,
    ),
    "prediction": Row({"type": "content", "content": "x"}, PASSED, *dropped("it only makes an answer faster")),
    "prompt_cache_key": Row("k", PASSED, *dropped(CACHES)),
    "prompt_cache_options": Row({"mode": "explicit"}, PASSED, *dropped(CACHES)),
    "prompt_cache_retention": Row("24h", PASSED, *dropped(CACHES)),
    "reasoning_effort": Row("medium", PASSED, Sent(REASONED), Dropped("this model has no thinking")),
    "response_format": Row(
        STRUCTURE,
        PASSED,
        Sent({"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
        config(responseMimeType="application/json", responseJsonSchema=SCHEMA),
    ),
    "safety_identifier": Row("me", PASSED, Sent({"metadata": {"user_id": "me"}}), Dropped("Gemini knows no end users")),
    "user": Row("me", PASSED, Sent({"metadata": {"user_id": "me"}}), Dropped("Gemini knows no end users")),
    "seed": Row(5, PASSED, Dropped("a seed is a best effort"), config(seed=5)),
    "service_tier": Row("flex", PASSED, REFUSED, REFUSED),
    "stop": Row(["a", "b"], PASSED, Sent({"stop_sequences": ["a", "b"]}), config(stopSequences=["a", "b"])),
    "store": Row(True, PASSED, *dropped("a warning in the answer says that it is not kept")),
    "stream": Row(
        True,
        Sent({"stream": True, "stream_options": {"include_usage": True}}),
        PASSED,
        Dropped("the path says it"),
    ),
    "stream_options": Row(
        {"include_obfuscation": False},
        Sent({"stream_options": {"include_obfuscation": False, "include_usage": True}}),
        *dropped("there is none"),
        beside={"stream": True},
    ),
    "temperature": Row(0.5, PASSED, PASSED, config(temperature=0.5)),
    "top_p": Row(0.5, PASSED, PASSED, config(topP=0.5)),
    "tool_choice": Row(
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [FUNCTION]}},
        PASSED,
        Sent({"tool_choice": {"type": "any"}}),
        Sent({"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}),
        TOOLS,
    ),
    "tools": Row([FUNCTION], PASSED, Sent({"tools": [CLAUDE_TOOL]}), Sent({"tools": [GEMINI_TOOL]})),
    "verbosity": Row("low", PASSED, *dropped(TUNES)),
    "web_search_options": Row({}, PASSED, REFUSED, REFUSED),
}

AUDIO = {"data": "AAAA", "format": "wav"}
PDF = "JVBERi0="
MARKED: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"mode": "explicit"}, {"type": "ephemeral"}),
    ({"mode": "explicit", "ttl": "12h"}, {"type": "ephemeral", "ttl": "1h"}),
)
"""OpenAI's marks in a prompt, and Anthropic's."""
CHAT_MORE: tuple[tuple[str, Row], ...] = (
    (
        "tools",
        Row(
            [CUSTOM],
            PASSED,
            Sent({"tools": [{"name": "f", "input_schema": ONE_TEXT}]}),
            Sent({"tools": [{"functionDeclarations": [{"name": "f", "parametersJsonSchema": ONE_TEXT}]}]}),
        ),
    ),
    (
        "tool_choice",
        Row(
            CUSTOM,
            PASSED,
            Sent({"tool_choice": {"type": "tool", "name": "f"}}),
            Sent({"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}}}),
            TOOLS,
        ),
    ),
    ("service_tier", Row("default", PASSED, *dropped("it is the standard"))),
    ("modalities", Row(["text"], PASSED, *dropped("it is the standard"))),
    ("logprobs", Row(False, PASSED, *dropped("it asks for nothing"))),
    (
        "messages",
        Row(
            ask_with(type="input_audio", input_audio=AUDIO),
            PASSED,
            Refused("messages[0].content[0].input_audio"),
            content_of(inlineData={"mimeType": "audio/wav", "data": "AAAA"}),
        ),
    ),
    (
        "messages",
        Row(
            ask_with(type="file", file={"file_data": f"data:application/pdf;base64,{PDF}", "filename": "a.pdf"}),
            PASSED,
            Sent(
                {
                    "messages": ask_with(
                        type="document",
                        source={"type": "base64", "media_type": "application/pdf", "data": PDF},
                        title="a.pdf",
                    )
                }
            ),
            content_of(inlineData={"mimeType": "application/pdf", "data": PDF}),
        ),
    ),
    *(
        (
            "messages",
            Row(
                ask_with(type="text", text="Hi", prompt_cache_breakpoint=theirs),
                PASSED,
                Sent({"messages": ask_with(type="text", text="Hi", cache_control=ours)}),
                Dropped("Gemini caches by itself"),
            ),
        )
        for theirs, ours in MARKED
    ),
)

GPT_REASONED = {"reasoning_effort": "medium"}
MESSAGES: Mapping[str, Row] = {
    "model": Row("other", Sent({}), Sent({}), Sent({})),
    "messages": Row(
        [{"role": "user", "content": "Bye"}],
        PASSED,
        PASSED,
        Sent({"contents": [{"role": "user", "parts": [{"text": "Bye"}]}]}),
    ),
    "max_tokens": Row(77, PASSED, PASSED, config(maxOutputTokens=77)),
    "cache_control": Row({"type": "ephemeral"}, Dropped(CACHES), PASSED, Dropped(CACHES)),
    "container": Row("c_1", Dropped(HOSTED), PASSED, Dropped(HOSTED)),
    "context_management": Row({"edits": []}, Dropped("it only shortens the prompt"), PASSED, Dropped("the same")),
    "compaction": Row({"type": "summary"}, REFUSED, PASSED, REFUSED),
    "diagnostics": Row({"previous_message_id": "m"}, Dropped("it is about Claude's cache"), PASSED, Dropped("same")),
    "fallbacks": Row([{"model": "m"}], Dropped("it matters only if Claude declines"), PASSED, Dropped("the same")),
    "fallback_credit_token": Row("t", Dropped("it lowers Claude's price"), PASSED, Dropped("the same")),
    "billing_policy": Row({"type": "billing_policy", "bill_to": "user_profile"}, REFUSED, PASSED, REFUSED),
    "inference_geo": Row("us", REFUSED, PASSED, REFUSED),
    "mcp_servers": Row([{"type": "url", "url": "https://x", "name": "x"}], Dropped(HOSTED), PASSED, Dropped(HOSTED)),
    "metadata": Row({"user_id": "me"}, Sent({"user": "me"}), PASSED, Dropped("Gemini knows no end users")),
    "output_config": Row({"effort": "medium"}, Sent(GPT_REASONED), PASSED, Dropped("this model has no thinking")),
    "service_tier": Row("auto", Dropped("it is the standard"), PASSED, Dropped("it is the standard")),
    "speed": Row("fast", REFUSED, PASSED, REFUSED),
    "stop_sequences": Row(["a"], Sent({"stop": ["a"]}), PASSED, config(stopSequences=["a"])),
    "stream": Row(True, Sent({"stream": True, "stream_options": {"include_usage": True}}), PASSED, Dropped("the path")),
    "system": Row(
        "Be brief",
        Sent({"messages": [{"role": "system", "content": "Be brief"}, HI]}),
        PASSED,
        Sent({"systemInstruction": {"parts": [{"text": "Be brief"}]}}),
    ),
    "thinking": Row(
        {"type": "enabled", "budget_tokens": 8192}, Sent(GPT_REASONED), PASSED, Dropped("this model has no thinking")
    ),
    "thread": Row({"type": "create"}, REFUSED, PASSED, REFUSED),
    "tool_choice": Row(
        {"type": "any"},
        Sent({"tool_choice": "required"}),
        PASSED,
        Sent({"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}),
        {"tools": [CLAUDE_TOOL]},
    ),
    "tools": Row([CLAUDE_TOOL], Sent({"tools": [FUNCTION]}), PASSED, Sent({"tools": [GEMINI_TOOL]})),
    "temperature": Row(0.5, PASSED, PASSED, config(temperature=0.5)),
    "top_p": Row(0.5, PASSED, PASSED, config(topP=0.5)),
    "top_k": Row(5, Dropped(TUNES), PASSED, config(topK=5)),
}
HEADERS = frozenset({"betas", "user_profile_id", "workspace_id"})
"""Arguments of Anthropic's library that it sends as headers."""
DEPRECATED = frozenset({"temperature", "top_p", "top_k"})
"""Fields that the library has dropped and that older models still take."""

RESPONSES: Mapping[str, Row] = {
    "model": Row("other", Sent({}), Sent({}), Sent({})),
    "input": Row(
        "Bye",
        Sent({"messages": [{"role": "user", "content": "Bye"}]}),
        Sent({"messages": [{"role": "user", "content": "Bye"}]}),
        Sent({"contents": [{"role": "user", "parts": [{"text": "Bye"}]}]}),
    ),
    "access_programs": Row({"bio": True}, REFUSED, REFUSED, REFUSED),
    "background": Row(True, REFUSED, REFUSED, REFUSED),
    "background_options": Row(
        {"completion_window": "2h"}, Dropped("they bound the wait at OpenAI"), *dropped("the same")
    ),
    "context_management": Row([{"type": "compaction"}], Dropped("it only shortens the prompt"), *dropped("the same")),
    "conversation": Row("c", REFUSED, REFUSED, REFUSED),
    "image": Row({"detail": "low"}, Dropped(TUNES), *dropped(TUNES)),
    "include": Row(["message.output_text.logprobs"], REFUSED, REFUSED, REFUSED),
    "instructions": Row(
        "Be brief",
        Sent({"messages": [{"role": "system", "content": "Be brief"}, HI]}),
        Sent({"system": "Be brief"}),
        Sent({"systemInstruction": {"parts": [{"text": "Be brief"}]}}),
    ),
    "max_output_tokens": Row(77, Sent({"max_tokens": 77}), Sent({"max_tokens": 77}), config(maxOutputTokens=77)),
    "max_tool_calls": Row(2, Dropped("it is about OpenAI's own tools"), *dropped("the same")),
    "metadata": Row({"a": "b"}, Dropped("the answer repeats it"), *dropped("the same")),
    "moderation": Row({"model": "m"}, REFUSED, REFUSED, REFUSED),
    "parallel_tool_calls": Row(
        False,
        Sent({"parallel_tool_calls": False}),
        Sent({"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}),
        Dropped("the answer's parser keeps the first call"),
        {"tools": [{"type": "function", "name": "f", "parameters": PLAIN}]},
    ),
    "previous_response_id": Row("r", REFUSED, REFUSED, REFUSED),
    "prompt": Row({"id": "p"}, REFUSED, REFUSED, REFUSED),
    "prompt_cache_key": Row("k", Dropped(CACHES), *dropped(CACHES)),
    "prompt_cache_options": Row({"mode": "explicit"}, Dropped(CACHES), *dropped(CACHES)),
    "prompt_cache_retention": Row("24h", Dropped(CACHES), *dropped(CACHES)),
    "reasoning": Row({"effort": "medium"}, Sent(GPT_REASONED), Sent(REASONED), Dropped("this model has no thinking")),
    "safety_identifier": Row(
        "me", Sent({"user": "me"}), Sent({"metadata": {"user_id": "me"}}), Dropped("Gemini knows no end users")
    ),
    "user": Row(
        "me", Sent({"user": "me"}), Sent({"metadata": {"user_id": "me"}}), Dropped("Gemini knows no end users")
    ),
    "service_tier": Row("priority", REFUSED, REFUSED, REFUSED),
    "store": Row(True, Dropped("the gateway keeps it"), *dropped("the gateway keeps it")),
    "stream": Row(
        True,
        Sent({"stream": True, "stream_options": {"include_usage": True}}),
        Sent({"stream": True}),
        Dropped("the path says it"),
    ),
    "stream_options": Row({"include_obfuscation": False}, Dropped("there is none"), *dropped("there is none")),
    "temperature": Row(0.5, Sent({"temperature": 0.5}), Sent({"temperature": 0.5}), config(temperature=0.5)),
    "text": Row(
        {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}, "verbosity": "low"},
        Sent({"response_format": STRUCTURE}),
        Sent({"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
        config(responseMimeType="application/json", responseJsonSchema=SCHEMA),
    ),
    "tool_choice": Row(
        "required",
        Sent({"tool_choice": "required"}),
        Sent({"tool_choice": {"type": "any"}}),
        Sent({"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}),
        {"tools": [{"type": "function", "name": "f", "parameters": PLAIN}]},
    ),
    "tools": Row([{"type": "web_search"}], *(Dropped("it is only offered, and no other provider runs it"),) * 3),
    "top_logprobs": Row(2, REFUSED, REFUSED, REFUSED),
    "top_p": Row(0.5, Sent({"top_p": 0.5}), Sent({"top_p": 0.5}), config(topP=0.5)),
    "truncation": Row("auto", Dropped("a prompt that is too long is refused"), *dropped("the same")),
}

Parse = Callable[[Body], InferenceRequest]
BASES: Mapping[str, tuple[Parse, Body, Mapping[str, Row]]] = {
    "chat": (parse_chat_call, {"model": "ours", "messages": [HI]}, CHAT),
    "messages": (parse_messages_call, {"model": "ours", "max_tokens": 99, "messages": [HI]}, MESSAGES),
    "responses": (parse_responses_call, {"model": "ours", "input": "Hi"}, RESPONSES),
}
WIRES: tuple[Wire, ...] = ("openai_chat", "anthropic_messages", "gemini_generate")


def list_rows() -> list[Any]:
    tables = [(operation, field, row) for operation, (_, _, rows) in BASES.items() for field, row in rows.items()]
    tables += [("chat", field, row) for field, row in CHAT_MORE]
    return [
        pytest.param(operation, field, row, wire, id=f"{operation}-{field}-{row.value}-{wire}"[:80])
        for operation, field, row in tables
        for wire in WIRES
    ]


def write(operation: str, wire: Wire, **fields: Any) -> Any:
    parse, base, _ = BASES[operation]
    return make_exchange(parse(base | fields), wire, NAMING).write_body()


@pytest.mark.parametrize(("operation", "field", "row", "wire"), list_rows())
def test_a_field_reaches_the_provider_or_is_refused_by_name(operation: str, field: str, row: Row, wire: Wire) -> None:
    outcome: Outcome = {
        "openai_chat": row.openai,
        "anthropic_messages": row.anthropic,
        "gemini_generate": row.gemini,
    }[wire]
    if isinstance(outcome, Refused):
        with pytest.raises(InvalidRequest) as caught:
            write(operation, wire, **{field: row.value}, **row.beside)
        assert caught.value.param == (outcome.param or field)
        return
    before = write(operation, wire, **row.beside)
    after = write(operation, wire, **{field: row.value}, **row.beside)
    changed = {name: value for name, value in after.items() if name not in before or before[name] != value}
    expected = {} if isinstance(outcome, Dropped) else {field: row.value}
    if isinstance(outcome, Sent):
        expected = dict(outcome.fields)
    if wire == "gemini_generate" and "generationConfig" in expected:
        expected["generationConfig"] = before.get("generationConfig", {}) | expected["generationConfig"]
    assert changed == expected
    assert before.keys() <= after.keys()


NOT_IN_BEDROCKS = frozenset({"model", "stream", "user", "safety_identifier", "parallel_tool_calls"})
"""The path has the first two, the format knows no end users, and the answer's parser keeps the first call."""


@pytest.mark.parametrize(("field", "row"), [*CHAT.items(), *CHAT_MORE])
def test_bedrocks_format_takes_what_anthropics_does(field: str, row: Row) -> None:
    if isinstance(row.anthropic, Refused):
        with pytest.raises(InvalidRequest) as caught:
            write("chat", "bedrock_converse", **{field: row.value}, **row.beside)
        assert caught.value.param == (row.anthropic.param or field)
        return
    before = write("chat", "bedrock_converse", **row.beside)
    after = write("chat", "bedrock_converse", **{field: row.value}, **row.beside)
    assert (before == after) == (isinstance(row.anthropic, Dropped) or field in NOT_IN_BEDROCKS)


@pytest.mark.parametrize(
    ("rows", "known"),
    [
        (CHAT, {*chat_params.CompletionCreateParamsBase.__annotations__, "stream"}),
        (RESPONSES, {*responses_params.ResponseCreateParamsBase.__annotations__, "stream"}),
        (
            {field: row for field, row in MESSAGES.items() if field not in DEPRECATED},
            {
                *anthropic_params.MessageCreateParamsBase.__annotations__,
                *anthropic_beta.MessageCreateParamsBase.__annotations__,
                "stream",
            }
            - HEADERS,
        ),
    ],
    ids=["chat", "responses", "messages"],
)
def test_the_tables_have_every_field_of_the_vendors_libraries(rows: Mapping[str, Row], known: set[str]) -> None:
    assert set(rows) == known
