"""A ``ChatRequest`` as a chat body of the convention, for a caller of another language over a channel that speaks it.

Shapes: the convention's OpenAPI document, ``CreateChatCompletionRequest``. What every vendor of the convention takes is
preferred to what only the first one does: text alone is a string, not an array of parts.

Dropped: ``top_k``, cache marks, signatures, sealed thoughts, and pictures in what the assistant said, for which the
convention has no place.
"""

import base64
import binascii
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from gateway.errors import InvalidRequest
from gateway.formats.chat import (
    EFFORT_TOKENS,
    ChatRequest,
    ForcedTool,
    MediaPart,
    Message,
    Part,
    ReasoningPart,
    ResponseFormat,
    TextPart,
    Tool,
    ToolCallPart,
    ToolChoice,
    ToolResultPart,
)
from gateway.formats.openai.content_parts import AUDIO_TYPES

MAX_STOP = 4
"""Stop sequences that the convention takes."""
_JOINT = "\n\n"
_ORDINARY_EFFORTS = ("low", "medium", "high")
"""What every model that thinks understands. The words above and below are known to some, and refused by the others."""

JsonMessage = dict[str, Any]


def build_body(conversation: ChatRequest, model: str, *, stream: bool) -> dict[str, Any]:
    """The body for the provider, under its own name of the model.

    Raises ``InvalidRequest`` where the convention cannot say what was asked for.
    """
    if len(conversation.stop) > MAX_STOP:
        raise InvalidRequest(f"At most {MAX_STOP} stop sequences work with this model", param="stop_sequences")
    said: dict[str, Any] = {
        "max_tokens": conversation.max_tokens,
        "temperature": conversation.temperature,
        "top_p": conversation.top_p,
        "stop": list(conversation.stop) or None,
        "n": conversation.choices if conversation.choices > 1 else None,
        "seed": conversation.seed,
        "presence_penalty": conversation.presence_penalty,
        "frequency_penalty": conversation.frequency_penalty,
        "response_format": _build_format(conversation.format),
        "reasoning_effort": _build_effort(conversation),
        "user": conversation.user,
    }
    if conversation.tools:  # without tools the convention refuses both of the others
        said["tools"] = [_build_tool(tool) for tool in conversation.tools]
        said["tool_choice"] = _build_choice(conversation.tool_choice)
        said["parallel_tool_calls"] = conversation.parallel_tools
    if stream:
        said |= {"stream": True, "stream_options": {"include_usage": True}}
    messages = list(_build_messages(conversation.turns))
    return {"model": model, "messages": messages} | {name: value for name, value in said.items() if value is not None}


def _build_messages(turns: Iterable[Message]) -> Iterator[JsonMessage]:
    """Turns of one role that follow each other are one message: many a model's template takes turn and turn about."""
    for role, group in groupby(turns, key=lambda turn: turn.role):
        parts = tuple([part for turn in group for part in turn.parts])
        if role == "user":
            yield from _build_user(parts)
            continue
        message = _build_assistant(parts) if role == "assistant" else {"role": "system", "content": _join(parts)}
        if any(value for name, value in message.items() if name != "role"):
            yield message


def _join(parts: Iterable[Part]) -> str:
    return _JOINT.join([part.text for part in parts if isinstance(part, TextPart)])


def _build_assistant(parts: Sequence[Part]) -> JsonMessage:
    """What the assistant said.

    Thoughts without a signature go back under the name they came by: DeepSeek refuses a tool's result without them
    (Thinking Mode: tool calls), and only a provider that thinks aloud in the convention has given any. Signed ones are
    another language's, and meant for nobody else.
    """
    message: JsonMessage = {"role": "assistant", "content": _join(parts)}
    thoughts = [part.text for part in parts if isinstance(part, ReasoningPart) and part.text and not part.signature]
    if thoughts:
        message["reasoning_content"] = _JOINT.join(thoughts)
    calls = [_build_call(part) for part in parts if isinstance(part, ToolCallPart)]
    if calls:
        message["content"] = message["content"] or None
        message["tool_calls"] = calls
    return message


def _build_call(call: ToolCallPart) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments or "{}"}}


