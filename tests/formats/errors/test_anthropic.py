"""A fault, as Anthropic's clients read it."""

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway import errors
from gateway.error_status import STATUS
from gateway.formats.errors.anthropic import build_messages_error, build_messages_error_event
from gateway.formats.wire.sse import SseSplitter, parse_data
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
        (errors.InvalidRequest("x"), "invalid_request_error"),
        (errors.UnsupportedMediaType("x"), "invalid_request_error"),
        (errors.InvalidApiKey("x"), "authentication_error"),
        (errors.GroupNotAllowed("x"), "permission_error"),
        (errors.ModelNotFound("x"), "not_found_error"),
        (errors.RequestTimeout("x"), "timeout_error"),
        (errors.Conflict("x"), "conflict_error"),
        (errors.RequestTooLarge("x"), "request_too_large"),
        (errors.RateLimited("x"), "rate_limit_error"),
        (errors.QuotaExceeded("x", status=403), "billing_error"),
        (errors.QuotaExceeded("x", status=429), "rate_limit_error"),
        (errors.InternalError("x"), "api_error"),
        (errors.ApiNotImplemented("x"), "api_error"),
        (errors.ProviderBadResponse("x"), "api_error"),
        (errors.Overloaded("x"), "overloaded_error"),
        (errors.ProviderTimeout("x"), "timeout_error"),
        (errors.ProviderRejected("x", status=422, type="of_theirs"), "invalid_request_error"),
        (errors.ProviderRejected("x", status=413), "request_too_large"),
        (errors.ProviderRateLimited("x", status=429), "rate_limit_error"),
    ],
)
def test_the_type_follows_from_the_status(error: errors.GatewayError, kind: str) -> None:
    assert orjson.loads(build_messages_error(error, "req_1"))["error"]["type"] == kind


@given(st.sampled_from(sorted(STATUS.values())) | st.integers(400, 599))
def test_every_status_has_a_type_that_they_know(status: int) -> None:
    assert (
        orjson.loads(build_messages_error(errors.ProviderRejected("x", status=status), "r"))["error"]["type"] in THEIRS
    )


def test_the_object_says_what_where_and_which_request() -> None:
    assert orjson.loads(build_messages_error(errors.InvalidRequest("No.", param="messages[0]"), "req_1")) == {
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
    error = errors.ProviderBadResponse(message)
    (event,) = SseSplitter().split(build_messages_error_event(error, "req_1"))
    assert event.startswith(b"event: error\ndata: {")
    assert parse_data(event) == build_messages_error(error, "req_1")
