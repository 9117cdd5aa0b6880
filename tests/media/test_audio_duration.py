"""How long uploaded sound is: by what files say, what their frames say, and where they say nothing by their size."""

import random
import struct

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.audio import count_audio_tokens, limit_length_ms
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.upload import Upload
from gateway.domain.usage import MAX_DURATION_MS
from gateway.media.audio_duration import BLOCK_BYTES, MAX_BLOCKS, MAX_SAMPLES, RandomSource, measure_audio
from tests.support.audio_frames import flac_frame, page_of
from tests.support.audio_headers import EBML, OPUS_HEAD, VORBIS_HEAD, ogg_page
from tests.support.openai_audio import make_mp3, make_wav


@attrs.define
class Kept:
    """A file in memory that counts what is read of it."""

    data: bytes
    read_bytes: int = 0

    @property
    def size(self) -> int:
        return len(self.data)

    async def read(self, offset: int, size: int) -> bytes:
        found = self.data[offset : offset + size]
        self.read_bytes += len(found)
        return found


async def hear(data: bytes, rng: RandomSource = random.random) -> tuple[int | None, InferenceRequest]:
    """The length that is found in a file, and the call it came with."""
    kept = Kept(data)
    upload = Upload("file", "a.bin", "application/octet-stream", data[:512], kept)
    inference = await measure_audio(
        InferenceRequest("transcriptions", "m", {}, max_prompt_tokens=10, files=(upload,)), rng
    )
    assert kept.read_bytes <= (MAX_BLOCKS + 2 * MAX_SAMPLES + 4) * BLOCK_BYTES
    assert 0 <= inference.sound_ms <= MAX_DURATION_MS
    assert inference.max_prompt_tokens == 10 + count_audio_tokens(inference.sound_ms)
    assert (inference.files[0].duration_ms or 0) <= inference.sound_ms
    assert inference.files[0].spooled is kept
    return inference.files[0].duration_ms, inference


