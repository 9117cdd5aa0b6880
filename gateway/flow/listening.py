"""How long the sound is that came with a call: told before money is held for it.

The headers of a file are read, never its sound: a few blocks of it, in memory. Where the reader asks for one that is
not there, it is fetched and the reader begins anew: so it needs no thread to wait in.
"""

import asyncio
from collections.abc import Callable
from io import SEEK_CUR, SEEK_END, SEEK_SET
from typing import BinaryIO, TypeVar, cast

import attrs
from tinytag import TinyTag, TinyTagException

from gateway.domain.call import Call
from gateway.domain.sound import (
    CLUSTER_BYTES,
    OGG_MARK,
    OGG_PAGE_BYTES,
    WEBM_HEAD,
    WEBM_MARK,
    bound_length_ms,
    count_heard_tokens,
    find_ogg_rate,
    find_webm_seconds,
    fit_length_ms,
    read_cluster_seconds,
    read_ogg_page,
)
from gateway.domain.upload import Spooled, Upload
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

T = TypeVar("T")


async def listen(call: Call) -> Call:
    """``call`` with the length of the sound in its files, and the tokens a model makes of it.

    Where a file does not say, its upload has no length, and the call's is what it hardly exceeds.
    """
    if not call.files:
        return call
    files = tuple([await _listen_to(upload) for upload in call.files])
    lengths = (bound_length_ms(file.size) if file.duration_ms is None else file.duration_ms for file in files)
    sound_ms = min(sum(lengths), MAX_DURATION_MS)
    prompt_bound = call.prompt_bound + count_heard_tokens(sound_ms)
    return attrs.evolve(call, files=files, sound_ms=sound_ms, prompt_bound=prompt_bound)


async def _listen_to(upload: Upload) -> Upload:
    head = await upload.spooled.read(0, BLOCK_BYTES)
    if head.startswith(OGG_MARK):
        seconds = await _measure_ogg(upload.spooled, head)
    elif head.startswith(WEBM_HEAD):
        seconds = await _measure_webm(upload.spooled, head)
    else:
        seconds = await _measure(upload.spooled, head)
    length_ms = None if seconds is None else fit_length_ms(seconds, upload.size)
    return attrs.evolve(upload, duration_ms=length_ms)


async def _measure_ogg(spooled: Spooled, head: bytes) -> float | None:
    """By its last page: between the first and that one a reader would have to go from page to page."""
    rate, first = find_ogg_rate(head), read_ogg_page(head)
    if rate is None or first is None:
        return None

    def read_end(page: bytes) -> int | None:
        found = read_ogg_page(page)
        return found[0] if found and found[1] == first[1] else None

    last = await _find_last(spooled, OGG_MARK, OGG_PAGE_BYTES, read_end)
    return None if last is None else (last[1] - rate[1]) / rate[0]


async def _measure_webm(spooled: Spooled, head: bytes) -> float | None:
    """As it says; else by where its last cluster begins, and what share of the file that is."""
    told = find_webm_seconds(head)
    if told:
        return told
    last = await _find_last(spooled, WEBM_MARK, CLUSTER_BYTES, lambda cluster: read_cluster_seconds(head, cluster))
    return None if last is None else last[1] * spooled.size / max(last[0], 1)


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


async def _measure(spooled: Spooled, head: bytes) -> float | None:
    """Seconds; None where the file does not say, or takes too long to."""
    glimpse = _Glimpse(spooled.size, head)
    for _ in range(MAX_BLOCKS):
        # Headers that lead in circles are the caller's choice, and the loop has others to serve.
        seconds = await asyncio.to_thread(_read_length, glimpse)
        number = glimpse.take_missing()
        if number is None:
            return seconds
        glimpse.blocks[number] = await spooled.read(number * BLOCK_BYTES, BLOCK_BYTES)
    return None


def _read_length(glimpse: "_Glimpse") -> float | None:
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
