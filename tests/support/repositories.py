"""Real repositories over a copy of an empty database, which is opened when a test first uses it.

A test may make one without awaiting anything. What was opened is closed by ``close_databases``: after every test by a
fixture, and at the end of a scene by the event loops whose clocks jump. These ask ``is_working`` before they jump.
"""

import asyncio
import atexit
import shutil
import tempfile
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Executable, Row, event
from sqlalchemy.ext.asyncio import AsyncConnection
from structlog.testing import capture_logs
from typing_extensions import override

from gateway.domain.audit_log import AuditRow
from gateway.storage.accounts import AccountRepository
from gateway.storage.api_keys import ApiKeyRepository
from gateway.storage.audit_log import AuditLogRepository
from gateway.storage.bulk import Inserts
from gateway.storage.channels import ChannelRepository
from gateway.storage.database import Database, StoreSize
from gateway.storage.encryption import SecretBox
from gateway.storage.ledger import LedgerRepository
from gateway.storage.open import open_database
from gateway.storage.request_log import RequestLogRepository
from gateway.storage.retention import RetentionRepository
from gateway.storage.subject_usage import SubjectUsageRepository
from gateway.storage.traffic import TrafficRepository
from tests.support.first_start import find_template
from tests.support.gateway import make_template

T = TypeVar("T")

_used: list["LazyDatabase"] = []
_closing = 0
_numbers = count()


@cache
def _make_folder() -> Path:
    """Make the folder of this process, when it first needs one: it may be forked off another."""
    folder = Path(tempfile.mkdtemp(prefix="repositories-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


class LazyDatabase(Database):
    """A copy of the template, opened at its first use."""

    kind = "sqlite"

    def __init__(self) -> None:
        super().__init__("lazy")
        self._lock = asyncio.Lock()
        self._opening = False
        self._opened: Database | None = None

    @override
    async def write(self, work: Callable[[AsyncConnection], Awaitable[T]], audit: AuditRow | None = None) -> T:
        return await (await self._open()).write(work, audit)

    @override
    async def write_shared(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        return await (await self._open()).write_shared(work)

    @override
    async def insert(self, build: Callable[[], Inserts]) -> bool:
        return await (await self._open()).insert(build)

    @override
    async def change(self, statement: Executable, audit: AuditRow | None = None) -> int:
        return await (await self._open()).change(statement, audit)

    @override
    async def read(self, statement: Executable) -> Sequence[Row[Any]]:
        return await (await self._open()).read(statement)

    @override
    async def read_first(self, statement: Executable) -> Sequence[Row[Any]]:
        return await (await self._open()).read_first(statement)

    @override
    async def read_long(self, statement: Executable) -> Sequence[Row[Any]]:
        return await (await self._open()).read_long(statement)

    @override
    async def check_writable(self) -> None:
        await (await self._open()).check_writable()

    @override
    async def measure(self) -> StoreSize:
        return await (await self._open()).measure()

    @property
    def is_working(self) -> bool:
        """Whether a thread has a statement of it."""
        return self._opening or (self._opened is not None and bool(self._opened._running_tasks))

    @override
    async def close(self) -> None:
        """Close every connection, and wait for its thread: a thread that ends later finds no event loop to tell."""
        async with self._lock:  # it may be opening
            database, self._opened = self._opened, None
        if database is None:
            return
        threads: list[threading.Thread] = []
        for engine in (database._writer, database._reader):  # type: ignore[attr-defined]
            event.listen(engine.sync_engine, "close", lambda ended, _: threads.append(ended.driver_connection._thread))
        await database.close()
        for thread in threads:
            thread.join()
        database.path.unlink()  # type: ignore[attr-defined]

    async def _open(self) -> Database:
        if self._opened is not None:
            return self._opened
        async with self._lock:
            if self._opened is None:
                self._opening = True
                _used.append(self)
                try:
                    folder = _make_folder()
                    template = find_template() or folder / "template.db"
                    if not template.exists():
                        with capture_logs():  # a test looks at its own lines of the log
                            draft = await make_template(folder / f"{id(self)}.draft")
                        draft.rename(template)
                    path = shutil.copy(template, folder / f"{next(_numbers)}.db")
                    self._opened = await open_database(f"sqlite:///{path}")
                finally:
                    self._opening = False
            return self._opened


def is_working() -> bool:
    """Whether a thread works for a database; its answer arrives in real time."""
    return _closing > 0 or any(database.is_working for database in _used)


def has_databases() -> bool:
    return bool(_used)


async def close_databases() -> None:
    """Close every database that was opened since the last time."""
    global _closing  # noqa: PLW0603 - the event loop's selector asks for it
    _closing += 1
    try:
        while _used:
            await _used.pop().close()
    finally:
        _closing -= 1


class Repositories(  # type: ignore[misc]  # two of them have a _limit of their own
    AccountRepository, ApiKeyRepository, ChannelRepository, RequestLogRepository, LedgerRepository, RetentionRepository
):
    """Every repository of accounts, channels and money in one object, for a test to wrap a method of.

    Attributes:
        database: the database of all of them.
        traffic: its sums of traffic.
        subjects: its sums of users, sessions and tags.
        audit_log: its audit log.
    """

    def __init__(self) -> None:
        self.database: Database = LazyDatabase()
        RequestLogRepository.__init__(self, self.database)
        ChannelRepository.__init__(self, self.database, SecretBox(bytes(32)))
        LedgerRepository.__init__(self, self.database)
        RetentionRepository.__init__(self, self.database)
        self.traffic = TrafficRepository(self.database)
        self.subjects = SubjectUsageRepository(self.database)
        self.audit_log = AuditLogRepository(self.database)
