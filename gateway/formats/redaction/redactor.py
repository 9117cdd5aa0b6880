"""Finds what must not be kept in texts, and replaces it by numbered marks: ``[card 1]``, ``[secret 2]``."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING

from gateway.domain.keep_rule import RedactedKind
from gateway.formats.redaction.escapes import resolve_fully, resolve_levels
from gateway.formats.redaction.own_patterns import OwnPattern
from gateway.formats.redaction.personal_shapes import FINDERS, is_card
from gateway.formats.redaction.secret_shapes import MIN_NAMED_SECRET_CHARS, SECRET_NAME, SHAPES, SecretShape
from gateway.formats.redaction.work import STEPS_PER_TRY, Work
from gateway.frozen import frozen

if TYPE_CHECKING:
    from ahocorasick_rs import AhoCorasick

_SECRET = "secret"  # noqa: S105 - what stands in place of one
_MIN_CARD_DIGITS, _MAX_CARD_DIGITS = 13, 19
_TAIL_CHARS = 32 * 1024
"""How far a secret may reach beyond its anchor."""
_WINDOW_CHARS = 32 * 1024
"""Anchors are listed window by window: a text of many anchors would have a list of gigabytes."""
_MARK = re.compile(r"\[[a-z]+ \d+\]")


@frozen
class Redaction:
    """A part of a text that is replaced by ``mark``."""

    start: int
    end: int
    mark: str


class Redactor:
    """Redacts the texts of one request. Equal values get equal marks.

    Attributes:
        work: counts the steps of redacting the present body.
        is_active: whether texts are searched for any kind of value or for patterns of the operator.

    Args:
        kinds: what is replaced.
        own_secrets: the keys and header values of the channels that were used.
        own_patterns: patterns of the operator, whose matches are replaced, too.
        left_out: paths of JSON fields that are not kept (``left_out``).
    """

    def __init__(
        self,
        kinds: frozenset[RedactedKind],
        own_secrets: Iterable[str] = (),
        *,
        own_patterns: Sequence[OwnPattern] = (),
        left_out: Sequence[str] = (),
    ) -> None:
        self.work = Work()
        self.is_active = bool(kinds or own_patterns)
        self.left_out = left_out
        self._own_patterns = own_patterns
        self._finds_secrets = "secrets" in kinds
        self._finders = [finder for kind, finder in FINDERS.items() if kind in kinds]
        self._finds_cards = "cards" in kinds
        self._own_secrets = sorted(
            {secret for secret in own_secrets if len(secret) >= MIN_NAMED_SECRET_CHARS}, key=len, reverse=True
        )
        self._numbers: dict[tuple[str, str], int] = {}
        self._counts: dict[str, int] = {}

    def find(self, text: str) -> list[Redaction]:
        """Return the parts of ``text`` to replace, in order and without overlaps. Raises ``TooMuchWorkError``."""
        spans = sorted(self._list_all_spans(text), key=lambda span: (span[0], -span[1]))
        joined: list[tuple[int, int, str]] = []
        for start, end, name in spans:
            if joined and start < joined[-1][1]:
                joined[-1] = (joined[-1][0], max(end, joined[-1][1]), joined[-1][2])
            else:
                joined.append((start, end, name))
        return [Redaction(start, end, self._make_mark(name, text[start:end])) for start, end, name in joined]

    @property
    def searches_only_values(self) -> bool:
        """Whether each value to replace is found by its own characters, wherever it stands.

        A field to leave out is found by its name, and an operator's pattern may ask for the end of a text. A key that
        ends with a backslash would change a quote that follows it.
        """
        return not (self._own_patterns or self.left_out or any("\\" in secret for secret in self._own_secrets))

    def finds_in_plain(self, text: str, work: Work) -> bool:
        """Return whether there is anything to replace in ``text`` as it is, with its escapes not resolved.

        Raises ``TooMuchWorkError``.
        """
        return next(self._list_spans(text, work), None) is not None

    def redact(self, text: str) -> str:
        """Return ``text`` with everything replaced that ``find`` returns. Raises ``TooMuchWorkError``."""
        redactions = self.find(text)
        if not redactions:
            return text
        pieces, position = [], 0
        for redaction in redactions:
            pieces += [text[position : redaction.start], redaction.mark]
            position = redaction.end
        return "".join([*pieces, text[position:]])

    def redact_field(self, name: str, text: str) -> str:
        """Return the text of the JSON field ``name``, redacted. All text of a field named for a secret is replaced.

        Raises ``TooMuchWorkError``.
        """
        return self._make_mark(_SECRET, text) if self.is_secret_field(name, text) else self.redact(text)

    def is_secret_field(self, name: str, text: str) -> bool:
        """Return whether the JSON field ``name`` is named for a secret, and ``text`` may be one."""
        return (
            self._finds_secrets
            and len(text) >= MIN_NAMED_SECRET_CHARS
            and SECRET_NAME.search(name) is not None
            and _MARK.fullmatch(text) is None
        )

    def redact_number(self, name: str, digits: str) -> str | None:
        """Return the text that replaces a number in the JSON field ``name``; None if nothing in it is replaced.

        A secret or a card number is replaced as a whole, of other numbers only what an operator's pattern matches.
        Raises ``TooMuchWorkError``.
        """
        if self.is_secret_field(name, digits):
            return self._make_mark(_SECRET, digits)
        if self._finds_cards and _MIN_CARD_DIGITS <= len(digits) <= _MAX_CARD_DIGITS and is_card(digits):
            return self._make_mark("card", digits)
        has_match = any(True for own_pattern in self._own_patterns for _ in own_pattern.find(digits, self.work))
        return self.redact(digits) if has_match else None

    def _make_mark(self, name: str, value: str) -> str:
        value = resolve_fully(value, self.work)
        number = self._numbers.get((name, value))
        if number is None:
            number = self._counts[name] = self._counts.get(name, 0) + 1
            self._numbers[name, value] = number
        return f"[{name} {number}]"

    def _list_all_spans(self, text: str) -> Iterator[tuple[int, int, str]]:
        return chain(self._list_spans(text, self.work), self._list_escaped_spans(text))

    def _list_spans(self, text: str, work: Work) -> Iterator[tuple[int, int, str]]:
        work.add(len(text))
        if self._finds_secrets:
            for start, end in chain(_find_shapes(text, work), _find_texts(text, self._own_secrets)):
                yield start, end, _SECRET
        for name, finder in self._finders:
            for start, end in finder(text, work):
                yield start, end, name
        for own_pattern in self._own_patterns:
            for start, end in own_pattern.find(text, work):
                yield start, end, own_pattern.name

    def _list_escaped_spans(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Yield start, end and name of what is found behind the escapes in ``text``; the positions are in ``text``.

        Raises ``TooMuchWorkError``.
        """
        for levels in resolve_levels(text, self.work):
            for start, end, name in self._list_spans(levels[-1].text, self.work):
                for level in reversed(levels):
                    start, end = level.locate(start), level.locate(end)  # noqa: PLW2901
                yield start, end, name


