"""Parse the tools of a Messages body for a channel with another format.

Anthropic defines some tools only by their type. Client tools of this kind become functions with the arguments that
Anthropic documents (platform.claude.com/docs/en/agents-and-tools/tool-use/bash-tool, .../text-editor-tool,
.../memory-tool, .../computer-use-tool); their calls are ``tool_use`` blocks as for any tool. Dropped are server tools,
which Anthropic runs, and sets of tools (``computer_toolset_20260801``), whose members only Anthropic knows.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.errors import InvalidRequest
from gateway.formats.chat import model as chat
from gateway.formats.chat.adaptations import Adaptations
from gateway.formats.wire.fields import Body, name_json_type

BILLING_LINE = "x-anthropic-billing-header:"
"""Prefix of a system text that Claude Code writes only for Anthropic. It differs between sessions and would defeat the
prompt cache of any other provider."""
TOOL_REFERENCE = "tool_reference"
"""Type of a block in a tool result that names a tool (.../tool-use/tool-search-tool)."""
_TEXT: Body = {"type": "string"}
_NUMBERS: Body = {"type": "array", "items": {"type": "integer"}}
_VERSION = re.compile(r"_\d{8}\Z")


def describe_tool(name: str) -> str:
    """Return the text that replaces a reference to a tool."""
    return f"Tool available: {name}"


def _build_schema(commands: str, required: str, **fields: Body) -> Body:
    action = required.split(maxsplit=1)[0]
    command: Body = {"type": "string", "enum": commands.split()} if commands else _TEXT
    return {"type": "object", "properties": {action: command, **fields}, "required": required.split()}


_EDITED: Mapping[str, Body] = {
    "path": _TEXT, "file_text": _TEXT, "old_str": _TEXT, "new_str": _TEXT, "insert_line": {"type": "integer"},
    "insert_text": _TEXT, "view_range": _NUMBERS,
}  # fmt: skip
_CLIENT_TOOLS: Mapping[str, tuple[str, Body]] = {
    "bash": (
        "Runs a command in a shell that is kept between calls; restart: true starts a new one.",
        {"type": "object", "properties": {"command": _TEXT, "restart": {"type": "boolean"}}},
    ),
    "text_editor": (
        "Views, creates and edits files.",
        _build_schema("view create str_replace insert undo_edit", "command path", **_EDITED),
    ),
    "memory": (
        "Keeps notes between conversations as files below /memories.",
        _build_schema(
            "view create str_replace insert delete rename", "command", **_EDITED, old_path=_TEXT, new_path=_TEXT
        ),
    ),
    "computer": (
        "Operates the mouse and the keyboard of a computer, and takes screenshots.",
        _build_schema(
            "key type mouse_move left_click left_click_drag right_click middle_click double_click triple_click "
            "left_mouse_down left_mouse_up scroll hold_key wait screenshot cursor_position zoom",
            "action",
            coordinate=_NUMBERS,
            start_coordinate=_NUMBERS,
            region=_NUMBERS,
            text=_TEXT,
            duration={"type": "number"},
            scroll_amount={"type": "integer"},
            scroll_direction={"type": "string", "enum": ["up", "down", "left", "right"]},
        ),
    ),
}
"""Description and argument schema of each tool, by its type without the version."""


def parse_tools(body: Body, adaptations: Adaptations) -> tuple[chat.Tool, ...]:
    """Return the tools of a body, including those added by messages. Raises ``InvalidRequest`` naming the field."""
    tools = {}
    for where, declared in _list_declared(body):
        tool = _read_function(declared)
        kind = tool.get("type")
        parsed = _parse_tool(tool, where) if kind is None or kind == "custom" else _parse_typed(tool, where)
        if parsed is None:
            adaptations.add(f"tools.{kind}")
        else:
            tools[where if where.startswith("tools") else parsed.name] = parsed
    return tuple(tools.values())


def _read_function(tool: Body) -> Body:
    if tool.get("type") != "function":
        return tool
    nested = tool.get("function")
    function = nested if isinstance(nested, dict) else tool
    schema = function.get("input_schema", function.get("parameters"))
    return {"cache_control": tool.get("cache_control"), **function, "type": None, "input_schema": schema}


def _list_declared(body: Body) -> Iterator[tuple[str, Body]]:
    for index, tool in enumerate(body.get("tools") or ()):
        yield f"tools[{index}]", tool
    for at, message in enumerate(body["messages"]):
        content = message["content"]
        for index, block in enumerate(content if message["role"] == "system" and isinstance(content, list) else ()):
            added = block.get("tool") if isinstance(block, dict) and block.get("type") == "tool_addition" else None
            defined = added.get("definition") if isinstance(added, dict) else None
            if isinstance(defined, dict):
                yield f"messages[{at}].content[{index}].tool.definition", defined


def _parse_tool(tool: Body, where: str) -> chat.Tool:
    schema, strict = tool.get("input_schema"), tool.get("strict")
    if schema is not None and not isinstance(schema, dict):
        here = f"{where}.input_schema"
        raise InvalidRequest(f"'{here}' must be an object, not {name_json_type(schema)}", param=here)
    return chat.Tool(
        name=get_text(tool, "name", where),
        description=find_text(tool, "description"),
        schema=schema,
        strict=strict if isinstance(strict, bool) else None,
        cache=find_cache(tool),
    )


def _parse_typed(tool: Body, where: str) -> chat.Tool | None:
    known = _CLIENT_TOOLS.get(_VERSION.sub("", get_text(tool, "type", where)))
    if known is None:
        return None
    description, schema = known
    width, height = tool.get("display_width_px"), tool.get("display_height_px")
    if type(width) is int and type(height) is int:
        description += f" The screen has {width} x {height} pixels."
    return chat.Tool(get_text(tool, "name", where), description, schema, cache=find_cache(tool))


def get_text(holder: Any, name: str, where: str) -> str:
    """Return the string in the field ``name`` of a block. Raises ``InvalidRequest`` if there is none."""
    if not isinstance(holder, dict):
        raise InvalidRequest(f"'{where}' must be an object, not {name_json_type(holder)}", param=where)
    value = holder.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"'{where}.{name}' must be a string, not {name_json_type(value)}", param=f"{where}.{name}")
    return value


def find_text(holder: Body, name: str) -> str | None:
    """Return the string in the field ``name``; None if it is missing or empty."""
    value = holder.get(name)
    return value if isinstance(value, str) and value else None


def find_cache(block: Body) -> chat.Json | None:
    """Return the cache control of a block or a tool; None if it has none."""
    mark = block.get("cache_control")
    return mark if isinstance(mark, dict) else None
