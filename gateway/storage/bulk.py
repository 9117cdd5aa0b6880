"""Inserts many rows in few steps.

Rows written with every request go directly to the driver: SQLAlchemy would inspect each value of each row, which costs
more than the database's work.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from sqlalchemy import Table

from gateway.storage.async_engine import AsyncConnection

COPIED = 32
"""From this many rows on, PostgreSQL uses COPY; for fewer, an INSERT of each is cheaper."""


TOGETHER = 16
"""Rows that one statement inserts into SQLite: each statement opens tables and indexes, and releases the interpreter's
lock. The values of 16 rows stay below 999, the most that older versions of SQLite take."""


class BulkInsert:
    """Inserts rows into ``columns`` of ``table``; ``on_conflict`` handles rows that may exist already."""

    def __init__(self, table: Table, columns: Sequence[str], on_conflict: str = "") -> None:
        self._table, self._columns, self._on_conflict = table, columns, on_conflict
        start = f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES"
        numbers = ", ".join(f"${number}" for number in range(1, len(columns) + 1))
        row = f"({', '.join('?' * len(columns))})"
        self.sqlite = f"{start} {row}{on_conflict}"
        self._sqlite_together = f"{start} {', '.join([row] * TOGETHER)}{on_conflict}"
        self.postgresql = f"{start} ({numbers}){on_conflict}"

    def run_sqlite(self, connection: sqlite3.Connection, rows: list[tuple[Any, ...]]) -> None:
        """Insert ``rows`` in the caller's thread, as part of the current transaction. Raises ``sqlite3.Error``."""
        whole = len(rows) - len(rows) % TOGETHER
        if whole:
            groups = (rows[first : first + TOGETHER] for first in range(0, whole, TOGETHER))
            connection.executemany(self._sqlite_together, (tuple(chain.from_iterable(group)) for group in groups))
        connection.executemany(self.sqlite, rows[whole:])

    async def run(self, connection: AsyncConnection, rows: list[tuple[Any, ...]]) -> None:
        """Insert ``rows`` as part of the current transaction. Raises SQLAlchemy's ``IntegrityError``."""
        if connection.dialect.name == "sqlite":
            await connection.exec_driver_sql(self.sqlite, rows)
        elif self._on_conflict or len(rows) < COPIED:
            await connection.exec_driver_sql(self.postgresql, rows)
        else:
            from gateway.storage.postgres.copy import copy_rows  # noqa: PLC0415 - its driver is an extra

            await copy_rows(connection, self._table, self._columns, rows)


Inserts = Sequence[tuple[BulkInsert, list[tuple[Any, ...]]]]
"""Rows, each list with the insert that takes it; in the order in which they are inserted."""


class BulkAddition(BulkInsert):
    """Inserts rows; where a row exists, adds the ``sums`` to its values, and raises its ``highest`` to the new ones."""

    def __init__(self, table: Table, sums: Sequence[str], highest: Sequence[str] = ()) -> None:
        place = ", ".join(column.name for column in table.primary_key.columns)
        changes = ", ".join((*_write_sums(table, sums), *_write_highest(table, highest)))
        super().__init__(table, table.c.keys(), f" ON CONFLICT ({place}) DO UPDATE SET {changes}")


def _write_sums(table: Table, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        yield f"{name} = {table.name}.{name} + excluded.{name}"


def _write_highest(table: Table, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        own, new = f"{table.name}.{name}", f"excluded.{name}"
        yield f"{name} = CASE WHEN {new} > {own} THEN {new} ELSE {own} END"
