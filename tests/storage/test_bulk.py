"""Many rows in few statements: what is a parameter of SQLite's driver, and what is written into the statement."""

import sqlite3
from collections.abc import Iterable
from typing import Any

import pytest
from sqlalchemy import Boolean, Column, Integer, MetaData, String, Table

from gateway.storage.bulk import ROWS_PER_INSERT, BulkInsert

NOTES = Table(
    "notes", MetaData(), Column("id", Integer), Column("note", String, nullable=True), Column("flag", Boolean)
)
COLUMNS = ("id", "note", "flag")


class ListeningConnection(sqlite3.Connection):
    """A connection that keeps the kinds of all parameters."""

    kinds: set[type]

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
        """Insert, and note the kinds of what is inserted."""
        rows = list(parameters)
        self.kinds = self.kinds | {type(value) for row in rows for value in row}
        return super().executemany(sql, rows)


@pytest.mark.parametrize("count", [1, ROWS_PER_INSERT, 2 * ROWS_PER_INSERT + 3])
@pytest.mark.parametrize(
    ("note", "flag", "kinds"),
    [(None, False, {int}), ("text", False, {int, str}), (None, True, {int, bool}), ("text", True, {int, str, bool})],
)
def test_what_is_null_or_false_in_all_rows_is_no_parameter(
    count: int, note: str | None, *, flag: bool, kinds: set[type]
) -> None:
    """The last row alone differs from the others."""
    rows = [(number, None, False) for number in range(count - 1)] + [(count - 1, note, flag)]
    connection = sqlite3.connect(":memory:", factory=ListeningConnection)
    try:
        connection.kinds = set()
        connection.execute("CREATE TABLE notes (id, note, flag)")
        BulkInsert(NOTES, COLUMNS).run_sqlite(connection, rows)
        assert connection.execute("SELECT * FROM notes ORDER BY id").fetchall() == rows
        assert connection.kinds - {type(None)} == kinds
        assert (type(None) in connection.kinds) == (note is not None and count > 1)
    finally:
        connection.close()
