"""Framing: every cut of an answer reads the same, its end is known to the byte, and chunks may pass as they lie."""

from itertools import pairwise

import attrs
from httptools import HttpParserError, HttpResponseParser
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.upstream.response_parser import (
    MAX_FIELD_BYTES,
    MAX_FIELDS,
    MAX_HEAD_BYTES,
    MAX_PUSH_BYTES,
    Headers,
    ResponseParser,
    read_chunks,
)
from tests.support.scripted_upstream import LAST_CHUNK, SSE_HEAD, answer, chunk
from tests.support.table_rows import table_rows

OK = b"HTTP/1.1 200 OK\r\n"


@attrs.define
class Seen:
    """What came out of a framing, piece by piece."""

    payloads: list[bytes] = attrs.field(factory=list)
    states: list[tuple[bool, bool, bool, bool]] = attrs.field(factory=list)
    framed: list[tuple[bytes, bytes]] = attrs.field(factory=list)

    @property
    def body(self) -> bytes:
        return b"".join(self.payloads)


def read_all(pieces: list[bytes], *, fast: bool = False) -> tuple[Seen, ResponseParser]:
    """Take every piece as a connection does, with or without the short way."""
    framing, seen = ResponseParser(), Seen()
    for piece in pieces:
        payload = read_chunks(piece) if fast and framing.at_chunk else None
        if payload is None:
            payload = framing.feed(piece)
        else:
            seen.framed.append((piece, payload))
        seen.payloads.append(payload)
        seen.states.append((framing.head_complete, framing.complete, framing.excess, framing.broken is not None))
        if framing.broken is not None:
            break
    return seen, framing


def cut(data: bytes, at: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in at)})
    return [data[start:end] for start, end in pairwise(edges)]


payloads = st.one_of(
    st.binary(max_size=40), st.sampled_from([b"data: [DONE]\n\n", b"\r\n", b"0\r\n\r\n", b"5\r\nhello\r\n"])
)
size_lines = st.sampled_from([b"%x\r\n", b"%X\r\n", b"0%x\r\n", b"%08x\r\n", b"%x;a=b\r\n", b"%x \r\n"])


@st.composite
def chunked(draw: st.DrawFn) -> tuple[bytes, bytes, list[int]]:
    """A body in chunks, what is in it, and where its chunks begin."""
    raw, body, edges = b"", b"", []
    for payload in draw(st.lists(payloads.filter(bool), max_size=6)):
        edges.append(len(raw))
        raw += draw(size_lines) % len(payload) + payload + b"\r\n"
        body += payload
    edges.append(len(raw))
    trailers = draw(st.sampled_from([b"", b"", b"X: y\r\n", b"X:\r\n", b"X: 0\r\n"]))
    return raw + b"0\r\n" + trailers + b"\r\n", body, edges


cuts = st.lists(st.integers(0, 400), max_size=8)


class Reference:
    """llhttp alone, all in one piece."""

    def __init__(self, data: bytes) -> None:
        self.body = b""
        self.fields: list[tuple[bytes, bytes]] = []
        self.head_complete = self.complete = self.broken = False
        try:
            parser = HttpResponseParser(self)
            parser.set_dangerous_leniencies(lenient_spaces_after_chunk_size=True)
            parser.feed_data(data)
        except HttpParserError:
            self.broken = not self.complete

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        self.head_complete = True

    def on_body(self, data: bytes) -> None:
        if not self.complete:
            self.body += data

    def on_message_complete(self) -> None:
        self.complete = True


@settings(max_examples=60)
@given(chunked(), cuts, st.booleans())
def test_any_cut_of_a_chunked_body_reads_the_same_on_the_short_way(
    made: tuple[bytes, bytes, list[int]], at: list[int], whole: bool
) -> None:
    raw, body, edges = made
    pieces = [SSE_HEAD, *cut(raw, edges if whole else [*at, *edges[::2]])]
    fast, framing = read_all(pieces, fast=True)
    slow, _ = read_all(pieces)
    assert fast.payloads == slow.payloads
    assert fast.states == slow.states
    assert fast.body == body
    assert (framing.complete, framing.excess, framing.keep_alive) == (True, False, True)


