"""How long the sound is that came with a call: told before money is held for it.

The headers of a file are read, and of its sound the beginnings of frames in a few blocks of it, in memory. Which blocks
is left to chance, so that nobody can put there what is not elsewhere.

=======  ================================  ===================================  ===================  ===============
format   told by                           checked by                           charged at least     held at least
=======  ================================  ===================================  ===================  ===============
WAV      the rate of its samples           (it is played at that rate)          as told              as told
MP3      a header, or its first frames     frames of MPEG audio                 size / 320 kbit/s    as charged
FLAC     its header                        frames of FLAC                       size / 10 Mbit/s     as charged
Ogg      its last page                     packets of Opus, pages of Vorbis     size / 512 kbit/s    as charged
WebM     its header, its last cluster      packets of Opus                      size / 512 kbit/s    size / 128 kbit/s
MP4      its header                        the frames that its index lists      size / 512 kbit/s    size / 128 kbit/s
others   a header, if any                  nothing                              size / 512 kbit/s    size / 16 kbit/s
unknown  nothing                           nothing                              size / 16 kbit/s     as charged
=======  ================================  ===================================  ===================  ===============

Held is the longest of what is told, what was seen and that. Charged is what the provider says; where it says nothing,
what is told, or what was seen if that is more than twice as long. WebM and MP4 in which nothing is seen are "others";
a FLAC, MP3 or Ogg file in which nothing is seen is "unknown". No length is believed at which the file would have less
than 1 kbit/s, not even a provider's.

What is left: sound of less than 16 kbit/s in what nobody can read costs up to three times its hold, and who packs the
frames of a WebM or MP4 file so that they are not found (laced, several in one) holds for 128 kbit/s what may have 8.
Either is charged in full where the provider says a length. A film holds more than it takes: its pictures are taken for
sound.
"""

import asyncio
import random
from collections.abc import Callable
from io import SEEK_CUR, SEEK_END, SEEK_SET
from typing import BinaryIO, TypeVar, cast

import attrs
from tinytag import TinyTag, TinyTagException

from gateway.domain.audio import (
    CLUSTER_BYTES,
    LOSSY_BITRATE,
    MOST_BITRATE,
    MP3_BITRATE,
    OGG_MARK,
    OGG_PAGE_BYTES,
    UNKNOWN_BITRATE,
    USUAL_BITRATE,
    WEBM_HEAD,
    WEBM_MARK,
    Ceiling,
    Length,
    count_heard_tokens,
    find_ogg_rate,
    find_wav_seconds,
    find_webm_seconds,
    is_wav,
    parse_cluster_seconds,
    parse_ogg_page,
    weigh_length,
)
from gateway.domain.frames import (
    FLAC_MARK,
    FindFrames,
    count_mp4_seconds,
    find_mpeg_frames,
    find_webm_packets,
    is_mpeg,
    is_opus_only,
    make_flac_finder,
    make_ogg_finder,
    measure_seconds,
)
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.upload import Spooled
from gateway.domain.usage import MAX_DURATION_MS

BLOCK_BYTES = 64 * 1024
MAX_BLOCKS = 24
"""Of one file. Half a minute of an MP3 whose bitrate changes is looked at, behind the pictures in its tags."""
MAX_READS = 50_000
"""Of one file, however often its reader begins anew: about 50 ms."""
MAX_MARKS = 2_000
"""Places of one file that look like the beginning of a page or a cluster: about 1 ms."""
MAX_READ_BYTES = 256 * 1024
"""At once: no header is as long, whatever it says."""
MAX_TAGS = 4
"""Before the sound of an MP3."""
STRETCHES = 16
"""Of one file, looked at for frames: about 10 ms, and a tenth of its length more or less where its bitrate changes."""

PLAIN = Ceiling(MOST_BITRATE, MOST_BITRATE)
MP3 = Ceiling(MP3_BITRATE, MP3_BITRATE)
LOSSY = Ceiling(LOSSY_BITRATE, LOSSY_BITRATE)
SEEN = Ceiling(LOSSY_BITRATE, USUAL_BITRATE)
UNSEEN = Ceiling(LOSSY_BITRATE, UNKNOWN_BITRATE)

_SECOND_MS = 1_000
_TAG_MARK = b"ID3"
_TAG_HEAD_BYTES = 10
_TAG_HAS_FOOT = 16
_MP4_MARK = b"ftyp"

T = TypeVar("T")
Dice = Callable[[], float]


