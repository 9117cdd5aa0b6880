"""The convention's stream as events, and back."""

import itertools
from collections import defaultdict
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.domain.usage import Usage
from gateway.errors import ProviderBadResponse
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
    StreamError,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    UsageReport,
)
from gateway.formats.chat.openai.stream import ChatStreamParser, ChatStreamSerializer
from gateway.formats.stream import StreamParser, StreamSerializer, TranslatingStream
from gateway.formats.wire import sse
from tests.support.chat_sdk import answering, answers
from tests.support.corrupt_json import spoilt
from tests.support.format_calls import call_of
from tests.support.scripted_upstream import DONE, event, usage_frame
from tests.support.table_rows import table_rows

CUTS = st.lists(st.integers(0, 5000), max_size=8)
STARTED = MessageStart("chatcmpl-1", "m", 1)
USED = UsageReport(Usage(5, 7, 0, "upstream"))
RICH = {
    "id": "chatcmpl-1",
    "model": "m",
    "created": 1,
    "error": None,
    "choices": [
        {
            "index": 0,
            "delta": {
                "content": [{"type": "thinking", "thinking": [{"text": "t"}]}, {"type": "text", "text": "a"}],
                "reasoning": "t",
                "refusal": "no",
                "images": [{"image_url": {"url": "data:image/png;base64,AAAA"}}],
                "tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": {"x": 1}}}],
                "function_call": {"name": "f", "arguments": "{}"},
            },
            "finish_reason": None,
            "usage": {"prompt_tokens": 1, "completion_tokens": 2, "completion_tokens_details": {"reasoning_tokens": 1}},
        }
    ],
}
"""A chunk with everything in it that is read."""


def cut(data: bytes, marks: list[int]) -> list[bytes]:
    places = sorted({mark % (len(data) + 1) for mark in marks})
    return [data[start:end] for start, end in itertools.pairwise([0, *places, len(data)])]


def read(data: bytes, marks: list[int] | None = None, choices: int = 1) -> list[Event]:
    reader = ChatStreamParser(choices, ["s3cret-key"])
    return [found for piece in cut(data, marks or []) for found in reader.feed(piece)]


def chunk(*choices: dict[str, Any], **extra: Any) -> bytes:
    listed = [{"index": 0, "delta": {}, "finish_reason": None} | choice for choice in choices]
    return event(
        {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": listed} | extra
    )


def delta(**fields: Any) -> bytes:
    return chunk({"delta": fields})


def fragment(index: int | None = 0, name: str | None = None, arguments: Any = None, **extra: Any) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return ({} if index is None else {"index": index}) | {"function": function} | extra


def calls(*fragments: dict[str, Any]) -> bytes:
    """Each fragment in a chunk of its own."""
    return b"".join(delta(tool_calls=[one]) for one in fragments)


def write(events: list[Event], *, include_usage: bool = True) -> bytes:
    writer = ChatStreamSerializer(answer_id="ours", model="alias", created_s=99, include_usage=include_usage)
    return b"".join(map(writer.write, events))


def chunks_of(raw: bytes) -> list[dict[str, Any]]:
    pieces = sse.SseSplitter().split(raw)
    assert b"".join(pieces) == raw
    payloads = [payload for piece in pieces if (payload := sse.parse_data(piece)) != b"[DONE]"]
    return [orjson.loads(payload or b"") for payload in payloads]


STOP = chunk({"finish_reason": "stop"})
USAGE = event(usage_frame())


def test_reader_and_writer_are_what_a_translation_takes() -> None:
    reader: StreamParser = ChatStreamParser()
    writer: StreamSerializer = ChatStreamSerializer(answer_id="a", model="m", created_s=1, include_usage=False)
    transform = TranslatingStream(reader, writer, call_of(0))
    assert transform.feed(delta(content="a") + STOP + USAGE + DONE).endswith(DONE)
    assert transform.ended
    assert transform.parse_usage() == USED.usage


# Reading


def test_a_plain_stream_is_read_in_order() -> None:
    stream = delta(role="assistant", content="") + delta(content="a") + STOP + USAGE + DONE
    assert read(stream) == [STARTED, TextDelta("a"), ChoiceFinished("stop"), USED, STREAM_END]


@given(events=answers(), marks=CUTS)
def test_the_same_events_come_at_any_cut(events: list[Event], marks: list[int]) -> None:
    raw = write(events)
    assert read(raw, marks, 3) == read(raw, choices=3)


@given(events=answers())
def test_what_is_written_is_read_again(events: list[Event]) -> None:
    assert read(write(events), choices=3) == events


@pytest.mark.parametrize("end", [b"\r\n", b"\r"], ids=["CRLF", "CR"])
@given(marks=CUTS)
def test_other_line_ends_comments_and_names_say_the_same(end: bytes, marks: list[int]) -> None:
    stream = sse.BOM + b": hello\n\nevent: message\n" + delta(content="a") + b"data:\n\n" + STOP + DONE
    assert read(stream.replace(b"\n", end) + b"\n", marks) == [
        STARTED,
        TextDelta("a"),
        ChoiceFinished("stop"),
        STREAM_END,
    ]


@table_rows(
    ("fields", "expected"),
    [
        ({"reasoning_content": "t"}, [ReasoningDelta("t")]),
        ({"reasoning": "t"}, [ReasoningDelta("t")]),
        ({"reasoning": "t", "reasoning_content": "t"}, [ReasoningDelta("t")]),
        ({"reasoning_content": None, "reasoning": "t", "content": "a"}, [ReasoningDelta("t"), TextDelta("a")]),
        ({"refusal": "no"}, [RefusalDelta("no")]),
        (
            {
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "t"}]},
                    {"type": "text", "text": "a"},
                ]
            },
            [ReasoningDelta("t"), TextDelta("a")],
        ),
        (
            {"images": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]},
            [ImageOutput("image/png", "AAAA")],
        ),
        ({"images": [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}]}, []),
        ({"content": "", "reasoning": "", "refusal": None, "tool_calls": None, "function_call": None}, []),
    ],
)
def test_what_vendors_write_into_a_delta_is_understood(fields: dict[str, Any], expected: list[Event]) -> None:
    assert read(delta(**fields)) == [STARTED, *expected]


