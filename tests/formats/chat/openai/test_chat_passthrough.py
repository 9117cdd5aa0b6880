"""The gate of a chat stream: what of a provider's bytes may leave."""

import itertools
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.inference_request import InferenceRequest
from gateway.errors import ProviderBadResponse
from gateway.formats.chat.openai.chat import DONE_EVENT, ChatPassthrough
from gateway.formats.wire import sse
from tests.support.scripted_upstream import DONE, delta, event, usage_frame
from tests.support.table_rows import table_rows

USAGE = event(usage_frame())
ERROR = event({"error": {"message": "at https://10.0.0.1/x with sk-abcdefghijklmnopqrst", "code": 500}})
FINISH = event(delta("", "stop"))
EVENTS = st.sampled_from(
    [
        event(delta("a")),
        event(delta('an "error" and [] and [DONE] in the text')),
        event(delta("日本語 \u2028")),
        event(delta("x", usage=usage_frame()["usage"])),
        event(delta("x", usage=None)),
        event({"choices": [], "prompt_filter_results": []}),
        event({"choices": [], "usage": None}),
        event({"error": None, "choices": []}),
        FINISH,
        USAGE,
        b": comment\n\n",
        b"event: ping\n\n",
        b"data:\n\n",
        b'data: {"choices":[],\ndata: "usage":{"prompt_tokens":1}}\n\n',
        b"id: 7\nevent: message\n" + event(delta("z")),
    ]
)
LOOSE = EVENTS | st.just(b"\n")
"""Events with blank lines between them: such a line is nothing, and may leave with the event before it or after it."""


