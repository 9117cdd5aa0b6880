"""Transcriptions and translations: the call, the answer in every format, and its stream."""

import contextlib
import itertools
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.token_estimate import estimate_text
from gateway.domain.upload import Upload
from gateway.domain.usage import MAX_DURATION_MS, MAX_TOKENS, Usage, UsageDetails
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.audio.transcriptions import (
    TranscriptPassthrough,
    build_transcription_form,
    build_whole,
    find_media_type,
    parse_transcription_answer,
    parse_transcription_inference,
    parse_translation_inference,
)
from gateway.formats.stream import JsonOrStream, StreamTransform
from gateway.formats.usage.token_bounds import MAX_RESERVED_OUTPUT, MESSAGE_TOKENS
from gateway.formats.wire.form import ReceivedForm
from tests.support.corrupt_json import spoilt
from tests.support.openai_audio import SEGMENTS, SRT, TEXT, TOKENS, VTT, make_wav
from tests.support.table_rows import table_rows

SECRET = "hunter-22"
BROKEN = {"error": {"message": f"broke at https://10.0.0.1/x with {SECRET}", "type": "server_error"}}


@attrs.frozen
class Kept:
    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    async def read(self, offset: int, size: int) -> bytes:
        return self.data[offset : offset + size]


def upload(data: bytes = make_wav(), field: str = "file") -> Upload:
    return Upload(field, "a.wav", "audio/wav", data[:512], Kept(data))


FILE = upload()
BARE = (("model", "m"),)


def form(*fields: tuple[str, str], files: tuple[Upload, ...] = (FILE,)) -> ReceivedForm:
    return ReceivedForm((*BARE, *fields), files)


def make_call(kind: str | None = None, *, stream: bool = False, length_ms: int | None = 5_000) -> InferenceRequest:
    """A call as it is after somebody has listened to its file."""
    fields = [("response_format", kind)] if kind else []
    inference = parse_transcription_inference(form(*fields, *([("stream", "true")] if stream else [])))
    return attrs.evolve(inference, files=(attrs.evolve(FILE, duration_ms=length_ms),), sound_ms=length_ms or 9_000)


CALL = make_call()
ESTIMATED = Usage(84, estimate_text(TEXT), source="estimate", duration_ms=5_000)
FULL = (
    ("language", "en"),
    ("prompt", "Grüße"),
    ("response_format", "verbose_json"),
    ("temperature", "0.2"),
    ("timestamp_granularities[]", "word"),
    ("timestamp_granularities[]", "segment"),
    ("include[]", "logprobs"),
    ("languages[]", "en"),
    ("languages[]", "de"),
    ("keywords[]", "Köln"),
    ("known_speaker_names[]", "agent"),
    ("known_speaker_references[]", "data:audio/wav;base64,AAAA"),
    ("chunking_strategy[type]", "server_vad"),
    ("chunking_strategy[prefix_padding_ms]", "300"),
    ("stream", "true"),
    ("odd", "kept"),
)
BODY = {
    "model": "m",
    "language": "en",
    "prompt": "Grüße",
    "response_format": "verbose_json",
    "temperature": 0.2,
    "timestamp_granularities": ["word", "segment"],
    "include": ["logprobs"],
    "languages": ["en", "de"],
    "keywords": ["Köln"],
    "known_speaker_names": ["agent"],
    "known_speaker_references": ["data:audio/wav;base64,AAAA"],
    "chunking_strategy[type]": "server_vad",
    "chunking_strategy[prefix_padding_ms]": "300",
    "stream": True,
    "odd": "kept",
}


# The call


def test_a_form_becomes_a_call_with_every_field() -> None:
    inference = parse_transcription_inference(form(*FULL))
    assert (inference.operation, inference.model, inference.body, inference.files) == (
        "transcriptions",
        "m",
        BODY,
        (FILE,),
    )
    assert (inference.stream, inference.prompt_chars, inference.max_prompt_tokens) == (True, 9, MESSAGE_TOKENS + 12)
    assert (inference.max_output_tokens, inference.sound_ms) == (MAX_RESERVED_OUTPUT, 0)


