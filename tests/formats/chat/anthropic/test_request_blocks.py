"""Every block and tool that Anthropic's library knows, for a channel of another format: none refuses a history."""

from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import orjson
import pytest
from anthropic.types import beta
from anthropic.types.beta.beta_tool_result_block_param import Content

from gateway.errors import InvalidRequest
from gateway.formats.chat import model as chat
from gateway.formats.chat.anthropic.passthrough_body import build_passed_body
from gateway.formats.chat.anthropic.request import parse_messages_inference
from gateway.formats.chat.anthropic.request_reader import parse_chat_request
from gateway.formats.errors.anthropic import build_messages_error
from tests.support.table_rows import table_rows

IMAGE = {"type": "base64", "media_type": "image/png", "data": "AA=="}
LINE = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.117.48f; cch=71fea;"}
SPOKEN = {"type": "text", "text": "Hm"}
BLOCKS: dict[str, tuple[dict[str, Any], str | None]] = {
    "text": ({"text": "T"}, "T"),
    "image": ({"source": IMAGE}, None),
    "document": ({"source": {"type": "text", "data": "D"}}, "D"),
    "thinking": ({"thinking": "x", "signature": "s"}, None),
    "redacted_thinking": ({"data": "x"}, None),
    "tool_use": ({"id": "1", "name": "f", "input": ""}, None),
    "tool_result": ({"tool_use_id": "1", "content": "R"}, None),
    "search_result": (
        {"source": "S", "title": "T", "content": [{"type": "text", "text": "C"}]},
        '[search_result] {"source":"S","title":"T","content":[{"text":"C"}]}',
    ),
    "server_tool_use": (
        {"id": "1", "name": "web_search", "input": {"query": "q"}},
        '[server_tool_use] {"name":"web_search","input":{"query":"q"}}',
    ),
    "web_search_tool_result": (
        {"tool_use_id": "1", "content": [{"type": "web_search_result", "title": "T", "encrypted_content": "E"}]},
        '[web_search_tool_result] [{"title":"T"}]',
    ),
    "web_fetch_tool_result": ({"tool_use_id": "1", "content": {"url": "U"}}, '[web_fetch_tool_result] {"url":"U"}'),
    "advisor_tool_result": ({"tool_use_id": "1", "content": {"text": "A"}}, '[advisor_tool_result] {"text":"A"}'),
    "code_execution_tool_result": (
        {"tool_use_id": "1", "content": {"type": "code_execution_result", "stdout": "4", "return_code": 0}},
        '[code_execution_tool_result] {"stdout":"4","return_code":0}',
    ),
    "bash_code_execution_tool_result": ({"tool_use_id": "1", "content": {"file_id": "f"}}, ""),
    "text_editor_code_execution_tool_result": (
        {"tool_use_id": "1", "content": "x"},
        "[text_editor_code_execution_tool_result] x",
    ),
    "tool_search_tool_result": ({"tool_use_id": "1", "content": []}, ""),
    "mcp_tool_use": (
        {"id": "1", "name": "n", "server_name": "s", "input": {}},
        '[mcp_tool_use] {"name":"n","server_name":"s"}',
    ),
    "mcp_tool_result": (
        {"tool_use_id": "1", "is_error": False, "content": "M"},
        '[mcp_tool_result] {"is_error":false,"content":"M"}',
    ),
    "container_upload": ({"file_id": "f"}, "[container_upload: a file that is not available any more]"),
    "compaction": ({"content": "Before", "encrypted_content": "E"}, "[compaction] Before"),
    "tool_addition": ({"tool": {"type": "tool_reference", "name": "n"}}, '[tool_addition] {"name":"n"}'),
    "tool_removal": ({"tool": {"type": "tool_reference", "name": "n"}}, '[tool_removal] {"name":"n"}'),
    "mcp_tool_listing": ({"mcp_server_name": "s", "tools": []}, "[mcp_tool_listing] s"),
    "fallback": (
        {"from": {"model": "a"}, "to": {"model": "b"}},
        '[fallback] {"from":{"model":"a"},"to":{"model":"b"}}',
    ),
    "tool_reference": ({"tool_name": "TaskStop"}, "Tool available: TaskStop"),
    "browser_state": ({"tabs": [{"url": "U"}]}, '[browser_state] [{"url":"U"}]'),
    "of_tomorrow": ({"text": "New", "signature": "s"}, "[of_tomorrow] New"),
}
"""What each becomes; None: a part of its own."""
OF_USER = {"tool_result"}


def list_kinds(union: Any) -> Iterator[str]:
    while get_origin(union) is Annotated:
        union = get_args(union)[0]
    for member in get_args(union):
        if not isinstance(member, type):  # another union
            yield from list_kinds(member)
            continue
        fields = getattr(member, "model_fields", None)
        hint = fields["type"].annotation if fields else get_type_hints(member)["type"]
        inner = [one for one in get_args(hint) if one is not type(None)]
        yield from (kind for one in inner for kind in (get_args(one) or (one,)))


def read(*messages: Any, **more: Any) -> chat.ChatRequest:
    body = {"model": "m", "max_tokens": 9, "messages": [*messages, {"role": "user", "content": "Go on"}], **more}
    return parse_chat_request(parse_messages_inference(body).body)


def test_every_block_of_the_library_has_a_row() -> None:
    assert {*list_kinds(beta.BetaContentBlockParam), *list_kinds(Content)} <= BLOCKS.keys()


