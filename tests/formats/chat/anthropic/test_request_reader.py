"""A Messages body, read into the hub."""

from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.formats.chat.anthropic.request import parse_messages_inference
from gateway.formats.chat.anthropic.request_reader import parse_chat_request
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
from tests.support.table_rows import table_rows

HELLO: dict[str, Any] = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}
EPHEMERAL = {"type": "ephemeral", "ttl": "1h"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
OWN = "Anthropic's own language"


def read(**more: Any) -> ChatRequest:
    return parse_chat_request(parse_messages_inference(HELLO | more).body)


def read_block(block: Any, role: str = "user") -> tuple[Part, ...]:
    return read(messages=[{"role": role, "content": [block]}]).messages[0].parts


def document(source: Any, **more: Any) -> dict[str, Any]:
    return {"type": "document", "source": source, **more}


def test_a_plain_body_is_a_plain_conversation() -> None:
    assert read() == ChatRequest((Message("user", (TextPart("hi"),)),), max_tokens=100)


def test_the_system_comes_first_and_one_in_the_middle_stays_there() -> None:
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "system", "content": "hurry"},
        {"role": "assistant", "content": [{"type": "text", "text": "hello"}]},
    ]
    system = [{"type": "text", "text": "be brief", "cache_control": EPHEMERAL}, {"type": "text", "text": "be kind"}]
    assert read(system=system, messages=messages).messages == (
        Message("system", (TextPart("be brief", EPHEMERAL), TextPart("be kind"))),
        Message("user", (TextPart("hi"),)),
        Message("system", (TextPart("hurry"),)),
        Message("assistant", (TextPart("hello"),)),
    )
    assert read(system="be brief").messages[0] == Message("system", (TextPart("be brief"),))


@table_rows(
    ("block", "parts"),
    [
        (
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
            (MediaPart("image", media_type="image/png", data="AA=="),),
        ),
        (
            {"type": "image", "source": {"type": "url", "url": "https://x/y"}, "cache_control": EPHEMERAL},
            (MediaPart("image", url="https://x/y", cache_control=EPHEMERAL),),
        ),
        (
            document({"type": "base64", "media_type": "application/pdf", "data": "AA=="}, title="T", context="C"),
            (TextPart("C"), MediaPart("file", media_type="application/pdf", data="AA==", name="T")),
        ),
        (
            document({"type": "url", "url": "https://x/y"}, cache_control=EPHEMERAL),
            (MediaPart("file", media_type="application/pdf", url="https://x/y", cache_control=EPHEMERAL),),
        ),
        (document({"type": "text", "data": "words"}, title="T"), (TextPart("T\n\nwords"),)),
        (document({"type": "text", "data": "words"}, cache_control=EPHEMERAL), (TextPart("words", EPHEMERAL),)),
        (
            document({"type": "content", "content": [{"type": "text", "text": "w"}]}, title="T"),
            (TextPart("T"), TextPart("w")),
        ),
        (document({"type": "content", "content": "words"}), (TextPart("words"),)),
        (
            {"type": "tool_result", "tool_use_id": "1", "content": "ok", "cache_control": EPHEMERAL},
            (ToolResultPart("1", (TextPart("ok"),), cache_control=EPHEMERAL),),
        ),
        ({"type": "tool_result", "tool_use_id": "1", "is_error": True}, (ToolResultPart("1", (), failed=True),)),
        (
            {
                "type": "tool_result",
                "tool_use_id": "1",
                "content": [
                    {"type": "text", "text": "see"},
                    {"type": "image", "source": {"type": "url", "url": "https://x/y"}},
                    document({"type": "text", "data": "words"}),
                ],
            },
            (ToolResultPart("1", (TextPart("see"), MediaPart("image", url="https://x/y"), TextPart("words"))),),
        ),
    ],
)
def test_what_a_user_says(block: Any, parts: tuple[Part, ...]) -> None:
    assert read_block(block) == parts


@table_rows(
    ("block", "part"),
    [
        ({"type": "thinking", "thinking": "hm", "signature": "s"}, ReasoningPart("hm", "s")),
        ({"type": "thinking", "thinking": "", "signature": "s"}, ReasoningPart("", "s")),
        ({"type": "redacted_thinking", "data": "x"}, ReasoningPart(redacted_data="x")),
        (
            {"type": "tool_use", "id": "1", "name": "f", "input": {"é": [1]}, "cache_control": EPHEMERAL},
            ToolCallPart("1", "f", '{"é":[1]}', cache_control=EPHEMERAL),
        ),
        ({"type": "tool_use", "id": "1", "name": "f", "input": {}}, ToolCallPart("1", "f", "{}")),
    ],
)
def test_what_an_assistant_says(block: Any, part: Part) -> None:
    assert read_block(block, "assistant") == (part,)


def test_the_settings() -> None:
    read_in = read(
        temperature=0.5, top_p=0.9, top_k=3, stop_sequences=["a", "b"], metadata={"user_id": "me"}, service_tier="auto"
    )
    assert read_in == ChatRequest(
        (Message("user", (TextPart("hi"),)),),
        max_tokens=100,
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        stop=("a", "b"),
        user="me",
    )


def test_tools() -> None:
    tools = [
        {"name": "f", "description": "d", "input_schema": SCHEMA, "strict": True, "cache_control": EPHEMERAL},
        {"type": "custom", "name": "g"},
    ]
    assert read(tools=tools).tools == (Tool("f", "d", SCHEMA, strict=True, cache_control=EPHEMERAL), Tool("g"))


