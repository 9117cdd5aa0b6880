"""Estimates the tokens of a text if the provider does not count them.

A vocabulary splits each script in its own way: four characters of English are one token, as are one or two of Chinese.
The weights lie between those of common vocabularies. The figures of OpenAI's page "Hello GPT-4o" (language
tokenization: one sentence in twenty languages, by ``cl100k_base`` and ``o200k_base``) are in the tests.
"""

from collections.abc import Iterable

_HUNDRED = 100
"""The divisor of weights, which are hundredths of a token."""

_LOWER, _UPPER, _DIGIT, _PUNCTUATION, _SPACE, _LINE, _OTHER = b"a", b"A", b"0", b".", b" ", b"\n", b"-"
_LATIN, _EUROPE, _ARABIC, _INDIC, _SYMBOL, _CJK, _HANGUL, _EMOJI = b"L", b"E", b"R", b"I", b"S", b"C", b"H", b"J"

_WEIGHTS = (
    (_LOWER, 12),
    (_UPPER, 12),
    (_DIGIT, 50),
    (_PUNCTUATION, 50),
    (_LINE, 40),
    (_LATIN, 65),  # a letter with an accent
    (_EUROPE, 42),  # Greek, Cyrillic, Armenian
    (_ARABIC, 48),  # and Hebrew
    (_INDIC, 50),  # Devanagari, Tamil, Thai, Lao, Georgian, Khmer
    (_SYMBOL, 90),
    (_CJK, 80),
    (_HANGUL, 70),
    (_EMOJI, 200),
)
"""The weight of each character of a class."""
_PAIR_WEIGHTS = (
    *(
        (previous_kind + next_kind, 64)
        for previous_kind in (_PUNCTUATION, _SPACE, _LINE)
        for next_kind in (_LOWER, _UPPER)
    ),
    (_DIGIT + _LOWER, 60),
    (_DIGIT + _UPPER, 60),
    (_LOWER + _DIGIT, 90),
    (_UPPER + _DIGIT, 90),
    (_LOWER + _UPPER, 90),  # fooBar, and base64
    (_UPPER + _UPPER, 50),
    (_SPACE + _SPACE, 8),
)
"""The weight of two neighbours: a word begins between them, or no token of a vocabulary goes across.

Pairs do not overlap: three of one class are one pair."""
_FIRST_WORD_WEIGHT = 64
_SLICE_BYTES = 2 * 1024
_SAMPLED_BYTES = 64 * 1024
"""Maximum bytes of a text that are weighed, which takes some milliseconds on the event loop."""


def _make_table() -> bytes:
    """Return the class of every UTF-8 byte (RFC 3629): of an ASCII character, or of a script for a first byte."""
    table = bytearray(_PUNCTUATION * 128 + _OTHER * 128)
    ranges = (
        (_LOWER, 0x61, 0x7A), (_UPPER, 0x41, 0x5A), (_DIGIT, 0x30, 0x39), (_SPACE, 0x20, 0x20), (_SPACE, 0x09, 0x09),
        (_SPACE, 0x0D, 0x0D), (_LINE, 0x0A, 0x0A),
        (_LATIN, 0xC2, 0xCD), (_EUROPE, 0xCE, 0xD6), (_ARABIC, 0xD7, 0xDF), (_INDIC, 0xE0, 0xE1),
        (_SYMBOL, 0xE2, 0xE2), (_CJK, 0xE3, 0xE9), (_HANGUL, 0xEA, 0xED), (_SYMBOL, 0xEE, 0xEF), (_EMOJI, 0xF0, 0xF4),
    )  # fmt: skip
    for char_class, begin, end in ranges:
        table[begin : end + 1] = char_class * (end - begin + 1)
    return bytes(table)


_CLASS_TABLE = _make_table()


def estimate_text(text: str) -> int:
    """Return the tokens of ``text``: 1 or more (0 if empty), at most its UTF-8 bytes. Long texts are sampled evenly."""
    encoded = text.encode(errors="surrogatepass")
    size = len(encoded)
    if size <= _SAMPLED_BYTES:
        weight, divisor = _weigh(encoded), _HUNDRED
    else:  # in bytes: a byte of most scripts is as much of a token as a byte of any other
        starts = range(0, size, -(-size * _SLICE_BYTES // _SAMPLED_BYTES))
        sample = b"".join(encoded[start : start + _SLICE_BYTES] for start in starts)
        weight, divisor = _weigh(sample) * size, _HUNDRED * len(sample)
    return max(min(-(-weight // divisor), size), 1) if encoded else 0


def _weigh(encoded: bytes) -> int:
    """Return the weight of a UTF-8 text, which may be cut anywhere."""
    classes = encoded.translate(_CLASS_TABLE)
    weight = _FIRST_WORD_WEIGHT * (classes[:1] in {_LOWER, _UPPER})
    for char_class, class_weight in _WEIGHTS:
        weight += classes.count(char_class) * class_weight
    for pair, pair_weights in _PAIR_WEIGHTS:
        weight += classes.count(pair) * pair_weights
    return weight


def estimate_sample(texts: Iterable[str], sampled_count: int, total_count: int) -> int:
    """Estimate the tokens of ``total_count`` items from ``texts``, which are ``sampled_count`` of them."""
    tokens = estimate_text("".join(texts))
    return -(-tokens * total_count // sampled_count) if 0 < sampled_count < total_count else tokens
