"""The error object, both ways."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import (
    GatewayError,
    InvalidRequest,
    ProviderAuthError,
    ProviderBadResponse,
    ProviderError,
    ProviderRateLimited,
    ProviderRejected,
)
from gateway.formats.errors.openai import (
    build_error,
    build_error_event,
    mask,
    parse_error,
    parse_provider_error,
    parse_retry_after,
)
from gateway.formats.wire import sse
from tests.support.table_rows import table_rows

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | TEXT,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["error", "message", "type", "param", "code"]), inner, max_size=5)
    ),
    max_leaves=15,
)
PLANTED = [
    "sk-proj-AbCdEfGhIjKlMnOpQrStUvWxYz0123456789",
    "sk-ant-api03-abcdefghijklmnop",
    "sk_live_abcdefghijklmnopqrstuvwxyz",
    "gsk_abcdefghijklmnopqrstuvwx",
    "xai-abcdefghijklmnopqrstuvwx",
    "AIzaSyA-1234567890abcdefghijklmnopqrstu",
    "Bearer abcdefghijklmnopqrstuvwxyz.eyJ",
    "org-AbCdEfGhIjKlMn",
    "proj_AbCdEfGhIjKlMn",
    "acct_1A2b3C4d5E6f",
    "https://api.openai.com/v1/chat?key=1",
    "http://10.1.2.3:8000/internal",
    "HTTPS://platform.example.com/account",
    "wss://stream.example.com",
]


@given(TEXT, st.none() | TEXT)
def test_every_error_has_all_four_keys_and_ends_with_the_request_id(message: str, param: str | None) -> None:
    written = orjson.loads(build_error(InvalidRequest(message, param=param), "req_1"))
    assert written == {
        "error": {
            "message": f"{message} (request id: req_1)",
            "type": "new_api_error",
            "param": param,
            "code": "invalid_request",
        }
    }


@given(TEXT)
def test_an_error_event_is_one_event_of_one_line_whatever_the_message_says(message: str) -> None:
    error = GatewayError("data: [DONE]\n\ndata: x\r\n\r" + message)
    raw = build_error_event(error, "req_1")
    assert raw.startswith(b"data: {")
    assert raw.endswith(b"}\n\n")
    assert raw.count(b"\n") == 2
    assert b"\r" not in raw
    assert sse.SseSplitter().split(raw) == [raw]
    assert sse.parse_data(raw) == build_error(error, "req_1")


@table_rows("planted", PLANTED)
def test_a_planted_secret_vanishes(planted: str) -> None:
    for around in ("{}", "key {} is wrong", "'{}'", "({}).", "a,{},b", 'x="{}"', "provided: {}.\nSee"):
        masked = mask(around.format(planted))
        assert planted not in masked, around
        assert planted[6:] not in masked, around
        assert "[masked]" in masked or "[address]" in masked, around


@table_rows("word", ["key.", "key-", "sk.", "org-a", "https://", "Bearer "])
def test_a_long_text_of_nothing_but_beginnings_of_secrets_is_masked_in_one_go(word: str) -> None:
    """Once every beginning was followed to the end of the text: a provider that quotes its caller stopped the loop."""
    assert len(mask(word * 100_000)) <= 2_001


@given(TEXT)
def test_a_masked_text_is_one_line_of_bounded_length(text: str) -> None:
    masked = mask(text * 50)
    assert len(masked) <= 2_001
    assert len(masked.splitlines()) <= 1


@table_rows(
    "text",
    [
        "The model `gpt-9` does not exist",
        "max_tokens is too large: 5000. This model supports at most 4096 completion tokens",
        "Invalid value: 'robot'. Supported values are: 'system', 'user'",
        "Task 12:30 — 日本語 a/b (c) [d]",
    ],
)
def test_an_ordinary_sentence_stays_as_it_is(text: str) -> None:
    assert mask(text) == text


def test_an_ordinary_error_code_stays_as_it_is() -> None:
    codes = ["model_not_found", "context_length_exceeded", "account_deactivated", "user_blocked", "key_expired"]
    errors = [parse_error(orjson.dumps({"error": {"message": "x", "code": code}})) for code in codes]
    assert [error.code for error in errors if error] == codes


@table_rows(
    ("raw", "message", "code"),
    [
        (b'{"error":{"message":"no","type":"t","param":"p","code":"c"}}', "no", "c"),
        (b'{"error":{"message":"no","code":400}}', "no", "400"),
        (b'{"error":{"message":"no","code":true}}', "no", None),
        (b'{"error":"no"}', "no", None),
        (b'[{"error":{"message":"no"}}]', "no", None),
        (b'{"error":{"message":["no"]}}', "The provider gave no reason", None),
    ],
)
def test_a_providers_error_is_read_in_every_usual_shape(raw: bytes, message: str, code: str | None) -> None:
    error = parse_error(raw)
    assert error is not None
    assert (error.message, error.code) == (message, code)


@table_rows(
    "raw",
    [b"", b"<html>", b"{}", b"[]", b"null", b'{"error":null}', b'{"error":{}}', b'{"error":""}', b'{"detail":"x"}'],
)
def test_what_is_no_error_object_is_none(raw: bytes) -> None:
    assert parse_error(raw) is None


CONVENTION = (
    b'{"error":{"message":"too long","type":"invalid_request_error","param":"messages","code":"context_length"}}'
)


@table_rows("status", [400, 404, 405, 409, 413, 415, 418, 422, 451])
def test_the_callers_own_mistake_keeps_the_providers_words(status: int) -> None:
    error = parse_provider_error(status, CONVENTION, [])
    assert type(error) is ProviderRejected
    shown = (error.status, error.message, error.type, error.param, error.public_code)
    assert shown == (status, "too long", "invalid_request_error", "messages", "context_length")


@table_rows(("status", "retryable"), [(400, False), (404, True), (405, False), (413, False), (422, False)])
def test_only_a_model_that_one_provider_does_not_know_may_be_another_ones(status: int, retryable: bool) -> None:
    error = parse_provider_error(status, CONVENTION, [])
    assert (error.retryable, error.failure_scope, error.answered) == (retryable, "nobody", True)


@table_rows(
    ("status", "code"),
    [(400, "invalid_request"), (404, "not_found"), (413, "request_too_large"), (415, "unsupported_media_type"),
     (418, "upstream_error"), (422, "invalid_request"), (429, "rate_limit_exceeded")],
)  # fmt: skip
@table_rows("answer", [b"", b"<html>no</html>", b'{"detail":"x"}', None, "status"])
def test_a_refusal_without_a_code_has_that_of_its_status(status: int, code: str, answer: bytes | str | None) -> None:
    """Also where the provider says ``null``, or its status once more."""
    error = {"message": "no", "type": "invalid_request_error", "code": status if answer else None}
    raw = answer if isinstance(answer, bytes) else orjson.dumps({"error": error})
    failure = parse_provider_error(status, raw, [])
    kind = "upstream_error" if isinstance(answer, bytes) else "invalid_request_error"
    assert (failure.status, failure.type, failure.public_code, failure.param) == (status, kind, code, None)


@table_rows("raw", [b"", b"404 page not found", b"<html>", b'{"detail":"Not Found"}'])
def test_a_404_that_is_no_error_object_says_that_there_is_nothing_at_the_path(raw: bytes) -> None:
    error = parse_provider_error(404, raw, [], path="/chat/completions")
    assert error.message == "Provider returned 404 Not Found for /chat/completions"
    assert (
        parse_provider_error(400, raw, [], path="/chat/completions").message
        == "Provider returned 400 Bad Request for /chat/completions"
    )
    reported = b'{"error":{"message":"no such model"}}'
    assert parse_provider_error(404, reported, [], path="/chat/completions").message == "no such model"


@table_rows("status", [401, 402, 403])
def test_a_refusal_of_our_key_is_our_trouble_and_tells_why(status: int) -> None:
    error = parse_provider_error(status, CONVENTION, [])
    assert type(error) is ProviderAuthError
    assert (error.status, error.public_code, error.retryable, error.should_retry) == (
        502,
        "upstream_error",
        True,
        False,
    )
    reason = {401: "401 Unauthorized", 402: "402 Payment Required", 403: "403 Forbidden"}[status]
    assert error.message == f"The provider refused the gateway's credentials ({reason}): too long"


@table_rows("raw", [b"", b"<html>no</html>", b'{"error":{"message":null}}'])
def test_a_refusal_of_our_key_without_a_reason_tells_its_status(raw: bytes) -> None:
    error = parse_provider_error(401, raw, [], path="/models")
    assert error.message == "The provider refused the gateway's credentials (401 Unauthorized)"


def test_a_refusal_of_our_key_does_not_tell_the_key() -> None:
    raw = b'{"error":{"message":"Incorrect API key provided: sk-proj-AbCdEf0123456789. See https://h/k of my-secret"}}'
    error = parse_provider_error(401, raw, ["my-secret"])
    assert error.message.endswith("(401 Unauthorized): Incorrect API key provided: [masked] See [address] of [masked]")


@table_rows(
    ("status", "raw", "message"),
    [
        (500, b'{"error":{"message":"no","code":"E77"}}', "The provider failed with status 500: no (E77)"),
        (500, b'{"error":{"message":"E77: no","code":"E77"}}', "The provider failed with status 500: E77: no"),
        (503, b'{"error":{"code":503,"message":"busy"}}', "The provider failed with status 503: busy"),
        (500, b'{"error":{"code":"E77"}}', "Provider returned 500 Internal Server Error for /x (E77)"),
        (400, b'{"error":{"type":"bad"}}', "Provider returned 400 Bad Request for /x (bad)"),
        (302, b"", "Provider returned 302 Found for /x"),
        (408, b'{"error":"slow"}', "Provider returned 408 Request Timeout: slow"),
    ],
)
def test_what_a_provider_tells_of_its_failure_is_told_with_its_code(status: int, raw: bytes, message: str) -> None:
    assert parse_provider_error(status, raw, [], path="/x").message == message


def test_a_key_that_google_does_not_know_is_ours_to_mend_whatever_its_status() -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}]
    error = {"code": 400, "message": "API key not valid.", "status": "INVALID_ARGUMENT", "details": details}
    assert type(parse_provider_error(400, orjson.dumps({"error": error}), ())) is ProviderAuthError
    body = {"error": {"message": 'No such thing: {"reason": "API_KEY_INVALID"}'}}
    assert type(parse_provider_error(400, orjson.dumps(body), ())) is ProviderRejected


@table_rows("field", ["code", "type"])
@table_rows(
    "word", ["insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "exceeded_current_quota_error"]
)
def test_a_used_up_account_is_our_trouble_though_it_has_the_status_of_a_rate_limit(field: str, word: str) -> None:
    """OpenAI's "Error codes" guide: a 429 "You exceeded your current quota"; Moonshot calls it by another name."""
    raw = orjson.dumps({"error": {"message": "You exceeded your current quota", field: word}})
    error = parse_provider_error(429, raw, [], provider_retry_after_s=3.0)
    assert type(error) is ProviderAuthError
    assert (error.status, error.public_code, error.retry_after_s) == (502, "upstream_error", None)
    assert error.message.endswith("(429 Too Many Requests): You exceeded your current quota")


