"""Parses a chat body of the OpenAI API format into a ``ChatRequest``, for a channel with another format.

Shapes: OpenAI's OpenAPI document, ``CreateChatCompletionRequest``. Extensions, as their vendors document them:
``cache_control``, ``reasoning`` and images in an assistant's message (OpenRouter: prompt caching, reasoning tokens,
image generation), ``reasoning_content`` (DeepSeek: thinking mode), ``thinking`` (Anthropic: OpenAI SDK compatibility),
``top_k``, and ``extra_content.google.thought_signature`` of a tool call (Google: thought signatures).

Rejected, because the answer would not be what was requested: ``logit_bias``, ``moderation``, ``web_search_options``,
audio among ``modalities``, ``functions``, custom tools, uploaded files, and a ``service_tier`` other than the standard
one.
Dropped, because the answer is valid without them: ``audio`` (unless requested), ``metadata``, ``prediction`` (it only
makes an answer faster), ``store``, ``verbosity`` (it only tunes an answer), ``prompt_cache_*``, ``stream_options``,
``reasoning.exclude``, a message's ``name``, and every field that OpenAI does not document.
``tests/formats/test_request_fields.py`` has all of this as a table.
"""

from collections.abc import Container, Iterator
from typing import Any, cast, get_args

import orjson

from gateway.domain.usage import MAX_TOKENS
from gateway.formats import chat
from gateway.formats.openai.content_parts import (
    expect_list,
    expect_object,
    expect_text,
    find_signature,
    parse_cache,
    parse_parts,
    refuse,
)
from gateway.formats.openai.fields import (
    Body,
    parse_flag,
    parse_integer,
    parse_list,
    parse_number,
    parse_object,
    read_text,
)

_EFFORTS = get_args(chat.Effort)
_ONLY_OPENAI = ("logit_bias", "moderation", "web_search_options", "functions", "function_call")
STANDARD_TIERS = frozenset({None, "auto", "default", "standard", "standard_only"})
"""Values of ``service_tier`` that every provider serves."""
_MAX_SEED = 2**63
_MAX_TOP = 20
_ENABLED: chat.Effort = "medium"
"""The effort of ``enabled`` without one (OpenRouter: reasoning tokens)."""


def parse_chat_request(body: Body) -> chat.ChatRequest:
    """Parse a checked body (see ``parse_chat_call``). Raises ``InvalidRequest`` naming the field."""
    _check_only_openai(body)
    messages = tuple(_parse_messages(body["messages"]))
    if not messages:
        raise refuse("messages", "'messages' say nothing")
    tools, choice = _parse_tools(body)
    effort, thinking = _parse_thinking(body)
    return chat.ChatRequest(
        messages=messages,
        max_tokens=body.get("max_completion_tokens") or body.get("max_tokens"),
        temperature=parse_number(body, "temperature", 0, 2),
        top_p=parse_number(body, "top_p", 0, 1),
        # 0 and -1 mean no limit.
        top_k=max(parse_integer(body, "top_k", -1, MAX_TOKENS) or 0, 0) or None,
        stop=_parse_stop(body),
        n=body.get("n") or 1,
        seed=parse_integer(body, "seed", -_MAX_SEED, _MAX_SEED - 1),
        presence_penalty=parse_number(body, "presence_penalty", -2, 2),
        frequency_penalty=parse_number(body, "frequency_penalty", -2, 2),
        tools=tools,
        tool_choice=choice,
        parallel_tools=parse_parallel(body),
        format=_parse_format(body),
        thinking_tokens=thinking,
        effort=effort,
        user=read_text(body, "safety_identifier") or read_text(body, "user") or None,
        top_logprobs=_parse_top_logprobs(body),
    )


def _parse_top_logprobs(body: Body) -> int | None:
    top = parse_integer(body, "top_logprobs", 0, _MAX_TOP)
    if parse_flag(body, "logprobs"):
        return top or 0
    if top:
        raise refuse("top_logprobs", "'top_logprobs' requires 'logprobs'")
    return None


def _check_only_openai(body: Body) -> None:
    for name in _ONLY_OPENAI:
        # An empty object requests a search.
        if body.get(name) or (name == "web_search_options" and body.get(name) is not None):
            raise refuse(name, f"'{name}' only works with a channel that speaks the convention")
    check_tier(body, STANDARD_TIERS)
    if "audio" in (parse_list(body, "modalities") or ()):
        raise refuse("modalities", "Audio answers only work with a channel that speaks the convention")


def check_tier(body: Body, standard: Container[str | None]) -> None:
    """Raise ``InvalidRequest`` for a ``service_tier`` other than the ``standard`` ones: it has another price."""
    tier = read_text(body, "service_tier")
    if tier not in standard:
        raise refuse("service_tier", f"The 'service_tier' {tier!r} only works with a channel of the same API format")


