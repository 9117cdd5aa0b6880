"""Parse a chat body of the OpenAI API format into a ``ChatRequest``, for channels with another format.

Extensions, as their vendors document them: ``cache_control``, ``reasoning`` and images in an assistant's message
(OpenRouter: prompt caching, reasoning tokens, image generation), ``reasoning_content`` (DeepSeek: thinking mode),
``thinking`` (Anthropic: OpenAI SDK compatibility), ``top_k``, and ``extra_content.google.thought_signature`` of a tool
call (Google: thought signatures).

Rejected, because the answer would not be what was requested: ``logit_bias``, ``moderation``, ``web_search_options``,
audio among ``modalities``, ``functions``, ``function_call``, a vendor-executed tool that must be called, uploaded files
of this turn, and a ``service_tier`` other than the standard one. Left out and reported (``adapted``): vendor-executed
tools that are only offered. Dropped, because the answer is valid without them: ``audio`` (unless requested),
``metadata``, ``prediction`` (it only makes an answer faster), ``store``, ``verbosity`` (it only tunes an answer),
``prompt_cache_*``, ``stream_options``, ``reasoning.exclude``, a message's ``name``, and every field that OpenAI does
not document. ``tests/formats/chat/test_request_fields.py`` has all of this as a table.
"""

from collections.abc import Container, Iterator
from typing import cast, get_args

from gateway.domain.usage import MAX_TOKENS
from gateway.formats.chat import model as chat
from gateway.formats.chat.adaptations import LEFT_OUT_PREFIX, Adaptations, check_choice
from gateway.formats.chat.openai import content_parts
from gateway.formats.chat.openai.custom_tools import build_custom_function, write_input
from gateway.formats.wire.fields import (
    MAX_TEMPERATURE,
    Body,
    parse_flag,
    parse_integer,
    parse_list,
    parse_number,
    parse_object,
    read_text,
)

_EFFORTS = get_args(chat.Effort)
_OPENAI_FIELDS = ("logit_bias", "moderation", "web_search_options", "functions", "function_call")
STANDARD_TIERS = frozenset({None, "auto", "default", "standard", "standard_only"})
"""Values of ``service_tier`` that every provider serves."""
_TOOL_CHOICES = {"auto": "auto", "none": "none", "required": "required", "any": "required"}
"""Values of ``tool_choice``, or of the ``type`` in its object, from all chat formats -> values in this format."""
_MAX_SEED = 2**63
_MAX_TOP_LOGPROBS = 20
_ENABLED_EFFORT: chat.Effort = "medium"
"""The effort if ``enabled`` is set without an effort (OpenRouter: reasoning tokens)."""


def parse_chat_request(body: Body) -> chat.ChatRequest:
    """Parse a body checked by ``parse_chat_inference``. Raises ``InvalidRequest`` naming the field."""
    _reject_openai_only_fields(body)
    adaptations = Adaptations()
    messages = tuple(_parse_messages(body["messages"], adaptations))
    if not messages:
        raise content_parts.make_param_error("messages", "'messages' say nothing")
    tools, choice = _parse_tools(body, adaptations)
    effort, thinking_tokens = _parse_thinking(body)
    return chat.ChatRequest(
        messages=messages,
        max_tokens=body.get("max_completion_tokens") or body.get("max_tokens"),
        temperature=parse_number(body, "temperature", 0, MAX_TEMPERATURE),
        top_p=parse_number(body, "top_p", 0, 1),
        # 0 and -1 request no limit, which the common chat model expresses as None.
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
        thinking_tokens=thinking_tokens,
        effort=effort,
        user=read_text(body, "safety_identifier") or read_text(body, "user") or None,
        top_logprobs=_parse_top_logprobs(body),
        adapted=tuple(adaptations.names),
    )


