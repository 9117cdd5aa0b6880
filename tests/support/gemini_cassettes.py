"""Gemini's answers in the shapes that its documentation shows, written by hand: streams as chunks, whole answers.

ai.google.dev/api/generate-content and /gemini-api/docs/{thinking,function-calling,thought-signatures,image-generation}.
"""

from typing import Any

import orjson

Chunk = dict[str, Any]
SIGNATURE = "AY89a18iOcFus5wr5bW5xN6zZ4aUiCyhgmg6HE2YjtYDV/dwZ5o="


def usage(prompt: int, answered: int | None = None, thought: int | None = None, **more: int) -> Chunk:
    """``usageMetadata``; what is None is left out, as a zero is."""
    counts = {"promptTokenCount": prompt, "candidatesTokenCount": answered, "thoughtsTokenCount": thought, **more}
    return {name: count for name, count in counts.items() if count is not None}


def chunk(*parts: Chunk, reason: str | None = None, used: Chunk | None = None, index: int | None = None) -> Chunk:
    candidate: Chunk = {"content": {"parts": list(parts), "role": "model"}}
    if reason is not None:
        candidate["finishReason"] = reason
    if index is not None:
        candidate["index"] = index
    return {
        "candidates": [candidate],
        "usageMetadata": used if used is not None else {"trafficType": "ON_DEMAND"},
        "modelVersion": "gemini-2.5-flash",
        "responseId": "tTCwacuEBMvnitYP06qsgQY",
    }


def stream(*chunks: Chunk) -> bytes:
    """``?alt=sse``: CRLF, and no end mark."""
    return b"".join(b"data: " + orjson.dumps(item) + b"\r\n\r\n" for item in chunks)


TEXT = [
    chunk({"text": "Hel"}, used=usage(11, totalTokenCount=11), index=0),
    chunk({"text": "lo, ありがとう"}, used=usage(11, 3), index=0),
    chunk({"text": ""}, reason="STOP", used=usage(11, 7, cachedContentTokenCount=4), index=0),
]
THINKING = [
    chunk({"text": "**Weighing** it. ", "thought": True}, used=usage(9, None, 20)),
    chunk({"text": "Done.", "thought": True}, used=usage(9, None, 31)),
    chunk({"text": "42", "thoughtSignature": SIGNATURE}, used=usage(9, 1, 31)),
    chunk({"text": "."}, reason="STOP", used=usage(9, 2, 31)),
]
TOOLS = [
    chunk({"text": "Which cities? ", "thought": True}, used=usage(80, None, 12)),
    chunk(
        {"functionCall": {"name": "weather", "args": {"city": "Paris"}, "id": "fc-1"}, "thoughtSignature": SIGNATURE},
        {"functionCall": {"name": "weather", "args": {"city": "Zürich"}}},
        used=usage(80, 24, 12),
    ),
    chunk({"functionCall": {"name": "now"}}, used=usage(80, 28, 12)),
    chunk({"text": ""}, reason="STOP", used=usage(80, 28, 12, toolUsePromptTokenCount=5)),
]
TWO = [
    chunk({"text": "a"}, index=0),
    chunk({"text": "x"}, index=1),
    {"candidates": [{"content": {"parts": [{"text": "b"}]}}, {"index": 1, "finishReason": "MAX_TOKENS"}]},
    {"candidates": [{"finishReason": "SAFETY", "safetyRatings": []}], "usageMetadata": usage(5, 3)},
]
IMAGE = [
    chunk(
        {"text": "Draft", "thought": True}, {"inlineData": {"mimeType": "image/png", "data": "AA=="}, "thought": True}
    ),
    chunk({"text": "Here: "}, {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}}),
    chunk(
        {"executableCode": {"language": "PYTHON", "code": "1"}}, {"inlineData": {"mimeType": "audio/wav", "data": "x"}}
    ),
    chunk(reason="STOP", used=usage(6, 1290)),
]
STOP_IN_EVERY_CHUNK = [chunk({"text": "one "}, reason="STOP"), chunk({"text": "two"}, reason="STOP", used=usage(3, 2))]
BLOCKED: Chunk = {
    "promptFeedback": {"blockReason": "PROHIBITED_CONTENT"},
    "usageMetadata": usage(8, totalTokenCount=8),
    "modelVersion": "gemini-2.5-flash",
}
OVERLOADED: Chunk = {
    "error": {
        "code": 503,
        "message": "The model is overloaded, see https://10.0.0.9/status with AIzaSyA1234567890abcdef.",
        "status": "UNAVAILABLE",
    }
}
BARE_ERROR = orjson.dumps(OVERLOADED, option=orjson.OPT_INDENT_2) + b"\n"
"""An error in the middle of a stream often comes so: pretty JSON, and no event."""

STREAMS = {
    "text": stream(*TEXT),
    "thinking": stream(*THINKING),
    "tools": stream(*TOOLS),
    "two": stream(*TWO),
    "picture": stream(*IMAGE),
    "stop in every chunk": stream(*STOP_IN_EVERY_CHUNK),
    "blocked": stream(BLOCKED),
    "error event": stream(TEXT[0], OVERLOADED),
    "bare error": stream(TEXT[0]) + BARE_ERROR,
    "cut": stream(*TEXT[:2]),
    "no blank line at the end": stream(*TEXT)[:-2],
    "BOM and comments": b"\xef\xbb\xbf" + stream(*TEXT[:1]) + b": hello\r\n\r\n" + stream(*TEXT[1:]) + b": bye\n\n",
    "not JSON": stream(TEXT[0]) + b"data: <html>\n\n",
}
"""What they are -> the bytes."""
