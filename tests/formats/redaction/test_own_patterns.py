"""Patterns of the operator: what they find, and which are refused since their search could take long."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.bodies_schema import BodiesSection
from gateway.domain.kept_body import BodyPart
from gateway.errors import InvalidRequest
from gateway.formats.redaction.body import redact_part
from gateway.formats.redaction.own_patterns import PatternRefusedError, are_patterns, parse_pattern
from gateway.formats.redaction.redactor import Redactor
from gateway.formats.redaction.work import TooMuchWorkError, Work
from gateway.parsing import parse_spec

STAFF = r"staff=\bEMP-\d{6}\b"


def redact(text: str, *patterns: str) -> str:
    return Redactor(frozenset(), own_patterns=[parse_pattern(pattern) for pattern in patterns]).redact(text)


def test_equal_matches_get_equal_marks() -> None:
    text = "EMP-123456 asks EMP-654321, and again EMP-123456; not EMP-1234567 nor xEMP-123456"
    expected = "[staff 1] asks [staff 2], and again [staff 1]; not EMP-1234567 nor xEMP-123456"
    assert redact(text, STAFF) == expected


@given(st.integers(0, 20_000), st.sampled_from(["EMP-123456", "case AB-12345"]))
def test_a_match_is_found_wherever_it_is(position: int, found: str) -> None:
    text = f"{'x ' * (position // 2)}{found}{' y' * 100}"
    assert redact(text, STAFF, r"case=(?:case|file) [A-Z]{1,3}-\d{2,6}").replace(" [", "[").count("[") == 1


def test_a_number_that_matches_leaves_valid_json() -> None:
    body = b'{"employee": 123456, "tag": 991234567, "count": 12, "share": 0.5}'
    redactor = Redactor(frozenset(), own_patterns=[parse_pattern(r"staff=\d{6}")])
    part = redact_part(BodyPart("request", body, "application/json", len(body)), redactor, max_bytes=10_000)
    assert orjson.loads(part.content) == {"employee": "[staff 1]", "tag": "[staff 2]567", "count": 12, "share": 0.5}


def test_a_match_that_a_stream_splits_is_found() -> None:
    events = b"".join(
        b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % piece for piece in (b"EMP-12", b"3456")
    )
    redactor = Redactor(frozenset(), own_patterns=[parse_pattern(STAFF)])
    part = redact_part(BodyPart("answer", events, "text/event-stream", len(events)), redactor, 10_000)
    assert b"[staff 1]" in part.content
    assert b"3456" not in part.content
    assert part.redacted


@pytest.mark.parametrize(
    "pattern",
    [
        "EMP", "Staff=EMP", "=EMP", "staff=", "staff=a*", "staff=a+b", "staff=(a{1,9}){1,9}", r"staff=(a)\1",
        "staff=(?=a)a", "staff=a{1,50}b{1,50}", "staff=a{2000}", "staff=(", "staff=a{0,3}",
        "staff=(?>a)", f"staff={'a' * 501}", "staff=[ab]{0,499}(?:[ab][ab]){250}c", r"staff=(?:\b){1000}a",
        r"staff=(?:(?:(?:\b){1000}){1000}){1000}a", "staff=(?:x{0}){1000}a",
    ],
)  # fmt: skip
def test_a_pattern_that_could_take_long_is_refused(pattern: str) -> None:
    with pytest.raises(PatternRefusedError):
        parse_pattern(pattern)


def test_the_setting_is_checked() -> None:
    assert are_patterns([STAFF])
    assert not are_patterns([STAFF] * 51)
    assert parse_spec({"patterns": [STAFF], "leave_out": ["metadata.a"]}, BodiesSection).patterns == (STAFF,)
    for section in ({"patterns": ["staff=a*"]}, {"leave_out": ["a..b"]}):
        with pytest.raises(InvalidRequest):
            parse_spec(section, BodiesSection)


def test_the_work_of_patterns_counts() -> None:
    pattern = parse_pattern(r"staff=[a-z]{2,400}\d")
    with pytest.raises(TooMuchWorkError):
        list(pattern.find("." * 2_000_000, Work()))


def test_the_work_of_a_pattern_has_the_length_of_each_way() -> None:
    """A client chooses the text: what the start of a long match costs at each position is counted."""
    pattern = parse_pattern(r"staff=[ab]{300}c")
    with pytest.raises(TooMuchWorkError):
        list(pattern.find("ab" * 500_000, Work()))
    work = Work()
    assert not list(parse_pattern(STAFF).find("no number " * 100_000, work))
    assert work.steps < 2_000_000
    assert list(parse_pattern(r"staff=(?i)emp-\d{3}").find("EMP-123", Work())) == [(0, 7)]
