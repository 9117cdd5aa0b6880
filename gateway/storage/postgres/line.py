"""A node's dedicated connection to its database, used by one operation at a time and replaced after a failure."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import structlog

from gateway.errors import StoreUnavailable
from gateway.storage.postgres.hosts import FAILURES, Connection
from gateway.storage.postgres.sole_user import DatabaseInUse

log = structlog.stdlib.get_logger(__name__)


class DedicatedConnection:
    """A single connection, made by ``connect``.

    ``suspect``: called with a connection whose statements have taken too long.
    """

    def __init__(self, connect: Callable[[], Awaitable[Connection]], suspect: Callable[[Connection], None]) -> None:
        self._connect = connect
        self._suspect = suspect
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()

    async def open(self) -> None:
        self._connection = await self._connect()

    @asynccontextmanager
    async def exclusive(self, timeout_s: float) -> AsyncIterator[Connection]:
        """Hold the connection for up to ``timeout_s`` seconds. Any exception closes it.

        An error of the database, or the end of the time, is logged and becomes ``StoreUnavailable``.
        """
        async with self._lock:
            try:
                async with asyncio.timeout(timeout_s):
                    if self._connection is None or self._connection.is_closed():
                        self._connection = await self._connect()
                    yield self._connection
            except BaseException as error:
                if isinstance(error, TimeoutError) and self._connection is not None:
                    self._suspect(self._connection)
                self.close()
                if isinstance(error, (*FAILURES, DatabaseInUse)):
                    raise report_failure(error) from error
                raise

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


def report_failure(error: BaseException) -> StoreUnavailable:
    """Log why the database does not answer, and return a ``StoreUnavailable`` to raise."""
    log.warning("node_unanswered", error=str(error) or type(error).__name__)
    return StoreUnavailable("The gateway's store does not answer", retry_after_s=2)
