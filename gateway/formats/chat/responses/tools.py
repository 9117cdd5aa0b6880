"""Parse the tools of a Responses body, for channels with another format.

Input items may contain tools too: tools added by the client (``additional_tools``) or found by a search
(``tool_search_output``). A custom tool becomes a function with one text argument; see ``custom_tools.py``. The name of
a tool in a namespace gets the name of the namespace as a prefix. A tool executed by OpenAI is left out if the model
need not call it, and rejected otherwise.
"""

import hashlib
from collections.abc import Iterator
from typing import Any, cast

from gateway.formats.chat import model as chat
from gateway.formats.chat.adaptations import LEFT_OUT_PREFIX, Adaptations, check_choice
from gateway.formats.chat.openai.content_parts import expect_list, expect_object, expect_text, make_param_error
from gateway.formats.chat.openai.custom_tools import build_custom_function
from gateway.formats.chat.responses.client_tools import CLIENT_TOOLS, build_function, is_run_by_client
from gateway.formats.wire.fields import Body, parse_list, parse_object
from gateway.formats.wire.json_values import as_object, list_objects

MAX_NAME_CHARS = 64
"""The longest tool name in characters that every format accepts (OpenAI's OpenAPI document, ``FunctionObject``)."""
_DIGEST_CHARS = 8
_CALLABLE_KINDS = ("function", "custom")
_NAMESPACE = "namespace"
_TOOL_LIST_KINDS = ("additional_tools", "tool_search_output")


def make_responses_only_error(param: str, subject: str) -> Exception:
    """Return the error for a feature, named by ``subject``, that needs a channel with the Responses API."""
    return make_param_error(param, f"{subject} only works with a channel that uses the Responses API")