def whole_seconds(ms: int) -> int:
    return min(-(-ms // 1_000) * 1_000, MAX_DURATION_MS)


def make_flac(seconds: int, reported: int | None = None) -> bytes:
    """32 kbit/s; ``reported``: samples, where its header says others."""
    rate = 16_000
    packed = rate << 44 | 0 << 41 | 15 << 36 | (rate * seconds if reported is None else reported)
    info = struct.pack(">HH", 4_096, 4_096) + bytes(6) + struct.pack(">Q", packed) + bytes(16)
    frames = (flac_frame(number) + bytes(1_000) for number in range(rate * seconds // 4_096))
    return b"fLaC\x80" + len(info).to_bytes(3, "big") + info + b"".join(frames)


def atom(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data) + 8) + kind + data


def make_m4a(seconds: int, *, last: bool, reported: int | None = None) -> bytes:
    """32 kbit/s, its index before the sound, or behind it; ``reported``: ms, where its header says others."""
    reported = seconds * 1_000 if reported is None else reported
    mvhd = atom(b"mvhd", bytes(12) + struct.pack(">II", 1_000, reported) + bytes(80))
    table = atom(b"stsz", bytes(8) + struct.pack(">I", seconds * 44_100 // 1_024))
    track = atom(b"trak", atom(b"mdia", atom(b"minf", atom(b"stbl", table))))
    parts = [atom(b"moov", mvhd + track), atom(b"mdat", bytes(seconds * 4_000))]
    return atom(b"ftyp", b"M4A \0\0\0\0") + b"".join(parts[::-1] if last else parts)


def make_opus(seconds: int, reported: int | None = None) -> bytes:
    """20 kbit/s in packets of 20 ms; ``reported``: seconds, where its pages say others."""
    pages = [page_of([b"\xf8" + bytes(49)] * 50) for _ in range(seconds)]
    end = ogg_page(48_000 * (seconds if reported is None else reported) + 312)
    stranger = ogg_page(2**40, serial=8)
    return ogg_page(0, OPUS_HEAD) + b"".join(pages) + end + stranger + ogg_page(-1)


def make_webm(seconds: int, cluster_bytes: int = 160_000) -> bytes:
    """As a browser records it: no length, and a cluster every ten seconds."""
    clusters = (
        b"\x1f\x43\xb6\x75\x01\xff\xff\xff\xff\xff\xff\xff\xe7\x83" + (second * 1_000).to_bytes(3, "big")
        for second in range(0, seconds, 10)
    )
    return EBML + bytes(100) + b"".join(cluster + bytes(cluster_bytes) for cluster in clusters)


def make_opus_webm(seconds: int, reported_ms: float) -> bytes:
    """20 kbit/s, with a length in its header."""
    head = EBML + b"\x44\x89\x84" + struct.pack(">f", reported_ms) + b"\x86\x86A_OPUS"
    return head + (b"\xa3\xb5\x81\0\0\x80\xf8" + bytes(43)) * 50 * seconds


def make_xing_mp3(frames: int, reported: int, tag: bytes = b"") -> bytes:
    """8 kbit/s, 72 ms each, behind a header that says how many there are."""
    xing = b"\xff\xfb\x90\x64" + bytes(32) + b"Xing" + struct.pack(">II", 1, reported) + bytes(369)
    return tag + xing + (b"\xff\xe3\x18\xc4" + bytes(68)) * frames


def make_big_image_mp3() -> bytes:
    """A tag of 300,000 bytes before frames whose bitrate changes and which no header counts: a second of them."""
    size = bytes((300_000 >> shift) & 127 for shift in (21, 14, 7, 0))
    frames = [make_mp3(1), b"\xff\xfb\xa0\x64" + bytes(518)] * 19  # 128 and 160 kbit/s
    return b"ID3\x04\0\0" + size + bytes(300_000) + b"".join(frames)


@pytest.mark.parametrize(
    ("data", "ms", "held_ms"),
    [
        (make_wav(2.5), 2_500, 3_000),
        (make_wav(120.0, 48_000), 120_000, 120_000),
        (make_mp3(100), 2_613, 3_000),
        (make_big_image_mp3(), 993, 1_000),
        (make_flac(7), 7_000, 7_000),
        (make_m4a(60, last=False), 60_000, 60_000),
        (make_m4a(60, last=True), 60_000, 60_000),
        (make_opus(90), 90_000, 90_000),
        (make_opus_webm(90, 90_000), 90_000, 90_000),
        (EBML + b"\x44\x89\x84" + struct.pack(">f", 9_000) + bytes(19_000), 9_000, 10_000),
    ],
    ids=["wav", "long wav", "mp3", "mp3 behind an image", "flac", "m4a", "m4a with its index last", "opus", "webm",
         "some webm"],
)  # fmt: skip
async def test_files_say_how_long_they_sound(data: bytes, ms: int, held_ms: int) -> None:
    found, inference = await hear(data)
    assert (found, inference.sound_ms) == (ms, held_ms)


MANY_TAGS = b"ID3\x04\0\x10\0\0\0\x02" + bytes(12)


@pytest.mark.parametrize(
    ("data", "seconds"),
    [
        (make_xing_mp3(1_000, 1), 72),
        (make_xing_mp3(1_000, 1, MANY_TAGS), 72),
        (make_flac(60, reported=1), 60),
        (make_opus(60, reported=1), 60),
        (make_opus_webm(60, 1.0), 60),
        (make_m4a(60, last=True, reported=1), 55),  # at 48,000 samples a second
        (make_wav(60.0)[:40] + struct.pack("<I", 2) + make_wav(60.0)[44:], 60),
    ],
    ids=["mp3", "mp3 behind a tag", "flac", "opus", "webm", "m4a", "wav"],
)  # fmt: skip
async def test_what_a_header_hides_its_frames_tell(data: bytes, seconds: int) -> None:
    found, inference = await hear(data)
    assert found is not None
    assert seconds * 990 <= found <= seconds * 1_100
    assert inference.sound_ms == whole_seconds(found)


async def test_what_a_header_hides_and_no_frame_tells_is_held_for_as_what_nobody_can_read() -> None:
    webm = EBML + b"\x44\x89\x84" + struct.pack(">f", 1.0) + bytes(640_000)
    fragmented = make_m4a(160, last=False, reported=1).replace(b"stsz", b"stz2")
    for data in (webm, fragmented):
        found, inference = await hear(data)
        assert found is not None
        assert 10_000 <= found <= 10_010  # at 512 kbit/s
        assert 320_000 <= inference.sound_ms <= 321_000  # at 16


@pytest.mark.parametrize("seed", range(3))
async def test_what_is_only_in_a_part_of_a_long_file_is_seen_in_that_part(seed: int) -> None:
    """Frames as large as can be, then as small as can be, for the same two megabytes each."""
    large = (b"\xff\xfb\xe0\x64" + bytes(1_040)) * 2_000
    small = b"\xff\xe3\x18\xc4" + bytes(68)
    data = large + small * (len(large) // len(small))
    true_ms = 2_000 * 1_152 / 44.1 + len(large) // len(small) * 72
    found, inference = await hear(data, random.Random(seed).random)  # noqa: S311 - no secret
    assert found is not None
    assert 0.9 * true_ms <= found <= 1.1 * true_ms
    assert found <= inference.sound_ms


async def test_of_vorbis_the_longest_packets_are_held_for() -> None:
    head = VORBIS_HEAD[:28] + b"\xb8" + VORBIS_HEAD[29:]
    data = ogg_page(0, head) + page_of([b"\x02" + bytes(199)] * 80) * 20 + ogg_page(44_100 * 30)
    found, inference = await hear(data)
    assert (found, inference.sound_ms) == (30_000, 38_000)  # 1,600 of 1,024 samples


async def test_what_is_behind_a_tag_and_no_mp3_may_be_anything() -> None:
    found, inference = await hear(MANY_TAGS + make_flac(60))
    assert found is None
    assert inference.sound_ms == whole_seconds(-(-len(make_flac(60)) // 2))


async def test_a_browsers_recording_is_as_long_as_its_last_cluster_says_and_the_rest_of_it() -> None:
    found, _ = await hear(make_webm(60))
    assert found is not None
    assert 59_900 <= found <= 60_200


@pytest.mark.parametrize(
    "data",
    [
        b"hello",
        bytes(5_000),
        b"\xff\xf1" + bytes(200_000),
        b"\xff" * 3_000_000,
        b"\xff\xe2" * 1_500_000,
        b"RIFF\0\0\0\0WAVE" + bytes(200_000),
        b"OggS" * 500_000,
        ogg_page(0, OPUS_HEAD) + bytes(3_000_000),
        EBML + b"\x1f\x43\xb6\x75" * 500_000,
        atom(b"ftyp", b"M4A ") + atom(b"free", b"") * 300_000,
        b"\0\0\0\x08ftyp\0\0\0\x01moov" + b"\xff" * 8,
        b"fLaC\x84\xff\xff\xff" + b"\xff" * 100,
        make_wav(0.0),
        make_flac(0, reported=16_000),
        b"ID3\x04\0\0\x7f\x7f\x7f\x7f",
    ],
    ids=lambda data: data[:12].hex(),
)
async def test_what_says_nothing_is_taken_for_what_it_hardly_exceeds(data: bytes) -> None:
    found, inference = await hear(data)
    assert found is None
    assert inference.sound_ms == whole_seconds(-(-len(data) // 2))


async def test_a_header_that_boasts_is_believed_no_more_than_is_possible() -> None:
    data = make_m4a(1, last=False, reported=2**31)
    found, inference = await hear(data)
    assert found == limit_length_ms(len(data))
    assert inference.sound_ms == whole_seconds(found)


async def test_a_call_without_files_is_as_it_was() -> None:
    inference = InferenceRequest("speech", "m", {}, sound_ms=5)
    assert await measure_audio(inference) is inference


ASF = b"\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9\x00\xaa\x00\x62\xce\x6c" + bytes(13) + b"\x02"
STARTS = [b"", b"ID3", b"\xff\xfb\x90\x64", b"OggS\0", b"fLaC", b"RIFF\0\0\0\0WAVEfmt ", b"\0\0\0\x20ftypM4A ", EBML,
          b"FORM\0\0\0\0AIFF", ASF]  # fmt: skip
WHOLE = [make_wav(1.0), make_mp3(40), make_flac(2), make_m4a(2, last=True), make_opus(9), make_webm(20, 99),
         make_opus_webm(9, 5.0), make_xing_mp3(9, 5)]  # fmt: skip


@given(st.sampled_from(STARTS), st.binary(max_size=300), st.integers(0, 3))
async def test_no_file_is_a_fault(start: bytes, data: bytes, times: int) -> None:
    await hear(start + data * 4**times)


@given(st.sampled_from(WHOLE), st.integers(0, 400), st.binary(max_size=8), st.integers(0, 3_000))
async def test_nor_is_one_that_was_spoilt_or_cut(whole: bytes, at: int, junk: bytes, length: int) -> None:
    spoilt = whole[:at] + junk + whole[at + len(junk) :]
    await hear(spoilt)
    await hear(spoilt[:length])
