"""Settings in the database."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import delete, insert, select

from gateway.domain.audit_log import AuditRow
from gateway.domain.setting import Setting
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database
from gateway.storage.row_mapping import build_audit_row
from gateway.storage.schema import audit, settings


class SettingRepository:
    """The ``settings`` table. Audit rows are written in the commit of their changes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_settings(self) -> Sequence[Setting]:
        rows = await self._database.read_first(select(settings).order_by(settings.c.path))
        return [Setting(row.path, row.value, row.changed_ms) for row in rows]

    async def change_settings(
        self, changes: Mapping[str, Any], changed_ms: int, audits: Mapping[str, AuditRow] = {}
    ) -> None:
        """Store the value at each path in one transaction; None removes the setting there.

        ``audits`` are the audit rows by path. The row of a removal is left out if nothing was stored.
        """

        async def work(connection: AsyncConnection) -> None:
            for path, value in changes.items():
                is_changed = bool((await connection.execute(delete(settings).where(settings.c.path == path))).rowcount)
                if value is not None:
                    is_changed = True
                    await connection.execute(insert(settings).values(path=path, value=value, changed_ms=changed_ms))
                if is_changed and path in audits:
                    await connection.execute(insert(audit).values(build_audit_row(audits[path])))

        await self._database.write(work)
