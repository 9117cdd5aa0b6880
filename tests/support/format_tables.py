"""The tables of cases in ``tests/formats/images`` and ``videos``: their rows as parameters, and their answers."""

from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from tests.support.table_rows import Decorator, table_rows


def list_cases(tables: Mapping[Any, Any], field: str) -> Decorator:
    """Return the decorator of a test with ``wire`` and ``row`` for the rows of one field in all tables."""
    rows = [
        pytest.param(wire, row, id=f"{wire}-{number}")
        for wire, table in tables.items()
        for number, row in enumerate(table.get(field, ()))
    ]
    return table_rows(("wire", "row"), rows)


def build_answer(table: Any, answer: Any) -> bytes:
    """Return an answer's bytes: JSON, or ``{"$": name, "a.b": value}``, a recorded answer with other values."""
    if not isinstance(answer, dict) or "$" not in answer:
        return orjson.dumps(answer)
    changes = dict(answer)
    value = orjson.loads(orjson.dumps(table["answers"][changes.pop("$")]))
    for path, changed in changes.items():
        *parents, name = path.split(".")
        inner = value
        for parent in parents:
            inner = inner[parent]
        inner[name] = changed
    return orjson.dumps(value)
