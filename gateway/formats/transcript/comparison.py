"""Compares two answers to the same request: their texts, the tools that they call, and vectors."""

import math
import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from typing import Any, Literal

from gateway.formats.transcript.answers import ShownAnswers
from gateway.formats.transcript.content import get_object, list_objects
from gateway.frozen import frozen

MAX_COMPARED_UNITS = 1_500
"""Words or lines of one text: the time of a comparison grows with the square of their number."""
_WORD = re.compile(r"\s+|[^\s]+")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


@frozen
class TextChange:
    """A part of a text: in both texts, only in the ``old`` one, or only in the ``new`` one."""

    kind: Literal["same", "old", "new"]
    text: str


def join_texts(answers: ShownAnswers) -> str:
    """Return the texts of all answers as one text."""
    return "\n\n".join(answer.text for answer in answers.answers)


def list_tools(answers: ShownAnswers) -> list[str]:
    """Return the names of the tools that the answers call, in order."""
    return [call.name for answer in answers.answers for call in answer.tool_calls]


def compare_texts(old_text: str, new_text: str) -> list[TextChange] | None:
    """Return the parts of both texts, by words or, for longer texts, by lines; None if they are too long for that."""
    for pattern in (_WORD, _LINE):
        old_units, new_units = pattern.findall(old_text), pattern.findall(new_text)
        if max(len(old_units), len(new_units)) <= MAX_COMPARED_UNITS:
            return list(_list_changes(old_units, new_units))
    return None


def _list_changes(old_units: Sequence[str], new_units: Sequence[str]) -> Iterable[TextChange]:
    for tag, old_start, old_end, new_start, new_end in SequenceMatcher(None, old_units, new_units).get_opcodes():
        if tag == "equal":
            yield TextChange("same", "".join(old_units[old_start:old_end]))
            continue
        if old_end > old_start:
            yield TextChange("old", "".join(old_units[old_start:old_end]))
        if new_end > new_start:
            yield TextChange("new", "".join(new_units[new_start:new_end]))


def find_vector(body: Any) -> list[float]:
    """Return the first vector in the answer to a request for embeddings; empty if it has none as numbers."""
    if not isinstance(body, dict):
        return []
    items = [*list_objects(body.get("data")), *list_objects(body.get("embeddings")), get_object(body, "embedding")]
    value = items[0].get("embedding", items[0].get("values"))
    if not isinstance(value, list) or not all(type(number) in {int, float} for number in value):
        return []
    return [float(number) for number in value]


def compute_cosine(old_vector: Sequence[float], new_vector: Sequence[float]) -> float | None:
    """Return the cosine of the angle between two vectors; None if their dimensions differ, or one is 0 or infinite."""
    if len(old_vector) != len(new_vector):
        return None
    lengths = math.hypot(*old_vector) * math.hypot(*new_vector)
    if not lengths or not math.isfinite(lengths):
        return None
    return sum(old * new for old, new in zip(old_vector, new_vector, strict=True)) / lengths
