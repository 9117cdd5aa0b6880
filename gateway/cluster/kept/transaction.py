"""A transaction in the place of a database, so that what several calls write is one commit."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, Literal, TypeVar

from sqlalchemy import Executable, Row, insert

from gateway.domain.audit_log import AuditRow
from gateway.storage import schema
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database, StoreSize
from gateway.storage.row_mapping import build_audit_row

T = TypeVar("T")


class Transaction(Database):
    """A database whose reads and writes are parts of the transaction that ``connection`` has begun.

    Its errors are those of SQLAlchemy. After one of them the transaction can only be rolled back.
    """

    kind: ClassVar[Literal["sqlite", "postgresql"]] = "postgresql"

    def __init__(self, database: Database, connection: AsyncConnection) -> None:
        super().__init__(database.name)
        self.credit, self.kept, self.subjects = database.credit, database.kept, database.subjects
        self._connection = connection

    async def write(self, work: Callable[[AsyncConnection], Awaitable[T]], audit: AuditRow | None = None) -> T:
        result = await work(self._connection)
        if audit is not None:
            await self._connection.execute(insert(schema.audit).values(build_audit_row(audit)))
        return result

    async def read(self, statement: Executable) -> Sequence[Row[Any]]:
        return (await self._connection.execute(statement)).all()

    async def check_writable(self) -> None: ...

    async def measure(self) -> StoreSize:
        return StoreSize(0)

    async def close(self) -> None: ...