def _find_shapes(text: str, work: Work) -> Iterator[tuple[int, int]]:
    """Yield the span of each secret of a known shape in ``text``. No shape is tried twice at the same characters.

    Raises ``TooMuchWorkError``.
    """
    _, shapes, _ = _open_search()
    tried_to: dict[int, int] = {}
    for number, start in _find_anchors(text):
        shape = shapes[number]
        if start < tried_to.get(id(shape), 0):
            continue
        work.add(STEPS_PER_TRY)
        span = _try_shape(shape, text, start)
        if span is not None:
            tried_to[id(shape)] = span[1]
            work.add(span[1] - start)
            yield span
        elif shape.run is not None:
            match = shape.run.match(text, start, start + _TAIL_CHARS)
            end = start if match is None else match.end()
            work.add(end - start)
            tried_to[id(shape)] = end if end - start <= shape.max_run else end - shape.max_run


def _find_anchors(text: str) -> Iterator[tuple[int, int]]:
    """Yield the number and the position of each anchor in ``text``."""
    search, _, max_chars = _open_search()
    for first in range(0, len(text), _WINDOW_CHARS):
        window = text[first : first + _WINDOW_CHARS + max_chars]
        for number, start, _ in search.find_matches_as_indexes(window, overlapping=True):
            if start < _WINDOW_CHARS:
                yield number, first + start


def _try_shape(shape: SecretShape, text: str, start: int) -> tuple[int, int] | None:
    """Return start and end of the secret of ``shape`` at the anchor at ``start``; None if there is none."""
    head_start = start
    if shape.head is not None:
        head = shape.head.search(text, max(0, start - shape.lead), start)
        if head is None:
            return None
        head_start = head.start()
    match = shape.pattern.match(text, start, start + _TAIL_CHARS)
    if match is None:
        return None
    return match.span(match.lastindex) if match.lastindex else (head_start, match.end())


@cache
def _open_search() -> "tuple[AhoCorasick, list[SecretShape], int]":
    """Return the search for the anchors of all shapes, the shape of each anchor, and the longest anchor's length."""
    from ahocorasick_rs import AhoCorasick  # noqa: PLC0415 - only a gateway that keeps bodies needs it

    pairs = [(anchor, shape) for shape in SHAPES for anchor in shape.anchors]
    anchors = [anchor for anchor, _ in pairs]
    return AhoCorasick(anchors), [shape for _, shape in pairs], max(map(len, anchors))


def _find_texts(text: str, parts: Iterable[str]) -> Iterator[tuple[int, int]]:
    for part in parts:
        start = text.find(part)
        while start >= 0:
            yield start, start + len(part)
            start = text.find(part, start + len(part))
