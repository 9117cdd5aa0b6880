"""Kept chats as lines for fine-tuning, in the form of the OpenAI API: ``{"messages": [...], "tools": [...]}``."""

from collections.abc import Sequence
from typing import Any

from gateway.formats.transcript.answers import ShownAnswer
from gateway.formats.transcript.messages import ShownMessage, ToolCall, read_messages

_CHAT = "chat"
_ROLES = {"model": "assistant", "developer": "system"}
_KNOWN_ROLES = frozenset({"system", "user", "assistant"})


def build_example(operation: str, body: Any, answers: Sequence[ShownAnswer]) -> dict[str, Any] | None:
    """Return the line for a request and its first answer; None without an answer, or if a part of the chat is lost.

    A chat in the OpenAI API format keeps its messages and tools unchanged. Only texts are converted from other formats,
    because the ids of their tool calls are unknown.
    """
    if not answers or not isinstance(body, dict) or not (answers[0].text or answers[0].tool_calls):
        return None
    answer = answers[0]
    if operation == _CHAT:
        messages = body.get("messages")
        if not isinstance(messages, list):
            return None
        tools = {"tools": body["tools"]} if isinstance(body.get("tools"), list) else {}
        return {"messages": [*messages, _build_answer(answer)], **tools}
    messages = [_build_message(message) for message in read_messages(body)]
    if answer.tool_calls or not messages or not all(messages):
        return None
    return {"messages": [*messages, _build_answer(answer)]}


def _build_message(message: ShownMessage) -> dict[str, Any] | None:
    role = _ROLES.get(message.role, message.role)
    if role not in _KNOWN_ROLES or message.tool_calls or not message.text:
        return None
    return {"role": role, "content": message.text}


def _build_answer(answer: ShownAnswer) -> dict[str, Any]:
    calls = [_build_call(number, call) for number, call in enumerate(answer.tool_calls, 1)]
    content = answer.text or (None if calls else "")
    return {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}


def _build_call(number: int, call: ToolCall) -> dict[str, Any]:
    return {"id": f"call_{number}", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
