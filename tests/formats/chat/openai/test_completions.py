"""A legacy completions call, its streams, and the usage of its answer."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.chat.openai.chat import parse_answer_object, parse_chat_answer
from gateway.formats.chat.openai.completions import (
    CompletionsPassthrough,
    build_completions_body,
    parse_completions_inference,
)
from gateway.formats.usage.token_bounds import MAX_RESERVED_OUTPUT
from tests.support.scripted_upstream import DONE, event
from tests.support.table_rows import table_rows

HELLO: dict[str, Any] = {"model": "m", "prompt": "once"}
NAMES = st.sampled_from([*HELLO, "n", "best_of", "max_tokens", "stream", "stream_options", "suffix", "user", "choices",
                         "text", "usage", "prompt_tokens", "completion_tokens", "error"])  # fmt: skip
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 2**63) | st.floats(allow_nan=False) | st.text("ab", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=10,
)
USAGE = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}


def chunk(text: str, reason: str | None = None, index: int = 0) -> bytes:
    choice = {"index": index, "text": text, "logprobs": None, "finish_reason": reason}
    return event({"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]})


@table_rows(
    ("prompt", "choices", "chars", "bound"),
    [
        (None, 1, 0, 1),
        ("", 1, 0, 1),
        ("once", 1, 4, 5),
        ("四文字だ", 1, 4, 13),
        (["a", "bc"], 2, 3, 5),
        ([1, 2, 3], 1, 12, 4),
        ([[1, 2], [3]], 2, 12, 5),
        (["a", [1]], 2, 5, 4),
    ],
)
def test_a_good_prompt_is_counted(prompt: object, choices: int, chars: int, bound: int) -> None:
    inference = parse_completions_inference(HELLO | {"prompt": prompt})
    assert (inference.operation, inference.model) == ("completions", "m")
    assert (inference.choices, inference.prompt_chars, inference.max_prompt_tokens) == (choices, chars, bound)


def test_a_call_may_come_without_a_prompt() -> None:
    assert parse_completions_inference({"model": "m"}).choices == 1


def test_every_prompt_gets_n_answers() -> None:
    assert parse_completions_inference(HELLO | {"prompt": ["a", "b", "c"], "n": 4}).choices == 12


def test_the_text_behind_a_gap_is_prompt_too() -> None:
    inference = parse_completions_inference(HELLO | {"suffix": " ende"})
    assert (inference.prompt_chars, inference.max_prompt_tokens) == (9, 10)


@table_rows(
    ("extra", "bound"),
    [
        ({}, MAX_RESERVED_OUTPUT),
        ({"max_tokens": None}, MAX_RESERVED_OUTPUT),
        ({"max_tokens": 0}, 0),
        ({"max_tokens": 7}, 7),
        ({"max_tokens": 10**6}, MAX_RESERVED_OUTPUT),
        ({"max_tokens": 7, "best_of": 3}, 21),
        ({"max_tokens": 7, "best_of": 3, "n": 2}, 11),
        ({"max_tokens": 7, "best_of": 1, "n": 2}, 7),
        ({"max_tokens": 7, "best_of": 0}, 7),
    ],
)
def test_output_is_set_aside_for_every_try(extra: dict[str, Any], bound: int) -> None:
    assert parse_completions_inference(HELLO | extra).max_output_tokens == bound


@table_rows(
    ("extra", "param"),
    [
        ({"model": None}, "model"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", None]}, "prompt[1]"),
        ({"prompt": ["a", []]}, "prompt[1]"),
        ({"prompt": [1, "a"]}, "prompt[0]"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": [[1], [1.5]]}, "prompt[1]"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"best_of": -1}, "best_of"),
        ({"best_of": "2"}, "best_of"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"temperature": 101}, "temperature"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"suffix": []}, "suffix"),
        ({"user": 5}, "user"),
    ],
)
def test_a_bad_field_is_refused_and_named(extra: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_completions_inference(HELLO | extra)
    assert caught.value.param == param


@given(st.dictionaries(NAMES, JSON))
def test_any_object_is_a_call_or_an_invalid_request(extra: dict[str, Any]) -> None:
    try:
        inference = parse_completions_inference(HELLO | extra)
    except InvalidRequest:
        return
    assert inference.choices >= 1
    assert min(inference.prompt_chars, inference.max_prompt_tokens, inference.max_output_tokens) >= 0


def test_the_body_for_the_provider_is_the_callers_under_another_name_of_the_model() -> None:
    body = HELLO | {"echo": True, "unknown": [1], "user": "me"}
    inference = parse_completions_inference(body)
    assert build_completions_body(inference, "theirs") == body | {"model": "theirs"}
    assert (inference.affinity_key, body["model"]) == ("me", "m")


def test_a_stream_asks_for_usage() -> None:
    inference = parse_completions_inference(HELLO | {"stream": True})
    assert build_completions_body(inference, "m")["stream_options"] == {"include_usage": True}
    assert (inference.stream, inference.include_usage) == (True, False)


@table_rows("include_usage", [True, False])
def test_a_stream_passes_with_the_usage_frame_only_where_it_was_asked_for(include_usage: bool) -> None:
    frame = event({"object": "text_completion", "choices": [], "usage": USAGE})
    pieces = [chunk("on"), chunk("ce", "stop"), frame, DONE]
    transform = CompletionsPassthrough(InferenceRequest("completions", "m", {}, include_usage=include_usage))
    assert b"".join(map(transform.feed, pieces)) == b"".join(pieces).replace(b"" if include_usage else frame, b"")
    assert transform.ended
    assert transform.parse_usage() == Usage(5, 7, 0, "upstream")


def test_a_stream_without_its_mark_is_whole_where_every_prompt_has_its_answers() -> None:
    transform = CompletionsPassthrough(parse_completions_inference(HELLO | {"prompt": ["a", "b"], "stream": True}))
    transform.feed(chunk("x", "stop") + chunk("y", "length", index=1))
    assert transform.finish() == DONE


def test_a_stream_that_lacks_an_answer_was_cut() -> None:
    transform = CompletionsPassthrough(parse_completions_inference(HELLO | {"prompt": ["a", "b"], "stream": True}))
    transform.feed(chunk("x", "stop"))
    with pytest.raises(ProviderBadResponse):
        transform.finish()


def test_a_stream_without_usage_is_estimated_from_its_text() -> None:
    transform = CompletionsPassthrough(
        InferenceRequest("completions", "m", {"prompt": "12345678"}, max_prompt_tokens=9)
    )
    transform.feed(chunk("12345678") * 3)
    assert transform.parse_usage() == Usage(4, 12, 0, "estimate")


def test_an_answers_usage_is_the_providers_or_an_estimate_of_its_text() -> None:
    inference = InferenceRequest("completions", "m", {"prompt": "12345678"}, max_prompt_tokens=9)
    choices = [{"index": 0, "text": "12345", "finish_reason": "stop"}]
    assert parse_chat_answer({"choices": choices, "usage": USAGE}, inference) == Usage(5, 7, 0, "upstream")
    assert parse_chat_answer({"choices": choices}, inference) == Usage(4, 3, 0, "estimate")


@given(JSON | st.dictionaries(NAMES, JSON))
def test_any_json_answer_is_read_or_the_providers_fault(value: Any) -> None:
    try:
        usage = parse_chat_answer(parse_answer_object(orjson.dumps(value)), InferenceRequest("completions", "m", {}))
    except ProviderBadResponse:
        return
    assert usage.completion_tokens >= 0
