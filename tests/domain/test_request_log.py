"""The trail of a request's attempts, a line of text in the row; what a row keeps of an error; which rows are wanted."""

from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.account import NAME_SHAPE
from gateway.domain.request_log import (
    MAX_ERROR_CHARS,
    SUCCESS_CODE,
    FailedAttempt,
    Outcome,
    RequestFilter,
    RequestPage,
    StoredRequest,
    build_error,
    format_attempts,
    has_failed,
    is_request_id,
    lower_ascii,
    parse_attempts,
)
from gateway.domain.route import CAUSES
from gateway.error_status import STATUS
from tests.support.request_records import ROW, make_row
from tests.support.table_rows import table_rows

NAMES = st.from_regex(NAME_SHAPE, fullmatch=True)
CODES = st.sampled_from([*STATUS, SUCCESS_CODE]) | st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True)
STEPS = st.sampled_from((*CAUSES, "")), st.integers(0, 16), st.text(max_size=300)
TRAILS = st.lists(
    st.builds(FailedAttempt, NAMES, CODES, st.integers(0, 10**9), st.integers(0, 599), *STEPS), max_size=5
)


def test_a_trail_is_short_and_plain() -> None:
    trail = [
        FailedAttempt("up 0", "upstream_timeout", 120_000, 504, "timeout", 1, "gpt-5"),
        FailedAttempt("eu/up@1", SUCCESS_CODE, 85, model="a,b:c=d"),
    ]
    assert format_attempts(trail) == "up 0=upstream_timeout:120000:504:timeout:1:gpt-5,eu/up@1=ok:85:0::0:a%2Cb%3Ac%3Dd"
    assert format_attempts([]) == ""


def test_a_trail_of_version_0_9_is_read() -> None:
    assert parse_attempts("up 0=upstream_timeout:120000,eu/up@1=ok:85") == (
        FailedAttempt("up 0", "upstream_timeout", 120_000),
        FailedAttempt("eu/up@1", SUCCESS_CODE, 85),
    )


@given(TRAILS)
def test_a_trail_is_read_back_as_it_was_written(trail: list[FailedAttempt]) -> None:
    assert parse_attempts(format_attempts(trail)) == tuple(trail)


@given(NAMES, st.text(), TRAILS)
def test_whatever_a_provider_calls_its_error_the_trail_can_be_read(
    name: str, code: str, trail: list[FailedAttempt]
) -> None:
    first, *others = parse_attempts(format_attempts([FailedAttempt(name, code, 7), *trail]))
    assert (first.channel, first.ms, others) == (name, 7, trail)
    assert len(first.code) in range(1, 65)


