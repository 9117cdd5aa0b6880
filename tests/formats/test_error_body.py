"""A fault in the language of whoever called."""

from typing import get_args

import orjson
import pytest

from gateway.domain.inference_request import Operation
from gateway.errors import InvalidRequest, NoHealthyChannel, NotFound
from gateway.formats import sse
from gateway.formats.error_body import build_error, build_error_event

FAULT = InvalidRequest("'n' must be 1", param="n")
OURS = {
    "message": "'n' must be 1 (request id: req_1)",
    "type": "new_api_error",
    "param": "n",
    "code": "invalid_request",
}
THEIRS = {"type": "invalid_request_error", "message": OURS["message"], "param": "n", "code": "invalid_request"}


def test_clients_of_anthropics_api_are_answered_in_its_shape_and_all_others_in_the_conventions() -> None:
    assert orjson.loads(build_error(FAULT, "req_1", anthropic=True)) == {
        "type": "error",
        "error": THEIRS,
        "request_id": "req_1",
    }
    assert orjson.loads(build_error(FAULT, "req_1", anthropic=False)) == {"error": OURS}


@pytest.mark.parametrize("operation", get_args(Operation))
def test_a_stream_ends_in_the_language_it_is_in(operation: Operation) -> None:
    raw = build_error_event(FAULT, "req_1", operation)
    (event,) = sse.SseSplitter().split(raw)
    assert event == raw
    value = orjson.loads(sse.parse_data(raw) or b"")
    anthropic = operation in {"messages", "count_tokens"}
    assert value["error"] == (THEIRS if anthropic else OURS)
    assert raw.startswith(b"event: error\n") == anthropic


@pytest.mark.parametrize(
    ("fault", "kind"),
    [(NoHealthyChannel("all are down"), "overloaded_error"), (NotFound("no such path"), "not_found_error")],
)
def test_anthropics_clients_are_told_the_kind_they_know(fault: NotFound | NoHealthyChannel, kind: str) -> None:
    assert orjson.loads(build_error(fault, "req_1", anthropic=True))["error"]["type"] == kind
    assert orjson.loads(build_error(fault, "req_1", anthropic=False))["error"]["type"] == "new_api_error"
