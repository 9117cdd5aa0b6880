"""Whole answers of Anthropic's Messages API, both ways; and what its streams share with them.

Shapes: platform.claude.com/docs/en/api/messages (Message, ContentBlock, Usage, StopReason) and
/docs/en/api/messages-count-tokens. ``input_tokens`` there are those that came from no cache and went into none: the
prompt is the sum of all three.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.token_estimate import estimate_text
from gateway.domain.usage import Usage, parse_count
from gateway.errors import ProviderBadResponse
from gateway.formats.anthropic.content_blocks import ID_BEGINS, Block, ContentBlockBuilder
from gateway.formats.chat import (
    ENDED,
    ChoiceFinished,
    Event,
    Json,
    MessageStart,
    Reason,
    ReasoningDelta,
    ReasoningSignature,
    RedactedReasoning,
    StreamError,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    UsageReport,
)
from gateway.formats.openai.chat import parse_answer_object
from gateway.formats.openai.errors import Secrets
from gateway.formats.prompt_tokens import estimate_prompt

_REASONS: Mapping[str, Reason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_STOPS: Mapping[Reason, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
_PROMPT_COUNTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


# Usage.


def parse_usage(raw: object) -> Usage | None:
    """A usage object -> ``Usage``; None where it is missing or a count in it cannot be believed."""
    if not isinstance(raw, Mapping):
        return None
    fresh, cached, written = (parse_count(0 if (said := raw.get(name)) is None else said) for name in _PROMPT_COUNTS)
    completion = parse_count(raw.get("output_tokens"))
    if fresh is None or cached is None or written is None or completion is None or raw.get("input_tokens") is None:
        return None
    prompt = parse_count(fresh + cached + written)
    if prompt is None:
        return None
    lasting = raw.get("cache_creation")
    long = parse_count(lasting.get("ephemeral_1h_input_tokens")) if isinstance(lasting, Mapping) else None
    return Usage(
        prompt, completion, cached, "upstream", written_tokens=written, written_long_tokens=min(long or 0, written)
    )


def parse_begun(raw: object) -> Usage | None:
    """The usage of ``message_start``: its prompt is a count, its completion hardly one yet.

    None also where the prompt is 0: servers that count at the end only write that.
    """
    usage = parse_usage({"output_tokens": 0, **raw}) if isinstance(raw, Mapping) else None
    return usage if usage is not None and usage.prompt_tokens else None


def parse_used(begun: object, raw: object) -> UsageReport | None:
    """The usage of a ``message_delta`` over that of ``message_start``, as the client libraries lay them.

    Every count is a total and replaces; what is not said stays, and so does a prompt that is said to be 0.
    """
    if not isinstance(raw, Mapping):
        return None
    said = {name: value for name, value in raw.items() if value is not None}
    if not any(said.get(name) for name in _PROMPT_COUNTS):
        said = {name: value for name, value in said.items() if name not in _PROMPT_COUNTS}
    before = begun if isinstance(begun, Mapping) else {}
    return _parse_used({**before, "output_tokens": None, **said})


def _parse_used(raw: Mapping[str, Any]) -> UsageReport | None:
    usage = parse_usage(raw)
    if usage is None:
        return None
    details = raw.get("output_tokens_details")
    thinking = parse_count(details.get("thinking_tokens")) if isinstance(details, Mapping) else None
    return UsageReport(usage, min(thinking or 0, usage.completion_tokens))


def build_usage(usage: Usage) -> dict[str, Any]:
    """A ``Usage`` -> the usage object, without the parts of what was written."""
    return {
        "input_tokens": max(usage.prompt_tokens - usage.cached_tokens - usage.written_tokens, 0),
        "cache_creation_input_tokens": usage.written_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def build_written(usage: Usage) -> dict[str, Any]:
    """The parts of what was written into the cache: a whole message and ``message_start`` have them."""
    long = usage.written_long_tokens
    short = max(usage.written_tokens - long, 0)
    return {"cache_creation": {"ephemeral_5m_input_tokens": short, "ephemeral_1h_input_tokens": long}}


def build_reasoning(used: UsageReport) -> dict[str, Any]:
    """How much of the completion was thought, where that is known."""
    return {"output_tokens_details": {"thinking_tokens": used.reasoning_tokens}} if used.reasoning_tokens else {}


# Why an answer ended.


def parse_finish(reason: object, sequence: object, *, called: bool = False) -> ChoiceFinished:
    """``stop_reason`` and ``stop_sequence`` -> the end; one that is not said, or unknown, is a ``stop``.

    ``called``: there were tool calls, which is the reason where none is said.
    """
    if not isinstance(reason, str):
        return ChoiceFinished("tool_calls" if called else "stop")
    stopped_at = sequence if reason == "stop_sequence" and isinstance(sequence, str) else None
    return ChoiceFinished(_REASONS.get(reason, "stop"), stop_sequence=stopped_at)


def build_finish(finished: ChoiceFinished | None, *, called: bool) -> dict[str, Any]:
    """The end -> ``stop_reason`` and ``stop_sequence``.

    A client runs its tools only at ``tool_use``, and servers of the convention say ``stop`` there now and then.
    """
    if finished is not None and finished.stop_sequence is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": finished.stop_sequence}
    reason: Reason = "stop" if finished is None else finished.reason
    if reason == "stop" and called:
        reason = "tool_calls"
    return {"stop_reason": _STOPS[reason], "stop_sequence": None}


# Blocks, in.


def parse_tool(block: Json, index: int, message_id: str) -> ToolCallStart:
    """A ``tool_use`` block -> the call it begins. Raises ``ProviderBadResponse`` where it has no name."""
    name = block.get("name")
    if not isinstance(name, str) or not name:
        raise ProviderBadResponse("The provider's answer calls a tool without a name")
    said = block.get("id")
    made = f"toolu_{message_id.removeprefix(ID_BEGINS)}_{index}"
    return ToolCallStart(index, said if isinstance(said, str) and said else made, name)


def parse_arguments(block: Json) -> str:
    """The input of a ``tool_use`` block as JSON text, ``{}`` where it has none. Raises ``ProviderBadResponse``."""
    value = block.get("input")
    try:
        return orjson.dumps(value if isinstance(value, dict) else {}).decode()
    except orjson.JSONEncodeError:  # nested deeper than we can write
        raise ProviderBadResponse("The provider's answer calls a tool with arguments that cannot be read") from None


def read_text(block: Json, name: str) -> str:
    """A text in a block or a delta, empty where there is none."""
    value = block.get(name)
    return value if isinstance(value, str) else ""


def parse_words(block: Json) -> list[Event]:
    """What a block of text, thought or sealed thought says by itself; nothing for a block of any other kind."""
    events: list[Event] = []
    match block.get("type"):
        case "text" if text := read_text(block, "text"):
            events.append(TextDelta(text))
        case "thinking" if text := read_text(block, "thinking"):
            events.append(ReasoningDelta(text))
        case "redacted_thinking" if data := read_text(block, "data"):
            events.append(RedactedReasoning(data))
    return events


def parse_answer(raw: bytes, secrets: Secrets = (), answer_id: str = "") -> list[Event]:
    """A whole message -> what happens in it. Raises ``ProviderBadResponse`` for anything but a message.

    ``answer_id`` is what the ids of tool calls are made of where the provider has none.
    """
    value = parse_message(raw, secrets)
    message_id = read_text(value, "id")
    events: list[Event] = [MessageStart(message_id, read_text(value, "model"))]
    calls = 0
    for block in value["content"]:
        if not isinstance(block, dict):
            continue
        if block.get("type") == "tool_use":
            events += [parse_tool(block, calls, message_id or answer_id), ToolCallDelta(calls, parse_arguments(block))]
            calls += 1
            continue
        events += parse_words(block)
        if block.get("type") == "thinking" and (signature := read_text(block, "signature")):
            events.append(ReasoningSignature(signature))
    events.append(parse_finish(value.get("stop_reason"), value.get("stop_sequence"), called=calls > 0))
    usage = value.get("usage")
    used = _parse_used(usage) if isinstance(usage, dict) else None
    return [*events, used, ENDED] if used is not None else [*events, ENDED]


def parse_passed_answer(raw: bytes, call: InferenceRequest, secrets: Secrets = ()) -> Usage:
    """Return the usage of a whole message that is sent on unchanged. Raises ``ProviderBadResponse``."""
    return parse_message_usage(parse_message(raw, secrets), call)


def parse_message_usage(value: Mapping[str, Any], call: InferenceRequest) -> Usage:
    """What a parsed message says it used, else an estimate."""
    usage = parse_usage(value.get("usage"))
    if usage is not None:
        return usage
    said = "".join(map(parse_said, value["content"]))
    return Usage(estimate_prompt(call), estimate_text(said), source="estimate")


def parse_said(part: object) -> str:
    """What a block or a delta says, in whichever of their fields, for an estimate.

    A thought that was sealed is billed, too: of its seal in base64 half is taken for what was thought.
    """
    if not isinstance(part, dict):
        return ""
    sealed = read_text(part, "data")
    said = "".join(read_text(part, name) for name in ("text", "thinking", "partial_json")) + sealed[: len(sealed) // 2]
    try:
        return said + (parse_arguments(part) if part.get("input") else "")
    except ProviderBadResponse:
        return said


def parse_message(raw: bytes, secrets: Secrets) -> dict[str, Any]:
    """A whole message, parsed; its content is a list. Raises ``ProviderBadResponse`` for anything else."""
    value = parse_answer_object(raw, secrets)
    if value.get("type") == "error":
        raise ProviderBadResponse("The provider reported an error: The provider gave no reason")
    if not isinstance(value.get("content"), list):
        raise ProviderBadResponse("The provider's answer has no content")
    return value


def parse_count_answer(raw: bytes, secrets: Secrets = ()) -> int:
    """The answer to a count of tokens. Raises ``ProviderBadResponse`` where it is none."""
    tokens = parse_count(parse_answer_object(raw, secrets).get("input_tokens"))
    if tokens is None:
        raise ProviderBadResponse("The provider's answer has no count of tokens")
    return tokens


def build_count_answer(tokens: int) -> bytes:
    """A count of tokens as an answer."""
    return orjson.dumps({"input_tokens": tokens})


# A whole message, out.


def build_id(said: str, message_id: str) -> str:
    """The id of a message: the provider's where it is one of this dialect, else one made of ``message_id``."""
    if said.startswith(ID_BEGINS):
        return said
    return message_id if message_id.startswith(ID_BEGINS) else ID_BEGINS + message_id


