"""The audit log in the database."""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, func, insert, or_, select

from gateway.domain.audit_log import AuditFilter, AuditRow
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database
from gateway.storage.row_mapping import build_audit_row, parse_audit
from gateway.storage.schema import audit as rows


class AuditLogRepository:
    """The ``audit`` table. Repositories write a change's row with ``add_row``, in the same commit as the change."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_audit(self, audit_filter: AuditFilter, limit: int) -> Sequence[AuditRow]:
        statement = select(rows).where(*_list_conditions(audit_filter)).order_by(rows.c.sequence.desc()).limit(limit)
        return [parse_audit(row) for row in await self._database.read(statement)]

    async def add_audit(self, row: AuditRow) -> None:
        """Store a row for a change outside the database."""
        await self._database.write(lambda connection: add_row(connection, row))


async def add_row(connection: AsyncConnection, row: AuditRow | None) -> None:
    """Write a row as part of the current transaction. None is ignored."""
    if row is not None:
        await connection.execute(insert(rows).values(build_audit_row(row)))


def _list_conditions(audit_filter: AuditFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if audit_filter.account_id is not None:
        conditions.append(rows.c.account_id == audit_filter.account_id)
    if audit_filter.actor is not None:
        conditions.append(func.coalesce(func.nullif(rows.c.actor, ""), rows.c.actor_kind) == audit_filter.actor)
    if audit_filter.action is not None:
        noun = f"{audit_filter.action}."
        conditions.append(or_(rows.c.action == audit_filter.action, func.substr(rows.c.action, 1, len(noun)) == noun))
    if audit_filter.before is not None:
        conditions.append(rows.c.sequence < audit_filter.before)
    return conditions
