"""The operator's own list of words, which prompts are checked against before anything is asked of a provider.

Words and prompts are compared in one spelling: compatibility forms, case, runs of whitespace and what cannot be seen
make no difference. Marks on letters (accents, points, strokes) make none either where the list's word has none of its
own; a word that is listed with them is found only with them, for elsewhere they make another word.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING
from unicodedata import category, normalize

from gateway.domain.fault import SensitiveWords

if TYPE_CHECKING:
    from ahocorasick_rs import AhoCorasick

_UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e0fff]+"
)
"""What is not drawn (Unicode's default-ignorable code points): zero-width ones, soft hyphens, variation selectors."""

_MARKS = re.compile(
    "[\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    "\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+"
)
"""Combining marks that decorate a letter. Those of other scripts (India's, Thai, kana) are its vowels and voice."""

_RUN_ON = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\u2e80-\u312f\u31a0-\u31ff\u3400-\u9fff"
    "\ua000-\ua4cf\ua9e0-\ua9ff\uaa60-\uaadf\uf900-\ufaff\U00016fe0-\U00018aff\U0001aff0-\U0001b2ff"
    "\U00020000-\U0003ffff]"
)
"""Scripts written without spaces: Han, kana, bopomofo, Yi, Tangut; Thai, Lao, Tibetan, Burmese, Khmer and the Tai."""
_HANGUL = re.compile("[\u1100-\u11ff\ua960-\ua97f\uac00-\ud7ff]")
_WORDLY = frozenset("LMN")  # letters, marks, numbers
_HALVES = "\n"  # between the two readings of a prompt; no folded text has one


class WordList:
    """Words that no prompt may have, found in one pass however many they are.

    A word that begins, or ends, with a letter or digit of a script written with spaces is found there at the edge of
    a word only; one of a script without spaces, anywhere. Korean is written with spaces, but its words grow at their
    end (particles), so there they are open.
    """

    __slots__ = ("_search", "_words")

    def __init__(self, words: Mapping[str, str]) -> None:
        """``words``: as ``_fold`` has them -> as the list has them."""
        self._words = tuple(words.items())
        self._search = _build_search(words) if words else None

    def __len__(self) -> int:
        return len(self._words)

    def find(self, text: str) -> str | None:
        """A word of the list that ``text`` has, as the list has it; None where there is none. For the log only."""
        if self._search is None:
            return None
        folded = _fold(text)
        bare = _strip_marks(folded)
        both = folded if bare == folded else f"{bare}{_HALVES}{folded}"
        for number, start, end in self._search.find_matches_as_indexes(both, overlapping=True):
            if _is_whole(both, start, end):
                return self._words[number][1]
        return None


def read_words(text: str) -> WordList:
    """A list: one word or phrase a line; blank lines, and those that begin with ``#``, are none."""
    words: dict[str, str] = {}
    for line in text.splitlines():
        word = line.strip("\ufeff \t")
        folded = "" if word.startswith("#") else _fold(word)
        if folded:
            words.setdefault(folded, word)
    return WordList(words)


def check_prompt(words: WordList | None, prompt: str, param: str = "prompt") -> None:
    """Raise ``SensitiveWords`` where a prompt has a listed word. The caller is not told which."""
    if words is not None and words.find(prompt) is not None:
        raise SensitiveWords("The prompt contains words that this gateway does not allow", param=param)


def _build_search(words: Mapping[str, str]) -> "AhoCorasick":
    # Imported by those who have a list.
    from ahocorasick_rs import AhoCorasick  # noqa: PLC0415

    return AhoCorasick(words, store_patterns=False)


def _fold(text: str) -> str:
    """``text`` in the spelling that is compared; marks that are one with their letter (``é``) are kept."""
    if text.isascii():
        return " ".join(text.lower().split())
    seen = normalize("NFKC", _UNSEEN.sub("", text)).casefold()
    return " ".join(normalize("NFKC", _MARKS.sub("", normalize("NFKC", seen))).split())


def _strip_marks(folded: str) -> str:
    """``folded`` without the marks on its letters."""
    if folded.isascii():
        return folded
    return normalize("NFC", _MARKS.sub("", normalize("NFD", folded)))


def _is_whole(text: str, start: int, end: int) -> bool:
    """Whether what lies between is no part of a longer word."""
    first, last = text[start], text[end - 1]
    if start > 0 and _is_spaced(first) and _is_spaced(text[start - 1]):
        return False
    return not (end < len(text) and _is_spaced(last) and _HANGUL.match(last) is None and _is_spaced(text[end]))


def _is_spaced(character: str) -> bool:
    """Whether it is a part of a word of a script written with spaces."""
    return category(character)[0] in _WORDLY and _RUN_ON.match(character) is None
