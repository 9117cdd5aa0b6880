"""Answers that every client library reads wrongly are put right; others are forwarded byte for byte."""

from typing import Any

import orjson
from openai.lib.streaming._deltas import accumulate_delta

from gateway.domain.inference_request import InferenceRequest
from gateway.formats.chat import model as chat
from gateway.formats.chat.anthropic.request import parse_messages_inference
from gateway.formats.chat.gemini.request import parse_generate_inference
from gateway.formats.chat.openai.chat import parse_chat_inference
from gateway.formats.chat.openai.stream import ChatStreamParser
from gateway.formats.chat.responses.responses import parse_responses_inference
from gateway.formats.registry import make_translator
from gateway.formats.translator import ResponseIdentity
from gateway.formats.wire import sse
from tests.support.table_rows import table_rows

IDENTITY = ResponseIdentity("1", "m", 1)
MESSAGES = [{"role": "user", "content": "Hi"}]
TEXT = {"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant", "content": "I will look."}}


def call(name: str, call_id: str | None = "call_a", arguments: Any = "{}", **more: Any) -> dict[str, Any]:
    given = {} if call_id is None else {"id": call_id}
    return {**more, **given, "type": "function", "function": {"name": name, "arguments": arguments}}


def choice(index: int, *calls: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "finish_reason": "tool_calls", "message": {"role": "assistant", "tool_calls": list(calls)}}


def ask(operation: str, *, stream: bool = False, **more: Any) -> InferenceRequest:
    if operation == "generate_content":
        return parse_generate_inference({"contents": [{"parts": [{"text": "Hi"}]}]}, model="m", stream=stream)
    if operation == "responses":
        return parse_responses_inference({"model": "m", "input": "Hi", "stream": stream})
    body = {"model": "m", "messages": MESSAGES, "stream": stream, **more}
    return parse_chat_inference(body) if operation == "chat" else parse_messages_inference(body | {"max_tokens": 9})


def read_whole(operation: str, choices: list[Any], **more: Any) -> tuple[bytes, bytes, tuple[str, ...]]:
    raw = orjson.dumps({"id": "x", "choices": choices})
    translator = make_translator(ask(operation, **more), "openai_chat", IDENTITY)
    return raw, translator.parse_answer(raw, ())[0], translator.adapted


@table_rows("indexes", [(0, 0, 0), (0, 1, 2)])
@table_rows("operation", ["chat", "messages", "responses", "generate_content"])
def test_split_choices_are_one_message(operation: str, indexes: tuple[int, ...]) -> None:
    parts = [TEXT, choice(0, call("read_file")), choice(0, call("list_files", "call_b"))]
    split = [part | {"index": index} for part, index in zip(parts, indexes, strict=True)]
    _, written, _ = read_whole(operation, split)
    for word in (b"I will look.", b"read_file", b"list_files"):
        assert written.count(word) == 1
    if operation == "chat":
        (only,) = orjson.loads(written)["choices"]
        assert (only["index"], only["finish_reason"], len(only["message"]["tool_calls"])) == (0, "tool_calls", 2)


def test_choices_that_were_requested_stay_apart() -> None:
    raw, written, adapted = read_whole("chat", [choice(0, call("f")), choice(1, call("f"))], n=2)
    assert (written, adapted) == (raw, ())


@table_rows(
    ("calls", "ids", "arguments"),
    [
        ([call("f", None), call("g")], ["call_1_0_0", "call_a"], ["{}", "{}"]),
        ([call("f"), call("g")], ["call_a", "call_1_0_1"], ["{}", "{}"]),
        ([call("f", "a", {"x": 1}), call("g", "b")], ["a", "b"], ['{"x":1}', "{}"]),
    ],
)
def test_whole_calls_have_ids_of_their_own_and_arguments_as_text(calls: Any, ids: Any, arguments: Any) -> None:
    _, written, adapted = read_whole("chat", [choice(0, *calls)])
    found = orjson.loads(written)["choices"][0]["message"]["tool_calls"]
    assert [one["id"] for one in found] == ids
    assert [one["function"]["arguments"] for one in found] == arguments
    assert adapted == ("answer.tool_calls",)


def event(*fragments: dict[str, Any], index: int = 0) -> bytes:
    delta = {"tool_calls": list(fragments)}
    return b"data: %b\n\n" % orjson.dumps(
        {"id": "x", "choices": [{"index": index, "delta": delta, "finish_reason": None}]}
    )


def piece(text: str, **more: Any) -> dict[str, Any]:
    return {"index": 0, **more, "function": {"arguments": text}}


