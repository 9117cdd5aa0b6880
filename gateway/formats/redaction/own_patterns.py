"""Patterns of the operator: a part of regular expressions whose search takes a time that is known beforehand.

Python's ``re`` holds the interpreter's lock during a search, so a pattern that backtracks for seconds would stop the
gateway. Only patterns with bounded repetitions are taken, and their search goes through a text piece by piece.
"""

import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

from gateway.formats.redaction.work import Work
from gateway.frozen import frozen

MAX_PATTERNS = 50
MAX_PATTERN_CHARS = 500
MAX_CHOICES = 500
"""The most ways in which a pattern can match at one position, which a failing search tries all."""
MAX_MATCH_CHARS = 1_000
_WINDOW_CHARS = 512
"""Positions that are tried in one search, which holds the interpreter's lock."""
_NAME = re.compile(r"[a-z]{1,20}")
_PLAIN_OPERATIONS = frozenset({"LITERAL", "NOT_LITERAL", "ANY", "IN"})
_REPETITIONS = frozenset({"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"})


class PatternRefusedError(ValueError):
    """A pattern is malformed, or its search could take too long; the message says why."""


@frozen
class OwnPattern:
    """A pattern. What it finds is replaced by ``[name 1]``."""

    name: str
    pattern: re.Pattern[str]
    choices: int
    max_chars: int

    def find(self, text: str, work: Work) -> Iterator[tuple[int, int]]:
        """Yield the parts of ``text`` that match. Raises ``TooMuchWorkError``."""
        for first in range(0, len(text), _WINDOW_CHARS):
            end = first + _WINDOW_CHARS
            work.add((min(end, len(text)) - first) * self.choices)
            for match in self.pattern.finditer(text, first, end + self.max_chars):
                if match.start() < end:
                    yield match.span()


def are_patterns(texts: Iterable[str]) -> bool:
    """Return whether every text is a pattern as ``parse_pattern`` takes it, and there are not too many."""
    try:
        return len([parse_pattern(text) for text in texts]) <= MAX_PATTERNS
    except PatternRefusedError:
        return False


def parse_pattern(text: str) -> OwnPattern:
    r"""Parse ``name=expression``: ``staff=EMP-\d{6}``. Raises ``PatternRefusedError``."""
    name, is_pair, expression = text.partition("=")
    if not is_pair or _NAME.fullmatch(name) is None or len(expression) > MAX_PATTERN_CHARS:
        raise PatternRefusedError("expected NAME=EXPRESSION, with a name of 1 to 20 small letters")
    try:
        pattern = re.compile(expression)
        operations = list(import_module("re._parser").parse(expression))  # there is no public parser
    except (re.error, RecursionError, OverflowError) as error:
        raise PatternRefusedError(str(error)) from None
    choices, min_chars, max_chars = _measure(operations)
    if not min_chars:
        raise PatternRefusedError("it matches an empty text")
    return OwnPattern(name, pattern, choices, max_chars)


def _measure(operations: Iterable[tuple[Any, Any]]) -> tuple[int, int, int]:
    """Return in how many ways a sequence can match at one position, and its shortest and longest match.

    Raises ``PatternRefusedError``.
    """
    choices, min_chars, max_chars = 1, 0, 0
    for operation, argument in operations:
        part = _measure_operation(str(operation), argument)
        choices, min_chars, max_chars = choices * part[0], min_chars + part[1], max_chars + part[2]
        if choices > MAX_CHOICES or max_chars > MAX_MATCH_CHARS:
            raise PatternRefusedError("it can match in too many ways: bound its repetitions, such as {1,20}")
    return choices, min_chars, max_chars


def _measure_operation(operation: str, argument: Any) -> tuple[int, int, int]:
    if operation in _PLAIN_OPERATIONS:
        return 1, 1, 1
    if operation == "AT":
        return 1, 0, 0
    if operation == "SUBPATTERN":
        return _measure(argument[-1])
    if operation == "BRANCH":
        branches = [_measure(branch) for branch in argument[1]]
        choices, min_chars, max_chars = zip(*branches, strict=True)
        return sum(choices), min(min_chars), max(max_chars)
    if operation in _REPETITIONS:
        return _measure_repetition(*argument)
    raise PatternRefusedError("it has a reference or a look-around")


def _measure_repetition(least: int, most: int, operations: Any) -> tuple[int, int, int]:
    if most > MAX_MATCH_CHARS:
        raise PatternRefusedError("it has a repetition without a bound: write {1,20} instead of + and *")
    choices, min_chars, max_chars = _measure(operations)
    if choices > 1 and choices**most > MAX_CHOICES:
        raise PatternRefusedError("it repeats what can match in several ways")
    return (most - least + 1) * choices**most, min_chars * least, max_chars * most
