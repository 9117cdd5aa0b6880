"""Every operation in every language it can be said in: sent, answered, streamed, and what cannot be believed."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.api_format import Wire
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import OPERATIONS, Operation
from gateway.domain.upload import Content, Upload
from gateway.domain.usage import NO_USAGE, Usage
from gateway.errors import InvalidRequest, ProviderBadResponse, ProviderError, ProviderRejected
from gateway.formats.audio.speech import parse_speech_inference
from gateway.formats.audio.transcriptions import parse_transcription_inference, parse_translation_inference
from gateway.formats.chat.anthropic import response as anthropic_answer
from gateway.formats.chat.anthropic.request import parse_count_inference, parse_messages_inference
from gateway.formats.chat.anthropic.stream import STOP_EVENT, MessagesStreamParser
from gateway.formats.chat.bedrock.stream import ConverseStreamParser
from gateway.formats.chat.gemini import response as gemini_answer
from gateway.formats.chat.gemini import token_counts as gemini_counts
from gateway.formats.chat.gemini.request import parse_generate_inference
from gateway.formats.chat.gemini.response import GenerateContentParser
from gateway.formats.chat.model import ChoiceFinished, Event, TextDelta, ToolCallDelta, ToolCallStart
from gateway.formats.chat.openai import response as openai_answer
from gateway.formats.chat.openai.chat import DONE_EVENT, parse_chat_inference
from gateway.formats.chat.openai.completions import parse_completions_inference
from gateway.formats.chat.openai.stream import ChatStreamParser
from gateway.formats.chat.responses.responses import parse_responses_inference
from gateway.formats.embeddings.gemini_clients import parse_batch_embed_inference
from gateway.formats.embeddings.openai import parse_embeddings_inference
from gateway.formats.images.openai import parse_edits_inference, parse_images_inference
from gateway.formats.moderations import parse_moderations_inference
from gateway.formats.registry import make_translator
from gateway.formats.rerank import parse_rerank_inference
from gateway.formats.stream import StreamParser, parse_events_usage
from gateway.formats.translator import ResponseIdentity, Translator
from gateway.formats.wire import sse
from gateway.formats.wire.form import ReceivedForm
from gateway.formats.wire.request_body import Body, Form, Payload, build_payload
from tests.support import anthropic_cassettes as anthropic
from tests.support import converse_cassettes as bedrock
from tests.support import gemini_cassettes as gemini
from tests.support.corrupt_json import spoilt
from tests.support.image_calls import InMemory, upload
from tests.support.image_providers import draw
from tests.support.scripted_upstream import DONE, chat_events, event, usage_frame
from tests.support.table_rows import table_rows

SECRET = "s3cret-key-of-the-channel"
IDENTITY = ResponseIdentity("0123", "theirs", 1_700_000_000)
FILMED = {"videos", "video_remixes", "realtime"}
"""Operations that no exchange is made for: filmmakers speak for themselves, and sessions pass untouched."""
PAIRS = [
    (operation, wire) for operation, facts in OPERATIONS.items() for wire in facts.formats if operation not in FILMED
]
TURNS = [{"role": "user", "content": "Hi"}]
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}}
CHAT: dict[str, Any] = {
    "model": "ours",
    "messages": [
        {"role": "developer", "content": "Be brief"},
        *TURNS,
        {
            "role": "assistant",
            "content": "Let me look",
            "tool_calls": [{"id": "h1", "type": "function", "function": {"name": "f", "arguments": '{"city": "x"}'}}],
        },
        {"role": "tool", "tool_call_id": "h1", "content": "sunny"},
    ],
    "max_tokens": 99,
    "temperature": 0.5,
    "tools": [{"type": "function", "function": {"name": "f", "parameters": WEATHER}}],
}
MESSAGES: dict[str, Any] = {
    "model": "ours",
    "max_tokens": 99,
    "system": "Be brief",
    "messages": [
        *TURNS,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "h1", "name": "f", "input": {"city": "x"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "h1", "content": "sunny"}]},
    ],
    "tools": [{"name": "f", "input_schema": WEATHER}],
}
GENERATE: dict[str, Any] = {
    "model": "ours",
    "systemInstruction": {"parts": [{"text": "Be brief"}]},
    "contents": [
        {"role": "user", "parts": [{"text": "Hi"}]},
        {"role": "model", "parts": [{"functionCall": {"id": "h1", "name": "f", "args": {"city": "x"}}}]},
        {"role": "user", "parts": [{"functionResponse": {"id": "h1", "name": "f", "response": {"output": "sunny"}}}]},
    ],
    "tools": [{"functionDeclarations": [{"name": "f", "parametersJsonSchema": WEATHER}]}],
    "generationConfig": {"maxOutputTokens": 99, "temperature": 0.5},
}
VECTOR = {"content": {"parts": [{"text": "a"}]}}
PNG = draw(width=16, height=16)
IMAGE = upload(PNG)
SOUND = Upload("file", "a.wav", "audio/wav", b"RIFF", InMemory(b"RIFF"), duration_ms=1_500)


def by_form(read: Callable[[ReceivedForm], InferenceRequest], *files: Upload) -> Callable[[Body], InferenceRequest]:
    """``read`` for a body that comes as a form, with ``files``."""

    def write(value: object) -> str:
        return value if isinstance(value, str) else orjson.dumps(value).decode()

    def read_form(body: Body) -> InferenceRequest:
        several = {name: value if isinstance(value, list) else [value] for name, value in body.items()}
        fields = [(name, write(value)) for name, values in several.items() for value in values]
        return read(ReceivedForm(tuple(fields), files))

    return read_form


def read_generate(body: Body) -> InferenceRequest:
    """A body whose model is in the path, and so is whether it is answered with a stream."""
    model = body.get("model")
    rest = {name: value for name, value in body.items() if name not in {"model", "stream"}}
    return parse_generate_inference(
        rest, model=model if isinstance(model, str) else "", stream=body.get("stream") is True
    )


def by_path(parse: Callable[..., InferenceRequest]) -> Callable[[Body], InferenceRequest]:
    """``parse`` for a body with the model that is in the path."""

    def read(body: Body) -> InferenceRequest:
        model = body.get("model")
        rest = {name: value for name, value in body.items() if name != "model"}
        return parse(rest, model=model if isinstance(model, str) else "")

    return read


READ_CALL: Mapping[str, tuple[Callable[[Body], InferenceRequest], Body]] = {
    "chat": (parse_chat_inference, CHAT),
    "messages": (parse_messages_inference, MESSAGES),
    "count_tokens": (
        parse_count_inference,
        {name: MESSAGES[name] for name in ("model", "system", "messages", "tools")},
    ),
    "generate_content": (read_generate, GENERATE),
    "count_content_tokens": (
        by_path(gemini_counts.parse_count_inference),
        {"model": "ours", "generateContentRequest": {name: GENERATE[name] for name in GENERATE if name != "model"}},
    ),
    "embed_contents": (
        by_path(parse_batch_embed_inference),
        {"model": "ours", "requests": [{"content": {"parts": [{"text": text}]}} for text in ("a", "b")]},
    ),
    "embeddings": (parse_embeddings_inference, {"model": "ours", "input": ["a", "b"]}),
    "completions": (parse_completions_inference, {"model": "ours", "prompt": "once"}),
    "moderations": (parse_moderations_inference, {"model": "ours", "input": "x"}),
    "rerank": (parse_rerank_inference, {"model": "ours", "query": "q", "documents": ["a", "b"]}),
    "responses": (parse_responses_inference, {"model": "ours", "input": "hi"}),
    "images": (
        parse_images_inference,
        {"model": "ours", "prompt": "a cat", "n": 2, "size": "1024x1024", "quality": "high"},
    ),
    "image_edits": (
        by_form(parse_edits_inference, IMAGE, IMAGE, upload(PNG, "mask")),
        {"model": "ours", "prompt": "a hat", "n": 2, "quality": "high"},
    ),
    "transcriptions": (
        by_form(parse_transcription_inference, SOUND),
        {"model": "ours", "temperature": 0.5, "timestamp_granularities": ["word", "segment"]},
    ),
    "translations": (by_form(parse_translation_inference, SOUND), {"model": "ours", "prompt": "names"}),
    "speech": (parse_speech_inference, {"model": "ours", "input": "hello", "voice": "alloy", "speed": 1.0}),
}
USED = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
NEW_CALL = CHAT["messages"][2]["tool_calls"][0] | {"id": "c1"}
TOOL_MESSAGE = {"role": "assistant", "content": "Hello", "tool_calls": [NEW_CALL]}
COMPLETION: dict[str, Any] = {
    "id": "chatcmpl-9",
    "object": "chat.completion",
    "created": 1,
    "model": "theirs-2026",
    "choices": [{"index": 0, "message": TOOL_MESSAGE, "finish_reason": "tool_calls"}],
    "usage": USED,
}
RESPONSE = {"id": "resp_1", "object": "response", "status": "completed", "output": [], "model": "theirs",
            "usage": {"input_tokens": 5, "output_tokens": 7, "total_tokens": 12}}  # fmt: skip
HEARD = {"type": "tokens", "input_tokens": 5, "output_tokens": 7, "total_tokens": 12}
VECTORS = [{"object": "embedding", "index": index, "embedding": [0.5, 1.5]} for index in range(2)]
CALLED = gemini.chunk(
    {"text": "Hello"}, {"functionCall": {"name": "f", "args": {"city": "x"}}}, reason="STOP", used=gemini.usage(9, 2)
)
ANSWERS: dict[Wire, tuple[dict[str, Any], Usage]] = {
    "openai_chat": (COMPLETION, Usage(5, 7, 0, "upstream")),
    "anthropic_messages": (anthropic.MESSAGE, Usage(2150, 503, 5, "upstream", written_tokens=50)),
    "gemini_generate": (CALLED, Usage(9, 2, 0, "upstream")),
    "bedrock_converse": (bedrock.ANSWER, Usage(9, 2, 0, "upstream")),
    "anthropic_count_tokens": ({"input_tokens": 42}, NO_USAGE),
    "gemini_count_tokens": ({"totalTokens": 42}, NO_USAGE),
    "openai_embeddings": (
        {"object": "list", "data": VECTORS, "model": "theirs", "usage": {"prompt_tokens": 5, "total_tokens": 5}},
        Usage(5, 0, 0, "upstream"),
    ),
    "gemini_embeddings": (
        {"embeddings": [{"values": [0.5, 1.5]}] * 2, "usageMetadata": {"promptTokenCount": 5}},
        Usage(5, 0, 0, "upstream"),
    ),
    "vertex_embeddings": (
        {
            "predictions": [
                {"embeddings": {"values": [0.5, 1.5], "statistics": {"token_count": count}}} for count in (2, 3)
            ]
        },
        Usage(5, 0, 0, "upstream"),
    ),
    "openai_completions": (
        {"object": "text_completion", "choices": [{"index": 0, "text": "upon"}], "usage": USED},
        Usage(5, 7, 0, "upstream"),
    ),
    "openai_moderations": ({"results": [{"flagged": False}], "usage": USED}, Usage(5, 7, 0, "upstream")),
    "openai_responses": (RESPONSE, Usage(5, 7, 0, "upstream")),
    "rerank": (
        {"results": [{"index": 0, "relevance_score": 0.5}], "usage": {"total_tokens": 6}},
        Usage(6, 0, 0, "upstream"),
    ),
    "rerank_data": (
        {"object": "list", "data": [{"index": 0, "relevance_score": 0.5}], "usage": {"total_tokens": 6}},
        Usage(6, 0, 0, "upstream"),
    ),
    "openai_transcriptions": ({"text": "hello", "usage": HEARD}, Usage(5, 7, 0, "upstream", duration_ms=1_500)),
    "elevenlabs_transcriptions": (
        {"language_code": "eng", "text": "hello", "words": [{"text": "hello", "start": 0, "end": 1.2, "type": "word"}]},
        Usage(25, 2, 0, "estimate", duration_ms=1_500),
    ),
    "deepgram_transcriptions": (
        {
            "metadata": {"duration": 1.5},
            "results": {"channels": [{"alternatives": [{"transcript": "hello", "words": []}]}]},
        },
        Usage(0, 0, 0, "upstream", duration_ms=32),  # its four bytes hold no more
    ),
    "openai_translations": ({"text": "hello", "usage": HEARD}, Usage(5, 7, 0, "upstream", duration_ms=1_500)),
}
"""A whole answer in every language that has one, and what it says was used."""
PAINTED = {
    "gemini_images", "chat_images", "dashscope_images", "replicate_images", "fal_images",
    "stability_images", "bfl_images", "luma_images",
}  # fmt: skip
"""Languages of painters, who say what there is to be said in as many bodies as it takes."""
NEVER_WHOLE = PAINTED | {"openai_images", "openai_edits", "openai_speech", "deepgram_speech", "elevenlabs_speech"}
"""Languages of which nothing is read whole here: of painters, and of what is a stream in any case."""
ANSWERED = [pair for pair in PAIRS if pair[1] not in PAINTED | {"deepgram_transcriptions"}]
"""Those whose requests have fields: a file alone has none."""
WHOLE = [pair for pair in PAIRS if pair[1] not in NEVER_WHOLE]

CHAT_TOOL = {"index": 0, "id": "c9", "type": "function", "function": {"name": "f", "arguments": '{"city": "x"}'}}
CHAT_STREAMS = {
    "hello": b"".join(chat_events("Hel", "lo")),
    "tool": event({"id": "x", "choices": [{"index": 0, "delta": {"content": "Look: ", "tool_calls": [CHAT_TOOL]}}]})
    + event({"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    + event(usage_frame())
    + DONE,
}
GEMINI_STREAMS = {
    name: gemini.STREAMS[name]
    for name in ("text", "thinking", "tools", "picture", "stop in every chunk", "BOM and comments")
}
STREAMS: dict[str, dict[str, bytes]] = {
    "openai_chat": CHAT_STREAMS,
    "anthropic_messages": {name: raw for name, (raw, _) in anthropic.ANSWERED.items()},
    "gemini_generate": GEMINI_STREAMS,
    "bedrock_converse": bedrock.STREAMS,
}
TALK: tuple[Operation, ...] = ("chat", "messages", "generate_content")
STREAMED = [
    pytest.param(operation, wire, name, id=f"{operation}-{wire}-{name}")
    for operation in TALK
    for wire in OPERATIONS[operation].formats
    for name in STREAMS[wire]
]


def call_of(operation: Operation, **more: Any) -> InferenceRequest:
    read, body = READ_CALL[operation]
    return read(body | more)


def exchange(operation: Operation, wire: Wire, **more: Any) -> Translator:
    return make_translator(call_of(operation, **more), wire, IDENTITY)


def read_wire(wire: str, raw: bytes) -> list[Event]:
    """A whole stream in a language that providers speak."""
    readers: dict[str, StreamParser] = {
        "openai_chat": ChatStreamParser(1),
        "anthropic_messages": MessagesStreamParser(),
        "gemini_generate": GenerateContentParser("0123", "theirs"),
        "bedrock_converse": ConverseStreamParser("0123", "theirs"),
    }
    return readers[wire].feed(raw) + readers[wire].finish()


def gist(events: list[Event]) -> tuple[str, list[tuple[str, Any]], set[str]]:
    """The words, the tool calls and the reasons of an answer, however it was cut."""
    text = "".join(found.text for found in events if isinstance(found, TextDelta))
    names = [found.name for found in events if isinstance(found, ToolCallStart)]
    pieces = [found for found in events if isinstance(found, ToolCallDelta)]
    calls = [
        (name, json.loads("".join(piece.arguments for piece in pieces if piece.index == at) or "{}"))
        for at, name in enumerate(names)
    ]
    return text, calls, {found.reason for found in events if isinstance(found, ChoiceFinished)}


def test_there_is_an_example_of_every_language() -> None:
    assert set(ANSWERS).isdisjoint(NEVER_WHOLE)
    assert set(ANSWERS) | NEVER_WHOLE == {wire for _, wire in PAIRS}
    assert set(READ_CALL) | FILMED == set(OPERATIONS)


# Sent


def fields_of(answer: Payload) -> Any:
    """The body, or the fields of the form."""
    return answer.fields if isinstance(answer, Form) else answer


def body_of(made: Translator) -> Body:
    """What is sent where it is JSON."""
    answer = made.write_body()
    assert isinstance(answer, dict)
    return answer


@table_rows(("operation", "wire"), ANSWERED)
def test_a_body_is_fresh_and_names_the_providers_model(operation: Operation, wire: Wire) -> None:
    made = exchange(operation, wire)
    body = fields_of(made.write_body())
    assert body is not READ_CALL[operation][1]
    before = orjson.dumps(body)
    body.clear()
    assert orjson.dumps(fields_of(made.write_body())) == before
    assert READ_CALL[operation][1]["model"] == "ours"
    assert b'"ours"' not in before
    in_path = {"gemini_generate", "deepgram_speech", "bedrock_converse", "vertex_embeddings"}
    assert (b"theirs" in before) == (wire not in in_path)
    assert made.identity is IDENTITY


@table_rows(("operation", "wire"), ANSWERED)
def test_what_callers_own_is_never_changed(operation: Operation, wire: Wire) -> None:
    read, body = READ_CALL[operation]
    before, inference = orjson.dumps(body), read(body)
    reported = orjson.dumps(inference.body)
    make_translator(inference, wire, IDENTITY).write_body()
    assert orjson.dumps(body) == before
    assert orjson.dumps(inference.body) == reported


@table_rows(("operation", "wire"), [pair for pair in ANSWERED if pair[1] == OPERATIONS[pair[0]].formats[0]])
def test_in_its_own_language_a_call_is_sent_as_it_came(operation: Operation, wire: Wire) -> None:
    inference = call_of(operation)
    answer = make_translator(inference, wire, IDENTITY).write_body()
    reported = orjson.loads(orjson.dumps(READ_CALL[operation][1] | {"model": "theirs"}))
    if operation in {"generate_content", "count_content_tokens", "embed_contents"}:  # the model is in the path
        del reported["model"]
    for inner in reported.get("requests", [reported.get("generateContentRequest", {})]):
        if inner:
            inner["model"] = "models/theirs"
    assert fields_of(answer) == reported
    assert isinstance(answer, Form) == bool(inference.files)
    if isinstance(answer, Form):
        assert [file for _, file in answer.files] == list(inference.files)


@table_rows(("operation", "wire"), [pair for pair in PAIRS if pair[1] in PAINTED])
def test_what_a_image_backend_says_is_not_said_in_one_body(operation: Operation, wire: Wire) -> None:
    with pytest.raises(InvalidRequest):
        exchange(operation, wire).write_body()


@table_rows("operation", TALK)
def test_a_stream_is_asked_for_with_its_usage(operation: Operation) -> None:
    body = body_of(exchange(operation, "openai_chat", stream=True))
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})
    assert body_of(exchange(operation, "anthropic_messages", stream=True))["stream"] is True
    assert "stream" not in body_of(exchange(operation, "gemini_generate", stream=True))


TRANSLATED = [pair for pair in PAIRS if pair[0] in TALK and pair[1] != OPERATIONS[pair[0]].formats[0]]


@table_rows(("operation", "wire"), TRANSLATED)
def test_a_translated_call_says_all_it_said(operation: Operation, wire: Wire) -> None:
    sent = orjson.dumps(exchange(operation, wire).write_body()).decode()
    for word in ("Be brief", "Hi", "city", "sunny", '"f"', "99"):
        assert word in sent, word


@table_rows(
    ("operation", "wire", "more", "param"),
    [
        ("chat", "anthropic_messages", {"n": 2}, "n"),
        ("embeddings", "gemini_embeddings", {"input": [1, 2]}, "input"),
        (
            "generate_content",
            "anthropic_messages",
            {"generationConfig": {"candidateCount": 2}},
            "generationConfig.candidateCount",
        ),
        ("generate_content", "openai_chat", {"cachedContent": "cachedContents/1"}, "cachedContent"),
        (
            "embed_contents",
            "openai_embeddings",
            {"requests": [VECTOR, VECTOR | {"outputDimensionality": 2}]},
            "requests[1].outputDimensionality",
        ),
        (
            "embed_contents",
            "openai_embeddings",
            {"requests": [{"content": {"parts": [{"fileData": {"fileUri": "https://x.org/a"}}]}}]},
            "requests[0].content.parts[0]",
        ),
    ],
)
def test_what_cannot_be_said_names_the_field(
    operation: Operation, wire: Wire, more: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        exchange(operation, wire, **more).write_body()
    assert caught.value.param == param


@pytest.mark.parametrize(("operation", "wire"), ANSWERED)
@given(data=st.data())
@settings(max_examples=15)
def test_whatever_a_caller_says_is_sent_or_refused(operation: Operation, wire: Wire, data: st.DataObject) -> None:
    read, body = READ_CALL[operation]
    wrong = data.draw(spoilt(body))
    try:
        inference = read(wrong if isinstance(wrong, dict) else {})
        sent, media_type = build_payload(make_translator(inference, wire, IDENTITY).write_body(), "mark")
    except InvalidRequest:
        return
    if isinstance(sent, Content):
        assert media_type.startswith("multipart/form-data; boundary=")
    else:
        assert media_type == "application/json"
        assert isinstance(orjson.loads(sent), dict)


# Answered


SIMPLE: Mapping[str, dict[str, Any]] = {
    "count_content_tokens": {"totalTokens": 42},
    "embed_contents": {"embeddings": [{"values": [0.5, 1.5]}] * 2, "usageMetadata": {"promptTokenCount": 5}},
    "count_tokens": {"input_tokens": 42},
    "rerank": {"results": [{"index": 0, "relevance_score": 0.5}], "usage": {"total_tokens": 6}},
    "transcriptions": {"text": "hello"},
}


@table_rows(("operation", "wire"), WHOLE)
def test_an_answer_comes_in_the_callers_language_with_its_usage(operation: Operation, wire: Wire) -> None:
    answer, usage = ANSWERS[wire]
    raw = orjson.dumps(answer)
    reported, counted = exchange(operation, wire).parse_answer(raw, [SECRET])
    assert counted == usage
    value = orjson.loads(reported)
    if wire == OPERATIONS[operation].formats[0]:
        assert reported == raw
    elif operation == "chat":
        assert (value["object"], value["usage"]["prompt_tokens"]) == ("chat.completion", usage.prompt_tokens)
        (choice,) = value["choices"]
        assert choice["finish_reason"] == "tool_calls"
        assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) in (
            {"city": "x"},
            {"city": "SF"},
        )
        assert value["id"].startswith("chatcmpl-") or value["id"] == answer.get("id", answer.get("responseId", "0123"))
    elif operation == "messages":
        assert (value["type"], value["role"], value["stop_reason"]) == ("message", "assistant", "tool_use")
        assert [block["type"] for block in value["content"]] == ["text", "tool_use"]
        assert value["content"][1]["input"] == {"city": "x"}
        assert value["usage"]["input_tokens"] == usage.prompt_tokens
        assert value["id"].startswith("msg_")
    elif operation == "responses":
        assert (value["object"], value["status"], value["id"]) == ("response", "completed", "resp_0123")
        called = next(item for item in value["output"] if item["type"] == "function_call")
        assert json.loads(called["arguments"]) in ({"city": "x"}, {"city": "SF"})
        assert value["usage"]["input_tokens"] == usage.prompt_tokens
    elif operation == "generate_content":
        (candidate,) = value["candidates"]
        assert candidate["finishReason"] == "STOP"
        parts = candidate["content"]["parts"]
        assert any(part.get("text") for part in parts)
        called = next(part["functionCall"] for part in parts if "functionCall" in part)
        assert called["args"] in ({"city": "x"}, {"city": "SF"})
        assert value["usageMetadata"]["promptTokenCount"] == usage.prompt_tokens
        assert (value["responseId"], value["modelVersion"]) == ("0123", "theirs")
    elif operation in SIMPLE:
        assert value | SIMPLE[operation] == value
    else:
        assert [item["embedding"] for item in value["data"]] == [[0.5, 1.5]] * 2


@table_rows("operation", ["chat", "messages"])
def test_where_a_provider_says_neither_an_answer_has_our_id_and_the_models_name(operation: Operation) -> None:
    bare = {"candidates": CALLED["candidates"]}
    reported, usage = exchange(operation, "gemini_generate").parse_answer(orjson.dumps(bare), [])
    value = orjson.loads(reported)
    assert value["id"] == ("0123" if operation == "chat" else "msg_0123")
    assert value["model"] == "theirs"
    assert value.get("created") == (1_700_000_000 if operation == "chat" else None)
    assert usage.source == "estimate"
    assert usage.prompt_tokens > 0


NO_ANSWERS = [b"", b"null", b"[]", b"{}", b"<html>", b'"x"', b"\xff", b"[" * 5_000, b'{"error": {"message": "no"}}']


@table_rows(("operation", "wire"), WHOLE)
def test_what_is_no_answer_is_a_fault(operation: Operation, wire: Wire) -> None:
    for raw in NO_ANSWERS:
        with pytest.raises(ProviderError):
            pytest.fail(f"{raw[:40]!r} is {exchange(operation, wire).parse_answer(raw, [SECRET])}")


@table_rows(("operation", "wire"), [pair for pair in PAIRS if pair[1] in NEVER_WHOLE])
def test_what_is_painted_or_always_streamed_is_not_read_whole(operation: Operation, wire: Wire) -> None:
    with pytest.raises(ProviderBadResponse, match="not read whole"):
        exchange(operation, wire).parse_answer(orjson.dumps({"data": [{"b64_json": "AA=="}]}), [SECRET])


@table_rows(("operation", "wire"), WHOLE)
def test_an_error_in_an_answer_does_not_tell_what_nobody_may_hear(operation: Operation, wire: Wire) -> None:
    raw = orjson.dumps({"error": {"message": f"bad key {SECRET} at https://10.0.0.9/x"}})
    with pytest.raises(ProviderError) as caught:
        exchange(operation, wire).parse_answer(raw, [SECRET])
    assert SECRET not in caught.value.message
    assert "10.0.0.9" not in caught.value.message


@pytest.mark.parametrize(("operation", "wire"), WHOLE)
@given(data=st.data())
def test_an_answer_that_cannot_be_believed_is_a_fault_and_nothing_else(
    operation: Operation, wire: Wire, data: st.DataObject
) -> None:
    wrong = data.draw(spoilt(ANSWERS[wire][0]))
    try:
        reported, usage = exchange(operation, wire).parse_answer(orjson.dumps(wrong), [SECRET])
    except ProviderError:
        return
    assert isinstance(orjson.loads(reported), dict)
    assert min(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.written_tokens) >= 0


DEEP = "[" * 300 + "]" * 300


@table_rows(
    ("operation", "wire", "raw"),
    [
        ("messages", "openai_chat", {"arguments": f'{{"a": {DEEP}}}'}),
        ("messages", "gemini_generate", {"args": DEEP}),
        ("chat", "gemini_generate", {"args": DEEP}),
        ("chat", "anthropic_messages", {"input": DEEP}),
        ("chat", "bedrock_converse", {"input": DEEP}),
        ("embeddings", "openai_embeddings", {"extra": DEEP}),
    ],
)
def test_an_answer_too_deep_to_be_written_is_a_fault(operation: Operation, wire: Wire, raw: dict[str, str]) -> None:
    """JSON may be read four times as deep as it can be written."""
    answer = json.loads(json.dumps(ANSWERS[wire][0]))
    (name, value), more = next(iter(raw.items())), {}
    if wire == "openai_chat":
        answer["choices"][0]["message"]["tool_calls"][0]["function"][name] = value
    elif wire == "gemini_generate":
        answer["candidates"][0]["content"]["parts"][1]["functionCall"][name] = {"a": json.loads(value)}
    elif wire == "bedrock_converse":
        answer["output"]["message"]["content"][1]["toolUse"][name] = {"a": json.loads(value)}
    elif wire == "anthropic_messages":
        answer["content"][4][name] = {"a": json.loads(value)}
    else:
        answer[name], more = json.loads(value), {"encoding_format": "base64"}
    with pytest.raises(ProviderBadResponse):
        exchange(operation, wire, **more).parse_answer(json.dumps(answer).encode(), [])


# Streamed


def play(made: Translator, raw: bytes, step: int) -> tuple[bytes, Usage]:
    """A whole stream through its gate, in pieces of so many bytes."""
    transform = made.open_transform([SECRET])
    out = b"".join([transform.feed(raw[at : at + step]) for at in range(0, len(raw), step)])
    out += transform.finish()
    assert (transform.ended, transform.closed, transform.error) == (True, True, None)
    return out, transform.parse_usage()


@table_rows(("operation", "wire", "name"), STREAMED)
def test_a_stream_comes_in_the_callers_language_whole_and_with_its_usage(
    operation: Operation, wire: Wire, name: str
) -> None:
    raw, made = STREAMS[wire][name], exchange(operation, wire, stream=True)
    out, usage = play(made, raw, len(raw))
    own = OPERATIONS[operation].formats[0]
    mark = {"chat": DONE_EVENT, "messages": STOP_EVENT}.get(operation, b"\n")
    assert out.endswith(mark) or wire == own
    theirs, ours = read_wire(wire, raw), read_wire(own, out)
    assert gist(ours) == gist(theirs)
    assert usage == parse_events_usage(theirs, call_of(operation, stream=True))
    assert usage.source == "upstream"


@table_rows(("operation", "wire", "name"), STREAMED)
def test_however_a_stream_is_cut_the_same_leaves(operation: Operation, wire: Wire, name: str) -> None:
    raw = STREAMS[wire][name]
    whole = play(exchange(operation, wire, stream=True), raw, len(raw))
    for step in (1, 7, 64):
        assert play(exchange(operation, wire, stream=True), raw, step) == whole


@table_rows(
    ("operation", "wire"),
    [
        pair
        for pair in PAIRS
        if pair[0] in {"embeddings", "moderations", "rerank", "count_tokens", "count_content_tokens"}
    ],
)
def test_what_is_not_streamed_has_no_gate(operation: Operation, wire: Wire) -> None:
    with pytest.raises(ProviderBadResponse, match="not streamed"):
        exchange(operation, wire).open_transform([])


READ_ANSWER: Mapping[str, Callable[[bytes], list[Event]]] = {
    "chat": openai_answer.parse_answer,
    "messages": anthropic_answer.parse_answer,
    "generate_content": lambda raw: gemini_answer.parse_answer(raw, answer_id="0123", model="theirs"),
}
REPORTED_WHOLE = [pair for pair in WHOLE if pair[0] in {*TALK, "completions", "responses", "transcriptions"}]
"""Calls for a stream that a provider may answer with one whole JSON answer."""


@table_rows(("operation", "wire"), REPORTED_WHOLE)
def test_a_whole_answer_to_a_call_for_a_stream_is_the_stream_that_says_the_same(
    operation: Operation, wire: Wire
) -> None:
    answer, usage = ANSWERS[wire]
    raw = orjson.dumps(answer)
    made = exchange(operation, wire, stream=True)
    reported, counted = made.build_whole(raw, [SECRET])
    assert counted == usage
    if operation in READ_ANSWER:
        whole, _ = exchange(operation, wire).parse_answer(raw, [])
        assert gist(read_wire(OPERATIONS[operation].formats[0], reported)) == gist(READ_ANSWER[operation](whole))
    transform = exchange(operation, OPERATIONS[operation].formats[0], stream=True).open_transform([])
    assert transform.feed(reported) + transform.finish() == reported
    assert (transform.ended, transform.error) == (True, None)


@table_rows(
    ("operation", "wire", "more"),
    [
        ("responses", "openai_responses", {"id": "resp_1", "output": [{"type": "message", "id": "msg_1"}]}),
        ("messages", "anthropic_messages", {"container": {"id": "container_1"}}),
    ],
)
def test_what_a_whole_answer_created_is_recorded_with_or_without_a_stream(
    operation: Operation, wire: Wire, more: dict[str, Any]
) -> None:
    raw = orjson.dumps(ANSWERS[wire][0] | more)
    streamed, whole = call_of(operation, stream=True), call_of(operation)
    make_translator(streamed, wire, IDENTITY).build_whole(raw, [])
    make_translator(whole, wire, IDENTITY).parse_answer(raw, [])
    assert streamed.made == whole.made != []


@table_rows("wire", OPERATIONS["chat"].formats)
def test_usage_is_in_the_stream_of_a_whole_answer_only_where_it_was_asked_for(wire: Wire) -> None:
    raw = orjson.dumps(ANSWERS[wire][0])
    silent, _ = exchange("chat", wire, stream=True).build_whole(raw, [])
    asked = {"stream": True, "stream_options": {"include_usage": True}}
    reported, _ = exchange("chat", wire, **asked).build_whole(raw, [])
    assert b'"usage"' not in silent
    last = orjson.loads(reported.split(b"data: ")[-2])
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], ANSWERS[wire][1].completion_tokens)


@table_rows(("operation", "wire"), REPORTED_WHOLE)
@table_rows("raw", [b'{"error": {"message": "bad key ' + SECRET.encode() + b'"}}', b"{", b"{}", b"[]"])
def test_an_error_told_instead_of_a_stream_is_a_fault(operation: Operation, wire: Wire, raw: bytes) -> None:
    with pytest.raises(ProviderError) as caught:
        exchange(operation, wire, stream=True).build_whole(raw, [SECRET])
    assert SECRET not in caught.value.message
    if b"bad key" in raw and not isinstance(caught.value, ProviderRejected):
        assert "bad key [masked]" in caught.value.message


@pytest.mark.parametrize(("operation", "wire"), REPORTED_WHOLE)
@given(data=st.data())
def test_whatever_is_told_instead_of_a_stream_is_one_or_a_fault(
    operation: Operation, wire: Wire, data: st.DataObject
) -> None:
    wrong = orjson.dumps(data.draw(spoilt(ANSWERS[wire][0])))
    made = exchange(operation, wire, stream=True)
    made.write_body()  # what the request has decides which ids of calls are new
    try:
        reported, usage = made.build_whole(wrong, [SECRET])
    except ProviderError:
        return
    assert min(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.written_tokens) >= 0
    transform = exchange(operation, OPERATIONS[operation].formats[0], stream=True).open_transform([])
    out = transform.feed(reported)
    if operation == "generate_content":  # its last event waits for the end of the connection
        out += transform.finish()
    assert out == reported
    assert transform.error is None


def test_all_that_a_completion_says_is_in_the_stream_that_is_made_of_it() -> None:
    """Several choices, thoughts, refusals, log probabilities and what no document knows."""
    calls = [{"id": f"c{at}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for at in range(2)]
    odd = {"content": [{"token": "Hi", "logprob": -0.5}], "refusal": None}
    answer = {
        **COMPLETION,
        "system_fingerprint": "fp_1",
        "citations": ["https://example.org"],
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "Hi", "reasoning_content": "hm", "audio": None},
             "finish_reason": "length", "logprobs": odd},
            {"index": 0, "message": {"content": None, "tool_calls": calls}, "finish_reason": None},
            {"index": 0, "message": {"role": "assistant", "content": None, "refusal": "No"}, "finish_reason": "stop"},
        ],
    }  # fmt: skip
    reported, _ = exchange("chat", "openai_chat", stream=True, n=3).build_whole(orjson.dumps(answer), [])
    *frames, mark = reported.removesuffix(b"\n\n").split(b"\n\n")
    assert mark == b"data: [DONE]"
    chunks = [orjson.loads(frame.removeprefix(b"data: ")) for frame in frames]
    head = {"id": "chatcmpl-9", "object": "chat.completion.chunk", "created": 1, "model": "theirs-2026",
            "system_fingerprint": "fp_1", "citations": ["https://example.org"]}  # fmt: skip
    assert all({name: chunk[name] for name in chunk if name != "choices"} == head for chunk in chunks)
    answers = [chunk["choices"][0] for chunk in chunks]
    assert [(choice["index"], choice["finish_reason"]) for choice in answers] == [
        (0, None), (0, "length"), (1, None), (1, "tool_calls"), (2, None), (2, "stop"),
    ]  # fmt: skip
    assert answers[0]["delta"] == {"role": "assistant", "content": "Hi", "reasoning_content": "hm"}
    assert answers[0]["logprobs"] == odd
    indexed = [call | {"index": at} for at, call in enumerate(calls)]
    assert answers[2]["delta"] == {"role": "assistant", "content": None, "tool_calls": indexed}
    assert answers[4]["delta"]["refusal"] == "No"


def test_a_stream_of_gemini_that_came_as_an_array_is_read() -> None:
    chunks = [gemini.chunk({"text": "Hel"}), gemini.chunk({"text": "lo"}, reason="STOP", used=gemini.usage(3, 2))]
    reported, usage = exchange("chat", "gemini_generate", stream=True).build_whole(orjson.dumps(chunks), [])
    assert gist(read_wire("openai_chat", reported))[0] == "Hello"
    assert usage == Usage(3, 2, 0, "upstream")


FAULTY = [
    ("anthropic_messages", anthropic.begin("msg_1") + anthropic.words("Hel") + anthropic.OVERLOADED),
    ("gemini_generate", gemini.STREAMS["error event"]),
    ("gemini_generate", gemini.STREAMS["bare error"]),
    (
        "bedrock_converse",
        bedrock.BEGIN + bedrock.words("Hel") + bedrock.exception("internalServerException", f"broke with {SECRET}"),
    ),
    ("openai_chat", chat_events("Hel")[0] + event({"error": {"message": f"broke with {SECRET}", "code": 500}})),
]


@table_rows(("wire", "raw"), FAULTY)
@table_rows("operation", TALK)
def test_an_error_in_a_stream_is_a_fault_and_nothing_of_it_leaves(operation: Operation, wire: Wire, raw: bytes) -> None:
    transform, out, error = exchange(operation, wire, stream=True).open_transform([SECRET]), b"", None
    try:
        out = transform.feed(raw)
        out += transform.finish()
    except ProviderError as met:
        error = met
    error = transform.error or error
    assert error is not None
    assert SECRET not in error.message
    assert b"rror" not in out
    assert b"Hel" in out
    assert DONE_EVENT not in out
    assert STOP_EVENT not in out
    assert all(sse.parse_data(piece) for piece in sse.SseSplitter().split(out))


@table_rows(("operation", "wire", "name"), STREAMED)
def test_a_stream_that_is_cut_is_a_fault(operation: Operation, wire: Wire, name: str) -> None:
    raw = STREAMS[wire][name]
    transform = exchange(operation, wire, stream=True).open_transform([])
    transform.feed(raw[: len(raw) // 2])
    with pytest.raises(ProviderBadResponse):
        transform.finish()


PIECES = [raw for streams in STREAMS.values() for stream in streams.values() for raw in sse.SseSplitter().split(stream)]
JUNK = st.binary(max_size=30) | st.sampled_from([*PIECES, DONE, b"data: {}\n\n", b"data: [[]]\n\n", b"event: error\n"])


@pytest.mark.parametrize(("operation", "wire"), [pair for pair in PAIRS if pair[0] in TALK])
@given(junk=st.lists(JUNK, max_size=8))
def test_whatever_a_provider_streams_is_an_answer_or_a_fault(
    operation: Operation, wire: Wire, junk: list[bytes]
) -> None:
    transform = exchange(operation, wire, stream=True).open_transform([SECRET])
    for piece in junk:
        transform.feed(piece)
    try:
        transform.finish()
    except ProviderError:
        assert not transform.ended
    usage = transform.parse_usage()
    assert min(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) >= 0


@pytest.mark.parametrize(("operation", "wire"), [pair for pair in PAIRS if pair[0] in TALK])
@given(data=st.data())
def test_a_spoilt_event_is_passed_over_or_a_fault(operation: Operation, wire: Wire, data: st.DataObject) -> None:
    pieces = [piece for piece in PIECES if read_json(piece) is not None]
    chosen = data.draw(st.sampled_from(pieces))
    wrong = orjson.dumps(data.draw(spoilt(read_json(chosen))))
    transform = exchange(operation, wire, stream=True).open_transform([SECRET])
    name = chosen.split(b"\n", 1)[0] + b"\n" if chosen.startswith(b"event:") else b""
    transform.feed(name + b"data: " + wrong + b"\n\n")
    transform.parse_usage()


def read_json(piece: bytes) -> Any:
    try:
        return orjson.loads(sse.parse_data(piece) or b"")
    except orjson.JSONDecodeError:
        return None


def test_a_call_keeps_its_own_words_where_it_is_passed() -> None:
    """Fields that nobody here knows go through to a provider of the same language, and only there."""
    unknown = {"fieldOfTomorrow": {"deep": [1]}}
    for operation in TALK:
        own, *others = OPERATIONS[operation].formats
        assert body_of(exchange(operation, own, **unknown))["fieldOfTomorrow"] == {"deep": [1]}
        for wire in others:
            assert "fieldOfTomorrow" not in body_of(exchange(operation, wire, **unknown))


def test_an_exchange_is_of_one_call() -> None:
    inference = call_of("chat")
    made = make_translator(inference, "gemini_generate", IDENTITY)
    assert made == make_translator(inference, "gemini_generate", IDENTITY)
    assert made != make_translator(attrs.evolve(inference, stream=True), "gemini_generate", IDENTITY)
