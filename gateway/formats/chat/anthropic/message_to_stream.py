"""Convert an unstreamed message of Anthropic's API into the equivalent stream, with all fields of the provider.

The start event of a block of an unknown type has the whole block.
"""

from collections.abc import Iterator
from typing import Any

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage
from gateway.formats.chat.anthropic.response import parse_arguments, parse_message, parse_message_usage, read_text
from gateway.formats.chat.anthropic.stream import STOP_EVENT, build_event
from gateway.formats.errors.openai import Secrets

_ENDS = ("stop_reason", "stop_sequence")
_UNFINISHED: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}


def build_whole(raw: bytes, inference: InferenceRequest, secrets: Secrets = ()) -> tuple[bytes, Usage]:
    """Convert an unstreamed message into stream events, end mark included. Raises ``ProviderBadResponse``."""
    value = parse_message(raw, secrets)
    used = parse_message_usage(value, inference)
    blocks = [block for block in value["content"] if isinstance(block, dict)]
    reported = value.get("usage")
    usage = reported if isinstance(reported, dict) else {"input_tokens": used.prompt_tokens}
    begun = value | _UNFINISHED | {"usage": usage | {"output_tokens": 0}}
    delta = {name: value.get(name) for name in _ENDS}
    if delta["stop_reason"] is None:
        delta["stop_reason"] = "tool_use" if any(block.get("type") == "tool_use" for block in blocks) else "end_turn"
    written = [build_event("message_start", {"message": begun})]
    for index, block in enumerate(blocks):
        written += _build_block(index, block)
    written.append(
        build_event("message_delta", {"delta": delta, "usage": {"output_tokens": used.completion_tokens} | usage})
    )
    return b"".join(written) + STOP_EVENT, used


def _build_block(index: int, block: dict[str, Any]) -> Iterator[bytes]:
    begun, deltas = _split_block(block)
    yield build_event("content_block_start", {"index": index, "content_block": begun})
    for delta in deltas:
        yield build_event("content_block_delta", {"index": index, "delta": delta})
    yield build_event("content_block_stop", {"index": index})


def _split_block(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    deltas: list[dict[str, Any]] = []
    match block.get("type"):
        case "text":
            cited = block.get("citations")
            begun = {name: value for name, value in block.items() if name != "citations"} | {"text": ""}
            if text := read_text(block, "text"):
                deltas.append({"type": "text_delta", "text": text})
            for citation in cited if isinstance(cited, list) else ():
                deltas.append({"type": "citations_delta", "citation": citation})  # noqa: PERF401
            return begun, deltas
        case "thinking":
            if thought := read_text(block, "thinking"):
                deltas.append({"type": "thinking_delta", "thinking": thought})
            if signature := read_text(block, "signature"):
                deltas.append({"type": "signature_delta", "signature": signature})
            return block | {"thinking": "", "signature": ""}, deltas
    if isinstance(block.get("input"), dict) and block["input"]:  # a call of a client tool or a server tool
        return block | {"input": {}}, [{"type": "input_json_delta", "partial_json": parse_arguments(block)}]
    return block, deltas
