"""Parse unstreamed answers of Bedrock's Converse API, with helpers shared by streams.

Shapes: docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html (ContentBlock, StopReason,
TokenUsage). ``inputTokens`` excludes tokens read from or written to the cache
(docs.aws.amazon.com/bedrock/latest/userguide/prompt-caching.html). An answer has neither an id nor a model name.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from gateway.domain import exact_json
from gateway.domain.usage import Usage, attach_tier, parse_count
from gateway.errors import ProviderBadResponse
from gateway.formats.chat import model as chat
from gateway.formats.chat.openai.chat import parse_answer_object
from gateway.formats.errors.openai import Secrets
from gateway.formats.wire.json_values import as_object, as_text, list_objects

_FINISH_REASONS: Mapping[str, chat.Reason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "guardrail_intervened": "content_filter",
    "content_filtered": "content_filter",
}
_PROMPT_COUNTS = ("inputTokens", "cacheReadInputTokens", "cacheWriteInputTokens")


def parse_usage(raw: object, tier: object = None) -> chat.UsageReport | None:
    """Parse the usage object of an answer; ``tier`` is the answer's ``serviceTier`` object.

    Returns None if the usage lacks ``inputTokens`` or ``outputTokens``, or has an implausible count.
    """
    if not isinstance(raw, dict) or raw.get("inputTokens") is None:
        return None
    uncached_count, cached_count, written_count = (
        parse_count(0 if (count := raw.get(name)) is None else count) for name in _PROMPT_COUNTS
    )
    completion_tokens = parse_count(raw.get("outputTokens"))
    if uncached_count is None or cached_count is None or written_count is None or completion_tokens is None:
        return None
    prompt_tokens = parse_count(uncached_count + cached_count + written_count)
    if prompt_tokens is None:
        return None
    long_tokens = sum(
        parse_count(detail.get("inputTokens")) or 0
        for detail in list_objects(raw.get("cacheDetails"))
        if detail.get("ttl") == "1h"
    )
    usage = Usage(
        prompt_tokens,
        completion_tokens,
        cached_count,
        "upstream",
        written_tokens=written_count,
        written_long_tokens=min(long_tokens, written_count),
    )
    return chat.UsageReport(attach_tier(usage, as_object(tier).get("type")))


def parse_finish(reason: object, *, calls_tools: bool) -> chat.ChoiceFinished:
    """Parse ``stopReason``.

    A missing reason is ``tool_calls`` if the answer ``calls_tools``, otherwise ``stop``. Unknown reasons are ``stop``.
    """
    if not isinstance(reason, str):
        return chat.ChoiceFinished("tool_calls" if calls_tools else "stop")
    return chat.ChoiceFinished(_FINISH_REASONS.get(reason, "stop"))


def parse_tool(tool_use: chat.Json, index: int, answer_id: str) -> chat.ToolCallStart:
    """Parse the start of the answer's tool call number ``index``, counted from 0.

    A missing call id is made from ``answer_id``. Raises ``ProviderBadResponse`` if the tool's name is missing.
    """
    name = as_text(tool_use.get("name"))
    if not name:
        raise ProviderBadResponse("The provider's answer calls a tool without a name")
    return chat.ToolCallStart(index, as_text(tool_use.get("toolUseId")) or f"tooluse_{answer_id}_{index}", name)


def parse_image(block: chat.Json) -> list[chat.Event]:
    """Parse an image block of an answer; return an empty list if it has no data."""
    image = as_object(block.get("image"))
    data = as_text(as_object(image.get("source")).get("bytes"))
    return [chat.ImageOutput(f"image/{as_text(image.get('format')) or 'png'}", data)] if data else []


def parse_answer(raw: bytes, identity_id: str, model: str, secrets: Secrets = ()) -> list[chat.Event]:
    """Parse an unstreamed answer into events, ``StreamEnd`` included. Raises ``ProviderError``.

    The events report ``identity_id`` and ``model``, because the answer has neither.
    """
    value = parse_answer_object(raw, secrets, exact=True)
    content = as_object(as_object(value.get("output")).get("message")).get("content")
    if not isinstance(content, list):
        raise ProviderBadResponse("The provider's answer has no content")
    events: list[chat.Event] = [chat.MessageStart(identity_id, model)]
    call_count = 0
    for block in list_objects(content):
        tool_use = block.get("toolUse")
        if isinstance(tool_use, dict):
            events += [
                parse_tool(tool_use, call_count, identity_id),
                chat.ToolCallDelta(call_count, _write_arguments(tool_use.get("input"))),
            ]
            call_count += 1
        else:
            events += _parse_block(block)
    events.append(parse_finish(value.get("stopReason"), calls_tools=call_count > 0))
    report = parse_usage(value.get("usage"), value.get("serviceTier"))
    return [*events, report, chat.STREAM_END] if report is not None else [*events, chat.STREAM_END]


def _parse_block(block: chat.Json) -> list[chat.Event]:
    if text := as_text(block.get("text")):
        return [chat.TextDelta(text)]
    citations = list_objects(as_object(block.get("citationsContent")).get("content"))
    if citations:
        return [chat.TextDelta(text) for part in citations if (text := as_text(part.get("text")))]
    reasoning = as_object(block.get("reasoningContent"))
    reasoning_text = as_object(reasoning.get("reasoningText"))
    events: list[chat.Event] = []
    if text := as_text(reasoning_text.get("text")):
        events.append(chat.ReasoningDelta(text))
    if signature := as_text(reasoning_text.get("signature")):
        events.append(chat.ReasoningSignature(signature))
    if redacted_data := as_text(reasoning.get("redactedContent")):
        events.append(chat.RedactedReasoning(redacted_data))
    return events or parse_image(block)


def _write_arguments(value: Any) -> str:
    """Return the input of a tool call as JSON text, "{}" if it is missing or not an object.

    Raises ``ProviderBadResponse`` if the input is nested too deeply.
    """
    try:
        return exact_json.dumps(value if isinstance(value, dict) else {}).decode()
    except orjson.JSONEncodeError:  # nested too deeply
        raise ProviderBadResponse("The provider's answer calls a tool with arguments that cannot be read") from None