@table_rows(
    ("stream", "expected"),
    [
        pytest.param(
            calls(fragment(0, "f", "", id="a"), fragment(0, None, '{"x"'), fragment(0, None, ":1}")),
            [ToolCallStart(0, "a", "f"), ToolCallDelta(0, '{"x"'), ToolCallDelta(0, ":1}")],
            id="in fragments",
        ),
        pytest.param(
            calls(fragment(0, "f", "{}", id="a"), fragment(1, "g", "{}", id="b"), fragment(0, None, " ")),
            [
                ToolCallStart(0, "a", "f"),
                ToolCallDelta(0, "{}"),
                ToolCallStart(1, "b", "g"),
                ToolCallDelta(1, "{}"),
                ToolCallDelta(0, " "),
            ],
            id="two at once",
        ),
        pytest.param(
            calls(fragment(0, "f", "{", id="a"), fragment(0, "f", "}", id="a")),
            [ToolCallStart(0, "a", "f"), ToolCallDelta(0, "{"), ToolCallDelta(0, "}")],
            id="id and name in each fragment",
        ),
        pytest.param(
            calls(fragment(None, "f", "{", id="a"), fragment(None, None, "}"), fragment(None, "g", "{}", id="b")),
            [
                ToolCallStart(0, "a", "f"),
                ToolCallDelta(0, "{"),
                ToolCallDelta(0, "}"),
                ToolCallStart(1, "b", "g"),
                ToolCallDelta(1, "{}"),
            ],
            id="no index",
        ),
        pytest.param(
            calls(fragment(None, "f", "{", id="a"), fragment(None, "f", "}", id="a")),
            [ToolCallStart(0, "a", "f"), ToolCallDelta(0, "{"), ToolCallDelta(0, "}")],
            id="no index, id in each fragment",
        ),
        pytest.param(
            calls(fragment(0, "f", "{}", id="a"), fragment(0, "f", "[]", id="b")),
            [ToolCallStart(0, "a", "f"), ToolCallDelta(0, "{}"), ToolCallStart(1, "b", "f"), ToolCallDelta(1, "[]")],
            id="index 0 for every whole call",
        ),
        pytest.param(
            calls(fragment(0, "f", "{}"), fragment(0, "g", "[]"), fragment(0, None, " ")),
            [
                ToolCallStart(0, "call_chatcmpl-1_0_0", "f"),
                ToolCallDelta(0, "{}"),
                ToolCallStart(1, "call_chatcmpl-1_0_1", "g"),
                ToolCallDelta(1, "[]"),
                ToolCallDelta(1, " "),
            ],
            id="index 0 for every whole call, without ids",
        ),
        pytest.param(
            calls(fragment(0, "f", "{", id="a"), fragment(0, "f", "}")),
            [ToolCallStart(0, "a", "f"), ToolCallDelta(0, "{"), ToolCallDelta(0, "}")],
            id="name in each fragment",
        ),
        pytest.param(
            calls(fragment(0, None, "{"), fragment(0, None, '"a":'), fragment(0, "f", "1}", id="a")),
            [ToolCallStart(0, "a", "f"), ToolCallDelta(0, '{"a":1}')],
            id="name last",
        ),
        pytest.param(
            calls(fragment(3, "f", "{}", id="a"), fragment(7, "g", id="b")),
            [ToolCallStart(0, "a", "f"), ToolCallDelta(0, "{}"), ToolCallStart(1, "b", "g")],
            id="indexes with gaps",
        ),
        pytest.param(
            calls(fragment(0, None, "{", id="a"), fragment(0, "f", "}")),
            [ToolCallStart(0, "a", "f"), ToolCallDelta(0, "{}")],
            id="name late",
        ),
        pytest.param(
            calls(fragment(0, "f", {"x": [1]}, id="a")),
            [ToolCallStart(0, "a", "f"), ToolCallDelta(0, '{"x":[1]}')],
            id="arguments as an object",
        ),
        pytest.param(
            calls(fragment(None, "f", "{}"), fragment(None, "f", "{}")),
            [
                ToolCallStart(0, "call_chatcmpl-1_0_0", "f"),
                ToolCallDelta(0, "{}"),
                ToolCallStart(1, "call_chatcmpl-1_0_1", "f"),
                ToolCallDelta(1, "{}"),
            ],
            id="no ids at all",
        ),
        pytest.param(
            calls(fragment(0, "f", id="a", extra_content={"google": {"thought_signature": "s"}})),
            [ToolCallStart(0, "a", "f", signature="s")],
            id="Gemini's signature",
        ),
        pytest.param(
            delta(function_call={"name": "f", "arguments": "{"}) + delta(function_call={"arguments": "}"}),
            [ToolCallStart(0, "call_chatcmpl-1_0_0", "f"), ToolCallDelta(0, "{"), ToolCallDelta(0, "}")],
            id="the deprecated kind",
        ),
    ],
)
def test_a_tool_call_is_put_together(stream: bytes, expected: list[Event]) -> None:
    assert read(stream) == [STARTED, *expected]


