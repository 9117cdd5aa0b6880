"""PostgreSQL: one connection for all writes, connections that can only read, and time limits for statements."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ClassVar, Literal, TypeVar

import asyncpg
import structlog
from sqlalchemy import Executable, Row, event, insert, text
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from gateway.domain.audit_log import AuditRow
from gateway.errors import StoreUnavailable
from gateway.storage import schema
from gateway.storage.async_engine import AsyncConnection, AsyncEngine, create_async_engine
from gateway.storage.data_folder import DataFolderDamaged
from gateway.storage.database import Database, DatabaseStartupError, RowRefused, StoreSize
from gateway.storage.postgres.address import Address
from gateway.storage.postgres.hosts import FAILURES, SUSPECT_S, Connection
from gateway.storage.postgres.migration import Check, migrate
from gateway.storage.postgres.sole_user import DatabaseInUse, DatabaseUser, SoleUser
from gateway.storage.postgres.timeline import NewestTimeline
from gateway.storage.postgres.values import mend
from gateway.storage.row_mapping import build_audit_row
from gateway.storage.stored_credit import StoredCredit

T = TypeVar("T")
MakeCredit = Callable[[Database], StoredCredit]
"""Makes the object that updates the credit leases of a node with its writes."""

MAX_READERS = 4
WRITE_TIMEOUT_S = 15.0
"""Seconds that a read, or all statements of a write, may take before their connection is closed."""
LOCK_TIMEOUT_S = 8.0
"""Seconds that a write waits for others. By then the nodes of a cluster have ended a stuck write
(``cluster.membership.backends``)."""
MAX_LONG_READERS = 2
LONG_READ_TIMEOUT_S = 600.0
"""Like ``WRITE_TIMEOUT_S``, for long reads. They have separate connections, so no other read waits for them."""
_MEASURE_INTERVAL_S = 60.0
_START_LOCK_TIMEOUT_S = 3.0
"""Seconds that a starting gateway waits for the one it replaces to release the database."""
_IS_READ_ONLY = text("SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean")
_READ_SIZE = text("SELECT pg_database_size(current_database())")
_READ_ONLY = "25006"
"""SQLSTATE for a write to a server that takes none, such as a former primary that is a standby now."""
_UNTRANSLATABLE_CHARACTER = "22021"
"""SQLSTATE for a character that PostgreSQL cannot store in a text: U+0000."""

log = structlog.stdlib.get_logger(__name__)


class PostgresDatabase(Database):
    """An open database of a PostgreSQL server; ``open_postgres`` creates it.

    Each process runs one write at a time. A ``write`` excludes the writes of all processes: the rows it has read stay
    unchanged until it commits. Writes of requests run concurrently with those of other processes (``write_shared``,
    ``change``), so the sequences of requests and entries do not follow the order of commits. A connection that broke
    while no statement was in progress is replaced silently. A write that breaks later is not repeated: its commit may
    have succeeded.
    """

    kind: ClassVar[Literal["postgresql"]] = "postgresql"

    def __init__(self, address: Address, user: DatabaseUser, make_credit: MakeCredit | None = None) -> None:
        super().__init__(address.name)
        self.credit = None if make_credit is None else make_credit(self)
        self._address = address
        self._writer = _make_engine(address, 1)
        self._reader = _make_engine(address, MAX_READERS, read_only=True)
        timeouts = {"statement_timeout": f"{LONG_READ_TIMEOUT_S:.0f}s"}
        self._long_reader = _make_engine(address, MAX_LONG_READERS, LONG_READ_TIMEOUT_S, read_only=True, **timeouts)
        self._first_reader = _make_engine(address, 1, read_only=True)
        self._user = user
        self._lock = asyncio.Lock()
        self._size = StoreSize(0)
        self._measured_s = -_MEASURE_INTERVAL_S
        event.listen(self._writer.sync_engine, "before_cursor_execute", _mend_parameters, retval=True, named=True)

    async def migrate(self, check: Check | None = None) -> None:
        """Bring the schema up to date, unless ``check`` raises an error.

        Raises ``DatabaseStartupError``, ``OSError``, and the errors of SQLAlchemy.
        """
        await migrate(self._writer, self._address, check)

    async def write(self, work: Callable[[AsyncConnection], Awaitable[T]], audit: AuditRow | None = None) -> T:
        return await self._run_to_end(self._write(work, audit))

    async def write_shared(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        return await self._run_to_end(self._write(work, None, is_exclusive=False))

    async def read(self, statement: Executable) -> Sequence[Row[Any]]:
        return await self._run_to_end(self._read(statement, self._reader, WRITE_TIMEOUT_S))

    async def read_long(self, statement: Executable) -> Sequence[Row[Any]]:
        """Read like ``read``, for ``LONG_READ_TIMEOUT_S`` at most, on a connection for long reads."""
        return await self._run_to_end(self._read(statement, self._long_reader, LONG_READ_TIMEOUT_S))

    async def read_snapshot(self, statements: Sequence[Executable]) -> Sequence[Sequence[Row[Any]]]:
        """Return every row of each statement, all as of one moment.

        The time limit and the errors are those of ``read_long``.
        """
        try:
            return await self._run_to_end(self._read_snapshot(statements))
        except _FAILURES as error:
            failure: BaseException = error
        if _is_broken(failure):  # a read can safely be repeated
            try:
                return await self._run_to_end(self._read_snapshot(statements))
            except _FAILURES as error:
                failure = error
        log.warning("store_read_failed", error=_describe(failure))
        raise StoreUnavailable("The gateway's store cannot be read", retry_after_s=5) from failure

    async def read_first(self, statement: Executable) -> Sequence[Row[Any]]:
        """Read like ``read``, on a connection that only such reads use."""
        return await self._run_to_end(self._read(statement, self._first_reader, WRITE_TIMEOUT_S))

    async def check_writable(self) -> None:
        await self.write_shared(_check_writable)

    async def measure(self) -> StoreSize:
        """Return the bytes of the database, as of the last answer of the server, which is asked once a minute.

        Before the first answer the size is 0.
        """
        if time.monotonic() - self._measured_s >= _MEASURE_INTERVAL_S:
            try:
                ((size_bytes,),) = await self.read(_READ_SIZE)
            except StoreUnavailable:
                return self._size
            self._size, self._measured_s = StoreSize(int(size_bytes)), time.monotonic()
        return self._size

    async def close(self) -> None:
        await self._end_work()
        await self._reader.dispose()
        await self._long_reader.dispose()
        await self._first_reader.dispose()
        await self._writer.dispose()
        await self._user.close()

    async def _write(
        self, work: Callable[[AsyncConnection], Awaitable[T]], audit: AuditRow | None, *, is_exclusive: bool = True
    ) -> T:
        async with self._lock:
            try:
                async with self._begin(is_exclusive=is_exclusive) as connection:
                    result = await work(connection)
                    if audit is not None:
                        await connection.execute(insert(schema.audit).values(build_audit_row(audit)))
                    commit_started_s = time.perf_counter()
            except IntegrityError:
                raise
            except (*_FAILURES, DatabaseInUse) as error:
                if _is_refusal(error):
                    log.warning("store_row_refused", error=_describe(error))
                    raise RowRefused(_describe(error)) from error
                log.warning("store_write_failed", error=_describe(error))
                raise StoreUnavailable("The gateway's store cannot be written to", retry_after_s=5) from error
            if work is not _check_writable:  # it has nothing to commit
                self.last_commit_ms = round((time.perf_counter() - commit_started_s) * 1000, 2)
            return result

    @asynccontextmanager
    async def _begin(self, *, is_exclusive: bool) -> AsyncIterator[AsyncConnection]:
        connection = await self._lock_writes(is_exclusive=is_exclusive)
        try:
            with self._limit_time(await _find_driver(connection)):
                yield connection
                await connection.commit()
        except DBAPIError as error:
            if _is_broken(error):
                await connection.invalidate()
            raise
        finally:
            await connection.close()

    async def _lock_writes(self, *, is_exclusive: bool) -> AsyncConnection:
        """Return a connection whose transaction holds the lock of writes. Raises ``DatabaseInUse``."""
        for _ in range(2):
            await self._user.acquire()
            connection, lock_row = await self._start(self._writer, self._user.lock(is_exclusive=is_exclusive))
            if lock_row.alive is not None:
                return connection
            await connection.close()
            self._user.lose()
        raise DatabaseInUse("the server frees the lock of this gateway as soon as it has granted it")

    async def _read(self, statement: Executable, engine: AsyncEngine, timeout_s: float) -> Sequence[Row[Any]]:
        try:
            return await self._try_read(statement, engine, timeout_s)
        except _FAILURES as error:
            failure: BaseException = error
        if _is_broken(failure):  # a read can safely be repeated
            try:
                return await self._try_read(statement, engine, timeout_s)
            except _FAILURES as error:
                failure = error
        if getattr(getattr(failure, "orig", None), "sqlstate", None) == _UNTRANSLATABLE_CHARACTER:
            return []  # no stored text contains the character, so no row matches
        log.warning("store_read_failed", error=_describe(failure))
        raise StoreUnavailable("The gateway's store cannot be read", retry_after_s=5) from failure

    async def _try_read(self, statement: Executable, engine: AsyncEngine, timeout_s: float) -> Sequence[Row[Any]]:
        async with engine.connect() as connection:
            with self._limit_time(await _find_driver(connection), timeout_s):
                return (await connection.execute(statement)).all()

    async def _read_snapshot(self, statements: Sequence[Executable]) -> Sequence[Sequence[Row[Any]]]:
        options = {"isolation_level": "REPEATABLE READ"}
        async with self._long_reader.execution_options(**options).connect() as connection:
            with self._limit_time(await _find_driver(connection), LONG_READ_TIMEOUT_S):
                return [(await connection.execute(statement)).all() for statement in statements]

    async def _start(self, engine: AsyncEngine, first_statement: Executable) -> tuple[AsyncConnection, Row[Any]]:
        """Return a connection and the row that ``first_statement`` returns on it. A broken one is replaced once."""
        for is_last in (False, True):
            connection = await engine.connect()
            try:
                with self._limit_time(await _find_driver(connection)):
                    first_row = (await connection.execute(first_statement)).one()
            except BaseException as error:
                if _is_broken(error):
                    await connection.invalidate()
                await connection.close()
                if is_last or not _is_broken(error):
                    raise
            else:
                return connection, first_row
        raise AssertionError

    @contextmanager
    def _limit_time(self, driver: Connection, timeout_s: float = WRITE_TIMEOUT_S) -> Iterator[None]:
        """Close the connection if the block takes longer than ``timeout_s``, or if its server has fallen silent."""
        loop = asyncio.get_running_loop()
        timers = loop.call_later(SUSPECT_S, self._address.suspect, driver), loop.call_later(timeout_s, driver.terminate)
        try:
            yield
        finally:
            for timer in timers:
                timer.cancel()


_FAILURES = (DBAPIError, PoolTimeout, *FAILURES)
"""Errors raised if a server cannot be reached or refuses a statement. A time-out is an ``OSError``."""


async def open_postgres(url: str, timeline: NewestTimeline | None = None) -> PostgresDatabase:
    """Open ``postgresql://user:password@host/name`` for a single gateway. Raises ``DatabaseStartupError``."""
    address = Address(url, timeline=timeline)
    return await open_address(address, SoleUser(address), None, None)


