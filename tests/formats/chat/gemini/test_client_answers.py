"""Answers for Gemini's clients: built from events, and passed on from Gemini itself."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.usage import Usage
from gateway.errors import ProviderBadResponse, ProviderError
from gateway.formats.chat import model as chat
from gateway.formats.chat.gemini.passthrough import GenerateContentPassthrough, build_whole, parse_passed_answer
from gateway.formats.chat.gemini.request import parse_generate_inference
from gateway.formats.chat.gemini.response import GenerateContentParser, parse_answer
from gateway.formats.chat.gemini.response_writer import GenerateContentSerializer, build_answer
from gateway.formats.chat.gemini.signatures import parse_foreign
from gateway.formats.wire import sse
from tests.support import gemini_cassettes as gemini
from tests.support.table_rows import table_rows

ASK: dict[str, Any] = {"contents": [{"parts": [{"text": "Hi"}]}]}
CALL = parse_generate_inference(ASK, model="m", stream=True)
BEGUN = chat.MessageStart("theirs", "their-model")
USED = chat.UsageReport(Usage(20, 9, 4, "upstream", reasoning_tokens=3), 3)
CALLED = (
    chat.ToolCallStart(0, "c0", "f"),
    chat.ToolCallStart(1, "c1", "g", signature="R2VtaW5p"),
    chat.ToolCallDelta(1, '{"a":'),
    chat.ToolCallDelta(0, '{"b": 2}'),
    chat.ToolCallDelta(1, " 1}"),
)


def write(*events: chat.Event) -> list[Any]:
    """The chunks of a stream."""
    writer = GenerateContentSerializer("m", "id")
    raw = b"".join(map(writer.write, (BEGUN, *events, chat.STREAM_END)))
    return [orjson.loads(sse.parse_data(event) or b"") for event in sse.SseSplitter().split(raw)]


def build(*events: chat.Event) -> Any:
    return orjson.loads(build_answer((BEGUN, *events, chat.STREAM_END), model="m", answer_id="id"))


def finish(reason: chat.Reason) -> chat.ChoiceFinished:
    return chat.ChoiceFinished(reason)


def test_a_stream_ends_with_its_calls_its_reason_and_its_usage() -> None:
    *chunks, last = write(chat.ReasoningDelta("hm"), chat.TextDelta("Look"), *CALLED, finish("tool_calls"), USED)
    assert [one["candidates"][0]["content"]["parts"] for one in chunks] == [
        [{"text": "hm", "thought": True}],
        [{"text": "Look"}],
    ]
    assert last == {
        "candidates": [
            {
                "content": {
                    "parts": [
                        {"functionCall": {"id": "c0", "name": "f", "args": {"b": 2}}},
                        {"functionCall": {"id": "c1", "name": "g", "args": {"a": 1}}, "thoughtSignature": "R2VtaW5p"},
                    ],
                    "role": "model",
                },
                "index": 0,
                "finishReason": "STOP",
            }
        ],
        "usageMetadata": {
            "promptTokenCount": 20,
            "candidatesTokenCount": 6,
            "thoughtsTokenCount": 3,
            "cachedContentTokenCount": 4,
            "totalTokenCount": 29,
        },
        "modelVersion": "m",
        "responseId": "id",
    }


def test_a_whole_answer_joins_what_a_stream_says_in_pieces() -> None:
    answer = build(
        chat.ReasoningDelta("I "),
        chat.ReasoningDelta("think"),
        chat.ReasoningSignature("signed"),
        chat.RedactedReasoning("secret"),
        chat.TextDelta("Hel"),
        chat.TextDelta("lo"),
        chat.ImageOutput("image/png", "aGk="),
        chat.TextDelta("!"),
        finish("stop"),
    )
    thought, redacted, *rest = answer["candidates"][0]["content"]["parts"]
    assert (thought["text"], thought["thought"]) == ("I think", True)
    assert parse_foreign(thought["thoughtSignature"]) == ("signed", None)
    assert parse_foreign(redacted["thoughtSignature"]) == (None, "secret")
    assert rest == [{"text": "Hello"}, {"inlineData": {"mimeType": "image/png", "data": "aGk="}}, {"text": "!"}]
    assert answer.get("usageMetadata") is None


@table_rows(
    ("reason", "expected"),
    [("stop", "STOP"), ("length", "MAX_TOKENS"), ("tool_calls", "STOP"), ("content_filter", "SAFETY")],
)
def test_why_an_answer_ended(reason: chat.Reason, expected: str) -> None:
    for answer in (build(finish(reason)), write(finish(reason))[-1]):
        (candidate,) = answer["candidates"]
        assert (candidate["finishReason"], candidate["content"]["parts"]) == (expected, [{"text": ""}])


@table_rows(("reason", "expected"), [("tool_calls", "MALFORMED_FUNCTION_CALL"), ("length", "MAX_TOKENS")])
@table_rows("arguments", ["{", "[1]", '"x"'])
def test_a_call_whose_arguments_are_no_object_is_left_out(reason: chat.Reason, expected: str, arguments: str) -> None:
    calls = (chat.ToolCallStart(0, "c0", "f"), chat.ToolCallDelta(0, arguments), chat.ToolCallStart(1, "c1", "g"))
    for answer in (build(*calls, finish(reason)), write(*calls, finish(reason))[-1]):
        (candidate,) = answer["candidates"]
        assert candidate["finishReason"] == expected
        assert ("finishMessage" in candidate) == (reason != "length")
        assert [part["functionCall"]["name"] for part in candidate["content"]["parts"]] == ["g"]


def test_calls_that_never_end_are_not_kept_for_ever() -> None:
    writer = GenerateContentSerializer("m", "id")
    pieces: list[chat.Event] = [chat.ToolCallStart(0, "c", "f"), *[chat.ToolCallDelta(0, "a" * 1024 * 1024)] * 20]
    with pytest.raises(ProviderBadResponse):
        b"".join(map(writer.write, pieces))


PIECES = st.one_of(
    st.builds(chat.TextDelta, st.text(max_size=5), st.integers(0, 1)),
    st.builds(chat.ReasoningDelta, st.text(max_size=5), st.integers(0, 1)),
    st.builds(chat.ImageOutput, st.just("image/png"), st.just("aGk="), st.integers(0, 1)),
    st.builds(chat.ToolCallStart, st.integers(0, 3), st.just("c"), st.sampled_from("fg"), st.integers(0, 1)),
    st.builds(chat.ToolCallDelta, st.integers(0, 3), st.sampled_from(["", "{}", '{"a": 1}', "{"]), st.integers(0, 1)),
)


def sum_up(events: list[chat.Event]) -> dict[int, Any]:
    """What each answer says, however it is cut."""
    found: dict[int, Any] = {}
    for one in events:
        place = found.setdefault(getattr(one, "choice", -1), {"text": "", "thought": "", "calls": [], "images": 0})
        match one:
            case chat.TextDelta():
                place["text"] += one.text
            case chat.ReasoningDelta():
                place["thought"] += one.text
            case chat.ToolCallStart():
                place["calls"].append(one.name)
            case chat.ToolCallDelta():
                place["calls"].append(orjson.loads(one.arguments))
            case chat.ImageOutput():
                place["images"] += 1
            case chat.ChoiceFinished():
                place["reason"] = one.reason
    return found


@given(st.lists(PIECES, max_size=8))
def test_a_stream_and_a_whole_answer_say_the_same(pieces: list[chat.Event]) -> None:
    events = [BEGUN, *pieces, finish("stop"), chat.ChoiceFinished("stop", 1), USED, chat.STREAM_END]
    writer = GenerateContentSerializer("m", "id")
    stream = b"".join(map(writer.write, events))
    whole = build_answer(events, model="m", answer_id="id")
    parser = GenerateContentParser("id", "m")
    try:
        read = parser.feed(stream) + parser.finish()
        if isinstance(read[-1], chat.StreamError):
            raise read[-1].error
    except ProviderError:
        with pytest.raises(ProviderError):
            parse_answer(whole, answer_id="id", model="m")
        return
    assert sum_up(read) == sum_up(parse_answer(whole, answer_id="id", model="m"))


# From Gemini itself.


def play(raw: bytes, step: int) -> tuple[list[bytes], Usage]:
    transform = GenerateContentPassthrough(CALL)
    out = [transform.feed(raw[at : at + step]) for at in range(0, len(raw), step)]
    return [*out, transform.finish()], transform.parse_usage()


@table_rows("name", ["text", "thinking", "tools", "two", "picture", "stop in every chunk", "blocked"])
def test_a_passed_stream_is_byte_for_byte_the_providers_and_its_end_waits(name: str) -> None:
    raw = gemini.STREAMS[name]
    for step in (1, 100, len(raw)):
        out, usage = play(raw, step)
        assert b"".join(out) == raw
        assert out[-1], "the request is settled before the client has all of it"
        assert usage.source == "upstream"


def test_a_stream_without_a_blank_line_at_its_end_gets_one() -> None:
    raw = gemini.STREAMS["no blank line at the end"]
    out, _ = play(raw, 7)
    assert b"".join(out).rstrip() == raw.rstrip()
    assert b"".join(out).endswith(b"\n\n")


@table_rows("name", ["cut", "error event", "bare error", "not JSON"])
def test_a_broken_stream_is_an_error(name: str) -> None:
    for step in (1, 1_000_000):
        raw, transform = gemini.STREAMS[name], GenerateContentPassthrough(CALL)
        out = b"".join(transform.feed(raw[at : at + step]) for at in range(0, len(raw), step))
        with pytest.raises(ProviderError):
            transform.finish()
        assert b"error" not in out


def test_a_stream_that_breaks_off_is_estimated_from_what_it_said() -> None:
    transform = GenerateContentPassthrough(CALL)
    for _ in range(50):
        transform.feed(gemini.stream(gemini.chunk({"text": "some words"}, used=gemini.usage(11))))
    usage = transform.parse_usage()
    assert (usage.prompt_tokens, usage.source) == (11, "estimate")
    assert 50 <= usage.completion_tokens <= 500


@table_rows("raw", [b"{}", b"[]", b'{"candidates": []}', b'{"candidates": 1}', b'{"promptFeedback": {}}'])
def test_what_says_nothing_is_no_answer(raw: bytes) -> None:
    with pytest.raises(ProviderBadResponse):
        parse_passed_answer(raw, CALL)
    with pytest.raises(ProviderBadResponse):
        build_whole(raw, CALL)


def test_a_blocked_prompt_is_an_answer_and_so_is_one_without_counts() -> None:
    assert parse_passed_answer(orjson.dumps(gemini.BLOCKED), CALL) == Usage(8, 0, 0, "upstream")
    bare = orjson.dumps({"candidates": [{"content": {"parts": [{"text": "some words"}]}, "finishReason": "STOP"}]})
    usage = parse_passed_answer(bare, CALL)
    assert usage.source == "estimate"
    assert min(usage.prompt_tokens, usage.completion_tokens) > 0
