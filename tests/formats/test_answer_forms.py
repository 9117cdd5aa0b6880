"""A JSON answer and its stream say the same, in every client format: each is made of the other without a loss."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from gateway.deferred import load
from gateway.domain.cached_answer import JSON_FORM, STREAM_FORM, USAGE_STREAM_FORM
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import Operation
from gateway.domain.usage import Usage
from gateway.formats.answer_forms import convert_answer
from gateway.formats.redaction.event_texts import parse_event, split_events
from gateway.formats.translator import ResponseIdentity

IDENTITY = ResponseIdentity("0123456789abcdef01234567", "m", 1_750_000_000)
USED = Usage(19, 10, 4, "upstream", reasoning_tokens=3)
ASKED = [{"role": "user", "content": "x"}]
REQUESTS: dict[Operation, tuple[str, dict[str, Any]]] = {
    "chat": ("formats.chat.openai.chat:parse_chat_inference", {"model": "m", "messages": ASKED, "n": 2}),
    "completions": ("formats.chat.openai.completions:parse_completions_inference", {"model": "m", "prompt": "x"}),
    "messages": (
        "formats.chat.anthropic.request:parse_messages_inference",
        {"model": "m", "max_tokens": 9, "messages": ASKED},
    ),
    "responses": (
        "formats.chat.responses.responses:parse_responses_inference",
        {"model": "m", "input": "x", "store": False},
    ),
    "generate_content": (
        "formats.chat.gemini.request:parse_generate_inference",
        {"contents": [{"parts": [{"text": "x"}]}]},
    ),
}
LOGPROBS = [{"token": "H", "logprob": -0.1, "bytes": [72], "top_logprobs": []}]
CITATION = {"type": "url_citation", "url_citation": {"url": "http://x", "title": "t", "start_index": 0, "end_index": 3}}
CALLS = [
    {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
    {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
]
CHAT_MESSAGE = {
    "role": "assistant",
    "content": "Hello \n wörld",
    "refusal": None,
    "reasoning_content": "hm hm",
    "annotations": [CITATION],
    "tool_calls": CALLS,
}
SECOND_MESSAGE = {
    "role": "assistant",
    "content": "second",
    "refusal": None,
    "images": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}],
}
OPENAI_USAGE = {
    "prompt_tokens": 19,
    "completion_tokens": 10,
    "total_tokens": 29,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 3},
}
THOUGHT = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "so"}],
    "encrypted_content": "e",
}
OUTPUT_TEXT = {
    "type": "output_text",
    "text": "Hello",
    "annotations": [{"type": "url_citation", "url": "http://x", "title": "t", "start_index": 0, "end_index": 2}],
    "logprobs": LOGPROBS,
}
ANSWERS: dict[Operation, dict[str, Any]] = {
    "chat": {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "system_fingerprint": "fp",
        "service_tier": "default",
        "choices": [
            {
                "index": 0,
                "message": CHAT_MESSAGE,
                "logprobs": {"content": LOGPROBS, "refusal": None},
                "finish_reason": "tool_calls",
            },
            {"index": 1, "message": SECOND_MESSAGE, "logprobs": None, "finish_reason": "stop"},
        ],
        "usage": OPENAI_USAGE,
    },
    "completions": {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "text": "Hello",
                "logprobs": {"tokens": ["H"], "token_logprobs": [-0.1], "top_logprobs": None, "text_offset": [0]},
                "finish_reason": "stop",
            },
            {"index": 1, "text": "two", "logprobs": None, "finish_reason": "length"},
        ],
        "usage": OPENAI_USAGE,
    },
    "messages": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "thinking", "thinking": "hmm", "signature": "sig"},
            {"type": "redacted_thinking", "data": "xx"},
            {"type": "text", "text": "Hi", "citations": [{"type": "page_location", "cited_text": "c"}]},
            {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1.0, "b": [1, 2]}},
            {"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 15, "cache_read_input_tokens": 4, "output_tokens": 10, "service_tier": "standard"},
    },
    "responses": {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": "m",
        "store": False,
        "output": [
            THOUGHT,
            {"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [OUTPUT_TEXT]},
            {
                "type": "function_call",
                "id": "f1",
                "call_id": "c1",
                "name": "f",
                "arguments": "{}",
                "status": "completed",
            },
            {
                "type": "custom_tool_call",
                "id": "t1",
                "call_id": "c2",
                "name": "g",
                "input": "raw",
                "status": "completed",
            },
            {"type": "image_generation_call", "id": "ig", "status": "completed", "result": "aGk="},
        ],
        "usage": {
            "input_tokens": 19,
            "input_tokens_details": {"cached_tokens": 4},
            "output_tokens": 10,
            "output_tokens_details": {"reasoning_tokens": 3},
            "total_tokens": 29,
        },
    },
    "generate_content": {
        "candidates": [
            {
                "content": {
                    "role": "model",
                    "parts": [
                        {"text": "so", "thought": True, "thoughtSignature": "sg"},
                        {"text": "Hi"},
                        {"inlineData": {"mimeType": "image/png", "data": "aGk="}},
                        {"functionCall": {"name": "f", "args": {"a": 1}}},
                    ],
                },
                "finishReason": "STOP",
                "index": 0,
                "citationMetadata": {"citationSources": [{"uri": "http://x"}]},
                "groundingMetadata": {"webSearchQueries": ["q"]},
                "avgLogprobs": -0.1,
                "logprobsResult": {"chosenCandidates": [{"token": "H", "logProbability": -0.1}]},
                "safetyRatings": [{"category": "X", "probability": "LOW"}],
            },
            {"content": {"role": "model", "parts": [{"text": "second"}]}, "finishReason": "MAX_TOKENS", "index": 1},
        ],
        "usageMetadata": {"promptTokenCount": 19, "candidatesTokenCount": 7, "thoughtsTokenCount": 3},
        "modelVersion": "m",
        "responseId": "r1",
    },
}


def make_request(operation: Operation, *, stream: bool, usage: bool = True) -> InferenceRequest:
    path, body = REQUESTS[operation]
    parse: Callable[..., InferenceRequest] = load(path)
    if operation == "generate_content":
        return parse(dict(body), model="m", stream=stream)
    options = {"stream_options": {"include_usage": True}} if usage and operation in {"chat", "completions"} else {}
    streamed = {"stream": True, **options} if stream else {}
    return parse({**body, **streamed})


def convert(operation: Operation, body: bytes, form: str, *, stream: bool, usage: bool = True) -> bytes | None:
    return convert_answer(body, form, USED, make_request(operation, stream=stream, usage=usage), IDENTITY)


def event(data: Any) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"


def list_data(stream: bytes) -> list[Any]:
    return [parse_event(raw).data for raw in split_events(stream)]


@pytest.mark.parametrize("operation", ANSWERS)
def test_an_answer_and_its_stream_say_the_same(operation: Operation) -> None:
    answer = ANSWERS[operation]
    stream = convert(operation, orjson.dumps(answer), JSON_FORM, stream=True)
    assert stream is not None
    whole = convert(operation, stream, USAGE_STREAM_FORM, stream=False)
    assert whole is not None
    assert orjson.loads(whole) == answer
    again = convert(operation, whole, JSON_FORM, stream=True)
    assert list_data(again or b"") == list_data(stream)


@pytest.mark.parametrize("operation", ["chat", "completions"])
def test_usage_that_a_stream_did_not_report_is_added(operation: Operation) -> None:
    stream = convert(operation, orjson.dumps(ANSWERS[operation]), JSON_FORM, stream=True, usage=False)
    assert stream is not None
    assert b"prompt_tokens" not in stream
    whole = convert(operation, stream, STREAM_FORM, stream=False)
    assert whole is not None
    assert orjson.loads(whole) == ANSWERS[operation]


def test_the_pieces_of_a_chat_are_joined() -> None:
    head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}

    def write(index: int, delta: Any, **more: Any) -> bytes:
        return event({**head, "choices": [{"index": index, "delta": delta, **more}]})

    stream = [write(0, {"role": "assistant", "content": ""}), write(1, {"role": "assistant", "content": "other"})]
    for letter in "Hello":
        stream += [
            write(0, {"content": letter}, logprobs={"content": [{"token": letter}]}),
            write(1, {"reasoning": letter}),
        ]
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}
    stream.append(write(0, {"tool_calls": [call]}))
    stream += [write(0, {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}) for piece in '{"a":1}']
    details = [{"type": "reasoning.text", "index": 0, "text": piece} for piece in ("so ", "it is")]
    stream += [write(1, {"reasoning_details": [detail]}) for detail in details]
    stream += [write(1, {}, finish_reason="stop"), write(0, {}, finish_reason="tool_calls", logprobs=None)]
    whole = convert("chat", b"".join(stream) + b"data: [DONE]\n\n", STREAM_FORM, stream=False)
    first, second = orjson.loads(whole or b"")["choices"]
    assert (first["message"]["content"], first["finish_reason"]) == ("Hello", "tool_calls")
    assert [token["token"] for token in first["logprobs"]["content"]] == [*"Hello"]
    assert first["message"]["tool_calls"] == [CALLS[0]]
    assert (second["message"]["content"], second["message"]["reasoning"]) == ("other", "Hello")
    assert second["message"]["reasoning_details"] == [{"type": "reasoning.text", "index": 0, "text": "so it is"}]


def test_the_pieces_of_a_message_are_joined() -> None:
    tool = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    events = [
        {
            "type": "message_start",
            "message": {"id": "m", "content": [], "usage": {"input_tokens": 5, "output_tokens": 1}},
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "", "citations": None}},
        *({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": one}} for one in "Hello"),
        *(
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "citations_delta", "citation": {"cited_text": one}},
            }
            for one in "ab"
        ),
        {"type": "content_block_start", "index": 1, "content_block": tool},
        *(
            {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": one}}
            for one in '{"big":12345678901234567890123}'
        ),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    ]
    stream = b": hello\n\n" + b"".join(map(event, events))
    whole = convert("messages", stream, STREAM_FORM, stream=False) or b""
    assert b'"input":{"big":12345678901234567890123}' in whole
    message = orjson.loads(whole)
    assert message["content"][0] == {
        "type": "text", "text": "Hello", "citations": [{"cited_text": "a"}, {"cited_text": "b"}]
    }  # fmt: skip
    assert (message["stop_reason"], message["usage"]) == ("tool_use", {"input_tokens": 5, "output_tokens": 9})
    assert convert("messages", b"".join(map(event, events[:-1])), STREAM_FORM, stream=False) is None


def test_the_pieces_of_a_gemini_answer_are_joined() -> None:
    parts = [*({"text": one, "thought": True} for one in "so"), *({"text": one} for one in "Hello")]
    call = {"functionCall": {"name": "f", "args": {}}, "thoughtSignature": "s"}
    chunks: list[dict[str, Any]] = [
        {"candidates": [{"content": {"role": "model", "parts": [part]}}]} for part in (*parts, call, {"text": "!"})
    ]
    chunks[-1] = {**chunks[-1], "usageMetadata": {"promptTokenCount": 3}}
    whole = convert("generate_content", b"".join(map(event, chunks)), STREAM_FORM, stream=False)
    answer = orjson.loads(whole or b"")
    assert answer["candidates"][0]["content"]["parts"] == [
        {"text": "so", "thought": True}, {"text": "Hello"}, call, {"text": "!"}
    ]  # fmt: skip
    assert answer["usageMetadata"] == {"promptTokenCount": 3}


ODD_EVENTS: list[Any] = [
    {"error": {"message": "no"}},
    {"type": "message_start", "message": 7},
    {"type": "content_block_delta"},
    {"type": "content_block_start", "index": [1]},
    {"type": "response.completed", "response": "x"},
]
TOO_DEEP = b"data: " + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"\n\n"


@pytest.mark.parametrize("operation", ANSWERS)
@pytest.mark.parametrize("raw", [b"", b"data: [DONE]\n\n", b"data: {\n\n", TOO_DEEP, *map(event, ODD_EVENTS)])
def test_what_is_no_whole_stream_is_not_given_as_json(operation: Operation, raw: bytes) -> None:
    assert convert(operation, raw, STREAM_FORM, stream=False) is None


@pytest.mark.parametrize(
    "choice",
    [{"delta": 7}, {"index": None, "delta": {"tool_calls": "x"}}, {"delta": {"tool_calls": [7, {"index": None}]}}],
)
def test_odd_chunks_do_no_harm(choice: Any) -> None:
    stream = event({"choices": [choice]}) + event({"choices": [choice], "usage": None})
    assert convert("chat", stream, STREAM_FORM, stream=False) is not None


@pytest.mark.parametrize("odd", ["0", 0.5, {}, True])
def test_pieces_with_an_index_that_is_no_number_are_not_joined(odd: Any) -> None:
    for choice in ({"index": odd, "delta": {"content": "a"}}, {"delta": {"tool_calls": [{"index": odd}]}}):
        assert convert("chat", event({"choices": [choice]}) * 2, STREAM_FORM, stream=False) is None


def test_empty_texts_replace_nothing_and_types_are_kept_apart() -> None:
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": "{"}}
    later = {"index": 0, "id": "", "type": "", "function": {"name": "", "arguments": "}"}}
    details = [{"type": f"reasoning.{kind}", "index": 0, "text": text} for kind, text in zip("aba", "xyz", strict=True)]
    deltas = [
        {"role": "assistant", "tool_calls": [call], "reasoning_details": details[:2]},
        {"role": "", "tool_calls": [later], "reasoning_details": details[2:]},
    ]
    stream = b"".join(event({"id": "", "model": "m", "choices": [{"index": 0, "delta": delta}]}) for delta in deltas)
    answer = orjson.loads(convert("chat", stream, STREAM_FORM, stream=False) or b"")
    message = answer["choices"][0]["message"]
    assert (answer["id"], message["role"]) == ("", "assistant")
    assert message["tool_calls"] == [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    assert [(detail["type"], detail["text"]) for detail in message["reasoning_details"]] == [
        ("reasoning.a", "xz"), ("reasoning.b", "y")
    ]  # fmt: skip


def test_calls_of_one_index_with_ids_of_their_own_stay_apart() -> None:
    pieces = [("c1", "f", '{"q":'), ("", "", "1}"), ("c2", "f", '{"q":'), ("", "", "2}")]
    calls = [
        {"index": 0, "id": call_id, "function": {"name": name, "arguments": text}} for call_id, name, text in pieces
    ]
    stream = b"".join(event({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}) for call in calls)
    answer = orjson.loads(convert("chat", stream, STREAM_FORM, stream=False) or b"")
    joined = answer["choices"][0]["message"]["tool_calls"]
    assert [(call["id"], call["function"]["arguments"]) for call in joined] == [("c1", '{"q":1}'), ("c2", '{"q":2}')]


@pytest.mark.parametrize(
    ("found", "joined"),
    [([["a"], ["a", "b"]], ["a", "b"]), ([["a", "b"], []], ["a", "b"]), ([["a"], None], ["a"]), ([["a"], ["b"]], None)],
)
def test_sources_of_earlier_gemini_chunks_stay(found: list[Any], joined: Any) -> None:
    chunks = [
        {"candidates": [{"content": {"parts": []}, "groundingMetadata": {"groundingChunks": one, "n": number}}]}
        for number, one in enumerate(found)
    ]
    whole = convert("generate_content", b"".join(map(event, chunks)), STREAM_FORM, stream=False)
    metadata = None if whole is None else orjson.loads(whole)["candidates"][0]["groundingMetadata"]
    assert metadata == (None if joined is None else {"groundingChunks": joined, "n": 1})
