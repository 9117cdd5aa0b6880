"""Tables of a pure test: all rows in one item, each a subtest with a name of its own."""

import functools
import inspect
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

Row = tuple[str, Mapping[str, Any]]
Test = Callable[..., None]
Decorator = Callable[[Test], Test]
MakeName = Callable[[Any], object]

_PARAM = type(pytest.param())
_SUBTESTS = inspect.Signature([inspect.Parameter("subtests", inspect.Parameter.POSITIONAL_OR_KEYWORD)])


def table_rows(
    names: str | Sequence[str], values: Iterable[Any], *, ids: Iterable[str | None] | MakeName | None = None
) -> Decorator:
    """Return a decorator that works as ``pytest.mark.parametrize``, for tests without fixtures.

    An item costs each worker its collection and its reports; a subtest costs a quarter of that. Several decorators make
    every combination of their rows. A failing row does not stop the others.
    """
    fields = [name.strip() for name in names.split(",")] if isinstance(names, str) else [*names]
    table = [*_name_rows(fields, [*values], ids)]

    def decorate(test: Test) -> Test:
        function, inner = getattr(test, "table", (test, [("", {})]))
        combined = [
            ("-".join(filter(None, (inner_name, name))), {**row, **inner_row})
            for name, row in table
            for inner_name, inner_row in inner
        ]

        @functools.wraps(function)
        def run(subtests: pytest.Subtests) -> None:
            for name, row in combined:
                with subtests.test(name):
                    function(**row)

        run.table = (function, combined)  # type: ignore[attr-defined]  # for a decorator above this one
        run.__signature__ = _SUBTESTS  # type: ignore[attr-defined]  # pytest would read that of ``function``
        return run

    return decorate


def _name_rows(
    fields: Sequence[str], values: Sequence[Any], ids: Iterable[str | None] | MakeName | None
) -> Iterable[Row]:
    given = [None] * len(values) if ids is None or callable(ids) else [*ids]
    for value, name in zip(values, given, strict=True):
        cells = value.values if isinstance(value, _PARAM) else (value,) if len(fields) == 1 else value
        if isinstance(value, _PARAM) and isinstance(value.id, str):
            name = value.id  # noqa: PLW2901 - a row's own name wins, as at pytest's parametrize
        make = ids if callable(ids) else reprlib.repr
        yield name or "-".join(str(make(cell)) for cell in cells), dict(zip(fields, cells, strict=True))
