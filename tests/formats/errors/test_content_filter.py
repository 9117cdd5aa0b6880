"""Safety blocks: every vendor's way of saying it is recognized, and nothing else is."""

from typing import Any

import orjson
import pytest
from hypothesis import given

from gateway import errors
from gateway.formats.errors.content_filter import find_block, is_block, parse_image_error
from gateway.formats.errors.vendor import find_message, parse_reason
from tests.support.corrupt_json import spoilt
from tests.support.table_rows import table_rows

OPENAI = {
    "error": {
        "message": "Your request was rejected by the safety system. If you believe this is an error, contact us at "
        "help.openai.com and include the request ID req_0123. safety_violations=[sexual].",
        "type": "image_generation_user_error",
        "param": None,
        "code": "moderation_blocked",
    }
}
AZURE_INNER = {
    "error": {
        "code": "content_policy_violation_of_tomorrow",
        "message": "x",
        "inner_error": {"code": "ResponsibleAIPolicyViolation", "content_filter_results": {"sexual": {}}},
    }
}
BLOCKS = [
    pytest.param(status, body, id=name)
    for name, status, body in [
        ("openai", 400, OPENAI),
        ("openai-older", 400, {"error": {"code": "content_policy_violation", "message": "x", "type": "y"}}),
        ("openai-words", 400, {"error": {"message": "rejected as a result of our safety system", "code": None}}),
        ("azure", 400, {"created": 1, "error": {"code": "contentFilter", "message": "Your task failed"}}),
        ("azure-chat", 400, {"error": {"code": "content_filter", "status": 400, "message": "x"}}),
        ("azure-inner", 400, AZURE_INNER),
        ("azure-innererror", 400, {"error": {"code": "x", "innererror": {"code": "ResponsibleAIPolicyViolation"}}}),
        ("xai", 400, {"code": "invalid-argument", "error": "Content violates usage guidelines."}),
        ("xai-403", 403, {"code": "permission-denied", "error": "Failed check: SAFETY_CHECK_TYPE_CSAM"}),
        ("xai-reason", 200, {"data": [], "block_reason": "moderation"}),
        ("zhipu", 400, {"contentFilter": [{"level": 1, "role": "user"}], "error": {"code": "1301", "message": "系统"}}),
        ("zhipu-words", 400, {"error": {"message": "系统检测到输入或生成内容可能包含不安全或敏感内容"}}),
        ("dashscope", 400, {"code": "DataInspectionFailed", "message": "x", "request_id": "1"}),
        ("dashscope-prefix", 400, {"code": "InternalError.Algo.DataInspectionFailed", "message": "x"}),
        ("dashscope-compatible", 400, {"error": {"code": "data_inspection_failed", "type": "x", "message": "y"}}),
        ("dashscope-words", 400, {"message": "Output data may contain inappropriate content."}),
        ("volcengine", 400, {"error": {"code": "OutputImageSensitiveContentDetected", "type": "BadRequest"}}),
        ("volcengine-dot", 400, {"error": {"code": "InputTextSensitiveContentDetected.PolicyViolation"}}),
        ("volcengine-plain", 400, {"error": {"code": "SensitiveContentDetected.Violence"}}),
        ("volcengine-risk", 400, {"error": {"code": "InputImageRiskDetection"}}),
        ("volcengine-item", 200, {"data": [{"error": {"code": "OutputImageSensitiveContentDetected"}}]}),
        ("minimax", 200, {"base_resp": {"status_code": 1026, "status_msg": "input sensitive"}}),
        ("minimax-output", 200, {"base_resp": {"status_code": 1027}}),
        ("replicate", 200, {"status": "failed", "error": "The input or output was flagged as sensitive. (E005)"}),
        ("replicate-nsfw", 422, {"detail": "NSFW content detected. Try running it again."}),
        ("stability", 403, {"id": "1", "name": "content_moderation", "errors": ["Your request was flagged"]}),
        ("stability-words", 403, {"errors": ["Your request was flagged by our content moderation system"]}),
        ("openrouter", 403, {"error": {"code": 403, "message": "x", "metadata": {"flagged_input": "y"}}}),
        ("google", 400, [{"error": {"code": 400, "status": "PROHIBITED_CONTENT", "message": "x"}}]),
        ("fal", 422, [{"type": "content_policy_violation", "msg": "x", "loc": ["body", "prompt"]}]),
        ("fastapi", 422, {"detail": [{"type": "content_policy_violation", "msg": "x", "loc": ["prompt"]}]}),
    ]
]
CODES = [
    "CONTENT_FILTERED", "Request Moderated", "Content Moderated", "E005", "1301", "SAFETY", "IMAGE_SAFETY",
    "BLOCKLIST", "PROHIBITED_CONTENT", "IMAGE_PROHIBITED_CONTENT", "ContentFilter", "DataInspectionFailed",
]  # fmt: skip
INNOCENT = [
    (None, None),
    ("", ""),
    ("InvalidParameter.DataInspection", "Unable to download the media resource during the data inspection process"),
    ("invalid_size", "Invalid size '13x13'"),
    ("Ready", None),
    ("13010", None),
    ("E0051", None),
    ("rate_limit_exceeded", "Too many requests"),
    ("content_length_required", None),
]