@table_rows(
    ("word", "reason"),
    [("function_call", "tool_calls"), ("length", "length"), ("model_length", "length"), ("eos", "stop"), ("", None)],
)
def test_a_finish_reason_is_read_in_the_conventions_words(word: str, reason: Any) -> None:
    expected = [STARTED] if reason is None else [STARTED, ChoiceFinished(reason)]
    assert read(chunk({"finish_reason": word}), choices=2) == expected


def test_a_stop_after_a_tool_call_is_for_the_call() -> None:
    assert read(calls(fragment(0, "f", id="a")) + STOP + DONE)[-2:] == [ChoiceFinished("tool_calls"), STREAM_END]


def test_calls_without_any_ids_are_named_after_our_own_answer() -> None:
    bare = event({"choices": [{"index": 0, "delta": {"tool_calls": [fragment(0, "f", "{}")]}}]})
    names = [
        found.id
        for ours in ("req_1", "req_2")
        for found in ChatStreamParser(answer_id=ours).feed(bare)
        if isinstance(found, ToolCallStart)
    ]
    assert names == ["call_req_1_0_0", "call_req_2_0_0"]


def test_an_id_that_is_made_has_at_most_40_characters() -> None:
    long = event({"id": "x" * 99, "choices": [{"index": 127, "delta": {"tool_calls": [fragment(0, "f", "{}")]}}]})
    (name,) = [found.id for found in ChatStreamParser().feed(long) if isinstance(found, ToolCallStart)]
    assert len(name) <= 40


@table_rows(
    "stream",
    [
        delta(tool_calls=[fragment(0, None, "x" * 300_000)]) * 5,
        b"".join(delta(tool_calls=[fragment(at, "f") for at in range(row, row + 300)]) for row in range(0, 1200, 300)),
    ],
    ids=["arguments of nothing", "calls without an end"],
)
def test_what_has_to_be_kept_of_tool_calls_is_bounded(stream: bytes) -> None:
    assert isinstance(read(stream)[-1], StreamError)


