"""A connection of a node's own to its database, lent to one user at a time and made anew after a failure."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import asyncpg
import structlog

from gateway.errors import StoreUnavailable
from gateway.storage.postgres.sole_user import DatabaseInUse

Connection: TypeAlias = Any
"""asyncpg's ``Connection``, which has no types."""
FAILURES = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""What asyncpg raises if a server ends, restarts or does not answer; the last, if it ends in the middle of a reply."""

log = structlog.stdlib.get_logger(__name__)


class DedicatedConnection:
    """One connection, which ``connect`` makes."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]]) -> None:
        self._connect = connect
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()

    async def open(self) -> None:
        """Connect. Raises what ``connect`` does."""
        self._connection = await self._connect()

    @asynccontextmanager
    async def lend(self, most_s: float) -> AsyncIterator[Connection]:
        """Lend the connection for ``most_s`` seconds; whatever fails closes it. Raises ``StoreUnavailable``."""
        async with self._lock:
            try:
                async with asyncio.timeout(most_s):
                    if self._connection is None or self._connection.is_closed():
                        self._connection = await self._connect()
                    yield self._connection
            except BaseException as error:
                self.close()
                if isinstance(error, (*FAILURES, DatabaseInUse)):
                    raise describe(error) from error
                raise

    def close(self) -> None:
        """Close the connection; the server then frees the locks that it had."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


def describe(error: BaseException) -> StoreUnavailable:
    """Log why the database does not answer, and return the error that says so."""
    log.warning("node_unanswered", error=str(error) or type(error).__name__)
    return StoreUnavailable("The gateway's store does not answer", retry_after_s=2)
