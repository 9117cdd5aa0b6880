"""What the repositories ask of a database; SQLite and PostgreSQL answer it."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, ClassVar, Literal, TypeVar

import structlog
from sqlalchemy import Executable, Row, insert

from gateway.domain.audit_log import AuditRow
from gateway.errors import StoreUnavailable
from gateway.frozen import frozen
from gateway.storage import schema
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.row_mapping import build_audit
from gateway.storage.stored_credit import StoredCredit

T = TypeVar("T")

log = structlog.stdlib.get_logger(__name__)


class DatabaseStartupError(Exception):
    """The database cannot be opened; the message is for the operator."""


class RowRefused(StoreUnavailable):
    """The database answers and refuses a row for its values, as it would again; ``reason`` is the database's."""

    def __init__(self, reason: str) -> None:
        super().__init__("The gateway's store cannot record this", retry_after_s=5)
        self.reason = reason


@frozen
class StoreSize:
    """How much a database occupies: its own ``bytes``, and those of its log (None: its server keeps that)."""

    bytes: int
    log_bytes: int | None = None


class Database(ABC):
    """An open database; ``gateway.storage.open`` opens one.

    A started operation runs to its end even if its caller is cancelled: a connection that is left in the middle of a
    statement is lost, and so is the result.

    Attributes:
        kind: the name of its dialect.
        name: the path of its file, or the address of its server without a password.
        last_commit_ms: duration of the last commit including the disk, in milliseconds; None before the first.
        damage: the damage found since the database was opened; empty if none.
        credit: keeps credit leases right with every write; None if one gateway uses the database.
    """

    kind: ClassVar[Literal["sqlite", "postgresql"]]

    def __init__(self, name: str) -> None:
        self.name = name
        self._running: set[asyncio.Task[Any]] = set()
        self.last_commit_ms: float | None = None
        self.damage = ""
        self.credit: StoredCredit | None = None

    @abstractmethod
    async def write(self, work: Callable[[AsyncConnection], Awaitable[T]], audit: AuditRow | None = None) -> T:
        """Run ``work`` and store ``audit`` in one transaction; no other write runs at the same time.

        Raises ``RowRefused``: a value does not fit into its column. Raises ``StoreUnavailable``: the database does not
        answer. Raises ``IntegrityError``: SQLAlchemy's, for a violated constraint.
        """

    async def write_shared(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        """As ``write``, for ``work`` whose statements are right whatever other processes write to other rows.

        Several may run at once, each of another process, and none beside a ``write``.
        """
        return await self.write(work)

    async def change(self, statement: Executable, audit: AuditRow | None = None) -> int:
        """Run one statement in a transaction of its own; return how many rows it matched. Raises as ``write`` does.

        If it matches none, ``audit`` is not written. The statement may decide only by the rows that it changes: others
        run at the same time (``write_shared``).
        """

        async def execute(connection: AsyncConnection) -> int:
            met = (await connection.execute(statement)).rowcount
            if met and audit is not None:
                await connection.execute(insert(schema.audit).values(build_audit(audit)))
            return met

        return await self.write_shared(execute)

    @abstractmethod
    async def read(self, statement: Executable) -> Sequence[Row[Any]]:
        """Return every row of a statement. Raises ``StoreUnavailable``."""

    async def read_long(self, statement: Executable) -> Sequence[Row[Any]]:
        """As ``read``, for a statement whose duration grows with the number of rows, such as a sum over all of them."""
        return await self.read(statement)

    async def read_snapshot(self, statements: Sequence[Executable]) -> Sequence[Sequence[Row[Any]]]:
        """As ``read_long`` for several statements; all see one moment if other processes write."""
        return [await self.read_long(statement) for statement in statements]

    async def read_first(self, statement: Executable) -> Sequence[Row[Any]]:
        """As ``read``, for what must not wait until other reads have ended."""
        return await self.read(statement)

    @abstractmethod
    async def check_writable(self) -> None:
        """Raise ``StoreUnavailable`` if a write would fail now, or the database is damaged."""

    @abstractmethod
    async def measure(self) -> StoreSize:
        """Return how much the database occupies, or did when it last answered."""

    def report_damage(self, found: str) -> None:
        """Log that the database is damaged; the gateway is not ready from now on."""
        if not self.damage:
            log.error("store_damaged", path=self.name, error=found)
        self.damage = found

    @abstractmethod
    async def close(self) -> None:
        """Wait for the work under way and close every connection."""

    async def _finish(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._let_go)
        return await asyncio.shield(task)

    def _let_go(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # keeps asyncio from logging it: the caller may be cancelled

    async def _end_work(self) -> None:
        await asyncio.gather(*self._running, return_exceptions=True)
