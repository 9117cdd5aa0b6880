"""Lines for fine-tuning, made of kept chats."""

from typing import Any

import pytest

from gateway.formats.transcript.answers import ShownAnswer
from gateway.formats.transcript.messages import ToolCall
from gateway.formats.transcript.training import build_example

TEXT = ShownAnswer("hello", "", (), "stop")
CALL = ShownAnswer("", "", (ToolCall("find", "{}"),), "tool_calls")
ASKED = [{"role": "user", "content": "hi"}]
ANSWERED = {"role": "assistant", "content": "hello"}


@pytest.mark.parametrize(
    ("operation", "body", "answer", "expected"),
    [
        ("chat", {"messages": ASKED}, TEXT, {"messages": [*ASKED, ANSWERED]}),
        ("chat", {"messages": ASKED, "tools": [{"type": "function"}]}, CALL, {
            "messages": [*ASKED, {"role": "assistant", "content": None, "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": "{}"}}]}],
            "tools": [{"type": "function"}],
        }),
        ("messages", {"system": "be brief", "messages": ASKED}, TEXT, {
            "messages": [{"role": "system", "content": "be brief"}, *ASKED, ANSWERED]}),
        ("generate_content", {"contents": [{"parts": [{"text": "hi"}]}]}, TEXT, {"messages": [*ASKED, ANSWERED]}),
        ("messages", {"messages": ASKED}, CALL, None),
        ("messages", {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "f"}]}]}, TEXT, None),
        ("embeddings", {"input": []}, TEXT, None),
        ("chat", {"messages": "hi"}, TEXT, None),
        ("chat", [], TEXT, None),
    ],
)  # fmt: skip
def test_a_line_has_the_whole_chat_or_there_is_none(
    operation: str, body: Any, answer: ShownAnswer, expected: Any
) -> None:
    assert build_example(operation, body, [answer]) == expected


def test_without_an_answer_there_is_no_line() -> None:
    assert build_example("chat", {"messages": ASKED}, []) is None
