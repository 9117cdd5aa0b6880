"""What a request asked, in every client format."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.formats.transcript.messages import ShownMessage, ToolCall, read_messages

CALL = [ToolCall("find", '{"q":"x"}')]
CHAT = {
    "messages": [
        {"role": "system", "content": "be brief"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "u"}}],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": "find", "arguments": '{"q":"x"}'}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "found"},
    ]
}
MESSAGES = {
    "system": [{"type": "text", "text": "be brief"}],
    "messages": [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [{"type": "tool_use", "name": "find", "input": {"q": "x"}}]},
        {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "found"}]}]},
    ],
}
RESPONSES = {
    "instructions": "be brief",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "look"}]},
        {"type": "function_call", "name": "find", "arguments": '{"q":"x"}'},
        {"type": "function_call_output", "output": "found"},
    ],
}
GEMINI = {
    "systemInstruction": {"parts": [{"text": "be brief"}]},
    "contents": [
        {"role": "user", "parts": [{"text": "look"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "find", "args": {"q": "x"}}}]},
    ],
}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            CHAT,
            [
                ("system", "be brief", []), ("user", "look\n[image_url]", []),
                ("assistant", "", CALL), ("tool", "found", []),
            ],
        ),
        (MESSAGES, [("system", "be brief", []), ("user", "look", []), ("assistant", "", CALL), ("user", "found", [])]),
        (RESPONSES, [("system", "be brief", []), ("user", "look", []), ("assistant", "", CALL), ("tool", "found", [])]),
        (GEMINI, [("system", "be brief", []), ("user", "look", []), ("model", "", CALL)]),
        ({"instructions": "be brief", "input": "look"}, [("system", "be brief", []), ("user", "look", [])]),
        ({"input": ["one", "two"]}, [("user", "one\ntwo", [])]),
        ({"prompt": "go on"}, [("user", "go on", [])]),
        ({"query": "q", "documents": ["a", {"text": "b"}]}, [("user", "q", []), ("user", "a\nb", [])]),
        ({"model": "m"}, []),
        ([], []),
    ],
)  # fmt: skip
def test_every_format_is_read(body: Any, expected: list[tuple[str, str, list[ToolCall]]]) -> None:
    shown = [(message.role, message.text, list(message.tool_calls)) for message in read_messages(body)]
    assert shown == expected


PLAIN = st.none() | st.booleans() | st.integers() | st.text(max_size=9)
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["type", "content", "role", "parts", "text", "output", "tool_calls", "function", "summary"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["messages", "input", "contents", "system", "prompt", "documents"]), VALUES))
def test_no_value_raises_an_error(body: Any) -> None:
    assert all(isinstance(message, ShownMessage) for message in read_messages(body))
