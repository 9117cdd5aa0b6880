"""Integers of any length keep their digits between all formats: in a history, in answers, streamed and not."""

import orjson

from gateway.domain.api_format import Wire
from gateway.domain.inference_request import InferenceRequest
from gateway.formats.chat.anthropic.request import parse_messages_inference
from gateway.formats.chat.gemini.request import parse_generate_inference
from gateway.formats.chat.openai.chat import parse_chat_inference
from gateway.formats.chat.responses.responses import parse_responses_inference
from gateway.formats.registry import make_translator
from gateway.formats.translator import ResponseIdentity
from gateway.formats.wire.json_values import parse_json_object
from gateway.formats.wire.request_body import build_payload
from tests.support import anthropic_cassettes as anthropic
from tests.support.table_rows import table_rows

LONG = "25227143063332189585438"
IDENTITY = ResponseIdentity("1", "claude-sonnet-4-5", 1)
ARGUMENTS = '{"long":' + LONG + "}"
WIRES: tuple[Wire, ...] = ("openai_chat", "anthropic_messages", "gemini_generate", "bedrock_converse")
SCHEMA = {"type": "object", "properties": {"long": {"type": "integer"}}}
INPUT = {"long": "LONG"}


def write(value: object) -> bytes:
    """Write JSON with the long number in place of its mark."""
    return orjson.dumps(value).replace(b'"LONG"', LONG.encode())


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": ARGUMENTS}}
BODIES = {
    "chat": {
        "model": "m",
        "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "ok"},
        ],
    },
    "messages": {
        "model": "m",
        "max_tokens": 9,
        "tools": [{"name": "f", "input_schema": SCHEMA}],
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "f", "input": INPUT}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "ok"}]},
        ],
    },
    "responses": {
        "model": "m",
        "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}],
        "input": [
            {"role": "user", "content": "Hi"},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": ARGUMENTS},
            {"type": "function_call_output", "call_id": "c1", "output": "ok"},
        ],
    },
    "generate_content": {
        "contents": [
            {"role": "user", "parts": [{"text": "Hi"}]},
            {"role": "model", "parts": [{"functionCall": {"name": "f", "args": INPUT}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"output": "ok"}}}]},
        ],
        "tools": [{"functionDeclarations": [{"name": "f", "parameters": SCHEMA}]}],
    },
}


def read_call(operation: str, *, stream: bool = False) -> InferenceRequest:
    body = parse_json_object(write(BODIES[operation]), exact=True)
    if operation == "generate_content":
        return parse_generate_inference(body, model="m", stream=stream)
    read = {"chat": parse_chat_inference, "messages": parse_messages_inference, "responses": parse_responses_inference}[
        operation
    ]
    return read(body | ({"stream": True} if stream else {}))


@table_rows("wire", WIRES)
@table_rows("operation", BODIES)
def test_a_history_keeps_the_digits(operation: str, wire: Wire) -> None:
    inference = read_call(operation)
    assert isinstance(inference.digest, int)
    raw, _ = build_payload(make_translator(inference, wire, IDENTITY).write_body(), "mark")
    written = raw if isinstance(raw, bytes) else b"".join(piece for piece in raw.pieces if isinstance(piece, bytes))
    assert written.count(LONG.encode()) == 1
    assert b"e+22" not in written


def build_chat_answer(arguments: object) -> object:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}


GEMINI = {
    "candidates": [{"content": {"parts": [{"functionCall": {"name": "f", "args": INPUT}}]}, "finishReason": "STOP"}]
}
ANSWERS = {
    "openai_chat": build_chat_answer(ARGUMENTS),
    "openai_object": build_chat_answer(INPUT),
    "anthropic_messages": {
        "id": "msg_1",
        "content": [{"type": "tool_use", "id": "c", "name": "f", "input": INPUT}],
        "stop_reason": "tool_use",
    },
    "gemini_generate": GEMINI,
    "bedrock_converse": {
        "output": {"message": {"content": [{"toolUse": {"toolUseId": "c", "name": "f", "input": INPUT}}]}},
        "stopReason": "tool_use",
    },
}


@table_rows("name", ANSWERS)
@table_rows("operation", BODIES)
def test_a_whole_answer_keeps_the_digits(operation: str, name: str) -> None:
    wire: Wire = "openai_chat" if name == "openai_object" else name  # type: ignore[assignment]
    for stream in (False, True):
        translator = make_translator(read_call(operation, stream=stream), wire, IDENTITY)
        parse = translator.build_whole if stream else translator.parse_answer
        written, _ = parse(write(ANSWERS[name]), ())
        assert LONG.encode() in written


BLOCK = {"type": "tool_use", "id": "c", "name": "f", "input": INPUT}
DELTA = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": INPUT}}]}
STREAMS = {
    "openai_chat": b"data: %b\n\ndata: [DONE]\n\n"
    % write({"choices": [{"index": 0, "delta": DELTA, "finish_reason": "tool_calls"}]}),
    "anthropic_messages": anthropic.begin("msg_1")
    + b"event: content_block_start\ndata: %b\n\n"
    % write({"type": "content_block_start", "index": 0, "content_block": BLOCK})
    + anthropic.stop(0)
    + anthropic.finish("tool_use"),
    "gemini_generate": b"data: %b\n\n" % write(GEMINI),
}


@table_rows("wire", STREAMS)
@table_rows("operation", BODIES)
def test_a_stream_keeps_the_digits(operation: str, wire: Wire) -> None:
    transform = make_translator(read_call(operation, stream=True), wire, IDENTITY).open_transform(())
    written = transform.feed(STREAMS[wire]) + (b"" if transform.ended else transform.finish())
    assert LONG.encode() in written
    assert b"e+22" not in written


@table_rows("operation", BODIES)
def test_halves_of_pairs_and_numbers_that_json_lacks_do_not_fail_an_answer(operation: str) -> None:
    raw = (
        rb'{"choices":[{"index":0,"message":{"role":"assistant","content":"a\ud83d"},"finish_reason":"stop","logprobs":'
        rb'{"content":[{"token":"a","logprob":-Infinity,"bytes":null,"top_logprobs":[{"token":"b","logprob":NaN}]}]}}]}'
    )
    written, _ = make_translator(read_call(operation), "openai_chat", IDENTITY).parse_answer(raw, ())
    if operation == "chat":
        assert written == raw
    else:
        assert "a\ufffd".encode() in written
        orjson.loads(written)
    stream = make_translator(read_call(operation, stream=True), "openai_chat", IDENTITY).open_transform(())
    out = stream.feed(b"data: " + raw.replace(b'"message"', b'"delta"') + b"\n\ndata: [DONE]\n\n")
    assert stream.error is None
    assert b"a" in out
