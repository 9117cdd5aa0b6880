"""A chat body of the convention as a conversation."""

from typing import Any

import orjson
import pytest
from hypothesis import given, settings

from gateway.errors import InvalidRequest
from gateway.formats.chat.model import (
    ChatRequest,
    ForcedTool,
    MediaPart,
    Message,
    ReasoningPart,
    ResponseFormat,
    TextPart,
    Tool,
    ToolCallPart,
    ToolResultPart,
)
from gateway.formats.chat.openai.chat import parse_chat_inference
from gateway.formats.chat.openai.request_reader import parse_chat_request
from tests.support.corrupt_json import spoilt
from tests.support.table_rows import table_rows

PNG = "data:image/png;base64,AAAA"
CACHE = {"type": "ephemeral"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True},
}
OTHER = {"type": "function", "function": {"name": "g"}}
HELLO = {"role": "user", "content": "hi"}


def read(*messages: dict[str, Any], **fields: Any) -> ChatRequest:
    body = {"model": "m", "messages": list(messages) or [HELLO]} | fields
    return parse_chat_request(parse_chat_inference(body).body)


def read_user(*parts: dict[str, Any]) -> tuple[Any, ...]:
    (turn,) = read({"role": "user", "content": list(parts)}).messages
    return turn.parts


def refused(*messages: dict[str, Any], **fields: Any) -> str | None:
    with pytest.raises(InvalidRequest) as caught:
        read(*messages, **fields)
    return caught.value.param


def image(url: Any, **extra: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url} | extra}


def file(**fields: Any) -> dict[str, Any]:
    return {"type": "file", "file": fields}


def test_every_role_becomes_its_turn() -> None:
    conversation = read(
        {"role": "developer", "content": "be kind"},
        {"role": "system", "content": [{"type": "text", "text": "be brief", "cache_control": CACHE}]},
        HELLO,
        {"role": "assistant", "content": "yes", "name": "bob"},
    )
    assert conversation == ChatRequest(
        messages=(
            Message("system", (TextPart("be kind"),)),
            Message("system", (TextPart("be brief", CACHE),)),
            Message("user", (TextPart("hi"),)),
            Message("assistant", (TextPart("yes"),)),
        )
    )


def test_tool_calls_and_their_results_find_each_other() -> None:
    second = CALL | {"id": "c2", "extra_content": {"google": {"thought_signature": "s"}}}
    turns = read(
        HELLO,
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [CALL, second]},
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "two"}], "cache_control": CACHE},
        {"role": "user", "content": "go on"},
    ).messages
    assert turns[1:] == (
        Message(
            "assistant",
            (ReasoningPart("hm"), ToolCallPart("c1", "f", '{"x":1}'), ToolCallPart("c2", "f", '{"x":1}', "s")),
        ),
        Message(
            "user",
            (ToolResultPart("c1", (TextPart("one"),)), ToolResultPart("c2", (TextPart("two"),), cache_control=CACHE)),
        ),
        Message("user", (TextPart("go on"),)),
    )


def test_calls_of_the_deprecated_kind_get_ids() -> None:
    called = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    answered = {"role": "function", "name": "f", "content": "one"}
    assert read(called, answered, called, answered).messages == (
        Message("assistant", (ToolCallPart("call_0", "f", "{}"),)),
        Message("user", (ToolResultPart("call_0", (TextPart("one"),)),)),
        Message("assistant", (ToolCallPart("call_1", "f", "{}"),)),
        Message("user", (ToolResultPart("call_1", (TextPart("one"),)),)),
    )
    assert read(HELLO, answered).messages[1:] == (Message("user", (TextPart("one"),)),)


def test_a_custom_call_of_an_earlier_turn_is_a_call() -> None:
    custom = {"id": "c", "type": "custom", "custom": {"name": "run", "input": 'say "x"'}}
    (turn,) = read({"role": "assistant", "tool_calls": [custom]}).messages
    (use,) = turn.parts
    assert isinstance(use, ToolCallPart)
    assert (use.id, use.name, orjson.loads(use.arguments)) == ("c", "run", {"input": 'say "x"'})


