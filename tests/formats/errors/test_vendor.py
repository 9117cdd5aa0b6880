"""A provider's words about a failure are found in every shape, with any status."""

import orjson
import pytest

from gateway import errors
from gateway.formats.chat.model import StreamError
from gateway.formats.chat.openai.chat import (
    ChatPassthrough,
    parse_answer_object,
    parse_chat_answer,
    parse_chat_inference,
)
from gateway.formats.chat.openai.response import parse_answer
from gateway.formats.chat.openai.stream import ChatStreamParser
from gateway.formats.errors.vendor import parse_worded_error
from tests.support.table_rows import table_rows

CALL = parse_chat_inference({"model": "m", "messages": [{"role": "user", "content": "Hi"}]})
XML = b'<?xml version="1.0"?>\n<Error><Code>BadThing</Code><Message>WORDS</Message><RequestId>1</RequestId></Error>'


@table_rows(
    "raw",
    [
        b'{"error_code":336,"error_msg":"WORDS"}',
        b'{"errors":[{"message":"WORDS"}]}',
        b'{"errors":["WORDS"]}',
        b'{"code":400,"msg":"WORDS","success":false}',
        b'{"base_resp":{"status_code":2013,"status_msg":"WORDS"}}',
        b'{"error":{"msg":"WORDS"}}',
        b'{"error":{"error":{"message":"WORDS"}}}',
        b'{"error":"invalid","error_description":"WORDS"}',
        b'{"error":"Bad Request","message":"WORDS"}',
        b'{"error":"Bad Request","message":["WORDS"]}',
        b'{"detail":{"message":"WORDS"}}',
        b'{"detail":[{"loc":["body"],"msg":"WORDS","type":"missing"}]}',
        b'{"header":{"code":10013,"message":"WORDS"}}',
        b'{"Response":{"Error":{"Code":"Bad","Message":"WORDS"}}}',
        b'{"ResponseMetadata":{"Error":{"Code":"Bad","Message":"WORDS"}}}',
        b'{"fault":{"faultstring":"WORDS"}}',
        b'{"__type":"ValidationException","Message":"WORDS"}',
        b'"WORDS"',
        b"WORDS",
        b"<html><head><title>WORDS</title></head><body></body></html>",
        XML,
    ],
)
def test_the_words_of_an_error_are_read_in_every_shape(raw: bytes) -> None:
    error = parse_worded_error(400, raw, ())
    assert (type(error), error.status) == (errors.ProviderRejected, 400)
    assert error.message == "WORDS"


@table_rows(
    ("status", "raw", "message"),
    [
        (404, b"<title>WORDS</title>", "Provider returned 404 Not Found for /x"),
        (400, b"<html><title>400 Bad Request</title></html>", "Provider returned 400 Bad Request for /x"),
        (400, b"\xff\xfe", "Provider returned 400 Bad Request for /x"),
        (400, b"<title>api.secret-host.com | no</title>", "[address] | no"),
        (
            400,
            orjson.dumps({"error": {"message": "Provider returned error", "metadata": {"raw": '{"message":"WORDS"}'}}}),
            "Provider returned error: WORDS",
        ),
    ],
)
def test_words_that_say_less_than_the_status_or_too_much_are_left_out(status: int, raw: bytes, message: str) -> None:
    assert parse_worded_error(status, raw, (), path="/x").message == message


