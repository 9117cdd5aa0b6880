"""Record the changes to a client's request for features that the provider's format lacks.

A history never makes the gateway reject a request: each part is translated, else written as text, else dropped.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from gateway.domain import exact_json
from gateway.errors import InvalidRequest
from gateway.formats.chat.model import ForcedTool, TextPart, Tool, ToolChoice

LEFT_OUT_PREFIX = "tools."
"""Prefix of the recorded name of a dropped tool."""

_OPAQUE_FIELDS = frozenset(
    {"type", "id", "status", "caller", "cache_control", "annotations", "signature", "data", "logprobs"}
)
"""Fields that are useless to another model: markers and file contents."""
_EMPTY_VALUES: tuple[Any, ...] = (None, "", [], {})
_MAX_LEVELS = 32


@attrs.define
class Adaptations:
    """Names of the adapted parts, in the order of first use.

    Attributes:
        is_past: the reader is in an earlier turn, where an unreadable file is replaced instead of rejected.
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
    """Write a part of a history as ``[kind] {...}`` without opaque fields; return "" if nothing is left."""
    rest = _keep_readable(part, _MAX_LEVELS)
    if rest in _EMPTY_VALUES:
        return ""
    inner = next(iter(rest.values())) if len(rest) == 1 else rest
    return f"[{kind}] {inner if isinstance(inner, str) else exact_json.dumps(inner).decode()}"


def _keep_readable(value: Any, levels: int) -> Any:
    if isinstance(value, Mapping) and levels:
        readable = {
            name: _keep_readable(inner, levels - 1) for name, inner in value.items() if not _is_opaque(name, inner)
        }
        return {name: inner for name, inner in readable.items() if inner not in _EMPTY_VALUES}
    if isinstance(value, list) and levels:
        return [readable for inner in value if (readable := _keep_readable(inner, levels - 1)) not in _EMPTY_VALUES]
    return None if isinstance(value, Mapping | list) else value


def _is_opaque(name: str, value: Any) -> bool:
    stands_for_data = isinstance(value, str) and value.startswith("data:")
    return stands_for_data or name in _OPAQUE_FIELDS or name.endswith("_id") or name.startswith("encrypted")


def check_choice(choice: ToolChoice | None, tools: Sequence[Tool], adaptations: Adaptations) -> ToolChoice | None:
    """Return the tool choice; None if all tools were dropped and the choice was ``auto``. Raises ``InvalidRequest``."""
    if choice in {None, "none"} or not adaptations.names:
        return choice
    left_out = [name for name in adaptations.names if name.startswith(LEFT_OUT_PREFIX)]
    if not left_out or (tools and not isinstance(choice, ForcedTool)):
        return choice
    if isinstance(choice, ForcedTool) and any(tool.name == choice.name for tool in tools):
        return choice
    if choice == "auto":
        return None
    names = ", ".join(left_out)
    raise InvalidRequest(
        f"'tool_choice' requires a tool that no channel of this model runs ({names}): choose another tool, or 'auto'",
        param="tool_choice",
    )