@table_rows("status", [400, 404, 500])
def test_those_words_under_another_status_are_no_refusal_of_our_key(status: int) -> None:
    raw = orjson.dumps({"error": {"message": "no", "code": "insufficient_quota"}})
    assert not isinstance(parse_provider_error(status, raw, []), ProviderAuthError)


@table_rows("word", ["rate_limit_exceeded", "insufficient_quotas", "INSUFFICIENT_QUOTA", None, 429, []])
def test_any_other_429_is_a_rate_limit(word: object) -> None:
    raw = orjson.dumps({"error": {"message": "slow down", "code": word, "type": word}})
    assert type(parse_provider_error(429, raw, [])) is ProviderRateLimited


def test_a_providers_rate_limit_may_be_tried_elsewhere() -> None:
    error = parse_provider_error(429, CONVENTION, [], provider_retry_after_s=7.0)
    assert type(error) is ProviderRateLimited
    assert (error.status, error.retry_after_s, error.retryable) == (429, 7, True)
    shown = (error.message, error.type, error.param, error.public_code)
    assert shown == ("too long", "invalid_request_error", "messages", "context_length")


@table_rows(
    ("provider_retry_after_s", "reported"),
    [(None, 1), (0.2, 1), (1.0, 1), (1.5, 2), (119.5, 120), (121.0, 120), (86_400.0, 120)],
)
def test_a_limited_caller_is_told_a_wait_of_whole_seconds_that_the_client_libraries_still_obey(
    provider_retry_after_s: float | None, reported: int
) -> None:
    error = parse_provider_error(429, CONVENTION, [], provider_retry_after_s=provider_retry_after_s)
    assert (error.retry_after_s, error.provider_retry_after_s) == (reported, provider_retry_after_s)