def test_a_translation_is_the_same_but_never_streamed() -> None:
    inference = parse_translation_inference(form(("prompt", "hi"), ("stream", "false")))
    assert (inference.operation, inference.stream, inference.body) == (
        "translations",
        False,
        {"model": "m", "prompt": "hi"},
    )


@table_rows(
    ("received", "param"),
    [
        (ReceivedForm((), (FILE,)), "model"),
        (form(files=()), "file"),
        (form(("file", "text"), files=()), "file"),
        (form(("file", "text")), "file"),
        (form(files=(FILE, FILE)), "file"),
        (form(files=(upload(b""),)), "file"),
        (form(files=(FILE, upload(field="image"))), "image"),
        (form(("model", "n")), "model"),
        (form(("temperature", "1.1")), "temperature"),
        (form(("temperature", "-0.1")), "temperature"),
        (form(("temperature", "warm")), "temperature"),
        (form(("response_format", "xml")), "response_format"),
        (form(("response_format", "")), "response_format"),
        (form(("timestamp_granularities[]", "letter")), "timestamp_granularities"),
        (form(("stream", "yes")), "stream"),
        (form(("stream", "true"), ("response_format", "srt")), "response_format"),
        (form(("stream", "true"), ("response_format", "vtt")), "response_format"),
    ],
)
def test_what_no_provider_takes_is_refused_by_name(received: ReceivedForm, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_transcription_inference(received)
    assert caught.value.param == param


@table_rows(("field", "value"), [("response_format", "diarized_json"), ("stream", "true"), ("temperature", "2")])
def test_a_translation_has_fewer_formats_and_no_stream(field: str, value: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_translation_inference(form((field, value)))
    assert caught.value.param == field


@given(st.lists(st.tuples(st.sampled_from([*BODY, "file", "languages[]", "", "[]"]), st.text(max_size=4)), max_size=6))
def test_any_form_is_a_call_or_refused(fields: list[tuple[str, str]]) -> None:
    for read in (parse_transcription_inference, parse_translation_inference):
        with contextlib.suppress(InvalidRequest):
            inference = read(ReceivedForm(tuple(fields), (FILE,)))
            assert (inference.model, inference.files) == (inference.body["model"], (FILE,))


def test_the_form_for_the_provider_has_the_same_fields_and_the_file() -> None:
    inference = parse_transcription_inference(form(*FULL))
    written = build_transcription_form(inference, "whisper-1")
    assert written.fields == BODY | {"model": "whisper-1"}
    assert written.files == (("file", FILE),)
    assert inference.body["model"] == "m"


@table_rows(
    ("name", "media_type", "sent"),
    [
        ("upload", "audio/wav", "upload.wav"),
        ("upload", "audio/mp4", "upload.m4a"),
        ("a.mp3", "audio/wav", "a.mp3"),
        ("upload", "application/octet-stream", "upload"),
    ],
)
def test_a_file_without_an_extension_is_given_the_one_of_what_it_is(name: str, media_type: str, sent: str) -> None:
    file = attrs.evolve(FILE, filename=name, media_type=media_type)
    ((field, written),) = build_transcription_form(attrs.evolve(CALL, files=(file,)), "m").files
    assert (field, written.filename, written.media_type, written.spooled) == ("file", sent, media_type, file.spooled)


@table_rows("stream", [False, True])
def test_text_is_asked_for_as_json_which_says_what_it_costs(stream: bool) -> None:
    assert build_transcription_form(make_call("text", stream=stream), "m").fields["response_format"] == "json"
    assert build_transcription_form(make_call("srt"), "m").fields["response_format"] == "srt"
    assert "response_format" not in build_transcription_form(make_call(), "m").fields


# The answer


def answer(**more: Any) -> bytes:
    return orjson.dumps({"text": TEXT, **more})


@table_rows("kind", ["json", "verbose_json", "diarized_json", None])
def test_json_passes_as_it_is(kind: str | None) -> None:
    raw = answer(segments=SEGMENTS, usage=TOKENS)
    inference = make_call(kind)
    assert parse_transcription_answer(raw, inference) == (
        raw,
        Usage(55, 7, source="upstream", duration_ms=5_000, details=UsageDetails(50)),
    )
    assert find_media_type(inference) == "application/json"


@table_rows(("kind", "raw"), [("text", f"{TEXT}\n"), ("srt", SRT), ("vtt", VTT), ("text", "{laughs} Ha.")])
def test_text_passes_as_it_is(kind: str, raw: str) -> None:
    inference = make_call(kind)
    written, usage = parse_transcription_answer(raw.encode(), inference)
    assert written == raw.encode()
    assert usage == Usage(84, estimate_text(raw), source="estimate", duration_ms=5_000)
    assert find_media_type(inference) == "text/plain; charset=utf-8"


@table_rows(("kind", "written"), [("text", f"{TEXT}\n"), ("srt", SRT), ("vtt", VTT)])
def test_text_is_written_from_json_where_that_came(kind: str, written: str) -> None:
    raw = answer(segments=SEGMENTS, usage=TOKENS)
    assert parse_transcription_answer(raw, make_call(kind))[0].decode() == written


@table_rows(("kind", "written"), [("text", " \n"), ("srt", ""), ("vtt", "WEBVTT\n\n")])
def test_silence_has_no_subtitles(kind: str, written: str) -> None:
    assert parse_transcription_answer(b'{"text":" "}', make_call(kind))[0].decode() == written


def test_a_cue_keeps_to_its_lines() -> None:
    segment = {"start": 3_661.5, "end": "3662", "text": "a --> b\n\n2\nc"}
    raw = answer(segments=[segment, {"start": -1, "end": 2, "text": "x"}, {"text": "y"}, "z", None])
    written = parse_transcription_answer(raw, make_call("srt"))[0].decode()
    assert written == "1\n01:01:01,500 --> 01:01:02,000\na -> b 2 c\n\n"


@table_rows(
    ("kind", "raw"),
    [
        ("json", b"plain"),
        ("json", b"[]"),
        ("json", b"{}"),
        ("json", b'{"text":5}'),
        ("json", b""),
        ("json", orjson.dumps(BROKEN)),
        ("json", orjson.dumps(BROKEN | {"text": "x"})),
        ("verbose_json", b'"x"'),
        ("text", orjson.dumps(BROKEN)),
        ("text", b"{}"),
        ("text", b"\xff\xfe"),
        ("text", b"<!DOCTYPE html><p>Bad gateway"),
        ("srt", b" <html>"),
        ("srt", b'{"text":"no times"}'),
        ("vtt", b'{"text":"no times","segments":[{"text":"x"}]}'),
    ],
)
def test_what_is_no_answer_is_a_fault_that_keeps_secrets(kind: str, raw: bytes) -> None:
    with pytest.raises(ProviderBadResponse) as caught:
        parse_transcription_answer(raw, make_call(kind), (SECRET,))
    assert SECRET not in caught.value.message
    assert "10.0.0.1" not in caught.value.message


@table_rows(
    ("reported", "usage"),
    [
        (
            {"usage": TOKENS, "duration": 3.25},
            Usage(55, 7, source="upstream", duration_ms=3_250, details=UsageDetails(50)),
        ),
        ({"usage": {"type": "duration", "seconds": 4}}, Usage(0, 0, source="upstream", duration_ms=4_000)),
        ({"usage": {"type": "duration", "seconds": 4}, "duration": 9}, Usage(source="upstream", duration_ms=4_000)),
        (
            {"usage": {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6, "prompt_audio_seconds": 7}},
            Usage(4, 2, source="upstream", duration_ms=7_000),
        ),
        ({"duration": 6.001}, Usage(101, estimate_text(TEXT), source="estimate", duration_ms=6_001)),
        ({"duration": "6.0"}, Usage(100, estimate_text(TEXT), source="estimate", duration_ms=6_000)),
        ({"duration": -6}, ESTIMATED),
        ({"usage": {"type": "duration", "seconds": -4}}, ESTIMATED),
        ({"usage": {"type": "duration", "seconds": 1e9}}, ESTIMATED),
        ({"usage": TOKENS | {"input_tokens": -1}}, ESTIMATED),
        ({"usage": TOKENS | {"output_tokens": MAX_TOKENS + 1}}, ESTIMATED),
        ({"usage": "much"}, ESTIMATED),
        ({}, ESTIMATED),
    ],
)
def test_the_providers_word_comes_before_the_files_and_an_estimate_last(reported: dict[str, Any], usage: Usage) -> None:
    assert parse_transcription_answer(answer(**reported), CALL)[1] == usage


def test_of_a_file_that_does_not_say_subtitles_tell_the_length_and_else_its_size() -> None:
    assert parse_transcription_answer(SRT.encode(), make_call("srt", length_ms=None))[1].duration_ms == 3_250
    assert parse_transcription_answer(b"hi", make_call("text", length_ms=None))[1].duration_ms == 9_000


def hear_size(size: int, raw: bytes, kind: str, length_ms: int | None) -> int:
    """The length that is charged for a file of so many bytes."""
    inference = make_call(kind, length_ms=length_ms)
    file = attrs.evolve(inference.files[0], spooled=Kept(bytes(size)))
    return parse_transcription_answer(raw, attrs.evolve(inference, files=(file,)))[1].duration_ms


def test_subtitles_are_not_of_sound_that_is_shorter_than_they() -> None:
    assert hear_size(64_000, SRT.encode(), "srt", 2_000) == 3_250
    assert hear_size(64_000, SRT.encode(), "srt", 4_000) == 4_000
    assert hear_size(640_000, SRT.encode(), "srt", None) == 10_000  # at 512 kbit/s


def test_no_word_is_believed_of_more_than_bytes_can_hold() -> None:
    assert hear_size(400, answer(duration=3_600), "json", 100) == 3_200  # at 1 kbit/s
    assert hear_size(400, answer(usage={"type": "duration", "seconds": 3_600}), "json", 100) == 3_200
    assert hear_size(400, SRT.encode(), "srt", 100) == 3_200
    assert hear_size(640_000, answer(duration=1), "json", 60_000) == 1_000  # it is billed for by who says so


@given(spoilt({"text": TEXT, "duration": 3.25, "segments": [dict(SEGMENTS[0])], "usage": TOKENS}),
       st.sampled_from(["json", "text", "srt", "vtt"]))  # fmt: skip
def test_any_json_is_an_answer_within_bounds_or_a_fault(value: Any, kind: str) -> None:
    try:
        _, usage = parse_transcription_answer(orjson.dumps(value), make_call(kind))
        build_whole(orjson.dumps(value), CALL)
    except ProviderBadResponse:
        return
    assert 0 <= usage.duration_ms <= MAX_DURATION_MS
    assert min(usage.prompt_tokens, usage.completion_tokens) >= 0
    assert max(usage.prompt_tokens, usage.completion_tokens) <= MAX_TOKENS


@given(st.binary(max_size=40), st.sampled_from(["json", "text", "srt", "vtt"]))
def test_any_bytes_are_an_answer_or_a_fault(raw: bytes, kind: str) -> None:
    with contextlib.suppress(ProviderBadResponse):
        assert parse_transcription_answer(raw, make_call(kind))[0] == raw


# The stream


def event(**value: Any) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


DELTA = event(type="transcript.text.delta", delta="Grüße, ")
SEGMENT = event(type="transcript.text.segment", id="0", start=0, end=1.5, speaker="A", text="Grüße, ")
END = event(type="transcript.text.done", text="Grüße, ", usage=TOKENS)
DONE = b"data: [DONE]\n\n"
STREAMED = make_call(stream=True)


def drain(transform: StreamTransform, pieces: list[bytes]) -> bytes:
    return b"".join([transform.feed(piece) for piece in pieces]) + transform.finish()


def cut(whole: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(whole) + 1) for place in places), len(whole)]
    return [whole[start:end] for start, end in itertools.pairwise(edges)]


