"""Responses bodies are parsed into the common chat model."""

from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.formats.chat import model as chat
from gateway.formats.chat.responses.reasoning import UNSIGNED_PREFIX, build_redacted, build_signed, drop_gateway_items
from gateway.formats.chat.responses.request_reader import parse_chat_request
from gateway.formats.chat.responses.responses import build_responses_body, parse_responses_inference
from tests.support.table_rows import table_rows

F = {"type": "function", "name": "f", "parameters": {"type": "object"}, "description": "d", "strict": True}
SHELL = {"type": "custom", "name": "shell", "description": "runs it"}
PDF = "data:application/pdf;base64,aGk="


def parse(*items: Any, **more: Any) -> chat.ChatRequest:
    return parse_chat_request({"model": "m", "input": list(items), **more})


def user(*content: Any) -> Any:
    return {"role": "user", "content": list(content)}


def test_a_text_is_a_message_of_the_user() -> None:
    asked = parse_chat_request({"input": "Hi", "instructions": "Be brief"})
    assert asked.messages == (
        chat.Message("system", (chat.TextPart("Be brief"),)),
        chat.Message("user", (chat.TextPart("Hi"),)),
    )


@table_rows(
    ("part", "expected"),
    [
        ({"type": "input_text", "text": "x"}, chat.TextPart("x")),
        (
            {"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "low"},
            chat.MediaPart("image", "image/png", "aGk=", detail="low"),
        ),
        ({"type": "input_image", "image_url": "https://x/y"}, chat.MediaPart("image", url="https://x/y")),
        (
            {"type": "input_file", "file_data": PDF, "filename": "a.pdf"},
            chat.MediaPart("file", "application/pdf", "aGk=", name="a.pdf"),
        ),
        ({"type": "input_file", "file_url": "https://x/a.pdf"}, chat.MediaPart("file", url="https://x/a.pdf")),
        (
            {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}},
            chat.MediaPart("audio", "audio/wav", "aGk="),
        ),
    ],
)
def test_parts_of_a_message(part: Any, expected: Any) -> None:
    assert parse(user(part)).messages == (chat.Message("user", (expected,)),)


def test_items_of_the_model_are_one_message_and_so_are_results() -> None:
    asked = parse(
        {"role": "developer", "content": "Be brief"},
        user({"type": "input_text", "text": "Hi"}),
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "hm"}],
            "encrypted_content": build_signed("s"),
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Look"}]},
        {"type": "function_call", "call_id": "c0", "name": "f", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c1", "name": "shell", "input": "ls"},
        {"type": "function_call_output", "call_id": "c0", "output": "1"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "2"}]},
    )
    assert asked.messages == (
        chat.Message("system", (chat.TextPart("Be brief"),)),
        chat.Message("user", (chat.TextPart("Hi"),)),
        chat.Message(
            "assistant",
            (
                chat.ReasoningPart("hm", "s"),
                chat.TextPart("Look"),
                chat.ToolCallPart("c0", "f", "{}"),
                chat.ToolCallPart("c1", "shell", '{"input":"ls"}'),
            ),
        ),
        chat.Message(
            "user", (chat.ToolResultPart("c0", (chat.TextPart("1"),)), chat.ToolResultPart("c1", (chat.TextPart("2"),)))
        ),
    )


@table_rows(
    ("content", "expected"),
    [
        (build_redacted("x"), chat.ReasoningPart(redacted_data="x")),
        (build_signed("gemini:x"), chat.ReasoningPart("hm", "gemini:x")),
        (UNSIGNED_PREFIX, chat.ReasoningPart("hm")),
        ("gAAAA of OpenAI", chat.ReasoningPart("hm")),
        (None, chat.ReasoningPart("hm")),
    ],
)
def test_reasoning_goes_back_to_who_has_signed_it(content: str | None, expected: chat.ReasoningPart) -> None:
    item = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": content}
    assert parse({"role": "user", "content": "Hi"}, item).messages[1].parts == (expected,)


def test_openai_gets_only_reasoning_of_its_own() -> None:
    own = {"type": "reasoning", "summary": [], "encrypted_content": build_signed("s")}
    theirs = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}
    items = [{"role": "user", "content": "Hi"}, own, theirs]
    body = build_responses_body(parse_responses_inference({"model": "m", "input": items}), "gpt")
    assert (body["model"], body["input"]) == ("gpt", [items[0], theirs])
    assert drop_gateway_items(items[:1]) == items[:1]
    assert drop_gateway_items("Hi") == "Hi"


def test_tools_and_choices() -> None:
    asked = parse(
        {"role": "user", "content": "Hi"}, tools=[F, SHELL], tool_choice="required", parallel_tool_calls=False
    )
    function, custom = asked.tools
    assert function == chat.Tool("f", "d", {"type": "object"}, True)
    assert (custom.name, custom.schema and custom.schema["required"]) == ("shell", ["input"])
    assert (asked.tool_choice, asked.parallel_tools) == ("required", False)
    forced = parse({"role": "user", "content": "x"}, tools=[F], tool_choice={"type": "function", "name": "f"})
    assert forced.tool_choice == chat.ForcedTool("f")
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "shell"}]}
    some = parse({"role": "user", "content": "x"}, tools=[F, SHELL], tool_choice=allowed)
    assert ([tool.name for tool in some.tools], some.tool_choice) == (["shell"], "auto")


def test_settings() -> None:
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    asked = parse_chat_request(
        {
            "input": "Hi",
            "max_output_tokens": 9,
            "temperature": 0.5,
            "top_p": 0.25,
            "reasoning": {"effort": "low", "summary": "auto"},
            "text": {"format": schema, "verbosity": "low"},
            "safety_identifier": "u",
            "truncation": "auto",
            "service_tier": "auto",
            "metadata": {"a": "b"},
        }
    )
    assert (asked.max_tokens, asked.temperature, asked.top_p, asked.effort, asked.user) == (9, 0.5, 0.25, "low", "u")
    assert asked.format == chat.ResponseFormat("schema", {"type": "object"}, "n", True)


@table_rows(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"role": "nobody", "content": "x"}]}, "input[0].role"),
        ({"input": [user({"type": "video"})]}, "input[0].content[0].type"),
        (
            {"input": [{"role": "system", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].type",
        ),
        ({"input": [user({"type": "input_image", "file_id": "file_1"})]}, "input[0].content[0].file_id"),
        ({"input": [user({"type": "input_file", "file_id": "file_1"})]}, "input[0].content[0].file_id"),
        ({"input": [user({"type": "input_file", "file_url": "ftp://x"})]}, "input[0].content[0].file_url"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"id": "msg_1"}]}, "input[0]"),
        ({"input": [{"type": 5}]}, "input[0].type"),
        ({"tools": [{"type": None}]}, "tools[0].type"),
        (
            {
                "input": [
                    user({"type": "input_text", "text": "x"}),
                    {"type": "additional_tools", "tools": [{"type": "function"}]},
                ]
            },
            "input[1].tools[0].name",
        ),
        ({"tools": [{**F, "strict": "yes"}]}, "tools[0].strict"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tool_choice": 1}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
    ],
)
def test_what_cannot_be_said_otherwise_is_named(body: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_chat_request({"model": "m", "input": "Hi", **body})
    assert caught.value.param == param
