"""SQLite: one connection for every write and checkpoint, and readers that cannot write.

SQLite before 3.51.3 can corrupt a WAL when two connections write and checkpoint at once; a single writer cannot.
"""

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import structlog
from sqlalchemy import Engine, Executable, Row, event, insert, text
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.util.concurrency import greenlet_spawn

from gateway.domain.audit_log import AuditRow
from gateway.errors import StoreUnavailable
from gateway.storage import schema
from gateway.storage.async_engine import AsyncConnection, AsyncEngine, create_async_engine
from gateway.storage.bulk import Inserts
from gateway.storage.database import Database, DatabaseStartupError, RowRefused, StoreSize
from gateway.storage.driver import Driver
from gateway.storage.row_mapping import build_audit_row
from gateway.storage.schema_upgrade import upgrade_schema

T = TypeVar("T")

READER_COUNT = 4
BUSY_TIMEOUT_MS = 5_000
_REFUSAL_ERRORS = (DataError, OverflowError, UnicodeEncodeError)
"""Errors for an unstorable value: too many bytes; a number of more than 64 bits; a text with a lone surrogate."""
_ROW_ERRORS = sqlite3.IntegrityError, sqlite3.DataError
_DAMAGE_CODES = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}

log = structlog.stdlib.get_logger(__name__)


class SqliteDatabase(Database):
    """An open SQLite file; ``open_sqlite`` creates it."""

    kind: ClassVar[Literal["sqlite"]] = "sqlite"

    def __init__(self, writer: AsyncEngine, reader: AsyncEngine) -> None:
        super().__init__(writer.url.database or "")
        self._writer = writer
        self._reader = reader
        self._lock = asyncio.Lock()

    @property
    def path(self) -> Path:
        return Path(self.name)

    async def write(self, work: Callable[[AsyncConnection], Awaitable[T]], audit: AuditRow | None = None) -> T:
        return await self._run_to_end(self._write(work, audit))

    async def insert(self, build: Callable[[], Inserts]) -> bool:
        """Insert the rows that ``build`` returns in one transaction. Return False if the database refuses any of them.

        ``build`` runs in the writer's thread, which is called once: a call takes longer than a small statement.
        """
        return await self._run_to_end(self._insert(build))

    async def transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``work`` in the writer's thread, in one transaction; return its result.

        Raises the driver's error if a row is refused.
        """
        return await self._run_to_end(self._transact(work))

    async def read(self, statement: Executable) -> Sequence[Row[Any]]:
        return await self._run_to_end(self._read(statement))

    async def check_writable(self) -> None:
        if self.damage:
            raise StoreUnavailable("The gateway's store is damaged; its log says how", retry_after_s=60)
        await self.write(_touch)

    async def measure(self) -> StoreSize:
        """Return the bytes of the file and of its WAL; 0 for a missing file."""
        return StoreSize(*(_find_bytes(path) for path in (self.path, self.path.with_name(f"{self.path.name}-wal"))))

    async def close(self) -> None:
        await self._end_work()
        await self._reader.dispose()
        await self._writer.dispose()

    async def _write(self, work: Callable[[AsyncConnection], Awaitable[T]], audit: AuditRow | None) -> T:
        async with self._lock:
            try:
                async with self._writer.begin() as connection:
                    result = await work(connection)
                    if audit is not None:
                        await connection.execute(insert(schema.audit).values(build_audit_row(audit)))
                    commit_started_s = time.perf_counter()
            except IntegrityError:
                raise
            except _REFUSAL_ERRORS as error:
                reason = str(error.__cause__ or error)
                log.warning("store_row_refused", error=reason)
                raise RowRefused(reason) from error
            except (DBAPIError, PoolTimeout, OSError) as error:
                raise self._make_unavailable(error) from error
            if work is not _touch:  # it has nothing to commit
                self.last_commit_ms = round((time.perf_counter() - commit_started_s) * 1000, 2)
            return result

    async def _insert(self, build: Callable[[], Inserts]) -> bool:
        try:
            await self._transact(partial(_insert, build))
        except (*_ROW_ERRORS, *_REFUSAL_ERRORS):
            return False
        return True

    async def _transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        result: T
        async with self._lock:
            try:
                async with self._writer.connect() as connection:
                    driver: Any = (await connection.get_raw_connection()).driver_connection
                    result, self.last_commit_ms = await driver._execute(partial(_run, driver._conn, work))  # noqa: SLF001 - not public
            except _ROW_ERRORS:
                raise
            except (sqlite3.Error, DBAPIError, PoolTimeout, OSError) as error:
                raise self._make_unavailable(error) from error
            return result

    def _make_unavailable(self, error: Exception) -> StoreUnavailable:
        self._record_error(error)
        log.warning("store_write_failed", error=str(error.__cause__ or error))
        return StoreUnavailable("The gateway's store cannot be written to", retry_after_s=5)

    async def _read(self, statement: Executable) -> Sequence[Row[Any]]:
        try:
            # One call for connection, statement and rows: an AsyncConnection switches greenlets for each of them.
            return await greenlet_spawn(_read_rows, self._reader.sync_engine, statement)
        except (DBAPIError, PoolTimeout, OSError) as error:
            self._record_error(error)
            log.warning("store_read_failed", error=str(error.__cause__ or error))
            raise StoreUnavailable("The gateway's store cannot be read", retry_after_s=5) from error

    def _record_error(self, error: Exception) -> None:
        reason = getattr(error, "orig", error)
        if isinstance(reason, sqlite3.Error) and is_damage(reason):
            self.report_damage(str(reason))


def _read_rows(reader: Engine, statement: Executable) -> Sequence[Row[Any]]:
    with reader.connect() as connection:
        return connection.execute(statement).all()


def _insert(build: Callable[[], Inserts], connection: sqlite3.Connection) -> None:
    for bulk_insert, rows in build():
        bulk_insert.run_sqlite(connection, rows)


def _run(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> tuple[T, float]:
    """Run ``work`` in one transaction; return its result, and how long the commit took, in milliseconds."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = work(connection)
        commit_started_s = time.perf_counter()
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    return result, round((time.perf_counter() - commit_started_s) * 1000, 2)


