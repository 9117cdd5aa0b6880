"""The interface between repositories and a database, implemented for SQLite and PostgreSQL."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import structlog
from sqlalchemy import Executable, Row, insert

from gateway.domain.audit_log import AuditRow
from gateway.errors import StoreUnavailable
from gateway.frozen import frozen
from gateway.storage import schema
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.bulk import Inserts
from gateway.storage.kept_changes import KeptChanges
from gateway.storage.row_mapping import build_audit_row
from gateway.storage.subject_sums import SubjectSums

if TYPE_CHECKING:  # of a node of a cluster
    from gateway.storage.stored_credit import StoredCredit

T = TypeVar("T")

log = structlog.stdlib.get_logger(__name__)


class DatabaseStartupError(Exception):
    """The database cannot be opened; the message is for the operator."""


class RowRefused(StoreUnavailable):
    """The database permanently refuses a row because of its values; ``reason`` is the database's message."""

    def __init__(self, reason: str) -> None:
        super().__init__("The gateway's store cannot record this", retry_after_s=5)
        self.reason = reason


@frozen
class StoreSize:
    """The size of a database: its own ``bytes``, and those of its log (None if its server manages the log)."""

    bytes: int
    log_bytes: int | None = None


class Database(ABC):
    """An open database; ``gateway.storage.open`` opens one.

    A started operation runs to its end even if the task that awaits it is cancelled: interrupting a statement would
    lose the connection and the result.

    Attributes:
        name: the path of its file, or the address of its server without a password.
        last_commit_ms: duration of the last commit including the disk, in milliseconds; None before the first.
        damage: what is damaged; empty as long as no damage is known.
        credit: updates credit leases with every write; None for a single gateway.
        kept: keeps the last changes for the time after a failover; None for a single gateway.
        subjects: which users, sessions and tags have sums of their own.
    """

    kind: ClassVar[Literal["sqlite", "postgresql"]]

    def __init__(self, name: str) -> None:
        self.name = name
        self._running_tasks: set[asyncio.Task[Any]] = set()
        self.last_commit_ms: float | None = None
        self.damage = ""
        self.credit: StoredCredit | None = None
        self.kept: KeptChanges | None = None
        self.subjects = SubjectSums()

    def keep_changes(self, kept_changes: KeptChanges) -> None:
        """Also keep the changes from now on in ``kept_changes``."""
        self.kept = kept_changes

    def bound_subjects(self, find_max_values: Callable[[], int]) -> None:
        """Let at most ``find_max_values()`` users, sessions, and values of each tag have sums of their own on a day."""
        self.subjects = SubjectSums(find_max_values)

    def check_found(self, *, found: bool) -> None:
        """Raise ``StoreUnavailable`` if something may be missing only because the database was replaced."""
        if not found and self.kept is not None:
            self.kept.check()

    @abstractmethod
    async def write(self, work: Callable[[AsyncConnection], Awaitable[T]], audit: AuditRow | None = None) -> T:
        """Run ``work`` and store ``audit`` in one transaction; return the result of ``work``.

        No other write runs at the same time. Raises ``RowRefused`` if a value does not fit into its column. Raises
        ``StoreUnavailable`` if the database does not answer. Raises SQLAlchemy's ``IntegrityError`` if a constraint is
        violated.
        """

    async def write_shared(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        """Run ``work`` like ``write``, but at the same time as such writes of other processes.

        ``work`` must not depend on rows that others may change meanwhile.
        """
        return await self.write(work)

    async def insert(self, build: Callable[[], Inserts]) -> bool:
        """Insert the rows that ``build`` returns in one transaction; see ``SqliteDatabase.insert``.

        Return False if nothing was inserted: the database refuses a row, or inserts only in ``write_shared``. Then use
        ``write_shared``, which inserts the rows or raises the error.
        """
        del build
        return False

    async def change(self, statement: Executable, audit: AuditRow | None = None) -> int:
        """Run one statement in a transaction of its own; return how many rows it matched.

        If it matches none, ``audit`` is not written. The statement may depend only on the rows that it changes, because
        other writes run at the same time (``write_shared``).
        """

        async def execute(connection: AsyncConnection) -> int:
            matched_rows = (await connection.execute(statement)).rowcount
            if matched_rows and audit is not None:
                await connection.execute(insert(schema.audit).values(build_audit_row(audit)))
            return matched_rows

        return await self.write_shared(execute)

    @abstractmethod
    async def read(self, statement: Executable) -> Sequence[Row[Any]]:
        """Return every row of a statement."""

    async def read_long(self, statement: Executable) -> Sequence[Row[Any]]:
        """Read like ``read``, for statements whose duration grows with the number of rows, such as sums."""
        return await self.read(statement)

    async def read_snapshot(self, statements: Sequence[Executable]) -> Sequence[Sequence[Row[Any]]]:
        """Read like ``read_long``, for several statements, which all read the state of one moment."""
        return [await self.read_long(statement) for statement in statements]

    async def read_first(self, statement: Executable) -> Sequence[Row[Any]]:
        """Read like ``read``, for statements that must not wait for other reads."""
        return await self.read(statement)

    @abstractmethod
    async def check_writable(self) -> None:
        """Raise ``StoreUnavailable`` if a write would fail now, or the database is damaged."""

    @abstractmethod
    async def measure(self) -> StoreSize:
        """Return how much space the database occupies, as of its last answer. Never raises."""

    def report_damage(self, description: str) -> None:
        """Log that the database is damaged; from now on the gateway is not ready."""
        if not self.damage:
            log.error("store_damaged", path=self.name, error=description)
        self.damage = description

    @abstractmethod
    async def close(self) -> None:
        """Wait for operations in progress and close every connection."""

    async def _run_to_end(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.get_running_loop().create_task(work)
        self._running_tasks.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._running_tasks.discard(task)
        if not task.cancelled():
            task.exception()  # keeps asyncio from logging the exception: the caller may be cancelled

    async def _end_work(self) -> None:
        await asyncio.gather(*self._running_tasks, return_exceptions=True)
