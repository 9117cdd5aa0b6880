"""Anthropic's stream as events, and events as Anthropic's stream."""

import itertools
from collections.abc import Iterable
from typing import Any

import anthropic
import attrs
import httpx2
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.usage import Usage
from gateway.errors import ProviderBadResponse
from gateway.formats.chat.anthropic.stream import (
    MAX_HELD_BYTES,
    MAX_OPEN_BLOCKS,
    MessagesStreamParser,
    MessagesStreamSerializer,
)
from gateway.formats.chat.model import (
    STREAM_END,
    ChoiceFinished,
    Event,
    ImageOutput,
    MessageStart,
    ReasoningDelta,
    ReasoningSignature,
    RedactedReasoning,
    RefusalDelta,
    StreamEnd,
    StreamError,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    UsageReport,
)
from gateway.formats.stream import TranslatingStream
from gateway.formats.wire import sse
from tests.support import anthropic_cassettes as tape
from tests.support.format_calls import call_of
from tests.support.table_rows import table_rows

KEYS = st.sampled_from(["type", "index", "message", "id", "usage", "content_block", "delta", "text", "thinking", "name",
                        "signature", "data", "input", "partial_json", "stop_reason", "input_tokens", "output_tokens",
                        "cache_creation", "error", "output_tokens_details"])  # fmt: skip
KINDS = st.sampled_from(["message_start", "content_block_start", "content_block_delta", "content_block_stop", "ping",
                         "message_delta", "message_stop", "text", "thinking", "redacted_thinking", "tool_use",
                         "text_delta", "thinking_delta", "signature_delta", "input_json_delta"])  # fmt: skip
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text("ab") | KINDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=15,
)
CUTS = st.lists(st.integers(0, 5000), max_size=8)
STREAMS = st.sampled_from(list(tape.ANSWERED.values()))
ENDS = pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])


def cut(data: bytes, marks: list[int]) -> list[bytes]:
    places = sorted({mark % (len(data) + 1) for mark in marks})
    return [data[start:end] for start, end in itertools.pairwise([0, *places, len(data)])]


def read(*pieces: bytes) -> list[Event]:
    reader = MessagesStreamParser()
    return [event for piece in pieces for event in reader.feed(piece)]


@table_rows("name", tape.ANSWERED)
def test_a_stream_says_what_its_provider_meant(name: str) -> None:
    raw, events = tape.ANSWERED[name]
    assert read(raw) == events


@ENDS
@given(stream=STREAMS, marks=CUTS, bom=st.sampled_from([b"", sse.BOM]))
def test_the_same_is_said_at_any_cut(
    end: bytes, stream: tuple[bytes, list[Event]], marks: list[int], bom: bytes
) -> None:
    raw, events = stream
    assert read(*cut(bom + raw.replace(b"\n", end), marks)) == events


@ENDS
@pytest.mark.parametrize("name", tape.ANSWERED)
def test_the_same_is_said_byte_by_byte(end: bytes, name: str) -> None:
    raw, events = tape.ANSWERED[name]
    raw = raw.replace(b"\n", end)
    assert read(*(raw[index : index + 1] for index in range(len(raw)))) == events


@given(st.lists(JSON, max_size=6), st.booleans())
def test_any_json_is_read_or_a_fault(values: list[Any], ends: bool) -> None:
    reader = MessagesStreamParser()
    events = reader.feed(b"".join(b"data: " + orjson.dumps(value) + b"\n\n" for value in values))
    assert not any(isinstance(event, (StreamError, StreamEnd)) for event in events[:-1])
    try:
        events += reader.finish() if ends else []
    except ProviderBadResponse:
        assert not events or events[-1] != STREAM_END


@given(st.lists(st.binary(max_size=60) | st.sampled_from([tape.HELLO, b"\n\n", b"data: "]), max_size=6))
def test_any_bytes_are_read_or_a_fault(pieces: list[bytes]) -> None:
    for event in read(*pieces):
        if isinstance(event, StreamError):
            assert event.error.phase == "stream"


@table_rows("late", [tape.HELLO, tape.OVERLOADED, b"garbage\n\n", b"data: [DONE]\n\n"])
def test_nothing_is_said_after_the_end(late: bytes) -> None:
    assert read(tape.HELLO + late) == read(tape.HELLO, late) == tape.ANSWERED["hello"][1]