@table_rows("status", [400, 401, 429, 500, 503, 529, 302])
def test_how_long_a_provider_wants_to_be_left_alone_is_kept_whatever_it_said(status: int) -> None:
    assert parse_provider_error(status, CONVENTION, [], provider_retry_after_s=2.5).provider_retry_after_s == 2.5
    assert parse_provider_error(status, CONVENTION, []).provider_retry_after_s is None


@table_rows("status", [300, 301, 302, 307, 308, 399, 408, 425, 500, 502, 503, 504, 529, 599, 999, 100, 199])
def test_any_other_status_is_the_providers_trouble(status: int) -> None:
    error = parse_provider_error(status, CONVENTION, [])
    assert type(error) is ProviderBadResponse
    assert (error.status, error.public_code, error.retryable) == (502, "upstream_error", True)


@table_rows("status", [400, 429, 500])
@table_rows("field", ["message", "type", "param", "code"])
def test_the_channels_own_secrets_are_masked_in_every_field(status: int, field: str) -> None:
    raw = orjson.dumps({"error": {"message": "m", field: "the key hunter2-of-ours, or hunter2-of-ours"}})
    error = parse_provider_error(status, raw, ["", "hunter2-of-ours"])
    assert b"hunter2" not in build_error(error, "req_1")


def test_a_secret_at_the_cut_of_a_long_message_leaves_nothing_behind() -> None:
    secret = "hunter2-of-ours"
    for start in range(1_985, 2_001):
        raw = orjson.dumps({"error": {"message": "m" * (start - 1) + " " + secret}})
        assert "hun" not in parse_provider_error(400, raw, [secret]).message