def _parse_messages(messages: list[Body]) -> Iterator[chat.Message]:
    """Yield the messages. Empty ones are left out, because some formats reject them."""
    results: list[chat.Part] = []
    legacy: list[str] = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        role = message["role"]
        if role in {"tool", "function"}:
            results.append(_parse_result(message, where, legacy))
            continue
        if results:
            yield chat.Message("user", tuple(results))
            results = []
        if role == "assistant":
            parts = (
                *_parse_reasoning(message, where),
                *_parse_content(message, where),
                *_parse_calls(message, where, legacy),
            )
            parsed = chat.Message("assistant", parts)
        elif role == "user":
            parsed = chat.Message("user", _read_content(message, where, "user"))
        else:
            parsed = chat.Message("system", _read_content(message, where, "system"))
        if parsed.parts:
            yield parsed
    if results:
        yield chat.Message("user", tuple(results))


def _read_content(message: Body, where: str, role: str) -> tuple[chat.TextPart | Any, ...]:
    if message.get("content") is None:
        raise refuse(f"{where}.content", f"Missing required field '{where}.content'")
    return parse_parts(message["content"], f"{where}.content", role)


def _parse_reasoning(message: Body, where: str) -> Iterator[chat.Part]:
    for name in ("reasoning_content", "reasoning"):
        if message.get(name):
            yield chat.ReasoningPart(expect_text(message[name], f"{where}.{name}"))
            return


def _parse_content(message: Body, where: str) -> Iterator[chat.Part]:
    if message.get("audio") is not None:
        raise refuse(f"{where}.audio", "An earlier audio answer only works with a channel that speaks the convention")
    yield from parse_parts(message.get("content") or (), f"{where}.content", "assistant")
    if message.get("refusal"):
        yield chat.TextPart(expect_text(message["refusal"], f"{where}.refusal"))
    if message.get("images"):
        yield from parse_parts(expect_list(message["images"], f"{where}.images"), f"{where}.images", "pictures")


def _parse_calls(message: Body, where: str, legacy: list[str]) -> Iterator[chat.ToolCallPart]:
    calls = message.get("tool_calls")
    for index, call in enumerate(expect_list(calls, f"{where}.tool_calls") if calls else ()):
        yield _parse_call(call, f"{where}.tool_calls[{index}]")
    called = message.get("function_call")
    if called is not None:
        # A deprecated function call has no id: its number becomes one, and the next result belongs to the last call.
        legacy.append(f"call_{len(legacy)}")
        name, arguments = _parse_function(called, f"{where}.function_call")
        yield chat.ToolCallPart(legacy[-1], name, arguments)


def _parse_call(call: object, where: str) -> chat.ToolCallPart:
    values = expect_object(call, where)
    name = expect_text(values.get("id"), f"{where}.id")
    cache = parse_cache(values, where)
    if values.get("type") == "custom":
        custom = expect_object(values.get("custom"), f"{where}.custom")
        text = expect_text(custom.get("input"), f"{where}.custom.input")
        tool = expect_text(custom.get("name"), f"{where}.custom.name")
        return chat.ToolCallPart(name, tool, orjson.dumps({"input": text}).decode(), cache=cache)
    tool, arguments = _parse_function(values.get("function"), f"{where}.function")
    return chat.ToolCallPart(name, tool, arguments, find_signature(values), cache)


def _parse_function(value: object, where: str) -> tuple[str, str]:
    function = expect_object(value, where)
    arguments = function.get("arguments")
    return (
        expect_text(function.get("name"), f"{where}.name"),
        "" if arguments is None else expect_text(arguments, f"{where}.arguments"),
    )


def _parse_result(message: Body, where: str, legacy: list[str]) -> chat.ToolResultPart:
    parts = parse_parts(message.get("content") or (), f"{where}.content", "tool")
    if message["role"] == "tool":
        name = expect_text(message.get("tool_call_id"), f"{where}.tool_call_id")
        return chat.ToolResultPart(name, parts, cache=parse_cache(message, where))
    if not legacy:
        raise refuse(where, f"'{where}' answers a function call that no message before it makes")
    return chat.ToolResultPart(legacy[-1], parts)


def _parse_tools(body: Body) -> tuple[tuple[chat.Tool, ...], chat.ToolChoice | None]:
    listed = parse_list(body, "tools") or ()
    tools = tuple([_parse_tool(tool, f"tools[{index}]") for index, tool in enumerate(listed)])
    choice = body.get("tool_choice")
    if choice is None or (isinstance(choice, str) and choice in {"auto", "none", "required"}):
        return tools, cast("chat.ToolChoice | None", choice)
    if not isinstance(choice, dict):
        raise refuse("tool_choice", "'tool_choice' must be auto, none, required or an object")
    if choice.get("type") == "function":
        return tools, chat.ForcedTool(_parse_name(choice, "tool_choice"))
    if choice.get("type") == "allowed_tools":
        return _parse_allowed(choice, tools)
    raise refuse(
        "tool_choice.type", "A 'tool_choice' of this type only works with a channel that speaks the convention"
    )


