"""Gemini's answers as events."""

import itertools
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.domain.token_estimate import estimate_text
from gateway.domain.usage import Usage
from gateway.errors import ProviderBadResponse, ProviderError, ProviderRejected
from gateway.formats.chat.gemini.response import GenerateContentParser, parse_answer
from gateway.formats.chat.model import (
    GEMINI_PREFIX,
    STREAM_END,
    ChoiceFinished,
    Event,
    ImageOutput,
    MessageStart,
    ReasoningDelta,
    ReasoningSignature,
    StreamError,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    UsageReport,
)
from gateway.formats.chat.openai.chunk_reader import MAX_CALLS
from gateway.formats.stream import parse_events_usage
from gateway.formats.wire import sse
from tests.support.format_calls import call_of
from tests.support.gemini_cassettes import (
    BARE_ERROR,
    BLOCKED,
    IMAGE,
    OVERLOADED,
    SIGNATURE,
    STOP_IN_EVERY_CHUNK,
    STREAMS,
    TEXT,
    THINKING,
    TOOLS,
    TWO,
    Chunk,
    chunk,
    stream,
    usage,
)
from tests.support.table_rows import table_rows

ID, MODEL = "req1", "gemini-2.5-flash"
THEIR_ID = "tTCwacuEBMvnitYP06qsgQY"
KEYS = [
    "candidates", "content", "parts", "text", "thought", "thoughtSignature", "functionCall", "name", "args", "id",
    "inlineData", "mimeType", "data", "finishReason", "index", "usageMetadata", "promptTokenCount", "error", "message",
    "candidatesTokenCount", "thoughtsTokenCount", "promptFeedback", "blockReason", "responseId", "modelVersion",
]  # fmt: skip
JSON: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(
        [None, True, False, 0, 1, -1, 200, 1.5, 2**53, 1e300, "", "STOP", "SAFETY", "OTHER", "image/png", "x"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=14,
)


def damage(value: Any, path: list[int], junk: Any) -> Any:
    """``value`` with ``junk`` in the place that ``path`` leads to."""
    if not path or not value or not isinstance(value, dict | list):
        return junk
    copy: Any = value.copy()
    keys = list(value) if isinstance(value, dict) else range(len(value))
    key = keys[path[0] % len(keys)]
    copy[key] = damage(value[key], path[1:], junk)
    return copy


DAMAGED = st.builds(
    damage,
    st.sampled_from([*TEXT, *THINKING, *TOOLS, *TWO, *IMAGE, BLOCKED, OVERLOADED]),
    st.lists(st.integers(0, 5), max_size=7),
    JSON,
)


def play(pieces: list[bytes]) -> tuple[list[Event], ProviderError | None]:
    """The events of a stream, and the fault it ended in."""
    reader = GenerateContentParser(ID, MODEL)
    events = [event for piece in pieces for event in reader.feed(piece)]
    assert STREAM_END not in events
    if events and isinstance(events[-1], StreamError):
        assert reader.feed(stream(*TEXT)) == reader.finish() == []
        return events[:-1], events[-1].error
    try:
        return events + reader.finish(), None
    except ProviderError as fault:
        return events, fault


def run(*chunks: Chunk) -> list[Event]:
    """The events of a stream without fault."""
    events, error = play([stream(*chunks)])
    assert error is None
    return events


def fail(data: bytes) -> ProviderError:
    error = play([data])[1]
    assert error is not None
    return error


def say(error: ProviderError | None) -> object:
    return error and (type(error), error.message, error.phase)


@table_rows("name", STREAMS)
def test_every_cut_says_the_same(name: str) -> None:
    data = STREAMS[name]
    whole, error = play([data])
    for at in range(len(data)):
        events, other = play([data[:at], data[at:]])
        assert events == whole
        assert say(other) == say(error)
    assert play([bytes([byte]) for byte in data])[0] == whole


@given(st.sampled_from(sorted(STREAMS)), st.lists(st.integers(0, 3000), max_size=6), st.sampled_from([b"\n", b"\r"]))
def test_many_cuts_and_any_line_end_say_the_same(name: str, marks: list[int], end: bytes) -> None:
    data = STREAMS[name].replace(b"\r\n", b"\n").replace(b"\n", end)
    places = sorted({mark % (len(data) + 1) for mark in marks})
    events, error = play([data[low:high] for low, high in itertools.pairwise([0, *places, len(data)])])
    whole, other = play([STREAMS[name]])
    assert events == whole
    assert (error is None) == (other is None)


def test_words_and_running_totals() -> None:
    assert run(*TEXT) == [
        MessageStart(THEIR_ID, MODEL, usage=Usage(11, source="upstream")),
        TextDelta("Hel"),
        TextDelta("lo, ありがとう"),
        UsageReport(Usage(11, 7, 4, source="upstream")),
        ChoiceFinished("stop"),
        STREAM_END,
    ]


def test_totals_are_those_of_the_last_chunk_that_came() -> None:
    """Every chunk repeats them; they are parsed once, also if the stream is cut off before its last chunk."""
    parser = GenerateContentParser("a1", "m")
    texts = [parser.feed(stream(chunk({"text": "x"}, used=usage(11, count)))) for count in (1, 2, 3)]
    assert [type(event) for events in texts for event in events] == [MessageStart, TextDelta, TextDelta, TextDelta]
    assert parser.take_usage() == UsageReport(Usage(11, 3, source="upstream"))
    assert parser.take_usage() is None


def test_a_thought_is_signed_while_it_is_the_last_thing_said() -> None:
    events = [event for event in run(*THINKING) if not isinstance(event, UsageReport)]
    assert events == [
        MessageStart(THEIR_ID, MODEL, usage=Usage(9, 20, source="upstream")),
        ReasoningDelta("**Weighing** it. "),
        ReasoningDelta("Done."),
        ReasoningSignature(GEMINI_PREFIX + SIGNATURE),
        TextDelta("42"),
        TextDelta("."),
        ChoiceFinished("stop"),
        STREAM_END,
    ]
    assert UsageReport(Usage(9, 33, source="upstream"), 31) in run(*THINKING)


def test_a_signature_with_no_thought_before_it_is_not_a_thoughts() -> None:
    events = run(chunk({"text": "42"}), chunk({"text": "", "thoughtSignature": SIGNATURE}, reason="STOP"))
    assert [type(event) for event in events] == [MessageStart, TextDelta, ChoiceFinished, type(STREAM_END)]


def test_a_thought_is_signed_once_and_not_behind_other_words() -> None:
    thought = chunk({"text": "hm", "thought": True})
    call = {"functionCall": {"name": "f"}, "thoughtSignature": SIGNATURE}
    signed = chunk({"text": "", "thoughtSignature": SIGNATURE}, reason="STOP")
    assert [type(event) for event in run(thought, chunk(call, call), signed)].count(ReasoningSignature) == 1
    assert ReasoningSignature not in [type(event) for event in run(thought, chunk({"text": "so"}), signed)]


def test_a_mark_at_the_beginning_and_comments_say_nothing() -> None:
    assert play([STREAMS["BOM and comments"]]) == play([STREAMS["text"]])


def test_answers_end_in_their_order() -> None:
    events = run(chunk({"text": "b"}, reason="STOP", index=1), chunk({"text": "a"}, reason="MAX_TOKENS", index=0))
    assert events[-3:] == [ChoiceFinished("length", 0), ChoiceFinished("stop", 1), STREAM_END]


def test_a_thought_part_may_bring_its_own_signature() -> None:
    events = run(
        chunk({"text": "hm", "thought": True, "thoughtSignature": "c2ln"}), chunk({"text": "a"}, reason="STOP")
    )
    assert events[1:4] == [ReasoningDelta("hm"), ReasoningSignature(GEMINI_PREFIX + "c2ln"), TextDelta("a")]


def test_tool_calls_have_ids_whole_arguments_and_their_signatures() -> None:
    events = [event for event in run(*TOOLS) if not isinstance(event, UsageReport | MessageStart | ReasoningDelta)]
    assert events == [
        ReasoningSignature(GEMINI_PREFIX + SIGNATURE),
        ToolCallStart(0, "fc-1", "weather", signature=SIGNATURE),
        ToolCallDelta(0, '{"city":"Paris"}'),
        ToolCallStart(1, f"call_{ID}_0_1", "weather"),
        ToolCallDelta(1, '{"city":"Zürich"}'),
        ToolCallStart(2, f"call_{ID}_0_2", "now"),
        ToolCallDelta(2, "{}"),
        ChoiceFinished("tool_calls"),
        STREAM_END,
    ]
    assert UsageReport(Usage(85, 40, source="upstream"), 12) in run(*TOOLS)


def test_two_answers_end_each_for_its_own_reason() -> None:
    events = run(*TWO)
    assert [(event.choice, event.text) for event in events if isinstance(event, TextDelta)] == [
        (0, "a"),
        (1, "x"),
        (0, "b"),
    ]
    assert events[-3:] == [ChoiceFinished("content_filter", 0), ChoiceFinished("length", 1), STREAM_END]


def test_a_image_is_made_and_its_drafts_sounds_and_code_are_not() -> None:
    answers = [event for event in run(*IMAGE) if isinstance(event, TextDelta | ImageOutput)]
    assert answers == [TextDelta("Here: "), ImageOutput("image/png", "iVBORw0KGgo=")]


def test_a_reason_in_every_chunk_ends_nothing_early() -> None:
    events = run(*STOP_IN_EVERY_CHUNK)
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["one ", "two"]
    assert [event for event in events if isinstance(event, ChoiceFinished)] == [ChoiceFinished("stop")]


def test_an_answer_that_does_not_name_itself_is_named_by_us() -> None:
    events = run({"candidates": [{"content": {"parts": [{"text": "a"}]}, "finishReason": "STOP"}]})
    assert events[0] == MessageStart(ID, MODEL)


@table_rows(
    ("reason", "expected"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "content_filter"),
        ("RECITATION", "content_filter"),
        ("IMAGE_SAFETY", "content_filter"),
        ("OTHER", "stop"),
        ("SOMETHING_NEW", "stop"),
    ],
)
def test_why_an_answer_ended(reason: str, expected: str) -> None:
    assert run(chunk({"text": "a"}), chunk(reason=reason))[-2:] == [ChoiceFinished(expected), STREAM_END]  # type: ignore[arg-type]


