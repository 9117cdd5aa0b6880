"""Whole answers of Anthropic's Messages API, and its usage."""

import contextlib
from typing import Any

import anthropic
import httpx2
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.token_estimate import estimate_text
from gateway.domain.usage import MAX_TOKENS, Usage
from gateway.errors import ProviderBadResponse
from gateway.formats.chat import model as chat
from gateway.formats.chat.anthropic.response import (
    build_answer,
    build_count_answer,
    parse_answer,
    parse_count_answer,
    parse_passed_answer,
    parse_usage,
)
from gateway.formats.usage.prompt_tokens import estimate_prompt
from tests.support.anthropic_cassettes import ANSWERED, MESSAGE, MODEL
from tests.support.table_rows import table_rows

CALL = InferenceRequest(
    "messages", "m", {"messages": [{"role": "user", "content": "four words a line " * 20}]}, max_prompt_tokens=400
)
EVENTS: list[chat.Event] = [
    chat.MessageStart("msg_013Zva2CMHLNnXjNJJKqJ2EF", MODEL),
    chat.ReasoningDelta("Let me see"),
    chat.ReasoningSignature("WaUjzkypQ2mUEVM36O2TxuC06KN8xyfbJwyem2dw3URve"),
    chat.RedactedReasoning("EmwKAhgB"),
    chat.TextDelta("Hi! My name is Claude."),
    chat.ToolCallStart(0, "toolu_01A09q90qw90lq917835lq9", "get_weather"),
    chat.ToolCallDelta(0, '{"city":"SF"}'),
    chat.ToolCallStart(1, "toolu_02", "now"),
    chat.ToolCallDelta(1, "{}"),
    chat.ChoiceFinished("tool_calls"),
    chat.UsageReport(Usage(2150, 503, 5, "upstream", written_tokens=50), 17),
    chat.STREAM_END,
]
KINDS = st.sampled_from(["error", "text", "tool_use", "thinking"])
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | KINDS,
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["type", "content", "usage", "text", "thinking", "name", "input", "input_tokens", "error", "id",
                         "output_tokens", "stop_reason", "cache_creation", "output_tokens_details"]),
        inner,
        max_size=4,
    ),
    max_leaves=15,
)  # fmt: skip
NO_MESSAGES = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'"x"',
    b"<html>",
    b"{}",
    b'{"content":"text"}',
    b'{"choices":[]}',
    b'{"type":"error"}',
    b'{"type":"error","content":[]}',
    b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}',
    b'{"content":[],"error":"no"}',
]


def dump(**changes: Any) -> bytes:
    return orjson.dumps(MESSAGE | changes)


def judge(raw: bytes) -> anthropic.types.Message:
    """What the real client library makes of a message."""
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, json=orjson.loads(raw)))
    with (
        httpx2.Client(transport=transport) as http,
        anthropic.Anthropic(api_key="k", http_client=http, max_retries=0, _strict_response_validation=True) as client,
    ):
        return client.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}])


def test_a_message_is_read_as_what_happened() -> None:
    assert parse_answer(dump()) == EVENTS


@table_rows("raw", NO_MESSAGES)
def test_what_is_no_message_is_a_fault(raw: bytes) -> None:
    for read in (parse_answer, lambda raw: parse_passed_answer(raw, CALL)):
        with pytest.raises(ProviderBadResponse):
            read(raw)


def test_a_fault_has_the_providers_words_and_no_secrets() -> None:
    raw = orjson.dumps({"type": "error", "error": {"message": "Overloaded at https://10.0.0.1/ for hunter-of-keys"}})
    for read in (parse_answer, lambda raw, secrets: parse_passed_answer(raw, CALL, secrets), parse_count_answer):
        with pytest.raises(ProviderBadResponse) as caught:
            read(raw, ["hunter-of-keys"])
        assert "Overloaded" in caught.value.message
        assert "10.0.0.1" not in caught.value.message
        assert "hunter" not in caught.value.message


