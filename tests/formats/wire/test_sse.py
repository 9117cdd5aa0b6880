"""Events as bytes."""

import re
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.formats.wire import sse
from gateway.formats.wire.sse import EventTooLong, SseSplitter, is_utf8, parse_data
from tests.support.table_rows import table_rows

STREAMY = st.text("a:\r\n d", max_size=60).map(str.encode)
LINES = st.lists(st.sampled_from([b"data: one", b"data:two", b": note", b"event: x", b"id", b"data"]), min_size=1)


def cut(data: bytes, marks: list[int]) -> list[bytes]:
    """``data`` in pieces, cut at ``marks``."""
    places = sorted({mark % (len(data) + 1) for mark in marks})
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


@given(STREAMY, st.lists(st.integers(0, 100), max_size=8))
def test_events_and_what_waits_are_what_came_at_any_cut(data: bytes, marks: list[int]) -> None:
    splitter = SseSplitter()
    events: list[bytes] = []
    for piece in cut(data, marks):
        events += splitter.split(piece)
    assert splitter.has_pending == (b"".join(events) != data)
    assert b"".join(events) + splitter.take() == data
    assert not splitter.has_pending


@given(st.lists(LINES, max_size=5), st.sampled_from([b"\n", b"\r\n", b"\r"]), st.lists(st.integers(0, 400), max_size=8))
def test_the_same_events_come_out_at_any_cut(blocks: list[list[bytes]], end: bytes, marks: list[int]) -> None:
    written = [b"".join(line + end for line in lines) + end for lines in blocks]
    splitter = SseSplitter()
    events = [event for piece in cut(b"".join(written), marks) for event in splitter.split(piece)]
    assert [parse_data(event) for event in events] == [parse_data(event) for event in written]


