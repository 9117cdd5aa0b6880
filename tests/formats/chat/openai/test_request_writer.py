"""A conversation as a chat body of the convention."""

import base64
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.formats.chat.model import (
    ChatRequest,
    ForcedTool,
    MediaPart,
    Message,
    Part,
    ReasoningPart,
    ResponseFormat,
    TextPart,
    Tool,
    ToolCallPart,
    ToolResultPart,
)
from gateway.formats.chat.openai.chat import parse_chat_inference
from gateway.formats.chat.openai.request_reader import parse_chat_request
from gateway.formats.chat.openai.request_writer import build_body
from tests.support.chat_sdk import NAMES, WORDS
from tests.support.table_rows import table_rows

HELLO = Message("user", (TextPart("hi"),))
PNG = MediaPart("image", "image/png", "AAAA")
SHOWN = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
PARTLY = "(More of this result is in the user's next message.)"


def messages(*turns: Message) -> list[dict[str, Any]]:
    written: list[dict[str, Any]] = build_body(ChatRequest(turns), "m", stream=False)["messages"]
    return written


def write_content(*parts: Part) -> Any:
    """The content of the one message that the user's ``parts`` are."""
    (message,) = messages(Message("user", parts))
    assert message["role"] == "user"
    return message["content"]


def body(**fields: Any) -> dict[str, Any]:
    """What is written besides the model and the messages."""
    written = build_body(ChatRequest((HELLO,), **fields), "m", stream=False)
    assert (written.pop("model"), written.pop("messages")) == ("m", [{"role": "user", "content": "hi"}])
    return written


def test_what_is_not_said_is_not_written() -> None:
    assert body() == {}
    assert body(top_k=5, parallel_tools=False, tool_choice="auto") == {}


def test_a_stream_asks_for_its_usage() -> None:
    written = build_body(ChatRequest((HELLO,)), "m", stream=True)
    assert (written["stream"], written["stream_options"]) == (True, {"include_usage": True})


def test_settings_are_written() -> None:
    assert body(
        max_tokens=5, temperature=0.0, top_p=0.5, stop=("a",), n=2, seed=0, presence_penalty=0.1,
        frequency_penalty=0.2, user="u", effort="xhigh",
    ) == {
        "max_tokens": 5, "temperature": 0.0, "top_p": 0.5, "stop": ["a"], "n": 2, "seed": 0, "presence_penalty": 0.1,
        "frequency_penalty": 0.2, "user": "u", "reasoning_effort": "xhigh",
    }  # fmt: skip


def test_tools_are_written_with_what_belongs_to_them() -> None:
    tools = (Tool("f", "d", {"type": "object"}, True, {"type": "ephemeral"}), Tool("g"))
    written = body(tools=tools, tool_choice=ForcedTool("f"), parallel_tools=False)
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
    assert written == {
        "tools": [{"type": "function", "function": function}, {"type": "function", "function": {"name": "g"}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": False,
    }
    assert body(tools=tools[1:], tool_choice="required")["tool_choice"] == "required"


def test_a_format_is_written() -> None:
    assert body(format=ResponseFormat("json"))["response_format"] == {"type": "json_object"}
    assert body(format=ResponseFormat("schema", {"type": "object"}, "n", True))["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
    }
    assert body(format=ResponseFormat("schema", {}))["response_format"]["json_schema"] == {
        "name": "answer",
        "schema": {},
    }


@table_rows(
    ("tokens", "word"),
    [(0, "none"), (1, "low"), (1024, "low"), (5000, "low"), (6000, "medium"), (16_000, "high"), (100_000, "high")],
)
def test_tokens_to_think_with_are_the_nearest_ordinary_word(tokens: int, word: str) -> None:
    assert body(thinking_tokens=tokens) == {"reasoning_effort": word}
    assert body(thinking_tokens=tokens, effort="minimal") == {"reasoning_effort": "minimal"}


def test_system_turns_stay_at_their_place() -> None:
    assert messages(
        Message("system", (TextPart("a", {"type": "ephemeral"}), TextPart("b"))),
        HELLO,
        Message("system", (TextPart("c"),)),
        HELLO,
    ) == [
        {"role": "system", "content": "a\n\nb"},
        {"role": "user", "content": "hi"},
        {"role": "system", "content": "c"},
        {"role": "user", "content": "hi"},
    ]


def test_tool_results_come_before_the_users_own_words() -> None:
    use = ToolCallPart("c1", "f", '{"x":1}', signature="s")
    results = (
        TextPart("look"),
        ToolResultPart("c1", (TextPart("one"), TextPart("more"))),
        ToolResultPart("c2", (TextPart("no"),), failed=True),
    )
    assert messages(
        HELLO,
        Message("assistant", (TextPart("so"), use, ToolCallPart("c2", "g", "{}"))),
        Message("user", results),
        Message("user", (PNG,)),
    )[1:] == [
        {
            "role": "assistant",
            "content": "so",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
                {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "one\n\nmore"},
        {"role": "tool", "tool_call_id": "c2", "content": "The tool failed: no"},
        {"role": "user", "content": [{"type": "text", "text": "look"}, SHOWN]},
    ]


def test_a_image_in_a_tools_result_follows_the_results_and_says_whose_it_is() -> None:
    results = (ToolResultPart("c1", (TextPart("one"), PNG)), ToolResultPart("c2", (PNG,)), TextPart("well?"))
    assert messages(Message("user", results)) == [
        {"role": "tool", "tool_call_id": "c1", "content": f"one\n\n{PARTLY}"},
        {"role": "tool", "tool_call_id": "c2", "content": PARTLY},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "From the result of the tool call c1:"},
                SHOWN,
                {"type": "text", "text": "From the result of the tool call c2:"},
                SHOWN,
                {"type": "text", "text": "well?"},
            ],
        },
    ]


