"""A call in Anthropic's language, and what it may come to."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.usage import MAX_TOKENS, Usage
from gateway.errors import InvalidRequest
from gateway.formats.chat.anthropic.request import (
    MAX_PAGES,
    PAGE_BYTES,
    PAGE_TOKENS,
    REMOTE_DOCUMENT_TOKENS,
    TOOLS_TOKENS,
    parse_count_inference,
    parse_messages_inference,
)
from gateway.formats.chat.anthropic.request_reader import parse_chat_request
from gateway.formats.usage.token_bounds import MAX_RESERVED_OUTPUT, MESSAGE_TOKENS, PART_TOKENS
from tests.support.table_rows import table_rows

HELLO: dict[str, Any] = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}
MARK = {"cache_control": {"type": "ephemeral"}}
IMAGE = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
EMPTY = 2 * MESSAGE_TOKENS
"""What one message without content comes to."""
KEYS = st.sampled_from(
    ["type", "text", "source", "data", "media_type", "content", "input", "id", "name", "tool_use_id", "cache_control",
     "thinking", "signature", "title", "context", "url", "is_error"],
)  # fmt: skip
WORDS = st.sampled_from(
    ["text", "image", "document", "tool_use", "tool_result", "thinking", "redacted_thinking", "base64", "url",
     "content", "x", ""],
)  # fmt: skip
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.sampled_from(
    ["model", "max_tokens", "messages", "system", "stream", "temperature", "top_p", "top_k", "stop_sequences", "tools",
     "tool_choice", "thinking", "metadata", "output_config", "output_format", "cache_control", "mcp_servers"],
)  # fmt: skip


def with_message(content: Any, role: Any = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content}]}


def bound(**more: Any) -> int:
    """What ``more`` adds to the bound of an empty message."""
    return parse_messages_inference(HELLO | with_message("") | more).max_prompt_tokens - EMPTY


@table_rows(
    "extra",
    [
        {},
        {"max_tokens": 0},
        {"max_tokens": MAX_TOKENS, "temperature": 1, "top_p": 0.0, "top_k": 0, "stop_sequences": ["a"], "stream": True},
        {"system": "be brief", "temperature": None, "tools": None, "metadata": None, "stream": None, "thinking": None},
        {"system": [{"type": "text", "text": "be brief", **MARK}]},
        {"tools": [{"name": "f", "input_schema": {}}, {"type": "web_search_20250305", "name": "web_search"}]},
        {"thinking": {"type": "adaptive"}, "tool_choice": {"type": "any"}, "metadata": {"user_id": "me"}},
        {"output_config": {"effort": "max"}, "a_field_of_tomorrow": {"deep": [1, {"x": None}]}},
        *(with_message("x", role) for role in ("user", "assistant", "system")),
        with_message([]),
        with_message([{"type": "text", "text": "hi"}, IMAGE, {"type": "of_tomorrow", "what": 1}]),
        with_message([{"type": "server_tool_use", "id": "1", "name": "web_search", "input": {}}], "assistant"),
    ],
)
def test_a_good_call_is_read_and_keeps_its_whole_body(extra: dict[str, Any]) -> None:
    body = HELLO | extra
    inference = parse_messages_inference(body, "files-api-2025-04-14")
    assert (inference.operation, inference.model, inference.body) == ("messages", "m", body)
    assert inference.stream == bool(body.get("stream"))
    assert (inference.include_usage, inference.choices, inference.features) == (True, 1, "files-api-2025-04-14")


@table_rows(
    ("extra", "param"),
    [
        ({"model": None}, "model"),
        ({"model": 5}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        (with_message("x", "tool"), "messages[0].role"),
        (with_message("x", ["user"]), "messages[0].role"),
        (with_message(None), "messages[0].content"),
        (with_message({"type": "text"}), "messages[0].content"),
        (with_message(["hi"]), "messages[0].content[0]"),
        (with_message([IMAGE, {"text": "x"}]), "messages[0].content[1].type"),
        (with_message([{"type": 5}]), "messages[0].content[0].type"),
        (with_message([{"type": "text"}]), "messages[0].content[0].text"),
        (with_message([{"type": "text", "text": ["x"]}]), "messages[0].content[0].text"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": MAX_TOKENS + 1}, "max_tokens"),
        ({"system": 5}, "system"),
        ({"system": [IMAGE]}, "system[0].type"),
        ({"system": [{"type": "text", "text": None}]}, "system[0].text"),
        ({"stream": "yes"}, "stream"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"temperature": 1.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"stop_sequences": "a"}, "stop_sequences"),
        ({"stop_sequences": ["a", 1]}, "stop_sequences[1]"),
        ({"tools": {}}, "tools"),
        ({"tools": [{}, "f"]}, "tools[1]"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"thinking": True}, "thinking"),
        ({"output_config": []}, "output_config"),
        ({"cache_control": "ephemeral"}, "cache_control"),
        ({"metadata": "me"}, "metadata"),
    ],
)
def test_a_bad_field_is_named(extra: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_messages_inference(HELLO | extra)
    assert caught.value.param == param


@given(st.dictionaries(FIELDS, JSON), st.lists(JSON, max_size=3))
def test_garbage_is_refused_or_read_and_nothing_else(extra: dict[str, Any], content: list[Any]) -> None:
    for body in (HELLO | extra, HELLO | extra | with_message(content), HELLO | with_message(content, "assistant")):
        for read in (parse_messages_inference, parse_count_inference):
            try:
                parse_chat_request(read(body).body)
            except InvalidRequest as refused:
                assert refused.param  # noqa: PT017 - either way is right


def test_counting_needs_no_max_tokens_and_sets_nothing_aside() -> None:
    body = {name: value for name, value in HELLO.items() if name != "max_tokens"} | {"stream": True, **MARK}
    inference = parse_count_inference(body, "b")
    assert (inference.operation, inference.stream, inference.features) == ("count_tokens", False, "b")
    assert inference.need == Usage()


@table_rows(("max_tokens", "reserved"), [(0, 0), (7, 7), (100_000, MAX_RESERVED_OUTPUT)])
def test_the_answer_is_bounded_by_what_was_allowed_and_by_the_house(max_tokens: int, reserved: int) -> None:
    assert parse_messages_inference(HELLO | {"max_tokens": max_tokens}).max_output_tokens == reserved


@table_rows(
    ("content", "tokens"),
    [
        ("hi", 2),
        ("四文字だ", 12),
        ([], 0),
        ([{"type": "text", "text": "é"}, {"type": "text", "text": "ab"}], 4),
        ([IMAGE], PART_TOKENS),
        ([{"type": "image"}, IMAGE], 2 * PART_TOKENS),
        ([{"type": "thinking", "thinking": "deep", "signature": "x" * 500}], 4),
        ([{"type": "tool_result", "tool_use_id": "1"}], MESSAGE_TOKENS),
        ([{"type": "tool_result", "content": "abc"}], MESSAGE_TOKENS + 3),
        ([{"type": "tool_result", "content": [IMAGE]}], MESSAGE_TOKENS + PART_TOKENS),
        ([{"type": "document", "source": {"type": "text", "data": "words"}, "title": "T"}], 6),
        ([{"type": "document", "source": {"type": "content", "content": [IMAGE]}}], PART_TOKENS),
        ([{"type": "document", "source": {"type": "url", "url": "https://x/y.pdf"}}], REMOTE_DOCUMENT_TOKENS),
        ([{"type": "document", "source": {"type": "file", "file_id": "f"}}], REMOTE_DOCUMENT_TOKENS),
        ([{"type": "document", "source": {"type": "base64", "data": "JVBERi0="}}], PAGE_TOKENS),
        ([{"type": "document", "source": {"type": "base64", "data": "A" * (PAGE_BYTES * 4)}}], 4 * PAGE_TOKENS),
        ([{"type": "document", "source": {"type": "base64", "data": "A" * 30_000_000}}], MAX_PAGES * PAGE_TOKENS),
    ],
)  # fmt: skip
def test_content_comes_to_its_texts_and_a_lump_for_what_is_no_text(content: Any, tokens: int) -> None:
    assert bound(**with_message(content)) == tokens


@given(JSON)
def test_a_block_nobody_knows_counts_as_the_json_it_is(value: Any) -> None:
    block = {"type": "of_tomorrow", "what": value}
    assert bound(**with_message([block])) == len(orjson.dumps(block))


def test_tools_and_schemas_and_the_system_count_and_settings_do_not() -> None:
    tools = [{"name": "f", "description": "d" * 500}]
    assert bound(tools=tools) == len(orjson.dumps(tools)) + TOOLS_TOKENS
    form = {"format": {"type": "json_schema", "schema": {"description": "d" * 500}}}
    assert bound(output_config=form) == len(orjson.dumps(form))
    assert bound(system="abc") == bound(system=[{"type": "text", "text": "abc"}]) == 3
    settings = {"metadata": {"user_id": "x" * 99}, "stop_sequences": ["x" * 99], "thinking": {"type": "adaptive"}}
    assert bound(**settings) == 0


def test_the_characters_are_those_of_the_texts() -> None:
    result = {"type": "tool_result", "content": [{"type": "text", "text": "éé"}]}
    body = HELLO | {"system": "abc"} | with_message([{"type": "text", "text": "四"}, IMAGE, result])
    assert parse_messages_inference(body).prompt_chars == 6


@table_rows(
    "marked",
    [
        MARK,
        {"system": [{"type": "text", "text": "x", **MARK}]},
        {"tools": [{"name": "f"}, {"name": "g", **MARK}]},
        with_message([{"type": "text", "text": "x", **MARK}]),
        with_message([{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "x", **MARK}]}]),
        with_message([{"type": "of_tomorrow", **MARK}]),
    ],
)
def test_a_cache_mark_anywhere_means_that_the_whole_prompt_may_be_written(marked: dict[str, Any]) -> None:
    inference = parse_messages_inference(HELLO | marked)
    assert inference.max_cache_write_tokens == inference.max_prompt_tokens > 0


@table_rows("unmarked", [{}, {"cache_control": None}, with_message([{"type": "text", "text": "cache_control"}])])
def test_without_a_mark_nothing_is_written(unmarked: dict[str, Any]) -> None:
    assert parse_messages_inference(HELLO | unmarked).max_cache_write_tokens == 0


@table_rows(
    ("metadata", "affinity_key"),
    [
        ({"user_id": "me"}, "me"),
        ({"user_id": "x" * 256}, "x" * 256),
        ({"user_id": "x" * 257}, None),
        ({"user_id": ""}, None),
        ({"user_id": 5}, None),
        ({}, None),
        (None, None),
    ],
)
def test_the_users_name_holds_calls_together(metadata: Any, affinity_key: str | None) -> None:
    assert parse_messages_inference(HELLO | {"metadata": metadata}).affinity_key == affinity_key
    assert parse_count_inference(HELLO | {"metadata": metadata}).affinity_key == affinity_key