def test_nothing_is_said_after_one_of_several_choices_has_finished() -> None:
    late = STOP + delta(content="late") + STOP + DONE
    assert read(delta(content="a") + late, choices=2) == [STARTED, TextDelta("a"), ChoiceFinished("stop"), STREAM_END]
    joined = [STARTED, TextDelta("a"), TextDelta("late"), ChoiceFinished("stop"), STREAM_END]
    assert read(delta(content="a") + late) == joined  # the only answer may be split, and ends when the stream does


@table_rows(
    "stream",
    [
        STOP + USAGE,
        chunk({"finish_reason": "stop"}, usage=usage_frame()["usage"]),
        chunk({"finish_reason": "stop", "usage": usage_frame()["usage"]}),
        chunk({}, usage=usage_frame()["usage"]) + STOP,
        chunk({}, usage=usage_frame(5, 1)["usage"]) + STOP + USAGE + USAGE,
    ],
    ids=["a frame", "with the finish", "in the choice", "before the finish", "in every chunk"],
)
def test_usage_is_said_after_the_finish(stream: bytes) -> None:
    events = read(stream + DONE)
    assert events[-2:] == [USED, STREAM_END]
    assert [found for found in events[events.index(ChoiceFinished("stop")) :] if isinstance(found, UsageReport)] == [
        USED
    ]


def test_reasoning_is_counted_and_never_more_than_all() -> None:
    for reported, kept in ((3, 3), (99, 7), (-1, 0), ("3", 0)):
        usage = usage_frame()["usage"] | {"completion_tokens_details": {"reasoning_tokens": reported}}
        assert UsageReport(USED.usage, kept) in read(chunk({}, usage=usage))


def test_a_choice_without_a_finish_is_finished_by_the_end_mark() -> None:
    assert read(delta(content="a") + DONE) == [STARTED, TextDelta("a"), ChoiceFinished("stop"), STREAM_END]


@table_rows(
    "bad",
    [
        b"data: {\n\n",
        b"data: [1]\n\n",
        b"data: null\n\n",
        b"data: \xff\n\n",
        b"data: [DONE]\n\n",
        event({"error": {"message": "no", "code": 500}}),
        event({"error": "no"}),
        b'event: error\ndata: {"message": "no"}\n\n',
        chunk({"finish_reason": "error"}),
        chunk({"finish_reason": "insufficient_system_resource"}),
    ],
)
def test_what_makes_no_sense_and_what_is_an_error_fails_the_stream(bad: bytes) -> None:
    reader = ChatStreamParser()
    (*_, last) = reader.feed(bad + delta(content="late"))
    assert isinstance(last, StreamError)
    assert last.error.phase == "stream"
    assert reader.feed(delta(content="later")) == []
    assert reader.finish() == []


def test_an_error_is_told_without_secrets() -> None:
    (failed,) = read(event({"error": {"message": "s3cret-key at https://10.0.0.1/x"}}))
    assert isinstance(failed, StreamError)
    assert failed.error.message == "The provider reported an error: [masked] at [address]"


def test_null_errors_and_chunks_without_choices_are_no_matter() -> None:
    assert read(event({"error": None, "choices": [], "prompt_filter_results": []})) == []
    assert read(delta(content="a").replace(b"{", b'{"error":null,', 1)) == [STARTED, TextDelta("a")]


def test_an_event_without_an_end_fails_the_stream() -> None:
    (failed,) = ChatStreamParser().feed(b"x" * (sse.MAX_EVENT_BYTES + 1))
    assert isinstance(failed, StreamError)


@table_rows(
    ("stream", "choices", "whole"),
    [
        (delta(content="a") + STOP, 1, True),
        (delta(content="a") + STOP + USAGE, 1, True),
        (delta(content="a") + b"data: [DONE]", 1, True),
        (delta(content="a") + STOP, 2, False),
        (delta(content="a"), 1, False),
        (delta(content="a") + STOP + b"data: {", 1, False),
        (b"", 1, False),
        (b"data: [DONE]", 1, False),
    ],
)
def test_without_the_end_mark_a_stream_is_whole_only_where_every_choice_finished(
    stream: bytes, choices: int, whole: bool
) -> None:
    reader = ChatStreamParser(choices)
    reader.feed(stream)
    if whole:
        assert reader.finish()[-1] == STREAM_END
        assert reader.finish() == []
    else:
        with pytest.raises(ProviderBadResponse) as caught:
            reader.finish()
        assert caught.value.phase == "stream"


