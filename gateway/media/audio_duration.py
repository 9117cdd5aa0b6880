"""Measure the audio files of a request, before money is reserved for it.

Headers are read, and the beginnings of audio frames in a few blocks of the file. The blocks are chosen at random:
otherwise a client could put frames only into the blocks that are read.

=======  ================================  ===================================  ===================  ===============
format   length from                       checked by                           charged at least     held at least
=======  ================================  ===================================  ===================  ===============
WAV      the rate of its samples           (it is played at that rate)          as reported          as reported
MP3      a header, or its first frames     frames of MPEG audio                 size / 320 kbit/s    as charged
FLAC     its header                        frames of FLAC                       size / 10 Mbit/s     as charged
Ogg      its last page                     packets of Opus, pages of Vorbis     size / 512 kbit/s    as charged
WebM     its header, its last cluster      packets of Opus                      size / 512 kbit/s    size / 128 kbit/s
MP4      its header                        the frames that its index lists      size / 512 kbit/s    size / 128 kbit/s
others   a header, if any                  nothing                              size / 512 kbit/s    size / 16 kbit/s
unknown  nothing                           nothing                              size / 16 kbit/s     as charged
=======  ================================  ===================================  ===================  ===============

"Held" is the longest of the reported length, the length by frames, and the last column. "Charged" is the length that
the provider reports; without it, the reported length, or the length by frames if that is more than twice as long. WebM
and MP4 without recognized frames are "others"; FLAC, MP3 and Ogg without recognized frames are "unknown". A length at
which the file would have less than 1 kbit/s is ignored, even if a provider reports it.

Known limits: audio of less than 16 kbit/s in an unreadable format costs up to three times its reservation. A WebM or
MP4 file whose frames are not found (laced, several in one) is held at 128 kbit/s although it may have 8. Both are
charged in full if the provider reports a length. A film reserves more than it costs, because its images count as audio.
"""

import asyncio
import random
from collections.abc import Callable
from io import SEEK_CUR, SEEK_END, SEEK_SET
from typing import BinaryIO, TypeVar, cast

import attrs
from tinytag import TinyTag, TinyTagException

from gateway.domain import audio, frames
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.upload import SpooledData
from gateway.domain.usage import MAX_DURATION_MS

BLOCK_BYTES = 64 * 1024
MAX_BLOCKS = 24
"""Maximum number of blocks read per file. This covers half a minute of an MP3 with variable bitrate after the images in
its tags."""
MAX_READS = 50_000
"""Maximum number of reads per file, in all attempts of the parser together: about 50 ms."""
MAX_MARKS = 2_000
"""Maximum number of positions per file that look like the beginning of a page or a cluster: about 1 ms."""
MAX_READ_BYTES = 256 * 1024
"""Maximum number of bytes per read: no header is as long."""
MAX_TAGS = 4
"""Maximum number of tags before the audio of an MP3."""
MAX_SAMPLES = 16
"""Stretches per file that are searched for frames: about 10 ms, with an error of a tenth if the bitrate changes."""

PLAIN_CEILING = audio.BitrateCeiling(audio.MAX_BITRATE, audio.MAX_BITRATE)
MP3_CEILING = audio.BitrateCeiling(audio.MP3_BITRATE, audio.MP3_BITRATE)
LOSSY_CEILING = audio.BitrateCeiling(audio.LOSSY_BITRATE, audio.LOSSY_BITRATE)
SAMPLED_CEILING = audio.BitrateCeiling(audio.LOSSY_BITRATE, audio.TYPICAL_BITRATE)
UNSAMPLED_CEILING = audio.BitrateCeiling(audio.LOSSY_BITRATE, audio.ASSUMED_BITRATE)

_SECOND_MS = 1_000
_TAG_START = b"ID3"
_TAG_HEAD_BYTES = 10
_TAG_HAS_FOOT = 16
_MP4_MARK = b"ftyp"

T = TypeVar("T")
RandomSource = Callable[[], float]


