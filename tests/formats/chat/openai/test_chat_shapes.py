"""Chat bodies in the shapes of other formats, as clients and gateways of other makers write them."""

from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.formats.chat import model as chat
from gateway.formats.chat.openai.request_reader import parse_chat_request
from tests.support.table_rows import table_rows

IMAGE = chat.MediaPart("image", "image/png", "AA")
FAR = "https://x.org/a.png"
PARTS: list[tuple[str, Any, Any, tuple[str, ...]]] = [
    ("user", {"type": "input_text", "text": "T"}, chat.TextPart("T"), ()),
    ("assistant", {"type": "output_text", "text": "T"}, chat.TextPart("T"), ()),
    ("assistant", {"type": "thinking", "thinking": "hm", "signature": "s"}, chat.ReasoningPart("hm", "s"), ()),
    ("assistant", {"type": "redacted_thinking", "data": "x"}, None, ("redacted_thinking",)),
    ("assistant", {"type": "tool_use", "id": "1", "name": "f", "input": {}}, chat.ToolCallPart("1", "f", "{}"), ()),
    (
        "user",
        {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "of_tomorrow", "text": "R"}]},
        chat.ToolResultPart("1", (chat.TextPart("[of_tomorrow] R"),)),
        ("of_tomorrow",),
    ),
    ("user", {"type": "of_tomorrow", "text": "T"}, chat.TextPart("[of_tomorrow] T"), ("of_tomorrow",)),
    ("user", {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}, IMAGE, ()),
    ("user", {"type": "image", "base64": "AA", "mime_type": "image/png"}, IMAGE, ()),
    ("tool", {"type": "image", "source_type": "base64", "data": "AA", "mime_type": "image/png"}, IMAGE, ()),
    ("user", {"type": "image", "source": {"type": "url", "url": FAR}}, chat.MediaPart("image", url=FAR), ()),
    ("user", {"type": "image", "url": FAR}, chat.MediaPart("image", url=FAR), ()),
    ("user", {"type": "image", "id": "i"}, None, ("image",)),
    ("user", {"type": "document", "source": {"type": "text", "data": "T"}}, chat.TextPart("T"), ()),
    (
        "user",
        {"type": "document", "title": "t", "source": {"media_type": "application/pdf", "data": "AA"}},
        chat.MediaPart("file", "application/pdf", "AA", name="t"),
        (),
    ),
    (
        "user",
        {"type": "file", "file": {"file_id": "f"}},
        chat.TextPart("[file: a file that is not available any more]"),
        ("file",),
    ),
]


@table_rows(("role", "part", "expected", "adapted"), PARTS)
def test_a_part_of_another_format_in_a_history(role: str, part: Any, expected: Any, adapted: tuple[str, ...]) -> None:
    history = [
        {"role": role, "content": [part, {"type": "text", "text": "x"}], "tool_call_id": "1"},
        {"role": "assistant", "content": "Well"},
    ]
    request = parse_chat_request({"messages": [*history, {"role": "user", "content": "Go on"}]})
    parts = request.messages[0].parts
    found = parts[0].parts if isinstance(parts[0], chat.ToolResultPart) and role == "tool" else parts
    assert found == (*((expected,) if expected else ()), chat.TextPart("x"))
    assert request.adapted == adapted


def test_a_call_that_stands_twice_is_one_call_and_an_old_audio_answer_is_its_words() -> None:
    twice = {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}],
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        "audio": {"id": "audio_1", "transcript": "Hm"},
    }
    request = parse_chat_request({"messages": [{"role": "user", "content": "Hi"}, twice]})
    assert request.messages[1].parts == (chat.TextPart("[audio] Hm"), chat.ToolCallPart("1", "f", "{}"))
    assert request.adapted == ("audio", "tool_use")


@table_rows("form", ["parameters", "input_schema"])
@table_rows("kind", [{"type": "function"}, {}])
def test_a_tool_may_stand_beside_its_type(form: str, kind: dict[str, str]) -> None:
    tool = {**kind, "name": "f", "description": "d", form: {"type": "object"}}
    request = parse_chat_request(
        {"messages": [{"role": "user", "content": "Hi"}], "tools": [tool], "tool_choice": {"type": "tool", "name": "f"}}
    )
    assert request.tools == (chat.Tool("f", "d", {"type": "object"}),)
    assert request.tool_choice == chat.ForcedTool("f")


@table_rows(("choice", "expected"), [("auto", "auto"), ("any", "required"), ("required", "required"), ("none", "none")])
@table_rows("tool", [{"type": "web_search"}, {"googleSearch": {}}])
@table_rows("bare", [False, True])
def test_a_choice_may_be_an_object_and_a_hosted_tool_is_left_out(
    choice: str, expected: str, tool: dict[str, Any], bare: bool
) -> None:
    function = {"type": "function", "function": {"name": "f"}}
    body = {"messages": [{"role": "user", "content": "Hi"}], "tool_choice": choice if bare else {"type": choice}}
    request = parse_chat_request({**body, "tools": [tool, function]})
    assert (request.tool_choice, len(request.tools), request.adapted) == (
        expected,
        1,
        (f"tools.{tool.get('type', 'googleSearch')}",),
    )
    if expected == "required":
        with pytest.raises(InvalidRequest) as caught:
            parse_chat_request({**body, "tools": [tool]})
        assert caught.value.param == "tool_choice"


@table_rows("arguments", [{"a": 1}, '{"a":1}'])
def test_arguments_may_be_an_object_and_an_earlier_message_empty(arguments: Any) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    history = [{"role": "user", "content": None}, {"role": "assistant", "tool_calls": [call]}]
    request = parse_chat_request({"messages": [*history, {"role": "tool", "tool_call_id": "1", "content": "R"}]})
    assert request.messages[0].parts == (chat.ToolCallPart("1", "f", '{"a":1}'),)
    with pytest.raises(InvalidRequest):
        parse_chat_request({"messages": history[:1]})


def test_a_function_needs_no_type_and_a_schema_no_name() -> None:
    schema = {"type": "object"}
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": [{"function": {"name": "f"}}]}
    request = parse_chat_request(
        {**body, "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
    )
    assert request.tools == (chat.Tool("f"),)
    assert request.format == chat.ResponseFormat("schema", schema)
