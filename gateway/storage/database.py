"""Connections to the database: one writer for every write and checkpoint, readers that cannot write.

SQLite before 3.51.3 can corrupt a WAL when two connections write and checkpoint at once; one writer cannot.
"""

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import structlog
from sqlalchemy import Executable, Row, event, insert, text
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from gateway.domain.audit_log import AuditRow
from gateway.errors import StoreUnavailable
from gateway.storage import schema
from gateway.storage.driver import Driver
from gateway.storage.row_mapping import build_audit
from gateway.storage.schema_version import describe_newer, parse_user_version, write_user_version

T = TypeVar("T")

READERS = 4
BUSY_TIMEOUT_MS = 5_000
_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}

log = structlog.stdlib.get_logger(__name__)


class DatabaseStartupError(Exception):
    """The database cannot be opened; the message is for the operator."""


class Database:
    """An open database; ``open_database`` creates it.

    A started operation runs to its end even if its caller is cancelled: a connection that is left in the middle of a
    statement is lost, and so is the result.

    Attributes:
        last_commit_ms: duration of the last commit including the disk, in milliseconds; None before the first.
        damage: the damage found since the database was opened; empty if none.
    """

    def __init__(self, writer: AsyncEngine, reader: AsyncEngine) -> None:
        self._writer = writer
        self._reader = reader
        self._lock = asyncio.Lock()
        self._running: set[asyncio.Task[Any]] = set()
        self.last_commit_ms: float | None = None
        self.damage = ""

    @property
    def path(self) -> Path:
        return Path(self._writer.url.database or "")

    async def write(self, work: Callable[[AsyncConnection], Awaitable[T]], audit: AuditRow | None = None) -> T:
        """Run ``work`` and store ``audit`` in one transaction on the single writer.

        Raises:
            StoreUnavailable: the database does not answer.
            IntegrityError: SQLAlchemy's, for a violated constraint.
        """
        return await self._finish(self._write(work, audit))

    async def change(self, statement: Executable, audit: AuditRow | None = None) -> int:
        """Run one statement in a transaction of its own; return how many rows it matched. Raises as ``write`` does.

        If it matches none, ``audit`` is not written.
        """

        async def execute(connection: AsyncConnection) -> int:
            met = (await connection.execute(statement)).rowcount
            if met and audit is not None:
                await connection.execute(insert(schema.audit).values(build_audit(audit)))
            return met

        return await self.write(execute)

    async def read(self, statement: Executable) -> Sequence[Row[Any]]:
        """Return every row of a statement. Raises ``StoreUnavailable``."""
        return await self._finish(self._read(statement))

    async def check_writable(self) -> None:
        """Raise ``StoreUnavailable`` if a write would fail now, or the file is damaged."""
        if self.damage:
            raise StoreUnavailable("The gateway's store is damaged; its log says how", retry_after_s=60)
        await self.write(_touch)

    def report_damage(self, found: str) -> None:
        """Log that the file is damaged; the gateway is not ready from now on."""
        if not self.damage:
            log.error("store_damaged", path=str(self.path), error=found)
        self.damage = found

    async def close(self) -> None:
        """Close every connection; SQLite folds its WAL into the file."""
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._reader.dispose()
        await self._writer.dispose()

    async def _finish(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._let_go)
        return await asyncio.shield(task)

    def _let_go(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # keeps asyncio from logging it: the caller may be cancelled

    async def _write(self, work: Callable[[AsyncConnection], Awaitable[T]], audit: AuditRow | None) -> T:
        async with self._lock:
            try:
                async with self._writer.begin() as connection:
                    done = await work(connection)
                    if audit is not None:
                        await connection.execute(insert(schema.audit).values(build_audit(audit)))
                    worked = time.perf_counter()
            except IntegrityError:
                raise
            except (DBAPIError, PoolTimeout, OSError) as error:
                self._note(error)
                log.warning("store_write_failed", error=str(error.__cause__ or error))
                raise StoreUnavailable("The gateway's store cannot be written to", retry_after_s=5) from error
            if work is not _touch:  # it has nothing to commit
                self.last_commit_ms = round((time.perf_counter() - worked) * 1000, 2)
            return done

    async def _read(self, statement: Executable) -> Sequence[Row[Any]]:
        try:
            async with self._reader.connect() as connection:
                return (await connection.execute(statement)).all()
        except (DBAPIError, PoolTimeout, OSError) as error:
            self._note(error)
            log.warning("store_read_failed", error=str(error.__cause__ or error))
            raise StoreUnavailable("The gateway's store cannot be read", retry_after_s=5) from error

    def _note(self, error: Exception) -> None:
        reason = getattr(error, "orig", None)
        if isinstance(reason, sqlite3.Error) and is_damage(reason):
            self.report_damage(str(reason))


def is_damage(error: sqlite3.Error) -> bool:
    """Return whether SQLite reports that the file is not, or no longer, a database."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE


async def _touch(connection: AsyncConnection) -> None:
    await connection.execute(text("SELECT 1"))


async def open_database(url: str) -> Database:
    """Open ``url`` (``sqlite:///path``) and bring its schema up to date.

    Raises:
        DatabaseStartupError: says what to do. A database that is corrupt, locked by another process or of a newer
            version is never recreated.
    """
    driver_url = url.replace("sqlite://", "sqlite+aiosqlite://", 1)
    arguments = {"timeout": BUSY_TIMEOUT_MS / 1000, "isolation_level": None}
    writer = create_async_engine(driver_url, pool_size=1, max_overflow=0, module=Driver(), connect_args=arguments)
    reader = create_async_engine(driver_url, pool_size=READERS, max_overflow=0, module=Driver(), connect_args=arguments)
    _prepare(writer, "PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL")
    _prepare(reader, "PRAGMA query_only=ON")
    event.listen(writer.sync_engine, "begin", _begin)
    try:
        async with writer.begin() as connection:
            await _migrate(connection)
    except DatabaseStartupError:
        await writer.dispose()
        raise
    except (SQLAlchemyError, OSError) as error:
        await writer.dispose()
        reason = str(error.__cause__ or error)
        if "locked" in reason:
            reason = f"another process has it locked, for longer than {BUSY_TIMEOUT_MS // 1000} s"
        raise DatabaseStartupError(f"The database {url} cannot be used: {reason}") from error
    return Database(writer, reader)


def _begin(connection: Any) -> None:
    """Begin a transaction when SQLAlchemy does: the driver's own starts too late and too weakly.

    Only the writer's connection begins one. A reader executes one statement at a time, which SQLite lets see one state.
    """
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _prepare(engine: AsyncEngine, *pragmas: str) -> None:
    @event.listens_for(engine.sync_engine, "connect")
    def on_connect(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        try:
            for pragma in (*pragmas, "PRAGMA foreign_keys=ON", f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}"):
                cursor.execute(pragma)
            cursor.close()
        except Exception:
            connection.close()
            raise


async def _migrate(connection: AsyncConnection) -> None:
    """Run the missing migrations. Alembic costs 100 ms and 10 MB, so it is imported only if one is missing."""
    revision = await connection.run_sync(_read_revision)
    if revision == schema.REVISION:
        await _check_tables(connection)
        return
    if revision is not None and revision > schema.REVISION:
        newer = describe_newer(revision, await _read_version(connection))
        raise DatabaseStartupError(f"The database {connection.engine.url.database} is {newer}")
    if revision is not None:  # with millions of rows it takes a minute without another log line
        log.info("store_migration_started", schema=revision)
    from gateway.storage.migrations.run import upgrade  # noqa: PLC0415 - see above

    await connection.run_sync(upgrade)
    await connection.exec_driver_sql(write_user_version())
    log.info("store_migrated", schema=schema.REVISION)


async def _read_version(connection: AsyncConnection) -> str:
    """Return the version that last migrated the database; empty if it is unknown."""
    return parse_user_version((await connection.exec_driver_sql("PRAGMA user_version")).scalar_one())


async def _check_tables(connection: AsyncConnection) -> None:
    tables = set((await connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'table'"))).scalars())
    if missing := sorted(schema.metadata.tables.keys() - tables):
        raise DatabaseStartupError(f"The database has lost its tables {', '.join(missing)}. Restore it from a backup")


def _read_revision(connection: Any) -> str | None:
    if not connection.dialect.has_table(connection, "alembic_version"):
        return None
    revision: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return revision