def _parse_top_logprobs(body: Body) -> int | None:
    top_logprobs = parse_integer(body, "top_logprobs", 0, _MAX_TOP_LOGPROBS)
    if parse_flag(body, "logprobs"):
        return top_logprobs or 0
    if top_logprobs:
        raise content_parts.make_param_error("top_logprobs", "'top_logprobs' requires 'logprobs'")
    return None


def _reject_openai_only_fields(body: Body) -> None:
    for name in _OPENAI_FIELDS:
        # An empty ``web_search_options`` object also requests a search.
        if body.get(name) or (name == "web_search_options" and body.get(name) is not None):
            message = f"'{name}' only works with a channel that uses OpenAI's Chat Completions API"
            raise content_parts.make_param_error(name, message)
    check_tier(body, STANDARD_TIERS)
    if "audio" in (parse_list(body, "modalities") or ()):
        raise content_parts.make_param_error(
            "modalities", "Audio answers only work with a channel that uses OpenAI's Chat Completions API"
        )


def check_tier(body: Body, standard_tiers: Container[str | None]) -> None:
    """Raise ``InvalidRequest`` for a ``service_tier`` not in ``standard_tiers``, because its price differs."""
    tier = read_text(body, "service_tier")
    if tier not in standard_tiers:
        raise content_parts.make_param_error(
            "service_tier", f"The 'service_tier' {tier!r} only works with a channel of the same API format"
        )


def _parse_messages(messages: list[Body], adaptations: Adaptations) -> Iterator[chat.Message]:
    """Yield the messages. Consecutive results of tools become one user message.

    Empty messages are left out, except an empty user message that separates two turns. Raises ``InvalidRequest``.
    """
    tool_results: list[chat.Part] = []
    legacy_call_ids: list[str] = []
    last_role = ""
    last_answer_index = max(
        (index for index, message in enumerate(messages) if message["role"] == "assistant"), default=-1
    )
    for index, message in enumerate(messages):
        param = f"messages[{index}]"
        role = message["role"]
        adaptations.is_past = index <= last_answer_index
        if role in {"tool", "function"}:
            tool_results.append(_parse_result(message, param, legacy_call_ids, adaptations))
            continue
        if tool_results:
            yield chat.Message("user", tuple(tool_results))
            tool_results = []
        if role == "assistant":
            chat_message = chat.Message("assistant", _parse_assistant(message, param, legacy_call_ids, adaptations))
        elif role == "user":
            chat_message = chat.Message("user", _read_content(message, param, "user", adaptations))
        else:
            chat_message = chat.Message("system", _read_content(message, param, "system", adaptations))
        if chat_message.parts or (role == "user" and last_role == "assistant"):
            yield chat_message
            last_role = role
    if tool_results:
        yield chat.Message("user", tuple(tool_results))


def _parse_assistant(
    message: Body, param: str, legacy_call_ids: list[str], adaptations: Adaptations
) -> tuple[chat.Part, ...]:
    """Parse an assistant message. A call that is both in ``content`` and in ``tool_calls`` counts once.

    Raises ``InvalidRequest``.
    """
    calls = tuple(_parse_calls(message, param, legacy_call_ids))
    call_ids = {call.id for call in calls}
    content: list[chat.Part] = []
    for part in _parse_content(message, param, adaptations):
        if isinstance(part, chat.ToolCallPart) and part.id in call_ids:
            adaptations.add("tool_use")
        else:
            content.append(part)
    return (*_parse_reasoning(message, param), *content, *calls)


def _read_content(message: Body, param: str, role: str, adaptations: Adaptations) -> tuple[chat.Part, ...]:
    if message.get("content") is None and adaptations.is_past:
        return ()
    if message.get("content") is None:
        raise content_parts.make_param_error(f"{param}.content", f"Missing required field '{param}.content'")
    return content_parts.parse_parts(message["content"], f"{param}.content", role, adaptations)


def _parse_reasoning(message: Body, param: str) -> Iterator[chat.Part]:
    for name in ("reasoning_content", "reasoning"):
        if message.get(name):
            yield chat.ReasoningPart(content_parts.expect_text(message[name], f"{param}.{name}"))
            return


