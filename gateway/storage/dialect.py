"""Differences between the dialects of SQLite and PostgreSQL."""

from typing import Any

from sqlalchemy import ColumnElement, String, Table, and_, or_
from sqlalchemy.dialects.sqlite import Insert
from sqlalchemy.dialects.sqlite import insert as insert_sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction
from sqlalchemy.types import NullType

from gateway.domain.request_log import lower_ascii


def insert_for(dialect: str, table: Table) -> Insert:
    """Return an INSERT into ``table`` that supports the ON CONFLICT clause, which both databases write alike."""
    if dialect == "sqlite":
        return insert_sqlite(table)
    from sqlalchemy.dialects.postgresql import insert  # noqa: PLC0415 - a start on SQLite imports no other dialect

    return insert(table)  # type: ignore[return-value]  # the two have the same methods


class FoldedText(GenericFunction[str]):
    """A text compared by LIKE without regard to the case of ASCII letters, if the pattern is lower-case."""

    type = String()
    inherit_cache = True

    def __init__(self, text: ColumnElement[Any]) -> None:
        super().__init__(text)


@compiles(FoldedText)
def _write_plain(element: FoldedText, compiler: SQLCompiler, **options: Any) -> str:
    # SQLite's LIKE ignores the case of ASCII letters anyway.
    (text,) = element.clauses
    return compiler.process(text, **options)


@compiles(FoldedText, "postgresql")
def _write_lower(element: FoldedText, compiler: SQLCompiler, **options: Any) -> str:
    # Columns have the collation "C", in which lower() changes ASCII letters only.
    return f"lower({_write_plain(element, compiler, **options)})"


class EqualInOrder(GenericFunction[Any]):
    """The condition that a column equals a value, in a query ordered by this column and the next one of its index.

    Written as ``>=`` and ``<=`` for PostgreSQL: after ``=``, its planner drops the column from the ORDER BY and, if it
    believes that a rare value is frequent, scans the whole table by the primary key. Written as ``=`` for SQLite, which
    seeks the next column of an index only after equality.
    """

    type = NullType()  # where a function is a Boolean, SQLAlchemy compares it with 1 for SQLite
    inherit_cache = True

    def __init__(self, column: ColumnElement[Any], value: ColumnElement[Any]) -> None:
        super().__init__(column, value)


@compiles(EqualInOrder)
def _write_equal(element: EqualInOrder, compiler: SQLCompiler, **options: Any) -> str:
    column, value = element.clauses
    return compiler.process(column == value, **options)


@compiles(EqualInOrder, "postgresql")
def _write_range(element: EqualInOrder, compiler: SQLCompiler, **options: Any) -> str:
    column, value = element.clauses
    return compiler.process(and_(column >= value, column <= value), **options)


def contain_text(text: str, *columns: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return the condition that one of ``columns`` contains ``text``, without regard to the case of ASCII letters."""
    return or_(*(FoldedText(column).contains(lower_ascii(text), autoescape=True) for column in columns))


def describe_violation(error: IntegrityError) -> str:
    """Return which constraint was violated, in lower case, without the values of the row."""
    return str(error.orig).lower().partition("\n")[0]
