r"""The first pass over a body: proves, for most bodies, that their redaction would change nothing.

The full redaction searches each value of JSON by itself, which takes most of the time. Without an escape, every value
and every name is a part of the raw text, between two quotes. With escapes, they are parts of the text whose escapes are
resolved once; those of JSON in a text of JSON are parts of the text whose escapes are resolved twice, and so on. No
pattern needs more than the value and its quotes. Therefore a search of these few texts finds something if a search of
each value would.

The full redaction also recognizes things by other signs than their characters: by the name of the field, by their size,
or by the lines beside them. The first pass proves nothing for a text that may have such things.
"""

import re
from functools import cache
from typing import TYPE_CHECKING

from gateway.formats.redaction.escapes import MAX_LEVELS, resolve_once
from gateway.formats.redaction.media import BASE64_CHARS, MIN_MEDIA_CHARS
from gateway.formats.redaction.redactor import Redactor
from gateway.formats.redaction.secret_shapes import PRIVATE_KEY, SECRET_NAME_ENDS, SECRET_NAME_IN_BYTES
from gateway.formats.redaction.work import TooMuchWorkError, Work

if TYPE_CHECKING:
    from ahocorasick_rs import BytesAhoCorasick

_MAX_CHARS = 512 * 1024
"""Longer texts take more than a millisecond in one call into C, which holds the interpreter's lock."""
_STEPS_PER_CHAR = 16
_MIN_STEPS = 10_000
_WINDOW_CHARS = 32 * 1024
_OVERLAP_CHARS = MIN_MEDIA_CHARS
_MAX_NAME_BYTES = 32
_LOGPROBS = re.compile(r'"logprobs(?:Result)?"(?!:\s{0,64}(?:null|true|false))')
_LOGPROBS_START = '"logprobs'
_BASE64_CLASSES = bytes(ord("x") if chr(code) in BASE64_CHARS else ord(" ") for code in range(256))
_MEDIA = b"x" * MIN_MEDIA_CHARS
_OTHER_CASES = {"ſ".encode(): b"s", "ı".encode(): b"i", "İ".encode(): b"i", "\u212a".encode(): b"k"}  # noqa: RUF001
"""Letters that a pattern without regard to case takes for those of ASCII; the last one is the sign of kelvins."""


def has_nothing_to_redact(text: str, redactor: Redactor, *, keeps_media: bool) -> bool:
    """Return True if redaction would leave a body, or a text of one, as it is. False means that it is not certain."""
    if not redactor.searches_only_values or len(text) > _MAX_CHARS:
        return False
    work = Work(_MIN_STEPS + _STEPS_PER_CHAR * len(text))
    try:
        return _is_clean(text, redactor, work, keeps_media=keeps_media)
    except TooMuchWorkError:
        return False


def _is_clean(text: str, redactor: Redactor, work: Work, *, keeps_media: bool) -> bool:
    for _ in range(MAX_LEVELS + 1):
        if redactor.finds_in_plain(text, work) or _has_signs(text, keeps_media=keeps_media):
            return False
        resolved = resolve_once(text)
        if resolved == text:
            return True
        text = resolved
    return False


def _has_signs(text: str, *, keeps_media: bool) -> bool:
    """Return whether ``text`` may have a private key, log probabilities, a secret's name or, unless kept, media."""
    for first in range(0, len(text), _WINDOW_CHARS):
        window = text[first : first + _WINDOW_CHARS + _OVERLAP_CHARS]
        if PRIVATE_KEY in window or (_LOGPROBS_START in window and _LOGPROBS.search(window)):
            return True
        data = window.encode(errors="replace")
        if _has_secret_name(data) or (not keeps_media and _MEDIA in data.translate(_BASE64_CLASSES)):
            return True
    return False


def _has_secret_name(data: bytes) -> bool:
    """Return whether a quote follows what may be the name of a secret, as the name of a field or as a value."""
    data = data.lower()
    if not data.isascii():
        for other, letter in _OTHER_CASES.items():
            data = data.replace(other, letter)
    return any(
        SECRET_NAME_IN_BYTES.search(data, max(0, end - _MAX_NAME_BYTES), end - 1)
        for _, _, end in _open_search().find_matches_as_indexes(data)
    )


@cache
def _open_search() -> "BytesAhoCorasick":
    from ahocorasick_rs import BytesAhoCorasick  # noqa: PLC0415 - only a gateway that keeps bodies needs it

    return BytesAhoCorasick([f'{end}"'.encode() for end in SECRET_NAME_ENDS])