def test_what_an_assistant_said_is_kept_in_order() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]
    message = {"role": "assistant", "content": parts, "refusal": "c", "reasoning": "t", "images": [image(PNG)]}
    (turn,) = read(message).messages
    assert turn.parts == (
        ReasoningPart("t"),
        TextPart("a"),
        TextPart("b"),
        TextPart("c"),
        MediaPart("image", "image/png", "AAAA"),
    )


def test_what_is_empty_says_nothing() -> None:
    empty: tuple[dict[str, Any], ...] = (
        {"role": "system", "content": ""},
        {"role": "assistant", "content": None, "tool_calls": []},
    )
    nothing = {"role": "user", "content": [{"type": "text", "text": ""}]}
    assert read(*empty, HELLO, nothing).messages == (Message("user", (TextPart("hi"),)),)
    assert refused(*empty) == "messages"
    assert read({"role": "tool", "tool_call_id": "c", "content": ""}).messages == (
        Message("user", (ToolResultPart("c", ()),)),
    )


@table_rows(
    ("part", "expected"),
    [
        (image(PNG, detail="low"), MediaPart("image", "image/png", "AAAA", detail="low")),
        (image("DATA:image/JPG;name=x;base64,BB=="), MediaPart("image", "image/jpeg", "BB==")),
        (image("https://x/y.png"), MediaPart("image", url="https://x/y.png")),
        (
            {"type": "image_url", "image_url": PNG, "cache_control": CACHE},
            MediaPart("image", "image/png", "AAAA", cache_control=CACHE),
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "AA", "format": "mp3"}},
            MediaPart("audio", "audio/mpeg", "AA"),
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
            MediaPart("audio", "audio/wav", "AA"),
        ),
        (file(file_data="JVBERi0="), MediaPart("file", "application/pdf", "JVBERi0=")),
        (
            file(file_data="data:text/csv;base64,AA", filename="a.csv"),
            MediaPart("file", "text/csv", "AA", name="a.csv"),
        ),
        (file(file_data="https://x/y.pdf", filename="y.pdf"), MediaPart("file", url="https://x/y.pdf", name="y.pdf")),
    ],
)
def test_a_part_keeps_its_bytes_or_its_address(part: dict[str, Any], expected: MediaPart) -> None:
    assert read_user(part) == (expected,)


PART = "messages[0].content[0]"


@table_rows(
    ("part", "param"),
    [
        ({"type": "video_url"}, f"{PART}.type"),
        ({"type": "text"}, f"{PART}.text"),
        ({"type": "text", "text": "x", "cache_control": "y"}, f"{PART}.cache_control"),
        ({"type": "image_url"}, f"{PART}.image_url"),
        ({"type": "image_url", "image_url": "nowhere"}, f"{PART}.image_url"),
        (image(None), f"{PART}.image_url.url"),
        (image("file:///etc/passwd"), f"{PART}.image_url.url"),
        (image("data:image/png,raw"), f"{PART}.image_url.url"),
        (image(PNG, detail=1), f"{PART}.image_url.detail"),
        ({"type": "input_audio", "input_audio": {"data": "A"}}, f"{PART}.input_audio.format"),
        ({"type": "input_audio", "input_audio": {"data": "A", "format": "x"}}, f"{PART}.input_audio.format"),
        ({"type": "input_audio", "input_audio": {"format": "wav"}}, f"{PART}.input_audio.data"),
        (file(file_id="file-1"), f"{PART}.file.file_id"),
        (file(filename="x"), f"{PART}.file.file_data"),
        (file(file_data="data:,x"), f"{PART}.file.file_data"),
        (file(file_data="AA", filename=1), f"{PART}.file.filename"),
    ],
)
def test_a_part_at_fault_is_named(part: dict[str, Any], param: str) -> None:
    assert refused({"role": "user", "content": [part]}) == param


