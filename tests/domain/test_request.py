"""The trail of a request's attempts: a line of text in the row."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.caller import NAME_SHAPE
from gateway.domain.fault import STATUS
from gateway.domain.request import ANSWERED, Tried, read_tried, write_tried

NAMES = st.from_regex(NAME_SHAPE, fullmatch=True)
CODES = st.sampled_from([*STATUS, ANSWERED]) | st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True)
TRAILS = st.lists(st.builds(Tried, NAMES, CODES, st.integers(0, 10**9)), max_size=5)


def test_a_trail_is_short_and_plain() -> None:
    trail = [Tried("up 0", "upstream_timeout", 120_000), Tried("eu/up@1", ANSWERED, 85)]
    assert write_tried(trail) == "up 0=upstream_timeout:120000,eu/up@1=ok:85"
    assert write_tried([]) == ""


@given(TRAILS)
def test_a_trail_is_read_back_as_it_was_written(trail: list[Tried]) -> None:
    assert read_tried(write_tried(trail)) == tuple(trail)


@given(NAMES, st.text(), TRAILS)
def test_whatever_a_provider_calls_its_error_the_trail_can_be_read(name: str, code: str, trail: list[Tried]) -> None:
    first, *others = read_tried(write_tried([Tried(name, code, 7), *trail]))
    assert (first.channel, first.ms, others) == (name, 7, trail)
    assert len(first.outcome) in range(1, 65)


@pytest.mark.parametrize(
    ("text", "channels"),
    [
        ("", []),
        ("nothing", []),
        ("a=b", []),
        ("a=b:", []),
        ("a=b:x", []),
        ("=b:1", []),
        ("a=:1", []),
        ("a=b:-1", []),
        ("a=b:1:2", []),
        ("a=b:\u0661", []),
        (f"a=b:{10**15}", []),
        (",a=b:1,,x,c=d:2,", ["a", "c"]),
    ],
)
def test_what_is_no_attempt_is_left_out(text: str, channels: list[str]) -> None:
    assert [tried.channel for tried in read_tried(text)] == channels


@given(st.text(st.sampled_from("=,:a1 ")))
def test_any_text_is_read_without_a_failure(text: str) -> None:
    assert read_tried(write_tried(read_tried(text))) == read_tried(text)