def _parse_content(message: Body, param: str, adaptations: Adaptations) -> Iterator[chat.Part]:
    if message.get("audio") is not None:
        yield from adaptations.write("audio", content_parts.expect_object(message["audio"], f"{param}.audio"))
    yield from content_parts.parse_parts(message.get("content") or (), f"{param}.content", "assistant", adaptations)
    if message.get("refusal"):
        yield chat.TextPart(content_parts.expect_text(message["refusal"], f"{param}.refusal"))
    if message.get("images"):
        yield from content_parts.parse_parts(
            content_parts.expect_list(message["images"], f"{param}.images"), f"{param}.images", "pictures", adaptations
        )


def _parse_calls(message: Body, param: str, legacy_call_ids: list[str]) -> Iterator[chat.ToolCallPart]:
    calls = message.get("tool_calls")
    for index, call in enumerate(content_parts.expect_list(calls, f"{param}.tool_calls") if calls else ()):
        yield _parse_call(call, f"{param}.tool_calls[{index}]")
    function_call = message.get("function_call")
    if function_call is not None:
        # A deprecated function call has no id, so its number becomes the id; the next result belongs to the last call.
        legacy_call_ids.append(f"call_{len(legacy_call_ids)}")
        name, arguments = _parse_function(function_call, f"{param}.function_call")
        yield chat.ToolCallPart(legacy_call_ids[-1], name, arguments)


def _parse_call(call: object, param: str) -> chat.ToolCallPart:
    fields = content_parts.expect_object(call, param)
    call_id = content_parts.expect_text(fields.get("id"), f"{param}.id")
    cache_control = content_parts.parse_cache_control(fields, param)
    if fields.get("type") == "custom":
        custom_fields = content_parts.expect_object(fields.get("custom"), f"{param}.custom")
        text = content_parts.expect_text(custom_fields.get("input"), f"{param}.custom.input")
        tool_name = content_parts.expect_text(custom_fields.get("name"), f"{param}.custom.name")
        return chat.ToolCallPart(call_id, tool_name, write_input(text), cache_control=cache_control)
    tool_name, arguments = _parse_function(fields.get("function"), f"{param}.function")
    return chat.ToolCallPart(call_id, tool_name, arguments, content_parts.find_signature(fields), cache_control)


def _parse_function(value: object, param: str) -> tuple[str, str]:
    function = content_parts.expect_object(value, param)
    name = content_parts.expect_text(function.get("name"), f"{param}.name")
    return name, content_parts.read_arguments(function.get("arguments"), f"{param}.arguments")


def _parse_result(message: Body, param: str, legacy_call_ids: list[str], adaptations: Adaptations) -> chat.Part:
    result_parts = content_parts.parse_parts(message.get("content") or (), f"{param}.content", "tool", adaptations)
    parts = tuple([part for part in result_parts if isinstance(part, chat.TextPart | chat.MediaPart)])
    if message["role"] == "tool":
        call_id = content_parts.expect_text(message.get("tool_call_id"), f"{param}.tool_call_id")
        return chat.ToolResultPart(call_id, parts, cache_control=content_parts.parse_cache_control(message, param))
    if not legacy_call_ids:
        adaptations.add("function")
        return parts[0] if parts else chat.TextPart("")
    return chat.ToolResultPart(legacy_call_ids[-1], parts)


