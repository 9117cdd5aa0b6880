"""Finds frames of compressed audio in a file, to check the duration in the file's header.

A decoder plays every frame that it finds, whatever the header says. A finder takes a part of a file, starting anywhere,
and yields each position that looks like the start of a frame, with the frame's seconds. It yields some false positives,
but these cannot hide a real frame.
"""

import re
from collections.abc import Callable, Iterator

from gateway.domain.audio import ASSUMED_BITRATE, OGG_MARK, OGG_PAGE_BYTES

Frames = Iterator[tuple[int, float]]
"""The start of each frame, in the order of the file, and its seconds."""
FindFrames = Callable[[bytes], Frames]

MAX_FRAMES = 2_000
"""Maximum number of frames read from one part of a file; takes about 2 ms."""


def measure_seconds(block: bytes, max_offset: int, find_frames: FindFrames) -> float:
    """Return the seconds of the frames that start in the first ``max_offset`` bytes.

    If there are more than ``MAX_FRAMES`` of them, the result is an estimate.
    """
    seconds = 0.0
    for count, (offset, length) in enumerate(find_frames(block)):
        if offset >= max_offset:
            break
        if count == MAX_FRAMES:
            return seconds * max_offset / max(offset, 1)
        seconds += length
    return seconds


# MPEG audio (ISO/IEC 11172-3, 2.4.2.3; 13818-3): MP3 is its layer III

_MPEG_FRAME_PATTERN = re.compile(rb"\xff[\xe2-\xe7\xf2-\xf7\xfa-\xff][\x00-\xef]")
_MPEG_SAMPLES = {1: (576, 1_152), 2: (1_152, 1_152), 3: (384, 384)}
"""Samples in a frame by the two bits of its layer (1 is III): of the later versions, and of the first."""
_MPEG_RATES = (44_100, 48_000, 32_000)
"""Samples a second of the first version, by two bits of a header. The fourth value of these bits is invalid."""
_MPEG_DIVISORS = {3: 1, 2: 2, 0: 4}
"""Divisor of those rates by the two bits of the version."""
_FIRST_VERSION = 3


def is_mpeg(start: bytes) -> bool:
    """Return whether ``start`` begins with an MPEG audio frame."""
    return _MPEG_FRAME_PATTERN.match(start) is not None and _parse_mpeg_seconds(start[:3]) > 0


def find_mpeg_frames(block: bytes) -> Frames:
    """Yield the frames of any MPEG audio layer and bitrate."""
    for match in _MPEG_FRAME_PATTERN.finditer(block):
        yield match.start(), _parse_mpeg_seconds(match[0])


def _parse_mpeg_seconds(header: bytes) -> float:
    """Return the seconds of a frame; 0 if ``header`` is no frame header."""
    version, layer, rate_code = header[1] >> 3 & 3, header[1] >> 1 & 3, header[2] >> 2 & 3
    samples = _MPEG_SAMPLES[layer][version == _FIRST_VERSION]
    return samples * _MPEG_DIVISORS[version] / _MPEG_RATES[rate_code] if rate_code < len(_MPEG_RATES) else 0.0


# FLAC (RFC 9639, 9.1)

FLAC_MARK = b"fLaC"
_FLAC_FRAME_PATTERN = re.compile(rb"\xff[\xf8\xf9][\x10-\xfe][\x00-\xae]", re.DOTALL)
_FLAC_SIZES = {1: 192} | {code: 144 << code for code in range(2, 6)} | {code: 1 << code for code in range(8, 16)}
_FLAC_RATES = {1: 88_200, 2: 176_400, 3: 192_000, 4: 8_000, 5: 16_000, 6: 22_050, 7: 24_000, 8: 32_000, 9: 44_100,
               10: 48_000, 11: 96_000}  # fmt: skip
_FLAC_RATE_UNITS = {12: (1, 1_000), 13: (2, 1), 14: (2, 10)}
"""The bytes at a header's end that hold the rate, and the samples a second of one unit."""
_FLAC_RATE_OFFSET = 18
_FLAC_HEADER_BYTES = 16


def _advance_crc(value: int) -> int:
    for _ in range(8):
        value = value << 1 ^ (0x107 if value & 0x80 else 0)
    return value


_CRC_TABLE = bytes(map(_advance_crc, range(256)))


def make_flac_finder(head: bytes) -> FindFrames:
    """Return the finder for a file that starts with ``head``: a frame may use the rate of the file."""
    default_rate = int.from_bytes(head[_FLAC_RATE_OFFSET : _FLAC_RATE_OFFSET + 3], "big") >> 4

    def find(block: bytes) -> Frames:
        for match in _FLAC_FRAME_PATTERN.finditer(block):
            yield match.start(), _parse_flac_seconds(block[match.start() :][:_FLAC_HEADER_BYTES], default_rate)

    return find


def _parse_flac_seconds(header: bytes, default_rate: int) -> float:
    """Return the seconds of a frame; 0 if ``header`` is no frame header."""
    size_code, rate_code = header[2] >> 4, header[2] & 15
    offset = 4 + _count_coded_bytes(header[4:5])
    size = _FLAC_SIZES.get(size_code, 0)
    if not size:
        length = size_code - 5  # 6 and 7: one byte or two
        size, offset = int.from_bytes(header[offset : offset + length], "big") + 1, offset + length
    rate = _FLAC_RATES.get(rate_code, default_rate)
    if rate_code in _FLAC_RATE_UNITS:
        length, unit = _FLAC_RATE_UNITS[rate_code]
        rate, offset = int.from_bytes(header[offset : offset + length], "big") * unit, offset + length
    return size / rate if rate and _has_valid_crc(header[: offset + 1], offset + 1) else 0.0