@given(st.integers(300, 599), st.none() | st.floats(0, 86_400), st.binary(max_size=60) | JSON.map(orjson.dumps))
def test_any_answer_outside_2xx_is_a_fault_that_can_be_shown(
    status: int, provider_retry_after_s: float | None, raw: bytes
) -> None:
    error = parse_provider_error(status, raw, ["secret"], provider_retry_after_s=provider_retry_after_s)
    assert isinstance(error, ProviderError)
    assert orjson.loads(build_error(error, "req_1"))["error"].keys() == {"message", "type", "param", "code"}
    assert 400 <= error.status <= 599


NOW_S = 1_792_567_680.0
"""Wed, 21 Oct 2026 07:28:00 GMT."""
DAY_S = 86_400.0


@table_rows(
    ("value", "seconds"),
    [
        ("5", 5.0),
        (" 5", 5.0),
        ("5\t", 5.0),
        ("0.5", 0.5),
        ("1.5", 1.5),
        ("007", 7.0),
        ("121", 121.0),
        ("86401", DAY_S),
        ("999999999999999999999", DAY_S),
        ("9" * 63, DAY_S),
        ("9" * 10_000, DAY_S),
        (None, None),
        ("", None),
        ("0", None),
        ("0.0", None),
        ("-3", None),
        ("+3", None),
        ("1e9", None),
        ("1_000", None),
        ("0x10", None),
        (".5", None),
        ("5.", None),
        ("5 s", None),
        ("5, 6", None),
        ("NaN", None),
        ("Infinity", None),
        ("-inf", None),
        ("\u0663", None),  # an Arabic three
        ("soon", None),
        (" ", None),
        (",", None),
        ("\x00", None),
        (" " * 100 + "5", 5.0),
        ("x" * 10_000, None),
        ("5" + "x" * 10_000, None),
    ],
    ids=lambda value: ascii(value)[:24],
)
def test_retry_after_in_seconds_is_believed_within_bounds(value: str | None, seconds: float | None) -> None:
    assert parse_retry_after(value, NOW_S) == seconds


