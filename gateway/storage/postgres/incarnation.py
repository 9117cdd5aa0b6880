"""Identifies the database: a promoted standby or a restored backup counts as another one, and may lack commits."""

import secrets
from typing import Any, TypeAlias

import asyncpg

INCARNATION_NAME = "incarnation"
"""The name of the row in ``cluster`` with a number that changes when the database is restored or copied."""
_READ_INCARNATION = f"SELECT encode(value, 'hex') FROM cluster WHERE name = '{INCARNATION_NAME}'"  # noqa: S608 - our own word
# `pg_control_checkpoint` shows the timeline of the last checkpoint, which may precede a promotion.
_READ_SERVER_IDENTITY = """
SELECT concat_ws(' ', (SELECT system_identifier FROM pg_control_system()), d.oid,
  CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_lsn()), 8) END)
FROM pg_database d WHERE d.datname = current_database()
"""
_BEGIN_INCARNATION = f"""
INSERT INTO cluster (name, value) VALUES ('{INCARNATION_NAME}', $1)
ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""  # noqa: S608 - our own word

Connection: TypeAlias = Any
"""asyncpg's ``Connection``, which is untyped."""


async def read_generation(connection: Connection) -> str:
    """Return a text that changes with each restore and, if the timeline is visible, each promotion of a standby."""
    parts = []
    for statement in (_READ_INCARNATION, _READ_SERVER_IDENTITY):
        try:
            parts.append(await connection.fetchval(statement) or "")
        except (asyncpg.SyntaxOrAccessError, asyncpg.FeatureNotSupportedError):  # among them: no such table yet
            parts.append("")
    return " ".join(parts)


async def begin_generation(connection: Connection) -> None:
    """Give this database a new generation in the current transaction: nodes then take the database for another one."""
    await connection.execute(_BEGIN_INCARNATION, secrets.token_bytes(8))
