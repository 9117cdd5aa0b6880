"""Measures how far two answers to the same request agree. Both must come from the same API format."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from typing import Literal

import orjson

from gateway.domain.price import ONE_PPM
from gateway.formats.transcript.answers import ShownAnswers
from gateway.formats.transcript.comparison import join_texts
from gateway.frozen import frozen

Part = Literal["text", "tools", "finish"]
_UNSPACED = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")
"""A word, or one character of a script that writes no spaces between words."""
_MARK_RUN = re.compile(r"(?:[^\w\s\x00-\x7f]|[\uff9e\uff9f]){30}")
"""What may be combining marks, 30 in a row. The two halfwidth marks are the only ones that count as letters."""
_JOINER = "\u034f"


@frozen
class Agreement:
    """How far two answers agree.

    Attributes:
        words_ppm: the words that both have, in parts per million of all words; 0 if they have none in common. The order
            of the words does not count, the words of tool calls do. If neither answer has words: a million if text and
            tools are equal, else 0.
        parts: what is equal in both: ``text``, apart from case and spaces; ``tools``, the calls with their arguments in
            any order, also if there are none; ``finish``, why the answers ended.
    """

    words_ppm: int
    parts: tuple[Part, ...]


def compare_answers(answers: ShownAnswers, other_answers: ShownAnswers) -> Agreement | None:
    """Return how far the answers agree; None if one side has no answer."""
    if not answers.answers or not other_answers.answers:
        return None
    sides = answers, other_answers
    texts, other_texts = (_fold(join_texts(side)) for side in sides)
    calls, other_calls = (sorted(_list_calls(side)) for side in sides)
    ends, other_ends = ([answer.finish_reason for answer in side.answers] for side in sides)
    equal: dict[Part, bool] = {
        "text": texts == other_texts,
        "tools": calls == other_calls,
        "finish": ends == other_ends,
    }
    words, other_words = (
        Counter(_WORD.findall(" ".join((text, *map(_fold, listed)))))
        for text, listed in ((texts, calls), (other_texts, other_calls))
    )
    all_words = words.total() + other_words.total()
    is_same = equal["text"] and equal["tools"]
    shared_ppm = 2 * (words & other_words).total() * ONE_PPM // all_words if all_words else ONE_PPM * is_same
    return Agreement(shared_ppm, tuple(part for part, is_equal in equal.items() if is_equal))


def _fold(text: str) -> str:
    """Return a text in lower case and normal width, with single spaces between words."""
    # The time for one run of combining marks grows with the square of its length, and the interpreter lock is held all
    # the while. A joiner after every 30 ends the run, as the stream-safe text format of Unicode (UAX #15) does.
    stream_safe = _MARK_RUN.sub(rf"\g<0>{_JOINER}", text)
    return " ".join(unicodedata.normalize("NFKC", stream_safe).casefold().split())


def _list_calls(answers: ShownAnswers) -> Iterator[str]:
    """Yield each tool call as one text: its name and its arguments, whose names are sorted."""
    for answer in answers.answers:
        for call in answer.tool_calls:
            try:
                arguments = orjson.dumps(orjson.loads(call.arguments), option=orjson.OPT_SORT_KEYS).decode()
            except (orjson.JSONDecodeError, orjson.JSONEncodeError):
                arguments = call.arguments.strip()
            yield f"{call.name} {arguments}"
