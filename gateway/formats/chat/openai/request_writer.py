"""Build a chat body of the OpenAI API format from a ``ChatRequest``, for clients with another format.

Forms that all vendors accept are preferred: for example, plain text is a string, not an array of parts. Dropped,
because the format cannot express them: ``top_k``, cache control, signatures, signed or encrypted reasoning, and images
in assistant messages.
"""

import base64
import binascii
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from gateway.errors import InvalidRequest
from gateway.formats.chat import model as chat
from gateway.formats.chat.openai.content_parts import AUDIO_TYPES

_PART_SEPARATOR = "\n\n"
_COMMON_EFFORTS = ("low", "medium", "high")
"""Efforts that every reasoning model accepts. Some models reject lower and higher ones."""

JsonMessage = dict[str, Any]


def build_body(request: chat.ChatRequest, model: str, *, stream: bool) -> dict[str, Any]:
    """Build the body with the provider's model name.

    Raises ``InvalidRequest`` for content that the format cannot express.
    """
    fields: dict[str, Any] = {
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "stop": list(request.stop) or None,
        "n": request.n if request.n > 1 else None,
        "seed": request.seed,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "response_format": _build_format(request.format),
        "reasoning_effort": _build_effort(request),
        "user": request.user,
        "logprobs": True if request.top_logprobs is not None else None,
        "top_logprobs": request.top_logprobs or None,
    }
    if request.tools:  # OpenAI rejects ``tool_choice`` and ``parallel_tool_calls`` without tools
        fields["tools"] = [_build_tool(tool) for tool in request.tools]
        fields["tool_choice"] = _build_choice(request.tool_choice)
        fields["parallel_tool_calls"] = request.parallel_tools
    if stream:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    messages = list(_build_messages(request.messages))
    return {"model": model, "messages": messages} | {name: value for name, value in fields.items() if value is not None}


def _build_messages(messages: Iterable[chat.Message]) -> Iterator[JsonMessage]:
    """Yield the messages. Consecutive ones of one role are joined: many models' templates require alternating roles."""
    for role, role_messages in groupby(messages, key=lambda message: message.role):
        parts = tuple([part for message in role_messages for part in message.parts])
        if role == "user":
            yield from _build_user(parts)
            continue
        message_body = (
            _build_assistant(parts) if role == "assistant" else {"role": "system", "content": _join_texts(parts)}
        )
        if message_body["content"] or message_body.get("tool_calls"):  # DeepSeek rejects a message with only reasoning
            yield message_body


def _join_texts(parts: Iterable[chat.Part]) -> str:
    return _PART_SEPARATOR.join([part.text for part in parts if isinstance(part, chat.TextPart)])


def _build_assistant(parts: Sequence[chat.Part]) -> JsonMessage:
    """Build an assistant message.

    Unsigned reasoning came from a provider of this format: DeepSeek rejects a tool result without it (Thinking Mode:
    tool calls). Signed reasoning came from another format and is dropped.
    """
    message: JsonMessage = {"role": "assistant", "content": _join_texts(parts)}
    reasoning_texts = [
        part.text for part in parts if isinstance(part, chat.ReasoningPart) and part.text and not part.signature
    ]
    if reasoning_texts:
        message["reasoning_content"] = _PART_SEPARATOR.join(reasoning_texts)
    calls = [_build_call(part) for part in parts if isinstance(part, chat.ToolCallPart)]
    if calls:
        message["content"] = message["content"] or None
        message["tool_calls"] = calls
    return message


def _build_call(call: chat.ToolCallPart) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _build_user(parts: Sequence[chat.Part]) -> Iterator[JsonMessage]:
    """Yield one message per tool result, because results must follow the calls, then one with the user's own parts.

    Results contain only text. Their images and files precede the user's parts, with a note on their origin. Raises
    ``InvalidRequest`` for audio and text files that the format cannot express.
    """
    user_parts: list[chat.TextPart | chat.MediaPart] = []
    for part in parts:
        if isinstance(part, chat.ToolResultPart):
            media_parts = [result_part for result_part in part.parts if isinstance(result_part, chat.MediaPart)]
            yield {
                "role": "tool",
                "tool_call_id": part.id,
                "content": _build_result(part, has_images=bool(media_parts)),
            }
            if media_parts:
                user_parts += [chat.TextPart(f"From the result of the tool call {part.id}:"), *media_parts]
    user_parts += [part for part in parts if isinstance(part, chat.TextPart | chat.MediaPart)]
    if user_parts:
        yield {"role": "user", "content": _build_content(user_parts)}


