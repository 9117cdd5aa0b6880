"""The database driver: SQLAlchemy's aiosqlite, but with a single call into the connection's thread per statement.

SQLAlchemy's adapter asks the thread for a cursor, for the execution, for the rows and for the end of the cursor, and
waits each time. These calls, not the statements, are most of the cost of a small statement.
"""

import contextlib
import sqlite3
from collections import deque
from collections.abc import Callable
from typing import Any, Self

import aiosqlite
import attrs
from sqlalchemy.dialects.sqlite.aiosqlite import (
    AsyncAdapt_aiosqlite_connection,
    AsyncAdapt_aiosqlite_cursor,
    AsyncAdapt_aiosqlite_dbapi,
)
from sqlalchemy.util import EMPTY_DICT
from sqlalchemy.util.concurrency import await_

from gateway.frozen import frozen


@frozen
class _Outcome:
    """The cursor attributes that SQLAlchemy reads after a statement; the initial values are those before it."""

    description: Any = None
    rowcount: int = -1
    lastrowid: int | None = None
    rows: list[Any] = attrs.Factory(list)

    @classmethod
    def read(cls, cursor: sqlite3.Cursor) -> Self:
        """Return what a statement has left in ``cursor``.

        Every row is read first: only afterwards does SQLite know how many rows a statement with RETURNING changed.
        """
        rows = cursor.fetchall() if cursor.description else []
        return cls(cursor.description, cursor.rowcount, cursor.lastrowid, rows)


class _Cursor(AsyncAdapt_aiosqlite_cursor):
    """A cursor that exists in the thread only while its statement is executed."""

    __slots__ = ()

    def __init__(self, adapt_connection: AsyncAdapt_aiosqlite_connection) -> None:
        self._adapt_connection = adapt_connection
        self._connection = adapt_connection._connection  # noqa: SLF001 - like its base class
        self._soft_closed_memoized = EMPTY_DICT
        self._rows = deque()
        self._cursor: Any = _Outcome()

    async def _async_soft_close(self) -> None:
        """No-op: the cursor is already closed after each statement."""

    def close(self) -> None:
        self._rows.clear()

    async def _execute_async(self, operation: Any, parameters: Any) -> None:
        arguments = (operation,) if parameters is None else (operation, parameters)
        await self._call(lambda cursor: cursor.execute(*arguments))

    async def _executemany_async(self, operation: Any, seq_of_parameters: Any) -> None:
        await self._call(lambda cursor: cursor.executemany(operation, seq_of_parameters))

    def executescript(self, script: str) -> None:
        """Execute several statements without reading their rows, in a single call into the thread."""
        try:
            await_(self._call(lambda cursor: cursor.executescript(script)))
        except Exception as error:  # noqa: BLE001 - like its base class
            self._adapt_connection._handle_exception(error)  # noqa: SLF001 - like its base class

    async def _call(self, execute: Callable[[sqlite3.Cursor], object]) -> None:
        connection: aiosqlite.Connection = self._connection  # type: ignore[assignment]  # SQLAlchemy knows a protocol

        def work() -> _Outcome:
            with contextlib.closing(connection._conn.cursor()) as cursor:  # noqa: SLF001 - called in its thread
                execute(cursor)
                return _Outcome.read(cursor)

        async with self._adapt_connection._execute_mutex:  # noqa: SLF001 - like its base class
            self._cursor = await connection._execute(work)  # type: ignore[no-untyped-call]  # noqa: SLF001 - nor public
            self._rows = deque(self._cursor.rows)


class _Connection(AsyncAdapt_aiosqlite_connection):
    __slots__ = ()
    _cursor_cls = _Cursor  # type: ignore[assignment]  # SQLAlchemy types it for its own classes only

    def create_function(self, name: str, *args: Any, **kw: Any) -> None:
        """Create a function in SQL, but not ``regexp``, which SQLAlchemy offers and no statement uses."""
        if name != "regexp":
            super().create_function(name, *args, **kw)

    def rollback(self) -> None:
        if self._connection.in_transaction:  # a read has not begun a transaction
            super().rollback()


class Driver(AsyncAdapt_aiosqlite_dbapi):
    """The module that SQLAlchemy uses as the database's driver (``create_engine(module=)``)."""

    def __init__(self) -> None:
        super().__init__(aiosqlite, sqlite3)

    def connect(self, *arg: Any, **kw: Any) -> AsyncAdapt_aiosqlite_connection:
        return _Connection(self, super().connect(*arg, **kw)._connection)  # noqa: SLF001 - it is the driver's