@table_rows(
    ("value", "seconds"),
    [
        ("Wed, 21 Oct 2026 07:28:30 GMT", 30.0),
        ("Wednesday, 21-Oct-26 07:28:30 GMT", 30.0),  # RFC 9110, 5.6.7: the obsolete forms are read, too
        ("Wed Oct 21 07:28:30 2026", 30.0),
        ("Wed, 21 Oct 2026 09:28:30 +0200", 30.0),
        ("Wed, 21 Oct 2026 08:28:00 GMT", 3_600.0),
        ("Wed, 21 Oct 2027 07:28:00 GMT", DAY_S),
        ("Fri, 31 Dec 9999 23:59:59 GMT", DAY_S),
        ("Wed, 21 Oct 2026 07:28:00 GMT", None),
        ("Wed, 21 Oct 2026 07:27:59 GMT", None),
        ("Thu, 01 Jan 1970 00:00:00 GMT", None),
        ("Mon, 01 Jan 0001 00:00:00 GMT", None),
        ("Wed, 32 Oct 2026 07:28:30 GMT", None),
        ("Wed, 21 Oct 2026 25:28:30 GMT", None),
        ("Wed, 21 Oct 99999999999 07:28:30 GMT", None),
    ],
)
def test_retry_after_may_be_a_date(value: str, seconds: float | None) -> None:
    assert parse_retry_after(value, NOW_S) == seconds


ZONELESS = """
from gateway.formats.errors.openai import parse_retry_after
print(*(parse_retry_after(date, 1_792_567_680.0) for date in ("Wed Oct 21 07:28:30 2026", "21 Oct 2026 07:28:30")))
"""


@table_rows("zone", ["EST5", "CET-1"])
def test_a_date_without_a_zone_is_of_utc_wherever_the_gateway_runs(zone: str) -> None:
    """RFC 9110, 5.6.7: the form of C's asctime says no zone, and means UTC."""
    command = [sys.executable, "-c", ZONELESS]
    done = subprocess.run(command, env=os.environ | {"TZ": zone}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["30.0", "30.0"]


WORDS = st.sampled_from(
    ["Wed", ",", "21", "Oct", "2026", "07:28:30", "GMT", "+0200", "-0000", "0001", "9999", "99:99", "-", ":", ".", "0"]
)


@given(st.text(max_size=80) | st.lists(WORDS, max_size=10).map(" ".join), st.floats(0, 4e9))
def test_whatever_stands_in_retry_after_is_a_wait_of_up_to_a_day_or_nothing(value: str, now_s: float) -> None:
    seconds = parse_retry_after(value, now_s)
    assert seconds is None or 0 < seconds <= DAY_S


@given(st.integers(1, 10**6))
def test_a_number_and_the_date_of_that_moment_say_the_same(seconds: int) -> None:
    date = format_datetime(datetime.fromtimestamp(NOW_S + seconds, UTC), usegmt=True)
    assert parse_retry_after(date, NOW_S) == parse_retry_after(str(seconds), NOW_S) == min(seconds, DAY_S)