def join_name(namespace: object, name: str) -> str:
    """Return a tool's name with its namespace, if any, as a prefix.

    A name longer than ``MAX_NAME_CHARS`` is cut and ends with a hash.
    """
    if not isinstance(namespace, str) or not namespace:
        return name
    joint_name = f"{namespace}__{name}"
    if len(joint_name) <= MAX_NAME_CHARS:
        return joint_name
    digest = hashlib.sha256(joint_name.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{joint_name[: MAX_NAME_CHARS - _DIGEST_CHARS - 1]}_{digest}"


def parse_tools(body: Body, adaptations: Adaptations) -> tuple[tuple[chat.Tool, ...], chat.ToolChoice | None]:
    """Return the tools, of each name the first, and the tool choice or None.

    With a choice of ``allowed_tools``, only those are returned. Tools that OpenAI executes are left out, and recorded
    in ``adaptations``. Raises ``InvalidRequest`` naming the field.
    """
    tools_by_name: dict[str, chat.Tool] = {}
    for param, tool in _list_declarations(body):
        for chat_tool in _parse_declaration(tool, param, adaptations):
            tools_by_name.setdefault(chat_tool.name, chat_tool)
    tools = tuple(tools_by_name.values())
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") in ("auto", "none", "required"):
        choice = choice["type"]
    if choice is None or (isinstance(choice, str) and choice in {"auto", "none", "required"}):
        return tools, check_choice(cast("chat.ToolChoice | None", choice), tools, adaptations)
    if not isinstance(choice, dict):
        raise make_param_error("tool_choice", "'tool_choice' must be auto, none, required or an object")
    if choice.get("type") == "allowed_tools":
        tools, allowed_names = _parse_allowed(choice, tools)
        return tools, check_choice(allowed_names, tools, adaptations)
    return tools, check_choice(chat.ForcedTool(_parse_name(choice, "tool_choice")), tools, adaptations)


def _list_declarations(body: Body) -> Iterator[tuple[str, Body]]:
    """Yield each tool of the body and of its input items, with its path. Raises ``InvalidRequest``."""
    for position, tool in enumerate(parse_list(body, "tools") or ()):
        yield f"tools[{position}]", expect_object(tool, f"tools[{position}]")
    items = body.get("input")
    for position, item in enumerate(items if isinstance(items, list) else ()):
        if item.get("type") in _TOOL_LIST_KINDS:
            param = f"input[{position}].tools"
            for index, tool in enumerate(expect_list(item.get("tools") or [], param)):
                yield f"{param}[{index}]", expect_object(tool, f"{param}[{index}]")


def _parse_declaration(tool: Body, param: str, adaptations: Adaptations) -> Iterator[chat.Tool]:
    """Yield the parsed tool, or all tools of a namespace. Raises ``InvalidRequest``.

    A tool that OpenAI executes is left out, and recorded in ``adaptations``.
    """
    kind = expect_text(tool.get("type"), f"{param}.type")
    if kind in _CALLABLE_KINDS:
        yield _parse_tool(tool, param)
    elif kind == _NAMESPACE:
        namespace = expect_text(tool.get("name"), f"{param}.name")
        for index, member in enumerate(expect_list(tool.get("tools"), f"{param}.tools")):
            tools_param = f"{param}.tools[{index}]"
            if expect_object(member, tools_param).get("type") in _CALLABLE_KINDS:
                yield _parse_tool(member, tools_param, namespace)
            else:
                adaptations.add(f"{LEFT_OUT_PREFIX}{expect_text(member.get('type'), f'{tools_param}.type')}")
    elif is_run_by_client(tool):
        yield build_function(tool)
    else:
        adaptations.add(f"{LEFT_OUT_PREFIX}{kind}")


def _parse_allowed(choice: Body, tools: tuple[chat.Tool, ...]) -> tuple[tuple[chat.Tool, ...], chat.ToolChoice]:
    mode = choice.get("mode")
    if not isinstance(mode, str) or mode not in {"auto", "required"}:
        raise make_param_error("tool_choice.mode", "'tool_choice.mode' must be auto or required")
    located_tools = [
        (expect_object(tool, f"tool_choice.tools[{index}]"), f"tool_choice.tools[{index}]")
        for index, tool in enumerate(expect_list(choice.get("tools"), "tool_choice.tools"))
    ]
    names = {_parse_name(tool, param) for tool, param in located_tools if _is_function(tool)}
    return tuple([tool for tool in tools if tool.name in names]), cast("chat.ToolChoice", mode)


def _is_function(tool: Body) -> bool:
    kind = tool.get("type")
    return isinstance(kind, str) and (kind in _CALLABLE_KINDS or kind in CLIENT_TOOLS)


def _parse_name(tool: Body, param: str) -> str:
    if not _is_function(tool):
        raise make_responses_only_error(f"{param}.type", f"The tool {tool.get('type')!r} in '{param}'")
    if tool["type"] in CLIENT_TOOLS:
        return str(tool["type"])
    return join_name(tool.get(_NAMESPACE), expect_text(_unwrap_function(tool).get("name"), f"{param}.name"))


def _unwrap_function(tool: Body) -> Body:
    # Chat bodies nest the fields in ``function``.
    return tool | as_object(tool.get("function")) if "name" not in tool else tool


def _parse_tool(tool: Body, param: str, namespace: str = "") -> chat.Tool:
    tool = _unwrap_function(tool)
    name = join_name(namespace, _parse_name(tool, param))
    description = tool.get("description")
    if description is not None:
        description = expect_text(description, f"{param}.description")
    if tool["type"] == "custom":
        return build_custom_function(name, description, parse_object(tool, "format") or {})
    schema, strict = tool.get("parameters"), tool.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise make_param_error(f"{param}.strict", f"'{param}.strict' must be a boolean")
    return chat.Tool(
        name, description, None if schema is None else expect_object(schema, f"{param}.parameters"), strict
    )


def find_call_kinds(body: Body) -> dict[str, str]:
    """Return the types of a checked body's tools that are not functions, by the names that the provider gets."""
    kinds: dict[str, str] = {}
    for namespace, tool in _list_namespaced_tools(body):
        if tool.get("type") in _CALLABLE_KINDS:
            kinds.setdefault(join_name(namespace, _unwrap_function(tool)["name"]), tool["type"])
        elif is_run_by_client(tool):
            kinds.setdefault(tool["type"], tool["type"])
    return {name: kind for name, kind in kinds.items() if kind != "function"}


def find_namespaces(body: Body) -> dict[str, Body]:
    """Return the ``name`` and ``namespace`` fields for calls of namespaced tools, by the names the provider gets."""
    return {
        join_name(namespace, _unwrap_function(tool)["name"]): {
            "name": _unwrap_function(tool)["name"],
            _NAMESPACE: namespace,
        }
        for namespace, tool in _list_namespaced_tools(body)
        if namespace and tool.get("type") in _CALLABLE_KINDS
    }


def _list_namespaced_tools(body: Body) -> Iterator[tuple[str, dict[str, Any]]]:
    for _, tool in _list_declarations(body):
        if tool.get("type") == _NAMESPACE:
            yield from ((tool["name"], member) for member in list_objects(tool["tools"]))
        else:
            yield "", tool
