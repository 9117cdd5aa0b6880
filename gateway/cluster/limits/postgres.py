"""Rate limits decided by PostgreSQL."""

import asyncio
import time
from statistics import median
from typing import Any

from gateway.cluster.limits.postgres_sql import CREATE_CLOCK, CREATE_TABLES, build_functions
from gateway.domain.limit_server import LimitServerState
from gateway.errors import StoreUnavailable
from gateway.storage.postgres.address import Address
from gateway.storage.postgres.hosts import FAILURES
from gateway.storage.postgres.lock_numbers import LIMIT_TABLES_LOCK

SWEEP_INTERVAL_S = 60.0
_PING_COUNT = 5


class PostgresLimitServer:
    """A ``LimitServer`` in a PostgreSQL database, over a dedicated connection whose commits do not wait for the disk.

    ``url``: the URL of the database, possibly the gateway's own. ``clock``: the statement that creates the SQL function
    of the time.
    """

    def __init__(self, url: str, clock: str = CREATE_CLOCK) -> None:
        self._address = Address(url)
        self.name = self._address.name
        version, self._functions = build_functions(clock)
        self._decide_query = f"SELECT decide_limits_{version}($1::jsonb)::text"
        self._sweep_query = f"SELECT sweep_limits_{version}()"
        self._check_query = f"SELECT to_regproc('decide_limits_{version}') IS NOT NULL"
        self._connection: Any = None
        self._next_sweep_s = 0.0

    async def connect(self) -> None:
        await self.close()
        try:
            self._connection = await self._address.connect(synchronous_commit="off", statement_timeout="3s")
            async with self._connection.transaction():
                await self._connection.execute("SET LOCAL synchronous_commit = on")
                await self._connection.execute(f"SELECT pg_advisory_xact_lock({LIMIT_TABLES_LOCK})")
                await self._connection.execute(CREATE_TABLES)
                if not await self._connection.fetchval(self._check_query):
                    for statement in self._functions:
                        await self._connection.execute(statement)
        except (*FAILURES, ValueError) as error:
            raise StoreUnavailable(f"{self.name} cannot be used: {error}") from error

    async def run(self, command: bytes) -> bytes:
        try:
            answer = await self._connection.fetchval(self._decide_query, command.decode())
            if time.monotonic() > self._next_sweep_s:
                self._next_sweep_s = time.monotonic() + SWEEP_INTERVAL_S
                await self._connection.execute(self._sweep_query)
        except (*FAILURES, asyncio.IncompleteReadError) as error:
            raise StoreUnavailable(f"{self.name} cannot be used: {error}") from error
        return str(answer).encode()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


async def inspect_database(url: str) -> LimitServerState:
    """Return the state of the database at ``url``. Raises ``StoreUnavailable``."""
    address = Address(url)
    try:
        connection = await address.connect(statement_timeout="3s")
        try:
            version = str(await connection.fetchval("SHOW server_version"))
            durations_ms = []
            for _ in range(_PING_COUNT):
                started_s = time.perf_counter()
                await connection.fetchval("SELECT 1")
                durations_ms.append((time.perf_counter() - started_s) * 1000)
        finally:
            connection.terminate()
    except (*FAILURES, ValueError) as error:
        raise StoreUnavailable(f"{address.name} cannot be used: {error}") from error
    return LimitServerState(address.name, f"PostgreSQL {version.partition(' ')[0]}", median(durations_ms))