async def open_address(
    address: Address, user: DatabaseUser, check: Check | None, make_credit: MakeCredit | None
) -> PostgresDatabase:
    """Open and upgrade a database for ``user``. If ``check`` raises ``DataFolderDamaged``, nothing is written.

    ``make_credit``: makes the object that updates credit leases; None for a single gateway. Raises
    ``DatabaseStartupError`` if the database cannot be opened or upgraded.
    """
    database = PostgresDatabase(address, user, make_credit)
    try:
        await user.acquire(wait_s=_START_LOCK_TIMEOUT_S)
        await database.migrate(check)
    except (DatabaseStartupError, DataFolderDamaged):
        await database.close()
        raise
    except (SQLAlchemyError, ValueError, *FAILURES) as error:
        await database.close()
        raise DatabaseStartupError(f"The database {address.name} cannot be used: {_describe(error)}") from error
    except DatabaseInUse as error:
        await database.close()
        raise DatabaseStartupError(str(error)) from None
    return database


async def _check_writable(connection: AsyncConnection) -> None:
    if (await connection.execute(_IS_READ_ONLY)).scalar_one():
        await connection.invalidate()  # the next one may lead to the primary
        raise StoreUnavailable("The gateway's store is a standby that cannot be written to", retry_after_s=5)


def _make_engine(
    address: Address, size: int, wait_s: float = 5.0, *, read_only: bool = False, **settings: str
) -> AsyncEngine:
    """Return an engine with these server ``settings``. A statement waits up to ``wait_s`` for a connection."""
    timeouts = {
        "statement_timeout": "10s",
        "lock_timeout": f"{LOCK_TIMEOUT_S:.0f}s",
        "idle_in_transaction_session_timeout": "5s",
    }

    open_connection = address.connect_reader if read_only else address.connect

    async def connect(**_: Any) -> Any:
        return await open_connection(**{**timeouts, **settings})

    return create_async_engine(
        "postgresql+asyncpg://",
        async_creator=connect,
        pool_size=size,
        max_overflow=0,
        pool_timeout=wait_s,
        # A reader executes one statement at a time, which reads a single state even without a transaction.
        isolation_level="AUTOCOMMIT" if read_only else "READ COMMITTED",
    )