@given(st.lists(st.integers(0, 2**20), max_size=6), st.sampled_from([b"", DONE, DELTA]))
def test_events_leave_as_they_lie_up_to_the_last_however_they_are_cut(places: list[int], rest: bytes) -> None:
    transform = TranscriptPassthrough(STREAMED)
    assert drain(transform, cut(DELTA + SEGMENT + END + rest, places)) == DELTA + SEGMENT + END
    assert (transform.events, transform.ended) == (2, True)
    assert transform.parse_usage() == Usage(55, 7, source="upstream", duration_ms=5_000, details=UsageDetails(50))


def test_without_usage_the_text_that_passed_is_estimated() -> None:
    transform = TranscriptPassthrough(STREAMED)
    assert drain(transform, [DELTA, DELTA, DONE]) == DELTA + DELTA + DONE
    assert transform.parse_usage() == Usage(84, estimate_text("Grüße, Grüße, "), source="estimate", duration_ms=5_000)


@table_rows("pieces", [[], [DELTA], [DELTA[:9]]])
def test_a_stream_that_was_cut_is_a_fault(pieces: list[bytes]) -> None:
    transform = TranscriptPassthrough(STREAMED)
    with pytest.raises(ProviderBadResponse, match="before it was complete"):
        drain(transform, pieces)
    assert transform.parse_usage().duration_ms == (5_000 if transform.events else 0)


