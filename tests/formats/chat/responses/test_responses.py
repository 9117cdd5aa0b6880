"""A responses call, its stream, and the usage of its answer."""

import itertools
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.token_estimate import estimate_text
from gateway.domain.usage import MAX_TOKENS, Usage, estimate_tokens
from gateway.errors import InvalidRequest, ProviderBadResponse, ProviderError, ProviderRateLimited, ProviderRejected
from gateway.formats.chat.responses.responses import (
    ResponsesPassthrough,
    build_responses_body,
    parse_responses_answer,
    parse_responses_inference,
    parse_usage_object,
)
from gateway.formats.stream_tail import TAIL_BYTES
from gateway.formats.usage.token_bounds import MAX_RESERVED_OUTPUT, MESSAGE_TOKENS, PART_TOKENS
from gateway.formats.wire import sse
from tests.support.table_rows import table_rows

CALL = InferenceRequest(
    "responses", "m", {"input": "two words"}, stream=True, max_prompt_tokens=9, max_output_tokens=100
)
PROMPT = estimate_text("two words")
HELLO: dict[str, Any] = {"model": "m", "input": "hi"}
IMAGE = "data:image/png;base64," + "A" * 100_000
SECRET = "hunter-22"
USED = {"input_tokens": 5, "output_tokens": 7, "total_tokens": 12}
ANSWERED = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "12345678"}]}]
ANSWER: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "error": None,
    "output": ANSWERED,
}
BROKEN = {"code": "server_error", "message": f"broke at https://10.0.0.1/x with {SECRET}"}
NAMES = st.sampled_from([*HELLO, "type", "content", "text", "output", "usage", "input_tokens", "output_tokens", "error",
                         "input_tokens_details", "cached_tokens", "status", "object", "response", "delta", "code",
                         "message", "conversation", "previous_response_id", "instructions", "id"])  # fmt: skip
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("ab", max_size=3)
    | st.sampled_from(["response", "failed", "completed", "response.completed", "response.failed", "error"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


def event(kind: str, **data: Any) -> bytes:
    body = {"type": kind, "sequence_number": 1, **data}
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps(body) + b"\n\n"


def text(words: str) -> bytes:
    return event("response.output_text.delta", item_id="msg_1", output_index=0, content_index=0, delta=words)


def end(status: str = "completed", **more: Any) -> bytes:
    return event(f"response.{status}", response=ANSWER | {"status": status, "usage": USED} | more)


CREATED = event("response.created", response=ANSWER | {"status": "in_progress", "output": [], "usage": None})
IN_PROGRESS = event("response.in_progress", response=ANSWER | {"status": "in_progress", "output": []})
QUEUED = event("response.queued", response=ANSWER | {"status": "queued", "output": []})
ADDED = event("response.output_item.added", output_index=0, item={"type": "message", "id": "msg_1", "content": []})
END = end()
FAILED = end("failed", error=BROKEN, output=[], usage=None)
ERROR = event("error", code="server_error", message=BROKEN["message"], param=None)
DONE = b"data: [DONE]\n\n"
WHOLE = [CREATED, IN_PROGRESS, ADDED, text("Grüße, "), text("世界"), END]

EVENTS = st.sampled_from(
    [
        CREATED,
        IN_PROGRESS,
        ADDED,
        text("a"),
        text('"type":"response.completed" and [DONE] and "error":{} and event: error'),
        text("日本語 \u2028"),
        event("response.mcp_call.failed", error={"message": "a tool's own"}),
        event("response.of_tomorrow", x=1),
        b'data: {"type":"response.output_text.delta","delta":"unnamed"}\n\n',
        b'event: response.output_text.delta\ndata: {"type":\ndata: "response.output_text.delta"}\n\n',
        b": comment\n\n",
        b"event: ping\n\n",
        b"id: 7\n" + text("z"),
    ]
)
ENDINGS = st.sampled_from(
    [[], [END], [END, DONE], [END, text("late")], [DONE], [ERROR], [ERROR, FAILED], [FAILED], [b"event: response.comp"]]
)
CUTS = st.lists(st.integers(0, 4000), max_size=8)


def cut(data: bytes, marks: list[int]) -> list[bytes]:
    places = sorted({mark % (len(data) + 1) for mark in marks})
    return [data[start:stop] for start, stop in itertools.pairwise([0, *places, len(data)])]


def run(data: bytes, marks: list[int] | None = None) -> tuple[bytes, ResponsesPassthrough]:
    transform = ResponsesPassthrough(CALL, (SECRET,))
    return b"".join([transform.feed(piece) for piece in cut(data, marks or [])]), transform


def by_the_byte(data: bytes) -> tuple[bytes, ResponsesPassthrough]:
    return run(data, list(range(len(data))))


# The call.


@table_rows(
    ("extra", "chars"),
    [
        ({}, 2),
        ({"input": None, "prompt": {"id": "pmpt_1"}}, 0),
        ({"instructions": "be good", "tools": [{"type": "function", "name": "f", "description": "long"}]}, 9),
        ({"input": [{"role": "user", "content": "abc"}]}, 3),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "abc"}, {"text": 5}]}]}, 3),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"}]}, 2),
        ({"input": [{"type": "function_call_output", "output": "done", "call_id": "c"}]}, 4),
        ({"input": [{"type": "reasoning", "encrypted_content": "A" * 9, "summary": []}]}, 9),
        ({"input": [{"type": "of tomorrow"}]}, 0),
        ({"background": True, "store": True, "include": [], "metadata": {"text": "x"}, "stream": None}, 2),
    ],
)
def test_a_good_call_is_read_and_keeps_its_whole_body(extra: dict[str, Any], chars: int) -> None:
    body = HELLO | extra
    inference = parse_responses_inference(body)
    assert (inference.operation, inference.model, inference.body, inference.stream) == ("responses", "m", body, False)
    assert (inference.prompt_chars, inference.choices) == (chars, 1)
    assert inference.max_prompt_tokens >= estimate_tokens(chars)