@given(values=st.lists(spoilt(RICH), max_size=3), marks=CUTS)
def test_garbage_in_a_chunk_never_raises_and_can_be_written(values: list[Any], marks: list[int]) -> None:
    wide = [value for value in values if not isinstance(value, str)]  # a string is written as it lies
    events = read(b"".join(map(event, wide)) + delta(content="a") + DONE, marks)
    assert isinstance(events[-1], StreamError) or events[-1] == STREAM_END
    chunks_of(write(events))


WORDS = st.sampled_from(["", "a", "{", "Å"])
FRAGMENT = st.fixed_dictionaries(
    {
        "index": st.sampled_from([0, 0, 1, None]),
        "id": st.sampled_from([None, None, "call_a", "call_b", ""]),
        "function": st.fixed_dictionaries(
            {"name": st.sampled_from([None, "f", "g", ""]), "arguments": WORDS | st.none()}
        ),
    }
)
DELTA = st.fixed_dictionaries(
    {},
    optional={
        "role": st.just("assistant"),
        "content": WORDS | st.none(),
        "reasoning_content": WORDS | st.none(),
        "reasoning": WORDS,
        "refusal": WORDS | st.none(),
        "tool_calls": st.lists(FRAGMENT, max_size=2) | st.none(),
        "annotations": st.just([1]),
    },
)
CHUNK = st.builds(
    lambda delta, choice, more: {"id": "x", "choices": [{"delta": delta, **choice}], **more},
    st.one_of(
        DELTA,
        st.builds(lambda fragment: {"tool_calls": [fragment]}, FRAGMENT),
        st.sampled_from([{"content": "a"}, {"role": "assistant", "reasoning": "b"}, {"content": "", "refusal": "c"}]),
    ),
    st.fixed_dictionaries(
        {"index": st.sampled_from([0, 0, 0, 1]), "finish_reason": st.sampled_from([*[None] * 8, "", "stop"])}
    ),
    st.fixed_dictionaries(
        {
            "usage": st.none() | st.just({"prompt_tokens": 1, "completion_tokens": 2}),
            "error": st.sampled_from([*[None] * 12, "busy"]),
        }
    ),
)


def one_chunk(choice: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "x", "choices": [{"index": 0, **choice}], **more}


NAMELESS = {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}
BEGUN = one_chunk({"delta": {"content": "a"}})


@example(values=[BEGUN, one_chunk({"delta": {"content": "b"}, "finish_reason": "stop"})])
@example(values=[BEGUN, one_chunk({"delta": {"content": "b"}}, error="busy")])
@example(values=[one_chunk({"delta": NAMELESS})] * 2)
@given(values=st.lists(CHUNK, min_size=4, max_size=12))
def test_a_comment_before_an_event_changes_nothing(values: list[dict[str, Any]]) -> None:
    """A usual event is read by a shorter way, one with a comment in it is not: both find the same."""
    lines = [b"data: %b\n\n" % orjson.dumps(value) for value in values]
    shorter, longer = ChatStreamParser(), ChatStreamParser()
    for line in [*lines, DONE]:
        assert repr(shorter.feed(line)) == repr(longer.feed(b": hello\n" + line))


@given(data=st.binary(max_size=200), marks=CUTS)
def test_garbage_instead_of_a_stream_never_raises(data: bytes, marks: list[int]) -> None:
    events = read(data + b"\n\ndata: x\n\n", marks)
    assert isinstance(events[-1], StreamError)


def test_deep_arguments_are_no_bug() -> None:
    deep: Any = {}
    for _ in range(60):
        deep = {"a": deep}
    raw = calls(fragment(0, "f", deep, id="a")).replace(b"{}", b'{"a":' * 250 + b"{}" + b"}" * 250)
    assert read(raw) == [STARTED, ToolCallStart(0, "a", "f")]


# Writing