@table_rows(
    ("message", "param"),
    [
        ({"role": "user"}, "messages[0].content"),
        ({"role": "system", "content": [image(PNG)]}, "messages[0].content[0].type"),
        ({"role": "assistant", "content": [image(1)]}, "messages[0].content[0].image_url.url"),
        ({"role": "assistant", "audio": "x"}, "messages[0].audio"),
        ({"role": "assistant", "refusal": 1}, "messages[0].refusal"),
        ({"role": "assistant", "reasoning": {"a": 1}}, "messages[0].reasoning"),
        ({"role": "assistant", "images": "x"}, "messages[0].images"),
        ({"role": "assistant", "images": [image(1)]}, "messages[0].images[0].image_url.url"),
        ({"role": "assistant", "tool_calls": "x"}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": ["x"]}, "messages[0].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [CALL, {}]}, "messages[0].tool_calls[1].id"),
        ({"role": "assistant", "tool_calls": [{"id": "x"}]}, "messages[0].tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": [{"id": "x", "function": {}}]}, "messages[0].tool_calls[0].function.name"),
        ({"role": "assistant", "function_call": 1}, "messages[0].function_call"),
        ({"role": "tool", "content": "x"}, "messages[0].tool_call_id"),
    ],
)
def test_a_message_at_fault_is_named(message: dict[str, Any], param: str) -> None:
    assert refused(message) == param


def test_settings_are_read() -> None:
    conversation = read(
        max_tokens=5,
        max_completion_tokens=7,
        temperature=1,
        top_p=0.5,
        top_k=40,
        stop=["a", "b"],
        n=2,
        seed=-3,
        presence_penalty=0.1,
        frequency_penalty=-0.2,
        parallel_tool_calls=False,
        reasoning_effort="high",
        user="u",
        safety_identifier="s",
        # and what is dropped
        store=True,
        metadata={"a": "b"},
        stream_options=None,
        logprobs=False,
        logit_bias={},
        modalities=["text", "image"],
        surprise=1,
    )
    assert conversation == ChatRequest(
        messages=(Message("user", (TextPart("hi"),)),),
        max_tokens=7,
        temperature=1.0,
        top_p=0.5,
        top_k=40,
        stop=("a", "b"),
        n=2,
        seed=-3,
        presence_penalty=0.1,
        frequency_penalty=-0.2,
        parallel_tools=False,
        effort="high",
        user="s",
    )
    assert read(stop="x", max_tokens=5, user="u", top_k=-1) == ChatRequest(
        messages=conversation.messages, stop=("x",), max_tokens=5, user="u"
    )


def test_tools_are_read() -> None:
    conversation = read(tools=[TOOL | {"cache_control": CACHE}, OTHER], tool_choice="required")
    assert conversation.tools == (Tool("f", "d", {"type": "object"}, True, CACHE), Tool("g"))
    assert conversation.tool_choice == "required"
    named = read(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "f"}})
    assert named.tool_choice == ForcedTool("f")


@table_rows("mode", ["auto", "required"])
def test_only_allowed_tools_are_offered(mode: str) -> None:
    allowed = {"mode": mode, "tools": [{"type": "function", "function": {"name": "g"}}]}
    conversation = read(tools=[TOOL, OTHER], tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    assert conversation.tools == (Tool("g"),)
    assert conversation.tool_choice == mode


@table_rows(
    ("wanted", "expected"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, ResponseFormat("json")),
        ({"type": "json_schema", "json_schema": {"name": "n"}}, ResponseFormat("json")),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True}},
            ResponseFormat("schema", {"type": "object"}, "n", True),
        ),
    ],
)
def test_a_format_is_read(wanted: Any, expected: ResponseFormat | None) -> None:
    assert read(response_format=wanted).format == expected


@table_rows(
    ("fields", "effort", "tokens"),
    [
        ({"reasoning_effort": "none"}, "none", None),
        ({"reasoning": {"effort": "low"}}, "low", None),
        ({"reasoning_effort": "high", "reasoning": {"effort": "low", "max_tokens": 9}}, "high", 9),
        ({"reasoning": {"max_tokens": 2000, "enabled": True, "exclude": True}}, None, 2000),
        ({"reasoning": {"enabled": True}}, "medium", None),
        ({"reasoning": {"enabled": False}}, "none", None),
        ({"thinking": {"type": "enabled", "budget_tokens": 4096}}, None, 4096),
        ({"thinking": {"type": "enabled"}}, "medium", None),
        ({"thinking": {"type": "enabled"}, "reasoning_effort": "max"}, "max", None),
        ({"thinking": {"type": "disabled"}, "reasoning_effort": "max"}, None, 0),
        ({"thinking": {"type": "adaptive"}}, None, None),
        ({}, None, None),
    ],
)
def test_thinking_is_read_in_whichever_form_it_was_said(fields: Any, effort: Any, tokens: Any) -> None:
    conversation = read(**fields)
    assert (conversation.effort, conversation.thinking_tokens) == (effort, tokens)


