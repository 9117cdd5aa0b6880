"""Convert an unstreamed message of Anthropic's API into the equivalent stream, with all fields of the provider.

The start event of a block of an unknown type has the whole block.
"""

from collections.abc import Iterator
from typing import Any

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage
from gateway.formats.chat.anthropic.response import (
    parse_arguments,
    parse_message,
    parse_message_usage,
    read_text,
    record_container,
)
from gateway.formats.chat.anthropic.stream import STOP_EVENT, build_event
from gateway.formats.errors.openai import Secrets

_STOP_FIELDS = ("stop_reason", "stop_sequence")
_UNFINISHED_FIELDS: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}


def build_whole(raw: bytes, inference: InferenceRequest, secrets: Secrets = ()) -> tuple[bytes, Usage]:
    """Return an unstreamed message as a stream, end mark included, and its usage; record its container.

    Raises ``ProviderError``.
    """
    value = parse_message(raw, secrets)
    record_container(value, inference)
    message_usage = parse_message_usage(value, inference)
    blocks = [block for block in value["content"] if isinstance(block, dict)]
    usage_field = value.get("usage")
    usage = usage_field if isinstance(usage_field, dict) else {"input_tokens": message_usage.prompt_tokens}
    opening_message = value | _UNFINISHED_FIELDS | {"usage": usage | {"output_tokens": 0}}
    delta = {name: value.get(name) for name in _STOP_FIELDS}
    if delta["stop_reason"] is None:
        delta["stop_reason"] = "tool_use" if any(block.get("type") == "tool_use" for block in blocks) else "end_turn"
    events = [build_event("message_start", {"message": opening_message})]
    for index, block in enumerate(blocks):
        events += _build_block(index, block)
    events.append(
        build_event(
            "message_delta", {"delta": delta, "usage": {"output_tokens": message_usage.completion_tokens} | usage}
        )
    )
    return b"".join(events) + STOP_EVENT, message_usage


def _build_block(index: int, block: dict[str, Any]) -> Iterator[bytes]:
    opening_block, deltas = _split_block(block)
    yield build_event("content_block_start", {"index": index, "content_block": opening_block})
    for delta in deltas:
        yield build_event("content_block_delta", {"index": index, "delta": delta})
    yield build_event("content_block_stop", {"index": index})


def _split_block(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    deltas: list[dict[str, Any]] = []
    match block.get("type"):
        case "text":
            citations = block.get("citations")
            opening_block = {name: value for name, value in block.items() if name != "citations"} | {"text": ""}
            if text := read_text(block, "text"):
                deltas.append({"type": "text_delta", "text": text})
            for citation in citations if isinstance(citations, list) else ():
                deltas.append({"type": "citations_delta", "citation": citation})  # noqa: PERF401
            return opening_block, deltas
        case "thinking":
            if thinking := read_text(block, "thinking"):
                deltas.append({"type": "thinking_delta", "thinking": thinking})
            if signature := read_text(block, "signature"):
                deltas.append({"type": "signature_delta", "signature": signature})
            return block | {"thinking": "", "signature": ""}, deltas
    if isinstance(block.get("input"), dict) and block["input"]:  # a call of a client tool or a server tool
        return block | {"input": {}}, [{"type": "input_json_delta", "partial_json": parse_arguments(block)}]
    return block, deltas
