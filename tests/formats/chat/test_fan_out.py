"""Several answers with one choice each, merged into one with several."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.usage import Usage, UsageDetails, add_usages
from gateway.errors import ProviderBadResponse
from gateway.formats.chat.fan_out import ChoiceMerger, MergedStream, add_parts, make_single, merge_answers
from gateway.formats.chat.openai.chat import DONE_EVENT, parse_chat_inference
from gateway.formats.wire.sse import SseSplitter, parse_data
from tests.support.scripted_upstream import COMPLETION, DONE, delta, event, usage_frame

CALL = parse_chat_inference({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "n": 2, "stream": True})
USAGE = {"prompt_tokens": 5, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 2}, "tier": "x"}


def read(raw: bytes) -> list[Any]:
    return [orjson.loads(parse_data(one) or b"null") for one in SseSplitter().split(raw.removesuffix(DONE_EVENT))]


def test_a_single_request_asks_for_one_choice_and_usage() -> None:
    single = make_single(CALL)
    assert ("n" in single.body, single.choices, single.include_usage) == (False, 1, True)
    assert CALL.body["n"] == 2


def test_whole_answers_become_choices_and_their_usage_is_added() -> None:
    second = COMPLETION | {"id": "other", "usage": USAGE, "choices": [{"index": 0, "message": {"content": "b"}}]}
    merged = orjson.loads(merge_answers([orjson.dumps(COMPLETION | {"usage": USAGE}), orjson.dumps(second)]))
    assert merged["id"] == COMPLETION["id"]
    assert [(one["index"], one["message"]["content"]) for one in merged["choices"]] == [(0, "hello"), (1, "b")]
    assert merged["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 4},
        "tier": "x",
    }


def test_an_answer_without_a_choice_is_none() -> None:
    with pytest.raises(ProviderBadResponse):
        merge_answers([orjson.dumps(COMPLETION), orjson.dumps(COMPLETION | {"choices": []})])


@given(st.permutations([0] * 5 + [1] * 5))
def test_streams_are_merged_in_whatever_order_they_arrive(order: list[int]) -> None:
    pieces = {
        index: [
            event(delta("a", id=f"chatcmpl-{index}")),
            b": comment\n\n",
            event(delta(str(index), "stop")),
            event(usage_frame()),
            DONE,
        ]
        for index in (0, 1)
    }
    merger, raw = ChoiceMerger(2), b""
    for index in order:
        raw += merger.feed(index, pieces[index].pop(0))
        if not pieces[index]:
            raw += merger.end()
    assert raw.endswith(DONE_EVENT)
    assert raw.count(DONE_EVENT) == 1
    *chunks, last = read(raw)
    assert len({one["id"] for one in [*chunks, last]}) == 1
    texts = {0: "", 1: ""}
    for one in chunks:
        (choice,) = one["choices"]
        texts[choice["index"]] += choice["delta"]["content"]
    assert texts == {0: "a0", 1: "a1"}
    assert (last["choices"], last["usage"]) == ([], {"prompt_tokens": 10, "completion_tokens": 14, "total_tokens": 24})


def test_an_event_that_is_no_object_ends_the_merged_stream() -> None:
    with pytest.raises(ProviderBadResponse):
        ChoiceMerger(2).feed(0, b"data: []\n\n")


def test_usage_is_that_of_the_parts_however_far_they_came() -> None:
    single = make_single(CALL)
    done, begun = MergedStream(single, ()), MergedStream(single, ())
    assert MergedStream(CALL, (done, begun)).parse_usage() == Usage()
    reported = Usage(5, 7, 2, "upstream", written_tokens=1)
    both = UsageDetails(calls=2)
    assert add_parts([reported, reported], CALL) == Usage(10, 14, 4, "upstream", written_tokens=2, details=both)
    assert add_parts([reported, Usage()], CALL) == Usage(
        6, 7, 2, "estimate", written_tokens=1, details=both
    )  # "Hi": a token
    assert add_usages([reported, Usage(1, 1, 0, "bound")]).source == "bound"
