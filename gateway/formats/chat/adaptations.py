"""Record the changes to a client's request for features that the provider's format lacks.

Parts of a history are adapted rather than rejected: each is translated, else written as text, else dropped.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from gateway.domain import exact_json
from gateway.errors import InvalidRequest
from gateway.formats.chat.model import ForcedTool, TextPart, Tool, ToolChoice

LEFT_OUT_PREFIX = "tools."
"""Prefix of the recorded name of a dropped tool."""

_UNREADABLE_FIELDS = frozenset(
    {"type", "id", "status", "caller", "cache_control", "annotations", "signature", "data", "logprobs"}
)
"""Fields that are useless to another model: markers and file contents."""
_EMPTY_VALUES: tuple[Any, ...] = (None, "", [], {})
_MAX_DEPTH = 32


@attrs.define
class Adaptations:
    """Records the parts of one request that are adapted.

    Attributes:
        names: names of the adapted parts, in the order of first use.
        is_past: whether the reader is in an earlier turn, where an unreadable file is replaced instead of rejected.
    """

    names: dict[str, None] = attrs.Factory(dict)
    is_past: bool = False

    def add(self, name: str) -> None:
        self.names[name] = None

    def write(self, kind: str, part: Mapping[str, Any]) -> list[TextPart]:
        """Record ``kind`` and return the part as text; an empty list if the part has no readable content."""
        self.add(kind)
        text = write_text(kind, part)
        return [TextPart(text)] if text else []

    def replace_file(self, kind: str) -> TextPart:
        """Record ``kind`` and return a placeholder text for a file that only its provider can read."""
        self.add(kind)
        return TextPart(f"[{kind}: a file that is not available any more]")


def write_text(kind: str, part: Mapping[str, Any]) -> str:
    """Return a part of a history as ``[kind] {...}``, without unreadable fields; "" if no other field has content."""
    readable = _keep_readable(part, _MAX_DEPTH)
    if readable in _EMPTY_VALUES:
        return ""
    content = next(iter(readable.values())) if len(readable) == 1 else readable
    return f"[{kind}] {content if isinstance(content, str) else exact_json.dumps(content).decode()}"


def _keep_readable(value: Any, max_depth: int) -> Any:
    if isinstance(value, Mapping) and max_depth:
        readable = {
            name: _keep_readable(member, max_depth - 1)
            for name, member in value.items()
            if not _is_unreadable(name, member)
        }
        return {name: member for name, member in readable.items() if member not in _EMPTY_VALUES}
    if isinstance(value, list) and max_depth:
        return [
            readable for member in value if (readable := _keep_readable(member, max_depth - 1)) not in _EMPTY_VALUES
        ]
    return None if isinstance(value, Mapping | list) else value


def _is_unreadable(name: str, value: Any) -> bool:
    is_data_url = isinstance(value, str) and value.startswith("data:")
    return is_data_url or name in _UNREADABLE_FIELDS or name.endswith("_id") or name.startswith("encrypted")


def check_choice(choice: ToolChoice | None, tools: Sequence[Tool], adaptations: Adaptations) -> ToolChoice | None:
    """Return the tool choice; None for ``auto`` if no tool is left.

    Raises ``InvalidRequest`` if the choice requires a tool that was dropped.
    """
    if choice in {None, "none"} or not adaptations.names:
        return choice
    dropped_tools = [name for name in adaptations.names if name.startswith(LEFT_OUT_PREFIX)]
    if not dropped_tools or (tools and not isinstance(choice, ForcedTool)):
        return choice
    if isinstance(choice, ForcedTool) and any(tool.name == choice.name for tool in tools):
        return choice
    if choice == "auto":
        return None
    names = ", ".join(dropped_tools)
    raise InvalidRequest(
        f"'tool_choice' requires a tool that no channel of this model runs ({names}): choose another tool, or 'auto'",
        param="tool_choice",
    )
