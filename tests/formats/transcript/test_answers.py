"""What an answer says: the same from JSON and from a stream, in every client format."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.formats.transcript.answers import ShownAnswer, ShownAnswers, read_answers
from gateway.formats.transcript.messages import ToolCall

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(
        st.sampled_from(
            ["type", "choices", "delta", "message", "content", "index", "tool_calls", "function", "candidates", "parts",
             "usage", "output", "item", "response", "content_block", "functionCall", "text", "thought", "summary"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip
EXPECTED = ShownAnswer("Hello there", "hmm", [ToolCall("find", '{"q":"x"}')], "")
CHAT = [
    {
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant", "content": "Hello there", "reasoning_content": "hmm",
                    "tool_calls": [{"id": "c1", "function": {"name": "find", "arguments": '{"q":"x"}'}}],
                },
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {"prompt_tokens": 7, "completion_tokens": 9},
    }
]  # fmt: skip


def chunk(**delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


CHAT_STREAM = [
    chunk(role="assistant", content=""),
    chunk(reasoning_content="hm"),
    chunk(reasoning_content="m"),
    chunk(content="Hello "),
    chunk(content="there"),
    chunk(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "find", "arguments": ""}}]),
    chunk(tool_calls=[{"index": 0, "function": {"arguments": '{"q":'}}]),
    chunk(tool_calls=[{"index": 0, "function": {"arguments": '"x"}'}}]),
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
    {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 9}},
    None,
]
MESSAGES = [
    {
        "type": "message",
        "content": [
            {"type": "thinking", "thinking": "hmm", "signature": "s"},
            {"type": "text", "text": "Hello there"},
            {"type": "tool_use", "id": "t", "name": "find", "input": {"q": "x"}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 7, "output_tokens": 9},
    }
]
MESSAGES_STREAM = [
    {"type": "message_start", "message": {"content": [], "usage": {"input_tokens": 7, "output_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hmm"}},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Hello "}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "there"}},
    {"type": "content_block_start", "index": 2, "content_block": {"type": "tool_use", "name": "find", "input": {}}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"q":'}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '"x"}'}},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
    {"type": "message_stop"},
]
OUTPUT = [
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hmm"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello there"}]},
    {"type": "function_call", "name": "find", "arguments": '{"q":"x"}', "call_id": "c"},
]
RESPONSE = {
    "object": "response",
    "status": "completed",
    "output": OUTPUT,
    "usage": {"input_tokens": 7, "output_tokens": 9},
}
RESPONSE_STREAM = [
    {"type": "response.created", "response": {"status": "in_progress", "output": []}},
    {"type": "response.reasoning_summary_text.delta", "output_index": 0, "delta": "hmm"},
    {"type": "response.output_text.delta", "output_index": 1, "delta": "Hello "},
    {"type": "response.output_text.delta", "output_index": 1, "delta": "there"},
    {"type": "response.output_text.done", "output_index": 1, "text": "Hello there"},
    {"type": "response.output_item.added", "output_index": 2, "item": {"type": "function_call", "name": "find"}},
    {"type": "response.function_call_arguments.delta", "output_index": 2, "delta": '{"q":"x"}'},
    {"type": "response.completed", "response": RESPONSE},
]
PARTS: list[dict[str, Any]] = [
    {"text": "hmm", "thought": True},
    {"text": "Hello there"},
    {"functionCall": {"name": "find", "args": {"q": "x"}}},
]
USAGE_METADATA = {"promptTokenCount": 7, "candidatesTokenCount": 9}
GEMINI = {"candidates": [{"content": {"parts": PARTS}, "finishReason": "STOP"}], "usageMetadata": USAGE_METADATA}
GEMINI_STREAM = [
    *({"candidates": [{"content": {"parts": [part]}}]} for part in PARTS),
    {"candidates": [{"content": {"parts": []}, "finishReason": "STOP"}], "usageMetadata": USAGE_METADATA},
]


@pytest.mark.parametrize(
    ("values", "finish_reason"),
    [
        (CHAT, "tool_calls"),
        (CHAT_STREAM, "tool_calls"),
        (MESSAGES, "tool_use"),
        (MESSAGES_STREAM, "tool_use"),
        ([RESPONSE], "completed"),
        (RESPONSE_STREAM, "completed"),
        ([GEMINI], "STOP"),
        (GEMINI_STREAM, "STOP"),
        ([GEMINI_STREAM], "STOP"),
    ],
)
def test_json_and_stream_say_the_same(values: list[Any], finish_reason: str) -> None:
    shown_answers = read_answers(values)
    [shown] = shown_answers.answers
    assert (shown.text, shown.reasoning, shown.finish_reason) == (EXPECTED.text, EXPECTED.reasoning, finish_reason)
    assert list(shown.tool_calls) == EXPECTED.tool_calls
    assert (shown_answers.prompt_tokens, shown_answers.completion_tokens) == (7, 9)


def test_several_answers_stay_apart() -> None:
    choices = [{"index": index, "text": f"text {index}", "finish_reason": "stop"} for index in (1, 0)]
    assert [shown.text for shown in read_answers([{"choices": choices}]).answers] == ["text 0", "text 1"]


def test_calls_of_one_index_with_ids_of_their_own_stay_apart() -> None:
    """Some vendors write the index 0 for each call, and some another id in each piece of one call."""
    pieces = [("c1", "find", '{"q":'), ("c9", "", "1}"), ("c2", "find", '{"q":'), ("", "", "2}")]
    calls = [
        {"index": 0, "id": call_id, "function": {"name": name, "arguments": text}} for call_id, name, text in pieces
    ]
    [shown] = read_answers([chunk(tool_calls=[call]) for call in calls]).answers
    assert [(call.name, call.arguments) for call in shown.tool_calls] == [("find", '{"q":1}'), ("find", '{"q":2}')]


def test_another_form_has_no_answers() -> None:
    assert read_answers([{"data": [{"embedding": [1.0]}]}, "text", None, 3]) == ShownAnswers([])


@given(st.lists(JSON_VALUES, max_size=4))
def test_no_value_raises_an_error(values: list[Any]) -> None:
    read_answers(values)
