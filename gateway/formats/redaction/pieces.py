"""Texts in pieces: a secret may be split over several pieces, and each mark is put where its replaced part begins."""

from collections.abc import Iterable, Iterator

from gateway.formats.redaction.redactor import Redaction, Redactor


def redact_pieces(values: list[str], redactor: Redactor) -> list[str]:
    """Return the pieces of one text, redacted. Raises ``TooMuchWorkError``."""
    redactions = redactor.find("".join(values))
    if not redactions:
        return values
    redacted, position, first = [], 0, 0
    for value in values:
        while first < len(redactions) and redactions[first].end <= position:
            first += 1
        redacted.append(_replace(value, position, _list_from(redactions, first)))
        position += len(value)
    return redacted


def _replace(value: str, position: int, redactions: Iterable[Redaction]) -> str:
    """Return the piece ``value``, which begins at ``position`` of its text, with the marks that begin in it.

    The first of ``redactions`` ends after ``position``.
    """
    end, copied_to, parts = position + len(value), position, []
    for redaction in redactions:
        if redaction.start >= end:
            break
        if redaction.start >= position:
            parts += [value[copied_to - position : redaction.start - position], redaction.mark]
        copied_to = min(redaction.end, end)
    return "".join([*parts, value[copied_to - position :]])


def _list_from(redactions: list[Redaction], first: int) -> Iterator[Redaction]:
    return (redactions[number] for number in range(first, len(redactions)))
