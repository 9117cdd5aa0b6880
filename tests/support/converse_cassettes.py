"""Answers of Bedrock's Converse API, whole and streamed, in the shapes of its API reference."""

from binascii import crc32
from collections.abc import Mapping
from struct import pack
from typing import Any

import orjson

STREAM_TYPE = "application/vnd.amazon.eventstream"


def encode(headers: Mapping[str, str], payload: bytes = b"") -> bytes:
    """One message of an AWS event stream, whose headers are texts."""
    head = b"".join(
        pack(">B", len(name)) + name.encode() + pack(">BH", 7, len(value.encode())) + value.encode()
        for name, value in headers.items()
    )
    prelude = pack(">II", 16 + len(head) + len(payload), len(head))
    message = prelude + pack(">I", crc32(prelude)) + head + payload
    return message + pack(">I", crc32(message))


def event(name: str, value: Mapping[str, Any]) -> bytes:
    """One event. Bedrock pads the JSON of each to hide how long its words are."""
    headers = {":event-type": name, ":content-type": "application/json", ":message-type": "event"}
    return encode(headers, orjson.dumps(dict(value) | {"p": "abcdefgh"}))


def exception(name: str, message: str) -> bytes:
    headers = {":exception-type": name, ":content-type": "application/json", ":message-type": "exception"}
    return encode(headers, orjson.dumps({"message": message}))


def words(text: str, block: int = 0) -> bytes:
    return event("contentBlockDelta", {"contentBlockIndex": block, "delta": {"text": text}})


def thought(block: int = 0, **delta: str) -> bytes:
    return event("contentBlockDelta", {"contentBlockIndex": block, "delta": {"reasoningContent": delta}})


def call(block: int, call_id: str, name: str, *arguments: str) -> bytes:
    start = {"contentBlockIndex": block, "start": {"toolUse": {"toolUseId": call_id, "name": name}}}
    deltas = [
        event("contentBlockDelta", {"contentBlockIndex": block, "delta": {"toolUse": {"input": piece}}})
        for piece in arguments
    ]
    return event("contentBlockStart", start) + b"".join(deltas) + stop(block)


def stop(block: int = 0) -> bytes:
    return event("contentBlockStop", {"contentBlockIndex": block})


def finish(reason: str = "end_turn") -> bytes:
    return event("messageStop", {"stopReason": reason})


def usage(fresh: int, completion: int, **more: Any) -> dict[str, Any]:
    return {"inputTokens": fresh, "outputTokens": completion, "totalTokens": fresh + completion, **more}


def metadata(fresh: int = 5, completion: int = 7, **more: Any) -> bytes:
    return event("metadata", {"usage": usage(fresh, completion, **more), "metrics": {"latencyMs": 9}})


BEGIN = event("messageStart", {"role": "assistant"})
STREAMS = {
    "text": BEGIN + words("Hel") + words("lo") + stop() + finish() + metadata(),
    "tools": BEGIN
    + words("Look: ")
    + stop()
    + call(1, "tooluse_1", "f", '{"city"', ': "x"}')
    + call(2, "tooluse_2", "g", "")
    + finish("tool_use")
    + metadata(9, 2),
    "thinking": BEGIN
    + thought(text="Let me ")
    + thought(text="see")
    + thought(signature="c2ln")
    + stop()
    + words("Done", 1)
    + stop(1)
    + finish("max_tokens")
    + metadata(5, 7, cacheReadInputTokens=3, cacheWriteInputTokens=2),
}
ANSWER: dict[str, Any] = {
    "output": {
        "message": {
            "role": "assistant",
            "content": [
                {"text": "Hello"},
                {"toolUse": {"toolUseId": "tooluse_1", "name": "f", "input": {"city": "x"}}},
            ],
        }
    },
    "stopReason": "tool_use",
    "usage": usage(9, 2),
    "metrics": {"latencyMs": 9},
}
