"""Every field of a chat request, in every API format that it can be sent in: passed, translated, refused or dropped.

A field that the vendors' own Python libraries know and that a table lacks fails a test.
"""

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from anthropic.types import message_create_params as anthropic_params
from anthropic.types.beta import message_create_params as anthropic_beta
from google.genai import types as google_types
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params as responses_params

from gateway.domain.api_format import Wire
from gateway.domain.inference_request import InferenceRequest
from gateway.errors import InvalidRequest
from gateway.formats.chat.anthropic.request import parse_messages_inference
from gateway.formats.chat.gemini.request import parse_generate_inference
from gateway.formats.chat.openai.chat import parse_chat_inference
from gateway.formats.chat.responses.responses import parse_responses_inference
from gateway.formats.registry import make_translator
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
    write_table,
)
from tests.support.table_rows import table_rows

IDENTITY = ResponseIdentity("0123", "claude-haiku-4-5", 1_700_000_000)
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
OFFERED = "they are only offered, and no other provider runs them"
TIER = "`service_tier` of another price"
REFUSED = Refused()
STRUCTURE = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
TOOLS: Mapping[str, Any] = {"tools": [FUNCTION]}


def describe(text: str) -> Body:
    return SCHEMA | {"properties": {"a": {"type": "string", "description": text}}}


