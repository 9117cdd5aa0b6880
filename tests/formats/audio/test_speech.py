"""Speech: the call, its sound as bytes, and as events."""

import base64
import contextlib
import itertools
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.token_estimate import estimate_text
from gateway.domain.usage import MAX_CHARACTERS, Usage
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.audio.speech import (
    MAX_INPUT_CHARS,
    MEDIA_TYPES,
    SpeechEventsPassthrough,
    SpeechPassthrough,
    build_speech_body,
    find_media_type,
    is_events,
    is_sound_type,
    open_speech_transform,
    parse_speech_inference,
)
from gateway.formats.stream import StreamTransform
from gateway.formats.usage.token_bounds import MESSAGE_TOKENS
from tests.support.corrupt_json import spoilt
from tests.support.openai_audio import SPOKEN, speak
from tests.support.table_rows import table_rows

HELLO: dict[str, Any] = {"model": "m", "input": "Grüße aus Köln!", "voice": "alloy"}
FULL = HELLO | {"voice": {"id": "voice_1"}, "speed": 2, "response_format": "wav", "stream_format": "sse",
                "instructions": "calm", "odd": [1]}  # fmt: skip
SECRET = "hunter-22"
MINUTE = parse_speech_inference(HELLO | {"input": "a" * 900})
PROMPT = estimate_text("a" * 900)


def event(value: Any) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


DELTA = event({"type": "speech.audio.delta", "audio": base64.b64encode(bytes(99)).decode()})
END = event({"type": "speech.audio.done", "usage": SPOKEN})
ERROR = event({"error": {"message": f"broke at https://10.0.0.1/x with {SECRET}", "type": "server_error"}})


def test_a_call_has_what_its_text_may_come_to() -> None:
    inference = parse_speech_inference(HELLO)
    assert (inference.operation, inference.model, inference.stream, inference.body) == ("speech", "m", True, HELLO)
    assert (inference.characters, inference.prompt_chars, inference.max_prompt_tokens) == (15, 15, MESSAGE_TOKENS + 18)
    assert (inference.max_output_tokens, inference.sound_ms) == (36, 1_000)
    assert inference.need == Usage(26, 36, duration_ms=1_000, characters=15)


def test_instructions_are_a_part_of_the_prompt_and_speed_of_the_length() -> None:
    inference = parse_speech_inference(FULL)
    assert (inference.characters, inference.prompt_chars, inference.sound_ms, inference.max_output_tokens) == (
        15,
        19,
        500,
        36,
    )
    assert parse_speech_inference(HELLO | {"speed": 0.25}).max_output_tokens == 144


def test_the_longest_text_is_no_more_than_a_usage_may_say() -> None:
    inference = parse_speech_inference(HELLO | {"input": "字" * MAX_INPUT_CHARS, "speed": 0.25})
    assert inference.characters == MAX_INPUT_CHARS <= MAX_CHARACTERS