@given(st.lists(LINES, max_size=5), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_events_are_split_at_blank_lines_and_keep_their_ends(blocks: list[list[bytes]], end: bytes) -> None:
    written = [b"".join(line + end for line in lines) + end for lines in blocks]
    assert SseSplitter().split(b"".join(written)) == written


@given(STREAMY, st.lists(st.integers(0, 100), max_size=8))
def test_what_waits_never_holds_a_whole_event(data: bytes, marks: list[int]) -> None:
    splitter = SseSplitter()
    for piece in cut(data, marks):
        splitter.split(piece)
    rest = splitter.take()
    assert b"\n\n" not in rest
    assert b"\r\n\r\n" not in rest
    assert b"\r\r" not in rest


def test_an_event_without_an_end_is_refused_and_not_kept_for_ever() -> None:
    splitter = SseSplitter()
    piece = b"x" * (1024 * 1024)
    for _ in range(sse.MAX_EVENT_BYTES // len(piece)):
        assert splitter.split(piece) == []
    with pytest.raises(EventTooLong):
        splitter.split(b"x")


def test_many_events_may_be_longer_together_than_one() -> None:
    splitter = SseSplitter()
    event = b"data: " + b"x" * (1024 * 1024) + b"\n\n"
    assert sum(len(splitter.split(event)) for _ in range(20)) == 20


def test_a_limit_is_the_splitters_own() -> None:
    splitter = SseSplitter(10)
    assert splitter.split(b"data: 12\n\ndata: 1234") == [b"data: 12\n\n"]
    with pytest.raises(EventTooLong):
        splitter.split(b"5")


def test_a_long_event_is_looked_at_once_in_however_many_pieces_it_comes() -> None:
    """Told by what is searched: its size at the most, and a few bytes before each piece."""
    splitter = SseSplitter()
    held = splitter._buffer = Counted()
    piece = b"x" * 1_000
    for _ in range(2_000):
        splitter.split(piece)
    assert len(held) == 2_000_000
    assert held.searched <= 2_000 * (len(piece) + 8)
    (event,) = splitter.split(b"\n\n")
    assert len(event) == 2_000_002


class Counted(bytearray):
    """Counts the bytes that are looked through for an end."""

    searched = 0

    def find(self, sub: Any, start: Any = 0, *rest: Any) -> int:
        self.searched += len(self) - start
        return super().find(sub, start, *rest)


@table_rows("piece", [b"data: y\n", b"x\r", b"{", b"[", b","])
def test_a_large_event_of_too_many_parts_is_refused(piece: bytes) -> None:
    splitter = SseSplitter()
    splitter.split(b"data: " + b"x" * 300_000)
    with pytest.raises(EventTooLong, match="too many parts"):
        splitter.split(piece * 1_100_000)


@table_rows("data", [b'data: {"a":"' + b"QUJD" * 3_000_000 + b'"}', b"data: [" + b"1," * 900_000 + b"1]"])
def test_a_large_event_of_few_parts_is_whole(data: bytes) -> None:
    splitter = SseSplitter()
    for start in range(0, len(data), 60_000):
        assert splitter.split(data[start : start + 60_000]) == []
    assert splitter.split(b"\n\n") == [data + b"\n\n"]


@table_rows("pieces", [[b"x"] * 100_000, [b"xy"] * 100_000])
def test_an_event_in_tiny_pieces_takes_no_more_memory_than_its_bytes(pieces: list[bytes]) -> None:
    splitter = SseSplitter()
    tracemalloc.start()
    for piece in pieces:
        splitter.split(piece)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 3 * sum(map(len, pieces))


@given(st.binary(max_size=40) | st.text(max_size=20).map(str.encode))
def test_utf8_is_what_can_be_decoded(data: bytes) -> None:
    assert is_utf8(data) == (data.decode(errors="replace").encode() == data)


@table_rows(
    ("event", "data"),
    [
        (b"data: x\n\n", b"x"),
        (b"data:x\n\n", b"x"),
        (b"data:  x\n\n", b" x"),
        (b"data: x\r\n\r\n", b"x"),
        (b"data: x\r\r", b"x"),
        (b"data: a\ndata: b\n\n", b"a\nb"),
        (b"event: e\ndata: a\nid: 1\ndata:b\n\n", b"a\nb"),
        (b"data: a\r\ndata: b\r\n\r\n", b"a\nb"),
        (b"data\n\n", b""),
        (b"data:\n\n", b""),
        (b"data:\ndata:\n\n", b"\n"),
        (b": comment\n\n", None),
        (b":\n\n", None),
        (b"event: ping\n\n", None),
        (b"dataset: x\n\n", None),
        (b" data: x\n\n", None),
        (b"\n\n", None),
        (b"", None),
    ],
)
def test_data_is_read_as_the_standard_says(event: bytes, data: bytes | None) -> None:
    assert parse_data(event) == data


def test_the_keep_alive_is_a_whole_event_without_data() -> None:
    assert SseSplitter().split(sse.KEEPALIVE) == [sse.KEEPALIVE]
    assert parse_data(sse.KEEPALIVE) is None


@given(st.text("ad:\r\n t", max_size=40).map(str.encode))
def test_every_line_end_is_one_to_the_data_of_an_event(event: bytes) -> None:
    lines = re.split(rb"\r\n|\n|\r", event)
    found = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
    found_bare = [b"" for line in lines if line == b"data"]
    assert (parse_data(event) is None) == (not found and not found_bare)
    if not found_bare:
        assert (parse_data(event) or b"") == b"\n".join(found)


@table_rows(
    ("event", "named"),
    [
        (b"event: error\ndata: {}\n\n", True),
        (b"data: {}\r\nevent:error\r\n\r\n", True),
        (b": a comment\revent: error\rdata: {}\r\r", True),
        (b'data: "event: error"\n\n', False),
        (b"event: errors\ndata: {}\n\n", False),
        (b"event: x\ndata: event: error\n\n", False),
    ],
)
def test_an_error_is_an_event_of_that_name(event: bytes, named: bool) -> None:
    assert sse.is_error_event(event) is named
