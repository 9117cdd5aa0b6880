"""The operator's list of forbidden words, checked before a request goes to a provider.

Words and prompts are compared in one spelling: compatibility forms, case, runs of whitespace and invisible characters
make no difference. Between the words of a phrase an invisible character may replace the space. Marks on letters
(accents, dots, strokes) are ignored if the listed word has none. A word listed with marks matches only with them,
because without them it is a different word. A sign that consists of letters or digits (``²``, ``™``, ``ⓐ``) may or may
not belong to the adjacent word: both readings are checked.

A list is compiled once. The time of a search is then proportional to the length of the prompt.
"""

import re
from base64 import b64decode
from binascii import Error as Undecodable
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from unicodedata import category, normalize

from gateway.domain.media import sniff_image
from gateway.errors import InvalidRequest, SensitiveWords

if TYPE_CHECKING:
    from ahocorasick_rs import AhoCorasick

MAX_CHECKED_CHARS = 65_536
"""Maximum of characters checked per request. Each JSON value counts as ``_CHARS_PER_VALUE`` more."""
_CHARS_PER_VALUE = 16


def _compile_runs(characters: str) -> re.Pattern[str]:
    """Compile a pattern for runs of characters. ``re`` finds one character of a set twice as fast as a repeated set."""
    return re.compile(f"[{characters}][{characters}]*")


_CONTROLS = (*range(0x09), *range(0x0E, 0x1C), 0x7F)  # ASCII controls except white space
_INVISIBLE_ASCII: Mapping[str, Mapping[int, str | None]] = {
    "": dict.fromkeys(_CONTROLS),
    " ": dict.fromkeys(_CONTROLS, " "),
}
"""The replacement of ASCII controls -> the table for ``str.translate``."""
_INVISIBLE_RUNS = _compile_runs(
    "\0-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u202a-\u202e\u2060-\u206f\u3164\ud800-\uf8ff\ufdd0-\ufdef\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U0010ffff"
)
"""Invisible characters: Unicode's default-ignorable code points (zero-width ones, soft hyphens, variation selectors),
controls except white space, annotation marks, noncharacters, and private use."""

_MARK_RUNS = _compile_runs(
    "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    "\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed\u0711\u0730-\u074a\u0897-\u089f\u08ca-\u08e1\u08e3-\u08ff"
    "\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\u2de0-\u2dff\ua66f-\ua672\ua674-\ua67d\ua69e\ua69f\ufe20-\ufe2f"
)
"""Combining marks that decorate a letter. Marks of other scripts (India's, Thai, kana) are vowels and voicing."""

_UNUSUAL_CHARS = (
    "[^\\w\\s\\x00-\u02ff\u2000-\u20cf\u2100-\u2cee\u2cf2-\u2d7e\u2d80-\u2ddf\u2e00-\u3029\u3030-\u3098\u309b-\ua66e"
    "\U0001f000-\U0001faff]"
)
"""All combining marks (categories Mn, Mc, Me) and a few rare signs among them."""
_STRAY_MARKS = re.compile(
    f"{_UNUSUAL_CHARS}(?<![^\\W\\x00-\u058f\u1e00-\u1fff\u2c60-\u2c7f\ua720-\ua7ff\uab30-\uab6f]{_UNUSUAL_CHARS})(?<!{_UNUSUAL_CHARS}{_UNUSUAL_CHARS}){_UNUSUAL_CHARS}*"
)
"""Marks without a letter, and marks on letters of scripts without vowel marks: Latin, Greek and Cyrillic."""

_MARK_RUN_CANDIDATES = re.compile(f"{_UNUSUAL_CHARS}{_UNUSUAL_CHARS}{{30,}}")
_EXCESS_MARKS = re.compile("(?:M.|Cn){31,}")  # an unassigned character may be a mark
_MAX_MARKS = 30
"""The most marks on one letter: UAX #15, "Stream-Safe Text Format"."""

_UNSPACED_SCRIPTS = _compile_runs(
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\u2e80-\u312f\u31a0-\u31ff\u3400-\u9fff"
    "\ua000-\ua4cf\ua9e0-\ua9ff\uaa60-\uaadf\uf900-\ufaff\U00016fe0-\U00018aff\U0001aff0-\U0001b2ff"
    "\U00020000-\U0003ffff"
)
"""Scripts written without spaces: Han, kana, bopomofo, Yi, Tangut; Thai, Lao, Tibetan, Burmese, Khmer and the Tai."""
_HANGUL = re.compile("[\u1100-\u11ff\ua960-\ua97f\uac00-\ud7ff]")

