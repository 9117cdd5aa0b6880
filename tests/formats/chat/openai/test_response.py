"""A whole answer of the convention as events, and back."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.usage import Usage
from gateway.errors import ProviderBadResponse, ProviderRateLimited
from gateway.formats.chat.model import (
    STREAM_END,
    ChoiceFinished,
    Event,
    ImageOutput,
    MessageStart,
    ReasoningDelta,
    RefusalDelta,
    StreamError,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    UsageReport,
)
from gateway.formats.chat.openai.response import build_answer, parse_answer
from tests.support.chat_sdk import answering, answers
from tests.support.table_rows import table_rows

STARTED = MessageStart("chatcmpl-1", "m", 1)
USAGE = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def answer(*messages: dict[str, Any], reason: Any = "stop", **extra: Any) -> dict[str, Any]:
    choices = [
        {"index": at, "message": {"role": "assistant"} | message, "finish_reason": reason}
        for at, message in enumerate(messages)
    ]
    return {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": choices} | extra


def read(value: Any) -> list[Event]:
    return parse_answer(orjson.dumps(value), ["s3cret-key"])


def write(events: list[Event]) -> dict[str, Any]:
    written: dict[str, Any] = orjson.loads(build_answer(events, answer_id="ours", model="alias", created_s=99))
    return written


def gist(events: list[Event]) -> dict[Any, Any]:
    """What an answer says, however it is cut and whichever choice goes first."""
    reported: dict[Any, Any] = {}
    for event in events:
        match event:
            case TextDelta() | ReasoningDelta() | RefusalDelta():
                key = (type(event), event.choice)
                reported[key] = reported.get(key, "") + event.text
            case ToolCallDelta():
                call = (ToolCallDelta, event.choice, event.index)
                reported[call] = reported.get(call, "") + event.arguments
            case ToolCallStart():
                reported[ToolCallStart, event.choice, event.index] = event
            case ImageOutput():
                reported.setdefault((ImageOutput, event.choice), []).append(event)
            case ChoiceFinished():
                reported[ChoiceFinished, event.choice] = event
            case _:
                reported[type(event)] = event
    return reported


def test_an_answer_is_read_in_order() -> None:
    assert read(answer({"content": "a", "refusal": None}, usage=USAGE)) == [
        STARTED,
        TextDelta("a"),
        ChoiceFinished("stop"),
        UsageReport(Usage(5, 7, 0, "upstream")),
        STREAM_END,
    ]


def test_all_that_a_message_holds_is_read() -> None:
    call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"content": "a", "refusal": "no", "reasoning_content": "t", "images": [IMAGE], "tool_calls": [call]}
    assert read(answer(message, {"content": "b"}, reason="tool_calls"))[1:-1] == [
        ReasoningDelta("t"),
        TextDelta("a"),
        RefusalDelta("no"),
        ImageOutput("image/png", "AAAA"),
        ToolCallStart(0, "x", "f"),
        ToolCallDelta(0, "{}"),
        ChoiceFinished("tool_calls"),
        TextDelta("b", 1),
        ChoiceFinished("tool_calls", 1),
    ]


def test_calls_with_one_id_or_none_are_as_many_calls() -> None:
    for fields in ({"id": "same"}, {}, {"index": 0}):
        one = {"type": "function", "function": {"name": "f", "arguments": "{}"}} | fields
        started = [event for event in read(answer({"tool_calls": [one, one]})) if isinstance(event, ToolCallStart)]
        assert [event.index for event in started] == [0, 1]
        assert all(event.id for event in started)


def test_an_answer_without_a_finish_reason_has_stopped() -> None:
    assert ChoiceFinished("stop") in read(answer({"content": "a"}, reason=None))


def test_choices_are_counted_where_the_provider_does_not() -> None:
    value = answer({"content": "a"}, {"content": "b"})
    for choice in value["choices"]:
        choice["index"] = 0
    assert TextDelta("b", 1) in read(value)


@table_rows(
    "value",
    [
        None,
        [],
        {},
        {"choices": None},
        {"choices": []},
        {"choices": [None]},
        {"choices": [{}]},
        {"choices": [{"message": "a"}]},
        {"error": {"message": "s3cret-key"}},
        answer({"content": "a"}, reason="error"),
    ],
)
def test_what_is_no_answer_is_the_providers_fault(value: Any) -> None:
    with pytest.raises(ProviderBadResponse) as caught:
        read(value)
    assert caught.value.phase == "answer"
    assert "s3cret" not in caught.value.message


@given(data=st.binary(max_size=60))
def test_garbage_is_the_providers_fault(data: bytes) -> None:
    with pytest.raises(ProviderBadResponse):
        parse_answer(data)


@given(events=answers())
def test_what_is_written_is_read_again(events: list[Event]) -> None:
    again = read(write(events))
    assert gist(again) == gist(events)
    assert (again[0], again[-1]) == (events[0], STREAM_END)


def test_an_answer_is_written_as_the_convention_has_it() -> None:
    events: list[Event] = [
        STARTED,
        TextDelta("a"),
        TextDelta("b"),
        ChoiceFinished("length"),
        UsageReport(Usage(5, 7, 2), 3),
        STREAM_END,
    ]
    message = {"role": "assistant", "content": "ab", "refusal": None}
    assert write(events) == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}],
        "usage": USAGE
        | {"prompt_tokens_details": {"cached_tokens": 2}, "completion_tokens_details": {"reasoning_tokens": 3}},
    }


@table_rows(
    ("events", "content"),
    [
        ([ToolCallStart(0, "x", "f")], None),
        ([RefusalDelta("no")], None),
        ([ReasoningDelta("t")], ""),
        ([], ""),
        ([TextDelta("a"), ToolCallStart(0, "x", "f")], "a"),
    ],
)
def test_content_is_null_only_where_something_stands_for_it(events: list[Event], content: str | None) -> None:
    assert write([*events, ChoiceFinished("stop")])["choices"][0]["message"]["content"] == content


def test_names_and_time_are_ours_where_the_provider_has_none() -> None:
    written = write([MessageStart("", ""), ChoiceFinished("stop")])
    assert (written["id"], written["model"], written["created"]) == ("ours", "alias", 99)
    assert "usage" not in written


def test_a_failed_answer_is_its_fault_and_an_empty_one_the_providers() -> None:
    error = ProviderRateLimited("later", status=429)
    with pytest.raises(ProviderRateLimited, match="later"):
        write([STARTED, StreamError(error)])
    with pytest.raises(ProviderBadResponse, match="no choices"):
        write([STARTED, STREAM_END])


def test_arguments_without_a_call_are_left_out() -> None:
    assert "tool_calls" not in write([ToolCallDelta(0, "{}"), ChoiceFinished("stop")])["choices"][0]["message"]


@given(events=answers(most_choices=2))
def test_the_client_library_takes_the_answer(events: list[Event]) -> None:
    """In its strict mode it refuses what is not of the convention's types."""
    with answering(build_answer(events, answer_id="ours", model="alias", created_s=99)) as client:
        taken = client.chat.completions.create(model="m", messages=[])
    reported = gist(events)
    for choice in taken.choices:
        assert ChoiceFinished(choice.finish_reason, choice.index) == reported[ChoiceFinished, choice.index]  # type: ignore[arg-type]
        assert (choice.message.content or "") == reported.get((TextDelta, choice.index), "")
        assert choice.message.refusal == reported.get((RefusalDelta, choice.index))
        assert getattr(choice.message, "reasoning_content", None) == reported.get((ReasoningDelta, choice.index))
        for at, call in enumerate(choice.message.tool_calls or ()):
            assert call.type == "function"
            assert call.function.arguments == reported.get((ToolCallDelta, choice.index, at), "")
