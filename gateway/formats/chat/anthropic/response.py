"""Parse and build unstreamed answers of Anthropic's Messages API, with helpers shared by streams.

Shapes: platform.claude.com/docs/en/api/messages (Message, ContentBlock, Usage, StopReason) and
/docs/en/api/messages-count-tokens. ``input_tokens`` excludes tokens read from or written to the cache; the prompt's
tokens are the sum of all three counts.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from gateway.domain import exact_json
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.token_estimate import estimate_text
from gateway.domain.usage import Usage, attach_details, find_cost, find_tier, parse_count
from gateway.errors import ProviderBadResponse
from gateway.formats.chat import model as chat
from gateway.formats.chat.anthropic.content_blocks import ID_PREFIX, Block, ContentBlockBuilder
from gateway.formats.chat.openai.chat import parse_answer_object
from gateway.formats.errors.openai import NO_REASON, Secrets
from gateway.formats.usage.prompt_tokens import fill_counts

_PRICED_REGION = "us"
"""The ``inference_geo`` value with a surcharge: 10 % for inference in the United States."""
_FINISH_REASONS: Mapping[str, chat.Reason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_STOP_REASONS: Mapping[chat.Reason, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
_PROMPT_COUNTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


# Usage.


def parse_usage(raw: object) -> Usage | None:
    """Parse a usage object; None if it lacks ``input_tokens`` or ``output_tokens``, or a count is implausible."""
    if not isinstance(raw, Mapping):
        return None
    uncached_count, cached_count, written_count = (
        parse_count(0 if (count := raw.get(name)) is None else count) for name in _PROMPT_COUNTS
    )
    completion_tokens = parse_count(raw.get("output_tokens"))
    if (
        uncached_count is None
        or cached_count is None
        or written_count is None
        or completion_tokens is None
        or raw.get("input_tokens") is None
    ):
        return None
    prompt_tokens = parse_count(uncached_count + cached_count + written_count)
    if prompt_tokens is None:
        return None
    cache_creation = raw.get("cache_creation")
    long_count = (
        parse_count(cache_creation.get("ephemeral_1h_input_tokens")) if isinstance(cache_creation, Mapping) else None
    )
    usage = Usage(
        prompt_tokens,
        completion_tokens,
        cached_count,
        "upstream",
        written_tokens=written_count,
        written_long_tokens=min(long_count or 0, written_count),
    )
    return attach_details(usage, _find_details(raw))


def _find_details(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the searches, tier and cost of a usage object as ``UsageDetails`` fields.

    Sources: docs.claude.com, "Web search tool", "Service tiers", "Fast mode" (``speed``), "Data residency"
    (``inference_geo``).
    """
    details: dict[str, Any] = {}
    tool_use = raw.get("server_tool_use")
    if isinstance(tool_use, Mapping) and (count := parse_count(tool_use.get("web_search_requests"))):
        details["searches"] = count
    speed, tier, region = raw.get("speed"), raw.get("service_tier"), raw.get("inference_geo")
    if (speed or (tier and tier != "standard")) and (priced_tier := find_tier(speed) or find_tier(tier)):
        details["tier"] = priced_tier
    if region == _PRICED_REGION:
        details["tier"] = f"{details['tier']}+{region}" if "tier" in details else region
    if raw.get("cost") is not None and (cost_nanos := find_cost(raw)) is not None:
        details["cost_nanos"] = cost_nanos
    return details


def parse_start_usage(raw: object) -> Usage | None:
    """Parse the usage of ``message_start``; None if the counts are unusable.

    A prompt of 0 tokens is unusable, because some servers count only at the end.
    """
    usage = parse_usage({"output_tokens": 0, **raw}) if isinstance(raw, Mapping) else None
    return usage if usage is not None and usage.prompt_tokens else None


def parse_delta_usage(start_usage: object, raw: object) -> chat.UsageReport | None:
    """Merge the usage of a ``message_delta`` into that of ``message_start``, as Anthropic's client libraries do.

    Every count is a running total and replaces the earlier one, except a missing count or a prompt of 0. Returns None
    if ``raw`` has no output count, neither object has an input count, or a count is implausible.
    """
    if not isinstance(raw, Mapping):
        return None
    counts = {name: value for name, value in raw.items() if value is not None}
    if not any(counts.get(name) for name in _PROMPT_COUNTS):
        counts = {name: value for name, value in counts.items() if name not in _PROMPT_COUNTS}
    start_fields = start_usage if isinstance(start_usage, Mapping) else {}
    return _parse_report({**start_fields, "output_tokens": None, **counts})


def _parse_report(raw: Mapping[str, Any]) -> chat.UsageReport | None:
    usage = parse_usage(raw)
    if usage is None:
        return None
    details = raw.get("output_tokens_details")
    thinking_tokens = parse_count(details.get("thinking_tokens")) if isinstance(details, Mapping) else None
    return chat.UsageReport(usage, min(thinking_tokens or 0, usage.completion_tokens))


