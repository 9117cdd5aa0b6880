"""The gate of Anthropic's stream: what of a provider's bytes may leave."""

import itertools
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.token_estimate import estimate_text
from gateway.domain.usage import Usage
from gateway.errors import ProviderBadResponse
from gateway.formats.chat.anthropic.passthrough import MessagesPassthrough
from gateway.formats.chat.anthropic.stream import STOP_EVENT
from gateway.formats.chat.model import UsageReport
from gateway.formats.wire import sse
from tests.support import anthropic_cassettes as tape
from tests.support.table_rows import table_rows

CALL = InferenceRequest(
    "messages", "m", {"messages": [{"role": "user", "content": "a" * 400}]}, stream=True, max_prompt_tokens=400
)
PROMPT = estimate_text("a" * 400)
EVENTS = st.sampled_from(
    [
        tape.PING,
        tape.begin("msg_1"),
        tape.start(0, "text", text=""),
        tape.text(0, "a"),
        tape.text(0, 'an "error", event: error\n\nevent: content_block_stop and "message_stop" in a text'),
        tape.text(0, "日本語 \u2028"),
        tape.text(0, "a") + tape.text(0, "b") + tape.stop(0),
        tape.stop(0),
        tape.finish("end_turn", output_tokens=3),
        tape.event("of_tomorrow", error={"message": "x"}),
        b'data: {"type": "content_block_delta", "delta": {"text": "x"}}\n\n',
        b'data: { "type": "content_block_delta" }\n\n',
        b'event: content_block_delta\ndata: {"a":\ndata: 1}\n\n',
        b'data: {"type":"content_block_delta"}\nevent: content_block_delta\n\n',
        b": comment\n\n",
        b"event: ping\n\n",
        b"data:\n\n",
        b"data: [1]\n\n",
    ]
)
LOOSE = EVENTS | st.just(b"\n")
CUTS = st.lists(st.integers(0, 4000), max_size=8)
ENDS = pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])


