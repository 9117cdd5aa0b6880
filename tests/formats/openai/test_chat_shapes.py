"""Chat bodies in the shapes of other formats, as clients and gateways of other makers write them."""

from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.formats import chat
from gateway.formats.openai.request_reader import parse_chat_request

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
    (
        "user",
        {"type": "file", "file": {"file_id": "f"}},
        chat.TextPart("[file: a file that is not available any more]"),
        ("file",),
    ),
]


@pytest.mark.parametrize(("role", "part", "expected", "adapted"), PARTS)
def test_a_part_of_another_format_in_a_history(role: str, part: Any, expected: Any, adapted: tuple[str, ...]) -> None:
    history = [
        {"role": role, "content": [part, {"type": "text", "text": "x"}]},
        {"role": "assistant", "content": "Well"},
    ]
    request = parse_chat_request({"messages": [*history, {"role": "user", "content": "Go on"}]})
    assert request.messages[0].parts == (*((expected,) if expected else ()), chat.TextPart("x"))
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


@pytest.mark.parametrize("form", ["parameters", "input_schema"])
@pytest.mark.parametrize("kind", [{"type": "function"}, {}])
def test_a_tool_may_stand_beside_its_type(form: str, kind: dict[str, str]) -> None:
    tool = {**kind, "name": "f", "description": "d", form: {"type": "object"}}
    request = parse_chat_request(
        {"messages": [{"role": "user", "content": "Hi"}], "tools": [tool], "tool_choice": {"type": "tool", "name": "f"}}
    )
    assert request.tools == (chat.Tool("f", "d", {"type": "object"}),)
    assert request.tool_choice == chat.ForcedTool("f")


@pytest.mark.parametrize(
    ("choice", "expected"), [("auto", "auto"), ("any", "required"), ("required", "required"), ("none", "none")]
)
def test_a_choice_may_be_an_object_and_a_hosted_tool_is_left_out(choice: str, expected: str) -> None:
    function = {"type": "function", "function": {"name": "f"}}
    body = {"messages": [{"role": "user", "content": "Hi"}], "tool_choice": {"type": choice}}
    request = parse_chat_request({**body, "tools": [{"type": "web_search"}, function]})
    assert (request.tool_choice, len(request.tools), request.adapted) == (expected, 1, ("tools.web_search",))
    if expected == "required":
        with pytest.raises(InvalidRequest) as caught:
            parse_chat_request({**body, "tools": [{"type": "web_search"}]})
        assert caught.value.param == "tool_choice"