def build_usage(usage: Usage) -> dict[str, Any]:
    """Build the usage object, without the details of cache writes and of reasoning."""
    return {
        "input_tokens": max(usage.prompt_tokens - usage.cached_tokens - usage.written_tokens, 0),
        "cache_creation_input_tokens": usage.written_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def build_cache_creation(usage: Usage) -> dict[str, Any]:
    """Build the details of cache writes, for an unstreamed message or ``message_start``."""
    long_tokens = usage.written_long_tokens
    short_tokens = max(usage.written_tokens - long_tokens, 0)
    return {"cache_creation": {"ephemeral_5m_input_tokens": short_tokens, "ephemeral_1h_input_tokens": long_tokens}}


def build_reasoning(report: chat.UsageReport) -> dict[str, Any]:
    """Build the details with the completion's reasoning tokens; an empty dict if the provider reported none."""
    return {"output_tokens_details": {"thinking_tokens": report.reasoning_tokens}} if report.reasoning_tokens else {}


# Finish reasons.


def parse_finish(reason: object, sequence: object, *, calls_tools: bool = False) -> chat.ChoiceFinished:
    """Parse ``stop_reason`` and ``stop_sequence``.

    A missing reason is ``tool_calls`` if the message ``calls_tools``, otherwise ``stop``. Unknown reasons are ``stop``.
    """
    if not isinstance(reason, str):
        return chat.ChoiceFinished("tool_calls" if calls_tools else "stop")
    stop_sequence = sequence if reason == "stop_sequence" and isinstance(sequence, str) else None
    return chat.ChoiceFinished(_FINISH_REASONS.get(reason, "stop"), stop_sequence=stop_sequence)


def build_finish(finished: chat.ChoiceFinished | None, *, calls_tools: bool) -> dict[str, Any]:
    """Build ``stop_reason`` and ``stop_sequence``.

    A missing finish counts as ``stop``. After tool calls ``stop`` becomes ``tool_use``: clients run tools only then,
    and some servers report ``stop``.
    """
    if finished is not None and finished.stop_sequence is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": finished.stop_sequence}
    reason: chat.Reason = "stop" if finished is None else finished.reason
    if reason == "stop" and calls_tools:
        reason = "tool_calls"
    return {"stop_reason": _STOP_REASONS[reason], "stop_sequence": None}


# Parsing of blocks.


def parse_tool(block: chat.Json, index: int, message_id: str) -> chat.ToolCallStart:
    """Parse the start of a ``tool_use`` block, the message's tool call number ``index``, counted from 0.

    A missing call id is made from ``message_id``. Raises ``ProviderBadResponse`` if the tool's name is missing.
    """
    name = block.get("name")
    if not isinstance(name, str) or not name:
        raise ProviderBadResponse("The provider's answer calls a tool without a name")
    call_id = f"toolu_{message_id.removeprefix(ID_PREFIX)}_{index}"
    return chat.ToolCallStart(index, read_text(block, "id") or call_id, name)


def parse_arguments(block: chat.Json) -> str:
    """Return a ``tool_use`` block's input as JSON text, "{}" if it has none.

    Raises ``ProviderBadResponse`` if the input is nested too deeply.
    """
    value = block.get("input")
    try:
        return exact_json.dumps(value if isinstance(value, dict) else {}).decode()
    except orjson.JSONEncodeError:  # nested too deeply
        raise ProviderBadResponse("The provider's answer calls a tool with arguments that cannot be read") from None


def read_text(block: chat.Json, name: str) -> str:
    """Return the string in the field ``name`` of a block or a delta; "" if there is none."""
    value = block.get(name)
    return value if isinstance(value, str) else ""


def parse_text_block(block: chat.Json) -> list[chat.Event]:
    """Return the events for the content of a text or reasoning block; an empty list for any other block."""
    events: list[chat.Event] = []
    match block.get("type"):
        case "text" if text := read_text(block, "text"):
            events.append(chat.TextDelta(text))
        case "thinking" if text := read_text(block, "thinking"):
            events.append(chat.ReasoningDelta(text))
        case "redacted_thinking" if data := read_text(block, "data"):
            events.append(chat.RedactedReasoning(data))
    return events


def parse_answer(raw: bytes, secrets: Secrets = (), answer_id: str = "") -> list[chat.Event]:
    """Parse an unstreamed message into events, ``StreamEnd`` included. Raises ``ProviderError``.

    Missing tool call ids are made from the message's id, or from ``answer_id`` if the message has none.
    """
    value = parse_message(raw, secrets)
    message_id = read_text(value, "id")
    events: list[chat.Event] = [chat.MessageStart(message_id, read_text(value, "model"))]
    call_count = 0
    for block in value["content"]:
        if not isinstance(block, dict):
            continue
        if block.get("type") == "tool_use":
            events += [
                parse_tool(block, call_count, message_id or answer_id),
                chat.ToolCallDelta(call_count, parse_arguments(block)),
            ]
            call_count += 1
            continue
        events += parse_text_block(block)
        if block.get("type") == "thinking" and (signature := read_text(block, "signature")):
            events.append(chat.ReasoningSignature(signature))
    events.append(parse_finish(value.get("stop_reason"), value.get("stop_sequence"), calls_tools=call_count > 0))
    usage = value.get("usage")
    report = _parse_report(usage) if isinstance(usage, dict) else None
    return [*events, report, chat.STREAM_END] if report is not None else [*events, chat.STREAM_END]


def parse_passed_answer(raw: bytes, inference: InferenceRequest, secrets: Secrets = ()) -> Usage:
    """Return the usage of a message that is passed unchanged; record its container. Raises ``ProviderError``."""
    message = parse_message(raw, secrets, exact=False)
    if message.get("container"):
        record_container(message, inference)
    return parse_message_usage(message, inference)


def record_container(message: Mapping[str, Any], inference: InferenceRequest) -> None:
    """Record the container named in an answer, or in its last delta, because the client may reuse the container."""
    container = message.get("container")
    if isinstance(container, dict) and isinstance(container.get("id"), str):
        inference.made[:] = [container["id"]]


def parse_message_usage(value: Mapping[str, Any], inference: InferenceRequest) -> Usage:
    """Return the usage of a parsed message. Missing counts are estimated, and counts of 0 if it has content."""
    content = value["content"]
    usage = parse_usage(value.get("usage")) or Usage(source="estimate")
    if not content and usage.source == "upstream":
        return usage
    return fill_counts(usage, inference, lambda: estimate_text("".join(map(extract_text, content))))


def extract_text(block: object) -> str:
    """Return the text of a block or a delta, for an estimate; encrypted reasoning counts half of its base64."""
    if not isinstance(block, dict):
        return ""
    encrypted_text = read_text(block, "data")
    text = (
        "".join(read_text(block, name) for name in ("text", "thinking", "partial_json"))
        + encrypted_text[: len(encrypted_text) // 2]
    )
    try:
        return text + (parse_arguments(block) if block.get("input") else "")
    except ProviderBadResponse:
        return text


def parse_message(raw: bytes, secrets: Secrets, *, exact: bool = True) -> dict[str, Any]:
    """Parse an unstreamed message. ``exact`` preserves all digits of numbers. Raises ``ProviderError``."""
    value = parse_answer_object(raw, secrets, exact=exact)
    if value.get("type") == "error":
        raise ProviderBadResponse(f"The provider reported an error: {NO_REASON}")
    if not isinstance(value.get("content"), list):
        raise ProviderBadResponse("The provider's answer has no content")
    return value


def parse_count_answer(raw: bytes, secrets: Secrets = ()) -> int:
    """Return the tokens in the answer to a token count. Raises ``ProviderError`` if it has no count."""
    tokens = parse_count(parse_answer_object(raw, secrets).get("input_tokens"))
    if tokens is None:
        raise ProviderBadResponse("The provider's answer has no count of tokens")
    return tokens


def build_count_answer(tokens: int) -> bytes:
    """Build the answer to a token count."""
    return orjson.dumps({"input_tokens": tokens})


# Building of messages.


def build_id(provider_id: str, message_id: str) -> str:
    """Return the id of a message: the provider's if it begins with "msg_", else ``message_id`` with that prefix."""
    if provider_id.startswith(ID_PREFIX):
        return provider_id
    return message_id if message_id.startswith(ID_PREFIX) else ID_PREFIX + message_id


def build_message(message_id: str, model: str, usage: dict[str, Any]) -> dict[str, Any]:
    """Build an unfinished message without content."""
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


def build_answer(events: Iterable[chat.Event], *, model: str, message_id: str) -> bytes:
    """Build an unstreamed message from events. Raises the error of a ``StreamError``."""
    builder = ContentBlockBuilder(message_id)
    finished: chat.ChoiceFinished | None = None
    report = chat.UsageReport(Usage())
    original_id = ""
    for event in events:
        match event:
            case chat.MessageStart():
                original_id = event.id
            case chat.ChoiceFinished():
                finished = event if event.choice == 0 else finished
            case chat.UsageReport():
                report = event
            case chat.StreamError():
                raise event.error
            case _:
                builder.add_event(event)
    usage = build_usage(report.usage) | build_cache_creation(report.usage) | build_reasoning(report)
    message = build_message(build_id(original_id, message_id), model, usage)
    message["content"] = [_build_block(block) for block in builder.blocks]
    return exact_json.dumps(message | build_finish(finished, calls_tools=builder.has_calls))


def _build_block(block: Block) -> dict[str, Any]:
    match block.kind:
        case "text":
            return block.start | {"text": "".join(delta["text"] for delta in block.deltas)}
        case "thinking":
            thinking = {"thinking": "".join(delta.get("thinking", "") for delta in block.deltas)}
            return block.start | thinking | {"signature": block.deltas[-1].get("signature", "")}
        case "tool_use":
            return block.start | {"input": _build_input("".join(block.arguments))}
    return block.start


def _build_input(arguments: str) -> dict[str, Any]:
    """Parse arguments into an object. Arguments that are no JSON object, such as truncated ones, are wrapped.

    Source of the wrapper: platform.claude.com/docs/en/agents-and-tools/tool-use/fine-grained-tool-streaming.
    """
    if not arguments:
        return {}
    try:
        value = exact_json.load_arguments(arguments)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"INVALID_JSON": arguments}