@table_rows(
    ("change", "param"),
    [
        ({"model": None}, "model"),
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": ["a"]}, "input"),
        ({"input": "a" * (MAX_INPUT_CHARS + 1)}, "input"),
        ({"voice": None}, "voice"),
        ({"voice": ""}, "voice"),
        ({"voice": 5}, "voice"),
        ({"voice": {}}, "voice.id"),
        ({"voice": {"id": 5}}, "voice.id"),
        ({"speed": 0.2}, "speed"),
        ({"speed": 4.1}, "speed"),
        ({"speed": "1"}, "speed"),
        ({"speed": True}, "speed"),
        ({"response_format": "ogg"}, "response_format"),
        ({"response_format": 5}, "response_format"),
        ({"stream_format": "ndjson"}, "stream_format"),
        ({"instructions": 5}, "instructions"),
    ],
)
def test_what_no_provider_takes_is_refused_by_name(change: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_speech_inference(HELLO | change)
    assert caught.value.param == param


@given(spoilt(FULL))
def test_any_body_is_a_call_or_refused(body: Any) -> None:
    if isinstance(body, dict):
        try:
            inference = parse_speech_inference(body)
        except InvalidRequest:
            return
        assert (inference.body, 0 < inference.characters <= MAX_INPUT_CHARS) == (body, True)


def test_the_body_is_sent_whole_under_the_providers_name_of_the_model() -> None:
    inference = parse_speech_inference(FULL)
    assert build_speech_body(inference, "tts-1") == FULL | {"model": "tts-1"}
    assert inference.body["model"] == "m"


@table_rows(("kind", "media_type"), list(MEDIA_TYPES.items()))
def test_every_format_has_its_type(kind: str, media_type: str) -> None:
    assert find_media_type(parse_speech_inference(HELLO | {"response_format": kind})) == media_type
    assert is_sound_type(media_type)


def test_without_a_format_it_is_mp3() -> None:
    assert find_media_type(parse_speech_inference(HELLO)) == "audio/mpeg"
    assert find_media_type(parse_speech_inference(HELLO | {"response_format": None})) == "audio/mpeg"


@table_rows(
    ("message", "sound"),
    [
        ("", True),
        ("Audio/MPEG", True),
        ("audio/wav; codecs=1", True),
        ("application/octet-stream", True),
        ("application/json", False),
        ("text/event-stream", False),
        ("text/html; x=audio/mpeg", False),
    ],
)
def test_what_may_be_sound(message: str, sound: bool) -> None:
    assert is_sound_type(message) is sound


def test_events_are_for_who_asks_for_them() -> None:
    assert is_events(parse_speech_inference(FULL))
    assert isinstance(open_speech_transform(parse_speech_inference(FULL), ()), SpeechEventsPassthrough)
    assert isinstance(open_speech_transform(MINUTE, ()), SpeechPassthrough)


def drain(transform: StreamTransform, pieces: list[bytes]) -> bytes:
    return b"".join([transform.feed(piece) for piece in pieces]) + transform.finish()


@given(st.lists(st.binary(max_size=9).filter(lambda piece: not piece.startswith(b"{")), min_size=1, max_size=9))
def test_sound_leaves_as_it_comes(pieces: list[bytes]) -> None:
    transform = SpeechPassthrough(MINUTE)
    if not any(pieces):
        with pytest.raises(ProviderBadResponse):
            drain(transform, pieces)
        return
    assert drain(transform, pieces) == b"".join(pieces)
    assert (transform.events, transform.ended, transform.error) == (sum(map(bool, pieces)), True, None)
    assert transform.feed(b"more") == b""


@table_rows(("kind", "ms"), [("wav", 2_000), ("pcm", 2_000), ("mp3", 2_007), ("opus", 60_000)])
def test_sound_is_charged_by_its_characters_and_estimated_by_its_length(kind: str, ms: int) -> None:
    transform = SpeechPassthrough(attrs.evolve(MINUTE, body=MINUTE.body | {"response_format": kind}))
    sound = speak(kind)
    drain(transform, [sound[:10], sound[10:]])
    tokens = -(-ms * 1_250 // 60_000)
    assert transform.parse_usage() == Usage(PROMPT, tokens, source="estimate", duration_ms=ms, characters=900)


@table_rows(("rate", "ms"), [(1, 48_000), (100, 48_000), (1_000, 48_000), (24_000, 2_000), (48_000, 1_000)])
def test_the_rate_in_a_header_is_believed_within_what_can_be(rate: int, ms: int) -> None:
    transform = SpeechPassthrough(MINUTE)
    drain(transform, [speak("wav")[:28] + rate.to_bytes(4, "little") + speak("wav")[32:][:48_012]])
    assert transform.parse_usage().duration_ms == ms


def test_no_sound_is_longer_than_its_text_can_last() -> None:
    transform = SpeechPassthrough(parse_speech_inference(HELLO))
    drain(transform, [speak("wav")[:28] + (1_000).to_bytes(4, "little") + bytes(100_012)])
    assert transform.parse_usage() == Usage(
        estimate_text(HELLO["input"]), 334, source="estimate", duration_ms=16_000, characters=15
    )


def test_where_nothing_came_nothing_was_used() -> None:
    transform = SpeechPassthrough(MINUTE)
    assert transform.feed(b"") == b""
    assert transform.parse_usage() == Usage()
    with pytest.raises(ProviderBadResponse, match="empty"):
        transform.finish()


def test_an_error_in_place_of_sound_is_told_without_what_it_must_not() -> None:
    transform = SpeechPassthrough(MINUTE, (SECRET,))
    assert transform.feed(ERROR.removeprefix(b"data: ")) == b""
    assert transform.closed
    with pytest.raises(ProviderBadResponse, match=r"broke at \[address\] with \[masked\]"):
        transform.finish()
    assert transform.parse_usage() == Usage()


def test_sound_that_begins_like_json_is_sound() -> None:
    assert drain(SpeechPassthrough(MINUTE), [b'{"', b"\0\1"]) == b'{"\0\1'


def cut(whole: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(whole) + 1) for place in places), len(whole)]
    return [whole[start:end] for start, end in itertools.pairwise(edges)]