def _parse_allowed(choice: Body, tools: tuple[chat.Tool, ...]) -> tuple[tuple[chat.Tool, ...], chat.ToolChoice]:
    where = "tool_choice.allowed_tools"
    allowed = expect_object(choice.get("allowed_tools"), where)
    mode = allowed.get("mode")
    if not isinstance(mode, str) or mode not in {"auto", "required"}:
        raise refuse(f"{where}.mode", f"'{where}.mode' must be auto or required")
    named = expect_list(allowed.get("tools"), f"{where}.tools")
    names = {
        _parse_name(expect_object(tool, f"{where}.tools[{at}]"), f"{where}.tools[{at}]")
        for at, tool in enumerate(named)
    }
    return tuple([tool for tool in tools if tool.name in names]), cast("chat.ToolChoice", mode)


def _parse_name(tool: Body, where: str) -> str:
    function = expect_object(tool.get("function"), f"{where}.function")
    return expect_text(function.get("name"), f"{where}.function.name")


def _parse_tool(value: object, where: str) -> chat.Tool:
    tool = expect_object(value, where)
    if tool.get("type") != "function":
        raise refuse(
            f"{where}.type",
            f"'{where}' is no function: such a tool only works with a channel that speaks the convention",
        )
    name = _parse_name(tool, where)
    function = tool["function"]
    description, schema, strict = function.get("description"), function.get("parameters"), function.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise refuse(f"{where}.function.strict", f"'{where}.function.strict' must be a boolean")
    return chat.Tool(
        name,
        None if description is None else expect_text(description, f"{where}.function.description"),
        None if schema is None else expect_object(schema, f"{where}.function.parameters"),
        strict,
        parse_cache(tool, where) or parse_cache(function, f"{where}.function"),
    )


def parse_parallel(body: Body) -> bool | None:
    """Parse ``parallel_tool_calls``; None if it is not set."""
    return None if body.get("parallel_tool_calls") is None else parse_flag(body, "parallel_tool_calls")


def _parse_stop(body: Body) -> tuple[str, ...]:
    stop = body.get("stop")
    if stop is None or isinstance(stop, str):
        return (stop,) if stop else ()
    if not isinstance(stop, list):
        raise refuse("stop", "'stop' must be a string or an array of strings")
    return tuple([expect_text(word, f"stop[{index}]") for index, word in enumerate(stop)])


def _parse_format(body: Body) -> chat.ResponseFormat | None:
    wanted = parse_object(body, "response_format")
    kind = wanted.get("type") if wanted else None
    if wanted is None or kind == "text":
        return None
    if kind == "json_object":
        return chat.ResponseFormat("json")
    if kind != "json_schema":
        raise refuse("response_format.type", "'response_format.type' must be text, json_object or json_schema")
    where = "response_format.json_schema"
    described = expect_object(wanted.get("json_schema"), where)
    schema: chat.Json | None = described.get("schema")
    if schema is None:
        return chat.ResponseFormat("json")
    strict = described.get("strict")
    return chat.ResponseFormat(
        "schema",
        expect_object(schema, f"{where}.schema"),
        expect_text(described.get("name"), f"{where}.name"),
        strict if isinstance(strict, bool) else None,
    )


def _parse_thinking(body: Body) -> tuple[chat.Effort | None, int | None]:
    """Return effort and token budget of reasoning, from any of the three forms."""
    effort = parse_effort(body.get("reasoning_effort"), "reasoning_effort")
    tokens = None
    reasoning = parse_object(body, "reasoning") or {}
    if reasoning:
        effort = effort or parse_effort(reasoning.get("effort"), "reasoning.effort")
        tokens = _parse_budget(reasoning, "reasoning", "max_tokens")
        enabled = reasoning.get("enabled")
        if effort is None and tokens is None and isinstance(enabled, bool):
            effort = _ENABLED if enabled else "none"
    thinking = parse_object(body, "thinking") or {}
    if thinking.get("type") == "disabled":
        return None, 0
    if thinking.get("type") == "enabled":
        budget = _parse_budget(thinking, "thinking", "budget_tokens")
        tokens = tokens if budget is None else budget
        effort = effort or (_ENABLED if tokens is None else None)
    return effort, tokens


def parse_effort(value: object, where: str) -> chat.Effort | None:
    """Parse the word for how hard to think. Raises ``InvalidRequest``."""
    if value is None:
        return None
    if not isinstance(value, str) or value not in _EFFORTS:
        raise refuse(where, f"'{where}' must be one of {', '.join(_EFFORTS)}")
    return cast("chat.Effort", value)


def _parse_budget(values: Body, where: str, name: str) -> int | None:
    return parse_integer({f"{where}.{name}": values.get(name)}, f"{where}.{name}", 0, MAX_TOKENS)