def structure(**keywords: Any) -> Body:
    """An answer's schema whose property has more ``keywords``."""
    schema = SCHEMA | {"properties": {"a": {"type": "string", **keywords}}}
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}


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
    "modalities": Row(["text", "audio"], PASSED, REFUSED, REFUSED, label="`modalities` with audio"),
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
    "n": Row(2, PASSED, REFUSED, config(candidateCount=2), label=None),
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
    "reasoning_effort": Row("medium", PASSED, Sent(REASONED), Dropped("this model has no thinking"), label=None),
    "response_format": Row(
        STRUCTURE,
        PASSED,
        Sent({"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
        config(responseMimeType="application/json", responseJsonSchema=SCHEMA),
    ),
    "safety_identifier": Row("me", PASSED, Sent({"metadata": {"user_id": "me"}}), Dropped("Gemini knows no end users")),
    "user": Row("me", PASSED, Sent({"metadata": {"user_id": "me"}}), Dropped("Gemini knows no end users")),
    "seed": Row(5, PASSED, Dropped("a seed is a best effort"), config(seed=5)),
    "service_tier": Row("flex", PASSED, REFUSED, REFUSED, label=TIER),
    "stop": Row(["a", "b"], PASSED, Sent({"stop_sequences": ["a", "b"]}), config(stopSequences=["a", "b"])),
    "store": Row(True, PASSED, *dropped("a warning in the answer says that it is not kept")),
    "stream": Row(
        True,
        Sent({"stream": True, "stream_options": {"include_usage": True}}),
        PASSED,
        Dropped("the path says it"),
        label=None,
    ),
    "stream_options": Row(
        {"include_obfuscation": False},
        Sent({"stream_options": {"include_obfuscation": False, "include_usage": True}}),
        *dropped("the formats have none"),
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
    ("stop", Row(["\n"], PASSED, REFUSED, config(stopSequences=["\n"]), label="`stop` of white space only")),
    ("service_tier", Row("default", PASSED, *dropped("it is the standard"), label=None)),
    ("modalities", Row(["text"], PASSED, *dropped("it is the standard"), label=None)),
    ("logprobs", Row(False, PASSED, *dropped("it asks for nothing"), label=None)),
    (
        "messages",
        Row(
            ask_with(type="input_audio", input_audio=AUDIO),
            PASSED,
            Refused("messages[0].content[0].input_audio"),
            content_of(inlineData={"mimeType": "audio/wav", "data": "AAAA"}),
            label="`input_audio` of a message",
        ),
    ),
    (
        "messages",
        Row(
            [{"role": "user", "name": "ann", "content": "Hi"}],
            PASSED,
            *dropped("the formats have no names of participants"),
            label="`name` of a participant",
        ),
    ),
    (
        "response_format",
        Row(
            structure(pattern="^a"),
            PASSED,
            Sent({"output_config": {"format": {"type": "json_schema", "schema": describe('{"pattern":"^a"}')}}}),
            Dropped("Gemini's schemas lack them"),
            {"response_format": structure()},
            "`pattern` and other keywords of a schema",
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
                label="`prompt_cache_breakpoint` of a part" if "ttl" in theirs else None,
            ),
        )
        for theirs, ours in MARKED
    ),
)

GPT_REASONED = {"reasoning_effort": "medium"}
UNNAMED = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
OPEN = {name: value for name, value in SCHEMA.items() if name != "additionalProperties"}
UNNAMED_OPEN = {"type": "json_schema", "json_schema": {"name": "answer", "schema": OPEN}}
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
    "output_config": Row(
        {"effort": "medium"}, Sent(GPT_REASONED), PASSED, Dropped("this model has no thinking"), label=None
    ),
    "service_tier": Row("auto", Dropped("it is the standard"), PASSED, Dropped("it is the standard"), label=None),
    "speed": Row("fast", REFUSED, PASSED, REFUSED),
    "stop_sequences": Row(["a"], Sent({"stop": ["a"]}), PASSED, config(stopSequences=["a"])),
    "stream": Row(
        True, Sent({"stream": True, "stream_options": {"include_usage": True}}), PASSED, Dropped("the path"), label=None
    ),
    "system": Row(
        "Be brief",
        Sent({"messages": [{"role": "system", "content": "Be brief"}, HI]}),
        PASSED,
        Sent({"systemInstruction": {"parts": [{"text": "Be brief"}]}}),
    ),
    "thinking": Row(
        {"type": "enabled", "budget_tokens": 8192},
        Sent(GPT_REASONED),
        PASSED,
        Dropped("this model has no thinking"),
        label=None,
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


def document(**more: Any) -> Body:
    source = {"type": "text", "media_type": "text/plain", "data": "A door"}
    return {"messages": ask_with(type="document", source=source, **more)}


MESSAGES_MORE: tuple[tuple[str, Row], ...] = (
    (
        "messages",
        Row(
            document(citations={"enabled": True})["messages"],
            Dropped("the document is text, and the answer cites nothing"),
            PASSED,
            Dropped("the same"),
            document(),
            "`citations` of a document",
        ),
    ),
    *(
        (
            "tools",
            Row(
                [CLAUDE_TOOL | {field: value}],
                Dropped(why),
                PASSED,
                Dropped("the same"),
                {"tools": [CLAUDE_TOOL]},
                f"`{field}` of a tool",
            ),
        )
        for field, value, why in (
            ("input_examples", [{"a": "x"}], "the formats have no examples"),
            ("defer_loading", True, "all tools are offered"),
            ("allowed_callers", ["direct"], "only the model calls tools"),
            ("eager_input_streaming", True, TUNES),
        )
    ),
)
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
    # The gateway makes it itself (``server/background_responses.py``).
    "background": Row(True, REFUSED, REFUSED, REFUSED, label=None),
    "background_options": Row(
        {"completion_window": "2h"}, Dropped("they bound the wait at OpenAI"), *dropped("the same")
    ),
    "context_management": Row([{"type": "compaction"}], Dropped("it only shortens the prompt"), *dropped("the same")),
    "conversation": Row("c", REFUSED, REFUSED, REFUSED),
    "image": Row({"detail": "low"}, Dropped(TUNES), *dropped(TUNES)),
    "include": Row(["message.output_text.logprobs"], REFUSED, REFUSED, REFUSED, label="`include` of logprobs"),
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
    # ``routing/kept_responses.py`` has put the conversation in its place.
    "previous_response_id": Row("r", REFUSED, REFUSED, REFUSED, label=None),
    "prompt": Row({"id": "p"}, REFUSED, REFUSED, REFUSED),
    "prompt_cache_key": Row("k", Dropped(CACHES), *dropped(CACHES)),
    "prompt_cache_options": Row({"mode": "explicit"}, Dropped(CACHES), *dropped(CACHES)),
    "prompt_cache_retention": Row("24h", Dropped(CACHES), *dropped(CACHES)),
    "reasoning": Row(
        {"effort": "medium"}, Sent(GPT_REASONED), Sent(REASONED), Dropped("this model has no thinking"), label=None
    ),
    "safety_identifier": Row(
        "me", Sent({"user": "me"}), Sent({"metadata": {"user_id": "me"}}), Dropped("Gemini knows no end users")
    ),
    "user": Row(
        "me", Sent({"user": "me"}), Sent({"metadata": {"user_id": "me"}}), Dropped("Gemini knows no end users")
    ),
    "service_tier": Row("priority", REFUSED, REFUSED, REFUSED, label=TIER),
    "store": Row(True, Dropped("the gateway keeps it"), *dropped("the gateway keeps it")),
    "stream": Row(
        True,
        Sent({"stream": True, "stream_options": {"include_usage": True}}),
        Sent({"stream": True}),
        Dropped("the path says it"),
        label=None,
    ),
    "stream_options": Row({"include_obfuscation": False}, Dropped("the formats have none"), *dropped("the same")),
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
    "tools": Row([{"type": "web_search"}], *(Dropped(OFFERED),) * 3, label="`tools` that run at OpenAI"),
    "top_logprobs": Row(2, REFUSED, REFUSED, REFUSED),
    "top_p": Row(0.5, Sent({"top_p": 0.5}), Sent({"top_p": 0.5}), config(topP=0.5)),
    "truncation": Row("auto", Dropped("a prompt that is too long is refused"), *dropped("the same")),
}

FILTERS = "other providers have filters of their own"
VERTEX = "it is about Google's own models"
SETTINGS: Mapping[str, Row] = {
    "temperature": Row(0.5, Sent({"temperature": 0.5}), Sent({"temperature": 0.5}), PASSED),
    "topP": Row(0.5, Sent({"top_p": 0.5}), Sent({"top_p": 0.5}), PASSED),
    "topK": Row(5, Dropped(TUNES), Sent({"top_k": 5}), PASSED),
    "candidateCount": Row(2, Sent({"n": 2}), REFUSED, PASSED, label=None),
    "maxOutputTokens": Row(77, Sent({"max_tokens": 77}), Sent({"max_tokens": 77}), PASSED),
    "stopSequences": Row(["a"], Sent({"stop": ["a"]}), Sent({"stop_sequences": ["a"]}), PASSED),
    "seed": Row(5, Sent({"seed": 5}), Dropped("a seed is a best effort"), PASSED),
    "presencePenalty": Row(0.5, Sent({"presence_penalty": 0.5}), Dropped(TUNES), PASSED),
    "frequencyPenalty": Row(0.5, Sent({"frequency_penalty": 0.5}), Dropped(TUNES), PASSED),
    "responseLogprobs": Row(
        True, Sent({"logprobs": True}), Dropped("it gives none, and some clients always ask"), PASSED
    ),
    "logprobs": Row(
        2,
        Sent({"top_logprobs": 2}),
        Dropped("it gives none, and some clients always ask"),
        PASSED,
        {"generationConfig": {"responseLogprobs": True}},
    ),
    "responseMimeType": Row("text/x.enum", REFUSED, REFUSED, PASSED, label="`responseMimeType` of an enum"),
    "responseJsonSchema": Row(
        SCHEMA,
        Sent({"response_format": UNNAMED}),
        Sent({"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
        PASSED,
    ),
    "responseSchema": Row(
        {"type": "OBJECT", "properties": {"a": {"type": "STRING"}}, "required": ["a"]},
        Sent({"response_format": UNNAMED_OPEN}),
        Sent({"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
        PASSED,
    ),
    "thinkingConfig": Row({"thinkingBudget": 8192}, Sent(GPT_REASONED), Sent(REASONED), PASSED),
    "responseModalities": Row(["IMAGE"], *(Refused("generationConfig.responseModalities[0]"),) * 2, PASSED),
    "mediaResolution": Row("MEDIA_RESOLUTION_LOW", *dropped(TUNES), PASSED),
    "audioTimestamp": Row(True, *dropped(TUNES), PASSED),
    "enableAffectiveDialog": Row(True, *dropped(TUNES), PASSED),
    "enableEnhancedCivicAnswers": Row(True, *dropped(TUNES), PASSED),
    "modelSelectionConfig": Row({"featureSelectionPreference": "BALANCED"}, *dropped(VERTEX), PASSED),
    "routingConfig": Row({"autoMode": {}}, *dropped(VERTEX), PASSED),
    **{
        name: Row({"languageCode": "en"}, REFUSED, REFUSED, PASSED)
        for name in ("speechConfig", "imageConfig", "audioTranscriptionConfig", "responseFormat", "translationConfig")
    },
}
GEMINI: Mapping[str, Row] = {
    "contents": Row(
        [{"role": "user", "parts": [{"text": "Bye"}]}],
        Sent({"messages": [{"role": "user", "content": "Bye"}]}),
        Sent({"messages": [{"role": "user", "content": "Bye"}]}),
        PASSED,
    ),
    "systemInstruction": Row(
        {"parts": [{"text": "Be brief"}]},
        Sent({"messages": [{"role": "system", "content": "Be brief"}, HI]}),
        Sent({"system": "Be brief"}),
        PASSED,
    ),
    "tools": Row([GEMINI_TOOL], Sent({"tools": [FUNCTION]}), Sent({"tools": [CLAUDE_TOOL]}), PASSED),
    "toolConfig": Row(
        {"functionCallingConfig": {"mode": "ANY"}},
        Sent({"tool_choice": "required"}),
        Sent({"tool_choice": {"type": "any"}}),
        PASSED,
        {"tools": [GEMINI_TOOL]},
    ),
    "safetySettings": Row([{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "OFF"}], *dropped(FILTERS), PASSED),
    "modelArmorConfig": Row({"promptTemplateName": "t"}, *dropped(FILTERS), PASSED),
    "labels": Row({"a": "b"}, *dropped("they are for the client's own records"), PASSED),
    "store": Row(True, *dropped("it is for Google's logs"), PASSED),
    "generationOutputConfig": Row({"gcsUri": "gs://b"}, *dropped(VERTEX), PASSED),
    "serviceTier": Row("flex", REFUSED, REFUSED, PASSED, label="`serviceTier` of another price"),
    "cachedContent": Row("cachedContents/x", REFUSED, REFUSED, PASSED),
    "continuationToken": Row("t", REFUSED, REFUSED, PASSED),
    **{f"generationConfig.{name}": row for name, row in SETTINGS.items()},
}
GEMINI_MORE: tuple[tuple[str, Row], ...] = (
    (
        "generationConfig.thinkingConfig",
        Row(
            {"thinkingBudget": -1, "includeThoughts": True},
            *dropped("the model thinks as it does by default"),
            PASSED,
            label="`thinkingBudget: -1`",
        ),
    ),
    ("tools", Row([{"googleSearch": {}}], *dropped(OFFERED), PASSED, label="`tools` that run at Google")),
)
OF_GOOGLES_LIBRARY = frozenset(
    {"httpOptions", "shouldReturnHttpResponse", "automaticFunctionCalling", "automaticContinuation"}
)
"""Settings of Google's library that it does not send."""


def list_google_names() -> set[str]:
    """Every field of Google's library, those of ``generationConfig`` with that in front."""
    settings = {str(one.alias) for one in google_types.GenerationConfig.model_fields.values()} | {"imageConfig"}
    fields = {str(one.alias) for one in google_types.GenerateContentConfig.model_fields.values()}
    return {"contents", *(fields - settings - OF_GOOGLES_LIBRARY), *(f"generationConfig.{one}" for one in settings)}


Parse = Callable[[Body], InferenceRequest]
BASES: Mapping[str, tuple[Parse, Body, Mapping[str, Row]]] = {
    "chat": (parse_chat_inference, {"model": "ours", "messages": [HI]}, CHAT),
    "messages": (parse_messages_inference, {"model": "ours", "max_tokens": 99, "messages": [HI]}, MESSAGES),
    "responses": (parse_responses_inference, {"model": "ours", "input": "Hi"}, RESPONSES),
    "generate_content": (
        partial(parse_generate_inference, model="ours"),
        {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]},
        GEMINI,
    ),
}
MORE: Mapping[str, tuple[tuple[str, Row], ...]] = {
    "chat": CHAT_MORE,
    "messages": MESSAGES_MORE,
    "responses": (),
    "generate_content": GEMINI_MORE,
}
WIRES: tuple[Wire, ...] = ("openai_chat", "anthropic_messages", "gemini_generate")


def list_rows() -> list[Any]:
    tables = [(operation, field, row) for operation, (_, _, rows) in BASES.items() for field, row in rows.items()]
    tables += [(operation, field, row) for operation, rows in MORE.items() for field, row in rows]
    return [
        pytest.param(operation, field, row, wire, id=f"{operation}-{field}-{row.value}-{wire}"[:80])
        for operation, field, row in tables
        for wire in WIRES
    ]


def combine(beside: Mapping[str, Any], field: str, value: Any) -> Body:
    """``beside`` with a field, which may be one of an object (``generationConfig.topK``)."""
    name, _, inner = field.partition(".")
    return {**beside, name: {**beside.get(name, {}), inner: value} if inner else value}


def write(operation: str, wire: Wire, **fields: Any) -> Any:
    parse, base, _ = BASES[operation]
    return make_translator(parse(base | fields), wire, IDENTITY).write_body()


@table_rows(("operation", "field", "row", "wire"), list_rows())
def test_a_field_reaches_the_provider_or_is_refused_by_name(operation: str, field: str, row: Row, wire: Wire) -> None:
    outcome: Outcome = row.outcomes[wire]
    asked = combine(row.beside, field, row.value)
    if isinstance(outcome, Refused):
        with pytest.raises(InvalidRequest) as caught:
            write(operation, wire, **asked)
        assert caught.value.param == (outcome.param or field)
        return
    before = write(operation, wire, **row.beside)
    after = write(operation, wire, **asked)
    changed = {name: value for name, value in after.items() if name not in before or before[name] != value}
    expected = {} if isinstance(outcome, Dropped) else combine({}, field, row.value)
    if isinstance(outcome, Sent):
        expected = dict(outcome.fields)
    if wire == "gemini_generate" and "generationConfig" in expected:
        expected["generationConfig"] = before.get("generationConfig", {}) | expected["generationConfig"]
    assert changed == expected
    assert before.keys() <= after.keys()


NOT_IN_BEDROCKS = frozenset({"model", "stream", "user", "safety_identifier", "parallel_tool_calls"})
"""The path has the first two, the format knows no end users, and the answer's parser keeps the first call."""


@table_rows(("field", "row"), [*CHAT.items(), *CHAT_MORE])
def test_bedrocks_format_takes_what_anthropics_does(field: str, row: Row) -> None:
    if isinstance(row.anthropic, Refused):
        with pytest.raises(InvalidRequest) as caught:
            write("chat", "bedrock_converse", **combine(row.beside, field, row.value))
        assert caught.value.param == (row.anthropic.param or field)
        return
    before = write("chat", "bedrock_converse", **row.beside)
    after = write("chat", "bedrock_converse", **combine(row.beside, field, row.value))
    assert (before == after) == (isinstance(row.anthropic, Dropped) or field in NOT_IN_BEDROCKS)


@table_rows(
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
        (GEMINI, list_google_names()),
    ],
    ids=["chat", "responses", "messages", "gemini"],
)
def test_the_tables_have_every_field_of_the_vendors_libraries(rows: Mapping[str, Row], known: set[str]) -> None:
    assert set(rows) == known


DOCUMENTED: Mapping[str, tuple[str, str]] = {
    "chat": ("A chat request", "openai_chat"),
    "responses": ("A request of the Responses API", ""),
    "messages": ("A request of Anthropic's API", "anthropic_messages"),
    "generate_content": ("A request of Google's API", "gemini_generate"),
}
CLIENTS = Path(__file__).parents[3] / "docs" / "clients.md"
BEGIN, END = "<!-- the tables of fields -->\n", "<!-- end of the tables -->\n"


def test_the_documentation_has_what_is_refused_and_left_out() -> None:
    """``UPDATE_SURFACE=1`` writes the tables."""
    tables = [
        f"\n**{title}**\n\n{write_table([*BASES[operation][2].items(), *MORE[operation]], native)}"
        for operation, (title, native) in DOCUMENTED.items()
    ]
    head, begin, rest = CLIENTS.read_text().partition(BEGIN)
    table, end, tail = rest.partition(END)
    assert begin
    assert end
    found = "".join(tables) + "\n"
    if os.environ.get("UPDATE_SURFACE"):
        CLIENTS.write_text(head + begin + found + end + tail)
        table = found
    assert table == found