def _build_user(parts: Sequence[Part]) -> Iterator[JsonMessage]:
    """Tool results first, each a message: the convention wants them right after the calls. Then the user's own words.

    A result takes text only; its pictures and files stand before the user's words, each lot with a word of where it
    belongs.
    """
    shown: list[TextPart | MediaPart] = []
    for part in parts:
        if isinstance(part, ToolResultPart):
            blobs = [inner for inner in part.parts if isinstance(inner, MediaPart)]
            yield {"role": "tool", "tool_call_id": part.id, "content": _build_result(part, shown=bool(blobs))}
            if blobs:
                shown += [TextPart(f"From the result of the tool call {part.id}:"), *blobs]
    shown += [part for part in parts if isinstance(part, TextPart | MediaPart)]
    if shown:
        yield {"role": "user", "content": _build_content(shown)}


def _build_result(result: ToolResultPart, *, shown: bool) -> str:
    text = _join(result.parts)
    if shown:
        text = _JOINT.join([*filter(None, [text]), "(More of this result is in the user's next message.)"])
    return f"The tool failed: {text}" if result.failed else text


def _build_content(parts: Sequence[TextPart | MediaPart]) -> str | list[dict[str, Any]]:
    written = [_build_part(part) for part in parts]
    if all(part["type"] == "text" for part in written):
        return _JOINT.join([part["text"] for part in written])
    return written


def _build_part(part: TextPart | MediaPart) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    if part.kind == "image":
        detail = {"detail": part.detail} if part.detail else {}
        return {"type": "image_url", "image_url": {"url": _build_address(part, "image/png")} | detail}
    return _build_audio(part) if part.kind == "audio" else _build_file(part)


def _build_address(blob: MediaPart, media_type: str) -> str:
    return blob.url or f"data:{blob.media_type or media_type};base64,{blob.data or ''}"


def _build_audio(blob: MediaPart) -> dict[str, Any]:
    for form, media_type in AUDIO_TYPES.items():
        if blob.media_type == media_type and blob.data is not None:
            return {"type": "input_audio", "input_audio": {"data": blob.data, "format": form}}
    raise InvalidRequest(f"Audio of the type {blob.media_type} does not work with this model", param="messages")


def _build_file(blob: MediaPart) -> dict[str, Any]:
    """A file as a data URL, or its address (OpenRouter: PDF inputs). A text's words: the convention takes PDF alone."""
    media_type = blob.media_type or "application/pdf"
    if blob.data is not None and media_type.startswith("text/"):
        title = [blob.name] if blob.name else []
        return {"type": "text", "text": "\n".join([*title, _decode(blob.data)])}
    file = {"filename": blob.name or "document.pdf", "file_data": _build_address(blob, media_type)}
    return {"type": "file", "file": file}


def _decode(data: str) -> str:
    try:
        return base64.b64decode(data, validate=True).decode()
    except (binascii.Error, ValueError):
        raise InvalidRequest("A text document is not base64 of UTF-8", param="messages") from None


def _build_tool(tool: Tool) -> dict[str, Any]:
    described = {"description": tool.description, "parameters": tool.schema, "strict": tool.strict}
    known = {name: value for name, value in described.items() if value is not None}
    return {"type": "function", "function": {"name": tool.name} | known}


def _build_choice(choice: ToolChoice | None) -> str | dict[str, Any] | None:
    if isinstance(choice, ForcedTool):
        return {"type": "function", "function": {"name": choice.name}}
    return choice


def _build_format(wanted: ResponseFormat | None) -> dict[str, Any] | None:
    if wanted is None:
        return None
    if wanted.kind == "json" or wanted.schema is None:
        return {"type": "json_object"}
    described: dict[str, Any] = {"name": wanted.name or "answer", "schema": wanted.schema}
    if wanted.strict is not None:
        described["strict"] = wanted.strict
    return {"type": "json_schema", "json_schema": described}


def _build_effort(conversation: ChatRequest) -> str | None:
    """The word that was said; a number as the ordinary word nearest to it."""
    tokens = conversation.thinking_tokens
    if conversation.effort is not None or tokens is None:
        return conversation.effort
    if tokens == 0:
        return "none"
    return min(_ORDINARY_EFFORTS, key=lambda effort: abs(EFFORT_TOKENS[effort] - tokens))
