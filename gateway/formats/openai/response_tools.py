"""Parses the tools of a Responses body, for a channel with another format.

Shapes: OpenAI's OpenAPI document, ``FunctionToolParam``, ``CustomToolParam``, ``NamespaceToolParam``. A custom tool
without a grammar becomes a function with one text. A tool of a namespace becomes a tool whose name begins with that of
the namespace; the description of the namespace is dropped, since the tools have their own.
"""

import hashlib
from collections.abc import Iterator
from typing import Any, cast

from gateway.formats import chat
from gateway.formats.openai.content_parts import expect_list, expect_object, expect_text, refuse
from gateway.formats.openai.fields import Body, parse_list, parse_object

INPUT = "input"
"""The argument of a function that stands for a custom tool, which is called with one text."""
MAX_NAME = 64
"""Characters of a tool's name that every format takes (OpenAI's OpenAPI document, ``FunctionObject``)."""
_DIGEST = 8
_CALLABLE = frozenset({"function", "custom"})
_NAMESPACE = "namespace"


def only_there(where: str, what: str) -> Exception:
    """Return the error for what only works with a channel that speaks the Responses API."""
    return refuse(where, f"{what} only works with a channel that speaks the Responses API")


def join_name(namespace: object, name: str) -> str:
    """Return the name of a tool outside its namespace, at most ``MAX_NAME`` characters unless ``name`` is longer."""
    if not isinstance(namespace, str) or not namespace:
        return name
    joined = f"{namespace}__{name}"
    if len(joined) <= MAX_NAME:
        return joined
    digest = hashlib.sha256(joined.encode()).hexdigest()[:_DIGEST]
    return f"{joined[: MAX_NAME - _DIGEST - 1]}_{digest}"


def parse_tools(body: Body) -> tuple[tuple[chat.Tool, ...], chat.ToolChoice | None]:
    """Return the tools and the tool choice. Raises ``InvalidRequest`` naming the field."""
    tools = tuple([tool for at, listed in enumerate(parse_list(body, "tools") or ())
                   for tool in _parse_listed(expect_object(listed, f"tools[{at}]"), f"tools[{at}]")])  # fmt: skip
    choice = body.get("tool_choice")
    if choice is None or (isinstance(choice, str) and choice in {"auto", "none", "required"}):
        return tools, cast("chat.ToolChoice | None", choice)
    if not isinstance(choice, dict):
        raise refuse("tool_choice", "'tool_choice' must be auto, none, required or an object")
    if choice.get("type") == "allowed_tools":
        return _parse_allowed(choice, tools)
    return tools, chat.ForcedTool(_parse_name(choice, "tool_choice"))


def _parse_listed(tool: Body, where: str) -> Iterator[chat.Tool]:
    """Yield a tool, or those of a namespace."""
    if tool.get("type") != _NAMESPACE:
        yield _parse_tool(tool, where)
        return
    namespace = expect_text(tool.get("name"), f"{where}.name")
    for at, inner in enumerate(expect_list(tool.get("tools"), f"{where}.tools")):
        place = f"{where}.tools[{at}]"
        yield _parse_tool(expect_object(inner, place), place, namespace)


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
        raise only_there(f"{where}.type", f"The tool {kind!r} in '{where}'")
    return join_name(tool.get(_NAMESPACE), expect_text(tool.get("name"), f"{where}.name"))


def _parse_tool(tool: Body, where: str, namespace: str = "") -> chat.Tool:
    name = join_name(namespace, _parse_name(tool, where))
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
        raise only_there(f"{where}.format", f"The grammar of the tool {tool['name']!r}")
    return {
        "type": "object",
        "properties": {INPUT: {"type": "string"}},
        "required": [INPUT],
        "additionalProperties": False,
    }


def find_custom_tools(body: Body) -> frozenset[str]:
    """Return the names of a checked body's custom tools, as the provider has them."""
    return frozenset(
        join_name(namespace, tool["name"]) for namespace, tool in _list_all(body) if tool.get("type") == "custom"
    )


def find_namespaces(body: Body) -> dict[str, Body]:
    """Return, by the name that the provider has, what a call of a namespace's tool has for its name."""
    return {
        join_name(namespace, tool["name"]): {"name": tool["name"], _NAMESPACE: namespace}
        for namespace, tool in _list_all(body)
        if namespace
    }


def _list_all(body: Body) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the tools of a checked body, each with the namespace that it is in."""
    for tool in body.get("tools") or ():
        if tool.get("type") == _NAMESPACE:
            yield from ((tool["name"], inner) for inner in tool["tools"])
        else:
            yield "", tool