def test_a_stream_is_written_as_the_convention_has_it() -> None:
    events: list[Event] = [
        MessageStart("msg_1", "claude", 7),
        TextDelta("a"),
        TextDelta('b"\n'),
        ChoiceFinished("stop"),
        USED,
        STREAM_END,
    ]
    raw = write(events)
    assert raw.endswith(DONE)
    head = {"id": "msg_1", "object": "chat.completion.chunk", "created": 7, "model": "claude"}
    usage = {
        "prompt_tokens": 5,
        "completion_tokens": 7,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    assert chunks_of(raw) == [
        head | {"choices": [choice], "usage": None}
        for choice in (
            {"index": 0, "delta": {"role": "assistant", "content": "a"}, "logprobs": None, "finish_reason": None},
            {"index": 0, "delta": {"content": 'b"\n'}, "logprobs": None, "finish_reason": None},
            {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"},
        )
    ] + [head | {"choices": [], "usage": usage}]


@given(events=answers())
def test_usage_is_written_only_where_it_was_asked_for(events: list[Event]) -> None:
    for found in chunks_of(write(events, include_usage=False)):
        assert "usage" not in found
        assert found["choices"]
    usages = [found["usage"] for found in chunks_of(write(events))]
    assert sum(usage is not None for usage in usages) == sum(isinstance(found, UsageReport) for found in events)
    assert None not in usages[len(usages) - any(isinstance(found, UsageReport) for found in events) :]


@given(events=answers())
def test_each_choice_says_its_role_once_and_first(events: list[Event]) -> None:
    seen: dict[int, list[bool]] = {}
    for found in chunks_of(write(events, include_usage=False)):
        for choice in found["choices"]:
            seen.setdefault(choice["index"], []).append("role" in choice["delta"])
    for roles in seen.values():
        assert roles == [True] + [False] * (len(roles) - 1)


def test_nothing_is_written_before_there_is_something_of_an_answer() -> None:
    fault = StreamError(ProviderBadResponse("x"))
    assert write([STARTED, USED, fault, ReasoningSignature("s"), RedactedReasoning("x")]) == b""


def test_names_and_time_are_ours_where_the_provider_has_none() -> None:
    (found,) = chunks_of(write([MessageStart("", ""), TextDelta("a")]))
    assert (found["id"], found["model"], found["created"]) == ("ours", "alias", 99)


def test_no_usage_frame_is_made_up() -> None:
    assert write([STARTED, STREAM_END]) == DONE


def test_tokens_written_into_a_cache_are_said() -> None:
    (found,) = chunks_of(write([UsageReport(Usage(9, 1, 2, "upstream", written_tokens=3)), STREAM_END]))
    assert found["usage"]["prompt_tokens_details"] == {"cached_tokens": 2, "cache_write_tokens": 3}


@given(events=answers(most_choices=2))
def test_the_client_library_reads_the_same_from_the_stream(events: list[Event]) -> None:
    """In its strict mode it refuses what is not of the convention's types."""
    text_by_choice: defaultdict[tuple[type[Event], int], str] = defaultdict(str)
    finished, used = [], 0
    with answering(write(events)) as client:
        for found in client.chat.completions.create(model="m", messages=[], stream=True):
            used += found.usage is not None
            for choice in found.choices:
                text_by_choice[TextDelta, choice.index] += choice.delta.content or ""
                text_by_choice[ReasoningDelta, choice.index] += getattr(choice.delta, "reasoning_content", None) or ""
                for call in choice.delta.tool_calls or ():
                    assert call.function is not None
                    text_by_choice[ToolCallDelta, choice.index] += call.function.arguments or ""
                if choice.finish_reason:
                    finished.append((choice.finish_reason, choice.index))
    assert used == sum(isinstance(reported, UsageReport) for reported in events)
    assert finished == [
        (reported.reason, reported.choice) for reported in events if isinstance(reported, ChoiceFinished)
    ]
    for reported in events:
        if isinstance(reported, TextDelta | ReasoningDelta):
            text_by_choice[type(reported), reported.choice] = text_by_choice[
                type(reported), reported.choice
            ].removeprefix(reported.text)
        elif isinstance(reported, ToolCallDelta):
            rest = text_by_choice[ToolCallDelta, reported.choice]
            text_by_choice[ToolCallDelta, reported.choice] = rest.removeprefix(reported.arguments)
    assert not any(text_by_choice.values())


def test_the_client_librarys_own_collector_takes_the_stream() -> None:
    events: list[Event] = [
        STARTED,
        ReasoningDelta("hm"),
        TextDelta("a"),
        ToolCallStart(0, "x", "f"),
        ToolCallDelta(0, "{}"),
        ChoiceFinished("tool_calls"),
        USED,
        STREAM_END,
    ]
    with answering(write(events)) as client, client.chat.completions.stream(model="m", messages=[]) as stream:
        whole = stream.get_final_completion()
    (choice,) = whole.choices
    assert choice.message.content == "a"
    assert [call.function.name for call in choice.message.tool_calls or ()] == ["f"]
    assert whole.usage is not None
    assert whole.usage.total_tokens == 12
