"""A voice that babbles: text -> syllables -> 16-bit samples, the way formant synthesisers have done it since the 1970s.

A vowel is what a resonator rings like when it is struck once a period (X. Rodet, "Time-Domain Formant-Wave-Function
Synthesis", 1984). One period of each vowel at each pitch is computed once and then repeated, louder and softer, so that
a second of speech costs a few copies. Everything here is pure: the same words sound the same.
"""

import math
import re
import struct
from collections.abc import Iterator
from hashlib import blake2b, shake_128

from attrs import frozen

SAMPLE_RATE = 24_000
"""Samples of one channel a second, two bytes each."""
MAX_SECONDS = 120
"""Of speech; whatever would come after is left unsaid."""

_Formants = tuple[tuple[float, float, float], ...]
_FORMANTS: dict[str, _Formants] = {  # frequency and bandwidth in Hz, and strength (Peterson & Barney, 1952)
    "a": ((730, 80, 1.0), (1090, 90, 0.6), (2440, 120, 0.18)),
    "e": ((530, 70, 1.0), (1840, 100, 0.42), (2480, 120, 0.2)),
    "i": ((300, 60, 1.0), (2290, 110, 0.3), (3010, 150, 0.18)),
    "o": ((570, 70, 1.0), (840, 80, 0.62), (2410, 120, 0.1)),
    "u": ((320, 60, 1.0), (870, 80, 0.4), (2240, 120, 0.06)),
}
_VOWELS = "aeiou"
_LOUDNESS = 8
_PEAK = 9_000
_HISSES = "sfzxchjtkp"
_SYLLABLE = re.compile(r"[^aeiouyäöü]*[aeiouyäöü]+(?:[^aeiouyäöü]+$)?|.+", re.IGNORECASE)
_WORD = re.compile(r"\S{1,24}")  # some scripts have no spaces
_SPOKEN = re.compile(r"[^\W_]+")
_FOLDED = str.maketrans("yäöü", "iaou")
_LETTERS_A_SYLLABLE = 3
_PAUSES = {",": 0.12, ";": 0.2, ":": 0.2, ".": 0.32, "!": 0.32, "?": 0.32, "\u3002": 0.32}
_GAP_S = 0.035
_STEP = 4


@frozen
class Syllable:
    """A vowel, the hiss before it in samples, and the length in samples of every period of its tone."""

    vowel: str
    hiss: int
    periods: tuple[int, ...]


@frozen
class Word:
    """What is heard of a word, and the silence after it in samples."""

    syllables: tuple[Syllable, ...]
    silence: int

    @property
    def samples(self) -> int:
        """How long it is."""
        return self.silence + sum(syllable.hiss + sum(syllable.periods) for syllable in self.syllables)


@frozen
class Speech:
    """What will be said, word by word, and as it was written."""

    words: tuple[Word, ...]
    text: str

    @property
    def samples(self) -> int:
        """How long it is."""
        return sum(word.samples for word in self.words)


def plan_speech(text: str, voice: str, speed: float = 1.0) -> Speech:
    """Decide how a text is said; ``speed`` 2 takes half the time."""
    digest = blake2b(voice.encode(errors="replace"), digest_size=2).digest()
    tone = 105 + 110 * digest[0] / 255
    words, end, left = [], 0, MAX_SECONDS * SAMPLE_RATE
    for at, found in enumerate(_WORD.finditer(text)):
        # A sentence falls from its first word to its last, and a question rises at its end.
        rise = 1.25 if found[0].endswith("?") else 1.12 - 0.2 * (at % 9) / 9
        word = _plan_word(found[0], tone * rise, speed)
        left -= word.samples
        if left < 0:
            break
        words.append(word)
        end = found.end()
    return Speech(tuple(words), text[:end].strip())


