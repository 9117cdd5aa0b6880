"""Frames of sound are found from anywhere in a file, and each says how long it sounds."""

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.frames import (
    MAX_FRAMES,
    FindFrames,
    count_mp4_seconds,
    find_mpeg_frames,
    find_webm_packets,
    is_mpeg,
    is_opus_only,
    make_flac_finder,
    make_ogg_finder,
    measure_seconds,
    parse_opus_seconds,
)
from tests.support.audio_frames import flac_frame, page_of
from tests.support.audio_headers import OPUS_HEAD, VORBIS_HEAD, ogg_page
from tests.support.openai_audio import make_mp3
from tests.support.table_rows import table_rows


def find_one(find: FindFrames, data: bytes) -> float:
    """How long the only frame sounds, which junk lies before."""
    ((at, seconds),) = [found for found in find(b"junk" + data) if found[1]]
    assert at == 4
    return round(seconds, 6)


@table_rows(
    ("header", "seconds"),
    [
        (b"\xff\xfb\x90", 1_152 / 44_100),
        (b"\xff\xfa\x14", 1_152 / 48_000),  # 32 kbit/s
        (b"\xff\xf3\x18", 576 / 16_000),  # MPEG 2
        (b"\xff\xe3\x18", 576 / 8_000),  # MPEG 2.5
        (b"\xff\xfb\x00", 1_152 / 44_100),  # of a bitrate that is not told
        (b"\xff\xfd\x88", 1_152 / 32_000),  # layer II
        (b"\xff\xf5\x88", 1_152 / 16_000),
        (b"\xff\xff\x10", 384 / 44_100),  # layer I
    ],
)
def test_a_frame_of_mpeg_sounds_as_long_as_its_samples_take(header: bytes, seconds: float) -> None:
    assert is_mpeg(header + bytes(9))
    assert find_one(find_mpeg_frames, header + bytes(99)) == round(seconds, 6)


@table_rows("header", [b"\xff\xf1\x50", b"\xff\xeb\x90", b"\xff\xfb\xf0", b"\xff\xfb\x9c", b"fLaC", b""])
def test_what_is_no_frame_of_mpeg_is_none(header: bytes) -> None:
    assert not is_mpeg(header)
    assert not any(seconds for _, seconds in find_mpeg_frames(header))


FLAC_HEAD = b"fLaC\x80\0\0\x22" + bytes(10) + (22_050 << 4).to_bytes(3, "big") + bytes(21)
"""That says 22,050 samples a second."""


@table_rows(
    ("frame", "seconds"),
    [
        (flac_frame(0), 4_096 / 16_000),
        (flac_frame(0x7FF), 4_096 / 16_000),
        (flac_frame(0xFFFF), 4_096 / 16_000),
        (flac_frame(1, b"\x1a"), 192 / 48_000),
        (flac_frame(1, b"\x30"), 1_152 / 22_050),  # at the file's rate
        (flac_frame(1, b"\x65", b"\x0f"), 16 / 16_000),
        (flac_frame(1, b"\x75", b"\xff\xff"), 65_536 / 16_000),
        (flac_frame(1, b"\xcc", b"\x08"), 4_096 / 8_000),
        (flac_frame(1, b"\xcd", b"\x1f\x40"), 4_096 / 8_000),
        (flac_frame(1, b"\x7e", b"\x0f\xff\x03\x20"), 4_096 / 8_000),
    ],
)
def test_a_frame_of_flac_says_its_samples_and_their_rate(frame: bytes, seconds: float) -> None:
    find = make_flac_finder(FLAC_HEAD)
    assert find_one(find, frame + bytes(50)) == round(seconds, 6)
    for spoilt in (frame[:-1], frame[:-1] + bytes([frame[-1] ^ 1]), frame[:4] + b"\xff" + frame[5:]):
        assert not any(seconds for _, seconds in find(spoilt))


@table_rows(
    ("packet", "ms"),
    [
        (b"\x00", 10),
        (b"\x18", 60),
        (b"\x61", 20),  # two of 10
        (b"\x80", 2.5),
        (b"\xf8", 20),
        (b"\xfa", 40),
        (b"\xfb\x83", 60),
        (b"\xfb\x06", 120),
        (b"\xfb\x07", 0),  # more than a packet may have
        (b"OpusHead", 0),
        (b"\xfb", 20),
        (b"", 0),
    ],
)
def test_a_packet_of_opus_says_how_long_it_sounds(packet: bytes, ms: float) -> None:
    assert parse_opus_seconds(packet) == ms / 1_000


