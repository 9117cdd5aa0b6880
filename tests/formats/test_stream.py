"""A stream between two languages: what may leave, how it ends, and what it used."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.token_estimate import estimate_text
from gateway.domain.usage import Usage
from gateway.errors import ProviderBadResponse
from gateway.formats.chat.model import (
    STREAM_END,
    ChoiceFinished,
    Event,
    ImageOutput,
    MessageStart,
    ReasoningDelta,
    ReasoningSignature,
    RedactedReasoning,
    RefusalDelta,
    StreamEnd,
    StreamError,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    UsageReport,
)
from gateway.formats.stream import (
    PassthroughStream,
    StreamTransform,
    TranslatingStream,
    UsageCounter,
    parse_events_usage,
)
from tests.support.format_calls import call_of
from tests.support.table_rows import table_rows

PROMPT = estimate_text("a" * 40)
BROKE = ProviderBadResponse("it broke", phase="stream")
ANSWERED = Usage(10, 20, 0, "upstream")


class LetterReader:
    """Reads one letter as one event; a dot ends, a bang is a fault, a question mark one that is raised at the end."""

    held_bytes = 0
    noise = 0

    def __init__(self, *, whole_without_mark: bool = False) -> None:
        self._whole = whole_without_mark
        self._doubtful = False

    def feed(self, data: bytes) -> list[Event]:
        return [event for letter in data.decode() for event in self._read(letter)]

    def _read(self, letter: str) -> list[Event]:
        match letter:
            case ".":
                return [STREAM_END]
            case "!":
                return [StreamError(BROKE)]
            case "?":
                self._doubtful = True
                return []
            case "(":
                return [MessageStart("id", "m", usage=Usage(3, 1, 0, "upstream"))]
            case "#":
                return [UsageReport(ANSWERED)]
        return [TextDelta(letter)]

    def finish(self) -> list[Event]:
        if self._doubtful:
            return [TextDelta("last"), StreamError(BROKE)]
        if self._whole:
            return [ChoiceFinished("stop"), STREAM_END]
        raise ProviderBadResponse("cut short", phase="stream")


class UpperCaseWriter:
    """Writes words in capitals; an end is a full stop, and a beginning nothing."""

    def __init__(self) -> None:
        self.seen: list[Event] = []

    def write(self, event: Event) -> bytes:
        self.seen.append(event)
        match event:
            case TextDelta():
                return event.text.upper().encode()
            case StreamEnd():
                return b".\n"
        return b""


def open_transform(*, whole_without_mark: bool = False) -> tuple[TranslatingStream, UpperCaseWriter]:
    writer = UpperCaseWriter()
    return TranslatingStream(LetterReader(whole_without_mark=whole_without_mark), writer, call_of(40)), writer


def test_a_translation_is_a_gate() -> None:
    transform: StreamTransform = open_transform()[0]
    assert (transform.events, transform.ended, transform.closed, transform.error) == (0, False, False, None)


def test_what_is_read_in_one_language_leaves_in_the_other() -> None:
    transform, _ = open_transform()
    assert transform.feed(b"ab") + transform.feed(b"") + transform.feed(b"c.") == b"ABC.\n"
    assert (transform.events, transform.ended, transform.closed, transform.finish()) == (3, True, True, b"")


@given(st.lists(st.integers(0, 9), max_size=5), st.sampled_from(["(abc#.xyz", "ab!cd", "abc", "", "a?"]))
def test_however_it_is_cut_the_same_leaves(marks: list[int], text: str) -> None:
    places = sorted({min(mark, len(text)) for mark in marks})
    pieces = [text[start:end].encode() for start, end in itertools.pairwise([0, *places, len(text)])]
    (whole, _), (cut, _) = open_transform(), open_transform()
    assert whole.feed(text.encode()) == b"".join(map(cut.feed, pieces))
    assert (whole.events, whole.ended, whole.error) == (cut.events, cut.ended, cut.error)
    assert whole.parse_usage() == cut.parse_usage()


def test_nothing_follows_the_end_mark() -> None:
    transform, writer = open_transform()
    assert transform.feed(b"a.bc!") == b"A.\n"
    assert transform.feed(b"more") == b""
    assert (transform.finish(), transform.error, len(writer.seen)) == (b"", None, 2)


def test_nothing_follows_a_fault_and_it_is_not_written() -> None:
    transform, writer = open_transform()
    assert transform.feed(b"a!b.") == b"A"
    assert transform.feed(b"more.") == b""
    assert (transform.error, transform.ended, transform.closed, writer.seen) == (BROKE, False, True, [TextDelta("a")])


def test_a_fault_is_what_its_end_raises_whatever_the_reader_says_then() -> None:
    transform, _ = open_transform()
    transform.feed(b"a!")
    with pytest.raises(ProviderBadResponse) as caught:
        transform.finish()
    assert caught.value is BROKE


def test_what_cannot_be_written_any_more_is_a_fault() -> None:
    class Full(UpperCaseWriter):
        def write(self, event: Event) -> bytes:
            if event == TextDelta("x"):
                raise BROKE
            return super().write(event)

    transform = TranslatingStream(LetterReader(), Full(), call_of(0))
    assert transform.feed(b"abxc") == b"AB"
    assert transform.feed(b"d") == b""
    assert transform.error is BROKE
    with pytest.raises(ProviderBadResponse):
        transform.finish()


def test_a_stream_that_was_cut_is_a_fault() -> None:
    transform, _ = open_transform()
    transform.feed(b"ab")
    with pytest.raises(ProviderBadResponse, match="cut short"):
        transform.finish()


def test_a_fault_that_shows_at_the_end_is_raised() -> None:
    transform, _ = open_transform()
    transform.feed(b"a?")
    with pytest.raises(ProviderBadResponse) as caught:
        transform.finish()
    assert caught.value is transform.error is BROKE


def test_a_language_without_an_end_mark_gets_the_callers() -> None:
    transform, writer = open_transform(whole_without_mark=True)
    assert transform.feed(b"ab") + transform.finish() + transform.finish() == b"AB.\n"
    assert writer.seen[-2:] == [ChoiceFinished("stop"), STREAM_END]


def test_a_reader_that_ends_without_an_end_is_not_believed() -> None:
    class SilentReader(LetterReader):
        def finish(self) -> list[Event]:
            return []

    transform = TranslatingStream(SilentReader(), UpperCaseWriter(), call_of(0))
    transform.feed(b"a")
    with pytest.raises(ProviderBadResponse, match="before it was complete"):
        transform.finish()


def test_a_beginning_is_no_answer_yet() -> None:
    transform, _ = open_transform()
    transform.feed(b"(#")
    assert (transform.events, transform.closed) == (0, False)
    transform.feed(b"a")
    assert transform.events == 1


# What it used


def measure(*events: Event) -> Usage:
    return parse_events_usage(events, call_of(40))


@table_rows(
    ("text", "usage"),
    [
        ("(abc#.", ANSWERED),
        ("#abc", ANSWERED),
        ("(abcde", Usage(3, 2, 0, "estimate")),
        ("abcde", Usage(PROMPT, 2, 0, "estimate")),
        ("(", Usage()),
        ("", Usage()),
        ("(!", Usage()),
        ("(abcd!", Usage(3, 2, 0, "estimate")),
        ("abcd!#", Usage(PROMPT, 2, 0, "estimate")),
        ("abcd.#", Usage(PROMPT, 2, 0, "estimate")),
    ],
)
def test_usage_is_the_providers_word_else_an_estimate_of_what_passed(text: str, usage: Usage) -> None:
    transform, _ = open_transform()
    transform.feed(text.encode())
    assert transform.parse_usage() == usage


def test_a_later_count_replaces_an_earlier() -> None:
    assert (
        measure(UsageReport(Usage(1, 1, 0, "upstream")), TextDelta("a"), UsageReport(ANSWERED), STREAM_END) == ANSWERED
    )


@table_rows(
    ("event", "text"),
    [
        (TextDelta("12345678"), "12345678"),
        (ReasoningDelta("12345678"), "12345678"),
        (RefusalDelta("12345678"), "12345678"),
        (ToolCallDelta(0, "12345678"), "12345678"),
        (ToolCallStart(0, "id", "name"), ""),
        (ReasoningSignature("sealed"), ""),
        (RedactedReasoning("sealed"), ""),
        (ImageOutput("image/png", "AAAA"), ""),
        (ChoiceFinished("stop"), ""),
    ],
)
def test_everything_that_is_said_counts(event: Event, text: str) -> None:
    meter = UsageCounter()
    meter.count_event(event)
    assert meter.events == 1
    assert meter.parse_usage(call_of(40)) == Usage(PROMPT, estimate_text(text), 0, "estimate")


def test_of_a_long_stream_the_last_that_was_said_stands_for_all() -> None:
    meter = UsageCounter()
    for _ in range(5_000):
        meter.count_event(TextDelta("我是一种"))
    usage = meter.parse_usage(call_of(40))
    assert usage.completion_tokens == pytest.approx(5_000 * estimate_text("我是一种" * 50) / 50, rel=0.05)


def test_large_texts_of_a_stream_are_counted_beside_the_sample() -> None:
    meter, large = UsageCounter(), "word " * 20_000
    for text in [large, *["word "] * 200, large]:
        meter.count_event(ToolCallDelta(0, text) if text is large else TextDelta(text))
    usage = meter.parse_usage(call_of(40))
    assert usage.completion_tokens == pytest.approx(estimate_text("word " * 40_200), rel=0.05)


def test_what_is_estimated_keeps_what_was_counted_at_the_beginning() -> None:
    begun = Usage(100, 1, 30, "upstream", written_tokens=20, written_long_tokens=5)
    usage = measure(MessageStart("id", "m", usage=begun), TextDelta("12345678"))
    assert usage == Usage(100, estimate_text("12345678"), 30, "estimate", written_tokens=20, written_long_tokens=5)


def test_a_fault_and_an_end_are_not_counted() -> None:
    assert measure(STREAM_END, StreamError(BROKE)) == Usage()


# A gate of the same language


class Lines(PassthroughStream):
    """Lets every event through but those that say 0, ends at one that says 200, and fails at one that says 500."""

    def feed(self, data: bytes) -> bytes:
        return self._feed_by_event(data)

    def _filter_event(self, event: bytes, payload: bytes) -> bytes:
        if payload == b"500":
            self.error = BROKE
            return b""
        self.ended = payload == b"200"
        self.events += not self.ended
        return b"" if payload == b"0" else event


PASSED = b"\xef\xbb\xbfdata: 1\n\n: a comment\n\ndata: 0\r\n\r\ndata: 2\n\ndata: 200\n\ndata: 3\n\n"


@given(st.lists(st.integers(0, len(PASSED)), max_size=8))
def test_whole_events_pass_as_they_came_up_to_the_end(marks: list[int]) -> None:
    transform = Lines(())
    places = sorted(set(marks))
    pieces = [PASSED[start:end] for start, end in itertools.pairwise([0, *places, len(PASSED)])]
    assert b"".join(map(transform.feed, pieces)) == b"data: 1\n\n: a comment\n\ndata: 2\n\ndata: 200\n\n"
    assert (transform.events, transform.ended, transform.closed, transform.error) == (3, True, True, None)


def test_of_an_event_that_has_not_ended_nothing_leaves() -> None:
    transform = Lines(())
    assert transform.feed(b"data: 1\n\ndata: 2") == b"data: 1\n\n"
    assert transform.feed(b"\n\n") == b"data: 2\n\n"


def test_nothing_passes_after_a_fault() -> None:
    transform = Lines(())
    assert transform.feed(b"data: 1\n\ndata: 500\n\ndata: 2\n\n") == b"data: 1\n\n"
    assert (transform.feed(b"data: 3\n\n"), transform.error, transform.closed) == (b"", BROKE, True)


def test_an_event_without_an_end_is_a_fault() -> None:
    transform, out = Lines(()), b""
    for _ in range(100):
        out += transform.feed(b"data: " + b"a" * 1_000_000)
        if transform.error:
            break
    assert (out, transform.closed) == (b"", True)
    assert transform.error is not None
    assert "without an end" in transform.error.message
