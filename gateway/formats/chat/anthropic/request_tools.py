"""Parse the tools of a Messages body for a channel with another format; read fields of its blocks and tools.

Anthropic defines some tools only by their type. Client tools of this kind become functions with the arguments that
Anthropic documents (platform.claude.com/docs/en/agents-and-tools/tool-use/bash-tool, .../text-editor-tool,
.../memory-tool, .../computer-use-tool); their calls are ``tool_use`` blocks as for any tool. Server tools, which
Anthropic runs, and sets of tools (``computer_toolset_20260801``), whose members only Anthropic knows, are dropped.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.errors import InvalidRequest
from gateway.formats.chat import model as chat
from gateway.formats.chat.adaptations import Adaptations
from gateway.formats.wire.fields import Body, name_json_type

TOOL_REFERENCE = "tool_reference"
"""Type of a block in a tool result that names a tool (.../tool-use/tool-search-tool)."""
_STRING_SCHEMA: Body = {"type": "string"}
_INTEGERS_SCHEMA: Body = {"type": "array", "items": {"type": "integer"}}
_VERSION_SUFFIX = re.compile(r"_\d{8}\Z")


def describe_tool(name: str) -> str:
    """Return the text that replaces a reference to a tool."""
    return f"Tool available: {name}"


def _build_schema(command_names: str, required_field: str, **fields: Body) -> Body:
    action = required_field.split(maxsplit=1)[0]
    command_schema: Body = {"type": "string", "enum": command_names.split()} if command_names else _STRING_SCHEMA
    return {"type": "object", "properties": {action: command_schema, **fields}, "required": required_field.split()}


_EDIT_COMMANDS: Mapping[str, Body] = {
    **dict.fromkeys(("path", "file_text", "old_str", "new_str"), _STRING_SCHEMA),
    "insert_line": {"type": "integer"},
    "insert_text": _STRING_SCHEMA,
    "view_range": _INTEGERS_SCHEMA,
}
_CLIENT_TOOLS: Mapping[str, tuple[str, Body]] = {
    "bash": (
        "Runs a command in a shell that is kept between calls; restart: true starts a new one.",
        {"type": "object", "properties": {"command": _STRING_SCHEMA, "restart": {"type": "boolean"}}},
    ),
    "text_editor": (
        "Views, creates and edits files.",
        _build_schema("view create str_replace insert undo_edit", "command path", **_EDIT_COMMANDS),
    ),
    "memory": (
        "Keeps notes between conversations as files below /memories.",
        _build_schema(
            "view create str_replace insert delete rename",
            "command",
            **_EDIT_COMMANDS,
            old_path=_STRING_SCHEMA,
            new_path=_STRING_SCHEMA,
        ),
    ),
    "computer": (
        "Operates the mouse and the keyboard of a computer, and takes screenshots.",
        _build_schema(
            "key type mouse_move left_click left_click_drag right_click middle_click double_click triple_click "
            "left_mouse_down left_mouse_up scroll hold_key wait screenshot cursor_position zoom",
            "action",
            coordinate=_INTEGERS_SCHEMA,
            start_coordinate=_INTEGERS_SCHEMA,
            region=_INTEGERS_SCHEMA,
            text=_STRING_SCHEMA,
            duration={"type": "number"},
            scroll_amount={"type": "integer"},
            scroll_direction={"type": "string", "enum": ["up", "down", "left", "right"]},
        ),
    ),
}
"""Description and argument schema of each tool, by its type without the version."""


def parse_tools(body: Body, adaptations: Adaptations) -> tuple[chat.Tool, ...]:
    """Return the tools of a body, including those added by messages. Raises ``InvalidRequest`` naming the field.

    Tools that the client does not run are left out, and recorded in ``adaptations``.
    """
    tools = {}
    for param, tool_body in _list_declarations(body):
        tool = _unwrap_function(tool_body)
        kind = tool.get("type")
        chat_tool = _parse_tool(tool, param) if kind is None or kind == "custom" else _parse_client_tool(tool, param)
        if chat_tool is None:
            adaptations.add(f"tools.{kind}")
        else:
            tools[param if param.startswith("tools") else chat_tool.name] = chat_tool
    return tuple(tools.values())


def _unwrap_function(tool: Body) -> Body:
    if tool.get("type") != "function":
        return tool
    chat_function = tool.get("function")
    function = chat_function if isinstance(chat_function, dict) else tool
    schema = function.get("input_schema", function.get("parameters"))
    return {"cache_control": tool.get("cache_control"), **function, "type": None, "input_schema": schema}


def _list_declarations(body: Body) -> Iterator[tuple[str, Body]]:
    for index, tool in enumerate(body.get("tools") or ()):
        yield f"tools[{index}]", tool
    for message_index, message in enumerate(body["messages"]):
        content = message["content"]
        for index, block in enumerate(content if message["role"] == "system" and isinstance(content, list) else ()):
            tool_field = block.get("tool") if isinstance(block, dict) and block.get("type") == "tool_addition" else None
            definition = tool_field.get("definition") if isinstance(tool_field, dict) else None
            if isinstance(definition, dict):
                yield f"messages[{message_index}].content[{index}].tool.definition", definition


def _parse_tool(tool: Body, param: str) -> chat.Tool:
    schema, strict = tool.get("input_schema"), tool.get("strict")
    if schema is not None and not isinstance(schema, dict):
        schema_param = f"{param}.input_schema"
        raise InvalidRequest(f"'{schema_param}' must be an object, not {name_json_type(schema)}", param=schema_param)
    return chat.Tool(
        name=get_text(tool, "name", param),
        description=find_text(tool, "description"),
        schema=schema,
        strict=strict if isinstance(strict, bool) else None,
        cache_control=find_cache_control(tool),
    )


def _parse_client_tool(tool: Body, param: str) -> chat.Tool | None:
    client_tool = _CLIENT_TOOLS.get(_VERSION_SUFFIX.sub("", get_text(tool, "type", param)))
    if client_tool is None:
        return None
    description, schema = client_tool
    width, height = tool.get("display_width_px"), tool.get("display_height_px")
    if type(width) is int and type(height) is int:
        description += f" The screen has {width} x {height} pixels."
    return chat.Tool(get_text(tool, "name", param), description, schema, cache_control=find_cache_control(tool))


def get_text(fields: Any, name: str, param: str) -> str:
    """Return the string in the field ``name`` of a block. Raises ``InvalidRequest`` if there is none."""
    if not isinstance(fields, dict):
        raise InvalidRequest(f"'{param}' must be an object, not {name_json_type(fields)}", param=param)
    value = fields.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"'{param}.{name}' must be a string, not {name_json_type(value)}", param=f"{param}.{name}")
    return value


def find_text(fields: Body, name: str) -> str | None:
    """Return the string in the field ``name``; None if the field is missing, empty or not a string."""
    value = fields.get(name)
    return value if isinstance(value, str) and value else None


def find_cache_control(block: Body) -> chat.Json | None:
    """Return the cache control of a block or a tool; None if it has none."""
    cache_control = block.get("cache_control")
    return cache_control if isinstance(cache_control, dict) else None
