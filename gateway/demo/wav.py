"""The demo's speech (a beep for each word) and WAV files.

Format: Microsoft and IBM, "Multimedia Programming Interface and Data Specifications 1.0", RIFF. The file's comment
(``LIST`` ``INFO`` ``ICMT``) contains the text, which allows the demo to transcribe it.
"""

import math
import re
import struct
from collections.abc import Iterator
from hashlib import blake2b
from typing import BinaryIO

from gateway.frozen import frozen

SAMPLE_RATE = 24_000
"""Samples per second of one channel, two bytes each."""
MAX_SECONDS = 120
"""The longest speech; the rest of the text is left out."""

_MAX_CHUNKS = 1_000
_MAX_COMMENT_BYTES = 65_536
_SAMPLE_RATES = range(1_000, 768_001)
_MAX_BLOCK_BYTES = 256
_COMMENT_CHUNK = b"ICMT"
_SPEAKER_COMMENT = b"demo-speech"
_WORD_PATTERN = re.compile(r"\S{1,24}")  # bounded, because some scripts have no spaces
_MIN_HZ, _MAX_HZ = 220, 660
_LOUDNESS = 6_000
_BEEP_S, _LETTER_S, _GAP_S = 0.08, 0.02, 0.12


@frozen
class Speech:
    """A text as beeps.

    Attributes:
        words: the number of samples of each word's beep.
        silence: the number of samples of the silence after a beep.
    """

    tone_hz: float
    words: tuple[int, ...]
    silence: int
    text: str

    @property
    def samples(self) -> int:
        return sum(self.words) + self.silence * len(self.words)

    def write(self, beep: int) -> bytes:
        """Return the samples of one word: a fading beep and silence; 16 bits each, little-endian, one channel."""
        step = 2 * math.pi * self.tone_hz / SAMPLE_RATE
        values = [int(_LOUDNESS * (1 - position / beep) * math.sin(step * position)) for position in range(beep)]
        return struct.pack(f"<{beep}h", *values) + bytes(2 * self.silence)


def plan_speech(text: str, voice: str, speed: float = 1.0) -> Speech:
    """Plan the beeps of ``text``. Each voice has its own pitch. ``speed`` 2 halves the length of beeps and pauses."""
    (pitch,) = blake2b(voice.encode(errors="replace"), digest_size=1).digest()
    silence = round(_GAP_S * SAMPLE_RATE / speed)
    words: list[int] = []
    end, samples_left = 0, MAX_SECONDS * SAMPLE_RATE
    for match in _WORD_PATTERN.finditer(text):
        beep = round((_BEEP_S + _LETTER_S * len(match[0])) * SAMPLE_RATE / speed)
        samples_left -= beep + silence
        if samples_left < 0:
            break
        words.append(beep)
        end = match.end()
    tone_hz = _MIN_HZ + (_MAX_HZ - _MIN_HZ) * pitch / 255
    return Speech(tone_hz, tuple(words), silence, text[:end].strip())


@frozen
class Recording:
    """A recording: its length, and its words if the demo spoke them."""

    seconds: float
    words: str | None = None


def build_head(samples: int, words: str) -> bytes:
    """Return the part of a WAV file before its samples, which have 16 bits in one channel."""
    info = _build_chunk(b"ISFT", _SPEAKER_COMMENT + b"\0") + _build_chunk(
        _COMMENT_CHUNK, words.encode(errors="replace") + b"\0"
    )
    layout = struct.pack("<HHIIHH", 1, 1, SAMPLE_RATE, 2 * SAMPLE_RATE, 2, 16)
    body = b"WAVE" + _build_chunk(b"fmt ", layout) + _build_chunk(b"LIST", b"INFO" + info)
    data = b"data" + struct.pack("<I", 2 * samples)
    return b"RIFF" + struct.pack("<I", len(body) + len(data) + 2 * samples) + body + data


def find_recording(file: BinaryIO, size: int) -> Recording | None:
    """Return the recording in a WAV file of ``size`` bytes; None if it is no WAV file, or its header cannot be read.

    The file may be shorter than its header says.
    """
    file.seek(0)
    head = file.read(12)
    if head[:4] != b"RIFF" or head[8:] != b"WAVE":
        return None
    rate: int | None = None
    info: dict[bytes, str] = {}
    for kind, length in _parse_chunks(file):
        begin = file.tell()
        if kind == b"data":
            if rate is None:
                return None
            words = info.get(_COMMENT_CHUNK) if info.get(b"ISFT") == _SPEAKER_COMMENT.decode() else None
            return Recording(min(length, size - begin) / rate, words)
        if kind == b"fmt ":
            rate = _parse_rate(file.read(min(length, 16)))
        elif kind == b"LIST" and length <= _MAX_COMMENT_BYTES:
            info |= dict(_parse_info(file.read(length)))
        file.seek(begin + length + length % 2)
    return None


def _build_chunk(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("<I", len(body)) + body + bytes(len(body) % 2)


def _parse_chunks(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Yield kind and length of each chunk. The loop over them must seek to the end of one chunk before the next."""
    for _ in range(_MAX_CHUNKS):
        head = file.read(8)
        if len(head) < 8:  # noqa: PLR2004 - the size of a kind and a length
            return
        kind, length = struct.unpack("<4sI", head)
        yield kind, length


def _parse_rate(layout: bytes) -> int | None:
    """Return the bytes per second; None if the numbers contradict each other or are implausible."""
    if len(layout) < 16:  # noqa: PLR2004 - the shortest valid layout
        return None
    _, channels, rate, bytes_a_second, block, _ = struct.unpack("<HHIIHH", layout)
    is_plausible = (
        rate in _SAMPLE_RATES and 1 <= block <= _MAX_BLOCK_BYTES and channels and bytes_a_second == rate * block
    )
    return bytes_a_second if is_plausible else None


def _parse_info(body: bytes) -> Iterator[tuple[bytes, str]]:
    """Yield the kind and the text of each entry of an information list."""
    position = 4
    while body[:4] == b"INFO" and position + 8 <= len(body):
        kind, length = struct.unpack_from("<4sI", body, position)
        yield kind, body[position + 8 : position + 8 + length].rstrip(b"\0").decode(errors="replace")
        position += 8 + length + length % 2
