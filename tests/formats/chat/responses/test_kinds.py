"""Every item and tool that OpenAI's library knows, for a channel of another format: none refuses a history."""

from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import orjson
import pytest
from hypothesis import given, settings
from openai.types.responses.response_input_item_param import ResponseInputItemParam
from openai.types.responses.tool_param import ToolParam

from gateway.errors import InvalidRequest
from gateway.formats.chat import model as chat
from gateway.formats.chat.responses.request_reader import parse_chat_request
from gateway.formats.chat.responses.response_writer import ResponseStreamSerializer
from gateway.formats.chat.responses.responses import parse_responses_inference
from gateway.formats.translator import ResponseIdentity
from tests.support.corrupt_json import spoilt
from tests.support.table_rows import table_rows

IDENTITY = ResponseIdentity("0123456789abcdef01234567", "m", 1_750_000_000)
F: dict[str, Any] = {"type": "function", "name": "f", "parameters": {"type": "object"}}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"},
}
SHOT = {"type": "computer_screenshot", "image_url": "data:image/png;base64,AA=="}


def call_of(name: str, **arguments: Any) -> chat.ToolCallPart:
    return chat.ToolCallPart("c", name, orjson.dumps(arguments).decode())


def result_of(text: str, *, failed: bool = False) -> chat.ToolResultPart:
    return chat.ToolResultPart("c", (chat.TextPart(text),), failed)


ITEMS: dict[str, tuple[dict[str, Any], Any]] = {
    "message": ({"role": "user", "content": "M"}, chat.TextPart("M")),
    "function_call": ({"call_id": "c", "name": "f", "arguments": "{}"}, call_of("f")),
    "function_call_output": ({"call_id": "c", "output": "R"}, result_of("R")),
    "custom_tool_call": ({"call_id": "c", "name": "f", "input": "x"}, call_of("f", input="x")),
    "custom_tool_call_output": (
        {"call_id": "c", "output": [{"type": "of_tomorrow", "text": "R"}]},
        result_of("[of_tomorrow] R"),
    ),
    "reasoning": ({"summary": [{"type": "summary_text", "text": "hm"}]}, chat.ReasoningPart("hm")),
    "image_generation_call": ({"result": "AA=="}, chat.MediaPart("image", "image/png", "AA==")),
    "local_shell_call": (
        {"id": "i", "call_id": "c", "action": {"type": "exec", "command": ["ls"], "env": {}}},
        call_of("local_shell", command=["ls"]),
    ),
    "local_shell_call_output": ({"id": "c", "output": "R"}, result_of("R")),
    "shell_call": (
        {"call_id": "c", "action": {"commands": ["ls"], "timeout_ms": None}},
        call_of("shell", commands=["ls"]),
    ),
    "shell_call_output": ({"call_id": "c", "output": [{"stdout": "R"}]}, result_of('[{"stdout":"R"}]')),
    "apply_patch_call": (
        {"call_id": "c", "operation": {"type": "delete_file", "path": "p"}},
        call_of("apply_patch", type="delete_file", path="p"),
    ),
    "apply_patch_call_output": ({"call_id": "c", "status": "failed"}, result_of("failed", failed=True)),
    "tool_search_call": (
        {"call_id": "c", "execution": "client", "arguments": {"query": "q"}},
        call_of("tool_search", query="q"),
    ),
    "tool_search_output": ({"call_id": "c", "tools": [F]}, result_of("Tools available: f")),
    "web_search_call": ({"id": "w", "action": {"query": "q"}}, '[web_search_call] {"query":"q"}'),
    "file_search_call": ({"id": "w", "queries": ["q"]}, '[file_search_call] ["q"]'),
    "computer_call": ({"call_id": "c", "action": {"type": "click", "x": 1}}, '[computer_call] {"x":1}'),
    "computer_call_output": ({"call_id": "c", "output": SHOT}, ""),
    "code_interpreter_call": ({"code": "1+1", "container_id": "k"}, "[code_interpreter_call] 1+1"),
    "mcp_list_tools": ({"server_label": "s", "tools": []}, ""),
    "mcp_approval_request": ({"name": "n", "arguments": "{}"}, '[mcp_approval_request] {"name":"n","arguments":"{}"}'),
    "mcp_approval_response": ({"approve": True}, "[mcp_approval_response] true"),
    "mcp_call": ({"name": "n", "output": "R"}, '[mcp_call] {"name":"n","output":"R"}'),
    "compaction": ({"encrypted_content": "gAAAA"}, ""),
    "configuration_update": ({"tools": []}, ""),
    "program": ({"code": "x"}, "[program] x"),
    "program_output": ({"output": "R"}, "[program_output] R"),
    "compaction_trigger": ({}, ""),
    "of_tomorrow": ({"text": "New"}, "[of_tomorrow] New"),
    "additional_tools": ({"role": "developer", "tools": [F]}, ()),
}
"""What each becomes: a part, a text (empty: nothing) that is named, or nothing that need be named."""