@table_rows("reason", ["OTHER", "NO_IMAGE", "SOMETHING_NEW"])
def test_an_answer_of_nothing_for_no_known_reason_is_a_fault(reason: str) -> None:
    error = fail(stream(chunk({"text": "hm", "thought": True}), chunk(reason=reason)))
    assert isinstance(error, ProviderBadResponse)
    assert reason in error.message


def test_an_answer_of_nothing_that_stopped_is_an_answer() -> None:
    assert run(chunk(reason="STOP", used=usage(4)))[-3:] == [
        UsageReport(Usage(4, source="upstream")),
        ChoiceFinished("stop"),
        STREAM_END,
    ]


@table_rows("reason", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MISSING_THOUGHT_SIGNATURE"])
def test_a_spoiled_answer_is_a_fault_that_nobody_is_blamed_for(reason: str) -> None:
    spoiled = chunk({"text": "Let me see."})
    spoiled["candidates"][0] |= {"finishReason": reason, "finishMessage": "Malformed: at http://10.0.0.1/x"}
    events, error = play([stream(spoiled)])
    assert events[-1] == TextDelta("Let me see.")
    assert isinstance(error, ProviderBadResponse)
    assert error.retryable
    assert error.failure_scope == "nobody"
    assert error.message == f"The model spoiled its answer: {reason} Malformed: at [address]"


def test_a_blocked_prompt_is_the_callers_fault() -> None:
    with pytest.raises(ProviderRejected) as caught:
        whole(BLOCKED)
    for error in (fail(stream(BLOCKED)), caught.value):
        assert isinstance(error, ProviderRejected)
        assert (error.status, error.public_code, error.type) == (400, "content_policy_violation", "upstream_error")
        assert error.message == "The provider blocked the prompt: PROHIBITED_CONTENT"
        assert not error.retryable


def test_an_unspecified_block_blocks_nothing() -> None:
    kept = TEXT[0] | {"promptFeedback": {"blockReason": "BLOCK_REASON_UNSPECIFIED", "safetyRatings": []}}
    assert run(kept, *TEXT[1:]) == run(*TEXT)


@table_rows(
    "data",
    [
        stream(TEXT[0], OVERLOADED),
        stream(TEXT[0]) + BARE_ERROR,
        stream(TEXT[0]) + BARE_ERROR.strip(),
        stream(TEXT[0]) + BARE_ERROR + b"\n",
        stream(TEXT[0]) + b"[" + BARE_ERROR + b"]",
        stream(*TEXT) + BARE_ERROR,
    ],
    ids=["event", "bare", "without a line end", "with a blank line", "in an array", "behind a finished answer"],
)
def test_an_error_in_the_middle_is_a_fault_without_addresses_and_keys(data: bytes) -> None:
    events, error = play([data])
    assert TextDelta("Hel") in events
    assert not any(isinstance(event, ChoiceFinished) for event in events)
    assert isinstance(error, ProviderBadResponse)
    assert error.phase == "stream"
    assert error.message == "The provider reported an error: The model is overloaded, see [address] with [masked]"


def test_secrets_are_masked() -> None:
    reader = GenerateContentParser(ID, MODEL, ["hunter2hunter2"])
    (failed,) = reader.feed(stream({"error": {"message": "no hunter2hunter2"}}))
    assert isinstance(failed, StreamError)
    assert failed.error.message.endswith("no [masked]")


@table_rows(
    "data",
    [
        b"",
        stream(*TEXT[:2]),
        stream(chunk({"text": "a"}, reason="FINISH_REASON_UNSPECIFIED")),
        stream(*TEXT)[:-40],
        stream(*TWO[:3]),
        stream(*TEXT) + b'{"error": {',
        b": ping\n\n",
    ],
    ids=[
        "nothing",
        "no reason",
        "reason unspecified",
        "half an event",
        "one of two answers",
        "half an error",
        "comments",
    ],
)
def test_a_stream_without_its_end_is_cut(data: bytes) -> None:
    error = fail(data)
    assert say(error) == (ProviderBadResponse, "The provider's stream ended before it was complete", "stream")


def test_an_event_without_an_end_is_a_fault() -> None:
    reader = GenerateContentParser(ID, MODEL)
    (failed,) = reader.feed(b"data: " + b"x" * (sse.MAX_EVENT_BYTES + 1))
    assert isinstance(failed, StreamError)
    assert reader.feed(b"\n\n") == []


@table_rows(
    ("metadata", "expected"),
    [
        (usage(11, 3, 2, cachedContentTokenCount=99), UsageReport(Usage(11, 5, 11, "upstream"), 2)),
        (usage(11, 3, toolUsePromptTokenCount=4), UsageReport(Usage(15, 3, 0, "upstream"))),
        (usage(11, 0), UsageReport(Usage(11, 0, 0, "upstream"))),
        (usage(11), None),
        (usage(11, -1), None),
        ({"promptTokenCount": 1.5, "candidatesTokenCount": 3}, None),
        ({"promptTokenCount": 11, "candidatesTokenCount": "3"}, None),
        ({"promptTokenCount": 11, "candidatesTokenCount": 3, "thoughtsTokenCount": True}, None),
        ({"candidatesTokenCount": 3}, None),
        ([], None),
        (None, None),
    ],
)
def test_a_count_is_believed_whole_or_not_at_all(metadata: Any, expected: UsageReport | None) -> None:
    events = run(chunk({"text": "a"}), {"candidates": [{"finishReason": "STOP"}], "usageMetadata": metadata})
    assert next((event for event in events if isinstance(event, UsageReport)), None) == expected


def test_a_cut_stream_that_counted_only_its_prompt_is_estimated_for_the_rest() -> None:
    events, _ = play([stream(chunk({"text": "a" * 40}, used=usage(2304)))])
    assert parse_events_usage(events, call_of(0)) == Usage(2304, estimate_text("a" * 40), source="estimate")


def whole(value: Any) -> list[Event]:
    return parse_answer(orjson.dumps(value), answer_id=ID, model=MODEL)


def test_a_whole_answer_is_a_stream_of_one_chunk() -> None:
    value = chunk({"text": "hm", "thought": True}, {"text": "Hello"}, reason="STOP", used=usage(11, 7, 2), index=0)
    assert whole(value) == run(value)
    assert whole(value)[-3:] == [UsageReport(Usage(11, 9, source="upstream"), 2), ChoiceFinished("stop"), STREAM_END]


def test_a_whole_answer_need_not_say_why_it_ended() -> None:
    assert whole(chunk({"functionCall": {"name": "now"}}))[-2:] == [ChoiceFinished("tool_calls"), STREAM_END]


@table_rows(
    "raw",
    [
        b"", b"<html>", b"null", b"[]", b'"x"', b"{}", b'{"candidates":[]}', b'{"candidates":{}}',
        b'{"candidates":[1]}', b'{"error":{"code":500}}', b'[{"error":{"message":"x"}}]',
        b'{"candidates":[{"finishReason":"OTHER"}]}',
        b'{"candidates":[{"finishReason":7}]}', b'{"candidates":[{"index":-1}]}', b'{"candidates":[{"index":true}]}',
        b'{"candidates":[{"index":128}]}', b'{"candidates":[{"content":"x"}]}',
        b'{"candidates":[{"content":{"parts":{"text":"x"}}}]}', b'{"candidates":[{"content":{"parts":["x"]}}]}',
        b'{"candidates":[{"content":{"parts":[{"functionCall":{}}]}}]}',
        b'{"candidates":[{"content":{"parts":[{"functionCall":{"name":"f","args":[]}}]}}]}',
        b'{"candidates":[{"content":{"parts":[{"functionCall":{"name":"f","args":{"a":' + b"[" * 300 + b"]" * 300
        + b"}}}]}}]}",
    ],
)  # fmt: skip
def test_what_is_no_answer_is_a_fault(raw: bytes) -> None:
    with pytest.raises(ProviderBadResponse) as caught:
        parse_answer(raw, answer_id=ID, model=MODEL)
    assert caught.value.phase == "answer"


@given(JSON | DAMAGED)
def test_any_json_is_an_answer_or_a_fault(value: Any) -> None:
    try:
        events = whole(value)
    except (ProviderBadResponse, ProviderRejected):
        return
    assert isinstance(events[0], MessageStart)
    assert isinstance(events[-2], ChoiceFinished)
    assert events[-1] == STREAM_END


@given(st.lists(JSON | DAMAGED | st.sampled_from(TEXT), max_size=4))
def test_any_json_is_a_stream_or_a_fault(values: list[Any]) -> None:
    events, error = play([stream(*values)])
    assert (error is None) == (bool(events) and events[-1] == STREAM_END)
    open_calls = {(event.choice, event.index) for event in events if isinstance(event, ToolCallStart)}
    assert all((event.choice, event.index) in open_calls for event in events if isinstance(event, ToolCallDelta))


@given(st.binary(max_size=60) | st.text(max_size=30).map(lambda text: f"data: {text}\n\n".encode(errors="replace")))
def test_any_bytes_are_a_stream_or_a_fault(data: bytes) -> None:
    assert play([data])[1] is not None


def test_an_answer_of_more_tool_calls_than_any_has_is_a_fault() -> None:
    call = {"functionCall": {"name": "f", "args": {}}}
    _, error = play([stream(chunk(*[call] * MAX_CALLS))])
    assert error is None or "too many" not in error.message
    events, error = play([stream(chunk(*[call] * (MAX_CALLS + 1)))])
    assert error is not None
    assert "too many tool calls" in error.message
    assert len(events) <= 2 * MAX_CALLS + 2


PARTS = st.fixed_dictionaries(
    {"text": st.sampled_from(["", "a", "Å"])},
    optional={"thought": st.sampled_from([True, True, False]), "thoughtSignature": st.just(SIGNATURE)},
) | st.sampled_from([{"text": "a"}, {"text": "b", "thought": True}])


PLACED = st.tuples(PARTS, st.sampled_from([0, 0, 0, 1]), st.none() | st.integers(0, 9))


@example(parts=[({"text": "a"}, 0, 1), ({"text": "b", "thought": True, "thoughtSignature": SIGNATURE}, 0, 2)])
@example(parts=[({"text": "a", "thought": True}, 0, 1), ({"text": "b", "thoughtSignature": SIGNATURE}, 0, 2)])
@example(parts=[({"text": "a"}, 0, 1), ({"text": "b", "thoughtSignature": SIGNATURE}, 0, 2)])
@given(parts=st.lists(PLACED, min_size=4, max_size=12))
def test_a_field_that_is_not_known_changes_nothing(parts: list[tuple[dict[str, Any], int, int | None]]) -> None:
    """A usual chunk is read by a shorter way, one with an unknown field is not: both find the same texts."""
    shorter, longer = (GenerateContentParser("id", "m") for _ in range(2))
    chunks = [
        {
            "candidates": [{"content": {"parts": [part]}, "index": index}],
            "usageMetadata": {"promptTokenCount": 2, "candidatesTokenCount": counted},
        }
        for part, index, counted in parts
    ]
    for value in chunks:
        assert shorter.feed(stream(value)) == longer.feed(stream(value | {"new": 1}))
    assert shorter.take_usage() == longer.take_usage()
