"""Tools of namespaces in a Responses body, as Codex sends them, for a channel with another format."""

from typing import Any

import orjson
import pytest

from gateway.domain.inference_request import InferenceRequest
from gateway.errors import InvalidRequest
from gateway.formats.chat import model as chat
from gateway.formats.chat.responses.request_reader import parse_chat_request
from gateway.formats.chat.responses.response_writer import ResponseStreamSerializer
from gateway.formats.chat.responses.responses import parse_responses_inference
from gateway.formats.chat.responses.tools import MAX_NAME_CHARS, join_name
from gateway.formats.translator import ResponseIdentity
from tests.support.table_rows import table_rows

LONG = "mcp__a_server_with_a_name_that_its_author_has_thought_about_for_long"
IDENTITY = ResponseIdentity("0123456789abcdef01234567", "m", 1_750_000_000)
CRM: dict[str, Any] = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers",
    "tools": [
        {"type": "function", "name": "find", "description": "Finds one", "parameters": {"type": "object"}},
        {"type": "custom", "name": "query"},
    ],
}
PLAIN = {"type": "function", "name": "find", "parameters": {"type": "object"}}


def parse(**body: Any) -> tuple[InferenceRequest, chat.ChatRequest]:
    inference = parse_responses_inference({"model": "m", "input": "hi", **body})
    return inference, parse_chat_request(inference.body)


def test_tools_of_a_namespace_are_tools_with_its_name_in_front() -> None:
    _, request = parse(tools=[PLAIN, CRM, {**CRM, "name": "erp"}])
    assert [tool.name for tool in request.tools] == ["find", "crm__find", "crm__query", "erp__find", "erp__query"]
    assert request.tools[1].description == "Finds one"


def test_a_call_has_the_namespace_and_the_name_of_its_tool() -> None:
    inference, _ = parse(tools=[PLAIN, CRM])
    writer = ResponseStreamSerializer(inference, IDENTITY)
    names = ("crm__find", "find", "crm__query")
    for at, name in enumerate(names):
        writer.write(chat.ToolCallStart(at, f"call_{at}", name))
        writer.write(chat.ToolCallDelta(at, '{"input": "x"}'))
    writer.write(chat.ChoiceFinished("tool_calls"))
    writer.write(chat.StreamEnd())
    output = orjson.loads(writer.build_response())["output"]
    assert [(one["type"], one.get("namespace"), one["name"]) for one in output] == [
        ("function_call", "crm", "find"),
        ("function_call", None, "find"),
        ("custom_tool_call", "crm", "query"),
    ]
    _, request = parse(tools=[PLAIN, CRM], input=[{"role": "user", "content": "hi"}, *output])
    parts = [part for message in request.messages for part in message.parts if isinstance(part, chat.ToolCallPart)]
    assert [part.name for part in parts] == list(names)


def test_a_long_name_is_cut_and_stays_the_only_one() -> None:
    names = {join_name(LONG, name) for name in ("find", "find_all", "delete")}
    assert len(names) == 3
    assert {len(name) for name in names} == {MAX_NAME_CHARS}
    assert all(name.startswith("mcp__a_server") for name in names)


def test_a_tool_in_a_namespace_can_be_forced_or_allowed() -> None:
    chosen = {"type": "function", "namespace": "crm", "name": "find"}
    assert parse(tools=[PLAIN, CRM], tool_choice=chosen)[1].tool_choice == chat.ForcedTool("crm__find")
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [chosen]}
    _, request = parse(tools=[PLAIN, CRM], tool_choice=allowed)
    assert ([tool.name for tool in request.tools], request.tool_choice) == (["crm__find"], "required")


@table_rows(
    ("tool", "param"),
    [
        ({**CRM, "name": None}, "tools[0].name"),
        ({**CRM, "tools": None}, "tools[0].tools"),
        ({**CRM, "tools": ["find"]}, "tools[0].tools[0]"),
        ({**CRM, "tools": [{"type": "function"}]}, "tools[0].tools[0].name"),
        ({**CRM, "tools": [{"type": 5}]}, "tools[0].tools[0].type"),
    ],
)
def test_a_namespace_that_is_none_is_named(tool: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(tools=[tool])
    assert caught.value.param == param
