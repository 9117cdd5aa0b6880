"""Alembic's operations on a PostgreSQL database: columns are made wide, and indexes can be left for later."""

from typing import Any

import sqlalchemy as sa
from alembic.ddl.postgresql import PostgresqlImpl
from sqlalchemy.schema import CreateIndex

from gateway.storage.postgres.unfinished import DELETE_ROW, PUT_ROW, UNFINISHED

_HURRY = sa.text("SET LOCAL lock_timeout = '100ms'")
"""A migration that has locked one table must not wait long for the next: statements of others wait for it."""


class OnlineOperations(PostgresqlImpl):
    """What Alembic does in PostgreSQL. Alembic registers the class when it is defined.

    A new column has its final type at once. Widening the column later would rewrite a table with millions of rows, and
    block all statements that use the table. With the option ``is_in_use`` an index of a table with rows becomes a
    row of the table ``cluster``, from which ``storage/postgres/migration.py`` builds the index without a lock on the
    table.
    """

    __dialect__ = "postgresql"

    def add_column(self, table_name: str, column: sa.Column[Any], **options: Any) -> None:
        _widen(column)
        super().add_column(table_name, column, **options)
        if self.context_opts.get("is_in_use"):
            self._execute(_HURRY)

    def create_table(self, table: sa.Table, **options: Any) -> None:
        for column in table.columns:
            _widen(column)
        super().create_table(table, **options)

    def create_index(self, index: sa.Index, **options: Any) -> None:
        if not self._is_deferred(index):
            super().create_index(index, **options)
            return
        index.dialect_options["postgresql"]["concurrently"] = True
        statement = str(CreateIndex(index).compile(dialect=self.dialect))
        self._execute(PUT_ROW, name=f"{UNFINISHED}{index.name}", value=statement.encode())

    def drop_index(self, index: sa.Index, **options: Any) -> None:
        if self.context_opts.get("is_in_use"):
            self._execute(DELETE_ROW, name=f"{UNFINISHED}{index.name}")
            options["if_exists"] = True
        super().drop_index(index, **options)

    def _is_deferred(self, index: sa.Index) -> bool:
        if index.unique or index.table is None or not self.context_opts.get("is_in_use"):
            return False
        has_rows = sa.select(sa.exists(sa.select(sa.literal(1)).select_from(sa.table(index.table.name))))
        return bool(self._execute(has_rows).scalar_one())

    def _execute(self, statement: sa.Executable, **values: object) -> sa.CursorResult[Any]:
        if self.connection is None:
            raise RuntimeError("migrations run on a connection")
        return self.connection.execute(statement, values)


def _widen(column: sa.Column[Any]) -> None:
    """Give a column the type to which ``storage/postgres/values.py`` would widen it."""
    if isinstance(column.type, sa.Integer):
        column.type = sa.BigInteger()
    elif isinstance(column.type, sa.String):
        column.type = sa.Text(collation="C")