async def listen(call: InferenceRequest, rng: Dice = random.random) -> InferenceRequest:
    """``call`` with the length of the sound in its files, and the tokens a model makes of it.

    Where a file does not say, its upload has no length. The call's is what it hardly exceeds, in whole seconds, as
    providers count. ``rng``: 0 to 1.
    """
    if not call.files:
        return call
    lengths = [await _listen_to(upload.spooled, rng) for upload in call.files]
    heard = zip(call.files, lengths, strict=True)
    files = tuple(attrs.evolve(upload, duration_ms=length.believed_ms) for upload, length in heard)
    sound_ms = min(sum(-(-length.bound_ms // _SECOND_MS) * _SECOND_MS for length in lengths), MAX_DURATION_MS)
    max_prompt_tokens = call.max_prompt_tokens + count_heard_tokens(sound_ms)
    return attrs.evolve(call, files=files, sound_ms=sound_ms, max_prompt_tokens=max_prompt_tokens)


async def _listen_to(spooled: Spooled, rng: Dice) -> Length:
    head = await spooled.read(0, BLOCK_BYTES)
    if is_wav(head):
        return weigh_length(find_wav_seconds(head, spooled.size), None, spooled.size, PLAIN)
    if head.startswith(OGG_MARK):
        return await _listen_to_ogg(spooled, head, rng)
    if head.startswith(WEBM_HEAD):
        return await _listen_to_webm(spooled, head, rng)
    told = await _measure(spooled, glimpse := _Glimpse(spooled.size, head))
    if head.startswith(FLAC_MARK):
        seen = None if told is None else await _sample(spooled, 0, make_flac_finder(head), rng)
        return weigh_length(told, seen, spooled.size, PLAIN)
    if head.startswith(_TAG_MARK) or is_mpeg(head):
        return await _listen_to_mp3(spooled, told, rng)
    seen = count_mp4_seconds(glimpse.join()) if head[4:8] == _MP4_MARK else 0.0
    return _weigh_container(told, seen, spooled.size)


def _weigh_container(told: float | None, seen: float, size: int) -> Length:
    """Of what may have its sound in ways that cannot be seen, and pictures beside it."""
    return weigh_length(told, seen, size, SEEN) if seen else weigh_length(told, None, size, UNSEEN)


async def _listen_to_ogg(spooled: Spooled, head: bytes, rng: Dice) -> Length:
    told = await _measure_ogg(spooled, head)
    seen = None if told is None else await _sample(spooled, 0, make_ogg_finder(head), rng)
    return weigh_length(told, seen, spooled.size, LOSSY)


async def _listen_to_webm(spooled: Spooled, head: bytes, rng: Dice) -> Length:
    told = await _measure_webm(spooled, head)
    seen = await _sample(spooled, 0, find_webm_packets, rng) if is_opus_only(head) else 0.0
    return _weigh_container(told, seen, spooled.size)


async def _listen_to_mp3(spooled: Spooled, told: float | None, rng: Dice) -> Length:
    """Without its tags, which may have pictures; what is no MP3 behind them may be anything."""
    start = await _skip_tags(spooled)
    if not is_mpeg((await spooled.read(start, BLOCK_BYTES)).lstrip(b"\0")):
        return weigh_length(None, None, spooled.size, MP3)
    seen = None if told is None else await _sample(spooled, start, find_mpeg_frames, rng)
    return weigh_length(told, seen, spooled.size - start, MP3)


async def _skip_tags(spooled: Spooled) -> int:
    """Where the sound begins, behind tags in ID3v2 (id3.org/id3v2.4.0-structure, 3.1)."""
    start = 0
    for _ in range(MAX_TAGS):
        tag = await spooled.read(start, _TAG_HEAD_BYTES)
        if not tag.startswith(_TAG_MARK) or len(tag) < _TAG_HEAD_BYTES:
            break
        length = sum((byte & 127) << shift for byte, shift in zip(tag[6:], (21, 14, 7, 0), strict=True))
        start += _TAG_HEAD_BYTES * (2 if tag[5] & _TAG_HAS_FOOT else 1) + length
    return start


async def _sample(spooled: Spooled, start: int, find: FindFrames, rng: Dice) -> float:
    """Seconds that a file sounds from ``start`` on, by the frames that begin in a few stretches of it.

    Each is somewhere in its own share of the file; a file that is short is looked at whole.
    """
    size = max(spooled.size - start, 1)
    share = max(size / STRETCHES, BLOCK_BYTES)
    seconds = looked = 0.0
    for number in range(STRETCHES):
        at = int(number * share + rng() * (share - BLOCK_BYTES))
        stretch = min(BLOCK_BYTES, size - at)
        if stretch <= 0:
            break
        block = await spooled.read(start + at, 2 * BLOCK_BYTES)  # a page may go on behind it
        seconds += measure_seconds(block, stretch, find)
        looked += stretch
    return seconds * size / looked


async def _measure_ogg(spooled: Spooled, head: bytes) -> float | None:
    """By its last page: between the first and that one a reader would have to go from page to page."""
    rate, first = find_ogg_rate(head), parse_ogg_page(head)
    if rate is None or first is None:
        return None

    def read_end(page: bytes) -> int | None:
        found = parse_ogg_page(page)
        return found[0] if found and found[1] == first[1] else None

    last = await _find_last(spooled, OGG_MARK, OGG_PAGE_BYTES, read_end)
    return None if last is None else (last[1] - rate[1]) / rate[0]


async def _measure_webm(spooled: Spooled, head: bytes) -> float | None:
    """As it says, and as long as its last cluster begins; else by that, and what share of the file it is."""
    told = find_webm_seconds(head)
    last = await _find_last(spooled, WEBM_MARK, CLUSTER_BYTES, lambda cluster: parse_cluster_seconds(head, cluster))
    if last is None:
        return told
    at, begins = last
    return max(told, begins) if told else begins * spooled.size / max(at, 1)


async def _find_last(
    spooled: Spooled,
    mark: bytes,
    length: int,
    read: Callable[[bytes], T | None],
) -> tuple[int, T] | None:
    """The last place where ``mark`` is and ``read`` makes something of the ``length`` bytes there; where, and what."""
    marks = 0
    for number in range(1, MAX_BLOCKS + 1):
        start = max(spooled.size - number * BLOCK_BYTES, 0)
        block = await spooled.read(start, BLOCK_BYTES + length)
        at = block.rfind(mark, 0, BLOCK_BYTES + len(mark) - 1)
        while at >= 0 and marks < MAX_MARKS:
            marks += 1
            found = read(block[at : at + length])
            if found is not None:
                return start + at, found
            at = block.rfind(mark, 0, at + len(mark) - 1)
        if not start or marks == MAX_MARKS:
            break
    return None


async def _measure(spooled: Spooled, glimpse: "_Glimpse") -> float | None:
    """Seconds; None where the file does not say, or takes too long to.

    Where its reader asks for a block that is not there, that is fetched and the reader begins anew: so it needs no
    thread to wait in.
    """
    for _ in range(MAX_BLOCKS):
        # Headers that lead in circles are the caller's choice, and the loop has others to serve.
        seconds = await asyncio.to_thread(_parse_length, glimpse)
        number = glimpse.take_missing()
        if number is None:
            return seconds
        glimpse.blocks[number] = await spooled.read(number * BLOCK_BYTES, BLOCK_BYTES)
    return None


def _parse_length(glimpse: "_Glimpse") -> float | None:
    glimpse.seek(0)
    try:
        return TinyTag.get(file_obj=cast("BinaryIO", glimpse), tags=False).duration
    except (TinyTagException, _NotThereError):  # whatever else a header leads to, the reader makes the first of it
        return None


class _NotThereError(OSError):
    """A block that has to be fetched, or more than a header is worth."""


class _Glimpse:
    """A file of which only some blocks are there.

    Attributes:
        blocks: those that are there, by their number.
    """

    def __init__(self, size: int, head: bytes) -> None:
        self.blocks = {0: head}
        self._missing: int | None = None
        self._size = size
        self._at = 0
        self._reads = 0

    def take_missing(self) -> int | None:
        """The block that was asked for and is not there; it is asked for no more."""
        missing, self._missing = self._missing, None
        return missing

    def join(self) -> bytes:
        """All that is there."""
        return b"".join(block for _, block in sorted(self.blocks.items()))

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        """As of any file."""
        at = offset + {SEEK_SET: 0, SEEK_CUR: self._at, SEEK_END: self._size}[whence]
        if at < 0:
            raise _NotThereError
        self._at = at
        return at

    def read(self, size: int) -> bytes:
        """As of any file. Raises ``_NotThereError``."""
        self._reads += 1
        end = min(self._at + size, self._size)
        if self._missing is not None or self._reads > MAX_READS or not 0 <= size <= MAX_READ_BYTES:
            raise _NotThereError
        pieces = []
        while self._at < end:
            number, skipped = divmod(self._at, BLOCK_BYTES)
            if number not in self.blocks:
                self._missing = number
                raise _NotThereError
            piece = self.blocks[number][skipped : skipped + end - self._at]
            if not piece:  # the file is shorter than it was
                raise _NotThereError
            pieces.append(piece)
            self._at += len(piece)
        return b"".join(pieces)