def test_packets_of_ogg_are_counted_page_by_page() -> None:
    find = make_ogg_finder(ogg_page(0, OPUS_HEAD))
    twenty = b"\xf8" + bytes(9)
    assert measure_seconds(bytes(99) + page_of([twenty] * 3), 999, find) == pytest.approx(0.06)
    assert measure_seconds(page_of([twenty] * 3, inside=True), 999, find) == pytest.approx(0.04)
    long = page_of([bytes([0xF8]) + bytes(254), bytes(9), twenty])  # 255 and 9 bytes are one packet
    assert measure_seconds(long, 999, find) == pytest.approx(0.04)


def test_what_another_stream_has_may_be_anything() -> None:
    find = make_ogg_finder(ogg_page(0, OPUS_HEAD))
    assert measure_seconds(page_of([bytes(200)] * 10, serial=8), 9_999, find) == pytest.approx(1.0)  # at 16 kbit/s


def test_a_packet_of_vorbis_is_taken_for_the_longest_and_its_headers_for_nothing() -> None:
    head = VORBIS_HEAD[:28] + b"\xb8" + VORBIS_HEAD[29:]  # 256 and 2,048 samples
    find = make_ogg_finder(ogg_page(0, head))
    sound = page_of([b"\x03vorbis", b"\x02\0", b"\x00\0"])
    assert measure_seconds(sound, 999, find) == pytest.approx(2 * 1_024 / 44_100)


WEBM_PACKET = b"\xa3\x8a\x81\0\0\x80\xf8" + bytes(5)


@table_rows("size", [b"\x8a", b"\x40\x0a", b"\x20\0\x0a", b"\x10\0\0\x0a", b"\x01\0\0\0\0\0\0\x0a"])
def test_a_packet_of_webm_is_found_however_its_size_is_written(size: bytes) -> None:
    assert find_one(find_webm_packets, b"\xa3" + size + b"\x81\x12\x34\x80\xf8\0\0\0") == 0.02
    assert find_one(find_webm_packets, b"\xa1" + size + b"\x82\x12\x34\x00\xfb\x03\0\0") == 0.06


def test_only_opus_is_only_opus() -> None:
    assert is_opus_only(b"..\x86\x86A_OPUSV\xaa..V_VP9")
    for head in (b"", b"A_VORBIS", b"A_OPUS..A_AAC", b"A_OPUS A_AC3", b"A_OPUS A_PCM/INT/LIT"):
        assert not is_opus_only(head)


def test_an_index_of_mp4_lists_the_frames_of_its_tracks() -> None:
    table = b"stsz" + bytes(8) + (48_000).to_bytes(4, "big")
    assert count_mp4_seconds(b"..stsz" + bytes(11) + b"\x09...." + table) == 1_024
    same_size = b"stsz" + bytes(7) + b"\x09" + (48_000).to_bytes(4, "big")
    assert count_mp4_seconds(same_size) == count_mp4_seconds(b"") == 0


def test_frames_count_where_they_begin() -> None:
    frames = make_mp3(10)
    assert measure_seconds(frames, len(frames), find_mpeg_frames) == pytest.approx(10 * 1_152 / 44_100)
    assert measure_seconds(frames, 418, find_mpeg_frames) == pytest.approx(2 * 1_152 / 44_100)


def test_of_too_many_frames_the_first_speak_for_the_rest() -> None:
    frames = b"\xff\xfb\x90" * (3 * MAX_FRAMES)
    assert measure_seconds(frames, len(frames), find_mpeg_frames) == pytest.approx(3 * MAX_FRAMES * 1_152 / 44_100)


MAKERS: list[Callable[[bytes], FindFrames]] = [
    lambda _: find_mpeg_frames,
    lambda _: find_webm_packets,
    lambda junk: make_flac_finder(b"fLaC" + junk),
    lambda junk: make_ogg_finder(ogg_page(0, OPUS_HEAD) + junk),
    lambda junk: make_ogg_finder(ogg_page(0, b"\x01vorbis" + junk)),
]
STARTS = [b"", b"\xff\xfb", b"\xff\xf8\xc5", b"OggS\0\0" + bytes(8) + struct.pack("<I", 7), b"\xa3\x8a\x81", b"stsz"]


@given(st.sampled_from(MAKERS), st.binary(max_size=40), st.lists(st.sampled_from(STARTS) | st.binary(max_size=40)))
def test_any_bytes_have_a_length_and_are_no_fault(
    make: Callable[[bytes], FindFrames], junk: bytes, parts: list[bytes]
) -> None:
    data = b"".join(parts)
    found = list(make(junk)(data))
    assert [at for at, _ in found] == sorted(at for at, _ in found)
    assert all(0 <= at < len(data) and seconds >= 0 for at, seconds in found)
    assert count_mp4_seconds(data) >= 0
