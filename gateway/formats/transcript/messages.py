"""What a request asked, as a list of messages: of chats in every client format, and of other requests with texts."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs

from gateway.formats.transcript.content import get_object, get_text, join_content, list_objects, read_arguments
from gateway.frozen import frozen

_CALL_TYPES = frozenset({"tool_use", "function_call", "custom_tool_call"})
_PLAIN_FIELDS = ("prompt", "suffix", "input", "query", "documents", "content")
"""Fields with the texts of requests that are no chats."""


@frozen
class ToolCall:
    """A call of a tool. ``arguments`` is JSON as a text, incomplete if the answer was cut off."""

    name: str
    arguments: str


@frozen
class ShownMessage:
    """One message. ``role`` is the format's own word (system, user, assistant, tool, model), or the type of an item."""

    role: str
    text: str
    tool_calls: Sequence[ToolCall] = ()


def read_messages(body: Any) -> list[ShownMessage]:
    """Return the messages of a request's body; empty if it has none of a known form."""
    if not isinstance(body, dict):
        return []
    messages = list(_list_messages(body))
    if any(message.role != "system" for message in messages):
        return messages
    plain_messages = (ShownMessage("user", join_content(body[name])) for name in _PLAIN_FIELDS if body.get(name))
    return [*messages, *plain_messages]


def read_session_messages(events: Iterable[Any]) -> list[ShownMessage]:
    """Return the messages in the events of a realtime session: what the client sent, and transcripts of its audio."""
    return [message for event in events if isinstance(event, dict) for message in _read_session_event(event)]


def _read_session_event(event: dict[str, Any]) -> Iterator[ShownMessage]:
    kind = get_text(event, "type")
    if kind == "session.update":
        instructions = get_text(get_object(event, "session"), "instructions")
        if instructions:
            yield ShownMessage("system", instructions)
    elif kind == "conversation.item.create":
        yield _read_item(get_object(event, "item"))
    elif kind == "conversation.item.input_audio_transcription.completed":
        yield ShownMessage("user", get_text(event, "transcript"))


def _list_messages(body: dict[str, Any]) -> Iterator[ShownMessage]:
    for name in ("system", "instructions", "systemInstruction", "system_instruction"):
        value = body.get(name)
        if value:
            yield ShownMessage("system", join_content(value.get("parts") if isinstance(value, dict) else value))
    for name in ("messages", "input"):
        for item in list_objects(body.get(name)):
            yield _read_item(item)
    for item in list_objects(body.get("contents")):
        yield _read_gemini_content(item)


def _read_item(item: dict[str, Any]) -> ShownMessage:
    """Return the message to show for a message of a chat, or for an item of the Responses API."""
    kind = get_text(item, "type")
    if kind in _CALL_TYPES:
        return ShownMessage("assistant", "", (_read_call(item),))
    if kind.endswith("_output"):
        return ShownMessage("tool", join_content(item.get("output")))
    content = item.get("content")
    if kind == "reasoning":
        content = [*list_objects(item.get("summary")), *list_objects(content)]
    parts = content if isinstance(content, list) else [content]
    calls = [_read_call(part) for part in list_objects(parts) if part.get("type") in _CALL_TYPES]
    calls += [_read_call(get_object(call, "function") or call) for call in list_objects(item.get("tool_calls"))]
    texts = [part for part in parts if not (isinstance(part, dict) and part.get("type") in _CALL_TYPES)]
    text = "" if content is None else join_content(texts)
    return ShownMessage(get_text(item, "role") or kind or "user", text, calls)


def _read_call(call: dict[str, Any]) -> ToolCall:
    arguments = next((call[name] for name in ("arguments", "input", "args") if name in call), None)
    return ToolCall(get_text(call, "name"), read_arguments(arguments))


def _read_gemini_content(content: dict[str, Any]) -> ShownMessage:
    parts = list_objects(content.get("parts"))
    calls = [_read_call(get_object(part, "functionCall")) for part in parts if "functionCall" in part]
    text = join_content([part for part in parts if "functionCall" not in part])
    return attrs.evolve(ShownMessage(get_text(content, "role") or "user", text), tool_calls=calls)