def streams(events: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Whole, broken and overlong streams made of ``events``."""
    return st.builds(
        lambda bom, events, ends: bom + b"".join(events) + b"".join(ends),
        st.sampled_from([b"", sse.BOM]),
        st.lists(events, max_size=6),
        st.sampled_from([[], [DONE], [DONE, DONE], [DONE, event(delta("late"))], [ERROR], [ERROR, DONE], [b"data: {"]]),
    )


CUTS = st.lists(st.integers(0, 2000), max_size=8)


def cut(data: bytes, marks: list[int]) -> list[bytes]:
    places = sorted({mark % (len(data) + 1) for mark in marks})
    return [data[start:end] for start, end in itertools.pairwise([0, *places, len(data)])]


def open_transform(*, strip: bool = False, choices: int = 1) -> ChatPassthrough:
    return ChatPassthrough(InferenceRequest("chat", "m", {}, choices=choices, include_usage=not strip))


def play(transform: ChatPassthrough, pieces: list[bytes]) -> bytes:
    return b"".join([transform.feed(piece) for piece in pieces])


def run(data: bytes, marks: list[int] | None = None, *, strip: bool = False) -> tuple[bytes, ChatPassthrough]:
    transform = open_transform(strip=strip)
    return play(transform, cut(data, marks or [])), transform


def by_the_byte(data: bytes, *, strip: bool = False) -> tuple[bytes, ChatPassthrough]:
    return run(data, list(range(len(data))), strip=strip)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
@given(data=streams(EVENTS), marks=CUTS, strip=st.booleans())
def test_the_same_bytes_leave_at_any_cut(end: bytes, data: bytes, marks: list[int], strip: bool) -> None:
    data = data.replace(b"\n", end)
    whole, transform = run(data, strip=strip)
    pieces, other = run(data, marks, strip=strip)
    assert pieces == whole
    assert (transform.ended, transform.error is None) == (other.ended, other.error is None)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
@given(data=streams(LOOSE), strip=st.booleans())
def test_a_client_reads_the_same_data_at_any_cut(end: bytes, data: bytes, strip: bool) -> None:
    data = data.replace(b"\n", end)
    whole, _ = run(data, strip=strip)
    pieces, _ = by_the_byte(data, strip=strip)

    def read(raw: bytes) -> list[bytes]:
        return [found for item in sse.SseSplitter().split(raw) if (found := sse.parse_data(item)) is not None]

    assert read(pieces) == read(whole)


@given(data=st.lists(LOOSE, max_size=6).map(b"".join), marks=CUTS)
def test_whole_events_leave_byte_for_byte(data: bytes, marks: list[int]) -> None:
    out, transform = run(data + DONE, marks)
    assert out == data + DONE
    assert transform.ended


@given(data=st.lists(LOOSE, max_size=6).map(b"".join), marks=CUTS)
def test_an_event_that_has_not_ended_is_held(data: bytes, marks: list[int]) -> None:
    out, transform = run(data + b'data: {"choices', marks)
    assert data.startswith(out)
    assert not data.removeprefix(out).strip(b"\n")  # a blank line alone ends nothing
    assert not transform.closed


@table_rows("strip", [True, False])
def test_the_usage_frame_leaves_only_for_a_caller_who_asked(strip: bool) -> None:
    data = event(delta("a")) + FINISH + USAGE + DONE
    expected = data.replace(USAGE, b"") if strip else data
    assert run(data, strip=strip)[0] == expected
    assert by_the_byte(data, strip=strip)[0] == expected


@table_rows(
    "kept",
    [
        delta("x", usage=usage_frame()["usage"]),
        delta("", "stop", usage=usage_frame()["usage"]),
        usage_frame() | {"usage": None},
        {"choices": [], "model": "m"},
        {"choices": None, "usage": {"prompt_tokens": 1}},
        {"usage": {"prompt_tokens": 1}},
        {"choices": [{}], "usage": {"prompt_tokens": 1, "x": []}},
        {"choices": [], "usage": []},
        [[], {"choices": [], "usage": {}}],
    ],
)
def test_only_a_frame_of_usage_and_no_choices_is_stripped(kept: Any) -> None:
    data = b"data: " + orjson.dumps(kept) + b"\n\n"
    assert run(data, strip=True)[0] == data


def test_a_frame_that_only_looks_whole_is_not_stripped() -> None:
    data = b'data: {"choices":[],"usage":{1}}\n\n'
    assert run(data, strip=True)[0] == data


@table_rows(
    "broken",
    [
        b'data: {"choices":[{"index":0,"delta":{"content": \n\n',
        event(delta("b"))[:-5] + b"\n\n",
        b"data: <html>\n\n",
        b"data: }{ oops\n\n",
        b"data: [done]\n\n",
    ],
)
def test_an_event_that_was_cut_is_a_fault_and_does_not_leave(broken: bytes) -> None:
    first = event(delta("a"))
    data = first + first + broken + first + DONE
    for out, transform in (
        run(data),
        by_the_byte(data),
        run(data, [len(first), 2 * len(first), 2 * len(first) + len(broken)]),
    ):
        assert out == first + first
        assert transform.error is not None
        assert "not JSON" in transform.error.message


@table_rows("value", [b"[]", b'"x"', b"{} ", b"1"])
def test_json_that_is_no_object_leaves(value: bytes) -> None:
    data = b"data: " + value + b"\n\n"
    assert run(data)[0] == data


BAD_TEXT = [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xc0\xaf"]


@table_rows("text", BAD_TEXT)
@table_rows("place", ["text", "comment", "name"])
def test_an_event_that_is_not_utf8_is_a_fault_and_does_not_leave(text: bytes, place: str) -> None:
    first = event(delta("a"))
    bad = {
        "text": event(delta("HERE")).replace(b"HERE", text),
        "comment": b": " + text + b"\n\n",
        "name": b"event: " + text + b"\n" + first,
    }[place]
    data = first + first + bad + first + DONE
    for out, transform in (
        run(data),
        by_the_byte(data),
        run(data, [len(first), 2 * len(first), 2 * len(first) + len(bad)]),
    ):
        assert out == first + first
        assert transform.error is not None
        assert "not UTF-8" in transform.error.message


@given(text=st.text(min_size=1, max_size=20), marks=CUTS)
def test_a_code_point_may_be_cut_anywhere(text: str, marks: list[int]) -> None:
    data = event(delta("a")) + event(delta(text)) + event(delta(text)) + DONE
    assert run(data, marks)[0] == data


def test_events_without_data_are_noise_and_others_are_not() -> None:
    noise = b": hi\n\n" + b"\n\n" + b"event: ping\n\n" + b"data:\n\n" + b"id: 7\n\n"
    data = event(delta("a")) + noise + event(delta("b")) + noise + event({"choices": []}) + FINISH
    for transform in (run(data)[1], by_the_byte(data)[1], run(data, [50, 100, 150])[1]):
        assert transform.noise == 2 * len(noise)


def test_after_an_event_in_pieces_the_short_way_is_found_again() -> None:
    transform = open_transform()
    data = event(delta("a"))
    assert transform.feed(data) == data
    assert transform.feed(data[:20]) == b""
    assert transform.feed(data[20:]) == data
    for count in (1, 2):
        before = transform.events
        assert transform.feed(data) == data
        assert transform.events == before + 1, count


@table_rows("late", [DONE, event(delta("late")), ERROR, b": bye\n\n", b"garbage", b"\n"])
def test_nothing_leaves_after_the_end_mark(late: bytes) -> None:
    for out, transform in (run(DONE + late), by_the_byte(DONE + late), run(DONE + late, [len(DONE)])):
        assert out == DONE
        assert transform.ended
        assert transform.error is None


@table_rows("mark", [b"data:[DONE]\n\n", b"data: [DONE] \n\n", b"event: end\ndata: [DONE]\n\n"])
def test_the_end_mark_is_known_in_every_spelling(mark: bytes) -> None:
    assert run(mark + b"data: x\n\n")[0] == mark


def test_an_end_mark_inside_a_text_ends_nothing() -> None:
    data = event(delta("[DONE]")) + event(delta("more"))
    out, transform = run(data)
    assert out == data
    assert not transform.closed


@table_rows(
    "error",
    [
        ERROR,
        event({"error": "overloaded"}),
        b"event: error\n" + ERROR,
        event(delta("x") | {"error": {"message": "no"}}),
        b'data: [{"error":{"message":"no"}}]\n\n',
    ],
)
def test_an_error_event_is_a_fault_and_does_not_leave(error: bytes) -> None:
    first = event(delta("a"))
    for out, transform in (run(first + error + DONE), by_the_byte(first + error + DONE)):
        assert out == first
        assert isinstance(transform.error, ProviderBadResponse)
        assert transform.error.phase == "stream"
        assert transform.closed
        assert not transform.ended


def test_the_fault_of_an_error_event_tells_no_address_and_no_key() -> None:
    error = run(ERROR)[1].error
    assert error is not None
    assert "10.0.0.1" not in error.message
    assert "sk-abc" not in error.message


@table_rows(
    "value", [{"error": None}, {"error": {}}, {"choices": [{"delta": {"error": "x"}}]}, {"x": "error"}, ["error"]]
)
def test_the_word_error_alone_is_no_fault(value: Any) -> None:
    data = b"data: " + orjson.dumps(value) + b"\n\n"
    out, transform = run(data)
    assert out == data
    assert transform.error is None


def test_an_event_without_an_end_is_a_fault() -> None:
    transform = open_transform(strip=True)
    piece = b"data: " + b"x" * (1024 * 1024)
    while not transform.closed:
        assert transform.feed(piece) == b""
    assert transform.error is not None
    assert transform.feed(DONE) == b""


def test_a_byte_order_mark_is_dropped_at_the_beginning_only() -> None:
    first = event(delta("a"))
    data = sse.BOM + first + sse.BOM + first
    assert run(data)[0] == first + sse.BOM + first
    assert by_the_byte(data)[0] == first + sse.BOM + first


def test_events_with_data_are_counted_and_comments_and_the_end_are_not() -> None:
    data = b": hi\n\n" + event(delta("a")) + event(delta("b")) + b": hi\n\n" + FINISH + DONE
    assert by_the_byte(data)[1].events == 3
    assert run(data, [6])[1].events == 3
    transform = open_transform()
    play(transform, [event(delta("a")), event(delta("b")) + event(delta("c"))])
    assert transform.events == 3


def finish(*events: bytes, choices: int = 1) -> bytes:
    transform = open_transform(choices=choices)
    play(transform, list(events))
    rest = transform.finish()
    assert transform.ended
    return rest


def test_after_the_end_mark_nothing_is_to_be_written() -> None:
    assert finish(event(delta("a")), DONE) == b""


def test_a_mark_without_its_blank_line_is_completed() -> None:
    for mark in (b"data: [DONE]", b"data: [DONE]\n", b"data:[DONE]\r\n"):
        assert finish(event(delta("a")), mark) == DONE_EVENT


def test_a_missing_mark_is_added_where_every_choice_has_finished() -> None:
    assert finish(event(delta("a")), FINISH) == DONE_EVENT
    assert finish(FINISH, USAGE, b"\n") == DONE_EVENT
    second = event({"choices": [{"index": 1, "delta": {}, "finish_reason": "length"}]})
    assert finish(FINISH, second, choices=2) == DONE_EVENT


@table_rows(
    ("events", "choices"),
    [
        ([], 1),
        ([event(delta("a"))], 1),
        ([FINISH], 2),
        ([FINISH, FINISH], 2),
        ([FINISH, b"data: {"], 1),
        ([b": only a comment\n\n"], 1),
        ([event(delta("a")), b"data: [DON"], 1),
        ([event({"choices": [{"index": 0, "finish_reason": None}]})], 1),
    ],
)
def test_a_stream_that_was_cut_is_a_fault_and_gets_no_mark(events: list[bytes], choices: int) -> None:
    with pytest.raises(ProviderBadResponse):
        finish(*events, choices=choices)


def test_what_the_gate_adds_is_the_end_mark() -> None:
    assert DONE_EVENT == DONE == b"data: [DONE]\n\n"


@table_rows(
    "chunk",
    [
        b'data: {"choices":[{"index":0,"delta":{"content":"a","tool_calls":[]}}],"error":null}\n\n',
        b'data: {"choices" : [{"index":0,"delta":{"content":"a"}}], "error" : null, "usage":{"prompt_tokens":1}}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":"\\"choices\\":[]"}}],"x":[]}\n\n',
    ],
)
def test_a_chunk_that_only_looks_like_an_error_or_a_usage_frame_leaves(chunk: bytes) -> None:
    transform = open_transform(strip=True)
    assert transform.feed(chunk) == chunk
    assert (transform.error, transform.events) == (None, 1)


@table_rows("error", [b'"no"', b' {"message":"no"}', b'\n{"message":"no"}'])
def test_an_error_is_found_behind_any_spacing(error: bytes) -> None:
    transform = open_transform(strip=True)
    data = b'data: {"error" :' + error.replace(b"\n", b"\t") + b"}\n\n"
    assert transform.feed(data) == b""
    assert transform.error is not None


CHUNK = event(delta("a"))
OPENING = CHUNK[: CHUNK.index(b"[{") + 2]


@table_rows("strip", [True, False])
@table_rows(
    "other",
    [
        USAGE,
        ERROR,
        DONE,
        CHUNK * 2,
        CHUNK + DONE,
        CHUNK + USAGE,
        CHUNK[:-1],
        CHUNK[:-2] + b"\r\r" + DONE,
        CHUNK[:-2] + b"\nevent: error\n\n",
        OPENING + b'],"usage":{}}\n\n',
        OPENING + b'}],"error":{"message":"no"}}\n\n',
        OPENING + b"\n\n",
        b"event: error\n" + CHUNK,
        b"x" + CHUNK,
        event(delta("a", usage={})),
        event({"id": "another", **delta("a")}),
    ],
)
def test_what_comes_after_chunks_that_begin_alike_is_looked_at_as_at_the_first(other: bytes, strip: bool) -> None:
    data = CHUNK + CHUNK + other + CHUNK
    transform = open_transform(strip=strip)
    out = play(transform, [CHUNK, CHUNK, other, CHUNK])
    expected, by_bytes = by_the_byte(data, strip=strip)
    assert out == expected
    assert (transform.events, transform.ended, transform.error is None) == (
        by_bytes.events,
        by_bytes.ended,
        by_bytes.error is None,
    )


@table_rows("piece", [b"\n", b"\n\n", b"\n\n\n", b": ping\n\n"])
def test_what_says_nothing_is_no_event(piece: bytes) -> None:
    transform = ChatPassthrough(InferenceRequest("chat", "m", {}, stream=True))
    for _ in range(3):
        transform.feed(piece)
    assert transform.events == 0
    assert transform.parse_usage().prompt_tokens == 0


def test_a_comment_in_one_piece_with_a_chunk_is_not_counted() -> None:
    transform = ChatPassthrough(InferenceRequest("chat", "m", {}, stream=True))
    together = event(delta("a")) + b": ping\n\n\n\n" + event(delta("b"))
    assert transform.feed(together) == together
    assert transform.events == 2


def test_a_usage_frame_is_taken_out_however_its_brackets_are_written() -> None:
    transform = ChatPassthrough(InferenceRequest("chat", "m", {}, stream=True))
    frame = orjson.dumps(usage_frame()).replace(b'"choices":[]', b'"choices": [ ]')
    assert transform.feed(b"data: " + frame + b"\n\n") == b""
