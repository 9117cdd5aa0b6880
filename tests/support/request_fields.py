"""What becomes of one field of a chat request in each API format of a provider, for the tables of fields."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs


@attrs.frozen
class Refused:
    """The request is refused: the error names ``param``, or the field itself."""

    param: str | None = None


@attrs.frozen
class Dropped:
    """The field is not sent, and the answer is what was asked for all the same. ``why`` is for readers."""

    why: str


@attrs.frozen
class Sent:
    """The provider's body has ``fields`` that it has not without the field."""

    fields: Mapping[str, Any]


PASSED = "passed"
Outcome = Refused | Dropped | Sent | str


@attrs.frozen
class Row:
    """A field, a value of it, and its outcome in each API format.

    Attributes:
        beside: what the request needs with it.
        label: what the documentation calls it; empty: by its name; None: it says nothing of it.
    """

    value: Any
    openai: Outcome
    anthropic: Outcome
    gemini: Outcome
    beside: Mapping[str, Any] = attrs.field(factory=dict)
    label: str | None = ""

    @property
    def outcomes(self) -> Mapping[str, Outcome]:
        """The outcomes by the API format of the provider."""
        return {"openai_chat": self.openai, "anthropic_messages": self.anthropic, "gemini_generate": self.gemini}


def dropped(why: str) -> tuple[Outcome, Outcome]:
    return Dropped(why), Dropped(why)


def config(**fields: Any) -> Sent:
    return Sent({"generationConfig": fields})


def ask_with(**part: Any) -> list[Any]:
    return [{"role": "user", "content": [part]}]


def content_of(**part: Any) -> Sent:
    return Sent({"contents": [{"role": "user", "parts": [part]}]})


_SAME = frozenset({"the same", "same"})
_TITLES = {"openai_chat": "chat", "anthropic_messages": "Anthropic", "gemini_generate": "Gemini"}


def write_table(rows: Iterable[tuple[str, Row]], native: str) -> str:
    """Write the fields that a provider of another format than ``native`` is not sent, as a table of Markdown."""
    wires = [wire for wire in _TITLES if wire != native]
    by_cells: dict[tuple[str, ...], list[str]] = {}
    for field, row in rows:
        outcomes = [row.outcomes[wire] for wire in wires]
        if row.label is not None and any(isinstance(outcome, Refused | Dropped) for outcome in outcomes):
            by_cells.setdefault(tuple(_write_cells(outcomes)), []).append(row.label or f"`{field}`")
    head = ["field", *(f"at {_TITLES[wire]}" for wire in wires)]
    lines = [head, ["---"] * len(head), *([", ".join(fields), *cells] for cells, fields in by_cells.items())]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _write_cells(outcomes: list[Outcome]) -> Iterator[str]:
    why = ""
    for outcome in outcomes:
        if isinstance(outcome, Dropped):
            yield "left out, too" if outcome.why in {why, *_SAME} else f"left out: {outcome.why}"
            why = outcome.why
        else:
            yield "refused" if isinstance(outcome, Refused) else "translated"
