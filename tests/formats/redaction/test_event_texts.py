"""Events of a stream are split and parsed alike, whatever ends their lines, and their texts are joined by place."""

import json
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain import exact_json
from gateway.formats.redaction.event_texts import describe_texts, join_texts, parse_event, split_events

BLANK_LINE = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
NAMES = st.sampled_from(["content", "index", "id", "type", "choices", "delta", "item_id", "x"])
NUMBERS = st.sampled_from(["0", "-0", "7", "1e999", "12345678901234567890123", "0.1234567890123456789", "-0.0"])
TEXTS = st.text('a1\\\n\r:" \ud800', max_size=4)
VALUES: st.SearchStrategy[str] = st.recursive(
    NUMBERS | st.sampled_from(["null", "true"]) | TEXTS.map(json.dumps),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
        | st.lists(st.tuples(NAMES, inner), max_size=4, unique_by=lambda item: item[0]).map(
            lambda items: "{" + ",".join(f'"{name}":{value}' for name, value in items) + "}"
        )
    ),
    max_leaves=8,
)
FRAMES = st.sampled_from(
    ["data: {}\n\n", "data:{}\n\n", "data: {}\r\n\r\n", "event: x\ndata: {}\n\n", "event: x\r\ndata: {}\r\n\r\n"]
)


@given(st.lists(st.sampled_from([b"\n", b"\n\n", b"\r", b"\r\n", b"data: 1", b"a"]), max_size=12).map(b"".join))
def test_an_event_ends_with_the_first_blank_line(stream: bytes) -> None:
    ends = [match.end() for match in BLANK_LINE.finditer(stream)]
    events = [stream[start:end] for start, end in pairwise([0, *ends, len(stream)]) if start < end]
    assert split_events(stream) == events


@given(st.lists(st.tuples(FRAMES, VALUES), min_size=1, max_size=4))
def test_each_event_is_parsed_exactly(events: list[tuple[str, str]]) -> None:
    stream = "".join(frame.format(value) for frame, value in events).encode()
    expected = [exact_json.loads(value.encode()) for _, value in events]
    found = [parse_event(raw).data for raw in split_events(stream)]
    assert [exact_json.dumps(data) for data in found] == [
        exact_json.dumps(data if isinstance(data, dict | list) else None) for data in expected
    ]


@pytest.mark.parametrize("line_end", [b"\n", b"\r", b"\r\n"])
@pytest.mark.parametrize(
    ("lines", "data"),
    [
        ([b'data: {"a":"b"}'], {"a": "b"}),
        ([b'data:{"a":"b"}'], {"a": "b"}),
        ([b'data:  ["a"] '], ["a"]),
        ([b"event: delta", b'data: {"a":"b"}'], {"a": "b"}),
        ([b'data: {"a":', b'data: "b"}'], {"a": "b"}),
        ([b'data: {"a":"b"}', b": comment"], {"a": "b"}),
        ([b": comment"], None),
        ([b"data: [DONE]"], None),
        ([b"data: 1"], None),
        ([b"data:"], None),
        ([b'dataset: {"a":"b"}'], None),
    ],
)
@pytest.mark.parametrize("ends", [2, 1, 0])
def test_the_data_of_an_event_is_parsed(lines: list[bytes], data: Any, line_end: bytes, ends: int) -> None:
    raw = line_end.join(lines) + ends * line_end
    event = parse_event(raw)
    assert (event.raw, event.data) == (raw, data)


@pytest.mark.parametrize("rest", [b":", b"a", b"event: b"])
def test_the_beginning_of_another_line_is_no_data(rest: bytes) -> None:
    raw = b'data: {"a":"b"}\n' + rest
    assert parse_event(raw).data == {"a": "b"}


def test_texts_are_joined_by_their_places() -> None:
    stream = (
        b'data: {"id":"x1","index":3,"choices":[{"index":1,"delta":{"content":"a","tool":["b","c"]}},{"text":"d"}]}\n\n'
        b'data: {"id":"x1","index":3,"choices":[{"text":"e","logprobs":{"content":"f"}}],"n":[["g"]]}\n\n'
        b'data: ["h",{"index":7,"text":"i"}]\n\n'
        b'data: {"type":"delta","item_id":"x2","part":{"type":"text","content_index":2,"text":"j"},"text":"k"}\n\n'
    )
    texts = join_texts([parse_event(raw) for raw in split_events(stream)])
    marks = [{name for name in text.place if isinstance(name, tuple)} for text in texts]
    assert list(zip(describe_texts(stream), marks, strict=True)) == [
        (("choices.1.text", "d"), {("index", 3)}),
        (("choices.1.delta.content", "a"), {("index", 3)}),
        (("choices.1.delta.tool.0", "b"), {("index", 3)}),
        (("choices.1.delta.tool.1", "c"), {("index", 3)}),
        (("n.0.0", "g"), {("index", 3)}),
        (("choices.0.text", "e"), {("index", 3)}),
        (("0", "h"), set()),
        (("7.text", "i"), set()),
        (("text", "k"), {("type", "delta"), ("item_id", "x2")}),
        (("part.text", "j"), {("type", "delta"), ("item_id", "x2"), ("content_index", 2)}),
    ]