def test_only_thoughts_that_nobody_signed_go_back() -> None:
    parts = (
        ReasoningPart("mine", ""),
        ReasoningPart("theirs", "sig"),
        ReasoningPart(redacted_data="x"),
        ToolCallPart("c", "f", "{}"),
    )
    (message,) = messages(Message("assistant", parts))
    assert message["reasoning_content"] == "mine"
    assert message["content"] is None
    assert messages(HELLO, Message("assistant", (ReasoningPart("theirs", "sig"),)), HELLO) == [
        {"role": "user", "content": "hi"},
        {"role": "user", "content": "hi"},
    ]


@table_rows(
    ("part", "expected"),
    [
        (PNG, SHOWN),
        (
            MediaPart("image", url="https://x/y", detail="low"),
            {"type": "image_url", "image_url": {"url": "https://x/y", "detail": "low"}},
        ),
        (
            MediaPart("audio", "audio/mpeg", "AA"),
            {"type": "input_audio", "input_audio": {"data": "AA", "format": "mp3"}},
        ),
        (
            MediaPart("file", "application/pdf", "AA"),
            {"type": "file", "file": {"filename": "document.pdf", "file_data": "data:application/pdf;base64,AA"}},
        ),
        (
            MediaPart("file", url="https://x/y.pdf", name="y"),
            {"type": "file", "file": {"filename": "y", "file_data": "https://x/y.pdf"}},
        ),
    ],
)
def test_a_blob_becomes_its_part(part: MediaPart, expected: dict[str, Any]) -> None:
    _, written = write_content(TextPart("see"), part)
    assert written == expected


def test_a_text_document_becomes_its_words() -> None:
    data = base64.b64encode("grüezi".encode()).decode()
    assert write_content(MediaPart("file", "text/plain", data, name="a.txt"), TextPart("?")) == "a.txt\ngrüezi\n\n?"


@table_rows(
    "part",
    [
        MediaPart("audio", "audio/midi", "AA"),
        MediaPart("audio", url="https://x/y"),
        MediaPart("file", "text/plain", "???"),
        MediaPart("file", "text/plain", "/w=="),
    ],
)
def test_what_the_convention_cannot_say_is_refused(part: MediaPart) -> None:
    with pytest.raises(InvalidRequest) as caught:
        write_content(part)
    assert caught.value.param == "messages"


BLOBS = [
    PNG,
    MediaPart("image", url="https://x/y.png", detail="high"),
    MediaPart("audio", "audio/wav", "AA"),
    MediaPart("file", "application/pdf", "AA", name="x.pdf"),
]
PARTS = st.builds(TextPart, WORDS) | st.sampled_from(BLOBS)
TOOLS = st.lists(st.builds(Tool, NAMES, st.none() | WORDS, st.none() | st.just({"type": "object"})), max_size=2)


@st.composite
def conversations(draw: st.DrawFn) -> ChatRequest:
    """Conversations that the convention can say whole: one text a turn, turn and turn about."""
    turns = [Message("system", (TextPart(draw(WORDS)),))]
    for index in range(draw(st.integers(1, 3))):
        turns.append(Message("user", (TextPart(draw(WORDS)), *draw(st.lists(st.sampled_from(BLOBS), max_size=2)))))
        uses = tuple(ToolCallPart(f"c{index}{at}", draw(NAMES), "{}") for at in range(draw(st.integers(0, 2))))
        turns.append(Message("assistant", (ReasoningPart(draw(WORDS)), TextPart(draw(WORDS)), *uses)))
        if uses:
            turns.append(Message("user", tuple(ToolResultPart(use.id, (TextPart(draw(WORDS)),)) for use in uses)))
            turns.append(Message("assistant", (TextPart(draw(WORDS)),)))
    return ChatRequest(
        tuple(turns),
        max_tokens=draw(st.none() | st.integers(1, 1000)),
        temperature=draw(st.none() | st.floats(0, 2)),
        stop=tuple(draw(st.lists(WORDS, max_size=4))),
        tools=tuple(draw(TOOLS)),
        format=draw(st.none() | st.just(ResponseFormat("json"))),
        effort=draw(st.none() | st.sampled_from(["none", "low", "max"])),
        user=draw(st.none() | WORDS),
    )


@given(conversation=conversations())
def test_what_is_written_is_read_again(conversation: ChatRequest) -> None:
    written = orjson.loads(orjson.dumps(build_body(conversation, "m", stream=True)))
    assert parse_chat_request(parse_chat_inference(written).body) == conversation


@given(parts=st.lists(PARTS, min_size=1, max_size=5))
def test_words_and_images_keep_their_order(parts: list[Any]) -> None:
    content = write_content(*parts)
    if isinstance(content, str):
        assert content == "\n\n".join(part.text for part in parts)
    else:
        kinds = {"text": "text", "image_url": "image", "input_audio": "audio", "file": "file"}
        assert [kinds[part["type"]] for part in content] == [getattr(part, "kind", "text") for part in parts]
