"""Upgrades the schema of a PostgreSQL database while nodes of the previous version continue to use it.

Each migration is a transaction of its own, and none waits long for the lock of a table: whatever needs the table later
waits behind it. Columns and indexes do not hold up a large table either (``storage/migrations/online.py``), and sums of
all requests are made in many transactions (``storage/migrations/backfill.py``). The next start resumes an upgrade that
was interrupted.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import chain, cycle, repeat
from typing import TypeVar

import asyncpg
import structlog
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from gateway.storage import schema
from gateway.storage.async_engine import AsyncConnection, AsyncEngine
from gateway.storage.database import DatabaseStartupError
from gateway.storage.postgres.address import Address
from gateway.storage.postgres.functions import create_functions
from gateway.storage.postgres.hosts import Connection as Driver
from gateway.storage.postgres.lock_numbers import UPGRADE_LOCK
from gateway.storage.postgres.sole_user import WRITE_ALONE
from gateway.storage.postgres.unfinished import DELETE_ROW, LIST_UNFINISHED, PUT_ROW, UNFINISHED, UNFINISHED_BACKFILL
from gateway.storage.postgres.upgrade_waits import WaitLog, watch
from gateway.storage.postgres.values import widen_columns
from gateway.storage.schema_upgrade import check_schema, upgrade_schema
from gateway.storage.schema_version import write_user_version

T = TypeVar("T")
Check = Callable[[AsyncConnection], Awaitable[None]]
"""Checks a database, which may be of an earlier version or empty."""

_TRY_LOCK = text(f"SELECT pg_try_advisory_lock({UPGRADE_LOCK})")
_UNLOCK = text(f"SELECT pg_advisory_unlock({UPGRADE_LOCK})")
_LOCK_WAITS_S = (0.4, 0.4, 0.4, 1.2)
"""Seconds that the attempts of a transaction wait for its first lock, in turn: probes of other nodes wait up to 1.5 s.

The server ends a vacuum of its own that holds a lock up, but only after ``deadlock_timeout``: one second.
"""
_SET_LIMITS = text("""
SELECT set_config('statement_timeout', '0', true), set_config('lock_timeout', :lock, true),
    set_config('idle_in_transaction_session_timeout', '5min', true)