def _build_result(result: chat.ToolResultPart, *, has_images: bool) -> str:
    text = _join_texts(result.parts)
    if has_images:
        text = _PART_SEPARATOR.join([*filter(None, [text]), "(More of this result is in the user's next message.)"])
    return f"The tool failed: {text}" if result.failed else text


def _build_content(parts: Sequence[chat.TextPart | chat.MediaPart]) -> str | list[dict[str, Any]]:
    json_parts = [_build_part(part) for part in parts]
    if all(part["type"] == "text" for part in json_parts):
        return _PART_SEPARATOR.join([part["text"] for part in json_parts])
    return json_parts


def _build_part(part: chat.TextPart | chat.MediaPart) -> dict[str, Any]:
    if isinstance(part, chat.TextPart):
        return {"type": "text", "text": part.text}
    if part.kind == "image":
        detail = {"detail": part.detail} if part.detail else {}
        return {"type": "image_url", "image_url": {"url": _build_url(part, "image/png")} | detail}
    return _build_audio(part) if part.kind == "audio" else _build_file(part)


def _build_url(media: chat.MediaPart, media_type: str) -> str:
    return media.url or f"data:{media.media_type or media_type};base64,{media.data or ''}"


def _build_audio(media: chat.MediaPart) -> dict[str, Any]:
    for audio_format, media_type in AUDIO_TYPES.items():
        if media.media_type == media_type and media.data is not None:
            return {"type": "input_audio", "input_audio": {"data": media.data, "format": audio_format}}
    raise InvalidRequest(f"Audio of the type {media.media_type} does not work with this model", param=media.param)


def _build_file(media: chat.MediaPart) -> dict[str, Any]:
    """Build a file part with a data URL or a URL (OpenRouter: PDF inputs). Text files become text parts.

    Raises ``InvalidRequest`` for a text file that is not UTF-8 in base64.
    """
    media_type = media.media_type or "application/pdf"
    if media.data is not None and media_type.startswith("text/"):
        title_lines = [media.name] if media.name else []
        return {"type": "text", "text": "\n".join([*title_lines, _decode_text(media.data)])}
    file = {"filename": media.name or "document.pdf", "file_data": _build_url(media, media_type)}
    return {"type": "file", "file": file}


def _decode_text(data: str) -> str:
    try:
        return base64.b64decode(data, validate=True).decode()
    except (binascii.Error, ValueError):
        raise InvalidRequest("A text document is not base64 of UTF-8", param="messages") from None


def _build_tool(tool: chat.Tool) -> dict[str, Any]:
    fields = {"description": tool.description, "parameters": tool.schema, "strict": tool.strict}
    present_fields = {name: value for name, value in fields.items() if value is not None}
    return {"type": "function", "function": {"name": tool.name} | present_fields}


def _build_choice(choice: chat.ToolChoice | None) -> str | dict[str, Any] | None:
    if isinstance(choice, chat.ForcedTool):
        return {"type": "function", "function": {"name": choice.name}}
    return choice


def _build_format(response_format: chat.ResponseFormat | None) -> dict[str, Any] | None:
    if response_format is None:
        return None
    if response_format.kind == "json" or response_format.schema is None:
        return {"type": "json_object"}
    json_schema: dict[str, Any] = {"name": response_format.name or "answer", "schema": response_format.schema}
    if response_format.strict is not None:
        json_schema["strict"] = response_format.strict
    return {"type": "json_schema", "json_schema": json_schema}


def _build_effort(request: chat.ChatRequest) -> str | None:
    """Return the reasoning effort; a token budget becomes "none" or the nearest of ``_COMMON_EFFORTS``.

    None if the request sets neither.
    """
    tokens = request.thinking_tokens
    if request.effort is not None or tokens is None:
        return request.effort
    if tokens == 0:
        return "none"
    return min(_COMMON_EFFORTS, key=lambda effort: abs(chat.EFFORT_TOKENS[effort] - tokens))
