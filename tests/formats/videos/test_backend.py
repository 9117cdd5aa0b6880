"""What every filmmaker reads alike: ids, progress, sizes, and why there is no video."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.video import BLOCKED_CODE, FAILED_CODE, Reference
from gateway.errors import (
    ContentBlocked,
    InvalidRequest,
    ProviderAuthError,
    ProviderBadResponse,
    ProviderError,
    ProviderRateLimited,
    ProviderRejected,
)
from gateway.formats.videos import backend as video_backend
from tests.support.table_rows import table_rows


@table_rows(
    "text",
    ["video_1", "a-b_c.d:e=f~g", "17f20503-6c24-4c16-946b-35dbbce2af2f", "x" * video_backend.MAX_ID_CHARS, "..a", "0"],
)
def test_an_id_is_kept_as_it_is(text: str) -> None:
    assert video_backend.parse_id(text) == text


@table_rows(
    "found",
    ["", ".", "..", "...", "a/b", "../a", "a b", "a\n", "a?b", "a#b", "a%2e", "a\\b", "ü", "\u0661", "x" * 513, 7, None,
     True, ["a"], {"id": "a"}],
)  # fmt: skip
def test_an_id_that_could_lead_elsewhere_is_none(found: Any) -> None:
    with pytest.raises(ProviderBadResponse):
        video_backend.parse_id(found)


@table_rows("url", [None, "", 7, "xxx.mp4", "ftp://host/x", "https://host/" + "x" * 5000])
def test_parse_video_url_rejects_an_unusable_address(url: Any) -> None:
    with pytest.raises(ProviderBadResponse):
        video_backend.parse_video_url(url)


@table_rows("raw", [b"", b"x", b"[]", b"null", b"1", b'"x"', b"\xff", b"{", b"<html>", b"[" * 5_000])
def test_an_answer_that_is_no_object_is_a_failure(raw: bytes) -> None:
    with pytest.raises(ProviderBadResponse):
        video_backend.parse_object(raw)
    assert video_backend.parse_object(b' {"a": 1} ') == {"a": 1}


@table_rows(
    ("value", "read"),
    [(0, 0), (100, 100), (50, 50), (-1, None), (101, None), (True, None), (50.0, None), ("50", None), (None, None),
     ([], None), (10**30, None)],
)  # fmt: skip
def test_progress_is_a_percentage_or_unknown(value: Any, read: int | None) -> None:
    assert video_backend.parse_progress(value) == read


def test_a_size_has_two_sides() -> None:
    assert video_backend.parse_sides("1280x720") == (1280, 720)
    for size in ("", "1280", "1280x", "0x1", "1280X720", "1280x720 ", "1280x720\n", "123456x1", "\u0661x1"):
        with pytest.raises(InvalidRequest) as refused:
            video_backend.parse_sides(size)
        assert refused.value.param == "size"


# ---- why there is no video


@table_rows(
    ("code", "message", "read"),
    [
        ("moderation_blocked", "No", (BLOCKED_CODE, "No")),
        ("content_policy_violation", None, (BLOCKED_CODE, "The provider's safety filter blocked the video")),
        (1301, "No", (BLOCKED_CODE, "No")),
        (None, "Your request was rejected by the safety system", (BLOCKED_CODE, "Your request was rejected")),
        ("InputTextSensitiveContentDetected.PolicyViolation", "", (BLOCKED_CODE, "The provider's safety filter")),
        ("InternalError", "The camera broke", (FAILED_CODE, "The camera broke")),
        (None, None, (FAILED_CODE, "The provider gave no reason")),
        (True, 7, (FAILED_CODE, "The provider gave no reason")),
        ({}, [], (FAILED_CODE, "The provider gave no reason")),
    ],
)
def test_a_filters_verdict_has_a_code_of_its_own(code: Any, message: Any, read: tuple[str, str]) -> None:
    error = video_backend.build_error(code, message, ())
    assert (error.code, error.message[: len(read[1])]) == read


def test_what_a_provider_says_is_masked_and_cut() -> None:
    error = video_backend.build_error(
        "x", f"hush-hush-hush at https://internal.example/ {'x' * 2_000}", ("hush-hush-hush",)
    )
    assert "hush" not in error.message
    assert "internal" not in error.message
    assert len(error.message) <= 500


@table_rows("status", [200, 400, 403, 422, 451, 500])
def test_a_block_is_one_whatever_its_status_and_is_not_a_images(status: int) -> None:
    raw = orjson.dumps({"error": {"code": "moderation_blocked", "message": "Not this."}})
    error = video_backend.parse_video_error(status, raw, ())
    assert type(error) is ContentBlocked
    assert (error.status, error.public_code, error.retryable, error.should_retry) == (
        400, "content_policy_violation", False, False,
    )  # fmt: skip
    assert "picture" not in error.message
    assert "video" in error.message


@table_rows(("status", "kind"), [(401, ProviderAuthError), (402, ProviderAuthError), (429, ProviderRateLimited)])
def test_a_key_that_is_refused_and_a_rate_limit_are_no_blocks(status: int, kind: type[ProviderError]) -> None:
    raw = orjson.dumps({"error": {"code": "moderation_blocked", "message": "Not this."}})
    assert type(video_backend.parse_video_error(status, raw, (), provider_retry_after_s=3.0)) is kind


@table_rows(
    ("status", "kind"),
    [(400, ProviderRejected), (404, ProviderRejected), (429, ProviderRateLimited), (500, ProviderBadResponse)],
)
def test_everything_else_is_what_it_is_for_every_other_call(status: int, kind: type[ProviderError]) -> None:
    error = video_backend.parse_video_error(
        status, b'{"error": {"message": "No hush-hush-hush"}}', ("hush-hush-hush",), provider_retry_after_s=3.0
    )
    assert type(error) is kind
    assert "hush" not in error.message
    assert kind is not ProviderRateLimited or error.provider_retry_after_s == 3.0


def test_a_refusal_under_200_is_what_it_would_be_under_its_own_status() -> None:
    assert type(video_backend.make_refusal_error("1301", "Not this", (), 400)) is ContentBlocked
    assert type(video_backend.make_refusal_error("x", "No", (), 429)) is ProviderRateLimited
    refused = video_backend.make_refusal_error("x", "No hush-hush-hush", ("hush-hush-hush",), 400)
    assert type(refused) is ProviderRejected
    assert "hush" not in refused.message


@given(st.integers(200, 599), st.binary(max_size=30) | st.sampled_from([b"[" * 5_000, b'{"error":' * 500]))
def test_any_bytes_under_any_status_are_some_fault(status: int, raw: bytes) -> None:
    assert isinstance(video_backend.parse_video_error(status, raw, ()), ProviderError)


# ---- what is not shown


def test_what_a_caller_says_and_where_its_files_are_is_not_shown() -> None:
    reported = [
        video_backend.VideoSpec("m", "hush-1", "mark", reference=Reference(url="hush-2"), extra={"a": "hush-3"}),
        video_backend.ProviderTask("id", "m", "hush-4"),
        video_backend.TaskStatus("completed", clue="hush-5"),
        video_backend.ContentLocation(url="hush-6"),
    ]
    assert "hush" not in f"{reported}{reported!r}"