@table_rows("reported", [event(**BROKEN), event(type="error", message=f"with {SECRET}", code="x")])
def test_an_error_event_ends_it(reported: bytes) -> None:
    transform = TranscriptPassthrough(STREAMED, (SECRET,))
    assert transform.feed(DELTA + reported + DELTA) == DELTA
    assert transform.error is not None
    assert SECRET not in transform.error.message


@table_rows("usage", [TOKENS, {"type": "duration", "seconds": 4}, None])
def test_a_whole_answer_to_a_call_for_a_stream_is_told_in_two_events(usage: Any) -> None:
    transform = JsonOrStream(lambda raw: build_whole(raw, STREAMED))
    raw = answer(usage=usage)
    done = {"type": "transcript.text.done", "text": TEXT} | ({"usage": TOKENS} if usage is TOKENS else {})
    assert drain(transform, [raw[:9], raw[9:]]) == event(type="transcript.text.delta", delta=TEXT) + event(**done)
    assert transform.ended
    assert transform.parse_usage() == parse_transcription_answer(raw, STREAMED)[1]


def test_silence_is_told_in_one_event() -> None:
    assert build_whole(b'{"text":""}', STREAMED)[0] == event(type="transcript.text.done", text="")


DEEP = b'{"text":"x","usage":{"type":"tokens","x":' + b"[" * 300 + b"]" * 300 + b"}}"


@table_rows("raw", [b"{", b"{}", orjson.dumps(BROKEN), DEEP], ids=lambda raw: raw[:9])
def test_a_whole_answer_that_is_none_is_a_fault(raw: bytes) -> None:
    with pytest.raises(ProviderBadResponse):
        build_whole(raw, STREAMED, (SECRET,))


@given(st.lists(st.binary(max_size=30), max_size=6), st.sampled_from([b"", b"data: {", b'data: {"type":', b"{"]))
def test_no_bytes_are_more_than_a_fault(pieces: list[bytes], start: bytes) -> None:
    transform = TranscriptPassthrough(STREAMED)
    with contextlib.suppress(ProviderBadResponse):
        drain(transform, [start, *pieces])
    transform.parse_usage()
