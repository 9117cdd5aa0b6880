"""Upgrades the schema of a database to this version's, in the transaction of a connection."""

from collections.abc import Mapping
from typing import Any

import structlog
from sqlalchemy import TextClause, text

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

log = structlog.stdlib.get_logger(__name__)


async def upgrade_schema(connection: AsyncConnection, name: str) -> bool:
    """Run the missing migrations on the database ``name``; return whether there were any.

    Importing Alembic costs 100 ms and 10 MB, so it is imported only if a migration is missing.

    Raises ``DatabaseStartupError`` as ``check_schema`` does.
    """
    revision = await check_schema(connection, name)
    if revision == schema.REVISION:
        return False
    if revision is not None:  # with millions of rows this takes a minute without another log line
        log.info("store_migration_started", schema=revision)
    from gateway.storage.migrations.run import upgrade  # noqa: PLC0415 - see above

    await connection.run_sync(upgrade)
    await connection.exec_driver_sql(write_user_version(dialect=connection.dialect.name))
    log.info("store_migrated", schema=schema.REVISION)
    return True


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