def is_damage(error: sqlite3.Error) -> bool:
    """Return whether SQLite reports that the file is damaged, or is no database."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE_CODES


async def _touch(connection: AsyncConnection) -> None:
    await connection.execute(text("SELECT 1"))


def _find_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


async def open_sqlite(url: str) -> SqliteDatabase:
    """Open ``sqlite:///path``, which is created if missing, and upgrade it. Raises ``DatabaseStartupError``."""
    driver_url = url.replace("sqlite://", "sqlite+aiosqlite://", 1)
    arguments = {"timeout": BUSY_TIMEOUT_MS / 1000, "isolation_level": None}
    writer = create_async_engine(driver_url, pool_size=1, max_overflow=0, module=Driver(), connect_args=arguments)
    reader = create_async_engine(
        driver_url, pool_size=READER_COUNT, max_overflow=0, module=Driver(), connect_args=arguments
    )
    _prepare(writer, "PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL")
    _prepare(reader, "PRAGMA query_only=ON")
    event.listen(writer.sync_engine, "begin", _begin)
    try:
        async with writer.begin() as connection:
            await upgrade_schema(connection, str(writer.url.database))
    except DatabaseStartupError:
        await writer.dispose()
        raise
    except (SQLAlchemyError, OSError) as error:
        await writer.dispose()
        reason = str(error.__cause__ or error)
        if "locked" in reason:
            reason = f"another process has it locked, for longer than {BUSY_TIMEOUT_MS // 1000} s"
        raise DatabaseStartupError(f"The database {url} cannot be used: {reason}") from error
    return SqliteDatabase(writer, reader)


def _begin(connection: Any) -> None:
    """Begin a transaction when SQLAlchemy does: the driver would begin it later, and without the write lock.

    Only the writer's connection begins one. A reader executes one statement at a time, which reads a single state
    anyway.
    """
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _prepare(engine: AsyncEngine, *pragmas: str) -> None:
    @event.listens_for(engine.sync_engine, "connect")
    def on_connect(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        try:
            cursor.executescript(
                ";".join((*pragmas, "PRAGMA foreign_keys=ON", f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}"))
            )
            cursor.close()
        except Exception:
            connection.close()
            raise