def streams(events: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Whole, broken and overlong streams made of ``events``."""
    return st.builds(
        lambda bom, events, ends: bom + b"".join(events) + b"".join(ends),
        st.sampled_from([b"", sse.BOM]),
        st.lists(events, max_size=6),
        st.sampled_from(
            [[], [tape.STOP], [tape.STOP, tape.STOP], [tape.STOP, tape.text(0, "late")], [tape.OVERLOADED],
             [tape.OVERLOADED, tape.STOP], [b'data: {"type']],
        ),
    )  # fmt: skip


def cut(data: bytes, marks: list[int]) -> list[bytes]:
    places = sorted({mark % (len(data) + 1) for mark in marks})
    return [data[start:end] for start, end in itertools.pairwise([0, *places, len(data)])]


def run(data: bytes, marks: list[int] | None = None) -> tuple[bytes, MessagesPassthrough]:
    transform = MessagesPassthrough(CALL)
    return b"".join([transform.feed(piece) for piece in cut(data, marks or [])]), transform


def by_the_byte(data: bytes) -> tuple[bytes, MessagesPassthrough]:
    return run(data, list(range(len(data))))


def state(transform: MessagesPassthrough) -> tuple[object, ...]:
    return transform.events, transform.ended, transform.error is None, transform.closed


@table_rows("name", tape.ANSWERED)
def test_a_stream_leaves_byte_for_byte(name: str) -> None:
    raw = tape.ANSWERED[name][0]
    for out, transform in (run(raw), by_the_byte(raw)):
        assert out == raw
        assert transform.ended
        assert transform.finish() == b""


@ENDS
@given(data=streams(EVENTS), marks=CUTS)
def test_the_same_bytes_leave_at_any_cut(end: bytes, data: bytes, marks: list[int]) -> None:
    data = data.replace(b"\n", end)
    whole, transform = run(data)
    pieces, other = run(data, marks)
    assert pieces == whole
    assert state(transform) == state(other)
    assert transform.parse_usage() == other.parse_usage()


@given(data=st.lists(LOOSE, max_size=6).map(b"".join), marks=CUTS)
def test_whole_events_leave_byte_for_byte(data: bytes, marks: list[int]) -> None:
    out, transform = run(data + tape.STOP, marks)
    assert out == data + tape.STOP
    assert transform.ended


@table_rows(
    ("bad", "why"),
    [
        (b"event: content_block_delta\ndata: garbage\n\n", "not JSON"),
        (tape.text(0, "b")[:-4] + b"\n\n", "not JSON"),
        (tape.text(0, "HERE").replace(b"HERE", b"\xe4\xb8"), "not UTF-8"),
    ],
)
def test_an_event_that_is_no_json_or_no_text_is_a_fault_and_does_not_leave(bad: bytes, why: str) -> None:
    first = tape.begin("msg_1") + tape.start(0, "text", text="") + tape.text(0, "a")
    for out, transform in (run(first + bad + first), by_the_byte(first + bad + first), run(first + bad, [len(first)])):
        assert out == first
        assert transform.error is not None
        assert why in transform.error.message


@given(data=st.lists(LOOSE, max_size=6).map(b"".join), marks=CUTS)
def test_an_event_that_has_not_ended_is_held(data: bytes, marks: list[int]) -> None:
    out, transform = run(data + b"event: content_block_delta\n", marks)
    assert data.startswith(out)
    assert not data.removeprefix(out).strip(b"\n")  # a blank line alone ends nothing
    assert not transform.closed


@table_rows("late", [tape.STOP, tape.text(0, "late"), tape.OVERLOADED, tape.PING, b"garbage", b"\n"])
def test_nothing_leaves_after_the_end_mark(late: bytes) -> None:
    for out, transform in (
        run(tape.STOP + late),
        by_the_byte(tape.STOP + late),
        run(tape.STOP + late, [len(tape.STOP)]),
    ):
        assert out == tape.STOP
        assert transform.ended
        assert transform.error is None


@table_rows(
    "error",
    [
        tape.OVERLOADED,
        tape.event("error", error={"type": "api_error", "message": "no"}),
        b'data: {"type":"error","error":{"message":"no"}}\n\n',
        b'data: {"error":"no"}\n\n',
        b"event: error\ndata: no\n\n",
        b"event: content_block_delta\nevent: error\ndata: {}\n\n",
        b'event: content_block_delta\ndata: {"type":"error","error":{}}\n\n',
    ],
)
def test_an_error_event_is_a_fault_and_does_not_leave(error: bytes) -> None:
    first = tape.begin("m") + tape.start(0, "text", text="") + tape.text(0, "a")
    for out, transform in (
        run(first + error),
        by_the_byte(first + error + tape.STOP),
        run(first + error, [len(first)]),
    ):
        assert out == first
        assert isinstance(transform.error, ProviderBadResponse)
        assert transform.error.phase == "stream"
        assert transform.closed
        assert not transform.ended
        with pytest.raises(ProviderBadResponse) as caught:
            transform.finish()
        assert caught.value is transform.error


def test_an_end_mark_under_another_name_ends_the_stream() -> None:
    transform = MessagesPassthrough(CALL)
    mark = b'event: content_block_stop\ndata: {"type":"message_stop"}\n\n'
    assert transform.feed(mark) == mark
    assert transform.ended


def test_a_name_that_follows_its_data_waits_with_it() -> None:
    transform = MessagesPassthrough(CALL)
    assert transform.feed(b'data: {"type":"message_stop"}\n') == b""
    assert transform.feed(b"event: content_block_stop\n\n") != b""
    assert transform.ended


def test_an_error_beside_content_in_one_piece_does_not_leave() -> None:
    transform = MessagesPassthrough(CALL)
    transform.feed(tape.begin("m"))
    assert transform.feed(tape.text(0, "a") + tape.OVERLOADED) == tape.text(0, "a")
    assert transform.error is not None


def test_the_fault_of_an_error_event_tells_no_address_and_no_key() -> None:
    transform = MessagesPassthrough(CALL, ["hunter-of-keys"])
    transform.feed(tape.event("error", error={"message": "at https://10.0.0.1/x for hunter-of-keys"}))
    assert transform.error is not None
    assert "10.0.0.1" not in transform.error.message
    assert "hunter" not in transform.error.message


def test_an_event_without_an_end_is_a_fault() -> None:
    transform = MessagesPassthrough(CALL)
    piece = b"x" * (1024 * 1024)
    for _ in range(sse.MAX_EVENT_BYTES // len(piece) + 1):
        assert transform.feed(piece) == b""
    assert transform.error is not None


@table_rows(
    ("data", "events"),
    [
        (tape.begin("m") + tape.PING, 0),
        (tape.begin("m") + tape.PING + tape.STOP, 0),
        (tape.begin("m") + tape.start(0, "text", text=""), 1),
        (tape.words("a", "b"), 4),
        (tape.words("a", "b") + tape.finish("end_turn", output_tokens=1) + tape.STOP, 5),
        (tape.OVERLOADED, 0),
        (b": x\n\nevent: ping\n\n", 0),
        (tape.event("of_tomorrow"), 1),
    ],
)
def test_events_are_counted_once_there_is_something_of_an_answer(data: bytes, events: int) -> None:
    assert run(data)[1].events == by_the_byte(data)[1].events == events


@table_rows("rest", [b"", b"\n", STOP_EVENT[:-1], STOP_EVENT[:-2], STOP_EVENT[:-3]])
@table_rows("name", tape.ANSWERED)
def test_a_stream_that_lacks_only_its_end_mark_gets_it(name: str, rest: bytes) -> None:
    raw = tape.ANSWERED[name][0].removesuffix(tape.STOP)
    if rest == STOP_EVENT[:-3]:
        rest = STOP_EVENT.removesuffix(b"\n\n")
    out, transform = run(raw + rest)
    assert (out + transform.finish()).replace(b"\n\n\n", b"\n\n") == raw + STOP_EVENT
    assert transform.ended
    assert transform.finish() == b""


@given(st.sampled_from([raw for raw, _ in tape.ANSWERED.values()]), st.integers(0, 5000))
def test_a_stream_that_is_cut_before_is_a_fault(raw: bytes, place: int) -> None:
    raw = raw.removesuffix(tape.STOP)
    raw = raw[: place % len(raw)]
    transform = run(raw)[1]
    with pytest.raises(ProviderBadResponse) as caught:
        transform.finish()
    assert caught.value.phase == "stream"


@table_rows(
    "data",
    [
        tape.start(0, "text", text="") + tape.finish("end_turn", output_tokens=1),
        tape.words("a") + tape.finish(None, output_tokens=1),
        tape.words("a") + tape.event("message_delta", delta="end_turn"),
        tape.words("a"),
        tape.words("a") + tape.finish("end_turn", output_tokens=1) + b"event: err",
    ],
)
def test_a_stream_without_a_reason_or_inside_a_block_was_cut(data: bytes) -> None:
    with pytest.raises(ProviderBadResponse):
        run(data)[1].finish()


@table_rows("name", tape.ANSWERED)
def test_the_providers_word_on_usage_wins(name: str) -> None:
    raw, events = tape.ANSWERED[name]
    (used,) = [event.usage for event in events if isinstance(event, UsageReport)]
    assert run(raw)[1].parse_usage() == by_the_byte(raw)[1].parse_usage() == used


def test_a_stream_that_was_cut_counts_the_prompt_from_the_beginning_and_its_text() -> None:
    raw = tape.begin("m", {"input_tokens": 7, "cache_read_input_tokens": 3, "output_tokens": 1})
    raw += tape.start(0, "thinking", thinking="") + tape.change(0, "thinking_delta", thinking="1234") + tape.stop(0)
    raw += tape.start(1, "tool_use", id="t", name="x", input={"a": 1}) + tape.arguments(1, "12345")
    assert run(raw)[1].parse_usage() == Usage(10, estimate_text('1234{"a":1}12345'), 3, "estimate")
    assert by_the_byte(raw)[1].parse_usage() == Usage(10, estimate_text('1234{"a":1}12345'), 3, "estimate")


def test_without_any_count_the_prompt_is_estimated_too() -> None:
    raw = tape.begin("m", {}) + tape.words("abcdefgh") + tape.finish("end_turn") + tape.STOP
    assert run(raw)[1].parse_usage() == Usage(PROMPT, estimate_text("abcdefgh"), 0, "estimate")


def test_a_stream_of_nothing_costs_nothing() -> None:
    assert run(b"")[1].parse_usage() == Usage()
    assert run(tape.begin("m") + tape.PING + tape.OVERLOADED)[1].parse_usage() == Usage()


def test_a_long_stream_is_estimated_from_its_beginning_and_its_end() -> None:
    transform = MessagesPassthrough(CALL)
    transform.feed(tape.begin("m"))
    for _ in range(5000):
        transform.feed(tape.text(0, "abcd"))
    usage = transform.parse_usage()
    assert (usage.prompt_tokens, usage.source) == (25, "estimate")
    assert usage.completion_tokens == pytest.approx(5000 * estimate_text("abcd" * 50) / 50, rel=0.1)


KINDS = st.sampled_from(["error", "text_delta", "message_delta"])
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | KINDS,
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["type", "message", "usage", "delta", "text", "content_block", "input", "input_tokens", "error",
                         "output_tokens", "stop_reason", "cache_creation", "output_tokens_details"]),
        inner,
        max_size=4,
    ),
    max_leaves=15,
)  # fmt: skip
NAMES = st.sampled_from(
    [b"message_start", b"message_delta", b"message_stop", b"content_block_start", b"error", b"ping"]
)


@given(st.lists(st.tuples(NAMES, JSON | st.binary(max_size=30)), max_size=5))
def test_any_stream_passes_and_costs_something_sensible(answers: list[tuple[bytes, Any]]) -> None:
    data = b"".join(
        b"event: %b\ndata: %b\n\n" % (name, value if isinstance(value, bytes) else orjson.dumps(value))
        for name, value in answers
    )
    out, transform = run(data)
    assert data.startswith(out)
    usage = transform.parse_usage()
    assert min(attrs.astuple(attrs.evolve(usage, source="none"), filter=lambda field, _: field.type is int)) >= 0
    assert usage.cached_tokens + usage.written_tokens <= usage.prompt_tokens


def test_arguments_nested_too_deep_pass_and_cost_nothing_more() -> None:
    raw = tape.start(0, "tool_use", input={}).replace(b"{}", b'{"a":' + b"[" * 500 + b"]" * 500 + b"}")
    out, transform = run(tape.begin("m") + raw)
    assert out.endswith(raw)
    assert transform.parse_usage() == Usage(25, 0, 0, "estimate")