@table_rows(
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
    assert [tried.channel for tried in parse_attempts(text)] == channels


@given(st.text(st.sampled_from("=,:a1 ")))
def test_any_text_is_read_without_a_failure(text: str) -> None:
    assert parse_attempts(format_attempts(parse_attempts(text))) == parse_attempts(text)


@given(st.text(max_size=2 * MAX_ERROR_CHARS))
def test_what_is_kept_of_an_error_is_its_beginning_on_one_line_and_can_be_stored(message: str) -> None:
    kept = build_error(message)
    assert len(kept) == min(len(message), MAX_ERROR_CHARS)
    assert kept.isprintable()
    assert kept.encode().decode() == kept
    assert all(mark in {theirs, " "} for mark, theirs in zip(kept, message, strict=False))
    assert build_error(kept) == kept


def test_of_an_error_line_ends_and_what_is_no_character_become_spaces() -> None:
    assert build_error("one\r\ntwo\x00\x1b[31m\ud800\u202e é 日本 \U0001f3ac") == "one  two  [31m   é 日本 \U0001f3ac"


@table_rows(
    ("text", "is_one"),
    [
        ("req_0123456789abcdef01234567", True),
        ("req_0123456789abcdef0123456", False),
        ("req_0123456789abcdef012345678", False),
        ("req_0123456789ABCDEF01234567", False),
        ("req_0123456789abcdef01234567\n", False),
        ("req_\u0661123456789abcdef01234567", False),
        ("video_0123456789abcdef01234567", False),
        ("", False),
    ],
)
def test_an_id_is_known_by_its_form(text: str, is_one: bool) -> None:
    assert is_request_id(text) == is_one


@table_rows(
    ("outcome", "wrong"),
    [
        ("completed", False),
        ("client_closed", False),
        ("refused", True),
        ("failed", True),
        ("interrupted", True),
        ("blocked", True),
        ("cancelled", False),
    ],
)
def test_a_caller_who_left_is_nobodys_failure(outcome: Outcome, wrong: bool) -> None:
    assert has_failed(make_row(1, outcome=outcome)) == wrong


MATCHING = StoredRequest(
    7, make_row(1, status=404, outcome="refused", error_code="Not_Found", error="No MODEL is called 'x_%'")
)


@table_rows(
    "wish",
    [
        {},
        {"key_id": ROW.key_id},
        {"account_id": ROW.account_id},
        {"model": ROW.model},
        {"channel": ROW.channel},
        {"status": 404},
        {"outcome": "refused"},
        {"verdict": "error"},
        {"since_ms": ROW.settled_ms},
        {"until_ms": ROW.settled_ms + 1},
        {"before": 8},
        {"text": "no model"},
        {"text": "not_FOUND"},
        {"text": "_%"},
        {"text": "'"},
    ],
)
def test_each_wish_chooses_what_is_as_it_says(wish: dict[str, Any]) -> None:
    assert RequestFilter(**wish).matches(MATCHING)
    everything = RequestFilter(
        key_id=ROW.key_id, account_id=ROW.account_id, status=404, since_ms=0, before=8, text="model", verdict="error"
    )
    assert attrs.evolve(everything, **wish).matches(MATCHING)


@table_rows(
    "wish",
    [
        {"key_id": 0},
        {"account_id": 0},
        {"model": "M"},
        {"channel": ""},
        {"status": 400},
        {"outcome": "failed"},
        {"verdict": "ok"},
        {"since_ms": ROW.settled_ms + 1},
        {"until_ms": ROW.settled_ms},
        {"before": 7},
        {"text": "no modell"},
        {"text": "x%"},
        {"text": "req_000000000000000000000000"},
    ],
)
def test_each_wish_leaves_out_what_is_otherwise(wish: dict[str, Any]) -> None:
    assert not RequestFilter(**wish).matches(MATCHING)


def test_an_id_is_looked_for_as_an_id_and_nowhere_else() -> None:
    own = f"req_{7:024x}"
    mentions = attrs.evolve(MATCHING.row, error=f"see {own}")
    assert RequestFilter(text=own).matches(StoredRequest(1, attrs.evolve(ROW, id=own)))
    assert not RequestFilter(text=own).matches(StoredRequest(1, mentions))


@table_rows(
    ("wish", "failures"),
    [
        ({}, False),
        ({"status": 200}, False),
        ({"status": 399}, False),
        ({"status": 400}, True),
        ({"status": 409}, False),
        ({"status": 499}, False),
        ({"status": 503}, True),
        ({"verdict": "error"}, True),
        ({"verdict": "ok"}, False),
        ({"outcome": "refused"}, True),
        ({"outcome": "client_closed"}, False),
        ({"text": "x"}, True),
        ({"text": f"req_{7:024x}"}, False),
    ],
)
def test_what_can_only_be_a_failure_is_known(wish: dict[str, Any], failures: bool) -> None:
    assert RequestFilter(**wish).asks_for_failures == failures


@given(st.text())
def test_case_does_not_count_as_far_as_ascii_goes(text: str) -> None:
    assert lower_ascii(text) == "".join(mark.lower() if mark.isascii() else mark for mark in text)


def test_a_page_is_a_list_of_its_rows() -> None:
    rows = tuple(StoredRequest(number, make_row(number)) for number in range(3))
    page = RequestPage(rows, more=True, next="0")
    assert (len(page), list(page), page[0], page[-1], page[1:]) == (3, list(rows), rows[0], rows[2], rows[1:])
    assert rows[1] in page
    assert not RequestPage()
