"""Events of streams in every API format, each with a piece of a text."""

from collections.abc import Callable, Mapping

import orjson


def openai_event(piece: str, *, index: int = 0) -> bytes:
    choice = {"index": index, "delta": {"content": piece}, "finish_reason": None}
    return b"data: " + orjson.dumps({"id": "chatcmpl-1", "choices": [choice]}) + b"\n\n"


def tool_event(piece: str) -> bytes:
    call = {"index": 0, "function": {"arguments": piece}}
    return b"data: " + orjson.dumps({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}) + b"\n\n"


def anthropic_event(piece: str) -> bytes:
    delta = {"type": "text_delta", "text": piece}
    event = {"type": "content_block_delta", "index": 1, "delta": delta}
    return b"event: content_block_delta\ndata: " + orjson.dumps(event) + b"\n\n"


def responses_event(piece: str) -> bytes:
    event = {
        "type": "response.output_text.delta",
        "item_id": "m",
        "output_index": 0,
        "content_index": 0,
        "delta": piece,
    }
    return b"event: response.output_text.delta\r\ndata: " + orjson.dumps(event) + b"\r\n\r\n"


def gemini_event(piece: str) -> bytes:
    return b"data: " + orjson.dumps({"candidates": [{"content": {"parts": [{"text": piece}]}}]}) + b"\n\n"


EVENTS: Mapping[str, Callable[[str], bytes]] = {
    "openai": openai_event,
    "tool": tool_event,
    "anthropic": anthropic_event,
    "responses": responses_event,
    "gemini": gemini_event,
}