FIRST = call("read_file", "a", "", index=0)
STREAMS = {
    "one index, empty ids": [
        FIRST,
        piece('{"p":1}', id=""),
        call("list_files", "b", "", index=0),
        piece('{"q":2}', id=""),
    ],
    "one index, repeated ids": [
        FIRST,
        call("read_file", "a", '{"p":1}', index=0),
        call("list_files", "b", "", index=0),
        call("list_files", "b", '{"q":2}', index=0),
    ],
    "no index": [
        call("read_file", "a", ""),
        {"id": "a", "function": {"arguments": '{"p":1}'}},
        call("list_files", "b", '{"q":2}'),
    ],
    "no id": [call("read_file", None, '{"p":1}', index=0), call("list_files", None, '{"q":2}', index=1)],
    "one id": [call("read_file", "a", '{"p":1}', index=0), call("list_files", "a", '{"q":2}', index=1)],
    "objects": [call("read_file", "a", {"p": 1}, index=0), call("list_files", "b", {"q": 2}, index=1)],
}


@table_rows("cut", [1, 7, 10_000])
@table_rows("name", STREAMS)
def test_the_openai_library_reads_two_calls(name: str, cut: int) -> None:
    translator = make_translator(ask("chat", stream=True), "openai_chat", IDENTITY)
    transform = translator.open_transform(())
    raw = b"".join(map(event, STREAMS[name])) + b"data: [DONE]\n\n"
    out = b"".join([transform.feed(raw[at : at + cut]) for at in range(0, len(raw), cut)])
    read: dict[object, object] = {}
    for one in sse.SseSplitter().split(out.removesuffix(b"data: [DONE]\n\n")):
        read = accumulate_delta(read, orjson.loads(sse.parse_data(one) or b"")["choices"][0]["delta"])
    first, second = read["tool_calls"]  # type: ignore[misc]
    assert [one["function"] for one in (first, second)] == [  # type: ignore[has-type]
        {"name": "read_file", "arguments": '{"p":1}'},
        {"name": "list_files", "arguments": '{"q":2}'},
    ]
    assert first["id"] != second["id"]  # type: ignore[has-type]
    assert translator.adapted == ("answer.tool_calls",)


def test_usual_calls_leave_byte_for_byte() -> None:
    translator = make_translator(ask("chat", stream=True), "openai_chat", IDENTITY)
    raw = event(FIRST) + event(piece('{"p"')) + event(piece(":1}")) + event(call("g", "b", "{}", index=1))
    assert translator.open_transform(()).feed(raw) == raw
    assert translator.adapted == ()


@table_rows("operation", ["messages", "responses", "generate_content"])
def test_streamed_choices_of_one_answer_are_one_message(operation: str) -> None:
    transform = make_translator(ask(operation, stream=True), "openai_chat", IDENTITY).open_transform(())
    text = b'data: {"choices":[{"index":0,"delta":{"content":"I will look."},"finish_reason":null}]}\n\n'
    out = transform.feed(
        text + event(call("f", "a", "{}", index=0), index=1) + event(call("g", "b", "{}", index=0), index=2)
    )
    out += transform.feed(b"data: [DONE]\n\n")
    for word in (b"I will look.", b'"f"', b'"g"'):
        assert word in out


def finish(reason: str, index: int = 0) -> bytes:
    chosen = {"index": index, "delta": {}, "finish_reason": reason}
    return b"data: %b\n\n" % orjson.dumps({"id": "x", "choices": [chosen]})


SPLIT = {
    "after the first finish": finish("tool_calls")
    + event(call("f", "a", '{"p":1}', index=0))
    + finish("tool_calls")
    + event(call("g", "b", '{"q":2}', index=0))
    + finish("stop"),
    "repeated ids": event(call("f", "a", '{"p":1}', index=0))
    + finish("stop")
    + event(call("g", "a", '{"q":2}', index=0))
    + finish("tool_calls"),
    "the same call twice": event(call("f", "a", '{"p":1}', index=0))
    + finish("tool_calls")
    + event(call("f", "a", '{"q":2}', index=0)),
    "interleaved choices": event(call("f", "a", "", index=0), index=0)
    + event(call("g", "a", "", index=0), index=1)
    + event(piece('{"p":1}'), index=0)
    + finish("tool_calls", 0)
    + event(piece('{"q":2}'), index=1)
    + finish("tool_calls", 1),
}


