"""Reduce an answer to its first tool call, if the client forbids parallel calls but the provider's format cannot."""

from collections.abc import Iterable
from typing import Any

from gateway.formats.chat.model import Event, ToolCallDelta, ToolCallStart
from gateway.formats.stream import StreamParser


def takes_one_call(body: dict[str, Any]) -> bool:
    """Return whether a chat body, in any API format, forbids parallel tool calls."""
    choice = body.get("tool_choice")
    one = isinstance(choice, dict) and choice.get("disable_parallel_tool_use") is True  # Anthropic's field
    return one or body.get("parallel_tool_calls") is False


def keep_first_call(events: Iterable[Event]) -> list[Event]:
    """Drop every tool call of a choice except the first."""
    return [event for event in events if not (isinstance(event, ToolCallStart | ToolCallDelta) and event.index)]


class OneCallParser:
    """A ``StreamParser`` that drops all tool calls but the first from the events of ``inner``, another parser."""

    __slots__ = ("_inner",)

    def __init__(self, inner: StreamParser) -> None:
        self._inner = inner

    @property
    def held_bytes(self) -> int:
        return self._inner.held_bytes

    @property
    def noise(self) -> int:
        return self._inner.noise

    def feed(self, data: bytes) -> list[Event]:
        return keep_first_call(self._inner.feed(data))

    def finish(self) -> list[Event]:
        return keep_first_call(self._inner.finish())