@table_rows(
    ("error", "words"),
    [
        (tape.OVERLOADED, "Overloaded"),
        (b'data: {"type":"error","error":{"message":"no"}}\n\n', "no"),
        (b'data: {"error":{"message":"no"}}\n\n', "no"),
        (b'data: {"error":"no"}\n\n', "no"),
        (b'event: error\ndata: {"message":"no"}\n\n', "no reason"),
        (b"event: error\ndata: overloaded\n\n", "no reason"),
        (b'data: {"type":"error"}\n\n', "no reason"),
    ],
)
def test_an_error_event_is_a_fault_in_the_providers_words(error: bytes, words: str) -> None:
    *before, last = read(tape.begin("msg_1") + error + tape.STOP)
    assert before == [tape.begun("msg_1")]
    assert isinstance(last, StreamError)
    assert isinstance(last.error, ProviderBadResponse)
    assert words in last.error.message
    assert last.error.phase == "stream"


def test_a_fault_tells_no_address_and_no_key() -> None:
    reader = MessagesStreamParser(["hunter-of-keys"])
    error = tape.event("error", error={"type": "api_error", "message": "at https://10.0.0.1/x for hunter-of-keys"})
    (failed,) = reader.feed(error)
    assert isinstance(failed, StreamError)
    assert "10.0.0.1" not in failed.error.message
    assert "hunter" not in failed.error.message


@table_rows("payload", [b"{", b"[DONE]", b"5", b"[]", b"null", b'"x"', b"\xff", b"[" * 2000])
def test_an_event_that_makes_no_sense_is_a_fault(payload: bytes) -> None:
    events = read(tape.begin("msg_1") + b"event: content_block_delta\ndata: " + payload + b"\n\n")
    assert isinstance(events[-1], StreamError)


@table_rows("missing", [{}, {"message": 5, "content_block": "x", "delta": []}])
@table_rows(
    "kind", ["message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta"]
)
def test_an_event_that_lacks_its_part_says_nothing(kind: str, missing: dict[str, Any]) -> None:
    assert read(tape.event(kind, **missing) + tape.text(0, "a")) == [TextDelta("a")]


@table_rows("delta", [{}, {"type": "text_delta"}, {"type": "text_delta", "text": 5}, {"type": []}])
def test_a_delta_that_says_nothing_is_left_out(delta: dict[str, Any]) -> None:
    assert read(tape.event("content_block_delta", index=0, delta=delta)) == []


