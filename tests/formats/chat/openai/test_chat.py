"""A chat call, and the usage of its answer."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.token_estimate import estimate_text
from gateway.domain.usage import MAX_TOKENS, Usage, parse_usage
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.chat.openai.chat import (
    MAX_AFFINITY_CHARS,
    ChatPassthrough,
    build_chat_body,
    parse_answer_object,
    parse_chat_answer,
    parse_chat_inference,
)
from gateway.formats.stream_tail import find_last_usage, parse_tail
from gateway.formats.wire import sse
from tests.support.format_calls import call_of
from tests.support.scripted_upstream import COMPLETION, chat_events, delta, event, usage_frame
from tests.support.table_rows import table_rows

HELLO: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
IMAGE = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
NAMES = st.sampled_from(["choices", "usage", "delta", "message", "index", "finish_reason", "content", "tool_calls",
                         "function", "arguments", "prompt_tokens", "completion_tokens", "error"])  # fmt: skip
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("ab"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=20,
)


def message(content: object, role: object = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content}]}


@table_rows(
    "extra",
    [
        {},
        {"temperature": 2.1},
        {"temperature": 100},
        {"n": 1, "temperature": 0, "top_p": 1, "presence_penalty": -2, "frequency_penalty": 2.0},
        {"n": 128, "max_tokens": 1, "max_completion_tokens": MAX_TOKENS},
        {"n": None, "temperature": None, "stream": None, "tools": None, "user": None, "stream_options": None},
        {"stream": False, "stream_options": {}},
        {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": False, "seed": -1, "stop": ["a"], "user": "me"},
        {"a_field_nobody_knows": {"deep": [1, {"x": None}]}},
        *(message("x", role) for role in ("developer", "system", "user", "assistant", "tool", "function")),
        message(None, "assistant"),
        message(""),
        message([]),
        message([{"type": "text", "text": "hi"}, IMAGE, {"type": "of tomorrow"}]),
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}, {"role": "tool", "content": "x"}]},
    ],
)
def test_a_good_call_is_read_and_keeps_its_whole_body(extra: dict[str, Any]) -> None:
    body = HELLO | extra
    inference = parse_chat_inference(body)
    assert (inference.operation, inference.model, inference.body) == ("chat", "m", body)
    assert inference.stream == bool(body.get("stream"))
    assert inference.choices == (body.get("n") or 1)
    assert inference.include_usage == bool((body.get("stream_options") or {}).get("include_usage"))


@table_rows(
    ("extra", "param"),
    [
        ({"model": None}, "model"),
        ({"model": 5}, "model"),
        ({"model": ""}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": {"role": "user"}}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [HELLO["messages"][0], None]}, "messages[1]"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        (message("x", "robot"), "messages[0].role"),
        (message("x", None), "messages[0].role"),
        (message(5), "messages[0].content"),
        (message({"text": "x"}), "messages[0].content"),
        (message(True), "messages[0].content"),
        (message(["x"]), "messages[0].content[0]"),
        (message([IMAGE, {"text": "x"}]), "messages[0].content[1]"),
        (message([{"type": 1}]), "messages[0].content[0]"),
        ({"stream": "true"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": False, "stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": 1.0}, "n"),
        ({"n": True}, "n"),
        ({"n": 10**30}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": MAX_TOKENS + 1}, "max_tokens"),
        ({"max_completion_tokens": "9"}, "max_completion_tokens"),
        ({"temperature": 100.1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": False}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -2.5}, "frequency_penalty"),
        ({"tools": {}}, "tools"),
        ({"user": 1}, "user"),
    ],
)
def test_a_bad_field_is_refused_and_named(extra: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_chat_inference(HELLO | extra)
    assert caught.value.param == param
    assert caught.value.message


@table_rows("role", [[], {}, ["user"], 1, True])
def test_a_role_of_any_other_kind_is_refused(role: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_chat_inference(HELLO | message("x", role))
    assert caught.value.param == "messages[0].role"


@given(st.dictionaries(st.sampled_from([*HELLO, "stream", "stream_options", "n", "tools", "temperature"]), JSON))
def test_any_object_is_a_call_or_an_invalid_request(extra: dict[str, Any]) -> None:
    try:
        inference = parse_chat_inference(HELLO | extra)
    except InvalidRequest:
        return
    assert inference.prompt_chars >= 0


def test_only_text_counts_as_prompt() -> None:
    body = HELLO | {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "abc"}, IMAGE]},
            {"role": "assistant", "content": None},
            {"role": "user", "content": "四文字だ"},
        ]
    }
    assert parse_chat_inference(body).prompt_chars == 3 + 4


def test_the_body_for_the_provider_carries_its_own_name_of_the_model_and_every_field() -> None:
    body = HELLO | {"unknown": {"x": [1, None]}, "seed": 2**63}
    inference = parse_chat_inference(body)
    written = build_chat_body(inference, "theirs")
    assert written == body | {"model": "theirs"}
    written["seed"] = 1  # a quirk of the provider's
    assert (body["model"], body["seed"]) == ("m", 2**63)


@table_rows("options", [None, {}, {"include_usage": False}, {"include_obfuscation": False}])
def test_a_stream_always_asks_for_usage_and_keeps_the_other_options(options: dict[str, Any] | None) -> None:
    inference = parse_chat_inference(HELLO | {"stream": True, "stream_options": options})
    written = build_chat_body(inference, "m")
    assert written["stream_options"] == {**(options or {}), "include_usage": True}
    assert inference.body["stream_options"] == options


def test_a_call_without_a_stream_gets_no_stream_options() -> None:
    assert "stream_options" not in build_chat_body(parse_chat_inference(HELLO), "m")


@table_rows(
    ("extra", "affinity_key"),
    [
        ({}, None),
        ({"safety_identifier": "s"}, "s"),
        ({"safety_identifier": "s", "user": "u"}, "u"),
        ({"safety_identifier": "s", "user": "u", "prompt_cache_key": "k"}, "k"),
        ({"user": "u", "prompt_cache_key": None}, "u"),
        ({"user": "u", "prompt_cache_key": 5}, "u"),
        ({"user": "u", "prompt_cache_key": ["k"]}, "u"),
        ({"user": ""}, None),
        ({"prompt_cache_key": "k" * MAX_AFFINITY_CHARS}, "k" * MAX_AFFINITY_CHARS),
        ({"prompt_cache_key": "k" * (MAX_AFFINITY_CHARS + 1), "user": "u"}, "u"),
    ],
)
def test_the_cache_key_is_what_calls_have_in_common_and_else_whom_they_are_for(
    extra: dict[str, Any], affinity_key: str | None
) -> None:
    assert parse_chat_inference(HELLO | extra).affinity_key == affinity_key


def used(*events: bytes, prompt_chars: int = 0) -> Usage:
    transform = ChatPassthrough(call_of(prompt_chars))
    for item in events:
        transform.feed(item)
    return transform.parse_usage()


def test_the_tail_says_what_finished() -> None:
    tail = parse_tail(b"".join(chat_events("a", "bc")))
    assert (tail.finished_count, tail.sample, tail.sample_event_count) == (1, "abc", 4)


def test_a_first_event_that_was_cut_is_skipped() -> None:
    raw = b"".join(chat_events("a", "bc"))
    for start in range(1, 40):
        assert find_last_usage(raw[start:]) == Usage(5, 7, 0, "upstream")


def test_an_end_or_a_beginning_that_is_one_endless_event_says_nothing() -> None:
    assert parse_tail(b"data: " + b"x" * (sse.MAX_EVENT_BYTES + 1)).sample_event_count == 0


def test_every_choice_finishes_once() -> None:
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": index, "delta": {}, "finish_reason": "stop"}]} for index in (0, 1, 1, 2)
    ]
    assert parse_tail(b"".join(map(event, chunks))).finished_count == 3


def test_text_of_every_kind_is_sampled() -> None:
    tools = {"tool_calls": [{"function": {"arguments": "1234"}}, {"function": None}, None, {}]}
    texts = {"content": "a", "reasoning_content": "bb", "reasoning": "ccc", "refusal": "dddd"}
    assert parse_tail(event({"choices": [{"delta": texts | tools}]})).sample == "abbcccdddd1234"
    assert parse_tail(event({"choices": [{"text": "abc"}, {"text": None}, {"text": ["a"]}]})).sample == "abc"


def test_a_thought_that_is_said_under_two_names_is_said_once() -> None:
    body = {"content": "", "reasoning_content": "I think", "reasoning": "I think"}
    assert parse_tail(event({"choices": [{"delta": body}]})).sample == "I think"


@given(st.lists(JSON, max_size=4))
def test_a_tail_of_any_json_is_read(values: list[Any]) -> None:
    tail = parse_tail(b"".join(b"data: " + orjson.dumps(value) + b"\n\n" for value in values))
    assert isinstance(tail.sample, str)
    assert tail.finished_count >= 0


@table_rows("index", [[], {}, [0], None, "0", 1.5])
def test_a_choice_with_any_index_is_read(index: object) -> None:
    raw = event({"choices": [{"index": index, "delta": {"content": "x"}, "finish_reason": "stop"}]})
    assert parse_tail(raw).sample == "x"


@given(st.binary(max_size=200))
def test_a_tail_of_any_bytes_is_read(raw: bytes) -> None:
    assert parse_tail(raw).finished_count == 0
    assert find_last_usage(raw) is None


NOISE = [
    delta("x"),
    delta("x") | {"usage": None},
    usage_frame(1, 2),
    usage_frame(3, 4) | {"choices": None},
    usage_frame(5, 6) | {"error": {"message": "no"}},
    delta('"usage": {"prompt_tokens": 9, "completion_tokens": 9}'),
    delta("data: [DONE]"),
    {"usage": "none"},
    usage_frame(7, 8),
]


@given(
    st.lists(st.sampled_from([*map(event, NOISE), b"data: [DONE]\n\n", b": ping\n\n", b"data: {\n\n"]), max_size=12),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.integers(0, 60),
)
def test_the_last_usage_is_what_reading_every_event_finds(events: list[bytes], line_end: bytes, cut: int) -> None:
    raw = b"".join(events).replace(b"\n", line_end)[cut:]
    expected = None
    for one in sse.SseSplitter().split(raw):
        payload = sse.parse_data(one) or b""
        if payload.startswith(b"[DONE]"):
            break
        try:
            value = orjson.loads(payload)
        except orjson.JSONDecodeError:
            continue
        if isinstance(value, dict) and not value.get("error") and isinstance(value.get("choices"), list):
            expected = parse_usage(value.get("usage"), completes=True) or expected
    assert find_last_usage(raw) == expected


def test_the_providers_word_on_usage_wins() -> None:
    answer = used(event(delta("x" * 1000)), event(usage_frame(2, 3)), prompt_chars=10_000)
    assert answer == Usage(2, 3, 0, "upstream")


def test_the_last_usage_that_can_be_believed_counts() -> None:
    frames = [usage_frame(1, 1), usage_frame(2, 2), usage_frame(-1, 5), usage_frame(1, 2**40), {"usage": "lots"}]
    assert used(*map(event, frames)) == Usage(2, 2, 0, "upstream")


def test_usage_on_the_last_chunk_counts_too() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 2}}
    assert used(event(delta("x", "stop", usage=usage))) == Usage(3, 4, 2, "upstream")


def test_without_usage_the_whole_is_estimated_from_the_end() -> None:
    usage = used(*[event(delta("abcd"))] * 5000, prompt_chars=40)
    assert usage.source == "estimate"
    assert usage.prompt_tokens == estimate_text("a" * 40)
    assert usage.completion_tokens == pytest.approx(5000 * estimate_text("abcd" * 50) / 50, rel=0.1)


def test_a_stream_of_nothing_costs_nothing() -> None:
    assert used(prompt_chars=100) == Usage()
    assert used(b": hello\n\n", prompt_chars=100) == Usage(source="estimate")


@given(st.lists(JSON, max_size=4), st.integers(0, 500), st.integers(0, 10**7))
def test_usage_is_never_negative(values: list[Any], plain: int, chars: int) -> None:
    odd = [b"data: " + orjson.dumps(value) + b"\n\n" for value in values]
    usage = used(event(delta("abcd")) * plain, *odd, prompt_chars=chars)
    assert usage.prompt_tokens >= 0
    assert usage.completion_tokens >= 0
    assert 0 <= usage.cached_tokens <= usage.prompt_tokens


def test_an_answers_usage_is_the_providers() -> None:
    assert parse_chat_answer(COMPLETION, call_of(100)) == Usage(5, 7, 0, "upstream")


@table_rows("usage", [None, {}, "x", {"prompt_tokens": -1, "completion_tokens": 1}])
def test_an_answer_without_usage_is_estimated(usage: object) -> None:
    used = parse_chat_answer(COMPLETION | {"usage": usage}, call_of(9))
    assert used == Usage(estimate_text("a" * 9), estimate_text("hello"), 0, "estimate")


@table_rows(
    "raw",
    [b"", b"<html>", b"null", b"[]", b'"x"', b"1", b'{"error":{"message":"no"}}', b'{"error":"no"}', b'{"a":', b"\xff"],
)
def test_what_is_no_answer_is_the_providers_fault(raw: bytes) -> None:
    with pytest.raises(ProviderBadResponse):
        parse_answer_object(raw)


def test_an_error_that_is_null_is_no_error() -> None:
    assert parse_answer_object(b'{"error":null,"choices":[]}') == {"error": None, "choices": []}


@given(JSON | st.dictionaries(NAMES, JSON))
def test_any_json_answer_is_read_or_the_providers_fault(value: Any) -> None:
    try:
        usage = parse_chat_answer(parse_answer_object(orjson.dumps(value)), call_of(3))
    except ProviderBadResponse:
        return
    assert usage.completion_tokens >= 0
