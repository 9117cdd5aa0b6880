"""Patterns of the operator: a subset of regular expressions whose search takes a bounded time.

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
"""The most ways in which a pattern can match at one position; a failing search tries all of them."""
MAX_MATCH_CHARS = 1_000
MAX_STEPS = 1_000
"""The most characters that a failing search compares at one position, over all the ways."""
_WINDOW_CHARS = 512
"""Positions that are tried in one search, which holds the interpreter's lock."""
_NAME = re.compile(r"[a-z]{1,20}")
_PLAIN_OPERATIONS = frozenset({"LITERAL", "NOT_LITERAL", "ANY", "IN"})
_REPETITIONS = frozenset({"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"})


class PatternRefusedError(ValueError):
    """A pattern is malformed, or its search could take too long; the message says why."""


@frozen
class OwnPattern:
    """A pattern of the operator. Its matches are replaced by ``[name 1]``, ``[name 2]``, and so on.

    Attributes:
        steps: how many characters a search compares at most at one position.
        max_chars: the length of the longest match.
        first_char: the character with which every match begins; empty if there are several, or it is not known.
    """

    name: str
    pattern: re.Pattern[str]
    steps: int
    max_chars: int
    first_char: str

    def find(self, text: str, work: Work) -> Iterator[tuple[int, int]]:
        """Yield the span of each match in ``text``. Raises ``TooMuchWorkError``."""
        for first in range(0, len(text), _WINDOW_CHARS):
            end = first + _WINDOW_CHARS
            stop = min(end + self.max_chars, len(text))
            positions = text.count(self.first_char, first, stop) if self.first_char else stop - first
            work.add(stop - first + positions * self.steps)
            for match in self.pattern.finditer(text, first, stop):
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
    name, separator, expression = text.partition("=")
    if not separator or _NAME.fullmatch(name) is None or len(expression) > MAX_PATTERN_CHARS:
        raise PatternRefusedError("expected NAME=EXPRESSION, with a name of 1 to 20 small letters")
    try:
        pattern = re.compile(expression)
        operations = list(import_module("re._parser").parse(expression))  # there is no public parser
    except (re.error, RecursionError, OverflowError) as error:
        raise PatternRefusedError(str(error)) from None
    size = _measure(operations)
    if not size.min_chars:
        raise PatternRefusedError("it matches an empty text")
    return OwnPattern(name, pattern, size.steps, size.max_chars, _find_first_char(pattern, operations))


def _find_first_char(pattern: re.Pattern[str], operations: Iterable[tuple[Any, Any]]) -> str:
    for operation, argument in operations:
        if str(operation) != "AT":
            return chr(argument) if str(operation) == "LITERAL" and not pattern.flags & re.IGNORECASE else ""
    return ""


@frozen
class _Size:
    """How a part of a pattern can match at one position: in how many ways, how short and how long.

    Attributes:
        steps: the steps to try all ways.
    """

    choices: int = 1
    min_chars: int = 0
    max_chars: int = 0
    steps: int = 1


def _measure(operations: Iterable[tuple[Any, Any]]) -> _Size:
    """Return the size of a sequence. Raises ``PatternRefusedError``."""
    size = _Size(steps=0)
    for operation, argument in operations:
        part = _measure_operation(str(operation), argument)
        size = _Size(
            size.choices * part.choices,
            size.min_chars + part.min_chars,
            size.max_chars + part.max_chars,
            size.steps + size.choices * part.steps,
        )
        if size.choices > MAX_CHOICES or size.max_chars > MAX_MATCH_CHARS or size.steps > MAX_STEPS:
            raise PatternRefusedError("it can match in too many ways: bound its repetitions, such as {1,20}")
    return size


def _measure_operation(operation: str, argument: Any) -> _Size:
    if operation in _PLAIN_OPERATIONS:
        return _Size(1, 1, 1)
    if operation == "AT":
        return _Size()
    if operation == "SUBPATTERN":
        return _measure(argument[-1])
    if operation == "BRANCH":
        branches = [_measure(branch) for branch in argument[1]]
        return _Size(
            sum(branch.choices for branch in branches),
            min(branch.min_chars for branch in branches),
            max(branch.max_chars for branch in branches),
            sum(branch.steps for branch in branches),
        )
    if operation in _REPETITIONS:
        return _measure_repetition(*argument)
    raise PatternRefusedError("it has a reference or a look-around")


def _measure_repetition(least: int, most: int, operations: Any) -> _Size:
    if most > MAX_MATCH_CHARS:
        raise PatternRefusedError("it has a repetition without a bound: write {1,20} instead of + and *")
    part = _measure(operations)
    if not part.max_chars:
        raise PatternRefusedError("it repeats what has no characters")
    if part.choices > 1 and part.choices**most > MAX_CHOICES:
        raise PatternRefusedError("it repeats what can match in several ways")
    ways = part.choices**most
    return _Size((most - least + 1) * ways, part.min_chars * least, part.max_chars * most, 1 + most * ways * part.steps)