async def _find_driver(connection: AsyncConnection) -> Connection:
    return (await connection.get_raw_connection()).driver_connection


def _mend_parameters(*, statement: str, parameters: Any, executemany: bool, **_: object) -> tuple[str, Any]:
    """Make the values of a write storable, because clients and providers may send some that PostgreSQL cannot store."""
    if executemany:
        return statement, [mend(row) for row in parameters]
    return statement, mend(parameters)


def _is_broken(error: BaseException) -> bool:
    """Return whether the connection was lost or leads to a standby, as opposed to a refused statement."""
    if isinstance(error, asyncpg.InternalClientError):  # which SQLAlchemy does not translate
        return True
    sql_state = getattr(getattr(error, "orig", None), "sqlstate", None) or ""
    return getattr(error, "connection_invalidated", False) or sql_state.startswith(("08", "57P", _READ_ONLY))


def _is_refusal(error: BaseException) -> bool:
    """Return whether the server refused a value: SQLSTATE classes 22 (data), 23 (constraint), 54 (limit)."""
    reason = getattr(error, "orig", None) or error
    if isinstance(reason, asyncpg.DataError) or isinstance(reason.__cause__, asyncpg.DataError):
        return True
    return (getattr(reason, "sqlstate", None) or "").startswith(("22", "23", "54"))


def _describe(error: BaseException) -> str:
    reason = getattr(error, "orig", None) or error
    return str(reason).partition("\n")[0] or type(reason).__name__