def test_a_prompt_is_bound_by_its_bytes_and_a_image_by_one_of_its_size() -> None:
    plain = parse_responses_inference(HELLO | {"input": [{"content": [{"text": "四文"}]}]}).max_prompt_tokens
    assert plain == 6 + 3 * MESSAGE_TOKENS
    pictured = parse_responses_inference(HELLO | {"input": [{"content": [{"text": "四文", "image_url": IMAGE}]}]})
    assert pictured.max_prompt_tokens == plain + PART_TOKENS


@table_rows(("asked", "bound"), [(None, MAX_RESERVED_OUTPUT), (16, 16), (MAX_TOKENS, MAX_RESERVED_OUTPUT)])
def test_output_is_set_aside_up_to_what_may_be_asked_for(asked: int | None, bound: int) -> None:
    assert parse_responses_inference(HELLO | {"max_output_tokens": asked}).max_output_tokens == bound


@table_rows(
    ("extra", "affinity_key"),
    [
        ({}, "responses"),
        ({"user": "u"}, "responses"),
        ({"user": "u", "store": True}, "responses"),
        ({"store": False}, None),
        ({"user": "u", "store": False}, "u"),
        ({"prompt_cache_key": "k", "store": False, "previous_response_id": "resp_1"}, "responses"),
        ({"prompt_cache_key": "k", "store": False, "conversation": "conv_1"}, "responses"),
        ({"conversation": {"id": "conv_1"}, "store": False}, "responses"),
    ],
)
def test_calls_whose_answers_are_stored_stay_together(extra: dict[str, Any], affinity_key: str | None) -> None:
    assert parse_responses_inference(HELLO | extra).affinity_key == affinity_key