def build_message(message_id: str, model: str, usage: dict[str, Any]) -> dict[str, Any]:
    """A message that has no content yet and has not ended."""
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }


def build_answer(events: Iterable[Event], *, model: str, message_id: str) -> bytes:
    """What happened in an answer -> a whole message. Raises the fault of a ``StreamError``."""
    layout = ContentBlockBuilder(message_id)
    finished: ChoiceFinished | None = None
    used = UsageReport(Usage())
    said = ""
    for event in events:
        match event:
            case MessageStart():
                said = event.id
            case ChoiceFinished():
                finished = event if event.choice == 0 else finished
            case UsageReport():
                used = event
            case StreamError():
                raise event.fault
            case _:
                layout.place(event)
    usage = build_usage(used.usage) | build_written(used.usage) | build_reasoning(used)
    message = build_message(build_id(said, message_id), model, usage)
    message["content"] = [_build_block(block) for block in layout.blocks]
    return orjson.dumps(message | build_finish(finished, called=layout.called))


def _build_block(block: Block) -> dict[str, Any]:
    match block.kind:
        case "text":
            return block.start | {"text": "".join(delta["text"] for delta in block.deltas)}
        case "thinking":
            said = {"thinking": "".join(delta.get("thinking", "") for delta in block.deltas)}
            return block.start | said | {"signature": block.deltas[-1].get("signature", "")}
        case "tool_use":
            return block.start | {"input": _build_input("".join(block.arguments))}
    return block.start


def _build_input(arguments: str) -> dict[str, Any]:
    """Arguments -> the object a client expects. Those a limit of tokens cut off are no JSON: they travel in a wrap.

    The wrap is the one of platform.claude.com/docs/en/agents-and-tools/tool-use/fine-grained-tool-streaming.
    """
    if not arguments:
        return {}
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) else {"INVALID_JSON": arguments}
