"""A fault, as Anthropic's clients read it."""

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway.error_status import STATUS
from gateway.errors import (
    ApiNotImplemented,
    Conflict,
    GatewayError,
    GroupNotAllowed,
    InternalError,
    InvalidApiKey,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    ProviderBadResponse,
    ProviderRateLimited,
    ProviderRejected,
    ProviderTimeout,
    QuotaExceeded,
    RateLimited,
    RequestTimeout,
    RequestTooLarge,
    UnsupportedMediaType,
)
from gateway.formats.anthropic.errors import build_messages_error, build_messages_error_event
from gateway.formats.sse import SseSplitter, parse_data
from tests.support.table_rows import table_rows

THEIRS = {
    "invalid_request_error",
    "authentication_error",
    "billing_error",
    "permission_error",
    "not_found_error",
    "rate_limit_error",
    "timeout_error",
    "api_error",
    "overloaded_error",
    "conflict_error",
    "request_too_large",
}


@table_rows(
    ("error", "kind"),
    [
        (InvalidRequest("x"), "invalid_request_error"),
        (UnsupportedMediaType("x"), "invalid_request_error"),
        (InvalidApiKey("x"), "authentication_error"),
        (GroupNotAllowed("x"), "permission_error"),
        (ModelNotFound("x"), "not_found_error"),
        (RequestTimeout("x"), "timeout_error"),
        (Conflict("x"), "conflict_error"),
        (RequestTooLarge("x"), "request_too_large"),
        (RateLimited("x"), "rate_limit_error"),
        (QuotaExceeded("x", status=403), "billing_error"),
        (QuotaExceeded("x", status=429), "rate_limit_error"),
        (InternalError("x"), "api_error"),
        (ApiNotImplemented("x"), "api_error"),
        (ProviderBadResponse("x"), "api_error"),
        (Overloaded("x"), "overloaded_error"),
        (ProviderTimeout("x"), "timeout_error"),
        (ProviderRejected("x", status=422, type="of_theirs"), "invalid_request_error"),
        (ProviderRejected("x", status=413), "request_too_large"),
        (ProviderRateLimited("x", status=429), "rate_limit_error"),
    ],
)
def test_the_type_follows_from_the_status(error: GatewayError, kind: str) -> None:
    assert orjson.loads(build_messages_error(error, "req_1"))["error"]["type"] == kind


@given(st.sampled_from(sorted(STATUS.values())) | st.integers(400, 599))
def test_every_status_has_a_type_that_they_know(status: int) -> None:
    assert orjson.loads(build_messages_error(ProviderRejected("x", status=status), "r"))["error"]["type"] in THEIRS


def test_the_object_says_what_where_and_which_request() -> None:
    assert orjson.loads(build_messages_error(InvalidRequest("No.", param="messages[0]"), "req_1")) == {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "No. (request id: req_1)",
            "param": "messages[0]",
            "code": "invalid_request",
        },
        "request_id": "req_1",
    }


@given(st.text(st.characters(codec="utf-8")))
def test_the_event_is_one_event_named_error_that_holds_the_object(message: str) -> None:
    error = ProviderBadResponse(message)
    (event,) = SseSplitter().split(build_messages_error_event(error, "req_1"))
    assert event.startswith(b"event: error\ndata: {")
    assert parse_data(event) == build_messages_error(error, "req_1")
