"""``table_rows``: what it makes of a table."""

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import pytest

from tests.support.table_rows import table_rows


class Subtests:
    """Stands for pytest's: notes the names, and which of them failed."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.failed: list[str] = []

    @contextmanager
    def test(self, name: str) -> Iterator[None]:
        self.names.append(name)
        try:
            yield
        except AssertionError:
            self.failed.append(name)


def run(test: Any) -> Subtests:
    subtests = Subtests()
    assert [*signature(test).parameters] == ["subtests"]
    test(subtests)
    return subtests


def test_decorators_make_every_combination_and_a_failing_row_does_not_stop_the_others() -> None:
    seen = []

    @table_rows("x", [1, pytest.param(2, id="two")])
    @table_rows(("y", "z"), [(3, 4), (5, 6)], ids=["a", None])
    def table(x: int, y: int, z: int) -> None:
        seen.append((x, y, z))
        assert x != 2

    subtests = run(table)
    assert seen == [(1, 3, 4), (1, 5, 6), (2, 3, 4), (2, 5, 6)]
    assert subtests.names == ["a-1", "5-6-1", "a-two", "5-6-two"]
    assert subtests.failed == ["a-two", "5-6-two"]


def test_a_name_is_made_by_a_function_or_of_the_value() -> None:
    @table_rows("value", ["text", {"a": 1}], ids=type)
    def typed(value: Any) -> None: ...

    @table_rows("value", ["text"])
    def plain(value: Any) -> None: ...

    assert run(typed).names == ["<class 'str'>", "<class 'dict'>"]
    assert run(plain).names == ["'text'"]


def test_a_row_of_another_length_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        table_rows("x, y", [(1, 2), (3,)])
