"""Responses that are built from events: streams and whole ones say the same, in OpenAI's own types."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage
from gateway.errors import ProviderBadResponse, ProviderError
from gateway.formats.chat import model as chat
from gateway.formats.chat.responses.compaction_writer import build_answer
from gateway.formats.chat.responses.request_reader import parse_chat_request
from gateway.formats.chat.responses.response_writer import MAX_ANSWER_CHARS, ResponseStreamSerializer
from gateway.formats.chat.responses.responses import (
    ResponsesPassthrough,
    parse_responses_answer,
    parse_responses_inference,
)
from gateway.formats.registry import make_translator
from gateway.formats.translator import ResponseIdentity
from gateway.formats.wire import sse
from tests.support import anthropic_cassettes as messages
from tests.support import gemini_cassettes as gemini
from tests.support.table_rows import table_rows

IDENTITY = ResponseIdentity("0123456789abcdef01234567", "m", 1_750_000_000)
BEGUN = chat.MessageStart("theirs", "their-model")
USED = chat.UsageReport(Usage(20, 9, 4, "upstream", reasoning_tokens=3), 3)
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
CUSTOM = {"type": "custom", "name": "shell"}


def call(**more: Any) -> InferenceRequest:
    return parse_responses_inference({"model": "m", "input": "Hi", **more})


def finish(reason: chat.Reason = "stop") -> chat.ChoiceFinished:
    return chat.ChoiceFinished(reason)


def write(*events: chat.Event, **more: Any) -> list[Any]:
    """The events of a stream, checked."""
    writer = ResponseStreamSerializer(call(**more), IDENTITY)
    raw = b"".join(map(writer.write, (BEGUN, *events, chat.STREAM_END)))
    written = []
    for one in sse.SseSplitter().split(raw):
        value = orjson.loads(sse.parse_data(one) or b"")
        assert one.startswith(b"event: %b\n" % value["type"].encode())
        EVENTS.validate_python(value)
        written.append(value)
    assert [one["sequence_number"] for one in written] == list(range(len(written)))
    return written


def build(*events: chat.Event, **more: Any) -> Any:
    raw = build_answer((BEGUN, *events, chat.STREAM_END), call(**more), IDENTITY)
    Response.model_validate_json(raw)
    return orjson.loads(raw)


def list_kinds(written: list[Any]) -> list[str]:
    return [one["type"].removeprefix("response.") for one in written]


def test_a_text_streams_with_its_parts() -> None:
    written = write(chat.TextDelta("Hel"), chat.TextDelta("lo"), finish(), USED)
    assert list_kinds(written) == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.delta", "output_text.done", "content_part.done"),
        *("output_item.done", "completed"),
    ]
    made = written[-1]["response"]
    assert (made["status"], made["model"], made["id"]) == ("completed", "their-model", f"resp_{IDENTITY.id}")
    (item,) = made["output"]
    assert (item["id"], item["status"], item["content"][0]["text"]) == (f"msg_{IDENTITY.id}_0", "completed", "Hello")
    assert {one["item_id"] for one in written[3:8]} == {item["id"]}
    assert made["usage"] == {
        "input_tokens": 20,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 29,
    }


def test_calls_stream_side_by_side() -> None:
    written = write(
        chat.ToolCallStart(0, "c0", "f"),
        chat.ToolCallStart(1, "c1", "g"),
        chat.ToolCallDelta(1, '{"a":'),
        chat.ToolCallDelta(0, '{"b": 2}'),
        chat.ToolCallDelta(1, " 1}"),
        finish("tool_calls"),
    )
    output = written[-1]["response"]["output"]
    assert [(one["call_id"], one["name"], one["arguments"], one["status"]) for one in output] == [
        ("c0", "f", '{"b": 2}', "completed"),
        ("c1", "g", '{"a": 1}', "completed"),
    ]
    pieces = [one["delta"] for one in written if one["type"].endswith("arguments.delta") and one["output_index"] == 1]
    assert pieces == ['{"a":', " 1}"]


@table_rows(("arguments", "given"), [('{"input": "ls"}', "ls"), ("ls", "ls"), ("{", "{")])
def test_a_custom_tool_gets_its_text(arguments: str, given: str) -> None:
    events = (chat.ToolCallStart(0, "c0", "shell"), chat.ToolCallDelta(0, arguments), finish("tool_calls"))
    for output in (write(*events, tools=[CUSTOM])[-1]["response"]["output"], build(*events, tools=[CUSTOM])["output"]):
        (item,) = output
        assert (item["type"], item["input"], item["call_id"]) == ("custom_tool_call", given, "c0")


@table_rows(
    ("reason", "status", "details"),
    [
        ("stop", "completed", None),
        ("tool_calls", "completed", None),
        ("length", "incomplete", {"reason": "max_output_tokens"}),
        ("content_filter", "incomplete", {"reason": "content_filter"}),
    ],
)
def test_why_a_response_ended(reason: chat.Reason, status: str, details: Any) -> None:
    written = write(chat.TextDelta("x"), finish(reason))
    assert written[-1]["type"] == f"response.{status}"
    for made in (written[-1]["response"], build(chat.TextDelta("x"), finish(reason))):
        assert (made["status"], made["incomplete_details"]) == (status, details)
        assert made["output"][0]["status"] == status


def test_the_settings_of_the_request_are_repeated() -> None:
    asked: Any = {
        "instructions": "Be brief",
        "temperature": 0.5,
        "tools": [{"type": "function", "name": "f"}],
        "text": {"format": {"type": "json_object"}, "verbosity": "low"},
        "reasoning": {"effort": "low"},
        "metadata": {"a": "b"},
    }
    made = build(chat.TextDelta("x"), finish(), **asked)
    assert (made["instructions"], made["temperature"], made["metadata"]) == ("Be brief", 0.5, {"a": "b"})
    assert made["tools"] == [{"type": "function", "name": "f", "parameters": None, "strict": False}]
    assert made["text"] == {"format": {"type": "json_object"}, "verbosity": "low"}
    assert made["reasoning"] == {"effort": "low", "summary": None}
    assert (made["store"], made["parallel_tool_calls"], made["top_p"]) == (True, True, 1.0)


def test_an_answer_without_end_is_not_kept_for_ever() -> None:
    writer = ResponseStreamSerializer(call(), IDENTITY)
    pieces = [chat.TextDelta("a" * (MAX_ANSWER_CHARS // 16))] * 20
    with pytest.raises(ProviderBadResponse):
        b"".join(map(writer.write, pieces))


def test_a_whole_response_is_kept_once_it_is_whole() -> None:
    kept: list[bytes] = []
    inference = InferenceRequest("responses", "m", {"model": "m", "input": "Hi"}, keep=kept.append)
    writer = ResponseStreamSerializer(inference, IDENTITY)
    for event in (BEGUN, chat.TextDelta("x"), finish()):
        writer.write(event)
    assert kept == []
    writer.write(chat.STREAM_END)
    build_answer((BEGUN, chat.TextDelta("x"), finish()), inference, IDENTITY)
    assert [orjson.loads(one)["output"][0]["content"][0]["text"] for one in kept] == ["x", "x"]
    kept.clear()
    whole = build_answer((BEGUN, chat.TextDelta("x"), finish(), chat.STREAM_END, USED), inference, IDENTITY)
    assert kept == [whole]
    assert orjson.loads(whole)["usage"]["output_tokens"] > 0


PIECES = st.one_of(
    st.builds(chat.TextDelta, st.text(max_size=5), st.integers(0, 1)),
    st.builds(chat.RefusalDelta, st.text(max_size=5)),
    st.builds(chat.ReasoningDelta, st.text(max_size=5), st.integers(0, 1)),
    st.builds(chat.ReasoningSignature, st.text(min_size=1, max_size=3)),
    st.builds(chat.RedactedReasoning, st.text(min_size=1, max_size=3)),
    st.builds(chat.ImageOutput, st.just("image/png"), st.just("aGk=")),
    st.builds(chat.ToolCallStart, st.integers(0, 3), st.just("c"), st.sampled_from(["f", "shell"])),
    st.builds(chat.ToolCallDelta, st.integers(0, 3), st.sampled_from(["", "{}", '{"a": 1}', "{"])),
)


@given(st.lists(PIECES, max_size=10), st.sampled_from(["stop", "length"]))
def test_a_stream_and_a_whole_response_are_the_same(pieces: list[chat.Event], reason: chat.Reason) -> None:
    events = (*pieces, finish(reason), USED)
    written = write(*events, tools=[CUSTOM])
    made = written[-1]["response"]
    assert made == build(*events, tools=[CUSTOM])
    done = [one["item"] for one in written if one["type"] == "response.output_item.done"]
    added = [one["item"]["id"] for one in written if one["type"] == "response.output_item.added"]
    assert sorted(done, key=lambda one: added.index(one["id"])) == made["output"]
    assert parse_responses_answer(orjson.dumps(made), call()).prompt_tokens == 20


@given(st.lists(PIECES, max_size=10))
def test_what_is_written_passes_and_can_be_sent_back(pieces: list[chat.Event]) -> None:
    """The gateway's own passthrough takes the stream, and its reader the output as input."""
    writer = ResponseStreamSerializer(call(tools=[CUSTOM]), IDENTITY)
    raw = b"".join(map(writer.write, (BEGUN, *pieces, finish(), USED, chat.STREAM_END)))
    passing = ResponsesPassthrough(call())
    assert passing.feed(raw) + passing.finish() == raw
    assert passing.parse_usage().completion_tokens == 9
    made = orjson.loads(writer.build_response())
    parsed = parse_chat_request({"input": [{"role": "user", "content": "Hi"}, *made["output"]], "tools": [CUSTOM]})
    text = "".join(one.text for one in pieces if isinstance(one, chat.TextDelta | chat.RefusalDelta) and not one.choice)
    parts = [part for message in parsed.messages[1:] for part in message.parts]
    assert "".join(part.text for part in parts if isinstance(part, chat.TextPart)) == text
    started = [one.name for one in pieces if isinstance(one, chat.ToolCallStart)]
    assert [part.name for part in parts if isinstance(part, chat.ToolCallPart)] == started


CLAUDES = {name: raw for name, (raw, _) in messages.ANSWERED.items()}
CASSETTES = [("anthropic_messages", CLAUDES), ("gemini_generate", gemini.STREAMS)]
STREAMS = [(wire, name) for wire, streams in CASSETTES for name in streams]


@table_rows(("wire", "name"), STREAMS)
def test_every_cut_of_a_providers_bytes_gives_the_same(wire: Any, name: str) -> None:
    raw = dict(CASSETTES)[wire][name]
    outcomes = set()
    for step in (1, 7, 100, len(raw)):
        transform = make_translator(call(stream=True), wire, IDENTITY).open_transform(())
        try:
            out = b"".join(transform.feed(raw[at : at + step]) for at in range(0, len(raw), step)) + transform.finish()
        except ProviderError as error:
            out = error.message.encode()
        outcomes.add(out)
    assert len(outcomes) == 1
