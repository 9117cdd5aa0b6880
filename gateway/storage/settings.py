"""Settings in the database."""

from collections.abc import Sequence

from sqlalchemy import delete, insert, select

from gateway.domain.audit_log import AuditRow
from gateway.domain.setting import Setting
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database
from gateway.storage.schema import settings


class SettingRepository:
    """The ``settings`` table. An ``audit`` row is written in the commit of its change."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_settings(self) -> Sequence[Setting]:
        rows = await self._database.read_first(select(settings).order_by(settings.c.path))
        return [Setting(row.path, row.value, row.changed_ms) for row in rows]

    async def put_setting(self, setting: Setting, audit: AuditRow | None = None) -> None:
        async def work(connection: AsyncConnection) -> None:
            await connection.execute(delete(settings).where(settings.c.path == setting.path))
            values = {"path": setting.path, "value": setting.value, "changed_ms": setting.changed_ms}
            await connection.execute(insert(settings).values(values))

        await self._database.write(work, audit)

    async def delete_setting(self, path: str, audit: AuditRow | None = None) -> bool:
        return bool(await self._database.change(delete(settings).where(settings.c.path == path), audit))