@settings(max_examples=60)
@given(chunked(), cuts, st.integers(0, 400), st.one_of(st.binary(min_size=1, max_size=4), st.just(b"_"), st.just(b"+")))
@example((b"5\r\nhello\r\n0\r\n\r\n", b"hello", [0, 10]), [10], 0, b"0x")
@example((b"1\r\nh\r\n0\r\n\r\n", b"h", [0, 6]), [6], 0, b" ")
@example((b"11\r\nhhhhhhhhhhhhhhhhh\r\n0\r\n\r\n", b"h" * 17, [0, 23]), [24], 1, b"_")
def test_garbage_in_a_chunked_body_is_found_at_the_same_place_on_the_short_way(
    made: tuple[bytes, bytes, list[int]], at: list[int], place: int, garbage: bytes
) -> None:
    raw, _, edges = made
    place %= len(raw)
    raw = raw[:place] + garbage + raw[place:]
    pieces = [SSE_HEAD, *cut(raw, [*at, *edges[::2]])]
    fast, framing = read_all(pieces, fast=True)
    slow, _ = read_all(pieces)
    assert fast.payloads == slow.payloads
    assert fast.states == slow.states
    alone = Reference(SSE_HEAD + raw)
    assert (fast.body, framing.complete, framing.broken is not None) == (alone.body, alone.complete, alone.broken)


@given(st.lists(payloads.filter(bool), min_size=1, max_size=5), st.booleans())
def test_a_piece_that_is_passed_on_as_it_lies_is_its_payload_and_no_more(parts: list[bytes], upper: bool) -> None:
    line = b"%X\r\n" if upper else b"%x\r\n"
    piece = b"".join(line % len(part) + part + b"\r\n" for part in parts)
    seen, _ = read_all([SSE_HEAD, piece], fast=True)
    assert seen.framed == [(piece, b"".join(parts))]
    assert Reference(SSE_HEAD + piece + LAST_CHUNK).body == b"".join(parts)


@table_rows(
    "piece",
    [
        b"", b"\n", b"\r\n", b"5", b"5\r\n", b"5\r\nhell\r\n", b"5\r\nhello\r", b"5\r\nhello\n\r", b"5\r\nhelloX\n",
        b"0\r\n\r\n", b"5\r\nhello\r\n0\r\n\r\n", b"00\r\n\r\n", b"+5\r\nhello\r\n", b"-5\r\nhello\r\n",
        b" 5\r\nhello\r\n", b"5 \r\nhello\r\n", b"0x5\r\nhello\r\n", b"1_1\r\nhhhhhhhhhhhhhhhhh\r\n",
        b"5;a=b\r\nhello\r\n", b"5\nhello\r\n", b"000000005\r\nhello\r\n", b"5\r\nhello\r\nx", b"\t5\r\nhello\r\n",
        b"5\r\nhello\r\n5\r\nhell", b"5\r\nhello\r\n5\r\nhelloXX", b"\xb25\r\nhello\r\n",
    ],
)  # fmt: skip
def test_only_whole_chunks_written_plainly_take_the_short_way(piece: bytes) -> None:
    assert read_chunks(piece) is None


@table_rows("size", [1, 15, 16, 17, 255, 256, 4095, 4096, MAX_PUSH_BYTES - 12])
def test_a_chunk_of_any_size_takes_the_short_way(size: int) -> None:
    payload = b"x" * size
    assert read_chunks(chunk(payload)) == payload
    assert read_chunks(b"%08X\r\n%b\r\n" % (size, payload)) == payload


def test_several_chunks_take_the_short_way() -> None:
    assert read_chunks(chunk(b"one") + chunk(b"two" * 10_000)) == b"one" + b"two" * 10_000


@table_rows("data", [chunk(b"x" * (MAX_PUSH_BYTES - 7)), chunk(b"x" * 1_000) * 70])
def test_what_is_pushed_in_several_turns_takes_the_long_way(data: bytes) -> None:
    assert len(data) > MAX_PUSH_BYTES
    assert read_chunks(data) is None


bodies = st.one_of(payloads, st.just(b"\r\n\r\n"), st.just(b"{}\n"))


