"""Logs what an upgrade of the schema waits for, and notices a server that has fallen silent meanwhile."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import structlog

from gateway.storage.postgres.address import Address
from gateway.storage.postgres.hosts import CONNECT_TIMEOUT_S, FAILURES, SUSPECT_S, Connection
from gateway.storage.postgres.lock_numbers import UPGRADE_LOCK

REPEAT_S = 30.0
"""Seconds between two log lines about one wait."""
_TRIES = 4
"""How often in a row a server must be silent before an upgrade ends.

One silence of a server that is busy must not cost hours of building an index.
"""
_COLUMNS = """
SELECT pid, application_name, coalesce(host(client_addr), 'this machine') AS place, state,
    coalesce(extract(epoch FROM clock_timestamp() - coalesce(xact_start, state_change)), 0)::bigint AS age_s
"""
_FIND_UPGRADER = f"""
{_COLUMNS}, 'the upgrade' AS lock FROM pg_stat_activity WHERE pid = (
    SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = 0 AND objid = {UPGRADE_LOCK} AND granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) LIMIT 1)
"""  # noqa: S608 - our own number
_FIND_BLOCKER = f"""
{_COLUMNS}, 'a transaction' AS lock FROM pg_stat_activity WHERE pid = ANY (pg_blocking_pids($1))
ORDER BY xact_start LIMIT 1
"""
# A statement that has failed waits no more, but its words name the table or the advisory lock that it waited for.
_FIND_HOLDER = f"""
{_COLUMNS}, coalesce(relation::regclass::text, 'writes') AS lock FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE granted AND pid <> pg_backend_pid()
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND coalesce(relation::regclass::text, objid::text) = ANY (regexp_split_to_array($1, '[^A-Za-z0-9_]+'))
ORDER BY xact_start LIMIT 1
"""  # noqa: S608 - our own words

log = structlog.stdlib.get_logger(__name__)


class WaitLog:
    """The log lines about one wait: at once, and then a warning every ``REPEAT_S``."""

    def __init__(self, **values: object) -> None:
        self._values = values
        self._is_repeated = False
        self._next_s = 0.0

    async def report_upgrader(self, connection: Connection) -> None:
        """Log which connection holds the lock of upgrades."""
        await self._report(connection, _FIND_UPGRADER)

    async def report_holder(self, connection: Connection, statement: str) -> None:
        """Log which connection holds what a failed ``statement`` waited for; the oldest of several."""
        await self._report(connection, _FIND_HOLDER, statement)

    async def report_blocker(self, connection: Connection, pid: int) -> None:
        """Log which connection the server's process ``pid`` waits for now, if it does."""
        await self._report(connection, _FIND_BLOCKER, pid, needs_holder=True)

    async def _report(self, connection: Connection, query: str, *arguments: object, needs_holder: bool = False) -> None:
        if time.monotonic() < self._next_s:
            return
        row = await connection.fetchrow(query, *arguments, timeout=CONNECT_TIMEOUT_S)
        if row is None and needs_holder:
            return
        self._next_s = time.monotonic() + REPEAT_S
        holder: dict[str, Any] = {} if row is None else dict(row)
        write = log.warning if self._is_repeated else log.info
        write("store_migration_waits", **self._values, **holder)
        self._is_repeated = True


@asynccontextmanager
async def watch(address: Address, driver: Connection) -> AsyncIterator[None]:
    """Check the server of ``driver`` while the block runs, and log what the connection waits for."""
    end = asyncio.Event()
    task = asyncio.create_task(_watch(address, driver, end))
    try:
        yield
    finally:
        end.set()  # to cancel the task could leave a connection half open
        await asyncio.wait([task])


async def _watch(address: Address, driver: Connection, end: asyncio.Event) -> None:
    waits = WaitLog()
    while not end.is_set() and not driver.is_closed():
        with suppress(TimeoutError):
            await asyncio.wait_for(end.wait(), SUSPECT_S)
            return
        address.suspect(driver, _TRIES)
        with suppress(*FAILURES):  # the server has too many connections, or is silent: ``suspect`` ends the upgrade
            connection = await address.connect(statement_timeout="3s")
            try:
                await waits.report_blocker(connection, driver.get_server_pid())
            finally:
                connection.terminate()
