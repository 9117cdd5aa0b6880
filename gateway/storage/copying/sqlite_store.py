"""A SQLite file as the source or the target of a copy."""

import os
import sqlite3
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path

from gateway.storage.copying.store_copy import CopyFailed
from gateway.storage.copying.tables import CopiedTable, Row
from gateway.storage.integrity_check import is_foreign
from gateway.storage.sqlite_database import open_sqlite

_LIST_COUNTERS = "SELECT name, seq FROM sqlite_sequence"


class SqliteStore:
    """An open SQLite file as the source or the target of a copy. No other process changes it meanwhile."""

    strict = False

    def __init__(self, name: str, connection: sqlite3.Connection) -> None:
        self.name = name
        self._connection = connection

    async def read_schema(self) -> str:
        if is_foreign(self._connection):
            raise CopyFailed(f"{self.name} is not a database of a gateway")
        return str(self._connection.execute("SELECT version_num FROM alembic_version").fetchone()[0])

    async def read_rows(self, table: CopiedTable) -> AsyncIterator[list[Row]]:
        cursor = self._connection.execute(table.select)
        while rows := cursor.fetchmany(table.batch):
            yield list(map(table.parse, rows))

    async def read_counters(self, tables: Sequence[CopiedTable]) -> Mapping[str, int]:
        table_names = {table.name for table in tables if table.counter_column}
        return {
            name: last_number for name, last_number in self._connection.execute(_LIST_COUNTERS) if name in table_names
        }

    async def fetch(self, statement: str) -> list[Row]:
        return [tuple(row) for row in self._connection.execute(statement)]

    async def write_rows(self, table: CopiedTable, rows: Sequence[Row]) -> None:
        try:
            self._connection.executemany(table.insert, rows)
        except (sqlite3.IntegrityError, sqlite3.DataError, OverflowError) as error:
            raise CopyFailed(f"{self.name} refuses a row of {table.name}: {error}. Nothing was copied") from error
        except sqlite3.Error as error:
            raise _make_write_error(self.name, error) from error

    async def write_counters(self, tables: Sequence[CopiedTable], counters: Mapping[str, int]) -> None:
        for table in tables:
            if table.counter_column:
                self._connection.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table.name,))
                last_number = counters.get(table.name, 0)
                self._connection.execute(
                    "INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (table.name, last_number)
                )


def _make_write_error(name: str, error: sqlite3.Error) -> CopyFailed:
    """Return the error of a disk that is full or fails."""
    return CopyFailed(f"{name} cannot be written: {error}. Nothing was copied")


@contextmanager
def open_source(path: Path) -> Iterator[SqliteStore]:
    """Open a database to read it as of one moment. Raises ``CopyFailed``."""
    if not path.exists():
        raise CopyFailed(f"There is no database {path}")
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
        ) as connection:
            connection.execute("BEGIN")
            yield SqliteStore(f"The database {path}", connection)
    except sqlite3.Error as error:
        raise CopyFailed(f"The database {path} cannot be read: {error}. Run 'gateway doctor'") from error


@asynccontextmanager
async def make_target(path: Path) -> AsyncIterator[SqliteStore]:
    """Create a database at ``path``. It is complete and on the disk after the block; nothing is left if it fails.

    Raises ``CopyFailed`` at the end of the block if rows refer to rows that are missing, or if the disk fails.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        await (await open_sqlite(f"sqlite:///{path}")).close()
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode=DELETE")  # one file; the gateway's start chooses WAL again
            connection.execute("PRAGMA synchronous=OFF")
            connection.execute("BEGIN")
            store = SqliteStore(f"The database {path}", connection)
            yield store
            _check_keys(connection)
            try:
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                raise _make_write_error(store.name, error) from error
        with path.open("rb") as file:
            os.fsync(file.fileno())
    except BaseException:
        remove(path)
        raise


def _check_keys(connection: sqlite3.Connection) -> None:
    if broken_tables := sorted({row[0] for row in connection.execute("PRAGMA foreign_key_check")}):
        raise CopyFailed(f"Rows of {', '.join(broken_tables)} refer to rows that are missing. Nothing was copied")


def remove(path: Path) -> None:
    """Remove a database, its WAL and its journal, as far as they exist."""
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm", f"{path.name}-journal"):
        with suppress(FileNotFoundError):
            path.with_name(name).unlink()