def _parse_tools(body: Body, adaptations: Adaptations) -> tuple[tuple[chat.Tool, ...], chat.ToolChoice | None]:
    tool_bodies = [
        (content_parts.expect_object(tool, f"tools[{index}]"), f"tools[{index}]")
        for index, tool in enumerate(parse_list(body, "tools") or ())
    ]
    for tool, param in tool_bodies:
        if _is_hosted(tool, param):
            adaptations.add(f"{LEFT_OUT_PREFIX}{tool.get('type') or next(iter(tool))}")
    tools = tuple([_parse_tool(tool, param) for tool, param in tool_bodies if not _is_hosted(tool, param)])
    choice = body.get("tool_choice")
    choice_type = choice.get("type") if isinstance(choice, dict) else choice
    choice = _TOOL_CHOICES.get(choice_type, choice) if isinstance(choice_type, str) else choice
    if choice is None or (isinstance(choice, str) and choice in {"auto", "none", "required"}):
        return tools, check_choice(cast("chat.ToolChoice | None", choice), tools, adaptations)
    if not isinstance(choice, dict):
        raise content_parts.make_param_error("tool_choice", "'tool_choice' must be auto, none, required or an object")
    if choice.get("type") in ("function", "tool", "custom"):
        forced_tool = chat.ForcedTool(_parse_name(choice, "tool_choice"))
        return tools, check_choice(forced_tool, tools, adaptations)
    if choice.get("type") == "allowed_tools":
        return _parse_allowed(choice, tools)
    raise content_parts.make_param_error(
        "tool_choice.type",
        "A 'tool_choice' of this type only works with a channel that uses OpenAI's Chat Completions API",
    )


def _is_hosted(tool: Body, param: str) -> bool:
    kind = tool.get("type")
    if kind is None and ("name" in tool or "function" in tool):
        return False
    if kind is None and any(isinstance(value, dict) for value in tool.values()):  # Google's tools have no type
        return True
    return content_parts.expect_text(kind, f"{param}.type") not in {"function", "custom"}


def _parse_allowed(choice: Body, tools: tuple[chat.Tool, ...]) -> tuple[tuple[chat.Tool, ...], chat.ToolChoice]:
    param = "tool_choice.allowed_tools"
    allowed_tools = content_parts.expect_object(choice.get("allowed_tools"), param)
    mode = allowed_tools.get("mode")
    if not isinstance(mode, str) or mode not in {"auto", "required"}:
        raise content_parts.make_param_error(f"{param}.mode", f"'{param}.mode' must be auto or required")
    tool_names = content_parts.expect_list(allowed_tools.get("tools"), f"{param}.tools")
    names = {
        _parse_name(content_parts.expect_object(tool, f"{param}.tools[{index}]"), f"{param}.tools[{index}]")
        for index, tool in enumerate(tool_names)
    }
    return tuple([tool for tool in tools if tool.name in names]), cast("chat.ToolChoice", mode)


def _parse_name(tool: Body, param: str) -> str:
    """Return the name of a tool. Raises ``InvalidRequest``.

    Some clients write the tool's fields next to ``type`` instead of in ``function``.
    """
    kind = "custom" if tool.get("type") == "custom" else "function"
    if tool.get(kind) is None and tool.get("name") is not None:
        return content_parts.expect_text(tool["name"], f"{param}.name")
    fields = content_parts.expect_object(tool.get(kind), f"{param}.{kind}")
    return content_parts.expect_text(fields.get("name"), f"{param}.{kind}.name")


def _parse_tool(tool: Body, param: str) -> chat.Tool:
    name = _parse_name(tool, param)
    if tool.get("type") == "custom":
        return _parse_custom(tool, name, param)
    function, function_param = tool.get("function"), f"{param}.function"
    if function is None:
        function, function_param = tool, param
    description, strict = function.get("description"), function.get("strict")
    field = "input_schema" if function.get("parameters") is None and "input_schema" in function else "parameters"
    schema = function.get(field)
    if strict is not None and not isinstance(strict, bool):
        raise content_parts.make_param_error(f"{function_param}.strict", f"'{function_param}.strict' must be a boolean")
    return chat.Tool(
        name,
        None if description is None else content_parts.expect_text(description, f"{function_param}.description"),
        None if schema is None else content_parts.expect_object(schema, f"{function_param}.{field}"),
        strict,
        content_parts.parse_cache_control(tool, param) or content_parts.parse_cache_control(function, function_param),
    )