ALLOWED = "tool_choice.allowed_tools"


@table_rows(
    ("fields", "param"),
    [
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logit_bias": {"1": 2}}, "logit_bias"),
        ({"moderation": {"model": "x"}}, "moderation"),
        ({"web_search_options": {"search_context_size": "low"}}, "web_search_options"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"tools": [{"type": "custom", "custom": {"name": 1}}]}, "tools[0].custom.name"),
        ({"tools": [{"type": "custom", "custom": {"name": "x", "format": 1}}]}, "tools[0].custom.format"),
        ({"tools": [TOOL, 1]}, "tools[1]"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 1}}]}, "tools[0].function.parameters"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": 1}}]}, "tools[0].function.strict"),
        ({"tool_choice": "any tool"}, "tool_choice"),
        ({"tool_choice": ["auto"]}, "tool_choice"),
        ({"tool_choice": {"type": "custom", "custom": 1}}, "tool_choice.custom"),
        ({"tool_choice": {"type": "function", "function": 1}}, "tool_choice.function"),
        ({"tool_choice": {"type": "allowed_tools"}}, ALLOWED),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": []}}}, f"{ALLOWED}.mode"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}}, f"{ALLOWED}.tools"),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{}]}}},
            f"{ALLOWED}.tools[0].function",
        ),
        ({"stop": 1}, "stop"),
        ({"stop": ["a", 1]}, "stop[1]"),
        ({"seed": 1.5}, "seed"),
        ({"top_k": "x"}, "top_k"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 1}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": 1, "schema": {}}}},
            "response_format.json_schema.name",
        ),
        ({"reasoning_effort": "hard"}, "reasoning_effort"),
        ({"reasoning": 1}, "reasoning"),
        ({"reasoning": {"effort": []}}, "reasoning.effort"),
        ({"reasoning": {"max_tokens": -1}}, "reasoning.max_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": "x"}}, "thinking.budget_tokens"),
        ({"safety_identifier": 1}, "safety_identifier"),
    ],
)
def test_a_field_at_fault_or_that_nobody_else_has_is_named(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields) == param


RICH: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "x", "cache_control": CACHE}]},
        {"role": "user", "content": [image(PNG, detail="low"), file(file_data=PNG, filename="x")]},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "A", "format": "wav"}}]},
        {
            "role": "assistant",
            "content": [{"type": "refusal", "refusal": "x"}],
            "refusal": "no",
            "reasoning": "t",
            "images": [image(PNG)],
            "tool_calls": [
                CALL | {"extra_content": {"google": {"thought_signature": "s"}}},
                {"id": "c", "type": "custom", "custom": {"name": "run", "input": "x"}},
            ],
            "function_call": {"name": "f", "arguments": "{}"},
        },
        {"role": "tool", "tool_call_id": "c1", "content": [image(PNG)], "cache_control": CACHE},
        {"role": "function", "name": "f", "content": "x"},
    ],
    "tools": [TOOL],
    "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [OTHER]}},
    "stop": ["a"],
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": True}},
    "reasoning": {"effort": "low", "max_tokens": 3, "enabled": True},
    "thinking": {"type": "enabled", "budget_tokens": 3},
    "modalities": ["text"],
    "seed": 1,
    "n": 1,
}
"""A body with everything in it that is read."""


def test_the_rich_body_is_in_order() -> None:
    assert len(parse_chat_request(parse_chat_inference(RICH).body).messages) == 5


@settings(max_examples=80)
@given(body=spoilt(RICH).filter(lambda body: isinstance(body, dict)))
def test_whatever_stands_anywhere_is_read_or_refused_by_name(body: dict[str, Any]) -> None:
    try:
        conversation = parse_chat_request(parse_chat_inference(body).body)
    except InvalidRequest as fault:
        assert fault.param  # noqa: PT017 - it may as well be read
    else:
        assert conversation.messages
