"""Parses a Responses body into a ``ChatRequest``, for a channel with another format.

Shapes: OpenAI's OpenAPI document, ``CreateResponse``. A custom tool without a grammar becomes a function with one text.

Rejected, because the answer would not be what was requested: tools that run at OpenAI, custom tools with a grammar,
``prompt``, ``moderation``, ``context_management``, ``top_logprobs``, the logprobs among ``include``, uploaded files.
Dropped, because the answer is valid without them: ``metadata``, ``text.verbosity``, ``reasoning.summary`` (a model's
reasoning is always shown), ``truncation``, ``max_tool_calls`` (of OpenAI's own tools), ``store``, ``service_tier``,
``prompt_cache_*``, ``stream_options``, and every field that OpenAI does not document.
"""

from typing import cast

from gateway.formats import chat
from gateway.formats.openai.content_parts import expect_list, expect_object, expect_text, refuse
from gateway.formats.openai.fields import Body, parse_flag, parse_list, parse_number, parse_object, read_text
from gateway.formats.openai.request_reader import parse_effort, parse_parallel
from gateway.formats.openai.response_items import INPUT, parse_items

_ONLY_OPENAI = ("prompt", "moderation", "context_management", "top_logprobs", "previous_response_id", "conversation")
_LOGPROBS = "message.output_text.logprobs"
_CALLABLE = frozenset({"function", "custom"})


def parse_chat_request(body: Body) -> chat.ChatRequest:
    """Parse a checked body (see ``parse_responses_call``). Raises ``InvalidRequest`` naming the field."""
    _check_only_openai(body)
    instructions = read_text(body, "instructions")
    messages = parse_items(body.get("input") or "")
    if not messages:
        raise refuse("input", "'input' says nothing")
    if instructions:
        messages.insert(0, chat.Message("system", (chat.TextPart(instructions),)))
    tools, choice = _parse_tools(body)
    reasoning = parse_object(body, "reasoning") or {}
    return chat.ChatRequest(
        messages=tuple(messages),
        max_tokens=body.get("max_output_tokens"),
        temperature=parse_number(body, "temperature", 0, 2),
        top_p=parse_number(body, "top_p", 0, 1),
        tools=tools,
        tool_choice=choice,
        parallel_tools=parse_parallel(body),
        format=_parse_format(body),
        effort=parse_effort(reasoning.get("effort"), "reasoning.effort"),
        user=read_text(body, "safety_identifier") or read_text(body, "user") or None,
    )


def _check_only_openai(body: Body) -> None:
    for name in _ONLY_OPENAI:
        if body.get(name):
            raise _only_there(name, f"'{name}'")
    if parse_flag(body, "background"):
        raise _only_there("background", "'background'")
    if _LOGPROBS in (parse_list(body, "include") or ()):
        raise _only_there("include", f"'{_LOGPROBS}' in 'include'")


def _only_there(where: str, what: str) -> Exception:
    return refuse(where, f"{what} only works with a channel that speaks the Responses API")


def _parse_tools(body: Body) -> tuple[tuple[chat.Tool, ...], chat.ToolChoice | None]:
    listed = parse_list(body, "tools") or ()
    tools = tuple([_parse_tool(expect_object(tool, f"tools[{at}]"), f"tools[{at}]") for at, tool in enumerate(listed)])
    choice = body.get("tool_choice")
    if choice is None or (isinstance(choice, str) and choice in {"auto", "none", "required"}):
        return tools, cast("chat.ToolChoice | None", choice)
    if not isinstance(choice, dict):
        raise refuse("tool_choice", "'tool_choice' must be auto, none, required or an object")
    if choice.get("type") == "allowed_tools":
        return _parse_allowed(choice, tools)
    return tools, chat.ForcedTool(_parse_name(choice, "tool_choice"))


def _parse_allowed(choice: Body, tools: tuple[chat.Tool, ...]) -> tuple[tuple[chat.Tool, ...], chat.ToolChoice]:
    mode = choice.get("mode")
    if not isinstance(mode, str) or mode not in {"auto", "required"}:
        raise refuse("tool_choice.mode", "'tool_choice.mode' must be auto or required")
    names = {
        _parse_name(expect_object(tool, f"tool_choice.tools[{at}]"), f"tool_choice.tools[{at}]")
        for at, tool in enumerate(expect_list(choice.get("tools"), "tool_choice.tools"))
    }
    return tuple([tool for tool in tools if tool.name in names]), cast("chat.ToolChoice", mode)


def _parse_name(tool: Body, where: str) -> str:
    kind = tool.get("type")
    if kind not in _CALLABLE:
        raise _only_there(f"{where}.type", f"The tool {kind!r} in '{where}'")
    return expect_text(tool.get("name"), f"{where}.name")


def _parse_tool(tool: Body, where: str) -> chat.Tool:
    name = _parse_name(tool, where)
    description = tool.get("description")
    if description is not None:
        description = expect_text(description, f"{where}.description")
    if tool["type"] == "custom":
        return chat.Tool(name, description, _build_custom_schema(tool, where))
    schema, strict = tool.get("parameters"), tool.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise refuse(f"{where}.strict", f"'{where}.strict' must be a boolean")
    return chat.Tool(
        name, description, None if schema is None else expect_object(schema, f"{where}.parameters"), strict
    )


def _build_custom_schema(tool: Body, where: str) -> Body:
    form = parse_object(tool, "format") or {}
    if form.get("type", "text") != "text":
        raise _only_there(f"{where}.format", f"The grammar of the tool {tool['name']!r}")
    return {
        "type": "object",
        "properties": {INPUT: {"type": "string"}},
        "required": [INPUT],
        "additionalProperties": False,
    }


def find_custom_tools(body: Body) -> frozenset[str]:
    """Return the names of a checked body's custom tools."""
    return frozenset(tool["name"] for tool in body.get("tools") or () if tool.get("type") == "custom")


def _parse_format(body: Body) -> chat.ResponseFormat | None:
    text = parse_object(body, "text") or {}
    wanted = text.get("format")
    if wanted is None:
        return None
    wanted = expect_object(wanted, "text.format")
    match wanted.get("type"):
        case "text":
            return None
        case "json_object":
            return chat.ResponseFormat("json")
        case "json_schema":
            strict = wanted.get("strict")
            return chat.ResponseFormat(
                "schema",
                expect_object(wanted.get("schema"), "text.format.schema"),
                expect_text(wanted.get("name"), "text.format.name"),
                strict if isinstance(strict, bool) else None,
            )
    raise refuse("text.format.type", "'text.format.type' must be text, json_object or json_schema")
