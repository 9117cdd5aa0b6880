"""How long uploaded sound is: by what files say, and where they say nothing by their size."""

import struct

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.call import Call
from gateway.domain.sound import count_heard_tokens
from gateway.domain.upload import Upload
from gateway.domain.usage import MAX_DURATION_MS
from gateway.flow.listening import BLOCK_BYTES, MAX_BLOCKS, listen
from tests.domain.test_sound import EBML, OPUS_HEAD, ogg_page
from tests.fakes.openai_audio import make_mp3, make_wav


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


async def hear(data: bytes) -> tuple[int | None, Call]:
    """The length that is found in a file, and the call it came with."""
    kept = Kept(data)
    upload = Upload("file", "a.bin", "application/octet-stream", data[:512], kept)
    call = await listen(Call("transcriptions", "m", {}, prompt_bound=10, files=(upload,)))
    assert kept.read_bytes <= (2 * MAX_BLOCKS + 2) * BLOCK_BYTES
    assert 0 <= call.sound_ms <= MAX_DURATION_MS
    assert call.prompt_bound == 10 + count_heard_tokens(call.sound_ms)
    assert call.files[0].spooled is kept
    return call.files[0].duration_ms, call


def make_flac(seconds: int) -> bytes:
    rate = 16_000
    packed = rate << 44 | 0 << 41 | 15 << 36 | rate * seconds
    info = struct.pack(">HH", 4_096, 4_096) + bytes(6) + struct.pack(">Q", packed) + bytes(16)
    return b"fLaC\x80" + len(info).to_bytes(3, "big") + info + bytes(seconds * 4_000)


def atom(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data) + 8) + kind + data


def make_m4a(seconds: int, *, last: bool) -> bytes:
    """Its index before the sound, or behind it."""
    mvhd = atom(b"mvhd", bytes(12) + struct.pack(">II", 1_000, seconds * 1_000) + bytes(80))
    parts = [atom(b"moov", mvhd), atom(b"mdat", bytes(seconds * 4_000))]
    return atom(b"ftyp", b"M4A \0\0\0\0") + b"".join(parts[::-1] if last else parts)


def make_opus(seconds: int) -> bytes:
    pages = [ogg_page(0, OPUS_HEAD), *(ogg_page(48_000 * second, bytes(250)) for second in range(1, seconds))]
    stranger = ogg_page(2**40, serial=8)
    return b"".join(pages) + ogg_page(48_000 * seconds + 312) + stranger + ogg_page(-1)


def make_webm(seconds: int, cluster_bytes: int = 160_000) -> bytes:
    """As a browser records it: no length, and a cluster every ten seconds."""
    clusters = (
        b"\x1f\x43\xb6\x75\x01\xff\xff\xff\xff\xff\xff\xff\xe7\x83" + (second * 1_000).to_bytes(3, "big")
        for second in range(0, seconds, 10)
    )
    return EBML + bytes(100) + b"".join(cluster + bytes(cluster_bytes) for cluster in clusters)


def make_big_picture_mp3() -> bytes:
    """A tag of 300,000 bytes before frames whose bitrate changes and which no header counts: a second of them."""
    size = bytes((300_000 >> shift) & 127 for shift in (21, 14, 7, 0))
    frames = [make_mp3(1), b"\xff\xfb\xa0\x64" + bytes(518)] * 19  # 128 and 160 kbit/s
    return b"ID3\x04\0\0" + size + bytes(300_000) + b"".join(frames)


@pytest.mark.parametrize(
    ("data", "ms"),
    [
        (make_wav(2.5), 2_500),
        (make_wav(120.0, 48_000), 120_000),
        (make_mp3(100), 2_613),
        (make_big_picture_mp3(), 993),
        (make_flac(7), 7_000),
        (make_m4a(60, last=False), 60_000),
        (make_m4a(60, last=True), 60_000),
        (make_opus(90), 90_000),
        (EBML + b"\x44\x89\x84" + struct.pack(">f", 9_000) + bytes(20_000), 9_000),
    ],
    ids=["wav", "long wav", "mp3", "mp3 behind a picture", "flac", "m4a", "m4a with its index last", "opus", "webm"],
)
async def test_files_say_how_long_they_sound(data: bytes, ms: int) -> None:
    found, call = await hear(data)
    assert found == call.sound_ms == ms


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
        b"ID3\x04\0\0\x7f\x7f\x7f\x7f",
    ],
    ids=lambda data: data[:12].hex(),
)
async def test_what_says_nothing_is_taken_for_what_it_hardly_exceeds(data: bytes) -> None:
    found, call = await hear(data)
    assert found is None
    assert call.sound_ms == min(-(-len(data) // 2), MAX_DURATION_MS)


async def test_a_header_that_lies_moves_a_length_no_further_than_is_possible() -> None:
    hour_short = make_m4a(3_600, last=False).replace(struct.pack(">I", 3_600_000), struct.pack(">I", 1))
    found, _ = await hear(hour_short)
    assert found == -(-len(hour_short) * 8_000 // 10_000_000)
    found, _ = await hear(make_m4a(1, last=False).replace(struct.pack(">I", 1_000) * 2, struct.pack(">II", 1, 2**31)))
    assert found == len(make_m4a(1, last=False)) * 8


async def test_a_call_without_files_is_as_it_was() -> None:
    call = Call("speech", "m", {}, sound_ms=5)
    assert await listen(call) is call


ASF = b"\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9\x00\xaa\x00\x62\xce\x6c" + bytes(13) + b"\x02"
STARTS = [b"", b"ID3", b"\xff\xfb\x90\x64", b"OggS\0", b"fLaC", b"RIFF\0\0\0\0WAVEfmt ", b"\0\0\0\x20ftypM4A ", EBML,
          b"FORM\0\0\0\0AIFF", ASF]  # fmt: skip
WHOLE = [make_wav(1.0), make_mp3(40), make_flac(2), make_m4a(2, last=True), make_opus(9), make_webm(20, 99)]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(STARTS), st.binary(max_size=300), st.integers(0, 3))
async def test_no_file_is_a_fault(start: bytes, data: bytes, times: int) -> None:
    await hear(start + data * 4**times)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(WHOLE),
    st.integers(0, 400),
    st.binary(max_size=8),
    st.integers(0, 3_000),
)
async def test_nor_is_one_that_was_spoilt_or_cut(whole: bytes, at: int, junk: bytes, length: int) -> None:
    spoilt = whole[:at] + junk + whole[at + len(junk) :]
    await hear(spoilt)
    await hear(spoilt[:length])
