"""The scope of a copy: the tables of the schema, their columns, and the order of their rows."""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import JSON, Boolean, Column, LargeBinary, Table

from gateway.frozen import frozen
from gateway.storage import schema

Row = tuple[Any, ...]
ROWS_PER_BATCH, LARGE_ROWS_PER_BATCH = 5_000, 20
_NUMBER_STARTS = frozenset("-0123456789")

TOTALS = """
SELECT account_id, key_id, CAST(SUM(entry) AS BIGINT), CAST(SUM(used) AS BIGINT), CAST(SUM(requested) AS BIGINT),
    CAST(SUM(credit) AS BIGINT)
FROM (
    SELECT account_id, coalesce(key_id, 0) AS key_id, CASE kind WHEN 'charge' THEN amount_nanos ELSE 0 END AS entry,
        0 AS used, 0 AS requested, CASE kind WHEN 'charge' THEN 0 ELSE amount_nanos END AS credit FROM entries
    UNION ALL SELECT account_id, key_id, 0, cost_nanos, 0, 0 FROM usage_days
    UNION ALL SELECT account_id, key_id, 0, 0, cost_nanos, 0 FROM requests
    UNION ALL SELECT account_id, key_id, 0, 0, cost_nanos, 0 FROM retired
) AS amounts GROUP BY account_id, key_id ORDER BY account_id, key_id
"""
"""Each key's charges by entries, by days and by requests, and its credits, in nano-USD."""


@frozen
class CopiedTable:
    """A table of the schema.

    Attributes:
        order: the columns of the primary key, by which rows are read.
        flags: the positions of booleans, which SQLite stores as numbers.
        documents: the positions of JSON values. SQLite stores a JSON number as a number: 1.0 becomes 1.
        counter_column: the column whose values the database assigns; None without one.
        batch: how many rows are read and written at once.
    """

    name: str
    columns: Sequence[str]
    order: Sequence[str]
    flags: Sequence[int]
    documents: Sequence[int]
    counter_column: str | None
    batch: int

    @property
    def select(self) -> str:
        """The statement that reads every row, in the same order on both databases: texts are ordered by their bytes."""
        return f"SELECT {_join(self.columns)} FROM {self.name} ORDER BY {_join(self.order)}"  # noqa: S608 - our own

    @property
    def insert(self) -> str:
        placeholders = ", ".join("?" * len(self.columns))
        return f"INSERT INTO {self.name} ({_join(self.columns)}) VALUES ({placeholders})"  # noqa: S608 - our own

    def parse(self, row: Sequence[Any]) -> Row:
        """Normalize a row read from either database, so that equal rows compare equal."""
        if not (self.flags or self.documents):
            return tuple(row)
        values = list(row)
        for position in self.flags:
            values[position] = bool(values[position])
        for position in self.documents:
            if values[position] is not None:
                values[position] = _write_document(values[position])
        return tuple(values)


def list_tables() -> list[CopiedTable]:
    """Return every table, each after the tables that its foreign keys reference."""
    return [_describe(table) for table in schema.metadata.sorted_tables]


def _describe(table: Table) -> CopiedTable:
    columns = list(table.columns)
    counter_column = table.autoincrement_column if table.dialect_options["sqlite"]["autoincrement"] else None
    return CopiedTable(
        str(table.name),
        [str(column.name) for column in columns],
        [str(column.name) for column in table.primary_key.columns],
        [position for position, column in enumerate(columns) if isinstance(column.type, Boolean)],
        [position for position, column in enumerate(columns) if isinstance(column.type, JSON)],
        None if counter_column is None else str(counter_column.name),
        LARGE_ROWS_PER_BATCH if any(map(_may_be_large, columns)) else ROWS_PER_BATCH,
    )


def _may_be_large(column: Column[Any]) -> bool:
    """Return whether values may take megabytes: bodies of answers, encrypted responses, prompts."""
    return (isinstance(column.type, LargeBinary) and column.type.length is None) or column.name == "prompt"


def _write_document(value: Any) -> Any:
    if isinstance(value, str):
        if value[:1] not in _NUMBER_STARTS:
            return value
        value = json.loads(value)
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)


def _join(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)