def test_an_event_without_an_end_is_a_fault() -> None:
    reader = MessagesStreamParser()
    piece = b"x" * (1024 * 1024)
    answers = [event for _ in range(sse.MAX_EVENT_BYTES // len(piece) + 1) for event in reader.feed(piece)]
    assert isinstance(answers[0], StreamError)
    with pytest.raises(ProviderBadResponse):
        reader.finish()


@table_rows("block", [{}, {"name": ""}, {"name": 5}])
def test_a_call_of_a_tool_without_a_name_is_a_fault(block: dict[str, Any]) -> None:
    (failed,) = read(tape.start(0, "tool_use", id="toolu_1", input={}, **block))
    assert isinstance(failed, StreamError)


def test_arguments_nested_too_deep_are_a_fault() -> None:
    raw = b'data: {"type":"content_block_start","index":0,"content_block":{"type":"tool_use","name":"x","input":{"a":'
    (failed,) = read(raw + b"[" * 500 + b"]" * 500 + b"}}}\n\n")
    assert isinstance(failed, StreamError)


def test_blocks_without_an_end_are_a_fault() -> None:
    events = read(b"".join(tape.start(index, "text", text="") for index in range(MAX_OPEN_BLOCKS + 1)))
    assert isinstance(events[-1], StreamError)
    assert events[-1].error.phase == "stream"


def test_a_call_without_any_id_is_named_after_our_own_answer() -> None:
    block = tape.start(0, "tool_use", name="x", input={}) + tape.stop(0)
    reader = MessagesStreamParser(answer_id="req_1")
    answers = reader.feed(tape.event("message_start", message={}) + block)
    assert [event.id for event in answers if isinstance(event, MessageStart | ToolCallStart)] == ["", "toolu_req_1_0"]


def test_a_call_without_an_id_gets_one_of_its_own() -> None:
    block = tape.start(0, "tool_use", name="x", input={}) + tape.stop(0)
    started = [event for event in read(tape.begin("msg_7") + block + block) if isinstance(event, ToolCallStart)]
    assert [(call.index, call.id) for call in started] == [(0, "toolu_7_0"), (1, "toolu_7_1")]


def test_arguments_a_call_begins_with_give_way_to_those_that_follow() -> None:
    raw = tape.start(0, "tool_use", id="t", name="x", input={"a": 1}) + tape.arguments(0, '{"a"', ":2}") + tape.stop(0)
    assert read(raw)[1:] == [ToolCallDelta(0, '{"a"'), ToolCallDelta(0, ":2}")]


def test_blocks_that_were_never_stopped_are_still_said() -> None:
    blocks = (
        tape.start(0, "thinking", thinking="hm", signature="")
        + tape.change(0, "signature_delta", signature="s")
        + tape.start(1, "tool_use", id="t", name="x", input={"a": 1})
        + tape.start(1, "tool_use", id="u", name="y", input={})
    )
    assert read(blocks + tape.finish("tool_use", output_tokens=1) + tape.STOP) == [
        ReasoningDelta("hm"),
        ToolCallStart(0, "t", "x"),
        ToolCallDelta(0, '{"a":1}'),
        ToolCallStart(1, "u", "y"),
        ReasoningSignature("s"),
        ToolCallDelta(1, "{}"),
        ChoiceFinished("tool_calls"),
        STREAM_END,
    ]


def test_an_end_mark_alone_ends_the_answer() -> None:
    assert read(tape.begin("m") + tape.words("a") + tape.STOP)[1:] == [
        TextDelta("a"),
        ChoiceFinished("stop"),
        STREAM_END,
    ]


def test_a_type_is_read_from_the_name_where_the_data_has_none() -> None:
    assert read(b'event: content_block_delta\ndata: {"delta":{"type":"text_delta","text":"a"}}\n\n') == [TextDelta("a")]


def test_the_type_in_the_data_wins_over_the_name() -> None:
    assert read(b'event: error\ndata: {"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}\n\n') == [
        TextDelta("a")
    ]


@table_rows(
    ("begun", "final", "expected"),
    [
        # What is said last replaces, count by count; what is not said stays.
        ({"input_tokens": 9}, {"output_tokens": 2}, Usage(9, 2, 0, "upstream")),
        ({"input_tokens": 9}, {"input_tokens": None, "output_tokens": 2}, Usage(9, 2, 0, "upstream")),
        ({"input_tokens": 0}, {"input_tokens": 7, "output_tokens": 2}, Usage(7, 2, 0, "upstream")),
        ({"input_tokens": 7}, {"input_tokens": 0, "output_tokens": 2}, Usage(7, 2, 0, "upstream")),
        (None, {"input_tokens": 7, "output_tokens": 2}, Usage(7, 2, 0, "upstream")),
        (
            {"input_tokens": 8834, "output_tokens": 0},
            {"input_tokens": 18, "cache_read_input_tokens": 8831, "output_tokens": 426},
            Usage(8849, 426, 8831, "upstream"),
        ),
        (
            {"input_tokens": 1, "cache_creation_input_tokens": 10, "cache_creation": {"ephemeral_1h_input_tokens": 10}},
            {"input_tokens": 1, "cache_creation_input_tokens": 6, "output_tokens": 2},
            Usage(7, 2, 0, "upstream", written_tokens=6, written_long_tokens=6),
        ),
        # What cannot be believed is refused whole.
        ({"input_tokens": 9}, {}, None),
        ({"input_tokens": 9, "output_tokens": 1}, {"input_tokens": 9}, None),
        ({"input_tokens": 9}, {"output_tokens": -1}, None),
        ({"input_tokens": 9}, {"output_tokens": True}, None),
        ({"input_tokens": 9}, {"output_tokens": 2.0}, None),
        ({"input_tokens": 9}, {"output_tokens": 2, "input_tokens": "9"}, None),
        ({"input_tokens": 9}, {"output_tokens": 2, "cache_read_input_tokens": -9}, None),
        ({"input_tokens": 10**8}, {"output_tokens": 2, "cache_read_input_tokens": 10**8}, None),
        ({}, {"output_tokens": 2}, None),
        ([], {"output_tokens": 2}, None),
    ],
)
def test_usage_is_laid_over_the_beginnings(begun: Any, final: dict[str, Any], expected: Usage | None) -> None:
    raw = tape.event("message_start", message={"id": "m", "usage": begun})
    answers = [event.usage for event in read(raw + tape.finish("end_turn", **final)) if isinstance(event, UsageReport)]
    assert answers == ([] if expected is None else [expected])


@table_rows("usage", [None, {}, {"input_tokens": 0, "output_tokens": 0}, {"input_tokens": -1}, "x", [1]])
def test_a_beginning_without_a_count_has_no_usage(usage: Any) -> None:
    raw = tape.event("message_start", message={"id": "m", "model": "x", "usage": usage})
    assert read(raw) == [MessageStart("m", "x")]


def test_a_reason_counts_once_and_the_last_usage_counts() -> None:
    deltas = (
        tape.finish(None, output_tokens=1) + tape.finish("end_turn", output_tokens=2)
        + tape.finish("max_tokens", output_tokens=3)
    )  # fmt: skip
    assert read(tape.begin("m") + deltas)[1:] == [
        tape.used(25, 1),
        ChoiceFinished("stop"),
        tape.used(25, 2),
        tape.used(25, 3),
    ]


@table_rows("rest", [b"", b"\n", tape.STOP[:-1], tape.STOP[:-2]])
def test_a_stream_that_lacks_only_its_end_mark_is_whole(rest: bytes) -> None:
    for raw, events in tape.ANSWERED.values():
        reader = MessagesStreamParser()
        answers = reader.feed(raw.removesuffix(tape.STOP) + rest)
        assert [*answers, *reader.finish()] == events
        assert reader.finish() == []
        assert reader.feed(raw) == []


@given(STREAMS, st.integers(0, 5000))
def test_a_stream_that_is_cut_before_is_a_fault(stream: tuple[bytes, list[Event]], place: int) -> None:
    raw = stream[0].removesuffix(tape.STOP)
    raw = raw[: place % len(raw)]
    reader = MessagesStreamParser()
    assert STREAM_END not in reader.feed(raw)
    with pytest.raises(ProviderBadResponse) as caught:
        reader.finish()
    assert caught.value.phase == "stream"


def test_a_stream_cut_inside_a_block_is_a_fault_though_a_reason_was_given() -> None:
    reader = MessagesStreamParser()
    reader.feed(tape.begin("m") + tape.start(0, "text", text="") + tape.finish("end_turn", output_tokens=1))
    with pytest.raises(ProviderBadResponse):
        reader.finish()


def test_a_fault_is_raised_at_the_end_too() -> None:
    reader = MessagesStreamParser()
    (failed,) = reader.feed(tape.OVERLOADED)
    assert isinstance(failed, StreamError)
    with pytest.raises(ProviderBadResponse) as caught:
        reader.finish()
    assert caught.value is failed.error


# The writer.


def write(events: Iterable[Event], name: str = "msg_ours") -> bytes:
    writer = MessagesStreamSerializer("m", name)
    return b"".join(writer.write(event) for event in events)


def parse(raw: bytes) -> list[dict[str, Any]]:
    """The events' data; each name is its data's type."""
    found = []
    for event in sse.SseSplitter().split(raw):
        name, data, *_ = event.split(b"\n")
        value = orjson.loads(data.removeprefix(b"data: "))
        assert name == b"event: " + value["type"].encode()
        found.append(value)
    return found


def judge(raw: bytes) -> anthropic.types.Message:
    """What the real client library makes of a stream."""
    answer = httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=raw)
    transport = httpx2.MockTransport(lambda _: answer)
    with (
        httpx2.Client(transport=transport) as http,
        anthropic.Anthropic(api_key="k", http_client=http, max_retries=0) as client,
        client.messages.stream(model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}]) as stream,
    ):
        return stream.get_final_message()


