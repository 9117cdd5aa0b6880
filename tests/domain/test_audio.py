"""How long sound is, and how many tokens a model makes of it."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain import audio
from gateway.domain.usage import MAX_DURATION_MS
from tests.support.audio_headers import EBML, OPUS_HEAD, VORBIS_HEAD, ogg_page
from tests.support.openai_audio import SRT, VTT, make_mp3, make_wav, speak
from tests.support.table_rows import table_rows

ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers(), max_size=2)


@table_rows(
    ("reported", "ms"),
    [
        (0, 0),
        (4, 4_000),
        (3.25, 3_250),
        (0.0001, 1),
        (0.1 + 0.2, 300),
        ("12.5", 12_500),
        (36_000, MAX_DURATION_MS),
        (36_000.001, None),
        (-1, None),
        (True, None),
        (float("nan"), None),
        (float("inf"), None),
        ("-1", None),
        ("1e3", None),
        ("", None),
        (None, None),
        ([3], None),
    ],
)
def test_seconds_are_read_as_milliseconds_rounded_up_or_not_believed(reported: object, ms: int | None) -> None:
    assert audio.parse_length_ms(reported) == ms


@given(ANYTHING)
def test_whatever_is_said_a_length_is_within_what_is_possible(reported: object) -> None:
    found = audio.parse_length_ms(reported)
    assert found is None or 0 <= found <= MAX_DURATION_MS


@table_rows(
    ("text", "ms"),
    [
        (SRT, 3_250),
        (VTT, 3_250),
        ("WEBVTT\n\n00:01.000 --> 01:02.003\nshort form\n", 62_003),
        ("1\n01:00:00,000 --> 01:00:01,000\nx\n\n2\n00:00:01,000 --> 00:00:02,000\nout of order\n", 3_601_000),
        ("1\n999:00:00,000 --> 999:00:00,000\nx\n", MAX_DURATION_MS),
        ("they met at 10:30:00,000 sharp", None),
        ("", None),
    ],
)
def test_subtitles_end_with_their_last_cue(text: str, ms: int | None) -> None:
    assert audio.parse_last_cue_ms(text) == ms


@given(st.text(alphabet="0123456789:,.-> \n", max_size=60))
def test_subtitles_of_any_shape_have_a_possible_length_or_none(text: str) -> None:
    found = audio.parse_last_cue_ms(text)
    assert found is None or 0 <= found <= MAX_DURATION_MS


def test_what_nobody_can_read_is_taken_for_speech_at_16_kilobits() -> None:
    assert audio.bound_length_ms(2_000) == 1_000
    assert audio.bound_length_ms(2_001) == 1_001
    assert audio.bound_length_ms(2**40) == MAX_DURATION_MS


MEGABYTE = 1_000_000
COMPRESSED = audio.BitrateCeiling(audio.LOSSY_BITRATE, audio.TYPICAL_BITRATE)
"""By which a megabyte has 15.625 seconds at least, and hardly less than 62.5."""


@table_rows(
    ("reported", "seen", "believed_ms", "bound_ms"),
    [
        (100.0004, 90.0, 100_001, 100_001),
        (100.0, None, 100_000, 100_000),
        (100.0, 180.0, 100_000, 180_000),  # they are a sample
        (100.0, 201.0, 201_000, 201_000),
        (0.001, 90.0, 90_000, 90_000),
        (30.0, None, 30_000, 62_500),
        (0.001, None, 15_625, 62_500),
        (30_000.0, None, 8_000_000, 8_000_000),
        (1.0, 1e30, 8_000_000, 8_000_000),
    ],
)
def test_a_header_is_believed_within_what_bytes_can_hold_and_frames_say(
    reported: float, seen: float | None, believed_ms: int, bound_ms: int
) -> None:
    assert audio.estimate_length(reported, seen, MEGABYTE, COMPRESSED) == audio.Length(believed_ms, bound_ms)


@table_rows("reported", [None, 0.0, -1.0, float("nan"), float("inf")])
def test_of_what_tells_nothing_the_size_is_a_bound(reported: float | None) -> None:
    assert audio.estimate_length(reported, 90.0, MEGABYTE, COMPRESSED) == audio.Length(
        None, audio.bound_length_ms(MEGABYTE)
    )


def test_a_header_is_not_believed_where_somebody_looked_and_saw_nothing() -> None:
    assert audio.estimate_length(100.0, 0.0, MEGABYTE, COMPRESSED) == audio.Length(
        None, audio.bound_length_ms(MEGABYTE)
    )


NUMBERS = st.none() | st.floats()


@given(NUMBERS, NUMBERS.filter(lambda seen: seen is None or seen >= 0), st.integers(0, 2**40))
def test_no_length_is_above_its_bound_nor_below_what_bytes_take(reported: float, seen: float, size: int) -> None:
    length = audio.estimate_length(reported, seen, size, COMPRESSED)
    assert 0 <= length.bound_ms <= MAX_DURATION_MS
    if length.believed_ms is not None:
        assert audio.compute_min_ms(size) <= length.believed_ms <= length.bound_ms <= audio.limit_length_ms(size)


def test_sound_takes_more_than_a_kilobit_a_second_and_less_than_512() -> None:
    assert (audio.limit_length_ms(1_000), audio.compute_min_ms(64_000)) == (8_000, 1_000)
    assert audio.limit_length_ms(2**40) == audio.compute_min_ms(2**50) == MAX_DURATION_MS


def wav(*chunks: tuple[bytes, bytes], start: bytes = b"RIFF") -> bytes:
    parts = (kind + struct.pack("<I", len(data)) + data + bytes(len(data) % 2) for kind, data in chunks)
    return start + b"\xff\xff\xff\xffWAVE" + b"".join(parts)


def plain(tag: int = 1, channels: int = 2, rate: int = 1_000, block: int = 4, bits: int = 16) -> tuple[bytes, bytes]:
    return b"fmt ", struct.pack("<HHIIHH", tag, channels, rate, 0, block, bits)


DATA = (b"data", bytes(8_000))
EXTENSIBLE = plain(0xFFFE)[1] + struct.pack("<HHIH", 22, 16, 3, 1) + bytes(14)


@table_rows(
    ("data", "seconds"),
    [
        (make_wav(2.5), 2.5),
        (wav(plain(), DATA), 2.0),
        (wav((b"LIST", b"odd"), plain(), (b"junk", bytes(99)), DATA, start=b"RF64"), 2.0),
        (wav((b"fmt ", EXTENSIBLE), DATA), 2.0),
        (wav(plain(3, 1, 1_000, 4, 32), DATA), 2.0),
        (wav(plain(7, 1, 1_000, 1, 8), DATA), 8.0),
        (wav(plain(block=400), DATA), 2.0),  # whichever of the two is less
        (wav(plain(bits=400), DATA), 2.0),
        (wav(plain(bits=13, block=0), DATA), 2.0),
        (wav(plain(), (b"data", b""), DATA), 2.002),  # what is behind its end is played too
        (wav(plain(rate=1), DATA), 2_000.0),
        (wav(plain(0x55), DATA), None),
        (wav(plain(0x11, block=256, bits=4), DATA), None),
        (wav(plain(rate=0), DATA), None),
        (wav((b"fmt ", b"short"), DATA), None),
        (wav(DATA, plain()), None),
        (wav(), None),
    ],
)
def test_wav_is_as_long_as_its_samples_take_whatever_it_says_of_bytes(data: bytes, seconds: float | None) -> None:
    assert audio.is_wav(data)
    assert audio.find_wav_seconds(data, len(data)) == (seconds if seconds is None else pytest.approx(seconds))


@given(st.binary(max_size=80), st.integers(0, 2**40))
def test_any_wav_has_a_length_or_none(data: bytes, size: int) -> None:
    for start in (wav(), wav() + b"fmt \x10\0\0\0\x01\0"):
        found = audio.find_wav_seconds(start + data, size)
        assert found is None or found >= 0


def test_a_minute_has_a_thousand_tokens_heard_and_a_quarter_more_spoken() -> None:
    assert (audio.count_audio_tokens(60_000), audio.count_spoken_tokens(60_000)) == (1_000, 1_250)
    assert (audio.count_audio_tokens(1), audio.count_spoken_tokens(1), audio.count_audio_tokens(0)) == (1, 1, 0)


@given(st.integers(0, 100_000), st.floats(0.25, 4))
def test_speech_is_bounded_above_its_estimate(characters: int, speed: float) -> None:
    estimate = audio.count_spoken_tokens(audio.estimate_speech_ms(characters, speed))
    assert audio.bound_spoken_tokens(characters, speed) >= estimate - 1


@table_rows(
    ("sound", "kind", "ms"),
    [
        (speak("pcm"), "pcm", 2_000),
        (speak("wav"), "wav", 2_000),
        (make_wav(1.5, 8_000), "mp3", 1_500),  # who answers in another format than the one that was asked for
        (make_mp3(100), "mp3", 2_607),
        (b"\xff\xf3\x84\xc4" + bytes(10_000), "mp3", 1_251),  # MPEG 2, 64 kbit/s
        (speak("opus"), "opus", None),
        (speak("flac"), "flac", None),
        (b"\xff\xfb\xf0\x00", "mp3", None),
        (b"RIFF\0\0\0\0WAVEfmt " + bytes(28), "wav", None),
        (make_wav(1.0)[:28] + struct.pack("<I", 1) + bytes(5_012), "wav", 5_000),  # no rate is below 1,000 bytes
        (b"", "mp3", None),
        (b"\xff", "aac", None),
    ],
)
def test_sound_is_measured_where_its_first_bytes_tell_its_rate(sound: bytes, kind: str, ms: int | None) -> None:
    assert audio.find_speech_ms(sound[:64], len(sound), kind) == ms


def test_speech_is_no_longer_than_the_slowest_speaker_makes_of_a_text() -> None:
    assert audio.bound_speech_ms(60_000) == 960_000
    assert audio.bound_speech_ms(1) == 10_000
    assert audio.bound_speech_ms(MAX_DURATION_MS) == MAX_DURATION_MS


@given(st.binary(max_size=70), st.integers(0, 2**50), st.sampled_from(["mp3", "pcm", "wav", "opus"]))
def test_any_bytes_have_a_possible_length_or_none(head: bytes, size: int, kind: str) -> None:
    found = audio.find_speech_ms(head, size, kind)
    assert found is None or 0 <= found <= MAX_DURATION_MS


def test_a_page_of_ogg_says_where_its_stream_ends() -> None:
    assert audio.parse_ogg_page(ogg_page(96_312)) == (96_312, 7)
    for page in (ogg_page(-1), ogg_page(5)[:-5], b"OggS\x01" + bytes(30), b""):
        assert audio.parse_ogg_page(page) is None


def test_opus_counts_48000_samples_a_second_and_vorbis_what_it_says() -> None:
    assert audio.find_ogg_rate(ogg_page(0, OPUS_HEAD)) == (48_000, 312)
    assert audio.find_ogg_rate(ogg_page(0, VORBIS_HEAD)) == (44_100, 0)
    for head in (ogg_page(0, b"Speex   "), ogg_page(0, b"\x01vorbis"), b"OggS", b""):
        assert audio.find_ogg_rate(head) is None


def test_a_webm_file_says_its_length_in_ticks() -> None:
    assert audio.find_webm_seconds(EBML + b"\x44\x89\x84" + struct.pack(">f", 2_500)) == 2.5
    scaled = EBML + b"\x2a\xd7\xb1\x83" + (100_000).to_bytes(3, "big") + b"\x44\x89\x88" + struct.pack(">d", 2_500)
    assert audio.find_webm_seconds(scaled) == 0.25
    assert audio.find_webm_seconds(EBML) is None


@table_rows("size", [b"\x81", b"\x40\x02", b"\x20\0\0", b"\x10\0\0\0", b"\x01\xff\xff\xff\xff\xff\xff\xff"])
def test_a_cluster_begins_with_its_time(size: bytes) -> None:
    assert audio.parse_cluster_seconds(EBML, b"\x1f\x43\xb6\x75" + size + b"\xe7\x82\x75\x30rest") == 30.0
    assert audio.parse_cluster_seconds(EBML, b"\x1f\x43\xb6\x75" + size + b"\xa3") is None


@given(st.binary(max_size=60))
def test_any_bytes_are_no_fault(head: bytes) -> None:
    for found in (
        audio.find_ogg_rate(b"OggS" + head),
        audio.parse_ogg_page(b"OggS" + head),
        audio.find_webm_seconds(EBML + b"\x44\x89" + head),
        audio.parse_cluster_seconds(EBML + head, b"\x1f\x43\xb6\x75" + head),
    ):
        assert found is None or found
