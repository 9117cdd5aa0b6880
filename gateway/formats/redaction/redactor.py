"""Finds what must not be kept in texts, and replaces it by numbered marks: ``[card 1]``, ``[secret 2]``."""

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING

from gateway.domain.keep_rule import RedactedKind
from gateway.formats.redaction.personal_shapes import FINDERS, is_card
from gateway.formats.redaction.secret_shapes import MIN_NAMED_SECRET_CHARS, SECRET_NAME, SHAPES, SecretShape
from gateway.frozen import frozen

if TYPE_CHECKING:
    from ahocorasick_rs import AhoCorasick

_SECRET = "secret"  # noqa: S105 - what stands in place of one
_MIN_CARD_DIGITS, _MAX_CARD_DIGITS = 13, 19
_TAIL_CHARS = 32 * 1024
"""How far a secret may reach beyond its anchor."""


@frozen
class Redaction:
    """A part of a text that is replaced by ``mark``."""

    start: int
    end: int
    mark: str


class Redactor:
    """Redacts the texts of one request. Equal values get equal marks.

    Args:
        kinds: what is replaced.
        own_secrets: the keys of the channels that were used.
    """

    def __init__(self, kinds: frozenset[RedactedKind], own_secrets: Iterable[str] = ()) -> None:
        self._finds_secrets = "secrets" in kinds
        self._finders = [finder for kind, finder in FINDERS.items() if kind in kinds]
        self._finds_cards = "cards" in kinds
        self._own_secrets = sorted(
            {secret for secret in own_secrets if len(secret) >= MIN_NAMED_SECRET_CHARS}, key=len, reverse=True
        )
        self._numbers: dict[tuple[str, str], int] = {}
        self._counts: dict[str, int] = {}

    def find(self, text: str) -> list[Redaction]:
        """Return the parts of ``text`` to replace, in order; they do not overlap."""
        spans = sorted(self._list_spans(text), key=lambda span: (span[0], -span[1]))
        joined: list[tuple[int, int, str]] = []
        for start, end, name in spans:
            if joined and start < joined[-1][1]:
                joined[-1] = (joined[-1][0], max(end, joined[-1][1]), joined[-1][2])
            else:
                joined.append((start, end, name))
        return [Redaction(start, end, self._mark(name, text[start:end])) for start, end, name in joined]

    def redact(self, text: str) -> str:
        """Return ``text`` with everything replaced."""
        redactions = self.find(text)
        if not redactions:
            return text
        pieces, position = [], 0
        for redaction in redactions:
            pieces += [text[position : redaction.start], redaction.mark]
            position = redaction.end
        return "".join([*pieces, text[position:]])

    def redact_field(self, name: str, text: str) -> str:
        """Return the text of the JSON field ``name``, redacted. All of a password is a secret."""
        if self._finds_secrets and len(text) >= MIN_NAMED_SECRET_CHARS and SECRET_NAME.search(name) and " " not in text:
            return self._mark(_SECRET, text)
        return self.redact(text)

    def redact_number(self, number: int) -> str | None:
        """Return the mark of a card number; None if ``number`` is none."""
        digits = str(number)
        if not self._finds_cards or not _MIN_CARD_DIGITS <= len(digits) <= _MAX_CARD_DIGITS or not is_card(digits):
            return None
        return self._mark("card", digits)

    def _mark(self, name: str, value: str) -> str:
        number = self._numbers.get((name, value))
        if number is None:
            number = self._counts[name] = self._counts.get(name, 0) + 1
            self._numbers[name, value] = number
        return f"[{name} {number}]"

    def _list_spans(self, text: str) -> Iterator[tuple[int, int, str]]:
        if self._finds_secrets:
            for start, end in chain(_find_shapes(text), _find_texts(text, self._own_secrets)):
                yield start, end, _SECRET
        for name, finder in self._finders:
            for start, end in finder(text):
                yield start, end, name


def _find_shapes(text: str) -> Iterator[tuple[int, int]]:
    """Yield the secrets of known shapes in ``text``."""
    search, shapes = _open_search()
    for number, start, _ in search.find_matches_as_indexes(text, overlapping=True):
        shape = shapes[number]
        if not shape.lead:
            match = shape.pattern.match(text, start, start + _TAIL_CHARS)
            if match is not None:
                yield match.span(match.lastindex or 0)
            continue
        for match in shape.pattern.finditer(text, max(0, start - shape.lead), start + _TAIL_CHARS):
            if match.start() > start:
                break
            if match.end() > start:
                yield match.span(match.lastindex or 0)


@cache
def _open_search() -> "tuple[AhoCorasick, list[SecretShape]]":
    """Return the search for the anchors of all shapes, and the shape of each anchor."""
    from ahocorasick_rs import AhoCorasick  # noqa: PLC0415 - only a gateway that keeps bodies needs it

    pairs = [(anchor, shape) for shape in SHAPES for anchor in shape.anchors]
    return AhoCorasick([anchor for anchor, _ in pairs]), [shape for _, shape in pairs]


def _find_texts(text: str, parts: Iterable[str]) -> Iterator[tuple[int, int]]:
    for part in parts:
        start = text.find(part)
        while start >= 0:
            yield start, start + len(part)
            start = text.find(part, start + len(part))
