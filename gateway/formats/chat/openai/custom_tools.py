"""Convert custom tools, whose input is plain text, into functions with one argument, and their calls back.

A grammar goes into the description, because other formats cannot enforce it.
"""

from collections.abc import Collection
from typing import Any

import attrs
import orjson

from gateway.errors import ProviderBadResponse
from gateway.formats.chat import model as chat
from gateway.formats.chat.openai.stream import ChatStreamSerializer, build_call
from gateway.formats.wire.json_values import as_object, as_text, list_objects, loads_or_none

Body = dict[str, Any]
INPUT_FIELD = "input"
"""The name of the only argument of a function that represents a custom tool."""
MAX_INPUT_CHARS = 16 * 1024 * 1024
"""The limit on buffered input characters per answer: each input is written only once it is complete."""


def build_custom_function(name: str, description: str | None, input_format: Body) -> chat.Tool:
    """Return the function for a custom tool. ``input_format`` is the tool's ``format``, which may have a grammar.

    The grammar is in ``input_format`` itself or one level below.
    """
    input_format = as_object(input_format.get("grammar")) or input_format
    grammar = input_format.get("definition")
    if isinstance(grammar, str):
        grammar_text = f"The input must fit this grammar ({input_format.get('syntax')}):\n{grammar}"
        description = f"{description}\n\n{grammar_text}" if description else grammar_text
    schema: Body = {
        "type": "object",
        "properties": {INPUT_FIELD: {"type": "string"}},
        "required": [INPUT_FIELD],
        "additionalProperties": False,
    }
    return chat.Tool(name, description, schema)


def read_input(arguments: str) -> str:
    """Return the input of a custom tool call. A model that ignores the schema may write the plain text as arguments."""
    text = as_object(loads_or_none(arguments.encode(errors="surrogatepass"))).get(INPUT_FIELD)
    return text if isinstance(text, str) else arguments


def write_input(text: str) -> str:
    """Return the function arguments for the input of a custom tool."""
    return orjson.dumps({INPUT_FIELD: text}).decode()


def find_custom_names(body: Body) -> frozenset[str]:
    """Return the names of the custom tools of a chat body."""
    tools = [tool for tool in list_objects(body.get("tools")) if tool.get("type") == "custom"]
    return frozenset(name for tool in tools if (name := as_text(as_object(tool.get("custom")).get("name"))))


def uses_custom_tools(body: Body) -> bool:
    """Return whether a chat has a custom tool, or a call of one in its history, even if the tool is gone."""
    if find_custom_names(body):
        return True
    for message in body["messages"]:
        if any(call.get("type") == "custom" for call in list_objects(message.get("tool_calls"))):
            return True
    return False


def build_custom_call(start: chat.ToolCallStart, text: str) -> Body:
    """Build a call of a custom tool with the input ``text``, as in a chat completion."""
    call = build_call(start)
    del call["function"]
    return call | {"type": "custom", "custom": {"name": start.name, "input": text}}


@attrs.define
class _OpenCall:
    start: chat.ToolCallStart
    arguments: list[str] = attrs.Factory(list)


class CustomCallSerializer(ChatStreamSerializer):
    """Writes events as a chat stream with custom tool calls.

    ``write`` raises ``ProviderBadResponse`` if the inputs of an answer exceed ``MAX_INPUT_CHARS``.

    Args:
        names: the names of the custom tools.
    """

    __slots__ = ("_chars", "_names", "_open_calls")

    def __init__(
        self, names: Collection[str], *, answer_id: str, model: str, created_s: int, include_usage: bool
    ) -> None:
        super().__init__(answer_id=answer_id, model=model, created_s=created_s, include_usage=include_usage)
        self._names = names
        self._open_calls: dict[tuple[int, int], _OpenCall] = {}  # by choice and index
        self._chars = 0

    def write(self, event: chat.Event) -> bytes:
        if isinstance(event, chat.ToolCallStart) and event.name in self._names:
            self._open_calls[event.choice, event.index] = _OpenCall(event)
            fragment = {"index": event.index} | build_custom_call(event, "")
            return self._build_delta(event.choice, {"tool_calls": [fragment]}, None)
        if isinstance(event, chat.ToolCallDelta) and (event.choice, event.index) in self._open_calls:
            self._chars += len(event.arguments)
            if self._chars > MAX_INPUT_CHARS:
                raise ProviderBadResponse("The provider's answer is too long", phase="stream")
            self._open_calls[event.choice, event.index].arguments.append(event.arguments)
            return b""
        if isinstance(event, chat.ChoiceFinished):
            return self._write_inputs(event.choice) + super().write(event)
        return super().write(event)

    def _write_inputs(self, choice: int) -> bytes:
        output = b""
        for call_key in sorted(call_key for call_key in self._open_calls if call_key[0] == choice):
            text = read_input("".join(self._open_calls.pop(call_key).arguments))
            if text:
                delta = {"tool_calls": [{"index": call_key[1], "custom": {"input": text}}]}
                output += self._build_delta(choice, delta, None)
        return output
