"""What a call may come to: no vocabulary makes more tokens of a prompt than were set aside for it."""

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.usage import MAX_TOKENS, Usage
from gateway.formats.chat.openai.chat import measure_prompt, parse_chat_inference
from gateway.formats.embeddings.openai import parse_embeddings_inference
from gateway.formats.usage.token_bounds import (
    MAX_RESERVED_OUTPUT,
    MESSAGE_TOKENS,
    PART_TOKENS,
    bound_json,
    bound_output,
    bound_text,
)
from tests.support.table_rows import table_rows

TEXT = st.text(st.characters(codec="utf-8"))  # any text that JSON can carry: no lone surrogates
VOCABULARIES = st.lists(st.binary(min_size=2, max_size=6), max_size=20)
"""Byte strings that are a token; every single byte is one, too."""
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
EMPTY = 2 * MESSAGE_TOKENS
"""What one message without content comes to."""


def tokenize(text: str, vocabulary: list[bytes]) -> list[bytes]:
    """The tokens of ``text``: at every place the longest that fits."""
    data, tokens = text.encode(), list[bytes]()
    while data:
        token = max((entry for entry in vocabulary if data.startswith(entry)), key=len, default=data[:1])
        tokens.append(token)
        data = data[len(token) :]
    return tokens


def render(messages: list[dict[str, Any]], vocabulary: list[bytes]) -> int:
    """Tokens of a prompt in a usual template: four marks and a role around each message, three before the answer."""
    tokens = 3
    for message in messages:
        content = message.get("content") or []
        texts = [content] if isinstance(content, str) else [part["text"] for part in content]
        texts += [value for name, value in message.items() if name not in {"content", "role"}]
        tokens += 5 + sum(len(tokenize(text, vocabulary)) for text in texts)
    return tokens


def body(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), **more}


def bound_prompt(body: dict[str, Any]) -> int:
    return measure_prompt(body)[1]


def message_of(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


@given(TEXT, VOCABULARIES)
def test_a_text_has_at_most_as_many_tokens_as_bytes(text: str, vocabulary: list[bytes]) -> None:
    assert len(tokenize(text, vocabulary)) <= bound_text(text) == len(text.encode())


PARTS = st.lists(st.builds(lambda text: {"type": "text", "text": text}, TEXT), max_size=3)
MESSAGES = st.lists(
    st.builds(message_of, TEXT | PARTS | st.none(), name=TEXT, reasoning_content=TEXT) | st.builds(message_of, TEXT),
    min_size=1,
    max_size=4,
)


@given(MESSAGES, VOCABULARIES)
def test_a_prompt_of_texts_never_exceeds_its_bound(messages: list[dict[str, Any]], vocabulary: list[bytes]) -> None:
    assert render(messages, vocabulary) <= bound_prompt(body(*messages))


@given(MESSAGES, MESSAGES)
def test_more_messages_are_never_less(some: list[dict[str, Any]], more: list[dict[str, Any]]) -> None:
    assert bound_prompt(body(*some)) < bound_prompt(body(*some, *more))


@given(st.sampled_from(["tools", "functions", "response_format", "documents"]), JSON)
def test_lists_and_objects_beside_the_messages_count_as_the_json_they_are(name: str, value: Any) -> None:
    bound = bound_prompt(body(message_of("")))
    expected = len(orjson.dumps(value)) if value and isinstance(value, list | dict) else 0
    assert bound_prompt(body(message_of(""), **{name: value})) - bound == expected


@given(JSON)
def test_a_value_counts_as_its_json_and_a_text_as_itself(value: Any) -> None:
    assert bound_json(value) == (len(value.encode()) if isinstance(value, str) else len(orjson.dumps(value)))


@table_rows(
    ("message", "tokens"),
    [
        (message_of(""), 0),
        (message_of(None), 0),
        (message_of([]), 0),
        ({"role": "assistant"}, 0),
        (message_of("hi"), 2),
        (message_of("四文字だ"), 12),
        (message_of("👍🏽"), 8),
        (message_of([{"type": "text", "text": "é"}, {"type": "text", "text": "ab"}]), 4),
        (message_of([IMAGE]), PART_TOKENS),
        (message_of([{"type": "input_audio", "input_audio": {"data": "AAAA"}}, IMAGE]), 2 * PART_TOKENS),
        (message_of([{"type": "text", "text": "ab"}, IMAGE, {"type": "of tomorrow"}]), 2 + 2 * PART_TOKENS),
        (message_of([{"type": "text", "text": None}, {"type": "text"}, {"type": "text", "text": 5}]), 3 * PART_TOKENS),
        (message_of("hi", name="bob"), 5),
        (message_of("hi", name=None, tool_calls=[], audio={}), 2),
        (message_of(None, tool_calls=[{"id": "1"}]), len('[{"id":"1"}]')),
        (message_of("x", tool_call_id="call_1"), 7),
        (message_of("x", reasoning_content="deep"), 5),
    ],
)
def test_a_message_comes_to_its_texts_its_fields_and_a_lump_for_what_is_no_text(
    message: dict[str, Any], tokens: int
) -> None:
    assert bound_prompt(body(message)) == EMPTY + tokens
    assert parse_chat_inference(body(message)).max_prompt_tokens == EMPTY + tokens


def test_a_text_beside_a_image_does_not_take_the_image_out_of_the_count() -> None:
    assert bound_prompt(body(message_of([IMAGE | {"text": ""}]))) == EMPTY + PART_TOKENS


def test_a_refusal_that_is_sent_back_counts_as_the_text_it_is() -> None:
    refused = {"role": "assistant", "content": [{"type": "refusal", "refusal": "no " * 10_000}]}
    assert bound_prompt(body(refused)) >= 30_000


@table_rows("name", ["documents", "prediction", "chat_template_kwargs"])
def test_whatever_may_become_a_part_of_the_prompt_counts(name: str) -> None:
    text = {"content": "x" * 10_000}
    assert bound_prompt(body(message_of("hi"), **{name: text})) >= 10_000


@table_rows(
    ("name", "value"),
    [
        ("stream_options", {"include_usage": True}),
        ("metadata", {"note": "x" * 500}),
        ("logit_bias", {str(token): -100 for token in range(300)}),
        ("stop", ["\n\n", "END"]),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "alloy", "format": "wav"}),
        ("temperature", 0.5),
        ("user", "somebody"),
        ("tools", None),
        ("tools", []),
    ],
)
def test_what_no_model_reads_does_not_count(name: str, value: Any) -> None:
    assert bound_prompt(body(message_of("hi"), **{name: value})) == EMPTY + 2


