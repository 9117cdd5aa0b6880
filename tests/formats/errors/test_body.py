"""An error in the API format of the client."""

from typing import get_args

import orjson

from gateway.domain.operation import Operation
from gateway.errors import (
    GatewayError,
    InternalError,
    InvalidApiKey,
    InvalidRequest,
    NoHealthyChannel,
    NotFound,
    QuotaExceeded,
    RateLimited,
)
from gateway.formats.errors.body import build_error, build_error_event
from gateway.formats.wire import sse
from tests.support.table_rows import table_rows

FAULT = InvalidRequest("'n' must be 1", param="n")
OURS = {
    "message": "'n' must be 1 (request id: req_1)",
    "type": "new_api_error",
    "param": "n",
    "code": "invalid_request",
}
THEIRS = {"type": "invalid_request_error", "message": OURS["message"], "param": "n", "code": "invalid_request"}


GOOGLES = {
    "code": 400,
    "message": OURS["message"],
    "status": "INVALID_ARGUMENT",
    "details": [
        {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "INVALID_REQUEST", "domain": "model-gateway"},
        {"@type": "type.googleapis.com/google.rpc.RequestInfo", "requestId": "req_1"},
        {
            "@type": "type.googleapis.com/google.rpc.BadRequest",
            "fieldViolations": [{"field": "n", "description": "'n' must be 1"}],
        },
    ],
}


def test_every_client_is_answered_in_the_shape_of_its_api() -> None:
    assert orjson.loads(build_error(FAULT, "req_1", "anthropic")) == {
        "type": "error",
        "error": THEIRS,
        "request_id": "req_1",
    }
    assert orjson.loads(build_error(FAULT, "req_1", "openai")) == {"error": OURS}
    assert orjson.loads(build_error(FAULT, "req_1", "google")) == {"error": GOOGLES}


@table_rows(
    ("error", "status", "retry"),
    [
        (RateLimited("slower", retry_after_s=7), "RESOURCE_EXHAUSTED", "7s"),
        (QuotaExceeded("spent", status=403), "RESOURCE_EXHAUSTED", None),
        (NotFound("no such path"), "NOT_FOUND", None),
        (InvalidApiKey("who are you?"), "UNAUTHENTICATED", None),
        (NoHealthyChannel("all are down", retry_after_s=2), "UNAVAILABLE", "2s"),
        (InternalError("a bug"), "INTERNAL", None),
    ],
)
def test_googles_clients_are_told_the_status_they_know_and_when_to_try_again(
    error: GatewayError, status: str, retry: str | None
) -> None:
    reported = orjson.loads(build_error(error, "req_1", "google"))["error"]
    assert (reported["code"], reported["status"]) == (error.status, status)
    assert next((detail["retryDelay"] for detail in reported["details"] if "retryDelay" in detail), None) == retry


@table_rows("operation", get_args(Operation))
def test_a_stream_ends_in_the_language_it_is_in(operation: Operation) -> None:
    raw = build_error_event(FAULT, "req_1", operation)
    (event,) = sse.SseSplitter().split(raw)
    assert event == raw
    value = orjson.loads(sse.parse_data(raw) or b"")
    if operation == "responses":
        assert value.pop("error") == OURS
        assert value == OURS | {"type": "error", "sequence_number": 0}
    else:
        assert value["error"] == {"messages": THEIRS, "generate_content": GOOGLES}.get(operation, OURS)
    assert raw.startswith(b"event: error\n") == (operation in {"messages", "responses"})


@table_rows(
    ("fault", "kind"),
    [(NoHealthyChannel("all are down"), "overloaded_error"), (NotFound("no such path"), "not_found_error")],
)
def test_anthropics_clients_are_told_the_kind_they_know(fault: NotFound | NoHealthyChannel, kind: str) -> None:
    assert orjson.loads(build_error(fault, "req_1", "anthropic"))["error"]["type"] == kind
    assert orjson.loads(build_error(fault, "req_1", "openai"))["error"]["type"] == "new_api_error"
