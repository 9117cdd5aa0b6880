"""Which database it is: another one after a standby was promoted or a backup restored, and then it may lack commits."""

import secrets
from typing import Any, TypeAlias

import asyncpg

NAME = "incarnation"
"""Of the row in ``cluster`` with a number that a restored or copied database gets."""
_READ = f"SELECT encode(value, 'hex') FROM cluster WHERE name = '{NAME}'"  # noqa: S608 - our own word
# The timeline of the last checkpoint, which `pg_control_checkpoint` has, may be older than a promotion.
_PLACE = """
SELECT concat_ws(' ', (SELECT system_identifier FROM pg_control_system()), d.oid,
  CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_lsn()), 8) END)
FROM pg_database d WHERE d.datname = current_database()
"""
_BEGIN = f"""
INSERT INTO cluster (name, value) VALUES ('{NAME}', $1) ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""  # noqa: S608 - our own word

Connection: TypeAlias = Any
"""asyncpg's ``Connection``, which has no types."""


async def read_generation(connection: Connection) -> str:
    """Return a text that is another one after each restore and each promotion of a standby.

    A server that does not show its timeline to this user, as some that are offered as a service, shows restores only.
    """
    found = []
    for statement in (_READ, _PLACE):
        try:
            found.append(await connection.fetchval(statement) or "")
        except (asyncpg.SyntaxOrAccessError, asyncpg.FeatureNotSupportedError):  # among them: no such table yet
            found.append("")
    return " ".join(found)


async def begin_generation(connection: Connection) -> None:
    """Make this database another one than it was, as part of the current transaction."""
    await connection.execute(_BEGIN, secrets.token_bytes(8))