def test_every_text_of_a_part_counts_and_a_lump_where_it_is_no_part_of_text() -> None:
    for part, tokens in (
        ({"type": "text", "text": "abc", "refusal": "no"}, 5),
        ({"type": "refusal", "refusal": "no", "text": None}, 2),
        ({"type": "file", "text": "abc", "file": {}}, 3 + PART_TOKENS),
    ):
        assert bound_prompt(body(message_of([part]))) == EMPTY + tokens


def test_tools_and_a_schema_are_part_of_the_prompt() -> None:
    tools = [{"type": "function", "function": {"name": "look_up", "description": "说明"}}]
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    bound = parse_chat_inference(
        body(message_of("hi"), tools=tools, response_format=schema, tool_choice="auto")
    ).max_prompt_tokens
    assert bound == EMPTY + 2 + len(orjson.dumps(tools)) + len(orjson.dumps(schema))


@table_rows(
    ("asked", "tokens"),
    [
        ({}, MAX_RESERVED_OUTPUT),
        ({"max_tokens": None, "max_completion_tokens": None}, MAX_RESERVED_OUTPUT),
        ({"max_tokens": 1}, 1),
        ({"max_completion_tokens": 1}, 1),
        ({"max_tokens": 10, "max_completion_tokens": 20}, 20),
        ({"max_tokens": 20, "max_completion_tokens": 10}, 20),
        ({"max_tokens": 20, "max_completion_tokens": None}, 20),
        ({"max_tokens": MAX_RESERVED_OUTPUT}, MAX_RESERVED_OUTPUT),
        ({"max_tokens": MAX_RESERVED_OUTPUT + 1}, MAX_RESERVED_OUTPUT),
        ({"max_completion_tokens": MAX_TOKENS}, MAX_RESERVED_OUTPUT),
    ],
)
@table_rows(("n", "choices"), [(None, 1), (1, 1), (3, 3), (128, 128)])
def test_an_answer_is_set_aside_for_as_far_as_it_was_asked_for_and_times_n(
    asked: dict[str, Any], tokens: int, n: int | None, choices: int
) -> None:
    assert MAX_RESERVED_OUTPUT == 4_096
    assert bound_output(body(message_of("hi"), **asked)) == tokens
    inference = parse_chat_inference(body(message_of("hi"), n=n, **asked))
    assert inference.max_output_tokens == tokens
    assert inference.need == Usage(EMPTY + 2, tokens * choices)


@table_rows(
    ("value", "tokens"),
    [("abc", 4), ("é", 3), (["a", "四"], 6), ([1, 2, 3], 3), ([[1, 2], [3]], 3), (["ab", [1, 2, 3]], 6)],
)
def test_an_input_to_embed_comes_to_its_bytes_or_its_ids_and_has_no_answer(value: Any, tokens: int) -> None:
    inference = parse_embeddings_inference({"model": "m", "input": value})
    assert (inference.max_prompt_tokens, inference.max_output_tokens, inference.need) == (tokens, 0, Usage(tokens))


@given(st.lists(TEXT, min_size=1, max_size=4), VOCABULARIES)
def test_texts_to_embed_and_their_end_marks_never_exceed_their_bound(texts: list[str], vocabulary: list[bytes]) -> None:
    tokens = sum(len(tokenize(text, vocabulary)) + 1 for text in texts)
    assert tokens <= parse_embeddings_inference({"model": "m", "input": texts}).max_prompt_tokens


def test_texts_without_a_byte_are_not_for_free() -> None:
    assert parse_embeddings_inference({"model": "m", "input": [""] * 100}).max_prompt_tokens >= 100
