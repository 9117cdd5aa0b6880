"""A database on a PostgreSQL server: the source of a copy, or its empty target."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager

import asyncpg

from gateway.storage.copying.store_copy import CopyFailed
from gateway.storage.copying.tables import CopiedTable, Row
from gateway.storage.database import DatabaseStartupError
from gateway.storage.postgres.address import Address
from gateway.storage.postgres.database import open_postgres
from gateway.storage.postgres.hosts import FAILURES
from gateway.storage.postgres.incarnation import begin_generation
from gateway.storage.postgres.sole_user import DatabaseInUse, SoleUser
from gateway.storage.postgres.unfinished import UNFINISHED_BACKFILL

_HAS_BACKFILL = "SELECT EXISTS (SELECT 1 FROM cluster WHERE starts_with(name, $1))"
_FIND_TABLE = "SELECT to_regclass(quote_ident(current_schema()) || '.' || $1)"
_NO_TIMEOUTS = {"statement_timeout": "0", "idle_in_transaction_session_timeout": "0"}


class PostgresStore:
    """A connection in a transaction, as the source or the target of a copy."""

    strict = True

    def __init__(self, name: str, connection: asyncpg.Connection) -> None:
        self.name = name
        self._connection = connection

    async def read_schema(self) -> str:
        table_oid = await self._connection.fetchval(_FIND_TABLE, "alembic_version")
        return str(await self._connection.fetchval("SELECT version_num FROM alembic_version")) if table_oid else ""

    async def check_sums(self) -> None:
        """Raise ``CopyFailed`` while an upgrade has yet to sum requests.

        What remains to be done is noted in the table ``cluster``, which is not copied: the sums of a copy would stay
        partial. Indexes that an upgrade has yet to build are complete in every copy.
        """
        table_oid = await self._connection.fetchval(_FIND_TABLE, "cluster")
        if table_oid and await self._connection.fetchval(_HAS_BACKFILL, UNFINISHED_BACKFILL):
            raise CopyFailed(
                f"The upgrade of {self.name[0].lower()}{self.name[1:]} is unfinished: it has yet to sum requests. "
                "Wait for the node that upgrades it. If there is none, start a node of this version and wait until it "
                "is ready"
            )

    async def read_rows(self, table: CopiedTable) -> AsyncIterator[list[Row]]:
        cursor = await self._connection.cursor(table.select)
        while rows := await cursor.fetch(table.batch):
            yield list(map(table.parse, rows))

    async def read_counters(self, tables: Sequence[CopiedTable]) -> Mapping[str, int]:
        counters = {}
        for table in tables:
            if table.counter_column:
                row = await self._connection.fetchrow(
                    f"SELECT last_value, is_called FROM {await self._find_sequence(table)}"  # noqa: S608 - the server's own
                )
                counters[table.name] = row["last_value"] if row["is_called"] else 0
        return counters

    async def fetch(self, statement: str, *values: object) -> list[Row]:
        return list(map(tuple, await self._connection.fetch(statement, *values)))

    async def write_rows(self, table: CopiedTable, rows: Sequence[Row]) -> None:
        try:
            await self._connection.copy_records_to_table(table.name, records=rows, columns=table.columns)
        except (asyncpg.PostgresError, TypeError, ValueError, OverflowError) as error:  # bases of the driver's errors
            reason = str(error).partition("\n")[0]
            raise CopyFailed(f"{self.name} refuses a row of {table.name}: {reason}. Nothing was copied") from error

    async def write_counters(self, tables: Sequence[CopiedTable], counters: Mapping[str, int]) -> None:
        for table in tables:
            if table.counter_column:
                last_number = counters.get(table.name, 0)
                sequence = await self._find_sequence(table)
                await self._connection.execute(
                    "SELECT setval($1::text::regclass, $2, $3)", sequence, last_number or 1, last_number > 0
                )

    async def _find_sequence(self, table: CopiedTable) -> str:
        return str(
            await self._connection.fetchval("SELECT pg_get_serial_sequence($1, $2)", table.name, table.counter_column)
        )


@asynccontextmanager
async def open_snapshot(url: str, *, needs_sums: bool = True) -> AsyncIterator[PostgresStore]:
    """Open a database to read it as of one moment. A gateway may write to it meanwhile.

    Raises ``CopyFailed``, also if ``needs_sums`` and an upgrade has yet to sum requests.
    """
    address = Address(url)
    with _explain(address):
        connection = await address.connect(**_NO_TIMEOUTS)
        try:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                store = PostgresStore(f"The database {address.name}", connection)
                if needs_sums:
                    await store.check_sums()
                yield store
        finally:
            connection.terminate()


@asynccontextmanager
async def open_source(url: str) -> AsyncIterator[PostgresStore]:
    """Open a database for reading, while no gateway uses it. Raises ``CopyFailed``."""
    sole_user = SoleUser(Address(url))
    with _explain(Address(url)):
        try:
            await sole_user.acquire()
            async with open_snapshot(url) as store:
                yield store
        finally:
            await sole_user.close()


@asynccontextmanager
async def open_target(url: str) -> AsyncIterator[PostgresStore]:
    """Open an unused database and give it this version's tables. The block's writes are committed at its end.

    Raises ``CopyFailed``.
    """
    address = Address(url)
    with _explain(address):
        database = await open_postgres(url)
        try:
            connection = await address.connect(**_NO_TIMEOUTS)
            try:
                async with connection.transaction():
                    yield PostgresStore(f"The database {address.name}", connection)
                    await begin_generation(connection)
            finally:
                connection.terminate()
        finally:
            await database.close()


@contextmanager
def _explain(address: Address) -> Iterator[None]:
    try:
        yield
    except (DatabaseInUse, DatabaseStartupError) as error:
        raise CopyFailed(str(error)) from None
    except (*FAILURES, ValueError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise CopyFailed(f"The database {address.name} cannot be used: {reason}") from error