async def measure_audio(inference: InferenceRequest, rng: RandomSource = random.random) -> InferenceRequest:
    """Return ``inference`` with the length of the audio in its files, and with more prompt tokens for that audio.

    A file of unknown length has no length in its upload. The request's own length is an upper estimate in whole
    seconds, as providers count them. ``rng`` returns 0 to 1.
    """
    if not inference.files:
        return inference
    lengths = [await _measure_file(upload.spooled, rng) for upload in inference.files]
    measured_uploads = zip(inference.files, lengths, strict=True)
    files = tuple(attrs.evolve(upload, duration_ms=length.believed_ms) for upload, length in measured_uploads)
    sound_ms = min(sum(-(-length.bound_ms // _SECOND_MS) * _SECOND_MS for length in lengths), MAX_DURATION_MS)
    max_prompt_tokens = inference.max_prompt_tokens + audio.count_audio_tokens(sound_ms)
    return attrs.evolve(inference, files=files, sound_ms=sound_ms, max_prompt_tokens=max_prompt_tokens)


async def _measure_file(file: SpooledData, rng: RandomSource) -> audio.Length:
    head = await file.read(0, BLOCK_BYTES)
    if audio.is_wav(head):
        return audio.estimate_length(audio.find_wav_seconds(head, file.size), None, file.size, PLAIN_CEILING)
    if head.startswith(audio.OGG_MARK):
        return await _measure_ogg(file, head, rng)
    if head.startswith(audio.WEBM_HEAD):
        return await _measure_webm(file, head, rng)
    header_s = await _measure_by_header(file, partial_file := _PartialFile(file.size, head))
    if head.startswith(frames.FLAC_MARK):
        sampled_s = None if header_s is None else await _sample(file, 0, frames.make_flac_finder(head), rng)
        return audio.estimate_length(header_s, sampled_s, file.size, PLAIN_CEILING)
    if head.startswith(_TAG_START) or frames.is_mpeg(head):
        return await _measure_mp3(file, header_s, rng)
    sampled_s = frames.count_mp4_seconds(partial_file.join()) if head[4:8] == _MP4_MARK else 0.0
    return _weigh_container(header_s, sampled_s, file.size)


def _weigh_container(header_s: float | None, sampled_s: float, size: int) -> audio.Length:
    return (
        audio.estimate_length(header_s, sampled_s, size, SAMPLED_CEILING)
        if sampled_s
        else audio.estimate_length(header_s, None, size, UNSAMPLED_CEILING)
    )


async def _measure_ogg(file: SpooledData, head: bytes, rng: RandomSource) -> audio.Length:
    header_s = await _find_ogg_seconds(file, head)
    sampled_s = None if header_s is None else await _sample(file, 0, frames.make_ogg_finder(head), rng)
    return audio.estimate_length(header_s, sampled_s, file.size, LOSSY_CEILING)


async def _measure_webm(file: SpooledData, head: bytes, rng: RandomSource) -> audio.Length:
    header_s = await _find_webm_seconds(file, head)
    sampled_s = await _sample(file, 0, frames.find_webm_packets, rng) if frames.is_opus_only(head) else 0.0
    return _weigh_container(header_s, sampled_s, file.size)


async def _measure_mp3(file: SpooledData, header_s: float | None, rng: RandomSource) -> audio.Length:
    """Return the length of an MP3 without its tags, which may contain images.

    ``header_s``: the length in seconds that the file states; None if unknown.
    """
    start = await _skip_tags(file)
    if not frames.is_mpeg((await file.read(start, BLOCK_BYTES)).lstrip(b"\0")):
        return audio.estimate_length(None, None, file.size, MP3_CEILING)
    sampled_s = None if header_s is None else await _sample(file, start, frames.find_mpeg_frames, rng)
    return audio.estimate_length(header_s, sampled_s, file.size - start, MP3_CEILING)


async def _skip_tags(file: SpooledData) -> int:
    """Return the offset of the audio after ID3v2 tags (id3.org/id3v2.4.0-structure, 3.1)."""
    start = 0
    for _ in range(MAX_TAGS):
        tag = await file.read(start, _TAG_HEAD_BYTES)
        if not tag.startswith(_TAG_START) or len(tag) < _TAG_HEAD_BYTES:
            break
        length = sum((byte & 127) << shift for byte, shift in zip(tag[6:], (21, 14, 7, 0), strict=True))
        start += _TAG_HEAD_BYTES * (2 if tag[5] & _TAG_HAS_FOOT else 1) + length
    return start


async def _sample(file: SpooledData, start: int, find: frames.FindFrames, rng: RandomSource) -> float:
    """Estimate the seconds of audio from ``start`` on by the frames that begin in a few random stretches.

    Each stretch lies in its own share of the file; a short file is searched completely.
    """
    size = max(file.size - start, 1)
    share_bytes = max(size / MAX_SAMPLES, BLOCK_BYTES)
    seconds = searched_bytes = 0.0
    for number in range(MAX_SAMPLES):
        position = int(number * share_bytes + rng() * (share_bytes - BLOCK_BYTES))
        block_size = min(BLOCK_BYTES, size - position)
        if block_size <= 0:
            break
        block = await file.read(start + position, 2 * BLOCK_BYTES)  # a page may extend beyond the block
        seconds += frames.measure_seconds(block, block_size, find)
        searched_bytes += block_size
    return seconds * size / searched_bytes


async def _find_ogg_seconds(file: SpooledData, head: bytes) -> float | None:
    """Return the length of an Ogg file in seconds, from its last page; None if it cannot be read.

    A parser would have to read all pages.
    """
    rate, first_page = audio.find_ogg_rate(head), audio.parse_ogg_page(head)
    if rate is None or first_page is None:
        return None

    def read_end(page: bytes) -> int | None:
        end = audio.parse_ogg_page(page)
        return end[0] if end and end[1] == first_page[1] else None

    last_match = await _find_last_match(file, audio.OGG_MARK, audio.OGG_PAGE_BYTES, read_end)
    return None if last_match is None else (last_match[1] - rate[1]) / rate[0]


async def _find_webm_seconds(file: SpooledData, head: bytes) -> float | None:
    """Return the longer of the header's length and the last cluster's time, in seconds; None if neither is known.

    Without a length in the header, the seconds are estimated from the last cluster.
    """
    header_s = audio.find_webm_seconds(head)
    last_match = await _find_last_match(
        file, audio.WEBM_MARK, audio.CLUSTER_BYTES, lambda cluster: audio.parse_cluster_seconds(head, cluster)
    )
    if last_match is None:
        return header_s
    position, cluster_s = last_match
    return max(header_s, cluster_s) if header_s else cluster_s * file.size / max(position, 1)


async def _find_last_match(
    file: SpooledData, literal: bytes, length: int, parse: Callable[[bytes], T | None]
) -> tuple[int, T] | None:
    """Find the last ``literal`` for which ``parse`` returns a result, given ``length`` bytes from there on.

    Return its position in the file and the result; None if there is none in the last ``MAX_BLOCKS`` blocks of the file,
    or among the last ``MAX_MARKS`` literals.
    """
    match_count = 0
    for number in range(1, MAX_BLOCKS + 1):
        start = max(file.size - number * BLOCK_BYTES, 0)
        block = await file.read(start, BLOCK_BYTES + length)
        position = block.rfind(literal, 0, BLOCK_BYTES + len(literal) - 1)
        while position >= 0 and match_count < MAX_MARKS:
            match_count += 1
            result = parse(block[position : position + length])
            if result is not None:
                return start + position, result
            position = block.rfind(literal, 0, position + len(literal) - 1)
        if not start or match_count == MAX_MARKS:
            break
    return None


async def _measure_by_header(file: SpooledData, partial_file: "_PartialFile") -> float | None:
    """Return the seconds; None if the file states no length, is invalid, or takes too long to parse.

    If the parser reads a block that is not loaded, the block is loaded and the parser starts again.
    """
    for _ in range(MAX_BLOCKS):
        # The reads are limited because a client's headers may lead in circles, and the event loop serves other
        # requests.
        seconds = await asyncio.to_thread(_parse_length, partial_file)
        number = partial_file.take_missing()
        if number is None:
            return seconds
        partial_file.blocks[number] = await file.read(number * BLOCK_BYTES, BLOCK_BYTES)
    return None


def _parse_length(partial_file: "_PartialFile") -> float | None:
    partial_file.seek(0)
    try:
        return TinyTag.get(file_obj=cast("BinaryIO", partial_file), tags=False).duration
    except (TinyTagException, _MissingBytesError):  # the parser converts all other errors to the first of these
        return None


class _MissingBytesError(OSError):
    """A block must be loaded first, or the headers are invalid or too long."""


class _PartialFile:
    def __init__(self, size: int, head: bytes) -> None:
        self.blocks = {0: head}
        self._missing_block: int | None = None
        self._size = size
        self._position = 0
        self._read_count = 0

    def take_missing(self) -> int | None:
        block_number, self._missing_block = self._missing_block, None
        return block_number

    def join(self) -> bytes:
        return b"".join(block for _, block in sorted(self.blocks.items()))

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        position = offset + {SEEK_SET: 0, SEEK_CUR: self._position, SEEK_END: self._size}[whence]
        if position < 0:
            raise _MissingBytesError
        self._position = position
        return position

    def read(self, size: int) -> bytes:
        self._read_count += 1
        end = min(self._position + size, self._size)
        if self._missing_block is not None or self._read_count > MAX_READS or not 0 <= size <= MAX_READ_BYTES:
            raise _MissingBytesError
        pieces = []
        while self._position < end:
            number, offset = divmod(self._position, BLOCK_BYTES)
            if number not in self.blocks:
                self._missing_block = number
                raise _MissingBytesError
            piece = self.blocks[number][offset : offset + end - self._position]
            if not piece:  # the file has become shorter
                raise _MissingBytesError
            pieces.append(piece)
            self._position += len(piece)
        return b"".join(pieces)
