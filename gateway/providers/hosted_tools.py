"""Removes the tools that a vendor executes and bills, in bodies that are passed on without translation.

Clients often only offer such a tool, as Codex does with ``web_search``, and the model can answer without the tool. If
the model must call the tool (``must_call``), the request is refused instead.
"""

from collections.abc import Collection, Iterator
from typing import Any

Body = dict[str, Any]

TOOLS = "tools"


def list_tools(body: Any) -> Iterator[Any]:
    """Yield all entries of the ``tools`` lists of a body and of its input items."""
    for holder in (body, *_list_holders(body)):
        tools = holder.get(TOOLS)
        if isinstance(tools, list):
            yield from tools


def _list_holders(body: Any) -> list[Body]:
    items = body.get("input")
    if not isinstance(items, list):
        return []
    return [item for item in items if isinstance(item, dict) and TOOLS in item]


def must_call(body: Body, names: Collection[str]) -> bool:
    """Return whether ``tool_choice`` leaves the model only tools in ``names``, such as ``tools.web_search``."""
    choice = body.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if not isinstance(kind, str) or kind in {"auto", "none"}:
        return False
    if kind in {"required", "any"}:
        return not any(_drop_nested(tool, names) for tool in list_tools(body))
    if kind == "allowed_tools":
        return not _list_allowed(choice, names)
    tool_name = choice.get("name") if isinstance(choice, dict) else None
    return f"{TOOLS}.{kind}" in names or any(
        isinstance(tool, dict) and tool.get("name") == tool_name and not _drop_nested(tool, names)
        for tool in list_tools(body)
    )


def remove_tools(body: Body, names: Collection[str]) -> Body:
    """Return a copy of the body without the tools in ``names``; without ``tool_choice`` too if no tool remains.

    A ``tool_choice`` that lists the allowed tools loses these tools as well.
    """
    other_fields = _drop_tools(body, names)
    if isinstance(items := body.get("input"), list):
        other_fields["input"] = [
            _drop_tools(item, names) if isinstance(item, dict) and TOOLS in item else item for item in items
        ]
    choice = body.get("tool_choice")
    if not any(True for _ in list_tools(other_fields)):
        other_fields.pop("tool_choice", None)
    elif isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        other_fields["tool_choice"] = choice | {TOOLS: _list_allowed(choice, names)}
    return other_fields


def _drop_tools(holder: Body, names: Collection[str]) -> Body:
    tools = holder.get(TOOLS)
    if not isinstance(tools, list):
        return dict(holder)
    other_tools = [inner_tool for tool in tools if (inner_tool := _drop_nested(tool, names))]
    return (
        holder | {TOOLS: other_tools}
        if other_tools or "type" in holder
        else {name: value for name, value in holder.items() if name != TOOLS}
    )


def _list_allowed(choice: Any, names: Collection[str]) -> list[Any]:
    tools = choice.get(TOOLS)
    return [tool for tool in tools if _drop_nested(tool, names)] if isinstance(tools, list) else []


def _drop_nested(tool: Any, names: Collection[str]) -> Any:
    if not isinstance(tool, dict):
        return tool
    if f"{TOOLS}.{tool.get('type')}" in names:
        return None
    other_fields = {name: value for name, value in tool.items() if f"{TOOLS}.{name}" not in names}
    return _drop_tools(other_fields, names) if TOOLS in other_fields else other_fields