@st.composite
def answers(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A whole answer and its body, in any framing that says where it ends."""
    early = draw(
        st.sampled_from([b"", b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n"])
    )
    if draw(st.booleans()):
        raw, body, _ = draw(chunked())
        return early + SSE_HEAD + raw, body
    if draw(st.integers(0, 5)) == 0:
        return early + draw(
            st.sampled_from([b"HTTP/1.1 204 No\r\n\r\n", b"HTTP/1.1 304 No\r\nContent-Length: 9\r\n\r\n"])
        ), b""
    body = draw(bodies)
    return early + answer(body), body


@settings(max_examples=80)
@given(
    answers(),
    cuts,
    st.one_of(
        st.just(b""), st.binary(min_size=1, max_size=6), st.sampled_from([b"\r\n", b"\n", b"\r", OK, answer(b"evil")])
    ),
)
@example((answer(b"\r\n\r\n"), b"\r\n\r\n"), [], b"\r\n")
@example((SSE_HEAD + b"0\r\n\r\n", b""), [len(SSE_HEAD) + 3], b"\r\n")
@example((SSE_HEAD + b"1\r\nx\r\n0\r\n\r\n", b"x"), [len(SSE_HEAD) + 7], b"\n")
@example((SSE_HEAD + b"0\r\n\r\n", b""), [], answer(b""))
def test_where_an_answer_ends_is_known_to_the_byte(made: tuple[bytes, bytes], at: list[int], extra: bytes) -> None:
    raw, body = made
    seen, framing = read_all(cut(raw + extra, at))
    assert (seen.body, framing.complete, framing.excess) == (body, True, bool(extra))
    assert framing.broken is None


@given(st.lists(answers(), min_size=2, max_size=4), cuts)
def test_one_framing_reads_answers_one_after_the_other(row: list[tuple[bytes, bytes]], at: list[int]) -> None:
    framing = ResponseParser()
    for raw, body in row:
        framing.begin()
        assert b"".join(framing.feed(piece) for piece in cut(raw, at)) == body
        assert (framing.complete, framing.excess) == (True, False)


@settings(max_examples=80)
@given(
    st.lists(st.binary(max_size=80), max_size=5),
    st.sampled_from([b"", OK, SSE_HEAD, SSE_HEAD[:-2], b"HTTP/1.1 100 C\r\n"]),
)
def test_whatever_comes_nothing_is_raised(pieces: list[bytes], head: bytes) -> None:
    framing = ResponseParser()
    framing.feed(head)
    for piece in pieces:
        assert isinstance(framing.feed(piece), bytes)
        if framing.broken is not None:
            break
    framing.end()


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    seen, framing = read_all([OK + b"\r\n", b"hel", b"lo"])
    assert (seen.body, framing.complete) == (b"hello", False)
    framing.end()
    assert (framing.complete, framing.keep_alive) == (True, False)


@table_rows("head", [OK + b"Content-Length: 2\r\n\r\n", SSE_HEAD, OK, b""], ids=["length", "chunked", "head", "none"])
def test_any_other_body_does_not(head: bytes) -> None:
    _, framing = read_all([head])
    framing.end()
    assert not framing.complete


@table_rows(
    ("head", "kept"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n", True),
    ],
)
def test_whether_the_connection_stays_open_is_the_providers_word(head: bytes, kept: bool) -> None:
    _, framing = read_all([head])
    assert (framing.complete, framing.keep_alive) == (True, kept)


@table_rows(
    "raw",
    [
        OK + b"X: a\r\n folded\r\n\r\n",
        OK + b"X : a\r\n\r\n",
        OK + b"X: a\nY: b\r\n\r\n",
        OK + b"X: \x00\r\n\r\n",
        OK + b"X: " + b"x" * MAX_FIELD_BYTES + b"\r\n\r\n",
        OK + b"X: y\r\n" * (MAX_FIELDS + 1) + b"\r\n",
        OK + b"".join(b"X-%d: %b\r\n" % (index, b"y" * 8000) for index in range(9)) + b"\r\n",
        OK + b"Transfer-Encoding: gzip\r\n\r\n",
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\t\r\n\r\n",
        OK + b"Transfer-Encoding:  \t chunked \t \r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        OK + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\n\r\n",
        b"HTTP/1.1 099 Odd\r\n\r\n",
        b"\r\n\r\n" + answer(b"hello"),
        b"HTTP/1.1 100 Continue\r\n\r\n" * 17 + answer(b"hello"),
    ],
    ids=[
        "folding", "space", "bare lf", "nul", "long field", "many fields", "long head", "coding", "codings",
        "tab", "tabs",
        "coding twice", "length twice", "upgrade", "switch", "below 100", "empty lines", "interim",
    ],
)  # fmt: skip
@table_rows("step", [1000, 7])
def test_a_head_that_is_not_to_be_trusted_breaks(raw: bytes, step: int) -> None:
    _, framing = read_all([raw[start : start + step] for start in range(0, len(raw), step)])
    assert framing.broken is not None
    assert not framing.head_complete


@table_rows("head", [OK + b"X: ", SSE_HEAD + b"5;", SSE_HEAD + b"0\r\nX: "], ids=["head", "extension", "trailer"])
def test_what_is_no_body_has_an_end(head: bytes) -> None:
    framing = ResponseParser()
    framing.feed(head)
    for _ in range(MAX_HEAD_BYTES // 1000 + 2):
        assert framing.feed(b"y" * 1000) == b""
    assert framing.broken is not None


def test_sixteen_interim_answers_are_passed_over() -> None:
    seen, framing = read_all([b"HTTP/1.1 100 Continue\r\nX-Early: y\r\n\r\n" * 16 + answer(b"hello")])
    assert (seen.body, framing.complete) == (b"hello", True)
    assert "x-early" not in Headers(framing.head)


def test_fields_are_found_whatever_their_case_and_the_first_of_two_counts() -> None:
    _, framing = read_all([OK + b"X-Name:  caf\xe9\t \r\nX-Empty:\r\nX-NAME: two\r\nContent-Length: 0\r\n\r\n"])
    fields = Headers(framing.head)
    assert fields["x-nAmE"] == "caf\xe9"
    assert fields["X-Empty"] == ""
    assert fields.get("Café", "none") == fields.get("\ud800", "none") == "none"
    assert list(fields) == ["x-name", "x-empty", "content-length"]
    assert len(fields) == 3


odd = st.text("aB-:;,= \t\r\n\x00\x0b\x85\xe9", max_size=6)
names = st.one_of(odd, st.sampled_from(["Content-Length", "content-encoding", "TRANSFER-ENCODING", "X", "x"]))
values = st.one_of(odd, st.sampled_from(["0", "5", " 5\t", "chunked", "Chunked ", "gzip", "a\r\n b", "a\r\nX: b"]))


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(names, st.sampled_from([":", ": ", ":\t "]), values, st.sampled_from(["\r\n"] * 9 + ["\n", "\r"]))
    ),
    st.sampled_from(
        ["HTTP/1.1 200 OK\r\n", "HTTP/1.1 200\r\n", "\r\nHTTP/1.1 200 a: b\r\n", "HTTP/1.1 200 \n", "ICE/1.0 200 \r\n"]
    ),
    cuts,
)
@example([("A", ": ", "b", "\r\n")] * 2, "\r\nHTTP/1.1 200 a: b\r\n", [])
def test_the_fields_of_a_head_are_those_that_llhttp_would_tell(
    lines: list[tuple[str, str, str, str]], start: str, at: list[int]
) -> None:
    head = (start + "".join("".join(line) for line in lines) + "\r\n").encode("latin-1")
    alone, (_, framing) = Reference(head), read_all(cut(head, at))
    if framing.head_complete:
        fields = Reference(head[: head.index(b"\r\n\r\n") + 4]).fields
        reported = dict(reversed(fields))
        assert alone.head_complete
        assert dict(Headers(framing.head)) == {
            name.decode("latin-1"): raw.decode("latin-1") for name, raw in reported.items()
        }
        assert (framing.length is None) == (b"content-length" not in reported)
        assert framing.chunked == (b"transfer-encoding" in reported)
        codings = [raw for name, raw in fields if name == b"content-encoding"]
        assert framing.encoding == (None if len(codings) > 1 else b"".join(codings).strip().lower().decode("latin-1"))
    elif alone.head_complete:
        assert framing.broken is not None


@table_rows(
    ("lines", "taken"),
    [
        (b"X:y\r\n" * MAX_FIELDS, True),
        (b"X:" + b"y" * (MAX_FIELD_BYTES - 1) + b"\r\n", True),
        (b"X:  " + b"y" * (MAX_FIELD_BYTES - 1) + b"\r\n", True),
        (b"X:" + b"y" * MAX_FIELD_BYTES + b"\r\n", False),
        (b"X: " + b"y" * MAX_FIELD_BYTES + b"\r\n", False),
        ((b"X:" + b"y" * 8187 + b"\r\n") * 8, True),
        ((b"X:" + b"y" * 8187 + b"\r\n") * 8 + b"X:\r\n", False),
        (b"a:\r\n" * (MAX_FIELDS + 1), False),
    ],
)
@table_rows("interim", [False, True])
def test_how_much_a_head_may_be_is_known_to_the_byte(lines: bytes, taken: bool, interim: bool) -> None:
    head = b"HTTP/1.1 103 Early\r\n" + lines + b"\r\n" if interim else OK + lines + b"\r\n"
    _, framing = read_all([head + (answer(b"hello") if interim else b"x")])
    assert (framing.head_complete, framing.broken is None) == (taken, taken)


@table_rows(
    ("lines", "encoding"),
    [
        (b"", ""),
        (b"Content-Encoding: identity\r\n", ""),
        (b"Content-Encoding: GZIP \r\n", "gzip"),
        (b"Content-Encoding: gzip\r\nContent-Encoding: gzip\r\n", None),
    ],
)
def test_the_encoding_of_a_body_is_known_at_its_head(lines: bytes, encoding: str | None) -> None:
    _, framing = read_all([OK + lines + b"Transfer-Encoding: chunked\r\n\r\n"])
    assert framing.encoding == encoding
    assert framing.at_chunk == (encoding == "")