def blocks(message: anthropic.types.Message) -> list[dict[str, Any]]:
    return [block.model_dump(exclude_none=True) for block in message.content]


@table_rows("name", sorted(set(tape.ANSWERED) - {"search", "newer"}))
def test_what_was_read_is_written_as_the_client_knows_it(name: str) -> None:
    raw, events = tape.ANSWERED[name]
    ours, theirs = judge(write(events)), judge(raw)
    assert blocks(ours) == blocks(theirs)
    assert (ours.id, ours.role, ours.model) == (theirs.id, "assistant", "m")
    reason = "end_turn" if theirs.stop_reason == "pause_turn" else theirs.stop_reason
    assert (ours.stop_reason, ours.stop_sequence) == (reason, theirs.stop_sequence)
    counts = ("input_tokens", "output_tokens", "output_tokens_details")
    for count in counts:
        assert getattr(ours.usage, count) == getattr(theirs.usage, count)
    for count in ("cache_read_input_tokens", "cache_creation_input_tokens"):
        assert getattr(ours.usage, count) == (getattr(theirs.usage, count) or 0)


def _drop_searches(event: Any) -> Any:
    """The usage that is written for a client has no searches."""
    return (
        attrs.evolve(event, usage=attrs.evolve(event.usage, details=None)) if isinstance(event, UsageReport) else event
    )