@table_rows(
    ("answer", "reason"),
    [
        ("end_turn", "stop"),
        ("pause_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("tool_use", "tool_calls"),
        ("refusal", "content_filter"),
        ("of_tomorrow", "stop"),
        (None, "tool_calls"),
        (5, "tool_calls"),
    ],
)
def test_a_reason_is_read(answer: object, reason: str) -> None:
    (finished,) = [event for event in parse_answer(dump(stop_reason=answer)) if isinstance(event, chat.ChoiceFinished)]
    assert (finished.reason, finished.stop_sequence) == (reason, None)


def test_an_answer_without_calls_and_without_a_reason_stopped() -> None:
    assert parse_answer(b'{"content":[]}') == [chat.MessageStart("", ""), chat.ChoiceFinished("stop"), chat.STREAM_END]


def test_a_stop_sequence_is_read() -> None:
    raw = dump(content=[], stop_reason="stop_sequence", stop_sequence="END")
    assert chat.ChoiceFinished("stop", 0, "END") in parse_answer(raw)
    assert chat.ChoiceFinished("stop") in parse_answer(dump(stop_reason="stop_sequence", stop_sequence=5))


@table_rows("block", [None, 5, "x", [], {}, {"type": []}, {"type": "text"}, {"type": "text", "text": 5},
                                   {"type": "thinking", "thinking": None, "signature": 5},
                                   {"type": "redacted_thinking", "data": {}}])  # fmt: skip
def test_a_block_that_says_nothing_is_left_out(block: object) -> None:
    assert parse_answer(dump(content=[block]))[1:-2] == [chat.ChoiceFinished("tool_calls")]


@table_rows("answer", [None, "x", [], 5])
def test_a_call_without_arguments_has_an_empty_object(answer: object) -> None:
    block = {"type": "tool_use", "name": "x", "input": answer}
    assert parse_answer(dump(content=[block]))[1:3] == [
        chat.ToolCallStart(0, "toolu_013Zva2CMHLNnXjNJJKqJ2EF_0", "x"),
        chat.ToolCallDelta(0, "{}"),
    ]


def test_what_a_client_could_not_run_is_a_fault() -> None:
    with pytest.raises(ProviderBadResponse):
        parse_answer(dump(content=[{"type": "tool_use", "id": "t", "input": {}}]))
    deep = b'{"content":[{"type":"tool_use","id":"t","name":"x","input":{"a":' + b"[" * 500 + b"]" * 500 + b"}}]}"
    with pytest.raises(ProviderBadResponse):
        parse_answer(deep)
    assert parse_passed_answer(deep, CALL) == Usage(estimate_prompt(CALL), 0, 0, "estimate")


@given(JSON, JSON, JSON)
def test_any_json_is_a_message_or_a_fault(value: Any, block: Any, usage: Any) -> None:
    for body in (value, {"content": [block, value], "usage": usage, "stop_reason": block}):
        raw = orjson.dumps(body)
        for read in (parse_answer, lambda raw: parse_passed_answer(raw, CALL), parse_count_answer):
            with contextlib.suppress(ProviderBadResponse):
                assert read(raw) is not None


@given(st.binary(max_size=100))
def test_any_bytes_are_a_message_or_a_fault(raw: bytes) -> None:
    with pytest.raises(ProviderBadResponse):
        parse_answer(raw)


@table_rows(
    ("raw", "usage"),
    [
        ({"input_tokens": 3, "output_tokens": 4}, Usage(3, 4, 0, "upstream")),
        ({"input_tokens": 0, "output_tokens": 0}, Usage(0, 0, 0, "upstream")),
        (
            {"input_tokens": 3, "output_tokens": 4, "cache_read_input_tokens": None, "cache_creation": None},
            Usage(3, 4, 0, "upstream"),
        ),
        (MESSAGE["usage"], Usage(2150, 503, 5, "upstream", written_tokens=50)),
        (
            MESSAGE["usage"] | {"cache_creation": {"ephemeral_1h_input_tokens": 20}},
            Usage(2150, 503, 5, "upstream", written_tokens=50, written_long_tokens=20),
        ),
        (
            MESSAGE["usage"] | {"cache_creation": {"ephemeral_1h_input_tokens": 60}},
            Usage(2150, 503, 5, "upstream", written_tokens=50, written_long_tokens=50),
        ),
        (
            MESSAGE["usage"] | {"cache_creation": {"ephemeral_1h_input_tokens": -1}},
            Usage(2150, 503, 5, "upstream", written_tokens=50),
        ),
        (None, None),
        ([], None),
        ({}, None),
        ({"input_tokens": 3}, None),
        ({"output_tokens": 3}, None),
        ({"input_tokens": None, "output_tokens": 3}, None),
        ({"input_tokens": 3, "output_tokens": None}, None),
        ({"input_tokens": -3, "output_tokens": 4}, None),
        ({"input_tokens": 3.0, "output_tokens": 4}, None),
        ({"input_tokens": True, "output_tokens": 4}, None),
        ({"input_tokens": 3, "output_tokens": 4, "cache_read_input_tokens": -1}, None),
        ({"input_tokens": 3, "output_tokens": 4, "cache_creation_input_tokens": "9"}, None),
        ({"input_tokens": MAX_TOKENS, "output_tokens": 4, "cache_read_input_tokens": 1}, None),
    ],
)
def test_usage_is_read_strictly(raw: object, usage: Usage | None) -> None:
    assert parse_usage(raw) == usage


def test_the_usage_of_a_passed_answer_is_the_providers_or_an_estimate_of_all_it_says() -> None:
    assert parse_passed_answer(dump(), CALL) == Usage(2150, 503, 5, "upstream", written_tokens=50)
    estimated = parse_passed_answer(dump(usage=None), CALL)
    assert (estimated.prompt_tokens, estimated.source) == (estimate_prompt(CALL), "estimate")
    answers = ["Let me see", "Hi! My name is Claude.", '{"query":"x"}', '{"city":"SF"}']
    assert estimate_text("".join(answers)) <= estimated.completion_tokens <= 2 * sum(map(estimate_text, answers))


def test_what_was_read_is_written_as_it_was_but_for_what_the_hub_has_not() -> None:
    expected = MESSAGE | {"model": "ours"}
    expected["content"] = [{k: v for k, v in block.items() if k != "citations"} for block in MESSAGE["content"]
                           if block["type"] != "server_tool_use"]  # fmt: skip
    assert orjson.loads(build_answer(EVENTS, model="ours", message_id="x")) == expected


def test_what_was_written_is_read_again() -> None:
    assert parse_answer(build_answer(EVENTS, model=MODEL, message_id="x")) == EVENTS


@table_rows("name", ANSWERED)
def test_the_client_library_takes_what_is_written(name: str) -> None:
    events = ANSWERED[name][1]
    message = judge(build_answer(events, model="m", message_id="x"))
    assert "".join(block.text for block in message.content if block.type == "text") == "".join(
        event.text for event in events if isinstance(event, chat.TextDelta)
    )
    assert message.stop_reason is not None
    (used,) = [event.usage for event in events if isinstance(event, chat.UsageReport)]
    assert message.usage.output_tokens == used.completion_tokens


@table_rows(
    ("arguments", "written"),
    [
        ("", {}),
        ("{}", {}),
        ('{"a":[1]}', {"a": [1]}),
        ('{"a":', {"INVALID_JSON": '{"a":'}),
        ("[1]", {"INVALID_JSON": "[1]"}),
    ],
)
def test_arguments_are_written_as_an_object(arguments: str, written: dict[str, Any]) -> None:
    events: list[chat.Event] = [
        chat.ToolCallStart(0, "", "f"),
        chat.ToolCallDelta(0, arguments),
        chat.ChoiceFinished("length"),
    ]
    value = orjson.loads(build_answer(events, model="m", message_id="msg_9"))
    assert value["content"] == [{"type": "tool_use", "id": "toolu_9_0", "name": "f", "input": written}]
    assert value["stop_reason"] == "max_tokens"


def test_nothing_is_added_to_arguments_that_were_whole_when_the_next_block_began() -> None:
    events: list[chat.Event] = [
        chat.ToolCallStart(0, "t", "f"),
        chat.ToolCallDelta(0, '{"a":1}'),
        chat.TextDelta("b"),
        chat.ToolCallDelta(0, "}"),
        chat.ChoiceFinished("stop"),
    ]
    value = orjson.loads(build_answer(events, model="m", message_id="x"))
    assert value["content"][0]["input"] == {"a": 1}


def test_only_the_first_answer_is_written() -> None:
    events: list[chat.Event] = [
        chat.TextDelta("b", 1),
        chat.ChoiceFinished("length", 1),
        chat.TextDelta("a"),
        chat.ChoiceFinished("stop"),
        chat.STREAM_END,
    ]
    value = orjson.loads(build_answer(events, model="m", message_id="x"))
    assert (value["id"], value["content"], value["stop_reason"]) == (
        "msg_x",
        [{"type": "text", "text": "a"}],
        "end_turn",
    )


def test_a_fault_is_raised() -> None:
    error = ProviderBadResponse("no")
    with pytest.raises(ProviderBadResponse) as caught:
        build_answer([chat.TextDelta("a"), chat.StreamError(error)], model="m", message_id="x")
    assert caught.value is error


def test_a_count_is_read_and_written() -> None:
    assert parse_count_answer(build_count_answer(14)) == 14
    assert parse_count_answer(b'{"input_tokens":0,"context_management":null}') == 0


@table_rows("raw", [b"", b"[]", b"{}", b'{"input_tokens":-1}', b'{"input_tokens":"5"}', b'{"input_tokens":5.0}'])
def test_what_is_no_count_is_a_fault(raw: bytes) -> None:
    with pytest.raises(ProviderBadResponse):
        parse_count_answer(raw)
