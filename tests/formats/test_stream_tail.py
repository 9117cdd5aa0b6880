"""The tap: bounded references to the beginning and the end."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.formats.stream_tail import HEAD_BYTES, SLACK_BYTES, TAIL_BYTES, HeadTailBuffer

PIECES = st.lists(st.integers(0, 9_000) | st.just(20_000), max_size=30)


def make_pieces(sizes: list[int]) -> list[bytes]:
    return [bytes([65 + index % 26]) * size for index, size in enumerate(sizes)]


@given(PIECES)
def test_head_and_tail_are_the_two_ends_of_what_flowed_past(sizes: list[int]) -> None:
    tap = HeadTailBuffer()
    pieces = make_pieces(sizes)
    for piece in pieces:
        tap.feed(piece)
    whole = b"".join(pieces)
    assert tap.size == len(whole)
    assert whole.startswith(tap.head)
    assert whole.endswith(tap.tail)
    assert len(tap.head) >= min(HEAD_BYTES, len(whole))
    assert len(tap.tail) >= min(TAIL_BYTES, len(whole))


@given(PIECES)
def test_no_more_is_kept_than_the_bounds_and_one_piece(sizes: list[int]) -> None:
    tap = HeadTailBuffer()
    longest = max(sizes, default=0)
    for piece in make_pieces(sizes):
        tap.feed(piece)
        assert len(tap.head) < HEAD_BYTES + max(longest, 1)
        assert len(tap.tail) < TAIL_BYTES + max(longest, 1)


@given(PIECES)
def test_it_knows_whether_the_tail_is_everything(sizes: list[int]) -> None:
    tap = HeadTailBuffer()
    for piece in make_pieces(sizes):
        tap.feed(piece)
    assert tap.is_whole == (len(tap.tail) == sum(sizes))


def test_a_long_stream_of_small_pieces_forgets_its_middle() -> None:
    tap = HeadTailBuffer()
    for number in range(100_000):
        tap.feed(b"%06d;" % number)
    assert tap.head.startswith(b"000000;000001;")
    assert tap.tail.endswith(b"099998;099999;")
    assert len(tap.head) + len(tap.tail) <= HEAD_BYTES + TAIL_BYTES + 14
    assert not tap.is_whole


@given(PIECES)
def test_what_lies_in_it_is_bounded_also_where_nobody_asks(sizes: list[int]) -> None:
    tap = HeadTailBuffer()
    for piece in make_pieces(sizes):
        tap.feed(piece)
        assert sum(map(len, tap.pieces)) <= TAIL_BYTES + max(SLACK_BYTES, *sizes)