@table_rows("name", tape.ANSWERED)
def test_what_was_written_is_read_again(name: str) -> None:
    begun, *rest = tape.ANSWERED[name][1]
    assert isinstance(begun, MessageStart)
    rest = [_drop_searches(event) for event in rest]
    assert read(write([begun, *rest])) == [attrs.evolve(begun, model="m"), *rest]


def test_a_stream_is_written_as_the_documentation_shows_it() -> None:
    events: list[Event] = [MessageStart("chatcmpl-1", "gpt"), TextDelta("a"), TextDelta("b"), ChoiceFinished("stop")]
    usage = UsageReport(Usage(100, 7, 30, "upstream", written_tokens=20), 3)
    assert parse(write([*events, usage, STREAM_END])) == [
        {
            "type": "message_start",
            "message": {
                "id": "msg_ours", "type": "message", "role": "assistant", "model": "m", "content": [],
                "stop_reason": None, "stop_sequence": None,
                "usage": {
                    "input_tokens": 0, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
                    "output_tokens": 0,
                    "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
                },
            },
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "b"}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {
                "input_tokens": 50, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 30,
                "output_tokens": 7, "output_tokens_details": {"thinking_tokens": 3},
            },
        },
        {"type": "message_stop"},
    ]  # fmt: skip


def test_every_event_is_written_when_it_happens() -> None:
    """Only the end of a text waits for what follows it, and the reason for the usage."""
    writer = MessagesStreamSerializer("m", "x")
    happened: list[Event] = [
        MessageStart("", ""),
        TextDelta("a"),
        ToolCallStart(0, "t", "f"),
        ToolCallDelta(0, "{}"),
        ToolCallStart(1, "u", "f"),
        ChoiceFinished("tool_calls"),
        tape.used(1, 1),
        STREAM_END,
    ]
    answers = [
        [value["type"].removeprefix("content_block_") for value in parse(writer.write(event))] for event in happened
    ]
    assert answers == [
        ["message_start"],
        ["start", "delta"],
        ["stop", "start"],
        ["delta"],
        ["stop", "start"],
        ["stop"],
        [],
        ["message_delta", "message_stop"],
    ]


