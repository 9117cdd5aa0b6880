"""Inserts many rows in few steps.

Rows written with every request go directly to the driver: SQLAlchemy would inspect each value of each row, which costs
more than the database's work.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import chain, compress
from typing import Any, Literal, NamedTuple

from sqlalchemy import Boolean, Table

from gateway.storage.async_engine import AsyncConnection

MIN_COPIED_ROWS = 32
"""From this many new rows on, PostgreSQL uses COPY; for fewer, an INSERT of each is cheaper."""


ROWS_PER_INSERT = 16
"""Rows that one statement inserts into SQLite: each statement opens tables and indexes, and releases the interpreter's
lock. The values of 16 rows stay below 999, the most that older versions of SQLite take."""
_Constants = tuple[tuple[int, Literal[False] | None], ...]


class _SqliteInsert(NamedTuple):
    """The statements for one row and for ``ROWS_PER_INSERT``. ``bound``: for each column, whether it is a parameter."""

    single: str
    multiple: str
    bound: tuple[bool, ...]


class BulkInsert:
    """Inserts rows into ``columns`` of ``table``; ``on_conflict`` handles rows that may exist already."""

    def __init__(self, table: Table, columns: Sequence[str], on_conflict: str = "") -> None:
        self._table, self._columns, self._on_conflict = table, columns, on_conflict
        self._start = f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES"
        numbers = ", ".join(f"${number}" for number in range(1, len(columns) + 1))
        numbered_columns = [(position, table.c[name]) for position, name in enumerate(columns)]
        self._usual_constants: list[tuple[int, Literal[False] | None]] = [
            (position, None) for position, column in numbered_columns if column.nullable
        ]
        self._usual_constants += [
            (position, False) for position, column in numbered_columns if isinstance(column.type, Boolean)
        ]
        self._sqlite_by_constants: dict[_Constants, _SqliteInsert] = {}
        self.sqlite = self._write_sqlite(()).single
        self._postgresql_statement = f"{self._start} ({numbers}){on_conflict}"

    def run_sqlite(self, connection: sqlite3.Connection, rows: list[tuple[Any, ...]]) -> None:
        """Insert ``rows`` in the calling thread, as part of the current transaction. Raises ``sqlite3.Error``.

        A column that is NULL or false in all rows is no parameter: the driver looks for an adapter of each None and
        each bool, which takes longer than five numbers.
        """
        constants = tuple(
            constant for constant in self._usual_constants if all(row[constant[0]] is constant[1] for row in rows)
        )
        insert = self._sqlite_by_constants.get(constants) or self._write_sqlite(constants)
        parameters = [tuple(compress(row, insert.bound)) for row in rows] if constants else rows
        full_rows = len(rows) - len(rows) % ROWS_PER_INSERT
        if full_rows:
            groups = (parameters[start : start + ROWS_PER_INSERT] for start in range(0, full_rows, ROWS_PER_INSERT))
            connection.executemany(insert.multiple, (tuple(chain.from_iterable(group)) for group in groups))
        connection.executemany(insert.single, parameters[full_rows:])

    def _write_sqlite(self, constants: _Constants) -> _SqliteInsert:
        literals = {position: "NULL" if value is None else "0" for position, value in constants}
        bound = tuple(position not in literals for position in range(len(self._columns)))
        row = f"({', '.join(literals.get(position, '?') for position in range(len(self._columns)))})"
        multiple = f"{self._start} {', '.join([row] * ROWS_PER_INSERT)}{self._on_conflict}"
        insert = _SqliteInsert(f"{self._start} {row}{self._on_conflict}", multiple, bound)
        self._sqlite_by_constants[constants] = insert
        return insert

    async def run(self, connection: AsyncConnection, rows: list[tuple[Any, ...]]) -> None:
        """Insert ``rows`` in the current transaction. Raises SQLAlchemy's ``IntegrityError``."""
        if connection.dialect.name == "sqlite":
            await connection.exec_driver_sql(self.sqlite, rows)
        elif self._on_conflict or len(rows) < MIN_COPIED_ROWS:
            await connection.exec_driver_sql(self._postgresql_statement, rows)
        else:
            from gateway.storage.postgres.copy import copy_rows  # noqa: PLC0415 - its driver is an extra

            await copy_rows(connection, self._table, self._columns, rows)


Inserts = Sequence[tuple[BulkInsert, list[tuple[Any, ...]]]]
"""Rows, each list with the insert that takes it; in the order in which they are inserted."""


class BulkAddition(BulkInsert):
    """Inserts rows. For a row that exists, adds to ``sums``, and keeps the higher value of ``highest_columns``."""

    def __init__(self, table: Table, sums: Sequence[str], highest_columns: Sequence[str] = ()) -> None:
        key_columns = ", ".join(column.name for column in table.primary_key.columns)
        changes = ", ".join((*_write_sums(table, sums), *_write_highest(table, highest_columns)))
        super().__init__(table, table.c.keys(), f" ON CONFLICT ({key_columns}) DO UPDATE SET {changes}")


def _write_sums(table: Table, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        yield f"{name} = {table.name}.{name} + excluded.{name}"


def _write_highest(table: Table, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        own_column, new_column = f"{table.name}.{name}", f"excluded.{name}"
        yield f"{name} = CASE WHEN {new_column} > {own_column} THEN {new_column} ELSE {own_column} END"
