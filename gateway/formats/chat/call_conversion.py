"""Convert an answer's tool calls: to the client's tool names, to unused ids, to one call if only one is allowed.

The calls of a tool that stands for the answer itself become text.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import attrs

from gateway.formats.chat.model import ChoiceFinished, Event, TextDelta, ToolCallDelta, ToolCallPart, ToolCallStart
from gateway.formats.chat.valid_chat import ValidChat
from gateway.formats.stream import StreamParser
from gateway.frozen import frozen


@frozen
class CallConversion:
    """How to convert the tool calls of an answer.

    Attributes:
        names: the client's tool names, by the names in the provider's request.
        used_ids: ids of calls in the request's history. Some servers number calls from 0 in every answer, and clients
            that match calls and results by id would take a repeated id for a call with a result.
        answer_tool: name of a tool whose calls are the answer's text; empty if there is no such tool.
    """

    names: Mapping[str, str]
    used_ids: frozenset[str]
    answer_tool: str


NO_CONVERSION = CallConversion({}, frozenset(), "")


def find_call_conversion(valid_chat: ValidChat) -> CallConversion:
    """Return the conversion of the answer's tool calls, or ``NO_CONVERSION`` if none is needed."""
    request = valid_chat.request
    call_ids = (part.id for message in request.messages for part in message.parts if isinstance(part, ToolCallPart))
    conversion = CallConversion(valid_chat.names, frozenset(call_ids), valid_chat.answer_tool)
    return conversion if conversion != NO_CONVERSION else NO_CONVERSION


class CallConverter:
    """Converts the tool calls in the events of one answer. ``answer_id`` makes generated call ids unique."""

    __slots__ = ("_answer_calls", "_answer_id", "_answer_tool", "_calling_choices", "_names", "_used_ids")

    def __init__(self, conversion: CallConversion, answer_id: str) -> None:
        self._names = conversion.names
        self._used_ids = set(conversion.used_ids)
        self._answer_id = answer_id
        self._answer_tool = conversion.answer_tool
        self._answer_calls: set[tuple[int, int]] = set()  # (choice, index) of the calls converted to text
        self._calling_choices: set[int] = set()  # choices with real tool calls

    def convert(self, events: Iterable[Event]) -> list[Event]:
        return list(self._convert_events(events))

    def _convert_events(self, events: Iterable[Event]) -> Iterator[Event]:
        for event in events:
            kind = type(event)
            if kind is ToolCallStart:
                start_event = self._convert_start(event)  # type: ignore[arg-type]
                if start_event is not None:
                    yield start_event
            elif (
                self._answer_calls
                and isinstance(event, ToolCallDelta)
                and (event.choice, event.index) in self._answer_calls
            ):
                yield TextDelta(event.arguments, event.choice)
            elif self._answer_calls and isinstance(event, ChoiceFinished) and event.choice not in self._calling_choices:
                yield attrs.evolve(event, reason="stop") if event.reason == "tool_calls" else event
            else:
                yield event

    def _convert_start(self, event: ToolCallStart) -> ToolCallStart | None:
        if event.name == self._answer_tool:
            self._answer_calls.add((event.choice, event.index))
            return None
        self._calling_choices.add(event.choice)
        call_id, name = event.id, self._names.get(event.name, event.name)
        if call_id in self._used_ids:
            id_suffix = f"{event.choice}_{event.index}" if event.choice else f"{event.index}"
            call_id = f"call_{self._answer_id}_{id_suffix}"
        self._used_ids.add(call_id)
        return event if (call_id, name) == (event.id, event.name) else attrs.evolve(event, id=call_id, name=name)


def takes_one_call(body: dict[str, Any]) -> bool:
    """Return whether a chat body, in any API format, forbids parallel tool calls."""
    tool_choice = body.get("tool_choice")
    forbids_parallel = (
        isinstance(tool_choice, dict) and tool_choice.get("disable_parallel_tool_use") is True
    )  # Anthropic's field
    return forbids_parallel or body.get("parallel_tool_calls") is False


def keep_first_call(events: Iterable[Event]) -> list[Event]:
    """Return the events without the tool calls after the first one of each choice."""
    return [event for event in events if not (isinstance(event, ToolCallStart | ToolCallDelta) and event.index)]


class ConvertingParser:
    """A ``StreamParser`` that converts the events of ``inner``, another parser."""

    __slots__ = ("_convert", "_inner")

    def __init__(self, inner: StreamParser, convert: Callable[[list[Event]], list[Event]]) -> None:
        self._inner = inner
        self._convert = convert

    @property
    def held_bytes(self) -> int:
        return self._inner.held_bytes

    @property
    def noise(self) -> int:
        return self._inner.noise

    def feed(self, data: bytes) -> list[Event]:
        return self._convert(self._inner.feed(data))

    def finish(self) -> list[Event]:
        return self._convert(self._inner.finish())
