"""The user of a database: a node of a cluster, or a single gateway, which must be the only one.

A single gateway requires that no other gateway changes its balances and the jobs that it has claimed.
"""

import asyncio
import time
from typing import Protocol

import asyncpg
import structlog
from sqlalchemy import Executable, text

from gateway.storage.postgres.address import Address
from gateway.storage.postgres.hosts import CONNECT_TIMEOUT_S, FAILURES
from gateway.storage.postgres.lock_numbers import SOLE_USER_LOCK, WRITES_LOCK

WRITE_ALONE = text(f"SELECT pg_advisory_xact_lock({WRITES_LOCK})")
# The server frees ``SOLE_USER_LOCK`` a moment before the client sees that its connection has ended, or much earlier if
# only the server has noticed: a write asks the server, not the connection.
_LOCK_IF_HELD = """
SELECT {}({}), (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND classid = 0 AND objid = :lock AND granted
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND pid = :holder
               ) AS alive
"""
_LOCK_ALONE = text(_LOCK_IF_HELD.format("pg_advisory_xact_lock", WRITES_LOCK))
_LOCK_SHARED = text(_LOCK_IF_HELD.format("pg_advisory_xact_lock_shared", WRITES_LOCK))
_PAUSE_S = 0.1
_FIND_HOLDER = """
SELECT pid, application_name, coalesce(host(client_addr), 'this machine') AS place FROM pg_stat_activity
WHERE pid = (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = 0 AND objid = $1 AND granted
             AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) LIMIT 1)
"""

log = structlog.stdlib.get_logger(__name__)


class DatabaseInUse(Exception):
    """Another gateway uses the database; the message is for the operator."""


class NodeFenced(DatabaseInUse):
    """The other nodes have declared this one dead, and have taken over its claims."""


class DatabaseUser(Protocol):
    """The user of the database: a single gateway, or a node of a cluster."""

    def lock(self, *, is_exclusive: bool) -> Executable:
        """Return a write's first statement, which takes the lock. In its row ``alive`` is null if no write is allowed.

        ``is_exclusive``: whether the write excludes all others. Any other write excludes only exclusive ones.
        """
        ...

    async def acquire(self, wait_s: float = 0.0) -> None: ...

    def lose(self) -> None:
        """Accept that no write is allowed. Raises ``NodeFenced``, unless ``acquire`` may try again."""
        ...

    async def close(self) -> None: ...


class SoleUser:
    """A gateway's advisory lock on its database. The server frees it when its connection ends."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection: asyncpg.Connection | None = None
        self._holder_pid = 0

    def lock(self, *, is_exclusive: bool) -> Executable:
        """Return a write's first statement; see ``DatabaseUser``. The next gateway's first write waits for this one."""
        statement = _LOCK_ALONE if is_exclusive else _LOCK_SHARED
        return statement.bindparams(lock=SOLE_USER_LOCK, holder=self._holder_pid)

    async def acquire(self, wait_s: float = 0.0) -> None:
        """Take the lock unless this gateway has it; retry for ``wait_s`` seconds.

        Raises ``DatabaseInUse`` if another gateway still has it then. Errors of the connection are passed on.
        """
        if self._connection is not None and not self._connection.is_closed():
            return
        connection = await self._address.connect()
        try:
            await self._wait(connection, wait_s)
            self._holder_pid = await connection.fetchval("SELECT pg_backend_pid()", timeout=CONNECT_TIMEOUT_S)
        except BaseException:
            connection.terminate()
            raise
        if self._connection is not None:
            log.info("store_locked_again")
        self._connection = connection

    def lose(self) -> None:
        """Give up the connection, which the server has ended."""
        if self._connection is not None:
            self._connection.terminate()

    async def close(self) -> None:
        if self._connection is not None and not self._connection.is_closed():
            try:
                await self._connection.close(timeout=1)
            except FAILURES:
                self._connection.terminate()

    async def _wait(self, connection: asyncpg.Connection, wait_s: float) -> None:
        deadline_s = time.monotonic() + wait_s
        while not await self._try(connection):
            if time.monotonic() >= deadline_s:
                raise DatabaseInUse(await self._describe_holder(connection))
            await asyncio.sleep(_PAUSE_S)

    async def _try(self, connection: asyncpg.Connection) -> bool:
        if await connection.fetchval("SELECT pg_try_advisory_lock($1)", SOLE_USER_LOCK, timeout=CONNECT_TIMEOUT_S):
            return True
        holder = await connection.fetchrow(_FIND_HOLDER, SOLE_USER_LOCK, timeout=CONNECT_TIMEOUT_S)
        if holder is not None and holder["application_name"] == self._address.user:
            # Our former connection, which broke without the server noticing.
            await connection.fetchval("SELECT pg_terminate_backend($1)", holder["pid"], timeout=CONNECT_TIMEOUT_S)
        return False

    async def _describe_holder(self, connection: asyncpg.Connection) -> str:
        holder = await connection.fetchrow(_FIND_HOLDER, SOLE_USER_LOCK, timeout=CONNECT_TIMEOUT_S)
        holder_name = (
            f" ({holder['application_name']}, from {holder['place']})" if holder and holder["application_name"] else ""
        )
        return (
            f"Another gateway uses the database {self._address.name}{holder_name}. Stop it first, or name another "
            "database (store.url): one gateway uses a database at a time"
        )
