"""Tool calls of an answer, with the client's names and ids, whole and in streams."""

from typing import Any

import orjson

from gateway.domain.api_format import Wire
from gateway.formats.chat.anthropic.request import parse_messages_inference
from gateway.formats.chat.openai.chat import parse_chat_inference
from gateway.formats.registry import make_translator
from gateway.formats.translator import ResponseIdentity, Translator
from tests.support.table_rows import table_rows

IDENTITY = ResponseIdentity("0" * 24, "theirs", 1_750_000_000)
LONG = "mcp__plugin_chrome-devtools-mcp_chrome-devtools__get_console_message"
TOOL = {"name": LONG, "input_schema": {"type": "object"}}
HISTORY = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "call_0", "name": LONG, "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_0", "content": "ok"}]},
]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}


def frame(*events: dict[str, Any], named: bool = False) -> bytes:
    def head(event: dict[str, Any]) -> bytes:
        return f"event: {event['type']}\n".encode() if named else b""

    return b"".join(head(event) + b"data: " + orjson.dumps(event) + b"\n\n" for event in events)


def ask_for_tools(*, stream: bool) -> tuple[Translator, str]:
    body = {"model": "m", "max_tokens": 99, "messages": HISTORY, "tools": [TOOL], "stream": stream}
    translator = make_translator(parse_messages_inference(body), "openai_chat", IDENTITY)
    sent: Any = translator.write_body()
    (name,) = [tool["function"]["name"] for tool in sent["tools"]]
    assert len(name) <= 64
    assert sent["messages"][1]["tool_calls"][0]["function"]["name"] == name
    return translator, name


@table_rows("given", ["call_0", "call_1"])
def test_a_client_sees_its_own_name_and_an_id_that_its_chat_has_not(given: str) -> None:
    translator, name = ask_for_tools(stream=False)
    call = {"id": given, "type": "function", "function": {"name": name, "arguments": "{}"}}
    raw = {"choices": [{"index": 0, "finish_reason": "tool_calls", "message": {"tool_calls": [call]}}]}
    (block,) = orjson.loads(translator.parse_answer(orjson.dumps(raw), ())[0])["content"]
    assert (block["name"], block["id"] == given) == (LONG, given != "call_0")
    translator, name = ask_for_tools(stream=True)
    called = {"index": 0, **call}
    transform = translator.open_transform(())
    streamed = transform.feed(
        frame(
            {"choices": [{"index": 0, "delta": {"tool_calls": [called]}}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        )
    )
    assert orjson.dumps(LONG) in streamed
    assert (b'"id":"call_0"' in streamed) is False
    assert block["id"].encode() in streamed


def ask_for_schema(wire: Wire = "anthropic_messages", *, stream: bool) -> Translator:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "response_format": FORM, "stream": stream}
    translator = make_translator(parse_chat_inference(body), wire, IDENTITY)
    sent: Any = translator.write_body()
    assert (sent["tool_choice"], sent["tools"][0]["input_schema"]) == (
        {"type": "tool", "name": "answer_in_json"},
        SCHEMA,
    )
    assert translator.adapted == ("response_format",)
    return translator


@table_rows("schema", [False, True])
def test_a_clients_own_tool_with_the_name_of_the_answers_tool_stays_a_tool(schema: bool) -> None:
    own = {"type": "function", "function": {"name": "answer_in_json"}}
    form = {"response_format": FORM} if schema else {}
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "tools": [own], **form}
    translator = make_translator(parse_chat_inference(body), "anthropic_messages", IDENTITY)
    sent: Any = translator.write_body()
    assert [tool["name"] for tool in sent["tools"]] == ["answer_in_json", "answer_in_json_2"][: 1 + schema]
    blocks = [{"type": "tool_use", "id": tool["name"], "name": tool["name"], "input": {}} for tool in sent["tools"]]
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"id": "m1", "type": "message", "role": "assistant", "model": "theirs", "usage": usage}
    whole = orjson.dumps({**message, "stop_reason": "tool_use", "content": blocks})
    (choice,) = orjson.loads(translator.parse_answer(whole, ())[0])["choices"]
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["answer_in_json"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("{}" if schema else None, "tool_calls")


def test_an_answer_by_a_tool_is_the_answers_text() -> None:
    block = {"type": "tool_use", "id": "t1", "name": "answer_in_json", "input": {"a": 1}}
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"type": "message", "role": "assistant", "model": "theirs", "usage": usage, "stop_reason": "tool_use"}
    whole = orjson.dumps({**message, "id": "m1", "content": [block]})
    (choice,) = orjson.loads(ask_for_schema(stream=False).parse_answer(whole, ())[0])["choices"]
    assert (orjson.loads(choice["message"]["content"]), choice["finish_reason"]) == ({"a": 1}, "stop")
    assert "tool_calls" not in choice["message"]
    events = (
        {"type": "message_start", "message": {**message, "id": "m1", "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": {**block, "input": {}}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"a":1}'}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": usage},
        {"type": "message_stop"},
    )
    streamed = ask_for_schema(stream=True).open_transform(()).feed(frame(*events, named=True))
    assert b'"content":"{\\"a\\":1}"' in streamed
    assert b'"finish_reason":"stop"' in streamed
    assert b"tool_calls" not in streamed