@table_rows("operation", ["messages", "responses", "generate_content"])
@table_rows("name", SPLIT)
def test_a_stream_of_split_choices_has_every_call(operation: str, name: str) -> None:
    usage = {"id": "x", "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}}
    raw = SPLIT[name] + b"data: %b\n\ndata: [DONE]\n\n" % orjson.dumps(usage)
    read = [one for one in ChatStreamParser(1, (), "1").feed(raw) if not isinstance(one, chat.MessageStart)]
    starts = [one for one in read if isinstance(one, chat.ToolCallStart)]
    texts = ["".join([d.arguments for d in read if isinstance(d, chat.ToolCallDelta) and d.index == n]) for n in (0, 1)]
    assert ([one.index for one in starts], texts) == ([0, 1], ['{"p":1}', '{"q":2}'])
    assert len({one.id for one in starts}) == 2
    assert [one for one in read if isinstance(one, chat.ChoiceFinished)] == [chat.ChoiceFinished("tool_calls")]
    out = make_translator(ask(operation, stream=True), "openai_chat", IDENTITY).open_transform(()).feed(raw)
    assert out.count(b'"name":"') >= 2
    assert b'p\\":1' in out or b'"p":1' in out
    assert b'q\\":2' in out or b'"q":2' in out


@table_rows("usage", [None, {"prompt_tokens": 7, "completion_tokens": 5}])
def test_a_client_of_messages_reads_an_estimate_where_the_provider_counts_nothing(usage: Any) -> None:
    """As the charge is: an answer of no tokens would be a lie."""
    translator = make_translator(ask("messages"), "openai_chat", IDENTITY)
    message = {"index": 0, "message": {"content": "one two three four"}, "finish_reason": "stop"}
    written, charged = translator.parse_answer(orjson.dumps({"choices": [message], "usage": usage}), ())
    assert orjson.loads(written)["usage"]["output_tokens"] == charged.completion_tokens > 0
    streaming = make_translator(ask("messages", stream=True), "openai_chat", IDENTITY).open_transform(())
    chunk = {
        "choices": [{"index": 0, "delta": {"content": "one two three four"}, "finish_reason": "stop"}],
        "usage": usage,
    }
    out = streaming.feed(b"data: %b\n\ndata: [DONE]\n\n" % orjson.dumps(chunk))
    deltas = [orjson.loads(sse.parse_data(one) or b"") for one in sse.SseSplitter().split(out)]
    used = next(delta["usage"] for delta in deltas if delta["type"] == "message_delta")
    assert used["output_tokens"] == streaming.parse_usage().completion_tokens > 0
    assert streaming.parse_usage().source == ("estimate" if usage is None else "upstream")


@table_rows("stream", [False, True])
def test_a_new_call_never_has_an_id_of_the_history(stream: bool) -> None:
    history = [
        {"role": "assistant", "tool_calls": [call("f", "call_0")]},
        {"role": "tool", "tool_call_id": "call_0", "content": "1"},
    ]
    inference = ask("chat", stream=stream, messages=[*MESSAGES, *history])
    calls = [call("f", "call_0", index=0), call("f", "call_1", index=1)]
    translator = make_translator(inference, "openai_chat", IDENTITY)
    if stream:
        chunk = {"id": "x", "choices": [{"index": 0, "delta": {"tool_calls": calls}}]}
        reported = translator.open_transform([]).feed(b"data: " + orjson.dumps(chunk) + b"\n\n")
        found = orjson.loads(sse.parse_data(reported) or b"")["choices"][0]["delta"]["tool_calls"]
    else:
        raw = orjson.dumps({"id": "x", "choices": [choice(0, *calls)]})
        found = orjson.loads(translator.parse_answer(raw, ())[0])["choices"][0]["message"]["tool_calls"]
    ids = [one["id"] for one in found]
    assert ids[1] == "call_1"
    assert ids[0] not in {"call_0", "call_1", ""}


@table_rows("wrong", [[], {}, 7, None, [{}]])
@table_rows("field", ["id", "index", "function", "name", "type"])
def test_a_call_whose_fields_have_other_types_ends_no_answer(field: str, wrong: Any) -> None:
    odd = call("f", "call_0", index=0)
    odd |= {"function": {**odd["function"], "name": wrong}} if field == "name" else {field: wrong}
    raw = orjson.dumps({"id": "x", "choices": [choice(0, odd, call("g", "call_1", index=1))]})
    for operation in ("chat", "messages", "responses", "generate_content"):
        translator = make_translator(ask(operation), "openai_chat", IDENTITY)
        assert b"call_1" in translator.parse_answer(raw, ())[0] or operation == "generate_content"
    translator = make_translator(ask("chat", stream=True), "openai_chat", IDENTITY)
    reported, _ = translator.build_whole(raw, ())
    assert (
        make_translator(ask("chat", stream=True), "openai_chat", IDENTITY).open_transform([]).feed(reported) == reported
    )


def test_a_custom_call_keeps_its_place_beside_a_call_of_a_function() -> None:
    custom = {"index": 0, "id": "call_c", "type": "custom", "custom": {"name": "patch", "input": "x"}}
    chunk = {"id": "x", "choices": [{"index": 0, "delta": {"tool_calls": [custom, call("f", "call_f", index=1)]}}]}
    raw = b"data: " + orjson.dumps(chunk) + b"\n\n"
    assert make_translator(ask("chat", stream=True), "openai_chat", IDENTITY).open_transform([]).feed(raw) == raw