@table_rows(("status", "body"), BLOCKS)
def test_every_vendors_block_is_one_and_blames_nobody(status: int, body: Any) -> None:
    error = parse_image_error(status, orjson.dumps(body), ())
    assert isinstance(error, errors.ImageBlocked)
    assert (error.status, error.public_code, error.type) == (400, "sensitive_words_detected", "new_api_error")
    assert (error.failure_scope, error.retryable, error.should_retry) == ("nobody", False, False)


@table_rows("code", CODES)
def test_a_code_alone_is_enough(code: str) -> None:
    assert is_block(code, None)


@table_rows(("code", "message"), INNOCENT)
def test_what_is_no_block_is_none(code: str | None, message: str | None) -> None:
    assert not is_block(code, message)


def test_a_block_keeps_the_providers_words_but_for_those_that_give_it_away() -> None:
    block = find_block(OPENAI)
    assert block is not None
    assert "rejected by the safety system" in block.message
    assert "safety_violations=[sexual]" in block.message
    for secret in ("openai.com", "req_0123"):
        assert secret not in block.message


def test_secrets_in_a_block_are_masked() -> None:
    block = find_block(
        {"error": {"code": "contentFilter", "message": "No. The key is s3cret-key. Change it."}}, ["s3cret-key"]
    )
    assert block is not None
    assert "s3cret" not in block.message
    assert block.message.endswith("No. Change it.")


def test_a_block_without_words_has_ours() -> None:
    block = find_block({"error": {"code": "contentFilter"}})
    assert block is not None
    assert block.message == "The provider's safety filter blocked the image or its prompt"


@table_rows(
    ("status", "kind"),
    [(401, errors.ProviderAuthError), (402, errors.ProviderAuthError), (429, errors.ProviderRateLimited)],
)
def test_a_refused_key_and_a_rate_limit_are_never_blocks(status: int, kind: type[errors.ProviderError]) -> None:
    assert type(parse_image_error(status, orjson.dumps(OPENAI), ())) is kind


def test_a_403_that_is_no_block_is_held_against_the_key() -> None:
    error = parse_image_error(403, b'{"error": {"message": "No access"}}', ())
    assert isinstance(error, errors.ProviderAuthError)


@table_rows(
    ("body", "words"),
    [
        ({"code": 20012, "message": "Model does not exist", "data": None}, "Model does not exist"),
        ({"detail": "You did not pass a version", "status": 422}, "You did not pass a version"),
        ({"detail": [{"type": "missing", "msg": "Field required"}]}, "Field required"),
        ({"error": {"status": "INVALID_ARGUMENT", "message": "Bad size"}}, "Bad size"),
        ({"error": "Bad size"}, "Bad size"),
        ({"name": "bad_request", "errors": ["prompt: required"]}, "prompt: required"),
        ({"base_resp": {"status_code": 2013, "status_msg": "invalid params"}}, "invalid params"),
    ],
)
def test_a_refusal_is_in_the_providers_words_whatever_their_shape(body: Any, words: str) -> None:
    error = parse_image_error(422, orjson.dumps(body), ())
    assert isinstance(error, errors.ProviderRejected)
    assert (error.message, error.status) == (words, 422)
    assert find_message(body) == words
    assert parse_reason(body).startswith(words)


def test_a_flat_errors_code_is_told_and_its_secrets_are_not() -> None:
    raw = b'{"code": "InvalidParameter", "message": "no https://host/x with s3cret-key"}'
    error = parse_image_error(400, raw, ["s3cret-key"])
    assert (error.message, error.public_code) == ("no [address] with [masked]", "InvalidParameter")


def test_a_rate_limit_says_when_to_come_back() -> None:
    error = parse_image_error(429, b"{}", (), provider_retry_after_s=3.5)
    assert (error.provider_retry_after_s, error.retry_after_s) == (3.5, 4)


def test_a_providers_own_trouble_stays_its_own() -> None:
    error = parse_image_error(500, b'{"detail": "out of memory"}', ())
    assert isinstance(error, errors.ProviderBadResponse)
    assert "out of memory" in error.message


@given(spoilt({"error": OPENAI["error"] | {"inner_error": {"code": "x"}, "metadata": {"flagged_input": ""}}})
       | spoilt({"code": 1, "message": "x", "detail": [{"type": "x", "msg": "y"}], "errors": ["x"],
                 "base_resp": {"status_code": 1, "status_msg": "x"}, "data": [{"error": {"code": "x"}}]}))  # fmt: skip
def test_garbage_is_some_fault(body: Any) -> None:
    for status in (400, 403, 500):
        assert isinstance(parse_image_error(status, orjson.dumps(body), ("secret",)), errors.ProviderError)


@table_rows("raw", [b"", b"<html>", b"[]", b"null", b'"x"', b"[" * 5000, b"\xff", b'{"error": []}'])
def test_what_is_no_object_is_some_fault(raw: bytes) -> None:
    assert type(parse_image_error(400, raw, ())) is errors.ProviderRejected
