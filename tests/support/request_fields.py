"""What becomes of one field of a chat request in each API format of a provider, for the tables of fields."""

from collections.abc import Mapping
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
    """A field, a value of it, and its outcome in each API format. ``beside``: what the request needs with it."""

    value: Any
    openai: Outcome
    anthropic: Outcome
    gemini: Outcome
    beside: Mapping[str, Any] = attrs.field(factory=dict)


def dropped(why: str) -> tuple[Outcome, Outcome]:
    return Dropped(why), Dropped(why)


def config(**fields: Any) -> Sent:
    return Sent({"generationConfig": fields})


def ask_with(**part: Any) -> list[Any]:
    return [{"role": "user", "content": [part]}]


def content_of(**part: Any) -> Sent:
    return Sent({"contents": [{"role": "user", "parts": [part]}]})
