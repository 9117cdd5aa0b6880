r"""Texts with escapes of JSON in them, ``\n`` or ``\u0026``: a secret may begin after one, or contain some.

Tool arguments are JSON in a text of JSON, and a stream may end before such a text is complete. Therefore a text with
escapes is searched once more with its escapes resolved, and what is found there is located in the text as it is.
"""

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from io import StringIO

from gateway.formats.redaction.work import Work
from gateway.frozen import frozen

_ESCAPE = re.compile(
    r"\\(?:u([dD][89abAB][0-9A-Fa-f]{2})\\u([dD][c-fC-F][0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|([\"\\/bfnrt]))"
)
_MEANINGS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_SHORT_ESCAPES = {f"\\{char}": _MEANINGS.get(char, char) for char in '"/bfnrt'}
_SURROGATES = range(0xD800, 0xE000)
_STEPS_PER_ESCAPE = 16
MAX_LEVELS = 3
"""How often escapes are resolved: enough for JSON in a text of JSON in a text of JSON."""


@frozen
class ResolvedText:
    """A text whose escapes are resolved, and where its parts stand in the text with escapes."""

    text: str
    _positions: Sequence[int]
    _origins: Sequence[int]

    def locate(self, position: int) -> int:
        """Return the position in the text with escapes for a position in the resolved text."""
        number = bisect_right(self._positions, position) - 1
        return self._origins[number] + position - self._positions[number]


def resolve_levels(text: str, work: Work) -> Iterator[list[ResolvedText]]:
    """Yield ``text`` resolved once, twice, and so on while there are escapes, each with the levels before.

    Raises ``TooMuchWorkError``.
    """
    levels: list[ResolvedText] = []
    while "\\" in text and len(levels) < MAX_LEVELS:
        level = _resolve(text, work)
        if level.text == text:
            return
        levels = [*levels, level]
        text = level.text
        yield levels


def resolve_fully(text: str, work: Work) -> str:
    """Return ``text`` with its escapes resolved, up to ``MAX_LEVELS`` times. Raises ``TooMuchWorkError``."""
    for levels in resolve_levels(text, work):
        text = levels[-1].text
    return text


def resolve_once(text: str) -> str:
    """Return ``text`` with its escapes resolved once, without their places, which take most of the time."""
    if "\\" not in text:
        return text
    if "\\\\" in text or "\\u" in text:
        return _ESCAPE.sub(_resolve_escape, text)
    for escape, meaning in _SHORT_ESCAPES.items():  # without ``\\\\`` every backslash begins an escape
        text = text.replace(escape, meaning)
    return text


def _resolve(text: str, work: Work) -> ResolvedText:
    resolved = StringIO(newline="")
    positions, origins = array("q", [0]), array("q", [0])
    copied_to = length = 0
    for match in _ESCAPE.finditer(text):
        work.add(_STEPS_PER_ESCAPE)
        length += resolved.write(text[copied_to : match.start()])
        copied_to = match.end()
        positions.extend((length, length + 1))
        origins.extend((match.start(), copied_to))
        length += resolved.write(_resolve_escape(match))
    resolved.write(text[copied_to:])
    return ResolvedText(resolved.getvalue(), positions, origins)


def _resolve_escape(escape: re.Match[str]) -> str:
    high, low, single, short = escape.groups()
    if short is not None:
        return _MEANINGS.get(short, short)
    if high is not None:
        return chr(0x10000 + ((int(high, 16) & 0x3FF) << 10) + (int(low, 16) & 0x3FF))
    code = int(single, 16)
    return "\ufffd" if code in _SURROGATES else chr(code)
