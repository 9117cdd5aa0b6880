"""A chat's custom tools over providers that have functions alone: the request, the answer, and the history."""

from typing import Any

import orjson
import pytest
from openai.types.chat import ChatCompletion

from gateway.domain.api_format import Wire
from gateway.errors import ProviderBadResponse
from gateway.formats.chat import model as chat
from gateway.formats.chat.openai.chat import parse_chat_inference
from gateway.formats.chat.openai.custom_tools import MAX_INPUT_CHARS, CustomCallSerializer
from gateway.formats.registry import make_translator
from gateway.formats.translator import ResponseIdentity, Translator
from gateway.formats.wire import sse
from tests.support.table_rows import table_rows

IDENTITY = ResponseIdentity("1", "m", 1)
PATCH = "*** Begin Patch\n+hä\n"
GRAMMAR = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /.+/s"}}
TOOLS = [
    {"type": "custom", "custom": {"name": "apply_patch", "description": "Edits.", "format": GRAMMAR}},
    {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}},
]
CALL = {"id": "call_1", "type": "custom", "custom": {"name": "apply_patch", "input": PATCH}}
HISTORY = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "done"},
]
FORCED = {"type": "custom", "custom": {"name": "apply_patch"}}
ARGUMENTS = orjson.dumps({"input": PATCH}).decode()
WIRES: tuple[Wire, ...] = ("openai_chat", "anthropic_messages", "gemini_generate", "bedrock_converse")


def exchange(wire: Wire, *, custom_tools: bool = False, **more: Any) -> Translator:
    body = {"model": "m", "messages": HISTORY, "tools": TOOLS, **more}
    return make_translator(parse_chat_inference(body), wire, IDENTITY, custom_tools=custom_tools)


@table_rows("wire", WIRES)
@table_rows("choice", [FORCED, "auto"])
def test_a_custom_tool_is_written_as_a_function_with_one_text(wire: Wire, choice: Any) -> None:
    written = orjson.dumps(exchange(wire, tool_choice=choice).write_body())
    assert b'"custom"' not in written
    named = 2 + (choice is FORCED) + (wire == "gemini_generate")  # which names the tool in its result, too
    assert written.count(b'"apply_patch"') == named
    for word in (b"start: /.+/s", b"Begin Patch", b"done", b'"required":["input"]'):
        assert word in written


@table_rows("tools", [{}, {"tools": TOOLS[1:]}, {"tools": None}])
def test_a_custom_call_whose_tool_is_gone_is_written_as_a_function_call(tools: Any) -> None:
    body = {"model": "m", "messages": HISTORY, **tools}
    written: Any = make_translator(parse_chat_inference(body), "openai_chat", IDENTITY, custom_tools=False).write_body()
    assert written["messages"][1]["tool_calls"] == [
        {"id": "call_1", "type": "function", "function": {"name": "apply_patch", "arguments": ARGUMENTS}}
    ]
    assert make_translator(parse_chat_inference(body), "openai_chat", IDENTITY).write_body() == body


def test_a_provider_with_custom_tools_gets_them_unchanged() -> None:
    assert exchange("openai_chat", custom_tools=True).write_body() == {
        "model": "m",
        "messages": HISTORY,
        "tools": TOOLS,
    }


FUNCTION = {"name": "apply_patch", "arguments": ARGUMENTS}
LOOK = {"id": "b", "type": "function", "function": {"name": "look", "arguments": "{}"}}
ANSWERS: dict[Wire, dict[str, Any]] = {
    "openai_chat": {
        "id": "x",
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls",
                "message": {"tool_calls": [{"id": "a", "type": "function", "function": FUNCTION}, LOOK]},
            }
        ],
    },
    "anthropic_messages": {
        "id": "x",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 1, "output_tokens": 1},
        "content": [
            {"type": "tool_use", "id": "a", "name": "apply_patch", "input": {"input": PATCH}},
            {"type": "tool_use", "id": "b", "name": "look", "input": {}},
        ],
    },
}


@table_rows("wire", ANSWERS)
def test_a_call_comes_back_as_a_custom_one(wire: Wire) -> None:
    raw = orjson.dumps(ANSWERS[wire])
    answer = ChatCompletion.model_validate(orjson.loads(exchange(wire).parse_answer(raw, ())[0]))
    calls = answer.choices[0].message.tool_calls or []
    assert [call.type for call in calls] == ["custom", "function"]
    assert calls[0].to_dict()["custom"] == {"name": "apply_patch", "input": PATCH}
    # The same as a stream, as the openai library puts it together.
    streamed, _ = exchange(wire, stream=True).build_whole(raw, ())
    found: dict[int, dict[str, Any]] = {}
    for piece in sse.SseSplitter().split(streamed.removesuffix(b"data: [DONE]\n\n")):
        for part in orjson.loads(sse.parse_data(piece) or b"")["choices"][0]["delta"].get("tool_calls", ()):
            place = found.setdefault(part["index"], {"input": "", "arguments": ""})
            fields = part.get("custom") or part.get("function")
            place |= {name: part[name] for name in ("id", "type") if name in part}
            for name in ("input", "arguments"):
                place[name] += fields.get(name, "")
    assert found[0] | {"id": ""} == {"id": "", "type": "custom", "input": PATCH, "arguments": ""}
    assert (found[1]["type"], found[1]["arguments"]) == ("function", "{}")


@table_rows(("arguments", "given"), [("ls -l", "ls -l"), ('{"input":7}', '{"input":7}'), ("", "")])
def test_what_a_model_writes_in_its_own_way_is_kept(arguments: str, given: str) -> None:
    raw = orjson.dumps(ANSWERS["openai_chat"]).replace(orjson.dumps(ARGUMENTS), orjson.dumps(arguments))
    call = orjson.loads(exchange("openai_chat").parse_answer(raw, ())[0])["choices"][0]["message"]["tool_calls"][0]
    assert call["custom"]["input"] == given


def test_the_text_of_a_call_is_bounded() -> None:
    writer = CustomCallSerializer({"f"}, answer_id="x", model="m", created_s=1, include_usage=False)
    writer.write(chat.ToolCallStart(0, "a", "f"))
    with pytest.raises(ProviderBadResponse, match="too long"):
        writer.write(chat.ToolCallDelta(0, "x" * (MAX_INPUT_CHARS + 1)))