@table_rows(
    ("extra", "param"),
    [
        ({"model": None}, "model"),
        ({"input": 5}, "input"),
        ({"input": {"role": "user"}}, "input"),
        ({"input": ["hi"]}, "input[0]"),
        ({"input": [{}, None]}, "input[1]"),
        ({"instructions": ["x"]}, "instructions"),
        ({"tools": {}}, "tools"),
        ({"stream": 1}, "stream"),
        ({"background": "yes"}, "background"),
        ({"temperature": 100.5}, "temperature"),
        ({"top_p": -1}, "top_p"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": "9"}, "max_output_tokens"),
        ({"previous_response_id": 5}, "previous_response_id"),
        ({"conversation": 5}, "conversation"),
        ({"conversation": ["c"]}, "conversation"),
        ({"user": 5}, "user"),
    ],
)
def test_a_bad_field_is_refused_and_named(extra: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_responses_inference(HELLO | extra)
    assert caught.value.param == param


@given(st.dictionaries(NAMES, JSON))
def test_any_object_is_a_call_or_an_invalid_request(extra: dict[str, Any]) -> None:
    try:
        inference = parse_responses_inference(HELLO | extra)
    except InvalidRequest:
        return
    assert min(inference.prompt_chars, inference.max_prompt_tokens) >= 0


def test_an_input_nested_as_deep_as_json_may_be_is_read() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    assert parse_responses_inference(HELLO | {"input": [{"content": deep}]}).prompt_chars == 1


def test_the_body_for_the_provider_is_the_callers_under_another_name_of_the_model() -> None:
    body = HELLO | {"stream": True, "unknown": [1]}
    assert build_responses_body(parse_responses_inference(body), "theirs") == body | {"model": "theirs"}
    assert body["model"] == "m"


# The stream.


@pytest.mark.parametrize("line", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
@given(bom=st.sampled_from([b"", sse.BOM]), events=st.lists(EVENTS, max_size=6), ending=ENDINGS, marks=CUTS)
def test_the_same_bytes_leave_at_any_cut(
    line: bytes, bom: bytes, events: list[bytes], ending: list[bytes], marks: list[int]
) -> None:
    data = bom + b"".join(events + ending).replace(b"\n", line)
    whole, transform = run(data)
    for pieces, other in (run(data, marks), by_the_byte(data)):
        assert pieces == whole
        assert (transform.ended, transform.error is None, transform.events) == (
            other.ended,
            other.error is None,
            other.events,
        )


@given(events=st.lists(EVENTS, max_size=6), marks=CUTS)
def test_what_comes_before_the_end_leaves_byte_for_byte(events: list[bytes], marks: list[int]) -> None:
    data = b"".join(events)
    out, transform = run(data + END, marks)
    assert out == data + END
    assert transform.ended


@table_rows(
    ("bad", "why"),
    [
        (b"event: response.output_text.delta\ndata: not json\n\n", "not JSON"),
        (b"event: response.completed\ndata: not json\n\n", "not JSON"),
        (text("b")[:-4] + b"\n\n", "not JSON"),
        (text("HERE").replace(b"HERE", b"\xff"), "not UTF-8"),
    ],
)
def test_an_event_that_is_no_json_or_no_text_is_a_fault_and_does_not_leave(bad: bytes, why: str) -> None:
    first = CREATED + ADDED + text("a")
    for out, transform in (run(first + bad + first), by_the_byte(first + bad + first), run(first + bad, [len(first)])):
        assert out == first
        assert transform.error is not None
        assert why in transform.error.message


@given(raw=st.binary(max_size=200), marks=CUTS)
def test_any_bytes_pass_or_are_held_or_are_a_fault(raw: bytes, marks: list[int]) -> None:
    _, transform = run(raw, marks)
    try:
        transform.finish()
    except ProviderError:
        assert not transform.ended
    assert transform.parse_usage().prompt_tokens >= 0


@given(kind=st.sampled_from(["response.completed", "response.failed", "error", "message", "x"]), value=JSON)
def test_any_data_under_any_name_passes_or_is_a_fault(kind: str, value: Any) -> None:
    data = text("a") + b"event: " + kind.encode() + b"\ndata: " + orjson.dumps(value) + b"\n\n"
    _, transform = run(data)
    usage = transform.parse_usage()
    assert 0 <= usage.cached_tokens <= usage.prompt_tokens <= MAX_TOKENS
    assert 0 <= usage.completion_tokens <= MAX_TOKENS


def test_a_stream_passes_whole_and_tells_its_usage() -> None:
    for out, transform in (run(b"".join(WHOLE)), by_the_byte(b"".join(WHOLE))):
        assert out == b"".join(WHOLE)
        assert (transform.ended, transform.events, transform.finish()) == (True, 3, b"")
        assert transform.parse_usage() == Usage(5, 7, 0, "upstream")


@table_rows("status", ["completed", "incomplete", "cancelled", "failed"])
@table_rows("late", [DONE, text("late"), ERROR, END, b": bye\n\n", b"garbage"])
def test_nothing_leaves_after_the_end(status: str, late: bytes) -> None:
    data = text("a") + end(status)
    for out, transform in (run(data + late), by_the_byte(data + late), run(data + late, [len(data)])):
        assert out == data
        assert (transform.ended, transform.error, transform.closed) == (True, None, True)


@table_rows(
    "last",
    [
        b"data: " + END.split(b"data: ")[1],
        b"event: message\ndata: " + END.split(b"data: ")[1],
        b'event: response.completed\ndata: {"sequence_number":9}\n\n',
        b'event: response.completed\ndata: {"type":"response.completed","response":null}\n\n',
    ],
)
def test_the_end_is_known_by_its_type_or_its_name(last: bytes) -> None:
    out, transform = run(text("a") + last)
    assert out == text("a") + last
    assert transform.ended


@table_rows("late", [b"", text("late"), END])
def test_the_end_mark_of_chat_streams_does_not_complete_a_response(late: bytes) -> None:
    """Clients wait for the event of the end: after the mark alone they fail, or wait for ever."""
    data = text("a") + DONE + late
    for out, transform in (run(data), by_the_byte(data)):
        assert out == text("a")
        assert (transform.ended, transform.closed) == (False, True)
        with pytest.raises(ProviderBadResponse, match="ended before it was complete"):
            transform.finish()


def test_nothing_of_an_answer_is_there_until_a_part_of_it_is() -> None:
    transform = ResponsesPassthrough(CALL)
    for item in (CREATED, QUEUED, IN_PROGRESS, b": comment\n\n"):
        assert transform.feed(item) == item
        assert transform.events == 0
    transform.feed(ADDED)
    assert transform.events == 1


@table_rows("before", [b"", CREATED, CREATED + IN_PROGRESS])
@table_rows(
    "failure",
    [
        FAILED,
        ERROR,
        event("error", error={"type": "server_error", "message": BROKEN["message"]}),
        b"event: error\ndata: " + orjson.dumps(BROKEN) + b"\n\n",
        b"data: " + orjson.dumps({"error": BROKEN}) + b"\n\n",
        b"data: " + orjson.dumps({"error": BROKEN["message"]}) + b"\n\n",
    ],
)
def test_a_failure_before_any_answer_is_a_fault_that_tells_no_secret(before: bytes, failure: bytes) -> None:
    for out, transform in (run(before + failure + END), by_the_byte(before + failure + END)):
        assert out == before
        assert isinstance(transform.error, ProviderBadResponse)
        assert transform.error.retryable
        assert "broke at [address] with [masked]" in transform.error.message
        assert not transform.ended
        with pytest.raises(ProviderBadResponse):
            transform.finish()


@table_rows("error", [None, {}, [], "", 5, {"message": 5}])
def test_a_failure_without_a_reason_is_a_fault(error: object) -> None:
    assert isinstance(run(end("failed", error=error))[1].error, ProviderBadResponse)


@table_rows(
    ("error", "fault", "status"),
    [
        ({"code": "invalid_prompt", "message": "no"}, ProviderRejected, 400),
        ({"code": "image_too_large", "message": "no"}, ProviderRejected, 400),
        ({"type": "invalid_request_error", "code": "x", "message": "no"}, ProviderRejected, 400),
        ({"code": "rate_limit_exceeded", "message": "no"}, ProviderRateLimited, 429),
        ({"code": "vector_store_timeout", "message": "no"}, ProviderBadResponse, 502),
        ({"code": ["invalid_prompt"], "message": "no"}, ProviderBadResponse, 502),
    ],
)
def test_a_failure_is_blamed_on_whom_its_code_blames(error: Any, fault: type[ProviderError], status: int) -> None:
    found = run(end("failed", error=error))[1].error
    assert type(found) is fault
    assert found is not None
    assert found.status == status
    with pytest.raises(fault):
        parse_responses_answer(orjson.dumps(ANSWER | {"status": "failed", "error": error}), CALL)


def test_a_failure_after_some_answer_is_its_end_and_tells_no_secret() -> None:
    for out, transform in (run(text("a") + FAILED), by_the_byte(text("a") + FAILED)):
        assert out.startswith(text("a"))
        last = out.removeprefix(text("a"))
        value = orjson.loads(sse.parse_data(last) or b"")
        assert last.startswith(b"event: response.failed\ndata: ")
        assert value["response"]["error"] == BROKEN | {"message": "broke at [address] with [masked]"}
        assert (transform.ended, transform.error) == (True, None)


def test_a_failure_nested_too_deep_to_be_written_again_still_ends_and_tells_nothing() -> None:
    deep = b"[" * 300 + b"]" * 300
    failed = FAILED.replace(b'"output":[]', b'"output":' + deep)
    assert deep in failed
    out, transform = run(text("a") + failed)
    assert transform.ended
    assert SECRET.encode() not in out


def test_an_error_event_after_some_answer_is_a_fault() -> None:
    for out, transform in (run(text("a") + ERROR + FAILED), by_the_byte(text("a") + ERROR + FAILED)):
        assert out == text("a")
        assert isinstance(transform.error, ProviderBadResponse)


def test_an_event_without_an_end_is_a_fault() -> None:
    transform = ResponsesPassthrough(CALL)
    piece = b"data: " + b"x" * (1024 * 1024)
    while not transform.closed:
        assert transform.feed(piece) == b""
    assert transform.error is not None
    assert transform.feed(END) == b""
    assert transform.parse_usage() == Usage(source="estimate")


def test_an_end_without_its_blank_line_is_completed() -> None:
    for lost in (b"\n", b"\n\n"):
        transform = ResponsesPassthrough(CALL)
        assert transform.feed(text("a") + END.removesuffix(lost)) == text("a")
        assert transform.finish() == END
        assert transform.ended
        assert transform.parse_usage() == Usage(5, 7, 0, "upstream")


@table_rows(
    "data",
    [b"", CREATED, text("a"), text("a") + b": bye\n\n", text("a") + END[:-9], text("a") + b"data: [DON", b"\n\n"],
    ids=repr,
)
def test_a_stream_that_was_cut_is_a_fault(data: bytes) -> None:
    _, transform = run(data)
    with pytest.raises(ProviderBadResponse):
        transform.finish()
    assert not transform.ended


def test_an_error_without_its_blank_line_is_still_that_error() -> None:
    _, transform = run(CREATED + event("error", code="invalid_prompt", message="no").rstrip())
    with pytest.raises(ProviderRejected):
        transform.finish()


def test_usage_is_read_from_an_end_of_any_length() -> None:
    long = end(instructions="x" * (3 * TAIL_BYTES))
    assert by_the_byte(text("a") + long)[1].parse_usage() == Usage(5, 7, 0, "upstream")


@table_rows("used", [None, {}, "x", {"input_tokens": -1, "output_tokens": 5}])
def test_an_end_that_tells_no_usage_is_estimated_from_the_answer_in_it(used: object) -> None:
    assert run(text("a") + end(usage=used))[1].parse_usage() == Usage(PROMPT, 4, 0, "estimate")


@table_rows("used", [None, {"input_tokens": -1}])
def test_an_end_that_tells_nothing_is_estimated_from_the_deltas(used: object) -> None:
    data = CREATED + text("12345678") + event("response.refusal.delta", delta="1234") + end(usage=used, output=[])
    assert run(data)[1].parse_usage() == Usage(PROMPT, 6, 0, "estimate")


def test_a_long_stream_without_an_end_is_estimated_from_a_sample() -> None:
    transform = ResponsesPassthrough(CALL)
    for _ in range(2000):
        transform.feed(text("abcd"))
    usage = transform.parse_usage()
    assert (usage.prompt_tokens, usage.source) == (PROMPT, "estimate")
    assert usage.completion_tokens == pytest.approx(2000 * estimate_text("abcd" * 50) / 50, rel=0.1)


def test_sound_is_not_counted_as_text() -> None:
    assert run(event("response.audio.delta", delta="A" * 400))[1].parse_usage() == Usage(PROMPT, 0, 0, "estimate")


def test_a_stream_of_nothing_costs_nothing() -> None:
    assert ResponsesPassthrough(CALL).parse_usage() == Usage()
    assert run(CREATED)[1].parse_usage() == Usage(source="estimate")


# The whole answer.


def test_an_answers_usage_is_the_providers_or_an_estimate_of_its_text() -> None:
    assert parse_responses_answer(orjson.dumps(ANSWER | {"usage": USED}), CALL) == Usage(5, 7, 0, "upstream")
    assert parse_responses_answer(orjson.dumps(ANSWER), CALL) == Usage(PROMPT, 4, 0, "estimate")


@table_rows("status", ["incomplete", "cancelled", "completed", None, 5, []])
def test_an_answer_that_did_not_fail_is_one(status: object) -> None:
    assert parse_responses_answer(orjson.dumps(ANSWER | {"status": status}), CALL).completion_tokens == 4


@table_rows("status", ["queued", "in_progress"])
def test_an_answer_made_in_the_background_costs_what_was_set_aside(status: str) -> None:
    raw = orjson.dumps(ANSWER | {"status": status, "output": [], "usage": None})
    assert parse_responses_answer(raw, CALL) == Usage(PROMPT, CALL.max_output_tokens, 0, "estimate")


@table_rows(
    "raw",
    [b"", b"<html>", b"[]", b"{}", b'{"object":"chat.completion","choices":[]}', b'{"error":{"message":"x"}}', b"\xff"],
)
def test_what_is_no_response_is_the_providers_fault(raw: bytes) -> None:
    with pytest.raises(ProviderBadResponse):
        parse_responses_answer(raw, CALL)


def test_a_response_that_failed_is_a_fault_that_tells_no_secret() -> None:
    raw = orjson.dumps(ANSWER | {"status": "failed", "error": BROKEN, "output": []})
    with pytest.raises(ProviderBadResponse) as caught:
        parse_responses_answer(raw, CALL, (SECRET,))
    assert "broke at [address] with [masked]" in caught.value.message
    assert caught.value.phase == "answer"


@given(JSON | st.dictionaries(NAMES, JSON))
def test_any_json_answer_is_read_or_the_providers_fault(value: Any) -> None:
    try:
        usage = parse_responses_answer(orjson.dumps(value), CALL)
    except ProviderError:
        return
    assert min(attrs.astuple(usage)[:3]) >= 0


@given(*[st.integers(0, MAX_TOKENS)] * 4)
def test_what_came_from_a_cache_and_what_went_into_one_are_parts_of_the_prompt(
    prompt: int, completion: int, cached: int, written: int
) -> None:
    details = {"cached_tokens": cached, "cache_write_tokens": written}
    usage = parse_usage_object({"input_tokens": prompt, "output_tokens": completion, "input_tokens_details": details})
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.source) == (prompt, completion, "upstream")
    assert usage.cached_tokens == min(cached, prompt)
    assert usage.written_tokens == min(written, prompt - usage.cached_tokens)


@table_rows(
    "raw",
    [
        None,
        [],
        {},
        {"input_tokens": 5},
        {"output_tokens": 5},
        {"input_tokens": 5, "output_tokens": 1.5},
        {"input_tokens": True, "output_tokens": 5},
        {"input_tokens": 5, "output_tokens": MAX_TOKENS + 1},
    ],
)
def test_usage_that_cannot_be_believed_is_none(raw: object) -> None:
    assert parse_usage_object(raw) is None
