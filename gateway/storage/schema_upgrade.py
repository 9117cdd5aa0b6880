"""Upgrades the schema of a database to this version's, in the transaction of a connection."""

from collections.abc import Mapping
from typing import Any

import structlog
from sqlalchemy import Connection, TextClause, text

from gateway.storage import schema
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import DatabaseStartupError
from gateway.storage.schema_version import (
    RELEASES,
    describe_newer,
    describe_older,
    parse_user_version,
    read_user_version,
    write_user_version,
)

_TABLES: Mapping[str, TextClause] = {
    "sqlite": text("SELECT name FROM sqlite_master WHERE type = 'table'"),
    "postgresql": text("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"),
}
_VERSION_TABLE = (
    "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, "
    "CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
)
"""As Alembic creates the table."""

log = structlog.stdlib.get_logger(__name__)


async def upgrade_schema(connection: AsyncConnection, name: str) -> bool:
    """Bring the database ``name`` to this version's schema; return whether it had another or none.

    An empty SQLite file gets its tables at once. Migrations would make the same tables, but importing Alembic costs
    100 ms of CPU and 13 MB, and running it 80 ms more.

    Raises ``DatabaseStartupError`` as ``check_schema`` does.
    """
    revision = await check_schema(connection, name)
    if revision == schema.REVISION:
        return False
    if revision is None and connection.dialect.name == "sqlite":
        await connection.run_sync(create_schema)
    else:
        if revision is not None:  # with millions of rows this takes a minute without another log line
            log.info("store_migration_started", schema=revision)
        from gateway.storage.migrations.run import upgrade  # noqa: PLC0415 - see above

        await connection.run_sync(upgrade)
    await connection.exec_driver_sql(write_user_version(dialect=connection.dialect.name))
    log.info("store_migrated", schema=schema.REVISION)
    return True


def create_schema(connection: Connection) -> None:
    """Create all tables in an empty SQLite database, and record their revision where Alembic does."""
    schema.metadata.create_all(connection, checkfirst=False)
    connection.exec_driver_sql(_VERSION_TABLE)
    connection.exec_driver_sql("INSERT INTO alembic_version VALUES (?)", (schema.REVISION,))


async def check_schema(connection: AsyncConnection, name: str) -> str | None:
    """Return the revision of the database ``name``, None for an empty one.

    Raises ``DatabaseStartupError`` if the database is of a newer version, of one before 0.6, or lacks tables.
    """
    revision = await connection.run_sync(_read_revision)
    if revision == schema.REVISION:
        await _check_tables(connection)
    elif revision is not None and revision > schema.REVISION:
        newer_description = describe_newer(revision, await _read_version(connection), connection.dialect.name)
        raise DatabaseStartupError(f"The database {name} is {newer_description}")
    elif revision is not None and revision < min(RELEASES.values()):
        raise DatabaseStartupError(f"The database {name} is {describe_older(revision)}")
    return revision


async def _read_version(connection: AsyncConnection) -> str:
    version_row = await connection.exec_driver_sql(read_user_version(connection.dialect.name))
    return parse_user_version(int(version_row.scalar_one() or 0))


async def _check_tables(connection: AsyncConnection) -> None:
    tables = set((await connection.execute(_TABLES[connection.dialect.name])).scalars())
    if missing_tables := sorted(schema.metadata.tables.keys() - tables):
        raise DatabaseStartupError(
            f"The database has lost its tables {', '.join(missing_tables)}. Restore it from a backup"
        )


def _read_revision(connection: Any) -> str | None:
    dialect = connection.dialect
    if not dialect.has_table(connection, "alembic_version", schema=dialect.default_schema_name):
        return None
    revision: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return revision