@table_rows(
    ("choice", "expected"),
    [
        ({"type": "auto"}, ("auto", None)),
        ({"type": "any", "disable_parallel_tool_use": True}, ("required", False)),
        ({"type": "none", "disable_parallel_tool_use": False}, ("none", None)),
        ({"type": "tool", "name": "f"}, (ForcedTool("f"), None)),
        ({}, (None, None)),
        (None, (None, None)),
    ],
)
def test_the_choice_of_a_tool(choice: Any, expected: Any) -> None:
    conversation = read(tool_choice=choice)
    assert (conversation.tool_choice, conversation.parallel_tools) == expected


@table_rows(
    ("extra", "expected"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, (2000, None)),
        ({"thinking": {"type": "disabled"}}, (0, None)),
        ({"thinking": {"type": "between_tools"}, "output_config": {"effort": "low"}}, (0, None)),
        ({"thinking": {"type": "adaptive"}}, (None, None)),
        ({"thinking": {"type": "adaptive", "display": "omitted"}, "output_config": {"effort": "max"}}, (None, "max")),
        ({"output_config": {"effort": "xhigh"}}, (None, "xhigh")),
    ],
)
def test_how_much_to_think(extra: dict[str, Any], expected: Any) -> None:
    conversation = read(**extra)
    assert (conversation.thinking_tokens, conversation.effort) == expected


@table_rows("name", ["output_config", "output_format"])
def test_a_format_is_read_under_its_new_name_and_its_old_one(name: str) -> None:
    form = {"type": "json_schema", "schema": SCHEMA}
    extra: dict[str, Any] = {name: {"format": form} if name == "output_config" else form}
    assert read(**extra).format == ResponseFormat("schema", SCHEMA)


@table_rows(
    ("extra", "param"),
    [
        ({"thread": {"type": "create"}}, "thread"),
        ({"compaction": {"type": "enabled"}}, "compaction"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"thinking": {"type": "of_tomorrow"}}, "thinking.type"),
        ({"output_config": {"effort": "of_tomorrow"}}, "output_config.effort"),
    ],
)
def test_what_only_anthropic_can_do_is_refused_by_name(extra: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest, match=OWN) as caught:
        read(**extra)
    assert caught.value.param == param


@table_rows(
    ("block", "param"),
    [
        ({"type": "container_upload", "file_id": "f"}, ".type"),
        ({"type": "image", "source": {"type": "file", "file_id": "f"}}, ".source.type"),
        (document({"type": "file", "file_id": "f"}), ".source.type"),
    ],
)
def test_so_is_a_file_of_this_turn_that_is_stored_at_anthropic(block: Any, param: str) -> None:
    with pytest.raises(InvalidRequest, match=OWN) as caught:
        read_block(block)
    assert caught.value.param == "messages[0].content[0]" + param


@table_rows(
    ("block", "param"),
    [
        ({"type": "image"}, ".source"),
        ({"type": "image", "source": {}}, ".source.type"),
        ({"type": "image", "source": {"type": "base64", "data": "x"}}, ".source.media_type"),
        ({"type": "image", "source": {"type": "url", "url": None}}, ".source.url"),
        (document({"type": "text"}), ".source.data"),
        (document({"type": "content", "content": 5}), ".source.content"),
        (document({"type": "content", "content": [document({"type": "text"})]}), ".source.content[0]"),
        ({"type": "tool_result"}, ".tool_use_id"),
        ({"type": "tool_result", "tool_use_id": "1", "content": 5}, ".content"),
        ({"type": "tool_result", "tool_use_id": "1", "content": ["x"]}, ".content[0]"),
        ({"type": "thinking", "thinking": "hm"}, ""),
        ({"type": "tool_use", "id": "1", "name": "f", "input": {}}, ""),
    ],
)
def test_a_bad_block_of_a_user_is_named(block: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_block(block)
    assert caught.value.param == "messages[0].content[0]" + param


@table_rows(
    ("block", "param"),
    [
        ({"type": "tool_use", "name": "f", "input": {}}, ".id"),
        ({"type": "tool_use", "id": "1", "input": {}}, ".name"),
        ({"type": "thinking"}, ".thinking"),
        ({"type": "redacted_thinking"}, ".data"),
        ({"type": "tool_result", "tool_use_id": "1"}, ""),
    ],
)
def test_a_bad_block_of_an_assistant_is_named(block: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_block(block, "assistant")
    assert caught.value.param == "messages[0].content[0]" + param


@table_rows(
    ("extra", "param"),
    [
        ({"tools": [{}]}, "tools[0].name"),
        ({"tools": [{"name": "f", "input_schema": []}]}, "tools[0].input_schema"),
        ({"tool_choice": {"name": "f"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "maybe"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"thinking": {"budget_tokens": 5}}, "thinking.type"),
        ({"thinking": {"type": ["enabled"]}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": "many"}}, "thinking.budget_tokens"),
        ({"output_config": {"effort": ["high"]}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
        ({"output_format": "json"}, "output_format"),
    ],
)
def test_a_bad_setting_is_named(extra: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(**extra)
    assert caught.value.param == param


@table_rows(
    "tool",
    [
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}},
        {"type": "function", "name": "f", "description": "d", "parameters": SCHEMA},
        {"type": "function", "name": "f", "description": "d", "input_schema": SCHEMA},
        {"name": "f", "description": "d", "input_schema": SCHEMA},
    ],
)
def test_a_tool_may_be_a_function_as_in_a_chat_body(tool: dict[str, Any]) -> None:
    request = read(tools=[tool])
    assert (request.tools, request.adapted) == ((Tool("f", "d", SCHEMA),), ())


@table_rows("image", ["data:image/png;base64,AA==", {"url": "data:image/png;base64,AA=="}])
def test_an_image_may_stand_as_in_a_chat_body(image: Any) -> None:
    block = {"type": "image_url", "image_url": image}
    assert read_block(block) == (MediaPart("image", "image/png", "AA=="),)
