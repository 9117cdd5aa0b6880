"""Client-executed tools of the Responses API with their own item types, represented as functions in other formats.

Item types: ``LocalShellToolCall``, ``FunctionShellCall``, ``ApplyPatchToolCall``, ``ToolSearchCall``.
"""

from collections.abc import Mapping
from typing import Any

from gateway.domain import exact_json
from gateway.formats.chat import model as chat
from gateway.formats.chat.openai.content_parts import expect_text
from gateway.formats.wire.fields import Body
from gateway.formats.wire.json_values import as_object, as_text, list_objects, loads_or_none
from gateway.frozen import frozen

_STRING_SCHEMA: Body = {"type": "string"}
_STRING_LIST_SCHEMA: Body = {"type": "array", "items": _STRING_SCHEMA}
_INTEGER_SCHEMA: Body = {"type": "integer"}


def _build_schema(required_names: list[str], properties: Body) -> Body:
    return {"type": "object", "properties": properties, "required": required_names}


@frozen
class ClientTool:
    """A client-executed tool.

    Attributes:
        field: the field of a call item that holds the arguments.
        fixed_fields: default values in that field, which the arguments override.
        text_field: the argument that receives the whole text if the arguments are not an object.
    """

    description: str
    schema: Body
    field: str
    fixed_fields: Body
    text_field: str


CLIENT_TOOLS: Mapping[str, ClientTool] = {
    "local_shell": ClientTool(
        "Runs a command on the user's machine.",
        _build_schema(
            ["command"],
            {
                "command": _STRING_LIST_SCHEMA,
                "working_directory": _STRING_SCHEMA,
                "timeout_ms": _INTEGER_SCHEMA,
                "env": {"type": "object"},
            },
        ),
        "action",
        {"type": "exec", "command": [], "env": {}},
        "command",
    ),
    "shell": ClientTool(
        "Runs commands in a shell on the user's machine.",
        _build_schema(
            ["commands"],
            {"commands": _STRING_LIST_SCHEMA, "timeout_ms": _INTEGER_SCHEMA, "max_output_length": _INTEGER_SCHEMA},
        ),
        "action",
        {"commands": [], "timeout_ms": None, "max_output_length": None},
        "commands",
    ),
    "apply_patch": ClientTool(
        "Creates, updates or deletes a file; the diff is in the V4A format.",
        _build_schema(
            ["type", "path"],
            {
                "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
                "path": _STRING_SCHEMA,
                "diff": _STRING_SCHEMA,
            },
        ),
        "operation",
        {},
        "diff",
    ),
    "tool_search": ClientTool(
        "Finds tools by what they are for.",
        _build_schema(["query"], {"query": _STRING_SCHEMA}),
        "arguments",
        {},
        "query",
    ),
}
"""Tools by their type, which is also the function name. The type of a call item is this type plus ``_call``."""
_KINDS_BY_CALL_TYPE = {f"{kind}_call": kind for kind in CLIENT_TOOLS}


def is_run_by_client(tool: Body) -> bool:
    """Return whether the client executes a tool whose calls have their own item type."""
    kind = tool.get("type")
    if kind == "shell":
        return as_object(tool.get("environment")).get("type") in (None, "local")
    if kind == "tool_search":
        return tool.get("execution") == "client"
    return isinstance(kind, str) and kind in CLIENT_TOOLS


def build_function(tool: Body) -> chat.Tool:
    """Return the function for a client-executed tool."""
    client_tool = CLIENT_TOOLS[tool["type"]]
    schema = tool.get("parameters")
    description = as_text(tool.get("description")) or client_tool.description
    return chat.Tool(tool["type"], description, schema if isinstance(schema, dict) else client_tool.schema)


def build_item(kind: str, arguments: str) -> Body:
    """Return the fields of a call item for the model's arguments. ``kind`` is the type of the tool."""
    client_tool = CLIENT_TOOLS[kind]
    fields = loads_or_none(arguments.encode())
    if not isinstance(fields, dict):
        is_list = client_tool.schema["properties"][client_tool.text_field]["type"] == "array"
        fields = {client_tool.text_field: [arguments] if is_list else arguments}
    return {client_tool.field: client_tool.fixed_fields | fields} | (
        {"execution": "client"} if kind == "tool_search" else {}
    )


def parse_client_call(item: Body, param: str) -> chat.ToolCallPart | None:
    """Parse the item of a client tool's call; None if OpenAI executed the tool itself. Raises ``InvalidRequest``."""
    kind = _KINDS_BY_CALL_TYPE[item["type"]]
    if kind == "tool_search" and item.get("call_id") is None:
        return None
    call_fields = item.get(CLIENT_TOOLS[kind].field)
    fixed_fields = CLIENT_TOOLS[kind].fixed_fields
    arguments = {
        name: value
        for name, value in as_object(call_fields).items()
        if value is not None and fixed_fields.get(name, 0) != value
    }
    return chat.ToolCallPart(
        expect_text(item.get("call_id"), f"{param}.call_id"), kind, exact_json.dumps(arguments).decode()
    )


def parse_client_result(item: Body, call_ids: Mapping[str, str]) -> chat.ToolResultPart | None:
    """Parse the item of a client tool's result. Returns None if it belongs to no call.

    ``call_ids`` maps the ids of call items to call ids.
    """
    call_id = item.get("call_id") or call_ids.get(as_text(item.get("id")), item.get("id"))
    if not isinstance(call_id, str):
        return None
    if item["type"] == "tool_search_output":
        names = [name for tool in list_objects(item.get("tools")) if (name := as_text(tool.get("name")))]
        return chat.ToolResultPart(call_id, (chat.TextPart(f"Tools available: {', '.join(names) or 'none'}"),))
    output: Any = item.get("output")
    if output is None:
        output = item.get("status") or ""
    text = output if isinstance(output, str) else exact_json.dumps(output).decode()
    return chat.ToolResultPart(call_id, (chat.TextPart(text),) if text else (), item.get("status") == "failed")
