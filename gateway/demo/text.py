"""Text functions for counting, streaming and embeddings. Pure: the same text gives the same words and vector."""

import math
import re
import struct
from hashlib import blake2b

_PIECE_PATTERN = re.compile(r"\s*\S{1,16}|\s+")
_WORD_PATTERN = re.compile(r"[^\W_]+")
_SLOTS = 8  # coordinates per word: enough to tell two words apart


def split_pieces(text: str) -> tuple[str, ...]:
    """Split a text into streamed pieces, one token each; joined, they are the text."""
    return tuple(_PIECE_PATTERN.findall(text))


def build_vector(words: tuple[str, ...], dimensions: int) -> list[float]:
    """Return a unit vector. Each word changes the same few coordinates wherever it appears."""
    coordinates = [0.0] * dimensions
    for word in words:
        for (slot,) in struct.iter_unpack("<I", blake2b(word.encode(), digest_size=4 * _SLOTS).digest()):
            coordinates[(slot >> 1) % dimensions] += 1.0 if slot & 1 else -1.0
    length = math.hypot(*coordinates)
    if not length:  # the words cancelled each other out
        return [1.0] + [0.0] * (dimensions - 1)
    return [coordinate / length for coordinate in coordinates]


def list_words(text: str) -> tuple[str, ...]:
    """Return the words that determine a text's vector; a text without words counts as one word."""
    return tuple(_WORD_PATTERN.findall(text.lower())) or (text,)
