"""A stream of the Responses API that fails midway ends as OpenAI's does, with the next sequence number."""

from typing import Any

import httpx2 as httpx
import orjson
import pytest
from openai import APIError, OpenAI
from openai.types.responses import ResponseErrorEvent

from gateway.domain.inference_request import InferenceRequest
from gateway.errors import ContextExceeded, GatewayError, ProviderBadResponse
from gateway.formats.chat.openai.stream import ChatStreamParser, ChatStreamSerializer
from gateway.formats.chat.responses.response_writer import ResponseStreamSerializer
from gateway.formats.chat.responses.responses import ResponsesPassthrough
from gateway.formats.errors.body import build_error_event
from gateway.formats.stream import StreamTransform, TranslatingStream
from gateway.formats.translator import ResponseIdentity
from gateway.formats.wire import sse
from tests.support.table_rows import table_rows

CALL = InferenceRequest("responses", "m", {"model": "m", "input": "hi"}, stream=True)
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "gpt",
    "status": "in_progress",
    "output": [],
}
BROKE = ProviderBadResponse("It broke", phase="stream")
FULL = ContextExceeded("prompt is too long", status=400, code="context_length_exceeded")


def event(kind: str, number: int, **fields: Any) -> bytes:
    data = orjson.dumps({"type": kind, "sequence_number": number, **fields})
    return f"event: {kind}\ndata: {data.decode()}\n\n".encode()


def read(raw: bytes) -> list[dict[str, Any]]:
    return [orjson.loads(sse.parse_data(one) or b"") for one in sse.SseSplitter().split(raw)]


def pass_events() -> tuple[StreamTransform, bytes]:
    transform = ResponsesPassthrough(CALL)
    out = transform.feed(
        event("response.created", 0, response=RESPONSE) + event("response.in_progress", 1, response=RESPONSE)
    )
    out += transform.feed(
        event("response.output_text.delta", 2, delta="a", item_id="i", output_index=0, content_index=0)
    )
    out += transform.feed(
        b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":3,'
    )
    return transform, out


def translate_events() -> tuple[StreamTransform, bytes]:
    writer = ResponseStreamSerializer(CALL, ResponseIdentity("1", "gpt", 1))
    transform = TranslatingStream(ChatStreamParser(), writer, CALL)
    return transform, transform.feed(b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n')


@table_rows("begin", [pass_events, translate_events])
@table_rows(
    ("error", "code", "shown"),
    [(BROKE, "upstream_error", "server_error"), (FULL, "context_length_exceeded", "context_length_exceeded")],
)
def test_a_failure_continues_the_sequence(begin: Any, error: GatewayError, code: str, shown: str) -> None:
    transform, before = begin()
    first, second = read(transform.write_error(error, "req_1"))
    number = read(before)[-1]["sequence_number"] + 1
    message = f"{error.message} (request id: req_1)"
    assert first.pop("error")["message"] == message
    assert first == {"type": "error", "code": code, "message": message, "param": None, "sequence_number": number}
    assert (second["type"], second["sequence_number"]) == ("response.failed", number + 1)
    response = second["response"]
    assert (response["id"], response["model"], response["status"]) == ("resp_1", "gpt", "failed")
    assert response["error"] == {"code": shown, "message": message}


def test_a_failure_reported_by_the_provider_takes_its_place() -> None:
    transform, before = pass_events()
    transform = ResponsesPassthrough(CALL)
    transform.feed(before)
    transform.feed(event("error", 3, code="x", message="WORDS", param=None))
    assert transform.error is not None
    assert [value["sequence_number"] for value in read(transform.write_error(transform.error, "r"))] == [3, 4]


def test_a_failure_before_the_response_began_is_an_event_too() -> None:
    transform = ResponsesPassthrough(CALL)
    first, second = read(transform.write_error(BROKE, "req_1"))
    assert (first["sequence_number"], second["sequence_number"]) == (0, 1)
    assert second["response"]["id"] == "resp_req_1"
    (alone,) = read(build_error_event(BROKE, "req_1", "responses"))
    assert alone == first


@table_rows("begin", [pass_events, translate_events])
def test_openais_library_raises_an_error(begin: Any) -> None:
    transform, before = begin()
    raw = before + transform.write_error(BROKE, "req_1")
    head = {"Content-Type": "text/event-stream"}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, headers=head, content=raw))
    client = OpenAI(api_key="x", base_url="http://test/v1", http_client=httpx.Client(transport=transport))
    with pytest.raises(APIError, match="It broke"):
        list(client.responses.create(model="m", input="hi", stream=True))
    first, second = read(transform.write_error(BROKE, "req_1"))
    assert ResponseErrorEvent.model_validate(first).code == "upstream_error"
    assert second["response"]["error"]["code"] == "server_error"


def test_other_formats_end_with_their_own_event() -> None:
    writer = ChatStreamSerializer(answer_id="1", model="m", created_s=1, include_usage=False)
    assert TranslatingStream(ChatStreamParser(), writer, CALL).write_error(BROKE, "r") == b""
