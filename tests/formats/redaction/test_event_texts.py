"""Events of a stream are split and parsed alike, whatever ends their lines, and their texts are joined by place."""

import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.formats.redaction.event_texts import describe_texts, join_texts, parse_event, split_events

BLANK_LINE = re.compile(rb"(?:\r\n|\n|\r){2}")


@given(st.lists(st.sampled_from([b"\n", b"\n\n", b"\r", b"\r\n", b"data: 1", b"a"]), max_size=12).map(b"".join))
def test_an_event_ends_with_the_first_blank_line(stream: bytes) -> None:
    ends = [match.end() for match in BLANK_LINE.finditer(stream)]
    events = [stream[start:end] for start, end in pairwise([0, *ends, len(stream)]) if start < end]
    assert split_events(stream) == events


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