_SUPERSCRIPTS = (
    "\u00aa\u00b2\u00b3\u00b9\u00ba\u00bc-\u00be\u02b0-\u02b8\u02e0-\u02e4\u10fc\u1d2c-\u1d6a\u1d78\u1d9b-\u1dbf"
    "\u2070-\u209c\u2120\u2122\u2150-\u215f\u2189\u2460-\u249b\u24ea\u2c7c\u2c7d\u2d6f\u3251-\u325f\u32b1-\u32bf\ua69c"
    "\ua69d\ua770\ua7f2-\ua7f4\ua7f8\ua7f9\uab5c-\uab5f\uab69"
)
"""Numbers that are not digits, and superscript and subscript letters."""
_ENCLOSED = (
    "\u20a8\u2100\u2101\u2103\u2105\u2106\u2109\u2116\u2121\u213b\u24b6-\u24e9\u2adc\u3250\u3260-\u327e\u32c0-\u32cf"
    "\u3358-\u337a\u3380-\u33ff\ufdfc"
)
"""Other signs that consist of letters."""
_SIGN_CANDIDATE = re.compile(f"[{_SUPERSCRIPTS}{_ENCLOSED}\U00010781-\U0001f190]")
_SIGN_PATTERN = re.compile(
    f"[{_SUPERSCRIPTS}\U00010781-\U000107ba\U0001f100-\U0001f10c\U0001f16a-\U0001f16c]+"
    f"|[{_ENCLOSED}\U0001f12b-\U0001f14f\U0001f190]+"
)

_ASCII_WORDS = re.compile("([0-9a-z]+)")
_WORD_KINDS = re.compile("(?:[LM].|N[dl])+")  # letters, marks and digits, in categories of two letters each
_WORD_EDGE = "\0"  # edge of a word; never part of folded text
_READING_SEPARATOR = "\n"  # separates the two readings of a prompt; never part of folded text
_IMAGE_HEAD = 128  # minimum of base64 characters; a shorter text is no image


class WordList:
    """A list of forbidden words. A search looks for all of them at once, and returns one of those that it finds.

    An edge of a word that is a letter or digit of a script with spaces matches only at a word boundary. For a script
    without spaces the edge matches anywhere. Korean has spaces, but its words end in particles, so Korean words also
    match inside a word.
    """

    __slots__ = ("_anywhere", "_in_phrases", "_phrases", "_whole_words", "_words")

    def __init__(self, words: Mapping[str, str]) -> None:
        phrases = {phrase: word for phrase, word in words.items() if " " in phrase}
        self._words = tuple(words.values())
        self._phrases = tuple(phrases.values())
        self._anywhere = _build_search(words)
        marked_words = [*map(_mark_word, words)]
        self._whole_words = self._anywhere if marked_words == [*words] else _build_search(marked_words)
        self._in_phrases = _build_search(map(_mark_word, phrases))

    def __len__(self) -> int:
        return len(self._words)

    def find(self, text: str) -> str | None:
        if self._anywhere is None or self._whole_words is None:
            return None
        readings = [text]
        if not text.isascii() and _SIGN_CANDIDATE.search(text):
            readings.append(_SIGN_PATTERN.sub(r" \g<0> ", text))
        for reading in readings:
            both_readings = _read_twice(_replace_unseen(reading, ""))
            # The first search is a fast filter: its matches may be parts of longer words.
            if self._anywhere.find_matches_as_indexes(both_readings):
                matches = self._whole_words.find_matches_as_indexes(_mark_edges(both_readings))
                if matches:
                    return self._words[matches[0][0]]
        return self._find_phrase(readings[-1])

    def _find_phrase(self, text: str) -> str | None:
        if self._in_phrases is None:
            return None
        spaced_text = _replace_unseen(text, " ")
        if spaced_text == text:
            return None
        matches = self._in_phrases.find_matches_as_indexes(_mark_edges(_read_twice(spaced_text)))
        return self._phrases[matches[0][0]] if matches else None


def parse_words(text: str) -> WordList:
    """Parse a list: one word or phrase per line. Blank lines and lines that begin with ``#`` are ignored."""
    words: dict[str, str] = {}
    for line in text.splitlines():
        word = line.strip("\ufeff \t")
        folded_word = "" if word.startswith("#") else _fold(_replace_unseen(word, ""))
        if folded_word:
            words.setdefault(folded_word, word)
    return WordList(words)


def check_prompt(words: WordList | None, prompt: str, param: str = "prompt") -> None:
    """Raise ``SensitiveWords`` if a prompt contains a listed word. The error does not name the word."""
    if words is not None and words.find(prompt) is not None:
        raise SensitiveWords("The prompt contains words that this gateway does not allow", param=param)