@table_rows("kind", BLOCKS)
def test_a_block_of_a_history_is_translated_written_as_text_or_left_out(kind: str) -> None:
    fields, expected = BLOCKS[kind]
    block = {"type": kind, **fields}
    role = "user" if kind in OF_USER else "assistant"
    request = read({"role": role, "content": [SPOKEN, block]}, {"role": "assistant", "content": "Well"})
    added = request.messages[0].parts[1:]
    if expected is None:
        assert (len(added), request.adapted) == (1, ())
        return
    assert added == ((chat.TextPart(expected),) if expected else ())
    assert request.adapted == (() if kind in {"text", "document"} else (kind,))
    if kind in set(list_kinds(Content)) | {"of_tomorrow"}:
        result = {"type": "tool_result", "tool_use_id": "1", "content": [block]}
        [part] = read({"role": "user", "content": [result]}).messages[0].parts
        assert isinstance(part, chat.ToolResultPart)
        assert part.parts == (chat.TextPart(expected),)


def test_a_message_of_which_nothing_is_left_is_left_out_and_so_is_deep_nesting() -> None:
    deep: Any = "x"
    for _ in range(200):
        deep = [deep]
    for content in ({"type": "of_tomorrow", "id": "1"}, {"type": "of_tomorrow", "content": deep}):
        assert len(read({"role": "assistant", "content": [content]}).messages) == 1


@table_rows("source", [{"type": "file", "file_id": "f"}, {"type": "of_tomorrow"}])
@table_rows("kind", ["image", "document"])
def test_a_stored_file_of_an_earlier_turn_becomes_a_note(kind: str, source: Any) -> None:
    asked = {"role": "user", "content": [{"type": kind, "source": source}]}
    request = read(asked, {"role": "assistant", "content": "Well"})
    assert request.messages[0].parts == (chat.TextPart(f"[{kind}: a file that is not available any more]"),)
    assert request.adapted == (kind,)


FUNCTIONS = {"custom", "bash", "text_editor", "memory", "computer"}
HOSTED = {
    "code_execution", "browser_toolset", "computer_toolset", "web_search", "web_fetch", "advisor", "mcp_toolset",
    "tool_search_tool_bm25", "tool_search_tool_regex",
}  # fmt: skip


@table_rows("kind", sorted({*list_kinds(beta.BetaToolUnionParam), "of_tomorrow_20300101"}))
def test_a_tool_is_a_function_or_left_out(kind: str) -> None:
    tool = {"type": kind, "name": "t", "display_width_px": 8, "display_height_px": 6}
    family = kind.rpartition("_2")[0] or kind
    request = read(tools=[tool, {"name": "f"}], tool_choice={"type": "auto"})
    if family in FUNCTIONS:
        assert [one.name for one in request.tools] == ["t", "f"]
        assert kind == "custom" or (request.tools[0].description and request.tools[0].schema)
        assert request.adapted == ()
    else:
        assert family in HOSTED | {"of_tomorrow"}
        assert ([one.name for one in request.tools], request.adapted) == (["f"], (f"tools.{kind}",))
        assert read(tools=[tool], tool_choice={"type": "auto"}).tool_choice is None
        for choice in ({"type": "tool", "name": "t"}, {"type": "any"}):
            with pytest.raises(InvalidRequest, match="tools\\.") as caught:
                read(tools=[tool], tool_choice=choice)
            assert caught.value.param == "tool_choice"


def test_a_tool_that_a_message_adds_is_a_tool() -> None:
    added = {
        "type": "tool_addition",
        "tool": {"type": "tool_definition", "definition": {"name": "g", "input_schema": {}}},
    }
    request = read({"role": "user", "content": "Hi"}, {"role": "system", "content": [added]}, tools=[{"name": "f"}])
    assert [tool.name for tool in request.tools] == ["f", "g"]


@table_rows(("value", "arguments"), [("", ""), ('{"a":1', '{"a":1'), (None, "{}"), ({"a": 1}, '{"a":1}')])
def test_arguments_of_any_form_are_read(value: Any, arguments: str) -> None:
    call = {"type": "tool_use", "id": "1", "name": "f", "input": value}
    [part] = read({"role": "assistant", "content": [call]}).messages[0].parts
    assert isinstance(part, chat.ToolCallPart)
    assert part.arguments == arguments


def test_the_billing_line_is_only_sent_to_anthropic() -> None:
    request = read(system=[LINE, SPOKEN])
    assert (request.messages[0].parts, request.adapted) == ((chat.TextPart("Hm"),), ("x-anthropic-billing-header",))
    inference = parse_messages_inference(
        {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], "system": [LINE, SPOKEN]}
    )
    assert build_passed_body(inference, "claude-sonnet-4-5")["system"] == [LINE, SPOKEN]
    assert build_passed_body(inference, "qwen3:8b")["system"] == [SPOKEN]
    assert inference.body["system"] == [LINE, SPOKEN]


def test_a_tool_runner_learns_to_go_on_without_a_thread() -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(thread={"type": "create"})
    error = orjson.loads(build_messages_error(caught.value, "r"))["error"]
    assert error["details"] == {"error_code": "thread_unsupported_request", "unsupported": []}
    assert "details" not in orjson.loads(build_messages_error(InvalidRequest("x", param="y"), "r"))["error"]