def _count_coded_bytes(first_byte: bytes) -> int:
    """Return the length of a number in extended UTF-8: the ones before a zero in its first byte."""
    return max(8 - (first_byte[0] ^ 0xFF).bit_length(), 1) if first_byte else 1


def _has_valid_crc(header: bytes, length: int) -> bool:
    crc = 0
    for byte in header:
        crc = _CRC_TABLE[crc ^ byte]
    return len(header) == length and crc == 0


# Opus (RFC 6716, 3.1) and Vorbis (Vorbis I, 4.3) in Ogg (RFC 3533, 6), Opus in WebM (RFC 9559, 10.2)

_OPUS_MS = (10, 20, 40, 60) * 3 + (10, 20) * 2 + (2.5, 5, 10, 20) * 4
_OPUS_MAX_MS = 120
_OPUS_TOC_BYTES = 2
"""The bytes of a packet that give its duration."""
_CONTINUED_SEGMENT = 255
"""A segment of this length continues in the next one."""
_CONTINUED_PAGE_FLAG = 1


def parse_opus_seconds(packet: bytes) -> float:
    """Return the seconds of an Opus packet by its first two bytes; 0 for anything else, such as a header."""
    if not packet:
        return 0.0
    code = packet[0] & 3
    frames = (1, 2, 2)[code] if code < 3 else packet[1] & 63 if len(packet) > 1 else 1  # noqa: PLR2004 - as coded
    length_ms = _OPUS_MS[packet[0] >> 3] * frames
    return length_ms / 1_000 if length_ms <= _OPUS_MAX_MS else 0.0


def make_ogg_finder(head: bytes) -> FindFrames:
    """Return the finder for packets of the file's first stream. A Vorbis packet counts as the longest possible one.

    A page of another stream counts by its size, at ``ASSUMED_BITRATE``.
    """
    serial, packet = head[14:18], head[OGG_PAGE_BYTES + head[26] :][:30]
    read_seconds = parse_opus_seconds if packet.startswith(b"OpusHead") else _make_vorbis_reader(packet)

    def find(block: bytes) -> Frames:
        offset = block.find(OGG_MARK)
        while 0 <= offset <= len(block) - OGG_PAGE_BYTES:
            lacing = block[offset + OGG_PAGE_BYTES :][: block[offset + 26]]
            if block[offset + 14 : offset + 18] != serial:
                yield offset, sum(lacing) * 8 / ASSUMED_BITRATE
            else:
                yield from ((offset, read_seconds(packet)) for packet in _split_page(block, offset, lacing))
            offset = block.find(OGG_MARK, offset + 1)

    return find


def _make_vorbis_reader(first_packet: bytes) -> Callable[[bytes], float]:
    rate, blocks = int.from_bytes(first_packet[12:16], "little"), first_packet[28:29]
    max_block_s = (1 << (blocks[0] >> 4)) / 2 / rate if rate and blocks else 0.0
    return lambda packet: 0.0 if packet and packet[0] & 1 else max_block_s  # a header has no audio


def _split_page(block: bytes, offset: int, lacing: bytes) -> Iterator[bytes]:
    """Yield the first bytes of every packet that starts on a page."""
    is_packet_start = not block[offset + 5] & _CONTINUED_PAGE_FLAG
    offset += OGG_PAGE_BYTES + len(lacing)
    for length in lacing:
        if is_packet_start:
            yield block[offset : offset + _OPUS_TOC_BYTES]
        is_packet_start = length < _CONTINUED_SEGMENT
        offset += length


_WEBM_BLOCK_PATTERN = re.compile(rb"[\xa1\xa3](?=(?:[\x80-\xff]|[\x40-\x7f].|[\x20-\x3f].{2}|[\x10-\x1f].{3}"
                         rb"|[\x08-\x0f].{4}|[\x04-\x07].{5}|[\x02\x03].{6}|\x01.{7})[\x81-\x8f]..[\x00\x01\x08\x09\x80\x81\x88\x89]"
                         rb"(..))", re.DOTALL)  # fmt: skip
"""A block with one frame: its size, track, time and flags."""
_CODEC_PATTERN = re.compile(rb"A_[A-Z0-9/]{3,4}")
"""The beginning of a codec's name; a letter may follow."""


def is_opus_only(head: bytes) -> bool:
    """Return whether all audio of a WebM file is Opus."""
    return set(_CODEC_PATTERN.findall(head)) == {b"A_OPUS"}


def find_webm_packets(block: bytes) -> Frames:
    """Yield the Opus packets in a part of a WebM file."""
    for match in _WEBM_BLOCK_PATTERN.finditer(block):
        yield match.start(), parse_opus_seconds(match[1])


# AAC in MP4 (ISO/IEC 14496-12, 8.7.3.2)

_SAMPLE_SIZES_PATTERN = re.compile(rb"stsz\0{8}(.{4})", re.DOTALL)
_AAC_FRAME_S = 1_024 / 48_000


def count_mp4_seconds(index: bytes) -> float:
    """Return how many seconds the longest track has, taken as AAC at 48,000 samples a second; 0 without a track."""
    counts = (int.from_bytes(match[1], "big") for match in _SAMPLE_SIZES_PATTERN.finditer(index))
    return max(counts, default=0) * _AAC_FRAME_S