@table_rows(
    ("value", "kind", "status"),
    [
        ({"code": 401, "msg": "WORDS", "success": False}, errors.ProviderAuthError, 502),
        ({"base_resp": {"status_code": 1004, "status_msg": "WORDS"}}, errors.ProviderAuthError, 502),
        ({"choices": None, "base_resp": {"status_code": 1002, "status_msg": "WORDS"}}, errors.ProviderRateLimited, 429),
        ({"base_resp": {"status_code": 2013, "status_msg": "WORDS"}}, errors.ProviderRejected, 400),
        ({"base_resp": {"status_code": 1013, "status_msg": "WORDS"}}, errors.ProviderBadResponse, 502),
        ({"error_code": 336, "error_msg": "WORDS"}, errors.ProviderBadResponse, 502),
        ({"error": {"message": "WORDS", "code": "x"}}, errors.ProviderBadResponse, 502),
        ({"base_resp": {"status_code": 2013, "status_msg": "WORDS: prompt is too long"}}, errors.ContextExceeded, 400),
        ({"error": {"message": "WORDS: prompt is too long"}}, errors.ContextExceeded, 400),
    ],
)
def test_a_failure_with_status_200_is_reported_whole_and_streamed(
    value: dict[str, object], kind: type[errors.ProviderError], status: int
) -> None:
    raw = orjson.dumps(value)
    with pytest.raises(errors.ProviderError, match="WORDS") as raised:
        parse_answer_object(raw)
    parsed = ChatStreamParser().feed(b"data: " + raw + b"\n\n")
    assert isinstance(parsed[0], StreamError)
    passed = ChatPassthrough(CALL)
    assert passed.feed(b"data: " + raw + b"\n\n") == b""
    for error in (raised.value, parsed[0].error, passed.error):
        assert error is not None
        assert (type(error), error.status, "WORDS" in error.message) == (kind, status, True)


def test_an_answer_with_content_reports_no_failure() -> None:
    value = {"choices": [{"message": {"content": "x"}}], "base_resp": {"status_code": 1027}}
    assert parse_answer_object(orjson.dumps(value)) == value
    assert parse_answer_object(b'{"data":[1],"success":false,"code":7}')["data"] == [1]


@table_rows("listed", [[], None, {}, "x"])
def test_an_answer_without_a_choice_is_unusable_for_every_client(listed: object) -> None:
    value = {"id": "x", "object": "chat.completion", "choices": listed, "usage": {"prompt_tokens": 3}}
    with pytest.raises(errors.ProviderBadResponse, match="no choices"):
        parse_chat_answer(value, CALL)
    with pytest.raises(errors.ProviderBadResponse, match="no choices"):
        parse_answer(orjson.dumps(value))


FILTERED = b'data: {"choices":[],"prompt_filter_results":[{"prompt_index":0}]}\n\n'
CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}\n\n'


@table_rows(
    ("data", "empty", "events"),
    [
        (FILTERED + b"data: [DONE]\n\n", True, 0),
        (FILTERED + CHUNK + b"data: [DONE]\n\n", False, 1),
        (FILTERED, False, 0),
    ],
)
def test_a_stream_without_a_choice_is_no_answer(data: bytes, empty: bool, events: int) -> None:
    for cut in (len(data), 40):
        passed = ChatPassthrough(CALL)
        passed.feed(data[:cut])
        passed.feed(data[cut:])
        assert (passed.empty, passed.events) == (empty, events)


@table_rows(
    ("status", "error", "shown", "retryable"),
    [
        (500, {"code": 500, "message": "Conversation roles must alternate user/assistant"}, 400, False),
        (
            500,
            {"code": 500, "message": "image input is not supported - hint: mmproj", "type": "server_error"},
            400,
            False,
        ),
        (500, {"code": 400, "message": "no"}, 400, False),
        (500, {"code": 500, "message": "out of memory"}, 502, True),
        (501, {"code": 501, "message": "no embeddings", "type": "not_supported_error"}, 501, True),
    ],
)
def test_a_callers_mistake_is_the_callers_whatever_the_status(
    status: int, error: object, shown: int, retryable: bool
) -> None:
    failure = parse_worded_error(status, orjson.dumps({"error": error}), ())
    assert (failure.status, failure.retryable, failure.passing) == (shown, retryable, shown == 502)
    assert failure.failure_scope == ("channel" if shown == 502 else "nobody")
    assert failure.public_code == {400: "invalid_request", 501: "api_not_implemented"}.get(shown, "upstream_error")