""")
_PAUSES_S = (0.3, 1.0, 3.0, 10.0)
"""Seconds between attempts, in which other transactions proceed. The last one repeats: a dump may take hours."""
_IS_VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1)"
_SEE_OWN_SCHEMA = "SELECT set_config('search_path', quote_ident(current_schema()), false)"
_LOCKED = ("55P03", "40P01")
"""SQLSTATE for a lock that was not granted in time, and for a deadlock."""
_FUNCTIONS = f"{UNFINISHED}functions"
"""The row that stands for the functions of this version, which are made after the last migration."""

_FIND_OLDEST_NODE = text("SELECT min(schema) FROM nodes WHERE state = 'live'")
_LIST_TABLES = text("SELECT tablename FROM pg_tables WHERE schemaname = current_schema() AND tablename = ANY (:names)")

log = structlog.stdlib.get_logger(__name__)


async def migrate(engine: AsyncEngine, address: Address, check: Check | None) -> None:
    """Bring the schema of the database at ``address`` up to date, unless ``check`` raises an error.

    Raises ``DatabaseStartupError``, ``OSError``, and the errors of SQLAlchemy; connections of ``engine`` must be closed
    then, because one of them may hold the lock of upgrades.
    """
    async with engine.connect() as connection:
        async with _begin(connection):
            if check is not None:
                await check(connection)
            revision = await check_schema(connection, address.name)
        if revision == schema.REVISION and not await _list_unfinished(connection):
            return
        # Before the first lock, because loading Alembic from a slow disk takes seconds, and only if it is needed.
        import gateway.storage.migrations.online  # noqa: F401, PLC0415 - registers its class
        from gateway.storage.migrations.run import open_scripts  # noqa: PLC0415

        open_scripts()
        async with _name_connection(connection, address) as driver, watch(address, driver):
            await _upgrade(connection, address.name)


async def _upgrade(connection: AsyncConnection, name: str) -> None:
    await _lock_upgrades(connection)
    async with _begin(connection):
        revision = await check_schema(connection, name)  # another node may have upgraded it meanwhile
        is_used = revision is not None and await _find_oldest_user(connection, revision) >= schema.OLDEST
    if not is_used:
        await _upgrade_alone(connection, name)
        revision = schema.REVISION
    if revision != schema.REVISION or await _list_unfinished(connection):
        await _upgrade_beside_others(connection, name)
    async with connection.begin():
        await connection.execute(_UNLOCK)


@asynccontextmanager
async def _name_connection(connection: AsyncConnection, address: Address) -> AsyncIterator[Driver]:
    """Give a connection the name of an upgrade, and let its server end a statement whose client is gone.

    Meanwhile the connection sees no schema but its own. Otherwise ``DROP INDEX`` could find the index of another
    gateway.
    """
    driver = await _find_driver(connection)
    await driver.execute("SELECT set_config('application_name', $1, false)", address.upgrade_user)
    await driver.execute(_SEE_OWN_SCHEMA)
    with suppress(asyncpg.PostgresError):  # a server before version 14, or on a system that cannot tell
        await driver.execute("SET client_connection_check_interval = '5s'")
    yield driver
    with suppress(asyncpg.PostgresError):
        await driver.execute("RESET client_connection_check_interval")
    await driver.execute("RESET search_path")
    await driver.execute("RESET application_name")


async def _find_driver(connection: AsyncConnection) -> Driver:
    return (await connection.get_raw_connection()).driver_connection


async def _find_oldest_user(connection: AsyncConnection, revision: str) -> str:
    """Return the older of two schemas: that of the database, and that of its oldest live node.

    A node may be older than the database, because it goes on while others upgrade. A database older than
    ``schema.OLDEST`` decides alone.
    """
    if revision < schema.OLDEST:
        return revision
    oldest_node: str | None = (await connection.execute(_FIND_OLDEST_NODE)).scalar_one()
    return min(revision, oldest_node or revision)


async def _upgrade_alone(connection: AsyncConnection, name: str) -> None:
    """Upgrade a database in one transaction, because nodes that use it are too old to go on beside this version."""
    async with _begin(connection):
        await connection.execute(WRITE_ALONE)
        if await upgrade_schema(connection, name):
            await _create_rest(connection)


async def _upgrade_beside_others(connection: AsyncConnection, name: str) -> None:
    from gateway.storage.migrations.run import list_created_tables, upgrade_once  # noqa: PLC0415 - see ``migrate``

    async def run_next() -> bool:
        revision = await check_schema(connection, name)
        if revision == schema.REVISION:
            return False
        log.info("store_migration_started", schema=revision)
        await connection.execute(PUT_ROW, {"name": _FUNCTIONS, "value": b""})
        await connection.run_sync(upgrade_once)
        await connection.exec_driver_sql(write_user_version(dialect="postgresql"))
        return True

    async def finish() -> None:
        """Create what is in no migration. Writes are excluded: one of them must not find functions of two versions."""
        await connection.execute(WRITE_ALONE)
        await _create_rest(connection)
        await connection.execute(DELETE_ROW, {"name": _FUNCTIONS})

    async with _begin(connection):
        await _check_remains(connection, name, list_created_tables(await check_schema(connection, name)))
    while await _retry(connection, run_next, "tables"):
        pass
    await _retry(connection, finish, "functions")
    for row_name, statement in await _list_unfinished(connection):
        if row_name.startswith(UNFINISHED_BACKFILL):
            await _backfill(connection, row_name.removeprefix(UNFINISHED_BACKFILL))
        else:
            await _build_index(connection, row_name, statement)
    log.info("store_migrated", schema=schema.REVISION)


async def _check_remains(connection: AsyncConnection, name: str, created: Sequence[str]) -> None:
    """Raise ``DatabaseStartupError`` if a table is there that a migration is about to create."""
    found = (await connection.execute(_LIST_TABLES, {"names": list(created)})).scalars()
    if remains := sorted(found):
        raise DatabaseStartupError(
            f"The database {name} has tables of a newer schema than its own: {', '.join(remains)}. If a backup was "
            "restored, restore it again into an emptied schema; nothing was changed"
        )


async def _create_rest(connection: AsyncConnection) -> None:
    """Create what is in no migration: wide columns, functions, and the row with the oldest schema that may run."""
    await widen_columns(connection)
    await create_functions(connection)
    # Running nodes read this row with each beat.
    await connection.execute(PUT_ROW, {"name": "oldest", "value": schema.OLDEST.encode()})


async def _backfill(connection: AsyncConnection, revision: str) -> None:
    """Fill the tables of a migration, which only nodes of this version use once they have started."""
    from gateway.storage.migrations.backfill import run_part  # noqa: PLC0415 - see ``migrate``

    log.info("store_backfill_started", schema=revision)
    while await _retry(connection, partial(connection.run_sync, run_part, revision), "backfill"):
        pass


async def _build_index(connection: AsyncConnection, row_name: str, statement: str) -> None:
    """Build an index without a lock that excludes writes. This waits for every transaction that has begun before.

    A valid index of that name stays: the server builds an index to its end if only the client has ended.
    """
    driver = await _find_driver(connection)
    index = f'"{row_name.removeprefix(UNFINISHED)}"'
    await driver.execute("SET statement_timeout = 0")
    await driver.execute("SET lock_timeout = 0")
    while not await driver.fetchval(_IS_VALID, index):
        log.info("store_index_started", job=index.strip('"'))
        try:
            # Of an index whose node died the database has kept a part, which no query uses.
            await driver.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {index}")
            await driver.execute(statement)
        except asyncpg.DeadlockDetectedError as error:
            log.info("store_migration_waits", job=index.strip('"'), error=str(error))
            await asyncio.sleep(_PAUSES_S[0])
    await driver.execute("RESET statement_timeout")
    await driver.execute("RESET lock_timeout")
    async with _begin(connection):
        await connection.execute(DELETE_ROW, {"name": row_name})


async def _list_unfinished(connection: AsyncConnection) -> list[tuple[str, str]]:
    """Return the names of the rows that an upgrade has left, and their statements."""
    async with _begin(connection):
        return [(row.name, row.statement) for row in await connection.execute(LIST_UNFINISHED)]


async def _retry(connection: AsyncConnection, work: Callable[[], Awaitable[T]], step: str) -> T:
    """Run ``work`` in a transaction, and repeat it until it gets its locks in time."""
    waits = WaitLog(job=step)
    for wait_s, pause_s in list_attempts():
        try:
            async with _begin(connection, wait_s):
                return await work()
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) not in _LOCKED:
                raise
            statement = error.statement or ""
        await waits.report_holder(await _find_driver(connection), statement)
        await asyncio.sleep(pause_s)
    raise AssertionError


def list_attempts() -> Iterator[tuple[float, float]]:
    """Yield, without end, how long an attempt waits for a lock, and the pause after the attempt, in seconds."""
    return zip(cycle(_LOCK_WAITS_S), chain(_PAUSES_S, repeat(_PAUSES_S[-1])), strict=False)


async def _lock_upgrades(connection: AsyncConnection) -> None:
    """Take the lock that lets one node upgrade at a time. A wait in the server would delay building an index there."""
    waits = WaitLog()
    while True:
        async with connection.begin():
            if (await connection.execute(_TRY_LOCK)).scalar_one():
                return
        await waits.report_upgrader(await _find_driver(connection))
        await asyncio.sleep(_PAUSES_S[0])


@asynccontextmanager
async def _begin(connection: AsyncConnection, lock_wait_s: float = 0.0) -> AsyncIterator[None]:
    """Begin a transaction without a time limit for statements.

    ``lock_wait_s``: how long a statement may wait for each lock, in seconds; 0 for any time.
    """
    async with connection.begin():
        await connection.execute(_SET_LIMITS, {"lock": f"{lock_wait_s * 1000:.0f}"})
        yield
