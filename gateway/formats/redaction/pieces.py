"""Texts in pieces: a secret may be split over several pieces, and each mark is put where its replaced part begins."""

from gateway.formats.redaction.redactor import Redaction, Redactor


def redact_pieces(values: list[str], redactor: Redactor) -> list[str]:
    """Return the pieces of one text, redacted."""
    redactions = redactor.find("".join(values))
    if not redactions:
        return values
    redacted, position = [], 0
    for value in values:
        redacted.append(_replace(value, position, redactions))
        position += len(value)
    return redacted


def _replace(value: str, position: int, redactions: list[Redaction]) -> str:
    """Return the piece ``value``, which begins at ``position`` of its text, with the marks that begin in it."""
    end, copied_to, parts = position + len(value), position, []
    for redaction in redactions:
        if redaction.end <= position or redaction.start >= end:
            continue
        if redaction.start >= position:
            parts += [value[copied_to - position : redaction.start - position], redaction.mark]
        copied_to = min(redaction.end, end)
    return "".join([*parts, value[copied_to - position :]])
