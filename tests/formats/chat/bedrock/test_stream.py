"""Answers of Bedrock's Converse API: streamed and whole, with reasoning, tools and the usage of the cache."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.usage import Usage
from gateway.errors import ProviderBadResponse, ProviderError, ProviderRateLimited, ProviderRejected
from gateway.formats.chat.bedrock.response import parse_answer
from gateway.formats.chat.bedrock.stream import ConverseStreamParser
from gateway.formats.chat.model import (
    STREAM_END,
    ChoiceFinished,
    Event,
    ImageOutput,
    MessageStart,
    ReasoningDelta,
    ReasoningSignature,
    RedactedReasoning,
    StreamError,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    UsageReport,
)
from tests.support import converse_cassettes as bedrock
from tests.support.corrupt_json import spoilt
from tests.support.table_rows import table_rows

STARTED = MessageStart("0123", "theirs")


def read(raw: bytes) -> list[Event]:
    parser = ConverseStreamParser("0123", "theirs", ["the-secret"])
    return [*parser.feed(raw), *parser.finish()]


def test_a_stream_of_text() -> None:
    assert read(bedrock.STREAMS["text"]) == [
        STARTED, TextDelta("Hel"), TextDelta("lo"), ChoiceFinished("stop"), UsageReport(Usage(5, 7, 0, "upstream")),
        STREAM_END,
    ]  # fmt: skip


def test_calls_of_tools_have_their_ids_and_follow_each_other() -> None:
    assert read(bedrock.STREAMS["tools"]) == [
        STARTED, TextDelta("Look: "), ToolCallStart(0, "tooluse_1", "f"), ToolCallDelta(0, '{"city"'),
        ToolCallDelta(0, ': "x"}'), ToolCallStart(1, "tooluse_2", "g"), ChoiceFinished("tool_calls"),
        UsageReport(Usage(9, 2, 0, "upstream")), STREAM_END,
    ]  # fmt: skip


def test_reasoning_ends_with_its_signature_and_cached_tokens_are_part_of_the_prompt() -> None:
    assert read(bedrock.STREAMS["thinking"]) == [
        STARTED, ReasoningDelta("Let me "), ReasoningDelta("see"), ReasoningSignature("c2ln"), TextDelta("Done"),
        ChoiceFinished("length"), UsageReport(Usage(10, 7, 3, "upstream", written_tokens=2)), STREAM_END,
    ]  # fmt: skip


def test_sealed_reasoning_and_images_are_streamed() -> None:
    image = {"contentBlockIndex": 1, "delta": {"image": {"format": "webp", "source": {"bytes": "AAAA"}}}}
    raw = bedrock.BEGIN + bedrock.thought(redactedContent="c2Vh") + bedrock.event("contentBlockDelta", image)
    assert read(raw + bedrock.finish() + bedrock.metadata())[1:3] == [
        RedactedReasoning("c2Vh"),
        ImageOutput("image/webp", "AAAA"),
    ]


@table_rows(
    ("reason", "meaning"),
    [
        ("stop_sequence", "stop"),
        ("model_context_window_exceeded", "length"),
        ("guardrail_intervened", "content_filter"),
        ("content_filtered", "content_filter"),
        ("of_tomorrow", "stop"),
    ],
)
def test_each_reason_has_its_meaning(reason: str, meaning: str) -> None:
    raw = bedrock.BEGIN + bedrock.words("x") + bedrock.finish(reason) + bedrock.metadata()
    assert ChoiceFinished(meaning) in read(raw)  # type: ignore[arg-type]


def test_a_stream_may_end_without_its_usage_and_not_before_its_stop() -> None:
    whole = bedrock.BEGIN + bedrock.words("x") + bedrock.stop() + bedrock.finish()
    assert read(whole)[-2:] == [ChoiceFinished("stop"), STREAM_END]
    for cut in (whole[:-1], bedrock.BEGIN + bedrock.words("x") + bedrock.stop(), b""):
        with pytest.raises(ProviderBadResponse):
            read(cut)


@table_rows(
    ("name", "kind", "status"),
    [
        ("throttlingException", ProviderRateLimited, 429),
        ("validationException", ProviderRejected, 400),
        ("modelStreamErrorException", ProviderBadResponse, None),
        ("internalServerException", ProviderBadResponse, None),
        ("serviceUnavailableException", ProviderBadResponse, None),
        ("exceptionOfTomorrow", ProviderBadResponse, None),
    ],
)
def test_an_exception_in_a_stream_is_an_error_of_its_kind(name: str, kind: type[ProviderError], status: Any) -> None:
    parser = ConverseStreamParser("0123", "theirs", ["the-secret"])
    events = parser.feed(bedrock.BEGIN + bedrock.exception(name, "broke with the-secret") + bedrock.words("late"))
    failed = events[-1]
    assert isinstance(failed, StreamError)
    assert type(failed.error) is kind
    assert "broke with [masked]" in failed.error.message
    assert getattr(failed.error, "status", None) == (status or failed.error.status)
    assert parser.feed(bedrock.words("later")) == []


def test_an_error_of_the_transport_is_an_error() -> None:
    raw = bedrock.encode({":message-type": "error", ":error-code": "InternalError", ":error-message": "no luck"})
    parser = ConverseStreamParser("0123", "theirs")
    (failed,) = parser.feed(raw)
    assert isinstance(failed, StreamError)
    assert "no luck" in failed.error.message
    with pytest.raises(ProviderBadResponse):
        parser.finish()


@table_rows(
    "raw",
    [
        bedrock.BEGIN[:-1] + b"x",
        bedrock.encode({":event-type": "contentBlockDelta"}, b"{"),
        bedrock.encode({":event-type": "contentBlockDelta"}, b"[]"),
        bedrock.event("contentBlockStart", {"contentBlockIndex": 0, "start": {"toolUse": {"toolUseId": "x"}}}),
        b"".join(bedrock.words("x", block) for block in range(65)),
    ],
)
def test_what_cannot_be_read_is_an_error(raw: bytes) -> None:
    assert isinstance(ConverseStreamParser("0123", "theirs").feed(raw)[-1], StreamError)


@table_rows("raw", [bedrock.event("ofTomorrow", {"a": 1}), bedrock.encode({":event-type": "ofTomorrow"})])
def test_unknown_events_are_counted_and_passed_over(raw: bytes) -> None:
    """All their bytes: a flood of events without a payload is one, too."""
    parser = ConverseStreamParser("0123", "theirs")
    assert parser.feed(raw * 3) == []
    assert parser.noise == 3 * len(raw)


def whole(content: list[Any], **more: Any) -> list[Event]:
    output = {"message": {"role": "assistant", "content": content}}
    return parse_answer(orjson.dumps({**bedrock.ANSWER, "output": output, **more}), "0123", "theirs")


def test_a_whole_answer_has_the_same_events() -> None:
    assert parse_answer(orjson.dumps(bedrock.ANSWER), "0123", "theirs") == [
        STARTED, TextDelta("Hello"), ToolCallStart(0, "tooluse_1", "f"), ToolCallDelta(0, '{"city":"x"}'),
        ChoiceFinished("tool_calls"), UsageReport(Usage(9, 2, 0, "upstream")), STREAM_END,
    ]  # fmt: skip


def test_every_kind_of_block_is_read_and_unknown_ones_are_passed_over() -> None:
    content = [
        {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "c2ln"}}},
        {"reasoningContent": {"redactedContent": "c2Vh"}},
        {"citationsContent": {"content": [{"text": "It rains"}], "citations": []}},
        {"image": {"format": "png", "source": {"bytes": "AAAA"}}},
        {"blockOfTomorrow": {}},
        7,
    ]
    assert whole(content)[1:-3] == [
        ReasoningDelta("hm"), ReasoningSignature("c2ln"), RedactedReasoning("c2Vh"), TextDelta("It rains"),
        ImageOutput("image/png", "AAAA"),
    ]  # fmt: skip


@table_rows(
    ("raw", "usage"),
    [
        (bedrock.usage(5, 7), Usage(5, 7, 0, "upstream")),
        (
            bedrock.usage(
                5, 7, cacheReadInputTokens=10, cacheWriteInputTokens=20, cacheDetails=[{"ttl": "1h", "inputTokens": 8},
                {"ttl": "5m", "inputTokens": 12}],
            ),
            Usage(35, 7, 10, "upstream", written_tokens=20, written_long_tokens=8),
        ),
        (bedrock.usage(5, -7), None),
        ({"outputTokens": 7}, None),
        ([], None),
        (bedrock.usage(5, 7, cacheReadInputTokens="many"), None),
    ],
)  # fmt: skip
def test_usage_counts_the_cache_or_is_not_believed(raw: Any, usage: Usage | None) -> None:
    reports = [event.usage for event in whole([{"text": "x"}], usage=raw) if isinstance(event, UsageReport)]
    assert reports == ([usage] if usage else [])


PIECES = [("messageStart", {"role": "assistant"}), ("messageStop", {"stopReason": "end_turn"}),
          ("contentBlockStart", {"contentBlockIndex": 0, "start": {"toolUse": {"toolUseId": "x", "name": "f"}}}),
          ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"toolUse": {"input": "{"}}}),
          ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"reasoningContent": {"signature": "c2ln"}}}),
          ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"image": {"source": {"bytes": "A"}}}}),
          ("metadata", {"usage": bedrock.usage(5, 7, cacheDetails=[{"ttl": "1h", "inputTokens": 8}])})]  # fmt: skip


@given(data=st.data())
def test_a_spoilt_event_is_passed_over_or_an_error(data: st.DataObject) -> None:
    parser = ConverseStreamParser("0123", "theirs")
    for _ in range(4):
        name, value = data.draw(st.sampled_from(PIECES))
        wrong = orjson.dumps(data.draw(spoilt(value)))
        events = parser.feed(bedrock.encode({":event-type": name, ":message-type": "event"}, wrong))
        assert all(isinstance(event.error, ProviderError) for event in events if isinstance(event, StreamError))