def _plan_word(word: str, tone: float, speed: float) -> Word:
    spoken = "".join(_SPOKEN.findall(word.lower()))
    parts = [part for match in _SYLLABLE.findall(spoken) for part in _split(match)]
    syllables = tuple(_plan_syllable(part, tone * max(1.06 - 0.05 * at, 0.8), speed) for at, part in enumerate(parts))
    pause = _GAP_S + _PAUSES.get(word[-1], 0.0)
    return Word(syllables, round(pause * SAMPLE_RATE / speed))


def _split(part: str) -> Iterator[str]:
    """Whatever has no vowels we know is spoken a few letters at a time; of another script, letter by letter."""
    if any(letter.translate(_FOLDED) in _VOWELS for letter in part):
        yield part
        return
    size = _LETTERS_A_SYLLABLE if part.isascii() else 1
    yield from (part[at : at + size] for at in range(0, len(part), size))


def _plan_syllable(part: str, tone: float, speed: float) -> Syllable:
    vowels = [letter.translate(_FOLDED) for letter in part if letter.translate(_FOLDED) in _VOWELS]
    vowel = vowels[0] if vowels else _VOWELS[sum(map(ord, part)) % len(_VOWELS)]
    seconds = (0.1 + 0.022 * min(len(part), 5)) / speed
    hiss = 0.045 / speed if part[0] in _HISSES else 0.0
    left, periods = round(seconds * SAMPLE_RATE), []
    whole = left
    while left > 0:
        # The tone glides down by a sixth; whole steps of a few samples, so that few periods have to be computed.
        length = round(SAMPLE_RATE / (tone * (0.92 + 0.16 * left / whole)) / _STEP) * _STEP
        periods.append(length)
        left -= length
    return Syllable(vowel, round(hiss * SAMPLE_RATE), tuple(periods))


class Voice:
    """Says words. It remembers the periods that it has computed."""

    def __init__(self) -> None:
        self._periods: dict[tuple[str, int], list[bytes]] = {}

    def say(self, word: Word) -> bytes:
        """A word's samples, 16 bits each, little-endian, one channel."""
        pieces = []
        for syllable in word.syllables:
            pieces.append(_hiss(syllable.hiss))
            last = len(syllable.periods) - 1
            for at, length in enumerate(syllable.periods):
                loudness = min(_LOUDNESS, 2 + 3 * at, 2 + 2 * (last - at))
                pieces.append(self._find_period(syllable.vowel, length)[loudness])
        pieces.append(bytes(2 * word.silence))
        return b"".join(pieces)

    def _find_period(self, vowel: str, length: int) -> list[bytes]:
        """One period at every loudness from silent."""
        known = self._periods.get((vowel, length))
        if known is None:
            wave = _ring(_FORMANTS[vowel], length)
            scale = _PEAK / max(map(abs, wave))
            levels = [scale * (level / _LOUDNESS) ** 1.5 for level in range(_LOUDNESS + 1)]
            known = [struct.pack(f"<{length}h", *[int(value * level) for value in wave]) for level in levels]
            self._periods[vowel, length] = known
        return known


def _ring(formants: _Formants, length: int) -> list[float]:
    """One period of resonators that are struck once in each, when they have been for a while."""
    total = [0.0] * length
    for frequency, bandwidth, strength in formants:
        radius = math.exp(-math.pi * bandwidth / SAMPLE_RATE)
        turn = 2 * math.pi * frequency / SAMPLE_RATE
        first, second = 2 * radius * math.cos(turn), -radius * radius
        before = last = 0.0
        for _ in range(3):
            strike = strength * math.sin(turn)
            for at in range(length):
                now = first * last + second * before + strike
                strike = 0.0
                before, last = last, now
                total[at] += now
    return total


def _hiss(samples: int) -> bytes:
    """Noise that rises and falls, always the same."""
    noise = shake_128(b"hiss").digest(samples)
    middle = samples / 2
    values = [(byte - 128) * 9 * (1 - abs(at - middle) / (middle + 1)) for at, byte in enumerate(noise)]
    return struct.pack(f"<{samples}h", *map(int, values))