def check_body(words: WordList | None, body: Mapping[str, Any]) -> None:
    """Check every text in a request's body, except the model's name and images in base64.

    Raises ``SensitiveWords``, or ``InvalidRequest`` for more text than ``MAX_CHECKED_CHARS``; both name the field.
    """
    if words is None or not len(words):
        return
    room = MAX_CHECKED_CHARS
    for name, value in body.items():
        if name == "model":
            continue
        for text in _find_texts(value):
            room -= _CHARS_PER_VALUE + len(text)
            if room < 0:
                raise InvalidRequest(f"The request has more than {MAX_CHECKED_CHARS:,} characters of text", param=name)
            check_prompt(words, text, name)


def _find_texts(value: object) -> Iterator[str]:
    """Yield every text in a JSON value at any depth, and "" for each image and other value.

    ``check_body`` limits how many values there are.
    """
    iterators = [iter((value,))]
    while iterators:
        member = next(iterators[-1], iterators)
        if member is iterators:
            iterators.pop()
        elif isinstance(member, str):
            yield "" if _is_image(member) else member
        else:
            yield ""
            if isinstance(member, dict | list):
                iterators.append(iter(member.values() if isinstance(member, dict) else member))


def _is_image(text: str) -> bool:
    """Return whether a text is an image in base64, bare or as a data URL. Its letters are not words."""
    data = text[text.find(",", 0, 2 * _IMAGE_HEAD) + 1 :] if text.startswith("data:") else text
    if len(data) < _IMAGE_HEAD or not data.isascii() or len(data.split(None, 1)) != 1:
        return False
    try:
        return sniff_image(b64decode(data[:_IMAGE_HEAD], validate=True)) is not None
    except Undecodable:
        return False


def _build_search(words: Iterable[str]) -> "AhoCorasick | None":
    patterns = tuple(words)
    if not patterns:
        return None
    # Imported only if a list is configured.
    from ahocorasick_rs import AhoCorasick  # noqa: PLC0415

    return AhoCorasick(patterns, store_patterns=False)


def _replace_unseen(text: str, replacement: str) -> str:
    if text.isascii():
        return text.translate(_INVISIBLE_ASCII[replacement])
    return _INVISIBLE_RUNS.sub(replacement, text)


def _read_twice(text: str) -> str:
    """Return ``text`` in its compared form: without marks on letters, then also with them if there are any."""
    folded_text = _fold(text)
    unmarked_text = _strip_marks(folded_text)
    return folded_text if unmarked_text == folded_text else f"{unmarked_text}{_READING_SEPARATOR}{folded_text}"


def _fold(text: str) -> str:
    """Return ``text``, which has no invisible characters any more, in the compared spelling.

    Marks that compose with their letter (``é``) are kept.
    """
    if text.isascii():
        return " ".join(text.lower().split())
    # Remove a mark that composes with no letter before it can become a letter itself, like the iota below.
    composed = normalize("NFKC", _limit_marks(text)).replace("\u0345", "").casefold()
    unmarked = _STRAY_MARKS.sub(_drop_marks, _MARK_RUNS.sub("", normalize("NFKC", composed)))
    return " ".join(normalize("NFKC", unmarked).split())


def _strip_marks(folded_text: str) -> str:
    if folded_text.isascii():
        return folded_text
    return normalize("NFC", _MARK_RUNS.sub("", normalize("NFD", folded_text)))


def _limit_marks(text: str) -> str:
    """Limit the marks on a letter to those of stream-safe text: ``normalize`` needs seconds to sort thousands."""
    # Half-width voicing marks of kana: the two letters that become marks.
    return _MARK_RUN_CANDIDATES.sub(_cut_marks, text.replace("\uff9e", "\u3099").replace("\uff9f", "\u309a"))


def _cut_marks(match: re.Match[str]) -> str:
    mark_run, position, pieces = match[0], 0, []
    for excess_match in _EXCESS_MARKS.finditer("".join(map(category, mark_run))):
        pieces.append(mark_run[position : excess_match.start() // 2 + _MAX_MARKS])
        position = excess_match.end() // 2
    return "".join([*pieces, mark_run[position:]])


def _drop_marks(match: re.Match[str]) -> str:
    return "".join(character for character in match[0] if not category(character).startswith("M"))


def _mark_word(word: str) -> str:
    marked_word = _mark_edges(word)
    return marked_word.removesuffix(_WORD_EDGE) if _HANGUL.match(word[-1]) else marked_word


def _mark_edges(text: str) -> str:
    """Return ``text`` with ``_WORD_EDGE`` before and after every word of a script written with spaces."""
    if text.isascii():
        return _WORD_EDGE.join(_ASCII_WORDS.split(text))
    kinds = "".join(map(category, _UNSPACED_SCRIPTS.sub(_blank, text)))
    parts: list[str] = []
    position = 0
    for match in _WORD_KINDS.finditer(kinds):
        start, end = match.start() // 2, match.end() // 2
        parts += (text[position:start], text[start:end])
        position = end
    return _WORD_EDGE.join([*parts, text[position:]])


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])