def _parse_custom(tool: Body, name: str, param: str) -> chat.Tool:
    fields, custom_param = (tool, param) if tool.get("custom") is None else (tool["custom"], f"{param}.custom")
    description, input_format = fields.get("description"), fields.get("format")
    description_text = (
        None if description is None else content_parts.expect_text(description, f"{custom_param}.description")
    )
    return build_custom_function(
        name,
        description_text,
        {} if input_format is None else content_parts.expect_object(input_format, f"{custom_param}.format"),
    )


def parse_parallel(body: Body) -> bool | None:
    """Parse ``parallel_tool_calls``; None if it is not set. Raises ``InvalidRequest``."""
    return None if body.get("parallel_tool_calls") is None else parse_flag(body, "parallel_tool_calls")


def _parse_stop(body: Body) -> tuple[str, ...]:
    stop = body.get("stop")
    if stop is None or isinstance(stop, str):
        return (stop,) if stop else ()
    if not isinstance(stop, list):
        raise content_parts.make_param_error("stop", "'stop' must be a string or an array of strings")
    return tuple([content_parts.expect_text(sequence, f"stop[{index}]") for index, sequence in enumerate(stop)])


def _parse_format(body: Body) -> chat.ResponseFormat | None:
    response_format = parse_object(body, "response_format")
    kind = response_format.get("type") if response_format else None
    if response_format is None or kind == "text":
        return None
    if kind == "json_object":
        return chat.ResponseFormat("json")
    if kind != "json_schema":
        raise content_parts.make_param_error(
            "response_format.type", "'response_format.type' must be text, json_object or json_schema"
        )
    param = "response_format.json_schema"
    json_schema = content_parts.expect_object(response_format.get("json_schema"), param)
    schema: chat.Json | None = json_schema.get("schema")
    if schema is None:
        return chat.ResponseFormat("json")
    strict = json_schema.get("strict")
    return chat.ResponseFormat(
        "schema",
        content_parts.expect_object(schema, f"{param}.schema"),
        parse_schema_name(json_schema, param),
        strict if isinstance(strict, bool) else None,
    )


def parse_schema_name(json_schema: Body, param: str) -> str | None:
    """Return the name of an answer's schema; None without one: only OpenAI requires it. Raises ``InvalidRequest``."""
    name = json_schema.get("name")
    return None if name is None else content_parts.expect_text(name, f"{param}.name")


def _parse_thinking(body: Body) -> tuple[chat.Effort | None, int | None]:
    effort = parse_effort(body.get("reasoning_effort"), "reasoning_effort")
    thinking_tokens = None
    reasoning = parse_object(body, "reasoning") or {}
    if reasoning:
        effort = effort or parse_effort(reasoning.get("effort"), "reasoning.effort")
        thinking_tokens = _parse_budget(reasoning, "reasoning", "max_tokens")
        is_enabled = reasoning.get("enabled")
        if effort is None and thinking_tokens is None and isinstance(is_enabled, bool):
            effort = _ENABLED_EFFORT if is_enabled else "none"
    thinking = parse_object(body, "thinking") or {}
    if thinking.get("type") == "disabled":
        return None, 0
    if thinking.get("type") == "enabled":
        budget = _parse_budget(thinking, "thinking", "budget_tokens")
        thinking_tokens = thinking_tokens if budget is None else budget
        effort = effort or (_ENABLED_EFFORT if thinking_tokens is None else None)
    return effort, thinking_tokens


def parse_effort(value: object, param: str) -> chat.Effort | None:
    """Parse a reasoning effort; None stays None. Raises ``InvalidRequest``."""
    if value is None:
        return None
    if not isinstance(value, str) or value not in _EFFORTS:
        raise content_parts.make_param_error(param, f"'{param}' must be one of {', '.join(_EFFORTS)}")
    return cast("chat.Effort", value)


def _parse_budget(fields: Body, param: str, name: str) -> int | None:
    return parse_integer({f"{param}.{name}": fields.get(name)}, f"{param}.{name}", 0, MAX_TOKENS)