def test_calls_that_are_mixed_are_written_one_after_another() -> None:
    mixed: list[Event] = [
        ToolCallStart(0, "a", "f"), ToolCallDelta(0, '{"x"'), ToolCallStart(1, "b", "g"), ToolCallDelta(1, '{"y"'),
        ToolCallDelta(0, ":1}"), TextDelta("and"), ToolCallDelta(1, ":2}"), ToolCallStart(2, "", "h"),
        ChoiceFinished("tool_calls"), STREAM_END,
    ]  # fmt: skip
    raw = write(mixed, "msg_9")
    assert [value["index"] for value in parse(raw) if "index" in value] == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 3, 3]
    assert blocks(judge(raw)) == [
        {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
        {"type": "tool_use", "id": "b", "name": "g", "input": {"y": 2}},
        {"type": "text", "text": "and"},
        {"type": "tool_use", "id": "toolu_9_2", "name": "h", "input": {}},
    ]


PIECE = "x" * 65_536


class Given:
    """A reader that says what it was given, at once."""

    held_bytes = 0
    noise = 0

    def __init__(self, events: list[Event]) -> None:
        self._events = events

    def feed(self, _data: bytes) -> list[Event]:
        return self._events

    def finish(self) -> list[Event]:
        return []


@table_rows(
    ("begun", "more"),
    [
        ([ToolCallStart(0, "a", "f"), ToolCallDelta(0, "{"), ToolCallStart(1, "b", "g")], ToolCallDelta(1, PIECE)),
        ([ToolCallStart(0, "a", "f"), ToolCallDelta(0, "{")], TextDelta(PIECE)),
        ([ToolCallStart(0, "a", "f"), ToolCallDelta(0, "{")], ToolCallDelta(0, PIECE)),
        ([ToolCallStart(0, "a", "f"), ToolCallDelta(0, "{")], RedactedReasoning(PIECE)),
    ],
    ids=["another call", "text", "the call itself", "a sealed thought"],
)
def test_what_waits_for_a_call_to_end_is_bounded(begun: list[Event], more: Event) -> None:
    writer = MessagesStreamSerializer("m", "msg_1")
    transform = TranslatingStream(Given([*begun, *[more] * (1 + MAX_HELD_BYTES // len(PIECE))]), writer, call_of(0))
    transform.feed(b"")
    assert isinstance(transform.error, ProviderBadResponse)


def test_what_has_been_written_is_not_held() -> None:
    whole: list[Event] = [
        ReasoningDelta(PIECE),
        ReasoningSignature("s"),
        TextDelta(PIECE),
        RedactedReasoning("z"),
        ToolCallStart(0, "a", "f"),
        ToolCallDelta(0, '{"x":"'),
        ToolCallDelta(0, PIECE),
        ToolCallDelta(0, '"}'),
    ]
    often = 1 + MAX_HELD_BYTES // len(PIECE)
    transform = TranslatingStream(
        Given([*whole * often, ChoiceFinished("stop"), STREAM_END]), MessagesStreamSerializer("m", "msg_1"), call_of(0)
    )
    assert len(transform.feed(b"")) > 3 * MAX_HELD_BYTES
    assert transform.ended


def test_a_thought_without_a_signature_has_an_empty_one() -> None:
    message = judge(
        write([MessageStart("", ""), ReasoningDelta("hm"), TextDelta("a"), ChoiceFinished("stop"), STREAM_END])
    )
    assert blocks(message) == [{"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "a"}]


def test_a_signed_thought_is_over() -> None:
    events: list[Event] = [
        ReasoningDelta("a"),
        ReasoningSignature("1"),
        ReasoningDelta("b"),
        ReasoningSignature("2"),
        RedactedReasoning("x"),
    ]
    assert blocks(judge(write([*events, ChoiceFinished("stop"), STREAM_END]))) == [
        {"type": "thinking", "thinking": "a", "signature": "1"},
        {"type": "thinking", "thinking": "b", "signature": "2"},
        {"type": "redacted_thinking", "data": "x"},
    ]


def test_a_refusal_is_text_and_what_has_no_place_is_left_out() -> None:
    events: list[Event] = [
        TextDelta("a"),
        RefusalDelta("b"),
        TextDelta(""),
        ImageOutput("image/png", "AA=="),
        TextDelta("second", 1),
        ToolCallStart(0, "t", "f", 1),
        ToolCallDelta(5, "{}"),
        ChoiceFinished("length", 1),
        ChoiceFinished("content_filter"),
        TextDelta("late"),
        ChoiceFinished("stop"),
        STREAM_END,
    ]
    message = judge(write(events))
    assert blocks(message) == [{"type": "text", "text": "ab"}]
    assert message.stop_reason == "refusal"


@table_rows(
    ("finished", "called", "reason", "sequence"),
    [
        (ChoiceFinished("stop"), False, "end_turn", None),
        (ChoiceFinished("stop", 0, "END"), False, "stop_sequence", "END"),
        (ChoiceFinished("length"), False, "max_tokens", None),
        (ChoiceFinished("length"), True, "max_tokens", None),
        (ChoiceFinished("tool_calls"), True, "tool_use", None),
        (ChoiceFinished("stop"), True, "tool_use", None),
        (None, True, "tool_use", None),
        (None, False, "end_turn", None),
        (ChoiceFinished("content_filter"), False, "refusal", None),
    ],
)
def test_a_reason_is_written_in_this_dialects_words(
    finished: ChoiceFinished | None, called: bool, reason: str, sequence: str | None
) -> None:
    events: list[Event] = [ToolCallStart(0, "t", "f")] if called else [TextDelta("a")]
    message = judge(write([*events, *([finished] if finished else []), STREAM_END]))
    assert (message.stop_reason, message.stop_sequence) == (reason, sequence)


def test_the_last_usage_is_written_wherever_it_came() -> None:
    reported: list[Event] = [tape.used(1, 1), ChoiceFinished("stop"), TextDelta("a")]
    for order in itertools.permutations(reported):
        assert judge(write([tape.used(9, 9), *order, STREAM_END])).usage.output_tokens == 1


def test_without_usage_the_beginnings_counts_stay() -> None:
    usage = judge(
        write([MessageStart("", "", usage=Usage(9, 1, 2, "upstream")), ChoiceFinished("stop"), STREAM_END])
    ).usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (7, 2, 0)


@table_rows(("text", "ours", "written"), [("msg_a", "x", "msg_a"), ("c-1", "x", "msg_x"), ("", "msg_x", "msg_x")])
def test_a_message_has_an_id_of_this_dialect(text: str, ours: str, written: str) -> None:
    assert parse(write([MessageStart(text, "")], ours))[0]["message"]["id"] == written


def test_a_fault_writes_nothing() -> None:
    writer = MessagesStreamSerializer("m", "x")
    assert writer.write(StreamError(ProviderBadResponse("no"))) == b""


EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(MessageStart, st.text("ab"), st.text("ab")),
    st.builds(TextDelta, st.text("ab", max_size=2), st.integers(0, 1)),
    st.builds(ReasoningDelta, st.text("ab", max_size=2)),
    st.builds(ReasoningSignature, st.text("ab", max_size=2)),
    st.builds(RedactedReasoning, st.text("ab", max_size=2)),
    st.builds(ToolCallStart, st.integers(0, 2), st.text("ab", max_size=2), st.just("f")),
    st.builds(ToolCallDelta, st.integers(0, 2), st.sampled_from(["{", "}", '{"a":1}', "x", ""])),
    st.sampled_from([ChoiceFinished("stop"), ChoiceFinished("length", 1), tape.used(5, 5)]),
)


@given(st.lists(EVENTS, max_size=12))
def test_any_events_become_blocks_one_after_another(events: list[Event]) -> None:
    values = parse(write([*events, STREAM_END]))
    assert [values[0]["type"], *(value["type"] for value in values[-2:])] == [
        "message_start", "message_delta", "message_stop",
    ]  # fmt: skip
    index, opened = -1, False
    for value in values[1:-2]:
        opening = value["type"] == "content_block_start"
        assert opening != opened
        index += opening
        opened = value["type"] != "content_block_stop"
        assert value["index"] == index
    assert not opened


def test_a_translation_from_and_to_this_dialect_is_whole() -> None:
    transform = TranslatingStream(MessagesStreamParser(), MessagesStreamSerializer("m", "x"), call_of(4))
    raw = transform.feed(tape.TOOL)
    assert transform.ended
    assert transform.parse_usage() == Usage(472, 89, 0, "upstream")
    assert judge(raw).stop_reason == "tool_use"


def test_a_translation_that_was_cut_counts_the_prompt_from_the_beginning() -> None:
    transform = TranslatingStream(MessagesStreamParser(), MessagesStreamSerializer("m", "x"), call_of(4000))
    transform.feed(tape.begin("m") + tape.start(0, "text", text="") + tape.text(0, "abcd" * 3))
    with pytest.raises(ProviderBadResponse):
        transform.finish()
    assert transform.parse_usage() == Usage(25, 3, 0, "estimate")
