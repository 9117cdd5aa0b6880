"""Kept bodies as messages of OpenTelemetry's conventions for generative AI.

``gen_ai.input.messages``, ``gen_ai.output.messages`` and ``gen_ai.system_instructions`` have roles and parts, see the
JSON schemas beside the page "GenAI events" of the conventions. Bodies are read leniently: they are redacted, and long
ones lack their middle. What is not understood becomes one text.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from gateway.domain.kept_body import BodyPart
from gateway.formats.redaction.body import EVENT_STREAM
from gateway.formats.redaction.event_texts import describe_texts
from gateway.frozen import frozen

Message = dict[str, Any]
MAX_DEPTH = 20
"""Maximum depth of a message. Arguments of tools may be nested deeper than JSON encoders can write."""
_TOO_DEEP = "[nested too deeply]"
_REASONING_WORDS = ("reasoning", "thinking", "thought")
_TEXT_PLACE_ENDS = ("content", "text", "delta", "refusal", "transcript")
_ROLES = {"model": "assistant", "developer": "system"}


@frozen
class GenAiMessages:
    """The messages of one request. Each field is a list as in the conventions; empty if no such message is kept."""

    instructions: Sequence[Message] = ()
    input: Sequence[Message] = ()
    output: Sequence[Message] = ()


def read_messages(bodies: Sequence[BodyPart], *, succeeded: bool) -> GenAiMessages:
    """Return the messages in kept bodies. ``succeeded`` determines the finish reason of answers that name none."""
    instructions: list[Message] = []
    input_messages: list[Message] = []
    output_messages: list[Message] = []
    for body in bodies:
        if body.kind == "request":
            fields = _parse_object(body.content)
            instructions += _list_instructions(fields)
            input_messages += _list_input(fields) or [_build_message("user", [_build_text(_decode(body))])]
        elif body.kind == "answer":
            output_messages += _list_output(body, succeeded=succeeded)
    lists = (instructions, input_messages, output_messages)
    return GenAiMessages(*([_flatten(message) for message in messages] for messages in lists))


def _flatten(value: Any, depth: int = 0) -> Any:
    """Return ``value`` with JSON text in the place of what is nested deeper than ``MAX_DEPTH``."""
    if isinstance(value, (dict, list)) and depth == MAX_DEPTH:
        try:
            return orjson.dumps(value).decode()
        except orjson.JSONEncodeError:  # nested too deeply for orjson, too
            return _TOO_DEEP
    if isinstance(value, dict):
        return {name: _flatten(item, depth + 1) for name, item in value.items()}
    return [_flatten(item, depth + 1) for item in value] if isinstance(value, list) else value


def _parse_object(content: bytes) -> Mapping[str, Any]:
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _list_instructions(fields: Mapping[str, Any]) -> list[Message]:
    """Return the instructions that the Messages API, the Responses API and Gemini keep apart from the messages."""
    for name in ("system", "instructions", "systemInstruction", "system_instruction"):
        if fields.get(name):
            value = fields[name]
            return _list_parts(value.get("parts", []) if isinstance(value, dict) else value)
    return []


def _list_input(fields: Mapping[str, Any]) -> list[Message]:
    for name in ("messages", "contents", "input", "prompt"):
        value = fields.get(name)
        if isinstance(value, str):
            return [_build_message("user", [_build_text(value)])]
        if isinstance(value, list):
            return [_read_message(item, "user") for item in value]
    return []


def _read_message(item: Any, default_role: str) -> Message:
    if not isinstance(item, dict):
        return _build_message(default_role, _list_parts(item))
    role = str(item.get("role") or default_role)
    if "content" not in item and "parts" not in item:
        return _build_message(role, [_read_part(item)])
    parts = _list_parts(item.get("content") or item.get("parts") or [])
    calls = item.get("tool_calls")
    parts += [_read_part(call) for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    return _build_message(_ROLES.get(role, role), parts)


def _list_parts(value: Any) -> list[Message]:
    items = value if isinstance(value, list) else [value]
    return [_read_part(item) if isinstance(item, dict) else _build_text(str(item)) for item in items]


def _read_part(item: Mapping[str, Any]) -> Message:
    """Return an item as a part: a text, reasoning, a call of a tool or its result; other items keep their type."""
    kind = str(item.get("type") or "")
    function = item.get("function") or item.get("functionCall")
    if isinstance(function, dict) or kind in {"tool_use", "function_call"}:
        call = function if isinstance(function, dict) else item
        arguments = call.get("arguments", call.get("input", call.get("args")))
        call_id = item.get("call_id") or item.get("id")
        return {"type": "tool_call", "id": call_id, "name": str(call.get("name") or ""), "arguments": arguments}
    if kind in {"tool_result", "function_call_output"}:
        call_id = item.get("tool_use_id") or item.get("call_id")
        return {"type": "tool_call_response", "id": call_id, "response": item.get("content", item.get("output"))}
    if isinstance(item.get("thinking"), str):
        return {"type": "reasoning", "content": item["thinking"]}
    if isinstance(item.get("text"), str):
        return _build_text(item["text"])
    return {"type": kind or "unknown", "content": {name: value for name, value in item.items() if name != "type"}}


def _list_output(body: BodyPart, *, succeeded: bool) -> list[Message]:
    reason = "stop" if succeeded else "error"
    if body.media_type.startswith(EVENT_STREAM):
        parts = [_build_streamed_part(place, text) for place, text in describe_texts(body.content)]
        return [_build_message("assistant", parts, reason)]
    fields = _parse_object(body.content)
    messages = list(_list_answers(fields, reason))
    return messages or [_build_message("assistant", [_build_text(_decode(body))], reason)]


def _list_answers(fields: Mapping[str, Any], reason: str) -> Iterator[Message]:
    """Yield the messages in a JSON answer of any API. ``reason`` is the finish reason of those that have none."""
    for name in ("choices", "candidates"):
        for choice in fields.get(name) or () if isinstance(fields.get(name), list) else ():
            if isinstance(choice, dict):
                end = str(choice.get("finish_reason") or choice.get("finishReason") or reason)
                message = choice.get("message") or choice.get("content") or choice
                yield _read_message(message, "assistant") | {"finish_reason": end}
    if isinstance(fields.get("content"), list):
        end = str(fields.get("stop_reason") or reason)
        yield _build_message("assistant", _list_parts(fields["content"]), end)
    for item in fields.get("output") or () if isinstance(fields.get("output"), list) else ():
        yield _read_message(item, "assistant") | {"finish_reason": reason}


def _build_streamed_part(place: str, text: str) -> Message:
    if any(word in place for word in _REASONING_WORDS):
        return {"type": "reasoning", "content": text}
    return _build_text(text) if place.endswith(_TEXT_PLACE_ENDS) else {"type": place, "content": text}


def _build_text(text: str) -> Message:
    return {"type": "text", "content": text}


def _build_message(role: str, parts: Sequence[Message], finish_reason: str = "") -> Message:
    message: Message = {"role": role, "parts": parts}
    return message | {"finish_reason": finish_reason} if finish_reason else message


def _decode(body: BodyPart) -> str:
    return body.content.decode(errors="replace")