def list_kinds(union: Any) -> Iterator[str]:
    for member in get_args(union):
        hint = get_type_hints(member)["type"]
        for one in get_args(hint):
            yield from get_args(one) or ((one,) if isinstance(one, str) else ())


def parse(*items: Any, **more: Any) -> chat.ChatRequest:
    body = {"model": "m", "input": [*items, {"role": "user", "content": "Go on"}], **more}
    return parse_chat_request(parse_responses_inference(body).body)


EVERY: dict[str, Any] = {
    "model": "m",
    "input": [*({"type": kind, **fields} for kind, (fields, _) in ITEMS.items()), {"role": "user", "content": [SHOT]}],
    "tools": [
        F,
        PATCH,
        {"type": "shell", "environment": {"type": "local"}},
        {"type": "namespace", "name": "n", "tools": [F]},
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [F, {"type": "shell"}]},
}


@settings(max_examples=300)
@given(body=spoilt(EVERY).filter(lambda body: isinstance(body, dict)))
def test_whatever_stands_anywhere_is_read_or_refused_by_name(body: dict[str, Any]) -> None:
    try:
        inference = parse_responses_inference(body)
        parse_chat_request(inference.body)
        answer(inference, "f", "shell")
    except InvalidRequest as fault:
        assert fault.param  # noqa: PT017 - it may as well be read


def test_every_item_of_the_library_has_a_row() -> None:
    assert set(list_kinds(ResponseInputItemParam)) <= ITEMS.keys() | {"item_reference"}


@table_rows("kind", ITEMS)
def test_an_item_of_a_history_is_translated_written_as_text_or_left_out(kind: str) -> None:
    fields, expected = ITEMS[kind]
    request = parse({"type": kind, **fields})
    parts = request.messages[0].parts if len(request.messages) > 1 else ()
    adapted: tuple[str, ...] = (kind,)
    if isinstance(expected, str):
        expected = (chat.TextPart(expected),) if expected else ()
    else:
        expected, adapted = (
            (expected or (),) if expected else (),
            ("of_tomorrow",) if "of_tomorrow" in repr(fields) else (),
        )
    assert (parts, request.adapted) == (expected, adapted)


def test_additional_tools_are_tools_and_are_called_by_their_own_names() -> None:
    space = {
        "type": "namespace",
        "name": "functions",
        "tools": [{**F, "name": "wait"}, {"type": "custom", "name": "exec"}],
    }
    body = {
        "model": "m",
        "input": [{"type": "additional_tools", "tools": [space, F]}, {"role": "user", "content": "Hi"}],
    }
    inference = parse_responses_inference(body)
    request = parse_chat_request(inference.body)
    assert [tool.name for tool in request.tools] == ["functions__wait", "functions__exec", "f"]
    assert len(request.messages) == 1
    assert [
        (one["type"], one.get("namespace"), one["name"])
        for one in answer(inference, "functions__wait", "functions__exec", "f")
    ] == [
        ("function_call", "functions", "wait"),
        ("custom_tool_call", "functions", "exec"),
        ("function_call", None, "f"),
    ]


def answer(call: Any, *names: str, arguments: str = "{}") -> list[dict[str, Any]]:
    writer = ResponseStreamSerializer(call, IDENTITY)
    for at, name in enumerate(names):
        writer.write(chat.ToolCallStart(at, f"call_{at}", name))
        writer.write(chat.ToolCallDelta(at, arguments))
    writer.write(chat.ChoiceFinished("tool_calls"))
    writer.write(chat.STREAM_END)
    output: list[dict[str, Any]] = orjson.loads(writer.build_response())["output"]
    return output


def test_a_grammar_goes_into_the_description() -> None:
    [tool] = parse(tools=[PATCH]).tools
    assert tool.description == "The input must fit this grammar (lark):\nstart: X"
    assert tool.schema
    assert tool.schema["required"] == ["input"]


CLIENT = {"local_shell": "action", "shell": "action", "apply_patch": "operation", "tool_search": "arguments"}


