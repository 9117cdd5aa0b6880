"""The error object, both ways."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects import sse
from gateway.dialects.openai_error import mask, read_error, read_fault, read_retry_after, write_error, write_error_event
from gateway.domain.fault import Fault, InvalidRequest, UpstreamError, UpstreamFault, UpstreamLimited, UpstreamRefused

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
    written = orjson.loads(write_error(InvalidRequest(message, param=param), "req_1"))
    assert written == {
        "error": {
            "message": f"{message} (request id: req_1)",
            "type": "new_api_error",
            "param": param,
            "code": "invalid_request",
        },
    }


@given(TEXT)
def test_an_error_event_is_one_event_of_one_line_whatever_the_message_says(message: str) -> None:
    fault = Fault("data: [DONE]\n\ndata: x\r\n\r" + message)
    raw = write_error_event(fault, "req_1")
    assert raw.startswith(b"data: {")
    assert raw.endswith(b"}\n\n")
    assert raw.count(b"\n") == 2
    assert b"\r" not in raw
    assert sse.EventSplitter().split(raw) == [raw]
    assert sse.read_data(raw) == write_error(fault, "req_1")


@pytest.mark.parametrize("planted", PLANTED)
@pytest.mark.parametrize("around", ["{}", "key {} is wrong", "'{}'", "({}).", "a,{},b", 'x="{}"', "provided: {}.\nSee"])
def test_a_planted_secret_vanishes(planted: str, around: str) -> None:
    masked = mask(around.format(planted))
    assert planted not in masked
    assert planted[6:] not in masked
    assert "[masked]" in masked or "[address]" in masked


@given(TEXT)
def test_a_masked_text_is_one_line_of_bounded_length(text: str) -> None:
    masked = mask(text * 50)
    assert len(masked) <= 2_001
    assert len(masked.splitlines()) <= 1


@pytest.mark.parametrize(
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
    errors = [read_error(orjson.dumps({"error": {"message": "x", "code": code}})) for code in codes]
    assert [error.code for error in errors if error] == codes


@pytest.mark.parametrize(
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
    error = read_error(raw)
    assert error is not None
    assert (error.message, error.code) == (message, code)


@pytest.mark.parametrize(
    "raw",
    [b"", b"<html>", b"{}", b"[]", b"null", b'{"error":null}', b'{"error":{}}', b'{"error":""}', b'{"detail":"x"}'],
)
def test_what_is_no_error_object_is_none(raw: bytes) -> None:
    assert read_error(raw) is None


CONVENTION = (
    b'{"error":{"message":"too long","type":"invalid_request_error","param":"messages","code":"context_length"}}'
)


@pytest.mark.parametrize("status", [400, 404, 405, 409, 413, 415, 418, 422, 451])
def test_the_callers_own_mistake_keeps_the_providers_words(status: int) -> None:
    fault = read_fault(status, None, CONVENTION, [])
    assert type(fault) is UpstreamRefused
    assert not fault.retryable
    shown = (fault.status, fault.message, fault.type, fault.param, fault.public_code)
    assert shown == (status, "too long", "invalid_request_error", "messages", "context_length")


@pytest.mark.parametrize("status", [400, 404, 422])
@pytest.mark.parametrize("raw", [b"", b"<html>no</html>", b'{"detail":"x"}'])
def test_a_refusal_in_another_shape_is_an_upstream_error(status: int, raw: bytes) -> None:
    fault = read_fault(status, None, raw, [])
    assert (fault.status, fault.type, fault.public_code, fault.param) == (
        status,
        "upstream_error",
        "upstream_error",
        None,
    )


@pytest.mark.parametrize("status", [401, 402, 403])
def test_a_refusal_of_our_key_is_our_trouble_and_says_nothing(status: int) -> None:
    fault = read_fault(status, None, CONVENTION, [])
    assert type(fault) is UpstreamError
    assert (fault.status, fault.public_code, fault.retryable) == (502, "upstream_error", True)
    assert "too long" not in fault.message


def test_a_providers_rate_limit_may_be_tried_elsewhere() -> None:
    fault = read_fault(429, "7", CONVENTION, [])
    assert type(fault) is UpstreamLimited
    assert (fault.status, fault.retry_after_s, fault.retryable) == (429, 7, True)


@pytest.mark.parametrize(
    "status", [300, 301, 302, 307, 308, 399, 408, 425, 500, 502, 503, 504, 529, 599, 999, 100, 199]
)
def test_any_other_status_is_the_providers_trouble(status: int) -> None:
    fault = read_fault(status, None, CONVENTION, [])
    assert type(fault) is UpstreamError
    assert (fault.status, fault.public_code, fault.retryable) == (502, "upstream_error", True)


@pytest.mark.parametrize("status", [400, 429, 500])
@pytest.mark.parametrize("field", ["message", "type", "param", "code"])
def test_the_channels_own_secrets_are_masked_in_every_field(status: int, field: str) -> None:
    raw = orjson.dumps({"error": {"message": "m", field: "the key hunter2-of-ours, or hunter2-of-ours"}})
    fault = read_fault(status, None, raw, ["", "hunter2-of-ours"])
    assert b"hunter2" not in write_error(fault, "req_1")


def test_a_secret_at_the_cut_of_a_long_message_leaves_nothing_behind() -> None:
    secret = "hunter2-of-ours"
    for start in range(1_985, 2_001):
        raw = orjson.dumps({"error": {"message": "m" * (start - 1) + " " + secret}})
        assert "hun" not in read_fault(400, None, raw, [secret]).message


@given(st.integers(300, 599), st.none() | st.text(max_size=10), st.binary(max_size=60) | JSON.map(orjson.dumps))
def test_any_answer_outside_2xx_is_a_fault_that_can_be_shown(status: int, retry_after: str | None, raw: bytes) -> None:
    fault = read_fault(status, retry_after, raw, ["secret"])
    assert isinstance(fault, UpstreamFault)
    assert orjson.loads(write_error(fault, "req_1"))["error"].keys() == {"message", "type", "param", "code"}
    assert 400 <= fault.status <= 599


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("5", 5), ("0", 1), ("-3", 1), ("1e9", 1), ("999999999999999999999", 120), ("121", 120), ("NaN", 1), ("", 1),
     (None, 1), ("1.5", 1), ("Wed, 21 Oct 2026 07:28:00 GMT", 1), ("٣", 1), (" 5", 1)],
)  # fmt: skip
def test_retry_after_is_read_within_bounds(value: str | None, seconds: int) -> None:
    assert read_retry_after(value) == seconds