@given(st.lists(st.integers(0, 2**20), max_size=6), st.sampled_from([b"", b"data: [DONE]\n\n", DELTA]))
def test_events_leave_as_they_lie_up_to_the_last_however_they_are_cut(places: list[int], rest: bytes) -> None:
    transform = SpeechEventsPassthrough(MINUTE)
    assert drain(transform, cut(DELTA + DELTA + END + rest, places)) == DELTA + DELTA + END
    assert (transform.events, transform.ended) == (2, True)
    assert transform.parse_usage() == Usage(6, 40, source="upstream", duration_ms=60_000, characters=900)


@table_rows("usage", [None, {}, {"input_tokens": -1, "output_tokens": 4}, {"input_tokens": 5}, "much"])
def test_a_usage_that_cannot_be_believed_is_estimated(usage: Any) -> None:
    transform = SpeechEventsPassthrough(MINUTE)
    drain(transform, [DELTA, event({"type": "speech.audio.done", "usage": usage})])
    assert transform.parse_usage() == Usage(PROMPT, 1_250, source="estimate", duration_ms=60_000, characters=900)


def test_the_other_end_mark_and_a_missing_blank_line_are_ends_too() -> None:
    assert drain(SpeechEventsPassthrough(MINUTE), [DELTA, b"data: [DONE]\n\n"]) == DELTA + b"data: [DONE]\n\n"
    assert drain(SpeechEventsPassthrough(MINUTE), [DELTA, END[:-2]]) == DELTA + END


@table_rows("pieces", [[], [DELTA], [DELTA[:9]]])
def test_a_stream_that_was_cut_is_a_fault(pieces: list[bytes]) -> None:
    transform = SpeechEventsPassthrough(MINUTE)
    with pytest.raises(ProviderBadResponse, match="before it was complete"):
        drain(transform, pieces)
    assert transform.parse_usage().characters == (900 if transform.events else 0)


@table_rows("reported", [ERROR, event({"type": "error", "message": f"with {SECRET}", "code": "x"})])
def test_an_error_event_ends_it(reported: bytes) -> None:
    transform = SpeechEventsPassthrough(MINUTE, (SECRET,))
    assert transform.feed(DELTA + reported + DELTA) == DELTA
    assert transform.error is not None
    assert SECRET not in transform.error.message
    with pytest.raises(ProviderBadResponse):
        transform.finish()


@given(st.lists(st.binary(max_size=30), max_size=6), st.sampled_from([b"", b"data: {", b'data: {"type":']))
def test_no_bytes_are_more_than_a_fault(pieces: list[bytes], start: bytes) -> None:
    for transform in (SpeechEventsPassthrough(MINUTE), SpeechPassthrough(MINUTE)):
        with contextlib.suppress(ProviderBadResponse):
            drain(transform, [start, *pieces])
        transform.parse_usage()