@table_rows("kind", sorted({*list_kinds(ToolParam), "of_tomorrow"}))
def test_a_tool_is_a_function_or_left_out(kind: str) -> None:
    tool: dict[str, Any] = {"type": kind, "name": "t", "tools": [], "execution": "client", "server_label": "s"}
    request = parse(tools=[tool, F], tool_choice="auto")
    names = [one.name for one in request.tools]
    if kind in CLIENT:
        assert (names, request.adapted) == ([kind, "f"], ())
        inference = parse_responses_inference({"model": "m", "input": "Hi", "tools": [tool, F]})
        [item] = answer(inference, kind, arguments='{"type": "delete_file", "path": "p", "command": ["ls"]}')
        assert (item["type"], item["call_id"], item["status"]) == (f"{kind}_call", "call_0", "completed")
        assert item[CLIENT[kind]]["path"] == "p"
        assert "type" in answer(inference, kind, arguments="ls -l")[0]
        return
    if kind in {"function", "custom", "namespace"}:
        assert (names, request.adapted) == (["t", "f"] if kind != "namespace" else ["f"], ())
        return
    assert (names, request.adapted) == (["f"], (f"tools.{kind}",))
    assert parse(tools=[tool], tool_choice="auto").tool_choice is None
    for choice in ({"type": kind}, "required"):
        with pytest.raises(InvalidRequest) as caught:
            parse(tools=[tool], tool_choice=choice)
        assert (caught.value.param or "").startswith("tool_choice")


@table_rows(
    "tool",
    [{"type": "shell", "environment": {"type": "container_auto"}}, {"type": "tool_search", "execution": "server"}],
)
def test_a_tool_that_runs_at_openai_is_left_out(tool: Any) -> None:
    assert parse(tools=[tool]).adapted == (f"tools.{tool['type']}",)


def test_forms_of_chat_bodies_are_read() -> None:
    nested = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
    image = {"type": "image_url", "image_url": {"url": "https://x/a.png", "detail": "low"}}
    request = parse({"role": "user", "content": [image]}, tools=[nested], tool_choice={"type": "auto"})
    assert request.tools == (chat.Tool("f", "d", {"type": "object"}),)
    assert request.messages[0].parts == (chat.MediaPart("image", url="https://x/a.png", detail="low"),)
    assert request.tool_choice == "auto"


def test_a_stored_file_of_an_earlier_turn_becomes_a_note() -> None:
    asked = {"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}
    request = parse(asked, {"role": "assistant", "content": "Well"})
    assert request.messages[0].parts == (chat.TextPart("[input_image: a file that is not available any more]"),)


CHAT_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}


@table_rows(
    ("item", "parts"),
    [
        ({"role": "assistant", "content": "T", "tool_calls": [CHAT_CALL]}, (chat.TextPart("T"), call_of("f", x=1))),
        ({"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]}, (call_of("f", x=1),)),
        ({"role": "tool", "tool_call_id": "c", "content": "R"}, (result_of("R"),)),
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": {"x": 1}}, (call_of("f", x=1),)),
        ({"type": "function_call_output", "call_id": "c", "output": {"r": 1}}, (result_of('{"r":1}'),)),
        ({"type": "function_call_output", "call_id": "c", "output": None}, (chat.ToolResultPart("c", ()),)),
        ({"role": "assistant", "content": None}, (chat.TextPart("Go on"),)),
    ],
)
def test_a_history_may_have_the_shapes_of_a_chat_body(item: dict[str, Any], parts: tuple[Any, ...]) -> None:
    assert parse(item).messages[0].parts == parts


@table_rows(
    ("items", "param"),
    [
        ([{"role": "assistant", "tool_calls": [5]}], "input[0].tool_calls[0]"),
        ([{"role": "assistant", "tool_calls": [{"id": "c"}]}], "input[0].tool_calls[0].function"),
        ([{"role": "user", "content": None}], "input[0].content"),
    ],
)
def test_what_is_wrong_in_them_is_named(items: list[Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_chat_request(parse_responses_inference({"model": "m", "input": items}).body)
    assert caught.value.param == param


@table_rows("nested", [False, True])
def test_a_schema_may_stand_as_in_a_chat_body_and_needs_no_name(nested: bool) -> None:
    schema = {"schema": {"type": "object"}}
    form = {"type": "json_schema", **({"json_schema": schema} if nested else schema)}
    assert parse(text={"format": form}).format == chat.ResponseFormat("schema", {"type": "object"})
